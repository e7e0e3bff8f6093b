//! A dispatched decoder of any architecture.

use std::collections::HashMap;
use std::sync::Arc;

use burn::tensor::Tensor;
use outsize_core::{Dispatched, GradientSink, InputObserver, LowRank, PassKind, PassOrder};
use outsize_plan::DeviceMap;
use outsize_stream::Stats;

use crate::decoder::begun;
use crate::full_gradients::full_gradients;
use crate::head_scores::score_batch;
use crate::low_rank_gradients::{low_rank_gradients, low_rank_loss};
use crate::observed_blocks::{AfterBlock, observe_blocks};
use crate::{
    Batch, BatchLoss, Decoder, DecoderArchitecture, Error, KvCache, Labels, Logits,
    LowRankGradients, Scores, Scoring,
};

/// A dispatched decoder of any architecture: see [`Dispatched`].
#[derive(Debug)]
pub struct DispatchedDecoder {
    model: Dispatched<Box<dyn Decoder>>,
    /// Path of the list of blocks.
    layers: &'static str,
}

impl<D: DecoderArchitecture> From<Dispatched<D>> for DispatchedDecoder {
    fn from(model: Dispatched<D>) -> Self {
        Self { model: model.map(|model| Box::new(model) as Box<dyn Decoder>), layers: D::LAYERS }
    }
}

impl DispatchedDecoder {
    /// Runs one pass: [`Decoder::forward_batch`] within [`Dispatched::run`].
    ///
    /// # Errors
    /// As both.
    pub fn forward_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        logits: Logits,
    ) -> Result<Result<Tensor<3>, Error>, outsize_core::Error> {
        let kind = if batch.tokens() > 1 { PassKind::Prefill } else { PassKind::Decode };
        self.model.run_kind(kind, |model| model.forward_batch(batch, cache, logits))
    }

    /// Runs one pass of texts that go on in the next one: [`Decoder::keep_batch`] within
    /// [`Dispatched::run_kind`].
    ///
    /// # Errors
    /// As both.
    pub fn keep_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
    ) -> Result<Result<(), Error>, outsize_core::Error> {
        self.model.run_kind(PassKind::PrefillPart, |model| model.keep_batch(batch, cache))
    }

    /// Runs one pass as [`forward_batch`](Self::forward_batch) does, and gives how likely the
    /// tokens are that are to come.
    ///
    /// # Errors
    /// As there, and a label outside the vocabulary.
    ///
    /// # Panics
    /// If there is not a label, or none, for each position.
    pub fn score_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        scoring: Scoring<'_>,
    ) -> Result<Result<Scores, Error>, outsize_core::Error> {
        let Some(first) = scoring.first(batch) else {
            let kept = self.keep_batch(batch, cache)?;
            return Ok(kept.map(|()| Scores { tokens: Vec::new(), last: None }));
        };
        self.prefill(|model| score_batch(model, batch, cache, scoring, first))
    }

    /// Runs one pass as [`forward_batch`](Self::forward_batch) does, without the head: hidden
    /// states `[batch, tokens, hidden]` f32 of all positions, behind the last norm.
    ///
    /// # Errors
    /// As there.
    pub fn hidden_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
    ) -> Result<Result<Tensor<3>, Error>, outsize_core::Error> {
        self.prefill(|model| {
            let pass = begun(model.head(), model.cache(), batch, cache, Logits::Hidden)?;
            let hidden = model.hidden(&pass, cache)?;
            cache.advance(batch);
            Ok(hidden)
        })
    }

    /// Lets the encoder read a prompt: [`Decoder::encode_batch`] within [`Dispatched::run_once`].
    ///
    /// # Errors
    /// As both.
    pub fn encode_batch(
        &self,
        prompt: &Batch,
        cache: &mut KvCache,
    ) -> Result<Result<(), Error>, outsize_core::Error> {
        self.model.run_once(|model| model.encode_batch(prompt, cache))
    }

    /// Adds to weights, by path, what an adapter says: see [`Dispatched::set_low_rank`].
    ///
    /// # Errors
    /// As there.
    pub fn set_low_rank(
        &self,
        parts: &HashMap<String, LowRank>,
    ) -> Result<(), outsize_core::Error> {
        self.model.set_low_rank(parts)
    }

    /// The loss of a batch under an adapter, given by the paths of weights, and the adapter's
    /// gradients, in one pass forward and backward. Of the last `kept` blocks the activations are
    /// kept, of the others they are computed again. For a module on Flex; the adapter's matrices
    /// are there in f32.
    ///
    /// # Errors
    /// Of weights that no adapter fits or that are outside of blocks, of models that cannot be run
    /// block by block, of ids that are no tokens; and what reading said.
    pub fn low_rank_gradients(
        &self,
        batch: &Batch,
        labels: Labels<'_>,
        adapter: &HashMap<String, LowRank>,
        kept: usize,
    ) -> Result<Result<LowRankGradients, Error>, outsize_core::Error> {
        self.set_low_rank(adapter)?;
        let set = |parts: &_| {
            self.set_low_rank(parts).expect("its parts fit as all of it does");
        };
        let gradients = self.prefill(|model| {
            low_rank_gradients((model, self.layers), batch, labels, adapter, kept, &set)
        });
        set(&HashMap::new());
        gradients
    }

    /// The loss of a batch, whose gradients of all weights go to `sink`, in one pass forward and
    /// backward: see [`Dispatched::run_learning`]. For a module on Flex.
    ///
    /// # Errors
    /// As there; of models that cannot be run block by block, and of ids that are no tokens.
    pub fn full_gradients(
        &self,
        batch: &Batch,
        labels: Labels<'_>,
        sink: &Arc<dyn GradientSink>,
    ) -> Result<Result<BatchLoss, Error>, outsize_core::Error> {
        self.model
            .run_learning(sink, |model, learning| full_gradients(&**model, batch, labels, learning))
    }

    /// The loss under an adapter alone, in a pass forward: the sum of the cross-entropies of all
    /// targets.
    ///
    /// # Errors
    /// As [`low_rank_gradients`](Self::low_rank_gradients).
    pub fn low_rank_loss(
        &self,
        batch: &Batch,
        labels: Labels<'_>,
        adapter: &HashMap<String, LowRank>,
    ) -> Result<Result<f64, Error>, outsize_core::Error> {
        self.set_low_rank(adapter)?;
        let loss = self.prefill(|model| low_rank_loss(model, batch, labels));
        self.set_low_rank(&HashMap::new())?;
        loss
    }

    /// Runs block after block over whole sequences, shows `observer` what goes into their matrices,
    /// and asks `each` after every block what to do next: see [`Dispatched::run_observed`].
    ///
    /// # Errors
    /// As there; of models that cannot be run block by block, and of ids that are no tokens.
    pub fn observe_blocks(
        &self,
        batches: &[Batch],
        observer: &Arc<dyn InputObserver>,
        each: &mut dyn FnMut(usize) -> AfterBlock,
    ) -> Result<Result<(), Error>, outsize_core::Error> {
        self.model.run_observed(observer, |model| observe_blocks(&**model, batches, each))
    }

    /// Where everything lives.
    pub fn device_map(&self) -> &DeviceMap {
        self.model.device_map()
    }

    /// What was read and waited for so far; for asking while a pass is running, nothing once this
    /// is dropped.
    pub fn watch(&self) -> impl Fn() -> Stats + Send + use<> {
        self.model.watch()
    }

    /// The order in which the last pass asked for weights.
    pub fn pass_order(&self) -> PassOrder {
        self.model.pass_order()
    }

    /// Expects the next pass to ask for weights in this order: see [`Dispatched::expect`].
    pub fn expect(&self, order: PassOrder) {
        self.model.expect(order);
    }

    fn prefill<R>(&self, pass: impl FnOnce(&dyn Decoder) -> R) -> Result<R, outsize_core::Error> {
        self.model.run_kind(PassKind::Prefill, |model| pass(&**model))
    }
}
