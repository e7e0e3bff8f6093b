//! From a checkpoint's folder and a budget to a model that generates.

mod adapter;
mod drafts;
mod error;
mod opened_model;
mod placement;
mod pooled;
mod scores;
mod sequences;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use burn::tensor::Tensor;
use outsize_checkpoint::{CONFIG_LIMIT, Checkpoint, read_optional_text};
use outsize_core::Planning;
use outsize_kernels::BufferReuse;
use outsize_models::{
    Batch, CacheOptions, CacheSpec, DispatchedDecoder, Error as ModelError, FIRST_IMAGE_ID,
    ImageFeatures, KvCache, Logits, ModelConfig,
};
use outsize_plan::{Budget, DeviceMap, Prediction};
use outsize_stream::Stats;

pub use self::drafts::DraftStats;
use self::drafts::Drafts;
pub use self::error::PipelineError;
pub use self::opened_model::OpenedModel;
pub use self::scores::ScoredText;
use crate::error::Error;
use crate::planning::GenerationWorkload;

/// What a model is opened with.
#[derive(Debug, Clone)]
pub struct PipelineSettings {
    /// The most that may be held, in bytes. For `cpu` it counts the whole process: its peak
    /// resident set.
    pub max_memory: Budget,
    /// For what the model is run: the context is at most what it was made for, and a longer prompt
    /// is run in several passes. What the process takes is counted as it is found, if that is more.
    pub workload: GenerationWorkload,
    /// How places are chosen, and what the predicted speed is made of. The workload in it does not
    /// count.
    pub planning: Planning,
    /// Once another thread or a signal sets it, the pass under way ends in the middle.
    pub stop: Option<Arc<AtomicBool>>,
}

/// What has been done, for those who want to watch.
#[derive(Debug)]
pub enum Step<'a> {
    /// The empty model exists: shapes and no storage.
    Empty {
        /// Values in all of its parameters.
        parameters: u64,
    },
    /// The checkpoint's headers are read.
    Opened {
        /// The checkpoint.
        checkpoint: &'a Checkpoint,
    },
    /// It is decided where each block lives.
    Planned {
        /// The decision.
        map: &'a DeviceMap,
        /// How fast that will be.
        prediction: &'a Prediction,
    },
    /// Every parameter has its handle, and reading has begun.
    Dispatched,
}

/// A language model, dispatched within a budget, with its KV cache. It runs as many texts side by
/// side as that was made for.
#[derive(Debug)]
pub struct Pipeline {
    model: DispatchedDecoder,
    cache: KvCache,
    vocab_size: usize,
    /// What the decoder begins with, if an encoder reads the prompt.
    start: Option<[u32; 1]>,
    /// Tokens of each text that one pass takes at most: what the budget's activations were counted
    /// for.
    chunk: usize,
    prediction: Prediction,
    /// Tokens of all prompts that it is a prediction for.
    predicted_tokens: u64,
    streamed: Option<(PathBuf, Range<u64>)>,
    spec: CacheSpec,
    /// Bytes in which activations' memory may be kept from layer to layer of a pass, that in use
    /// included.
    reusable: usize,
    /// What guesses tokens, if they are drafted.
    drafts: Option<Drafts>,
    /// Tokens that were run, for those who watch.
    done: Arc<AtomicU64>,
}

/// Reads a model's configuration from its folder.
///
/// # Errors
/// A file that is missing, larger than 16 MiB or asks for something that cannot be run.
pub fn read_config(folder: &Path) -> Result<ModelConfig, PipelineError> {
    read_config_as(folder, ModelConfig::from_json)
}

/// The same, read by `read`.
pub(crate) fn read_config_as(
    folder: &Path,
    read: impl FnOnce(&str) -> Result<ModelConfig, ModelError>,
) -> Result<ModelConfig, PipelineError> {
    let path = folder.join("config.json");
    let Some(text) = read_optional_text(&path, CONFIG_LIMIT).map_err(Error::from)? else {
        return Err(PipelineError::NoConfig { folder: folder.to_owned() });
    };
    read(&text).map_err(|source| PipelineError::BadConfig { path, source })
}

impl Pipeline {
    /// Opens the checkpoint in `folder`, which holds a model of configuration `config`, places it
    /// within the budget, and begins to read. `observe` is told of every step.
    ///
    /// # Errors
    /// What is wrong with the checkpoint, or how many bytes of budget would do.
    pub fn open(
        folder: &Path,
        config: ModelConfig,
        settings: &PipelineSettings,
        mut observe: impl FnMut(Step<'_>),
    ) -> Result<Self, PipelineError> {
        observe(Step::Empty { parameters: config.parameter_count() });
        let model = OpenedModel::new(folder, config)?;
        observe(Step::Opened { checkpoint: &model.checkpoint });
        model.dispatch(settings, observe)
    }

    /// Where everything lives.
    pub fn device_map(&self) -> &DeviceMap {
        self.model.device_map()
    }

    /// Tokens that it has logits of.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// How fast it was predicted to be.
    pub fn prediction(&self) -> &Prediction {
        &self.prediction
    }

    /// What was read and waited for so far.
    pub fn stats(&self) -> Stats {
        self.model.watch()()
    }

    /// The same, for asking while the pipeline is at work.
    pub fn watch(&self) -> impl Fn() -> Stats + 'static {
        self.model.watch()
    }

    /// How many tokens were run so far, for asking while the pipeline is at work.
    pub fn watch_tokens(&self) -> impl Fn() -> u64 + Send + use<> {
        let done = self.done.clone();
        move || done.load(Ordering::Relaxed)
    }

    /// How many tokens of a text of `tokens` tokens are run for its next one: the last ones, as far
    /// back as the next one depends on them, or all if an encoder reads them.
    pub fn tokens_to_run(&self, tokens: usize) -> usize {
        self.spec.tokens_to_run(tokens, self.cache.options())
    }

    /// Whether the keys of tokens are the same whether a text of up to `longest` tokens is run at
    /// once or goes on from a part of it: not where an encoder reads the text, nor where rotations
    /// depend on the text's length.
    pub(crate) fn keeps_keys(&self, longest: usize) -> bool {
        self.start.is_none() && self.spec.rescaled_beyond.is_none_or(|length| longest <= length)
    }

    /// Whether an encoder reads prompts.
    pub(crate) fn has_encoder(&self) -> bool {
        self.start.is_some()
    }

    /// Whether texts can go on from any token of a text, if it is no longer than a sliding window.
    pub(crate) fn can_be_cut(&self) -> bool {
        !self.spec.layers.iter().any(|layer| layer.recurrent().is_some())
    }

    /// Tokens of a prompt that take about as long to compute as a pass of one token takes.
    pub(crate) fn tokens_of_a_pass(&self) -> usize {
        let Prediction { prefill, decode, .. } = &self.prediction;
        let token = prefill.compute_seconds / self.predicted_tokens.max(1) as f64;
        (decode.seconds / token).max(1.0) as usize
    }

    /// Whether a text can go on beyond the context with its oldest tokens forgotten.
    pub fn can_slide(&self) -> bool {
        self.spec.cannot_slide.is_none()
    }

    /// Tokens that one pass takes at most: an encoder reads a prompt in one.
    pub fn longest_pass(&self) -> usize {
        self.chunk.max(self.cache.options().prompt)
    }

    /// The file of which most is streamed, and the range of its bytes that streamed weights lie in:
    /// what the disk's speed should be measured on.
    pub fn streamed_range(&self) -> Option<(PathBuf, Range<u64>)> {
        self.streamed.clone()
    }

    /// What the KV cache was made for.
    pub fn cache_options(&self) -> &CacheOptions {
        self.cache.options()
    }

    /// Forgets the text so far.
    pub fn clear(&mut self) {
        self.go_back(0);
    }

    /// Forgets the tokens from `position` on, so that the text can go on differently from there;
    /// nothing happens if there are fewer. What is generated then is what would have been generated
    /// without the tokens forgotten.
    ///
    /// # Errors
    /// The context slid so far that tokens which `position` would need are forgotten.
    pub fn truncate(&mut self, position: usize) -> Result<(), PipelineError> {
        self.without_drafts(&[], |pipeline| Ok(pipeline.cache.truncate(position)?))
    }

    /// Has texts with tokens of an image run, as [`KvCache::add_image`] does.
    ///
    /// # Errors
    /// As there.
    pub fn add_image(
        &mut self,
        first: u32,
        features: ImageFeatures,
    ) -> Result<Range<u32>, PipelineError> {
        Ok(self.cache.add_image(first, features)?)
    }

    /// Forgets images but those whose ids are to be kept, as [`KvCache::retain_images`] does.
    pub fn retain_images(&mut self, keep: impl Fn(&Range<u32>) -> bool) {
        self.cache.retain_images(keep);
    }

    /// Has the pass that goes on from `position`, or across it, take a
    /// [snapshot](KvCache::snapshot_at) there.
    pub fn snapshot_at(&mut self, position: usize) {
        self.cache.snapshot_at(position);
    }

    /// Forgets the tokens from `position` on, or where that cannot be done, [from the snapshot
    /// on](KvCache::go_back), or else all. Gives how many are held then.
    pub fn go_back(&mut self, position: usize) -> usize {
        // What cannot be done is not done to an empty cache.
        let gone = self.without_drafts(&[], |pipeline| Ok(pipeline.cache.go_back(position)));
        gone.unwrap_or_else(|_| {
            self.cache.clear();
            0
        })
    }

    /// Lets the encoder read a prompt; what was there before is forgotten. [`logits`](Self::logits)
    /// are then those of a decoder's ids. Not needed before
    /// [`forward`](crate::LanguageModel::forward), whose first ids are the prompt.
    ///
    /// # Errors
    /// A model without an encoder, and what the model or a read said.
    pub fn encode(&mut self, prompt: &[u32]) -> Result<(), PipelineError> {
        self.encode_batch(&Batch::left_padded(&[prompt])?)
    }

    fn encode_batch(&mut self, prompts: &Batch) -> Result<(), PipelineError> {
        let _reuse = self.buffer_reuse();
        self.model.encode_batch(prompts, &mut self.cache)??;
        self.count(prompts);
        Ok(())
    }

    /// Counts the tokens of a pass.
    fn count(&self, batch: &Batch) {
        let tokens = batch.ids().len() - batch.padding().iter().sum::<usize>();
        self.done.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// Appends `ids` and gives the logits of each position to `take`, in order: slices of whole
    /// rows `[vocabulary]`, one after the other.
    ///
    /// # Errors
    /// What the model or a read said. The text is then as it was before the pass that failed.
    pub fn logits(
        &mut self,
        ids: &[u32],
        mut take: impl FnMut(&[f32]),
    ) -> Result<(), PipelineError> {
        self.without_drafts(ids, |pipeline| {
            pipeline.cache.expect(ids.len());
            let _reuse = pipeline.buffer_reuse();
            for chunk in ids.chunks(pipeline.chunk) {
                let logits = pipeline.pass(&Batch::left_padded(&[chunk])?, Logits::All)?;
                take(&values(logits)?);
            }
            Ok(())
        })
    }

    /// Appends a batch; gives the last logits of each text, `[rows, vocabulary]`.
    fn run(&mut self, batch: &Batch) -> Result<Vec<f32>, PipelineError> {
        let (mut last, tokens) = (Vec::new(), batch.tokens());
        self.cache.expect(tokens);
        let skipped = match self.cache.position() {
            // How far images move the positions behind them is found by running them.
            0 if batch.ids().iter().any(|id| *id >= FIRST_IMAGE_ID) => 0,
            0 => tokens - self.tokens_to_run(tokens),
            _ => 0,
        };
        if skipped > 0 {
            self.cache.begin_at(skipped, batch);
        }
        let _reuse = self.buffer_reuse();
        let longest = self.longest_pass_of(batch.rows());
        let batch = batch.columns(skipped..tokens);
        for columns in cuts(batch.tokens(), longest, &self.cache.uncut(&batch)) {
            let chunk = batch.columns(columns.clone());
            let logits = match columns.end < batch.tokens() {
                true => self.keep(&chunk).map(|()| None),
                false => self.pass(&chunk, Logits::Last).map(Some),
            };
            if logits.is_err() && skipped > 0 && self.cache.position() == skipped {
                self.cache.clear();
            }
            if let Some(logits) = logits? {
                last = values(logits)?;
            }
        }
        Ok(last)
    }

    /// Until it is dropped, layers use the memory of those before them.
    fn buffer_reuse(&self) -> BufferReuse {
        BufferReuse::up_to(self.reusable)
    }

    /// Runs what a text goes on behind.
    fn keep(&mut self, batch: &Batch) -> Result<(), PipelineError> {
        self.model.keep_batch(batch, &mut self.cache)??;
        self.count(batch);
        Ok(())
    }

    fn pass(&mut self, batch: &Batch, logits: Logits) -> Result<Tensor<3>, PipelineError> {
        let logits = self.model.forward_batch(batch, &mut self.cache, logits)??;
        self.count(batch);
        Ok(logits)
    }
}

/// Columns in pieces of at most `longest`, none of which ends within one that is not to be cut, if
/// it can be longer than that.
fn cuts(columns: usize, longest: usize, uncut: &[Range<usize>]) -> Vec<Range<usize>> {
    let (mut cuts, mut start) = (Vec::new(), 0);
    while start < columns {
        let end = columns.min(start + longest.max(1));
        let within = uncut.iter().find(|piece| piece.start < end && end < piece.end);
        let end = match within {
            Some(piece) if piece.start > start => piece.start,
            Some(piece) => piece.end,
            None => end,
        };
        cuts.push(start..end);
        start = end;
    }
    cuts
}

fn values(tensor: Tensor<3>) -> Result<Vec<f32>, PipelineError> {
    let unread = |reason| PipelineError::Logits { reason };
    let data = tensor.try_into_data().map_err(|error| unread(error.to_string()))?;
    data.try_into_vec().map_err(|error| unread(format!("{error:?}")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn prompts_are_cut_beside_images() {
        let cuts = |longest, uncut: &[std::ops::Range<usize>]| super::cuts(20, longest, uncut);
        assert_eq!(cuts(8, &[]), [0..8, 8..16, 16..20]);
        assert_eq!(cuts(8, &[2..8, 9..17]), [0..8, 8..9, 9..17, 17..20]);
        assert_eq!(cuts(8, &[0..12, 14..20]), [0..12, 12..20]);
        assert_eq!(cuts(100, &[5..6, 7..8]).len(), 1);
        assert_eq!(cuts(0, &[]).len(), 20);
    }
}
