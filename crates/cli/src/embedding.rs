//! A model of embeddings that is opened as the arguments say.

use crate::args::ModelArgs;
use crate::error::Failure;
use crate::{cache, model};
use outsize::generate::{
    EmbeddingPipeline, EmbeddingRecipe, EmbeddingTokenizer, OpenedModel, PipelineSettings, Pooling,
    read_embedding_config,
};
use outsize::machine::Machine;
use outsize::models::Logits;

/// A model of embeddings, opened and not placed.
pub struct OpenedEmbedding {
    model: OpenedModel,
    settings: PipelineSettings,
    /// What makes tokens of texts.
    pub tokenizer: EmbeddingTokenizer,
}

impl OpenedEmbedding {
    /// With texts of up to `usual` tokens if the arguments do not say, or as many as the model can
    /// have.
    pub fn new(args: &ModelArgs, pooling: Option<Pooling>, usual: usize) -> Result<Self, Failure> {
        let folder = args.folder();
        let machine = Machine::detect();
        let mut recipe = EmbeddingRecipe::open(folder)?;
        recipe.pooling = pooling.unwrap_or(recipe.pooling);
        let model = model::opened(args, read_embedding_config(folder)?)?;
        let usual = usual.min(model.config().cache().longest_context);
        let mut settings = model::settings(args, model.config(), [1, usual], &machine)?;
        let most = settings.workload.cache.context;
        settings.workload.logits = Logits::Hidden;
        // It is made for the texts that there are, once these are known.
        settings.workload.cache.context = 1;
        settings.planning.figures = cache::figures(&machine, folder).0;
        let tokenizer = model.load_tokenizer(folder, &mut settings)??;
        let tokenizer = EmbeddingTokenizer::new(tokenizer, recipe, model.config(), most);
        Ok(Self { model, settings, tokenizer })
    }

    /// The prompt of that name, if there is one.
    pub fn named(&self, name: &str) -> &str {
        self.tokenizer.recipe().prompts.get(name).map_or("", String::as_str)
    }

    /// The model, placed for `batch` texts side by side of up to `longest` tokens.
    pub fn dispatch(mut self, [batch, longest]: [usize; 2]) -> Result<EmbeddingPipeline, Failure> {
        let workload = &mut self.settings.workload;
        workload.cache.batch = batch;
        (workload.cache.context, workload.prompt, workload.position) = (longest, longest, longest);
        let pipeline = self.model.dispatch(&self.settings, |_| {})?;
        Ok(EmbeddingPipeline::new(pipeline, self.tokenizer))
    }
}
