//! What `transformers` computed, and how near to it a model has to come.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::HashMap;

use burn::tensor::{Device, Tensor};
use outsize_checkpoint::Checkpoint;
use outsize_models::{CacheOptions, KvCache, KvDtype, ModelConfig};

/// Greatest difference over greatest logit.
pub const TOLERANCE: f32 = 1e-4;

/// The same with activations rounded to bf16, by up to 2⁻⁹ before each product, where PyTorch is
/// off by 4e-2 of the logits at most, or its figure is not known.
pub const ROUNDED_TOLERANCE: f32 = 5e-2;

/// How far PyTorch in bf16, which rounds the results of products and norms too, is off: the length
/// of the difference over that of the reference (`scripts/fixtures/rounded.py`).
#[derive(serde::Deserialize)]
pub struct PyTorchInBf16 {
    pub logits: HashMap<String, f64>,
    pub gradients: HashMap<String, f64>,
}

impl PyTorchInBf16 {
    pub fn read() -> Self {
        serde_json::from_str(include_str!("../text/rounded.json")).unwrap()
    }
}

/// The length of the difference of numbers and their reference, over that of the reference.
pub fn relative_length(pairs: impl Iterator<Item = (f32, f32)>) -> f64 {
    let (mut difference, mut reference) = (0.0, 0.0);
    for (found, expected) in pairs {
        difference += (f64::from(found) - f64::from(expected)).powi(2);
        reference += f64::from(expected).powi(2);
    }
    (difference / reference).sqrt()
}

/// Logits of rounded activations are rounded, and as near as PyTorch's.
pub fn assert_rounded(found: &[f32], reference: &[f32], name: &str) {
    assert!(difference(found, reference) > TOLERANCE, "{name}");
    let Some(&most) = PyTorchInBf16::read().logits.get(name) else {
        return assert_within(ROUNDED_TOLERANCE, found, reference, name);
    };
    let off = relative_length(found.iter().copied().zip(reference.iter().copied()));
    println!("{name}: {off:.1e} of {most:.1e}");
    if most <= 0.04 {
        assert_within(ROUNDED_TOLERANCE, found, reference, name);
    }
    assert!(off <= most, "{name}: off by {off:e} of the logits, PyTorch in bf16 by {most:e}");
}

#[derive(serde::Deserialize)]
pub struct Expected {
    pub ids: Vec<u32>,
    pub greedy: Vec<u32>,
    /// Of an encoder-decoder, what follows what the decoder begins with.
    #[serde(default)]
    pub decoder_ids: Vec<u32>,
    #[serde(default)]
    pub batch: Vec<Vec<u32>>,
    #[serde(default)]
    pub batch_greedy: Vec<Vec<u32>>,
    /// The sliding context.
    pub slide: Option<usize>,
    #[serde(skip)]
    pub logits: Vec<f32>,
    #[serde(skip)]
    pub batch_logits: Vec<f32>,
    #[serde(skip)]
    pub slide_logits: Vec<f32>,
    /// Of a GGUF file, what llama.cpp computed.
    #[serde(skip)]
    pub llama_cpp_logits: Vec<f32>,
    /// With a cache of that type.
    #[serde(skip)]
    pub narrow_logits: Vec<(KvDtype, Vec<f32>)>,
}

pub fn expected(name: &str) -> Expected {
    let folder = super::folder(name);
    let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let mut expected: Expected = serde_json::from_str(&text).unwrap();
    let file = Checkpoint::open(folder.join("expected.safetensors")).unwrap();
    let read = |tensor: &str| match file.get(tensor) {
        None => Vec::new(),
        Some(info) => {
            let bytes = file.read(info).unwrap();
            let floats = bytes.as_chunks().0.iter();
            floats.map(|&bytes| f32::from_le_bytes(bytes)).collect()
        }
    };
    expected.logits = read("logits");
    expected.batch_logits = read("batch");
    expected.slide_logits = read("slide");
    expected.llama_cpp_logits = read("llama.cpp");
    for &dtype in KvDtype::ALL {
        expected.narrow_logits.push((dtype, read(dtype.name())));
    }
    expected
}

pub fn cache(config: &ModelConfig, context: usize) -> KvCache {
    cache_of(config, &CacheOptions::new(context))
}

pub fn cache_of(config: &ModelConfig, options: &CacheOptions) -> KvCache {
    KvCache::new(config.cache(), options, &Device::default()).unwrap()
}

pub fn values(logits: Tensor<3>) -> Vec<f32> {
    logits.into_data().try_to_vec().unwrap()
}

/// Greatest difference over greatest reference; NaN counts as infinite.
pub fn difference(found: &[f32], reference: &[f32]) -> f32 {
    assert_eq!(found.len(), reference.len());
    let largest = reference.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let worst = found
        .iter()
        .zip(reference)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0f32, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) });
    worst / largest
}

pub fn assert_close(found: &[f32], reference: &[f32], what: &str) {
    assert_within(TOLERANCE, found, reference, what);
}

pub fn assert_within(tolerance: f32, found: &[f32], reference: &[f32], what: &str) {
    let difference = difference(found, reference);
    println!("{what}: {difference:.1e}");
    assert!(difference <= tolerance, "{what}: off by {difference:e} of the largest logit");
}

pub fn first_maximum(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        assert!(!logit.is_nan());
        if logit > logits[best] {
            best = id;
        }
    }
    best as u32
}
