//! Well-known architectures as Burn modules, read from a Hugging Face `config.json`.
//!
//! ```
//! use outsize_models::{CacheOptions, KvCache, Logits, ModelConfig, presets};
//!
//! # fn main() -> Result<(), outsize_models::Error> {
//! let config = ModelConfig::from_json(presets::config("llama-demo")?)?;
//! let device = Default::default();
//! let model = config.init(&device); // shapes only: no parameter has storage yet
//! assert_eq!(KvCache::bytes(&config, &CacheOptions::new(2048)), 2 * 16 * 8 * 2048 * 64 * 4);
//! # let _ = (model, Logits::Last);
//! # Ok(())
//! # }
//! ```
//!
//! Parameters are lazy and carry the checkpoint's own names and shapes (`[out, in]` for a linear layer), so a
//! checkpoint loads tensor by tensor with no renaming and no transposing. Weights may be kept in bf16, f16 or f32;
//! activations and all arithmetic are f32.
#![forbid(unsafe_code)]

mod access;
mod activation;
mod activations;
mod attention;
mod batch;
mod blocks;
mod cache_options;
mod config;
mod embedding;
mod error;
mod kv_cache;
mod linear;
mod llama;
mod mlp;
pub mod presets;
mod random;
mod rms_norm;
mod rope;
mod tree;

pub use access::Access;
pub use activation::Activation;
pub use attention::{Attention, SCORE_BYTES};
pub use batch::Batch;
pub use blocks::{BlockSpec, TensorSpec, WeightKind};
pub use cache_options::{CacheOptions, KvDtype, WhenFull};
pub use config::{Architecture, ModelConfig, RopeConfig, RopeScaling, WeightDtype};
pub use embedding::Embedding;
pub use error::Error;
pub use kv_cache::{KvCache, MAX_BATCH, MAX_CONTEXT};
pub use linear::Linear;
pub use llama::{LlamaDecoderLayer, LlamaForCausalLm, LlamaModel, Logits};
pub use mlp::Mlp;
pub use outsize_kernels::ActivationDtype;
pub use random::RandomWeights;
pub use rms_norm::RmsNorm;
pub use rope::{Rope, Rotation};
