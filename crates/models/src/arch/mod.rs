//! The architectures, one file each.

mod gpt2;
mod gpt_sizes;
mod gptj;
mod llama;
mod t5;

pub use gpt_sizes::GptSizes;
pub use gpt2::{Gpt2Config, Gpt2LmHeadModel};
pub use gptj::{GptjConfig, GptjForCausalLm};
pub use llama::{LlamaConfig, LlamaDecoderLayer, LlamaForCausalLm, LlamaModel};
pub use t5::{T5Config, T5ForConditionalGeneration};
