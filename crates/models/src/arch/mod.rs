//! The architectures, one file each.

mod llama;

pub use llama::{LlamaConfig, LlamaDecoderLayer, LlamaForCausalLm, LlamaModel};
