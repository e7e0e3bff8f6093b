//! Decoders whose architecture is known at run time only.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::sync::Arc;

use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use outsize_checkpoint::Checkpoint;
use outsize_core::{
    Dispatched, GradientSink, InputObserver, LowRank, Names, Parameter, PassKind, Routed,
    parameters,
};
use outsize_plan::DeviceMap;
use outsize_stream::Stats;

use crate::decoder::begun;
use crate::full_gradients::full_gradients;
use crate::head_scores::score_batch;
use crate::learning_memory::{block_of, full_learning_bytes, learning_bytes};
use crate::low_rank_gradients::{low_rank_gradients, low_rank_loss};
use crate::observed_blocks::{AfterBlock, observe_blocks, observing_bytes};
use crate::{
    Activations, Batch, BatchLoss, CacheSpec, Decoder, Error, Init, KvCache, Labels, Logits,
    LowRankGradients, PassShape, Scores, Scoring,
};

/// A decoder of any architecture that is all in memory.
pub trait FilledDecoder {
    /// As [`Decoder::forward`].
    ///
    /// # Errors
    /// As there.
    fn forward(&self, ids: &[u32], cache: &mut KvCache, logits: Logits)
    -> Result<Tensor<3>, Error>;
}

impl<D: Decoder> FilledDecoder for D {
    fn forward(
        &self,
        ids: &[u32],
        cache: &mut KvCache,
        logits: Logits,
    ) -> Result<Tensor<3>, Error> {
        Decoder::forward(self, ids, cache, logits)
    }
}

/// Gives each parameter the next value.
struct Fill(std::vec::IntoIter<TensorData>);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(data) = self.0.next() else {
            return param;
        };
        let dtype = data.dtype();
        Param::initialized(param.id, Tensor::from_data(data, (&param.lazy_device(), dtype)))
    }
}

/// A dispatched decoder of any architecture: see [`Dispatched`].
pub trait DispatchedDecoder: Debug {
    /// Runs one pass: [`Decoder::forward_batch`] within [`Dispatched::run`].
    ///
    /// # Errors
    /// As both.
    fn forward_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        logits: Logits,
    ) -> Result<Result<Tensor<3>, Error>, outsize_core::Error>;

    /// Runs one pass as [`forward_batch`](Self::forward_batch) does, and gives how likely the tokens are that are to come.
    ///
    /// # Errors
    /// As there, and a label outside the vocabulary.
    ///
    /// # Panics
    /// If there is not a label, or none, for each position.
    fn score_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        scoring: Scoring<'_>,
    ) -> Result<Result<Scores, Error>, outsize_core::Error>;

    /// Runs one pass as [`forward_batch`](Self::forward_batch) does, without the head: hidden states `[batch, tokens, hidden]` f32
    /// of all positions, behind the last norm.
    ///
    /// # Errors
    /// As there.
    fn hidden_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
    ) -> Result<Result<Tensor<3>, Error>, outsize_core::Error>;

    /// Lets the encoder read a prompt: [`Decoder::encode_batch`] within [`Dispatched::run_once`].
    ///
    /// # Errors
    /// As both.
    fn encode_batch(
        &self,
        prompt: &Batch,
        cache: &mut KvCache,
    ) -> Result<Result<(), Error>, outsize_core::Error>;

    /// Adds to weights, by path, what an adapter says: see [`Dispatched::set_low_rank`].
    ///
    /// # Errors
    /// As there.
    fn set_low_rank(&self, parts: &HashMap<String, LowRank>) -> Result<(), outsize_core::Error>;

    /// The loss of a batch under an adapter, given by the paths of weights, and the adapter's gradients, in one pass forward
    /// and backward. Of the last `kept` blocks the activations are kept, of the others they are computed again. For a module on Flex; the adapter's matrices are there in f32.
    ///
    /// # Errors
    /// Of weights that no adapter fits or that are outside of blocks, of models that cannot be run block by block, of ids that
    /// are no tokens; and what reading said.
    fn low_rank_gradients(
        &self,
        batch: &Batch,
        labels: Labels<'_>,
        adapter: &HashMap<String, LowRank>,
        kept: usize,
    ) -> Result<Result<LowRankGradients, Error>, outsize_core::Error>;

    /// The loss of a batch, whose gradients of all weights go to `sink`, in one pass forward and backward: see
    /// [`Dispatched::run_learning`]. For a module on Flex.
    ///
    /// # Errors
    /// As there; of models that cannot be run block by block, and of ids that are no tokens.
    fn full_gradients(
        &self,
        batch: &Batch,
        labels: Labels<'_>,
        sink: &Arc<dyn GradientSink>,
    ) -> Result<Result<BatchLoss, Error>, outsize_core::Error>;

    /// The loss under an adapter alone, in a pass forward: the sum of the cross-entropies of all targets.
    ///
    /// # Errors
    /// As [`low_rank_gradients`](Self::low_rank_gradients).
    fn low_rank_loss(
        &self,
        batch: &Batch,
        labels: Labels<'_>,
        adapter: &HashMap<String, LowRank>,
    ) -> Result<Result<f64, Error>, outsize_core::Error>;

    /// Runs block after block over whole sequences, shows `observer` what goes into their matrices, and asks `each` after every
    /// block what to do next: see [`Dispatched::run_observed`].
    ///
    /// # Errors
    /// As there; of models that cannot be run block by block, and of ids that are no tokens.
    fn observe_blocks(
        &self,
        batches: &[Batch],
        observer: &Arc<dyn InputObserver>,
        each: &mut dyn FnMut(usize) -> AfterBlock,
    ) -> Result<Result<(), Error>, outsize_core::Error>;

    /// Where everything lives.
    fn device_map(&self) -> &DeviceMap;

    /// What was read and waited for so far; for asking while a pass is running, nothing once this is dropped.
    fn watch(&self) -> Box<dyn Fn() -> Stats + Send>;
}

impl<D: Decoder> DispatchedDecoder for Dispatched<D> {
    fn forward_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        logits: Logits,
    ) -> Result<Result<Tensor<3>, Error>, outsize_core::Error> {
        let kind = if batch.tokens() > 1 { PassKind::Prefill } else { PassKind::Decode };
        self.run_kind(kind, |model| model.forward_batch(batch, cache, logits))
    }

    fn score_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        scoring: Scoring<'_>,
    ) -> Result<Result<Scores, Error>, outsize_core::Error> {
        self.run_kind(PassKind::Prefill, |model| score_batch(model, batch, cache, scoring))
    }

    fn hidden_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
    ) -> Result<Result<Tensor<3>, Error>, outsize_core::Error> {
        self.run_kind(PassKind::Prefill, |model| {
            let pass = begun(model, batch, cache, Logits::Hidden)?;
            let hidden = model.hidden(&pass, cache)?;
            cache.advance(batch);
            Ok(hidden)
        })
    }

    fn encode_batch(
        &self,
        prompt: &Batch,
        cache: &mut KvCache,
    ) -> Result<Result<(), Error>, outsize_core::Error> {
        self.run_once(|model| model.encode_batch(prompt, cache))
    }

    fn set_low_rank(&self, parts: &HashMap<String, LowRank>) -> Result<(), outsize_core::Error> {
        self.set_low_rank(parts)
    }

    fn low_rank_gradients(
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
        let gradients = self.run_kind(PassKind::Prefill, |model| {
            low_rank_gradients(model, batch, labels, adapter, kept, &set)
        });
        set(&HashMap::new());
        gradients
    }

    fn full_gradients(
        &self,
        batch: &Batch,
        labels: Labels<'_>,
        sink: &Arc<dyn GradientSink>,
    ) -> Result<Result<BatchLoss, Error>, outsize_core::Error> {
        self.run_learning(sink, |model, learning| full_gradients(model, batch, labels, learning))
    }

    fn low_rank_loss(
        &self,
        batch: &Batch,
        labels: Labels<'_>,
        adapter: &HashMap<String, LowRank>,
    ) -> Result<Result<f64, Error>, outsize_core::Error> {
        self.set_low_rank(adapter)?;
        let loss = self.run_kind(PassKind::Prefill, |model| low_rank_loss(model, batch, labels));
        self.set_low_rank(&HashMap::new())?;
        loss
    }

    fn observe_blocks(
        &self,
        batches: &[Batch],
        observer: &Arc<dyn InputObserver>,
        each: &mut dyn FnMut(usize) -> AfterBlock,
    ) -> Result<Result<(), Error>, outsize_core::Error> {
        self.run_observed(observer, |model| observe_blocks(model, batches, each))
    }

    fn device_map(&self) -> &DeviceMap {
        self.device_map()
    }

    fn watch(&self) -> Box<dyn Fn() -> Stats + Send> {
        Box::new(self.watch())
    }
}

/// A decoder without storage, of whichever architecture.
#[derive(Clone)]
pub(crate) struct EmptyDecoder(pub(crate) Arc<dyn AnyEmpty>);

impl EmptyDecoder {
    pub(crate) fn new<D: Decoder>(config: D::Config) -> Self {
        let model = D::new(&config, &Init::new(&Device::flex()));
        let parameters = parameters(&model);
        Self(Arc::new(Empty { config, model, parameters }))
    }

    pub(crate) fn downcast<D: Decoder>(&self) -> Option<&Empty<D>> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref()
    }
}

pub(crate) struct Empty<D: Decoder> {
    pub(crate) config: D::Config,
    model: D,
    parameters: Vec<Parameter>,
}

pub(crate) trait AnyEmpty: Any + Debug + Send + Sync {
    fn same_config(&self, other: &EmptyDecoder) -> bool;
    fn parameters(&self) -> &[Parameter];
    fn cache(&self) -> &CacheSpec;
    fn is_unused(&self, name: &str) -> bool;
    fn vocab_size(&self) -> usize;
    fn start(&self) -> Option<u32>;
    fn tied(&self) -> Option<ParamId>;
    fn routed(&self, path: &str) -> Option<Routed>;
    fn names(&self, names: Names) -> Result<Names, outsize_core::Error>;
    fn activations(&self, pass: &PassShape) -> Activations;
    fn learning_bytes(&self, pass: PassShape, kept: usize) -> Option<u64>;
    fn full_learning_bytes(&self, pass: PassShape) -> Option<u64>;
    fn observing_bytes(&self, pass: PassShape, batches: usize) -> Option<u64>;
    fn block_of(&self, path: &str) -> Option<usize>;
    fn fill(&self, init: &Init, values: Vec<TensorData>) -> Box<dyn FilledDecoder>;
    fn dispatch(
        &self,
        init: &Init,
        checkpoint: &Checkpoint,
        map: &DeviceMap,
        options: &outsize_core::Options,
    ) -> Result<Box<dyn DispatchedDecoder>, outsize_core::Error>;
}

impl<D: Decoder> AnyEmpty for Empty<D> {
    fn same_config(&self, other: &EmptyDecoder) -> bool {
        let other = other.downcast::<D>();
        other.is_some_and(|other| other.config == self.config)
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn cache(&self) -> &CacheSpec {
        self.model.cache()
    }

    fn is_unused(&self, name: &str) -> bool {
        self.model.is_unused(name)
    }

    fn vocab_size(&self) -> usize {
        self.model.head().vocab_size()
    }

    fn start(&self) -> Option<u32> {
        self.model.start()
    }

    fn tied(&self) -> Option<ParamId> {
        self.model.head().tied()
    }

    fn routed(&self, path: &str) -> Option<Routed> {
        self.model.routed(path)
    }

    fn names(&self, names: Names) -> Result<Names, outsize_core::Error> {
        self.model.names(names)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        self.model.activations(pass)
    }

    fn learning_bytes(&self, pass: PassShape, kept: usize) -> Option<u64> {
        learning_bytes(&self.model, &self.parameters, pass, kept)
    }

    fn full_learning_bytes(&self, pass: PassShape) -> Option<u64> {
        full_learning_bytes(&self.model, &self.parameters, pass)
    }

    fn observing_bytes(&self, pass: PassShape, batches: usize) -> Option<u64> {
        observing_bytes(&self.model, &self.parameters, pass, batches)
    }

    fn block_of(&self, path: &str) -> Option<usize> {
        block_of::<D>(path)
    }

    fn fill(&self, init: &Init, values: Vec<TensorData>) -> Box<dyn FilledDecoder> {
        let model = D::new(&self.config, init);
        Box::new(model.map(&mut Fill(values.into_iter())))
    }

    fn dispatch(
        &self,
        init: &Init,
        checkpoint: &Checkpoint,
        map: &DeviceMap,
        options: &outsize_core::Options,
    ) -> Result<Box<dyn DispatchedDecoder>, outsize_core::Error> {
        let model = D::new(&self.config, init);
        Ok(Box::new(outsize_core::dispatch(model, checkpoint, map, options)?))
    }
}

impl<D: Decoder> Debug for Empty<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}
