//! The architectures, one file each.

mod bloom;
mod falcon;
mod gemma3;
mod gpt2;
mod gpt_neox;
mod gpt_sizes;
mod gptj;
mod llama;
mod olmo2;
mod opt;
mod phi3;
mod qwen3;
mod rms_decoder;
mod sizes;
mod t5;

pub use bloom::{BloomBlock, BloomConfig, BloomForCausalLm, BloomModel};
pub use falcon::{FalconConfig, FalconDecoderLayer, FalconForCausalLm, FalconModel, FalconNorms};
pub use gemma3::{Gemma3Config, Gemma3DecoderLayer, Gemma3ForCausalLm};
pub use gpt_neox::{GptNeoxConfig, GptNeoxForCausalLm, GptNeoxLayer, GptNeoxModel};
pub use gpt_sizes::GptSizes;
pub use gpt2::{Gpt2Config, Gpt2LmHeadModel};
pub use gptj::{GptjConfig, GptjForCausalLm};
pub use llama::{LlamaConfig, LlamaDecoderLayer, LlamaForCausalLm, LlamaModel};
pub use olmo2::{Olmo2Config, Olmo2DecoderLayer, Olmo2ForCausalLm};
pub use opt::{OptAttention, OptConfig, OptDecoder, OptDecoderLayer, OptForCausalLm, OptModel};
pub use phi3::{Phi3Attention, Phi3Config, Phi3DecoderLayer, Phi3ForCausalLm};
pub use qwen3::{Qwen3Config, Qwen3DecoderLayer, Qwen3ForCausalLm};
pub use rms_decoder::{RmsBlock, RmsForCausalLm, RmsFrame, RmsModel, RmsSizes};
pub use sizes::LayerNormSizes;
pub use t5::{T5Config, T5ForConditionalGeneration};
