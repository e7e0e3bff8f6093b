//! The architectures, one file each.

mod gpt2;
mod gptj;
mod llama;

pub use gpt2::{Gpt2Config, Gpt2LmHeadModel, GptSizes};
pub use gptj::{GptjConfig, GptjForCausalLm};
pub use llama::{LlamaConfig, LlamaDecoderLayer, LlamaForCausalLm, LlamaModel};
