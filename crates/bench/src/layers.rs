//! A model of a few decoder layers with random weights, kept in memory as resident weights are.
//!
//! A preset's architecture, as wide as the caller says.

use std::hint::black_box;
use std::time::Instant;

use burn::tensor::{AllocationProperty, Bytes, DType, Device, Tensor, TensorData};
use outsize_kernels::ActivationDtype;
use outsize_machine::Region;
use outsize_models::{
    CacheOptions, Decoder, Error as ModelError, Init, KvCache, Logits, ModelConfig, presets,
};
use serde_json::{Map, Value};

use crate::Error;
use crate::samples::seconds;

/// The preset whose layers are measured, in other sizes.
const PRESET: &str = "llama-1b";

/// A model with a few real layers and a tiny vocabulary.
pub(crate) struct Layers {
    pub shape: Shape,
    config: ModelConfig,
    model: Box<dyn Decoder>,
    /// The matrices `[out, in]` of the layers, in order of use.
    pub matrices: Vec<Tensor<2>>,
    /// Bytes of these.
    pub bytes: u64,
}

impl Layers {
    /// How many layers there are.
    pub fn count(&self) -> usize {
        self.shape.layers
    }

    /// Operations of attention in all layers, for one token and one position that it sees.
    pub fn attention_flops(&self) -> f64 {
        self.config.cache().layers.iter().map(|layer| layer.flops() as f64).sum()
    }
}

/// The shape of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub hidden: usize,
    pub inner: usize,
    pub heads: usize,
    pub key_value_heads: usize,
    pub head_dim: usize,
    pub layers: usize,
    pub context: usize,
}

/// Size of the vocabulary.
const VOCABULARY: usize = 64;

impl Shape {
    /// Bytes of the matrices of one layer in bf16.
    pub fn layer_bytes(&self) -> u64 {
        let (queries, keys) = (self.heads * self.head_dim, self.key_value_heads * self.head_dim);
        let values = self.hidden * (2 * queries + 2 * keys + 3 * self.inner);
        2 * values as u64
    }

    /// Makes the model, which multiplies activations in the type `compute`.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn make(&self, compute: ActivationDtype) -> Result<Layers, Error> {
        let not_json = |error: serde_json::Error| ModelError::Json { message: error.to_string() };
        let mut fields: Map<String, Value> =
            serde_json::from_str(presets::config(PRESET)?).map_err(not_json)?;
        for (field, size) in [
            ("hidden_size", self.hidden),
            ("intermediate_size", self.inner),
            ("num_hidden_layers", self.layers),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.key_value_heads),
            ("head_dim", self.head_dim),
            ("vocab_size", VOCABULARY),
            ("max_position_embeddings", self.context),
        ] {
            fields.insert(field.to_owned(), size.into());
        }
        let config = ModelConfig::from_json(&Value::from(fields).to_string())?;
        let device = Device::flex();
        let mut random = Random::new(1);
        let (mut matrices, mut bytes) = (Vec::new(), 0);
        let model = config.fill(&Init { device: device.clone(), compute }, |weight| {
            let value = random.tensor(&weight.shape)?;
            if let ([out, width], true) = (&weight.shape[..], weight.name.contains("layers")) {
                bytes += 2 * (out * width) as u64;
                matrices.push(Tensor::from_data(value.clone(), (&device, DType::BF16)));
            }
            Ok::<_, Error>(value)
        })?;
        Ok(Layers { shape: *self, config, model, matrices, bytes })
    }
}

/// A sequence that has the same length each time its next token is timed.
pub(crate) struct Sequence<'a> {
    layers: &'a Layers,
    cache: KvCache,
    position: usize,
}

impl<'a> Sequence<'a> {
    /// Prefills `tokens` tokens, in a cache that has room for `more`.
    pub fn new(layers: &'a Layers, tokens: usize, more: usize) -> Result<Self, Error> {
        let options = CacheOptions::new(tokens + more);
        let mut cache = KvCache::new(layers.config.cache(), &options, &Device::flex())?;
        let ids: Vec<u32> = (0..tokens).map(|at| (at % VOCABULARY) as u32).collect();
        for chunk in ids.chunks(256) {
            layers.model.forward(chunk, &mut cache, Logits::Last)?;
        }
        Ok(Self { layers, cache, position: tokens })
    }

    /// Runs one more token, removes it from the cache, and returns the seconds that running took.
    pub fn next_token(&mut self) -> Result<f64, Error> {
        self.pass(1)
    }

    /// The same for a pass of several tokens, all of which go through all layers.
    pub fn pass(&mut self, tokens: usize) -> Result<f64, Error> {
        let ids = vec![1; tokens];
        let began = Instant::now();
        let logits = self.layers.model.forward(&ids, &mut self.cache, Logits::All)?;
        black_box(logits);
        let taken = seconds(began);
        self.cache.truncate(self.position)?;
        Ok(taken)
    }
}

/// Random weights in bf16, made fast: of either sign, from 1/128 to 1/32.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A weight of this shape, in memory as resident weights are.
    fn tensor(&mut self, shape: &[usize]) -> Result<TensorData, Error> {
        let bytes = 2 * shape.iter().product::<usize>();
        let no_memory = |source| outsize_machine::Error::NoMemory { bytes: bytes as u64, source };
        let mut region = Region::new(bytes).map_err(no_memory)?;
        self.fill(region.as_mut());
        let bytes = Bytes::from_shared(bytes::Bytes::from_owner(region), AllocationProperty::Other);
        TensorData::try_from_bytes(bytes, shape.to_vec(), DType::BF16)
            .map_err(|_| Error::Nothing { what: "a weight" })
    }

    /// Fills bytes with weights, little endian.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        /// Of each of four values the sign, the last bit of the exponent, and the mantissa.
        const VARIES: u64 = 0x80ff_80ff_80ff_80ff;
        const FIXED: u64 = 0x3c00_3c00_3c00_3c00;
        for word in bytes.chunks_mut(8) {
            // SplitMix64 (Steele et al., 2014).
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let values = ((z ^ (z >> 31)) & VARIES) | FIXED;
            word.copy_from_slice(&values.to_le_bytes()[..word.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_small_and_of_either_sign() {
        let mut bytes = vec![0; 2 * 1001];
        Random::new(3).fill(&mut bytes);
        let values: Vec<f32> = bytes
            .chunks_exact(2)
            .map(|pair| half::bf16::from_le_bytes([pair[0], pair[1]]).to_f32())
            .collect();
        assert!(values.iter().all(|value| (1.0 / 128.0..1.0 / 32.0).contains(&value.abs())));
        assert!(values.iter().any(|value| *value < 0.0) && values.iter().any(|value| *value > 0.0));
        let mut other = vec![0; 2 * 1001];
        Random::new(4).fill(&mut other);
        assert_ne!(bytes, other);
    }

    #[test]
    fn a_model_of_a_shape() {
        let shape = Shape {
            hidden: 48,
            inner: 80,
            heads: 6,
            key_value_heads: 2,
            head_dim: 8,
            layers: 3,
            context: 20,
        };
        let layers = shape.make(ActivationDtype::F32).unwrap();
        assert_eq!(layers.matrices.len(), 3 * 7);
        assert_eq!(layers.bytes, 3 * shape.layer_bytes());
        assert_eq!(layers.count(), 3);
        assert_eq!(layers.matrices[0].dims(), [48, 48]);
        assert_eq!(layers.matrices[6].dims(), [48, 80]);
    }
}
