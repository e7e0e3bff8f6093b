//! Qwen3 as a text encoder of models of pictures: its hidden states before the last layer, which is not run.

use burn::module::Module;
use burn::tensor::Tensor;

use super::super::rms_config::RmsConfig;
use super::super::rms_decoder::{RmsBlock, RmsModel};
use super::super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::decoder::check_ids;
use crate::layers::{Embedding, Mlp, Rope, Rotation, fetched};
use crate::pass::Pass;
use crate::{Activations, Batch, CacheSpec, Error, KvCache, Logits, PassShape, PicturePass};
use crate::{Residual, WeightUse};

/// The embeddings of a Qwen3 and all of its layers but the last one.
#[derive(Module, Debug)]
pub struct Qwen3TextEncoder {
    model: RmsModel<RmsDecoderLayer<Mlp>>,
    #[module(skip)]
    ropes: Vec<Rope>,
    #[module(skip)]
    cache: CacheSpec,
}

impl Architecture for Qwen3TextEncoder {
    /// Of the layers that are run.
    type Config = RmsConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("qwen3", "Qwen3")];
    const CLASS_PREFIX: &'static str = "Rms";
    const HEADS: &'static [&'static str] = &["Qwen3ForCausalLM", "Qwen3Model"];
    const NO_SPLIT: &'static [&'static str] = RmsDecoderLayer::<Mlp>::NO_SPLIT;
    // As a `Qwen3Model` has it.
    const OPTIONAL_PREFIX: &'static str = PREFIX;

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        <Mlp as RmsFeedForward>::fields(model_type)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let config = <Mlp as RmsFeedForward>::read(model_type, fields)?;
        match config.num_hidden_layers {
            1 => {
                let expected = "a text encoder has layers before the last one".to_owned();
                Err(fields.refuse("num_hidden_layers", expected))
            }
            layers => Ok(RmsConfig { num_hidden_layers: layers - 1, ..config }),
        }
    }

    fn new(config: &RmsConfig, init: &Init) -> Self {
        let layers = 0..config.num_hidden_layers;
        Self {
            model: RmsModel {
                embed_tokens: Some(Embedding::new(config.vocab_size, config.hidden_size, init)),
                embeddings: None,
                layers: layers.map(|index| RmsDecoderLayer::new(config, index, init)).collect(),
                norm: None,
                final_layernorm: None,
                embedding_norm: None,
                norm_f: None,
            },
            ropes: config.ropes(),
            cache: config.cache(),
        }
    }
}

/// What the names of tensors may begin with.
const PREFIX: &str = "model.";

impl Component for Qwen3TextEncoder {
    fn is_unused(config: &RmsConfig, tensor: &str) -> bool {
        let name = tensor.strip_prefix(PREFIX).unwrap_or(tensor);
        let last = format!("layers.{}.", config.num_hidden_layers);
        [&*last, "norm.", "lm_head."].iter().any(|part| name.starts_with(part))
    }

    fn weight_use(_: &RmsConfig, path: &str, pass: &PicturePass) -> WeightUse {
        // A token attends to those before it.
        let attended = if path.contains(".q_proj.") { pass.tokens as u64 / 2 } else { 0 };
        WeightUse { rows: pass.all_tokens(), attended }
    }
}

impl Qwen3TextEncoder {
    /// Runs texts of any length, each as it would be alone: `[texts, tokens, hidden]` f32 before the last layer, in main memory.
    /// Of each text the last ones count, as many as it has tokens.
    ///
    /// # Errors
    /// No texts, one without ids, or an id outside the vocabulary.
    pub fn forward(&self, texts: &[impl AsRef<[u32]>]) -> Result<Tensor<3>, Error> {
        let batch = Batch::left_padded(texts)?;
        let table = self.table();
        check_ids(&batch, table.weight.lazy_shape()[0])?;
        let mut cache = KvCache::without_storage(&self.cache, &batch);
        cache.begin(&batch);
        let pass = Pass::new(&batch, &cache, Logits::All);
        let x = pass.embed(table);
        let rotations: Vec<Rotation> =
            self.ropes.iter().map(|rope| pass.rotation(rope, &x.device())).collect();
        let mut residual = Residual::new(x);
        for (index, layer) in self.model.layers.iter().enumerate() {
            residual = layer.forward(residual, &rotations, &pass, &mut cache, index)?;
        }
        Ok(fetched(residual.summed(), &table.weight))
    }

    /// An upper bound on the bytes of activations that a pass of `rows` texts of up to `tokens` tokens each holds at once, with
    /// the scratch memory of attention on so many threads.
    pub fn activation_bytes(&self, rows: usize, tokens: usize, threads: usize) -> u64 {
        let pass = PassShape::of_texts(rows, tokens, threads);
        let layers = self.model.layers.iter().map(|layer| layer.activations(&pass));
        let most = layers.fold(Activations::default(), Activations::or);
        // Alive throughout: the residual stream, and the rotations.
        let alive = self.table().width() + self.ropes.iter().map(Rope::width).sum::<usize>();
        most.and(Activations::values(pass.rows() * alive as u64)).bytes()
    }

    fn table(&self) -> &Embedding {
        self.model.embed_tokens.as_ref().expect("it is made with a table of this name")
    }
}
