//! A model of any architecture, as its `config.json` describes it.

use std::any::Any;
use std::fmt::{self, Debug};
use std::sync::Arc;

use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use outsize_checkpoint::Checkpoint;
use outsize_core::{Dispatched, Parameter, parameters};
use outsize_kernels::{matmul, threads};
use outsize_plan::DeviceMap;
use outsize_stream::Stats;

use crate::config::{self, Fields, Quantization, WeightDtype};
use crate::kv_cache::{MAX_BATCH, MAX_CONTEXT};
use crate::registry::Row;
use crate::{
    ActivationDtype, Activations, Batch, CacheOptions, CacheSpec, Decoder, Error, Init, KvCache,
    Logits, PassShape, WeightKind, WeightSpec, registry,
};

/// A model of any architecture of the [registry](crate), as its `config.json` describes it.
#[derive(Clone)]
#[non_exhaustive]
pub struct ModelConfig {
    /// Ids that begin a sequence; may be empty.
    pub bos_token_ids: Vec<u32>,
    /// Ids that end a sequence; may be empty.
    pub eos_token_ids: Vec<u32>,
    /// The type that the weights were saved in, where it is said.
    pub dtype: Option<WeightDtype>,
    /// How linear layers are stored, where that is not as plain numbers.
    pub quantization: Option<Quantization>,
    /// Fields that nobody here knows, and that were passed over; at most 32.
    pub unknown_fields: Vec<String>,
    pub(crate) row: &'static Row,
    decoder: EmptyDecoder,
}

impl ModelConfig {
    /// Reads the text of a Hugging Face `config.json`.
    ///
    /// # Errors
    /// Text that is not a JSON object, an architecture that is not supported, a field that is missing, out of bounds, or
    /// asks for something this crate does not run; the message names the field.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|e| Error::Json {
            message: e.to_string(),
        })?;
        let serde_json::Value::Object(map) = &value else {
            return Err(Error::Json {
                message: "it is not an object".to_owned(),
            });
        };
        let fields = Fields::new(map);
        let (row, decoder) = registry::read(&fields)?;
        Ok(Self {
            row,
            bos_token_ids: fields.ids("bos_token_id")?,
            eos_token_ids: fields.ids("eos_token_id")?,
            dtype: config::dtype(&fields)?,
            quantization: Quantization::read(&fields)?,
            unknown_fields: fields.unknown(),
            decoder,
        })
    }

    /// Which architecture this is (`model_type`).
    pub fn model_type(&self) -> &'static str {
        self.row.model_type
    }

    /// The configuration of architecture `D`, if this is one.
    pub fn of<D: Decoder>(&self) -> Option<&D::Config> {
        self.decoder.downcast::<D>().map(|empty| &empty.config)
    }

    /// An empty model of architecture `D`, if this is one: its parameters have names and shapes, and no storage until
    /// something asks for a value.
    pub fn build<D: Decoder>(&self, init: &Init) -> Option<D> {
        self.of::<D>().map(|config| D::new(config, init))
    }

    /// What it asks of a KV cache.
    pub fn cache(&self) -> &CacheSpec {
        self.decoder.0.cache()
    }

    /// Token ids run from 0 to this, exclusive.
    pub fn vocab_size(&self) -> usize {
        self.decoder.0.vocab_size()
    }

    /// All parameters, in the order in which the module declares them. A tied head is none.
    pub fn weights(&self) -> Vec<WeightSpec> {
        self.parameters().iter().map(WeightSpec::from).collect()
    }

    /// Values in all parameters; a tied head counts once.
    pub fn parameter_count(&self) -> u64 {
        self.weights().iter().map(WeightSpec::elements).sum()
    }

    /// The module's parameters, without storage.
    pub(crate) fn parameters(&self) -> &[Parameter] {
        self.decoder.0.parameters()
    }

    /// The table that serves as output head, by its name, and the name that the head would have.
    pub fn tied_head(&self) -> Option<(String, String)> {
        let id = self.decoder.0.tied()?;
        let table = self
            .parameters()
            .iter()
            .find(|parameter| parameter.id == id)?;
        Some((table.path.clone(), format!("{}.weight", self.row.head)))
    }

    /// An upper bound on the bytes of f32 activations alive at once on a CPU, in a forward pass of `tokens` new tokens of
    /// each sequence, wherever in such a cache it ends. Counted with it are the logits asked for, the scratch memory of
    /// attention, and the copy that is made when a product's weight comes in tiles.
    ///
    /// Grows with `tokens`: a long prompt run in several passes needs less.
    pub fn activation_bytes(&self, tokens: usize, cache: &CacheOptions, logits: Logits) -> u64 {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        self.activation_bytes_on(tokens, cache, logits, threads)
    }

    pub(crate) fn activation_bytes_on(
        &self,
        tokens: usize,
        cache: &CacheOptions,
        logits: Logits,
        threads: usize,
    ) -> u64 {
        let pass = PassShape::new(tokens, self.cache(), cache, logits, threads);
        self.decoder.0.activations(&pass).bytes()
    }

    /// What products take besides, in bytes, for passes of `tokens` new tokens of each of `batch` sequences: the activations
    /// of the widest one as [`ActivationDtype`] and this processor want them; and, with weights in blocks, the rows that each
    /// thread dequantises.
    pub fn packed_bytes(&self, compute: ActivationDtype, tokens: usize, batch: usize) -> u64 {
        let rows = tokens.min(MAX_CONTEXT) as u64 * batch.min(MAX_BATCH) as u64;
        let weights = self.weights();
        let products = weights
            .iter()
            .filter(|weight| weight.kind == WeightKind::Linear);
        let widest = products.filter_map(|weight| weight.shape.last()).max();
        let widest = widest.map_or(0, |n| *n as u64);
        let packed = matmul::packed_bytes(compute, rows, widest);
        let panels = match self.quantization {
            Some(_) => matmul::panel_bytes(widest).saturating_mul(threads() as u64),
            None => 0,
        };
        packed.saturating_add(panels)
    }

    /// A model that is all in memory, with values from `value`: of each weight in the type that it is to be kept in.
    ///
    /// # Errors
    /// What `value` says.
    pub fn fill<E>(
        &self,
        init: &Init,
        mut value: impl FnMut(&WeightSpec) -> Result<TensorData, E>,
    ) -> Result<FilledDecoder, E> {
        let weights = self.weights();
        let values: Result<Vec<_>, E> = weights.iter().map(&mut value).collect();
        Ok(FilledDecoder(self.decoder.0.fill(init, values?)))
    }

    /// An empty model, dispatched: see [`outsize_core::dispatch()`].
    ///
    /// # Errors
    /// As there.
    pub fn dispatch(
        &self,
        init: &Init,
        checkpoint: &Checkpoint,
        map: &DeviceMap,
        options: &outsize_core::Options,
    ) -> Result<DispatchedDecoder, outsize_core::Error> {
        let decoder = self.decoder.0.dispatch(init, checkpoint, map, options)?;
        Ok(DispatchedDecoder(decoder))
    }
}

impl PartialEq for ModelConfig {
    fn eq(&self, other: &Self) -> bool {
        let common = |config: &Self| {
            let ids = (config.bos_token_ids.clone(), config.eos_token_ids.clone());
            (
                config.model_type(),
                ids,
                config.dtype,
                config.quantization.clone(),
                config.unknown_fields.clone(),
            )
        };
        common(self) == common(other) && self.decoder.0.same_config(&other.decoder)
    }
}

impl Debug for ModelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelConfig")
            .field("model_type", &self.model_type())
            .field("config", &self.decoder.0)
            .finish_non_exhaustive()
    }
}

/// A decoder of any architecture that is all in memory.
pub struct FilledDecoder(Box<dyn AnyFilled>);

impl FilledDecoder {
    /// As [`Decoder::forward`].
    ///
    /// # Errors
    /// As there.
    pub fn forward(
        &self,
        ids: &[u32],
        cache: &mut KvCache,
        logits: Logits,
    ) -> Result<Tensor<3>, Error> {
        self.0.forward_ids(ids, cache, logits)
    }
}

trait AnyFilled {
    fn forward_ids(
        &self,
        ids: &[u32],
        cache: &mut KvCache,
        logits: Logits,
    ) -> Result<Tensor<3>, Error>;
}

impl<D: Decoder> AnyFilled for D {
    fn forward_ids(
        &self,
        ids: &[u32],
        cache: &mut KvCache,
        logits: Logits,
    ) -> Result<Tensor<3>, Error> {
        self.forward(ids, cache, logits)
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
        Param::initialized(
            param.id,
            Tensor::from_data(data, (&param.lazy_device(), dtype)),
        )
    }
}

/// A dispatched decoder of any architecture: see [`Dispatched`].
pub struct DispatchedDecoder(Box<dyn AnyDispatched>);

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
        self.0.forward_batch(batch, cache, logits)
    }

    /// Where everything lives.
    pub fn device_map(&self) -> &DeviceMap {
        self.0.device_map()
    }

    /// What was read and waited for so far.
    pub fn stats(&self) -> Stats {
        self.0.watch()()
    }

    /// The same, for asking while a pass is running; nothing once this is dropped.
    pub fn watch(&self) -> Box<dyn Fn() -> Stats + Send> {
        self.0.watch()
    }

    /// Whether the files are read past the page cache.
    pub fn reads_directly(&self) -> bool {
        self.0.reads_directly()
    }
}

impl Debug for DispatchedDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DispatchedDecoder({:?})", self.stats())
    }
}

trait AnyDispatched {
    fn forward_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        logits: Logits,
    ) -> Result<Result<Tensor<3>, Error>, outsize_core::Error>;
    fn device_map(&self) -> &DeviceMap;
    fn watch(&self) -> Box<dyn Fn() -> Stats + Send>;
    fn reads_directly(&self) -> bool;
}

impl<D: Decoder> AnyDispatched for Dispatched<D> {
    fn forward_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        logits: Logits,
    ) -> Result<Result<Tensor<3>, Error>, outsize_core::Error> {
        self.run(|model| model.forward_batch(batch, cache, logits))
    }

    fn device_map(&self) -> &DeviceMap {
        self.device_map()
    }

    fn watch(&self) -> Box<dyn Fn() -> Stats + Send> {
        Box::new(self.watch())
    }

    fn reads_directly(&self) -> bool {
        self.reads_directly()
    }
}

/// A decoder without storage, of whichever architecture.
#[derive(Clone)]
pub(crate) struct EmptyDecoder(Arc<dyn AnyEmpty>);

impl EmptyDecoder {
    pub(crate) fn new<D: Decoder>(config: D::Config) -> Self {
        let model = D::new(&config, &Init::new(&Device::flex()));
        let parameters = parameters(&model);
        Self(Arc::new(Empty {
            config,
            model,
            parameters,
        }))
    }

    fn downcast<D: Decoder>(&self) -> Option<&Empty<D>> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref()
    }
}

struct Empty<D: Decoder> {
    config: D::Config,
    model: D,
    parameters: Vec<Parameter>,
}

trait AnyEmpty: Any + Debug + Send + Sync {
    fn same_config(&self, other: &EmptyDecoder) -> bool;
    fn parameters(&self) -> &[Parameter];
    fn cache(&self) -> &CacheSpec;
    fn vocab_size(&self) -> usize;
    fn tied(&self) -> Option<ParamId>;
    fn activations(&self, pass: &PassShape) -> Activations;
    fn fill(&self, init: &Init, values: Vec<TensorData>) -> Box<dyn AnyFilled>;
    fn dispatch(
        &self,
        init: &Init,
        checkpoint: &Checkpoint,
        map: &DeviceMap,
        options: &outsize_core::Options,
    ) -> Result<Box<dyn AnyDispatched>, outsize_core::Error>;
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

    fn vocab_size(&self) -> usize {
        self.model.head().vocab_size()
    }

    fn tied(&self) -> Option<ParamId> {
        self.model.head().tied()
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        self.model.activations(pass)
    }

    fn fill(&self, init: &Init, values: Vec<TensorData>) -> Box<dyn AnyFilled> {
        let model = D::new(&self.config, init);
        Box::new(model.map(&mut Fill(values.into_iter())))
    }

    fn dispatch(
        &self,
        init: &Init,
        checkpoint: &Checkpoint,
        map: &DeviceMap,
        options: &outsize_core::Options,
    ) -> Result<Box<dyn AnyDispatched>, outsize_core::Error> {
        let model = D::new(&self.config, init);
        let dispatched = outsize_core::dispatch(model, checkpoint, map, options)?;
        Ok(Box::new(dispatched))
    }
}

impl<D: Decoder> Debug for Empty<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}
