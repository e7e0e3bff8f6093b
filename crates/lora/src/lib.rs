//! LoRA adapters ([Hu et al., 2021](https://arxiv.org/abs/2106.09685)) as PEFT publishes them: a
//! folder of `adapter_config.json` and `adapter_model.safetensors`.
//!
//! [`LoraConfig`] is the first of these, checked. [`LoraConfig::targets`] says which weights of a
//! model an adapter is for, [`LoraAdapter`] reads the second file against that, and [`save`] writes
//! both so that PEFT loads them.
//!
//! ```
//! use outsize_lora::{LoraConfig, ModulePattern};
//! use outsize_models::{ModelConfig, presets};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = ModelConfig::from_json(presets::config("llama-demo")?)?;
//! let config = LoraConfig::new(8, 16.0, ModulePattern::suffixes(["q_proj", "v_proj"]));
//! let targets = config.targets(&model)?;
//! assert_eq!(targets[0].module, "model.layers.0.self_attn.q_proj");
//! assert_eq!(targets[0].path, "model.layers.0.self_attn.q_proj.weight");
//! assert_eq!(targets[0].scale, 2.0);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod adapter;
mod config;
mod error;
mod fields;
mod matrix;
mod pattern;
mod row_order;
mod saving;
mod stacked;
mod targets;

pub use adapter::{ADAPTER_WEIGHTS, AdapterMemory, LoraAdapter};
pub use config::{ADAPTER_CONFIG, LoraConfig, MAX_RANK};
pub use error::Error;
pub use matrix::{LoraMatrix, lora_matrix};
pub use pattern::ModulePattern;
pub use saving::save;
pub use targets::LoraTarget;
