//! What drivers need of a decoder: tokens in, logits of the next one out.

use std::fmt::Debug;

use burn::module::ParamId;
use burn::tensor::Tensor;
use outsize_core::{Names, Routed};

use crate::architecture::Architecture;
use crate::image_features::FIRST_IMAGE_ID;
use crate::layers::{Embedding, Linear, fetched, tanh};
use crate::logits::score_values;
use crate::pass::Pass;
use crate::{Activations, Batch, Blocks, CacheSpec, Error, KvCache, Logits, PassShape};

/// An architecture that predicts the next token from those before it: what holds for all its
/// models.
pub trait DecoderArchitecture: Architecture + Decoder {
    /// Path of the list of blocks, each of which keeps one layer of the [cache](CacheSpec).
    const LAYERS: &'static str;

    /// Path of the output head, if it has a weight of its own.
    const HEAD: &'static str = "lm_head";

    /// The table that serves where that weight is not stored, whatever the configuration says.
    const SPARE_HEAD: Option<&'static str> = None;

    /// Layers of the cache that each block has.
    const ATTENTIONS: usize = 1;

    /// Whether checkpoints are published with experts [stacked](Names::stacked).
    const IS_STACKED: bool = false;

    /// Whether checkpoints of that type may have layers behind the last one, or apart as `mtp`,
    /// which guess further tokens: they are passed over.
    fn has_more_layers(_model_type: &str) -> bool {
        false
    }

    /// Whether a parameter is used for the prompt alone, by an encoder: no later pass asks for it.
    fn is_of_prompt(_path: &str) -> bool {
        false
    }
}

/// A model that predicts the next token from those before it.
pub trait Decoder: Debug + Send + Sync + 'static {
    /// Whether a tensor that checkpoints may have, by the name that its parameter would have, is of
    /// no use to this model.
    fn is_unused(&self, _name: &str) -> bool {
        false
    }

    /// What it asks of a KV cache.
    fn cache(&self) -> &CacheSpec;

    /// The token that a text begins with, if an encoder reads the prompt.
    fn start(&self) -> Option<u32> {
        None
    }

    /// How a router chooses the expert that a parameter belongs to, if it belongs to one.
    fn routed(&self, _path: &str) -> Option<Routed> {
        None
    }

    /// Adds to the rules for the names of tensors what checkpoints of this model may call
    /// otherwise.
    ///
    /// # Errors
    /// A rule that is none.
    fn names(&self, names: Names) -> Result<Names, outsize_core::Error> {
        Ok(names)
    }

    /// Runs the encoder over a prompt, and has the cache [keep](KvCache) what the decoder will look
    /// at.
    ///
    /// # Errors
    /// [`Error::NoEncoder`] and [`Error::CacheLost`].
    fn encode(&self, _prompt: &Pass<'_>, _cache: &mut KvCache) -> Result<(), Error> {
        Err(Error::NoEncoder)
    }

    /// Runs the blocks over a pass: `[batch, tokens, hidden]` f32 of all positions, or of those
    /// that [are wanted](Pass::wanted) alone.
    ///
    /// # Errors
    /// [`Error::CacheLost`].
    fn hidden(&self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<Tensor<3>, Error>;

    /// The same as blocks of which each can be run by itself, where they depend on each other by
    /// the residual stream alone.
    fn blocks(&self) -> Option<&dyn Blocks> {
        None
    }

    /// What makes logits of hidden states.
    fn head(&self) -> Head<'_>;

    /// What logits stay below in magnitude, if anything: they are `cap · tanh(logit / cap)`.
    fn logit_softcap(&self) -> Option<f64> {
        None
    }

    /// The logits of hidden states `[batch, positions, hidden]` f32:
    /// `[batch, positions, vocabulary]` f32.
    fn logits(&self, hidden: Tensor<3>) -> Tensor<3> {
        let logits = self.head().project(hidden);
        match self.logit_softcap() {
            Some(cap) => tanh(logits * (1.0 / cap)) * cap,
            None => logits,
        }
    }

    /// What a pass holds in activations at most, as its layers say, and so does the encoder's.
    fn activations(&self, pass: &PassShape) -> Activations;

    /// Lets the encoder read a prompt. What the cache held before is forgotten, and what the
    /// decoder runs from now on is a new text.
    ///
    /// # Errors
    /// A model without an encoder, an id outside the vocabulary, a cache of another model or for
    /// other prompts. All are found before anything is computed.
    fn encode_batch(&self, prompt: &Batch, cache: &mut KvCache) -> Result<(), Error> {
        if self.cache().cross.is_empty() {
            return Err(Error::NoEncoder);
        }
        check_ids(prompt, self.head().vocab_size())?;
        cache.begin_prompt(self.cache(), prompt)?;
        self.encode(&Pass::of_prompt(prompt), cache)?;
        cache.end_prompt(prompt);
        Ok(())
    }

    /// Runs `ids` behind the tokens that the cache holds, and adds them to it. Gives logits
    /// `[1, positions, vocabulary]` f32, with as many positions as asked for.
    ///
    /// A pass that fails leaves the cache as it was, but for a sliding window: what it overwrote
    /// there is gone, and if the next pass would see it, that is an error that says so.
    ///
    /// # Errors
    /// No ids, an id outside the vocabulary, a cache of another model or for several sequences, or
    /// one without room for the ids. All are found before anything is computed.
    fn forward(
        &self,
        ids: &[u32],
        cache: &mut KvCache,
        logits: Logits,
    ) -> Result<Tensor<3>, Error> {
        self.forward_batch(&Batch::left_padded(&[ids])?, cache, logits)
    }

    /// The same for sequences that run side by side: logits `[batch, positions, vocabulary]`, those
    /// at padding meaningless.
    ///
    /// Each sequence is computed as it would be alone: its positions count from its first token,
    /// and it does not see its padding. Padding may only come before a sequence's first token.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); and another number of sequences than the cache holds, more
    /// than it is for if it holds none, or padding behind tokens.
    fn forward_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        logits: Logits,
    ) -> Result<Tensor<3>, Error> {
        let pass = begun(self.head(), self.cache(), batch, cache, logits)?;
        let hidden = self.hidden(&pass, cache)?;
        let logits = self.logits(pass.wanted(hidden));
        cache.advance(batch);
        Ok(logits)
    }

    /// Runs sequences as [`forward_batch`](Self::forward_batch) does, for what the cache keeps of
    /// them: blocks behind the last one that keeps anything and the head are left out.
    ///
    /// # Errors
    /// As there.
    fn keep_batch(&self, batch: &Batch, cache: &mut KvCache) -> Result<(), Error> {
        let pass = begun(self.head(), self.cache(), batch, cache, Logits::Last)?.keeping();
        self.hidden(&pass, cache)?;
        cache.advance(batch);
        Ok(())
    }

    /// Runs whole sequences, and keeps nothing of them: logits `[batch, tokens, vocabulary]` f32 of
    /// all positions, as [`forward_batch`](Self::forward_batch) gives them. On an autodiff device
    /// gradients flow from them to the parameters.
    ///
    /// # Errors
    /// An id outside the vocabulary, or a model with an encoder.
    fn forward_uncached(&self, batch: &Batch) -> Result<Tensor<3>, Error> {
        if !self.cache().cross.is_empty() {
            return Err(Error::NoPrompt);
        }
        check_ids(batch, self.head().vocab_size())?;
        let mut cache = KvCache::without_storage(self.cache(), batch);
        let hidden = self.hidden(&Pass::new(batch, &cache, Logits::All), &mut cache)?;
        Ok(self.logits(hidden))
    }
}

/// Begins a pass over tokens and images.
pub(crate) fn begun<'a>(
    head: Head<'_>,
    spec: &CacheSpec,
    batch: &'a Batch,
    cache: &mut KvCache,
    logits: Logits,
) -> Result<Pass<'a>, Error> {
    check_text_ids(batch, head.vocab_size())?;
    cache.check(spec, batch)?;
    cache.begin(batch);
    Ok(Pass::new(batch, cache, logits))
}

pub(crate) fn check_ids(batch: &Batch, vocab_size: usize) -> Result<(), Error> {
    check_ids_below(batch, vocab_size, usize::MAX)
}

/// The same of a text that may have tokens of images.
pub(crate) fn check_text_ids(batch: &Batch, vocab_size: usize) -> Result<(), Error> {
    check_ids_below(batch, vocab_size, FIRST_IMAGE_ID as usize)
}

/// The same of ids below `end`: those from there on are of other things.
fn check_ids_below(batch: &Batch, vocab_size: usize, end: usize) -> Result<(), Error> {
    for (row, ids) in batch.ids().chunks_exact(batch.tokens()).enumerate() {
        let outside = |id: &u32| (vocab_size..end).contains(&(*id as usize));
        if let Some(column) = ids.iter().position(outside) {
            return Err(Error::TokenId {
                id: ids[column],
                // Padding repeats the first token.
                index: column.saturating_sub(batch.padding()[row]),
                vocab_size,
            });
        }
    }
    Ok(())
}

/// What makes logits of hidden states.
#[derive(Debug, Clone, Copy)]
pub enum Head<'a> {
    /// A layer of its own.
    Own(&'a Linear),
    /// The table of embeddings.
    Tied(&'a Embedding),
}

impl<'a> Head<'a> {
    /// A layer of its own, or the table of embeddings if there is none.
    pub(crate) fn new(own: Option<&'a Linear>, table: &'a Embedding) -> Self {
        own.map_or(Self::Tied(table), Self::Own)
    }

    /// Hidden states `[batch, positions, hidden]` f32 to logits `[batch, positions, vocabulary]`
    /// f32, in main memory if the model is dispatched.
    pub fn project(&self, hidden: Tensor<3>) -> Tensor<3> {
        match self {
            Self::Own(linear) => fetched(linear.forward(hidden), &linear.weight),
            Self::Tied(table) => fetched(table.project(hidden), &table.weight),
        }
    }

    /// Tokens that it gives logits of.
    pub fn vocab_size(&self) -> usize {
        self.weight_shape()[0]
    }

    /// Values of a hidden state.
    pub(crate) fn width(&self) -> usize {
        self.weight_shape()[1]
    }

    /// What the last norm and the logits take: the norm's input squared and its output; a tiled
    /// product and its copy. And what a table of embeddings, which is as wide, takes: its rows as
    /// they are stored, beside the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let [vocabulary, hidden] = self.weight_shape().map(|n| n as u64);
        let logits = pass.logit_rows() * 2 * hidden + pass.whole_logit_rows() * 2 * vocabulary;
        Activations::values(logits + pass.scored_rows() * score_values(vocabulary, hidden))
            .or(Activations::values(pass.rows() * hidden))
    }

    /// The table that serves as head.
    pub(crate) fn tied(&self) -> Option<ParamId> {
        match self {
            Self::Own(_) => None,
            Self::Tied(table) => Some(table.weight.id),
        }
    }

    fn weight_shape(&self) -> [usize; 2] {
        let weight = match self {
            Self::Own(linear) => &linear.weight,
            Self::Tied(table) => &table.weight,
        };
        weight.lazy_shape().dims()
    }
}
