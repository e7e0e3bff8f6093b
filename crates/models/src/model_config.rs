//! A model of any architecture, as its `config.json` describes it.

use std::fmt::{self, Debug};

use burn::tensor::{Device, TensorData};
use outsize_checkpoint::{Checkpoint, Dtype, TensorInfo};
use outsize_core::{
    Devices, Names, Parameter, Routed, StoredParameter, TensorTable, stored_parameters,
};
use outsize_kernels::{matmul, threads};
use outsize_plan::{DeviceMap, Tier};
use serde_json::{Map, Value};

use crate::any_decoder::EmptyDecoder;
use crate::config::{self, Fields, Quantization};
use crate::full_gradients::learns;
use crate::kv_cache::{MAX_BATCH, MAX_CONTEXT};
use crate::learning_memory::{block_of, full_learning_bytes, learning_bytes};
use crate::observed_blocks::observing_bytes;
use crate::registry::{self, Row};
use crate::stored_layout::StoredLayout;
use crate::weights::gated_width;
use crate::{
    ActivationDtype, Activations, CacheOptions, CacheSpec, Decoder, DecoderArchitecture,
    DispatchedDecoder, Error, Init, KvCache, Logits, PassShape, WeightKind, WeightSpec,
};

/// Bytes of two tensors that are compared at a time.
const COMPARED: u64 = 256 << 10;

/// A model of any architecture of the [registry](crate), as its `config.json` describes it.
#[derive(Clone)]
#[non_exhaustive]
pub struct ModelConfig {
    /// The type that the weights were saved in, where it is said.
    pub dtype: Option<Dtype>,
    /// How linear layers are stored, where that is not as plain numbers.
    pub quantization: Option<Quantization>,
    /// Fields that nobody here knows, and that were passed over; at most 32.
    pub unknown_fields: Vec<String>,
    pub(crate) row: &'static Row,
    /// What it has otherwise than transformers.
    pub(crate) layout: StoredLayout,
    /// Whether a head that is stored is passed over.
    pub(crate) is_headless: bool,
    decoder: EmptyDecoder,
}

impl ModelConfig {
    /// Reads the text of a Hugging Face `config.json`.
    ///
    /// # Errors
    /// Text that is not a JSON object, an architecture that is not supported, a field that is
    /// missing, out of bounds, or asks for something this crate does not run; the message names the
    /// field.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        Self::of_object(&config::object(text)?)
    }

    pub(crate) fn of_object(map: &Map<String, Value>) -> Result<Self, Error> {
        let fields = Fields::new(map);
        let (row, decoder) = registry::read(&fields)?;
        Ok(Self {
            row,
            layout: StoredLayout::of(map),
            is_headless: false,
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
    pub fn of<D: DecoderArchitecture>(&self) -> Option<&D::Config> {
        self.decoder.config.of::<D>()
    }

    /// An empty model of architecture `D`, if this is one: its parameters have names and shapes,
    /// and no storage until something asks for a value.
    pub fn build<D: DecoderArchitecture>(&self, init: &Init) -> Option<D> {
        self.of::<D>().map(|config| D::new(config, init))
    }

    /// What it asks of a KV cache.
    pub fn cache(&self) -> &CacheSpec {
        self.decoder.model.cache()
    }

    /// Token ids run from 0 to this, exclusive.
    pub fn vocab_size(&self) -> usize {
        self.decoder.model.head().vocab_size()
    }

    /// The token that the decoder begins a text with, if an encoder reads the prompt; else the text
    /// begins with the prompt.
    pub fn decoder_start(&self) -> Option<u32> {
        self.decoder.model.start()
    }

    /// Tokens of the context that a prompt of `prompt` tokens takes: all of them, or the one that
    /// the decoder begins with.
    pub fn context_of_prompt(&self, prompt: usize) -> usize {
        if self.decoder_start().is_some() { 1 } else { prompt }
    }

    /// All parameters, in the order in which the module declares them. A tied head is none.
    pub fn weights(&self) -> Vec<WeightSpec> {
        self.parameters().iter().map(WeightSpec::from).collect()
    }

    /// Values in all parameters; a tied head counts once.
    pub fn parameter_count(&self) -> u64 {
        self.weights().iter().map(WeightSpec::elements).sum()
    }

    /// How a router chooses the expert that a parameter belongs to, if it belongs to one.
    pub fn routed(&self, path: &str) -> Option<Routed> {
        self.decoder.model.routed(path)
    }

    /// The rules from its parameters' paths to the names of tensors.
    pub(crate) fn names(&self) -> Names {
        let names = Names::default().optional_prefix(self.optional_prefix());
        // The rules are our own, and are rules.
        self.decoder.model.names(names).unwrap_or_default()
    }

    /// A prefix of parameters' paths that the tensor names of some checkpoints leave out; empty if
    /// there is none.
    pub fn optional_prefix(&self) -> &'static str {
        let Row { layers, optional_prefix, .. } = self.row;
        match layers.find('.') {
            // A model without a head is what all but the head is in.
            Some(end) if self.is_headless => &layers[..=end],
            _ => optional_prefix,
        }
    }

    /// Whether a tensor of that name is of no use, though checkpoints of this type may have it.
    pub(crate) fn is_unused(&self, name: &str) -> bool {
        self.decoder.model.is_unused(name)
    }

    /// The module's parameters, without storage.
    pub(crate) fn parameters(&self) -> &[Parameter] {
        &self.decoder.parameters
    }

    /// The table that serves as output head, by its name, and the name that the head would have.
    pub fn tied_head(&self) -> Option<(String, String)> {
        let id = self.decoder.model.head().tied()?;
        let table = self.parameters().iter().find(|parameter| parameter.id == id)?;
        Some((table.path.clone(), format!("{}.weight", self.row.head)))
    }

    /// The path of the layer that makes logits, if it has a weight of its own.
    pub(crate) fn head(&self) -> &'static str {
        self.row.head
    }

    /// An upper bound on the bytes of f32 activations alive at once on a CPU, in a forward pass of
    /// `tokens` new tokens of each text, wherever in such a cache it ends, and in one of a token of
    /// each of its beams. Counted with it are the logits asked for, the scratch memory of
    /// attention, and the copy that is made when a product's weight comes in tiles.
    ///
    /// Grows with `tokens`: a long prompt run in several passes needs less.
    pub fn activation_bytes(&self, tokens: usize, cache: &CacheOptions, logits: Logits) -> u64 {
        self.activation_bytes_on(tokens, cache, logits, all_threads())
    }

    /// Of these, an upper bound on the bytes that are at once elsewhere than in buffers of the
    /// kernels, which can be [used again](outsize_kernels::BufferReuse).
    pub fn unpooled_activation_bytes(
        &self,
        tokens: usize,
        cache: &CacheOptions,
        logits: Logits,
    ) -> u64 {
        self.most_activations([tokens, all_threads()], cache, logits, Activations::unpooled_bytes)
    }

    pub(crate) fn activation_bytes_on(
        &self,
        tokens: usize,
        cache: &CacheOptions,
        logits: Logits,
        threads: usize,
    ) -> u64 {
        self.most_activations([tokens, threads], cache, logits, Activations::bytes)
    }

    /// What `count` says of a pass of `tokens` tokens on so many threads, or of what is larger
    /// beside it.
    fn most_activations(
        &self,
        [tokens, threads]: [usize; 2],
        cache: &CacheOptions,
        logits: Logits,
        count: fn(Activations) -> u64,
    ) -> u64 {
        let bytes = |tokens| {
            let pass = PassShape::new(tokens, self.cache(), cache, logits, threads);
            let copied = match cache.sequences() {
                1 => 0,
                // Between two passes, a sequence's keys or values of one layer beside the logits.
                sequences => KvCache::row_bytes(self.cache(), cache).saturating_add(
                    (sequences.min(MAX_BATCH) as u64 * 4).saturating_mul(self.vocab_size() as u64),
                ),
            };
            count(self.decoder.model.activations(&pass)).max(copied)
        };
        match cache.beams {
            0 | 1 => bytes(tokens),
            // Of a prompt there is one sequence, of what follows as many as beams.
            _ => bytes(tokens).max(bytes(tokens.min(1))),
        }
    }

    /// The number of the block that a parameter belongs to, if it is in one: others cannot
    /// [learn an adapter](Self::learning_bytes).
    pub fn block_of(&self, path: &str) -> Option<usize> {
        block_of(self.row.layers, path)
    }

    /// Whether a parameter learns where [all weights do](crate::DispatchedDecoder::full_gradients):
    /// some choose experts and have no gradient.
    pub fn learns(&self, path: &str) -> bool {
        learns(path)
    }

    /// Where its parameters lie in a checkpoint with these tensors at `place`.
    ///
    /// # Errors
    /// [`outsize_core::Error::Mismatch`]: they are not those of this configuration.
    pub fn stored_parameters(
        &self,
        place: &str,
        tensors: &[TensorInfo],
    ) -> Result<Vec<StoredParameter>, outsize_core::Error> {
        let table = TensorTable::new(place, tensors);
        stored_parameters(self.parameters(), &table, &self.options(tensors))
    }

    /// What learning an adapter from `batch` sequences of `tokens` tokens at once allocates at most
    /// on a CPU, in bytes, besides weights, the adapter and its gradients, if activations of the
    /// last `kept` blocks are kept: see
    /// [`low_rank_gradients`](crate::DispatchedDecoder::low_rank_gradients). Nothing if the model
    /// cannot learn so.
    pub fn learning_bytes(&self, batch: usize, tokens: usize, kept: usize) -> Option<u64> {
        let cache = CacheOptions { batch, ..CacheOptions::new(tokens) };
        let pass = PassShape::new(tokens, self.cache(), &cache, Logits::Last, all_threads());
        learning_bytes(&*self.decoder.model, self.row.layers, self.parameters(), pass, kept)
    }

    /// The same for all weights: see [`full_gradients`](crate::DispatchedDecoder::full_gradients).
    /// Gradients are in it, as they are handed over.
    pub fn full_learning_bytes(&self, batch: usize, tokens: usize) -> Option<u64> {
        let cache = CacheOptions { batch, ..CacheOptions::new(tokens) };
        let pass = PassShape::new(tokens, self.cache(), &cache, Logits::Last, all_threads());
        full_learning_bytes(&*self.decoder.model, self.row.layers, self.parameters(), pass)
    }

    /// What [observing](crate::DispatchedDecoder::observe_blocks) `batches` batches of so many
    /// sequences of `tokens` tokens allocates at most on a CPU, in bytes, besides weights and what
    /// is made of the observed. Nothing if the model cannot be run block by block.
    pub fn observing_bytes(&self, [batches, batch, tokens]: [usize; 3]) -> Option<u64> {
        let cache = CacheOptions { batch, ..CacheOptions::new(tokens) };
        let pass = PassShape::new(tokens, self.cache(), &cache, Logits::Last, all_threads());
        observing_bytes(&*self.decoder.model, self.parameters(), pass, batches)
    }

    /// Rows of a pass of `tokens` new tokens of each text that its layers run over at most, and
    /// those that have logits at once.
    pub fn pass_rows(&self, tokens: usize, cache: &CacheOptions, logits: Logits) -> [u64; 2] {
        let shape = |tokens| PassShape::new(tokens, self.cache(), cache, logits, 1);
        // Of a prompt there is one sequence, of what follows as many as beams.
        let (pass, next) = (shape(tokens), shape(tokens.min(1)));
        let rows = pass.rows().max(next.rows()).max(pass.of_prompt().rows());
        [rows, pass.whole_logit_rows().max(next.whole_logit_rows())]
    }

    /// What products take besides, in bytes, for passes of `tokens` new tokens of each sequence:
    /// the activations of the widest one as [`ActivationDtype`] and this processor want them; and,
    /// with weights in blocks, the rows that each thread dequantises.
    pub fn packed_bytes(
        &self,
        compute: ActivationDtype,
        tokens: usize,
        cache: &CacheOptions,
    ) -> u64 {
        let prompt = if self.cache().cross.is_empty() { 0 } else { cache.prompt };
        let rows = tokens.max(prompt).min(MAX_CONTEXT) as u64 * cache.batch.min(MAX_BATCH) as u64;
        let rows = rows.max(tokens.min(1) as u64 * cache.sequences().min(MAX_BATCH) as u64);
        let weights = self.weights();
        let products = weights.iter().filter(|weight| weight.kind == WeightKind::Linear);
        let widest = products.filter_map(|weight| weight.shape.last()).max();
        let widest = widest.map_or(0, |n| *n as u64);
        let packed = matmul::packed_bytes(compute, rows, widest, gated_width(&weights));
        let panels = match self.quantization {
            Some(_) => matmul::panel_bytes(widest).saturating_mul(threads() as u64),
            None => 0,
        };
        packed.saturating_add(panels)
    }

    /// A model that is all in memory, with values from `value`: of each weight in the type that it
    /// is to be kept in.
    ///
    /// # Errors
    /// What `value` says.
    pub fn fill<E>(
        &self,
        init: &Init,
        mut value: impl FnMut(&WeightSpec) -> Result<TensorData, E>,
    ) -> Result<Box<dyn Decoder>, E> {
        let weights = self.weights();
        let values: Result<Vec<_>, E> = weights.iter().map(&mut value).collect();
        Ok(self.decoder.config.fill(init, values?))
    }

    /// Whether it is the language model of a checkpoint that holds others too, which are passed
    /// over: what they see or hear is not.
    pub fn is_part(&self) -> bool {
        self.is_text_part()
    }

    /// Where a map keeps the keys and values of each layer: where it decodes.
    pub fn cache_devices(&self, map: &DeviceMap, devices: &Devices) -> Vec<Device> {
        let layers = 0..self.cache().layers.len();
        let tier = |layer: usize| {
            let name = format!("{}.{}", self.row.layers, layer / self.row.attentions);
            let block = map.blocks().iter().find(|block| block.name == name);
            block.map_or(Tier::Cpu, |block| block.decode_on)
        };
        layers.map(|layer| devices.of(tier(layer))).collect()
    }

    /// An empty model, dispatched: see [`outsize_core::dispatch()`].
    ///
    /// # Errors
    /// As there; and a stored head that is another one than the table that it is said to be. Both
    /// are read for that, where there are both.
    pub fn dispatch(
        &self,
        init: &Init,
        checkpoint: &Checkpoint,
        map: &DeviceMap,
        options: &outsize_core::Options,
    ) -> Result<DispatchedDecoder, outsize_core::Error> {
        if !self.is_headless
            && let Some([table, head]) = self.stored_head(checkpoint.tensors())
            && differ(checkpoint, table, head)?
        {
            return Err(outsize_core::Error::TiedHead {
                folder: checkpoint.folder().to_owned(),
                table: table.name.clone(),
                head: head.name.clone(),
                settings: match self.decoder_start() {
                    // T5's heads scale what they are given where they are tied, if nothing is said.
                    Some(_) => "\"tie_word_embeddings\": false, \"scale_decoder_outputs\": true",
                    None => "\"tie_word_embeddings\": false",
                },
            });
        }
        self.decoder.config.dispatch(init, checkpoint, map, options)
    }
}

/// Whether two tensors of the same size have other bytes.
fn differ(
    checkpoint: &Checkpoint,
    one: &TensorInfo,
    other: &TensorInfo,
) -> Result<bool, outsize_checkpoint::Error> {
    if (one.file, one.offset) == (other.file, other.offset) {
        return Ok(false);
    }
    let mut pieces = [one, other].map(|tensor| vec![0; tensor.len.min(COMPARED) as usize]);
    for start in (0..one.len).step_by(COMPARED as usize) {
        for (piece, tensor) in pieces.iter_mut().zip([one, other]) {
            piece.truncate((one.len - start).min(COMPARED) as usize);
            checkpoint.read_at(tensor, start, piece)?;
        }
        if pieces[0] != pieces[1] {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Threads that a pass may take.
fn all_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

impl PartialEq for ModelConfig {
    fn eq(&self, other: &Self) -> bool {
        self.model_type() == other.model_type()
            && self.dtype == other.dtype
            && self.quantization == other.quantization
            && self.unknown_fields == other.unknown_fields
            && self.decoder.config.is_same(&*other.decoder.config)
    }
}

impl Debug for ModelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelConfig")
            .field("model_type", &self.model_type())
            .field("config", &self.decoder.config)
            .finish_non_exhaustive()
    }
}
