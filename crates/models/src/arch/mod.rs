//! The architectures, one file each.

mod gpt2;
mod gpt_sizes;
mod gptj;
mod llama;

pub use gpt_sizes::GptSizes;
pub use gpt2::{Gpt2Config, Gpt2LmHeadModel};
pub use gptj::{GptjConfig, GptjForCausalLm};
pub use llama::{LlamaConfig, LlamaDecoderLayer, LlamaForCausalLm, LlamaModel};
