//! The architectures, one file each.

mod afmoe;
mod apertus;
mod arcee;
mod bamba;
mod bloom;
mod clip_text;
mod cohere;
mod cohere2_moe;
mod cwm;
mod dbrx;
mod decoder_text;
mod deepseek;
mod deepseek_v4;
mod dense;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone;
mod exaone4;
mod expert_fields;
mod falcon;
mod falcon_h1;
mod flint;
mod flux;
mod flux2;
mod gemma;
mod gemma3;
mod gemma3n;
mod gemma4;
mod gemma4_unified_vision;
mod gemma4_vision;
mod glm;
mod glm_vision;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod gpt_sizes;
mod gptj;
mod granite;
mod granite_moe;
mod granite_moe_hybrid;
mod helium;
mod hunyuan;
mod hunyuan_moe;
mod hy_v4;
mod idefics3;
mod internvl;
mod internvl_vision;
mod jais2;
mod jamba;
mod kimi_linear;
mod kimi_vision;
mod kolibri1;
mod laguna;
mod lara_mini;
mod lfm2;
mod lfm3;
mod llama;
mod llama4;
mod llama4_vision;
mod longcat;
mod mamba;
mod mamba2_fields;
mod mamba_fields;
mod mellum;
mod mimo_v2;
mod minimax;
mod minimax_m2;
mod minimax_m3;
mod mistral3;
mod mixtral;
mod muse;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod olmo;
mod olmo2;
mod olmo_hybrid;
mod opt;
mod phi;
mod phi3;
mod phimoe;
mod pixtral;
mod qwen3;
mod qwen3_next;
mod qwen3_vl_moe;
mod qwen_image;
mod qwen_omni;
mod qwen_vision;
mod qwen_vl;
mod rms_config;
mod rms_decoder;
mod rms_layer;
mod rms_parts;
mod sd3;
mod seed_oss;
mod siglip;
mod sizes;
mod smollm3;
mod sparse_moe;
mod stablelm;
mod starcoder2;
mod step3p7;
mod t5;
mod transformer_heads;
mod unet;
mod vae;
mod vision_fields;
mod vision_positions;
mod vision_tile;
mod z_image;

pub use crate::layers::SHIFT_FIRST;
pub use apertus::{ApertusForCausalLm, ApertusMlp, Xielu};
pub use arcee::{ArceeForCausalLm, ArceeMlp};
pub use bamba::{BambaDecoderLayer, BambaForCausalLm};
pub use bloom::{BloomBlock, BloomConfig, BloomForCausalLm, BloomModel};
pub use clip_text::{
    ClipTextAttention, ClipTextConfig, ClipTextEmbeddings, ClipTextEncoder, ClipTextEncoderLayer,
    ClipTextMlp, ClipTextModel, ClipTextStates, ClipTextTransformer, PROJECTION_IN_OUT,
};
pub use dbrx::{DbrxExpert, DbrxFfn, DbrxForCausalLm};
pub use decoder_text::{DecoderTextEncoder, DecoderTextEncoderConfig, TextFilling};
pub use deepseek::{DeepseekForCausalLm, RmsMoE};
pub use deepseek_v4::{DeepseekV4DecoderLayer, DeepseekV4ForCausalLm};
pub use dense::LlamaForCausalLm;
pub use ernie4_5_moe::{ErnieMoeForCausalLm, ErnieMoeStatics, ErnieSparseMoeBlock};
pub use falcon::{FalconConfig, FalconDecoderLayer, FalconForCausalLm, FalconModel, FalconNorms};
pub use falcon_h1::{FalconH1DecoderLayer, FalconH1ForCausalLm, FalconH1Mlp};
pub use flux::{FluxTransformer2dConfig, FluxTransformer2dModel};
pub use flux2::{Flux2Transformer2dConfig, Flux2Transformer2dModel};
pub use gemma3n::{
    AltUpConfig, Gemma3nAltUp, Gemma3nConfig, Gemma3nDecoderLayer, Gemma3nForCausalLm,
    Gemma3nLaurelBlock, Gemma3nMlp, Gemma3nModel,
};
pub use gemma4::{
    Gemma4Config, Gemma4DecoderLayer, Gemma4ForCausalLm, Gemma4Layer, Gemma4Model, Gemma4Router,
    PerLayerConfig,
};
pub use gemma4_unified_vision::{Gemma4UnifiedVisionConfig, Gemma4UnifiedVisionModel};
pub use gemma4_vision::{Gemma4VisionConfig, Gemma4VisionModel};
pub use glm::GlmForCausalLm;
pub use glm_vision::{GlmVisionConfig, GlmVisionModel};
pub use gpt_neox::{GptNeoxConfig, GptNeoxForCausalLm, GptNeoxLayer, GptNeoxModel};
pub use gpt_oss::{GptOssExpert, GptOssForCausalLm, GptOssMlp};
pub use gpt_sizes::GptSizes;
pub use gpt2::{Gpt2Config, Gpt2LmHeadModel};
pub use gptj::{GptjConfig, GptjForCausalLm};
pub use granite_moe::{GraniteMoe, GraniteMoeForCausalLm, GraniteRouter};
pub use granite_moe_hybrid::{GraniteMoeHybridDecoderLayer, GraniteMoeHybridForCausalLm};
pub use hunyuan_moe::{HunyuanGate, HunyuanMoe, HunyuanMoeForCausalLm};
pub use hy_v4::{HyV4DecoderLayer, HyV4ForCausalLm};
pub use internvl_vision::{InternVlVisionConfig, InternVlVisionModel};
pub use jamba::JambaMoe;
pub use kimi_linear::{KimiDecoderLayer, KimiForCausalLm};
pub use kimi_vision::{KimiProjectorConfig, KimiVisionConfig, KimiVisionModel};
pub use lfm2::{Lfm2DecoderLayer, Lfm2ForCausalLm, Lfm2Moe};
pub use llama4::{Llama4ForCausalLm, Llama4Moe};
pub use llama4_vision::{Llama4VisionConfig, Llama4VisionModel};
pub use longcat::{LongcatDecoderLayer, LongcatForCausalLm, LongcatMoe};
pub use minimax::{MiniMaxDecoderLayer, MiniMaxForCausalLm};
pub use mixtral::{MixtralExpert, MixtralForCausalLm, MixtralMoe};
pub use muse::{
    InputScaledRmsNorm, MuseSparkForCausalLm, MuseSparkMoe, MuseSparkResidualGate,
    MuseSparkTextDecoderLayer,
};
pub use nemotron_h::{NemotronHBlock, NemotronHForCausalLm, NemotronHMixer, NemotronHMoe};
pub use opt::{OptAttention, OptConfig, OptDecoder, OptDecoderLayer, OptForCausalLm, OptModel};
pub use phi::{PhiAttention, PhiDecoderLayer, PhiForCausalLm, PhiMlp};
pub use phi3::{Phi3Attention, Phi3DecoderLayer, Phi3ForCausalLm};
pub use pixtral::{PixtralVisionConfig, PixtralVisionModel};
pub use qwen_image::{QwenImageTransformer2dConfig, QwenImageTransformer2dModel};
pub use qwen_vision::{QwenVisionConfig, QwenVisionModel, QwenVisionVersion};
pub use qwen3_vl_moe::{Qwen3VlMoeBlock, Qwen3VlMoeForCausalLm};
pub use rms_config::{
    BlockNormKind, BlockNorms, BranchScales, ConvolutionConfig, ExpertLayout, ExpertsConfig,
    LayerMixer, QueryKeyNorms, RmsConfig,
};
pub use rms_decoder::{EmbeddingsName, FinalNormName, RmsBlock, RmsForCausalLm, RmsModel};
pub use rms_layer::{FeedForwardName, RmsDecoderLayer, RmsFeedForward, SharedMlp};
pub use sd3::{Sd3Transformer2dConfig, Sd3Transformer2dModel};
pub use siglip::{SiglipVisionConfig, SiglipVisionModel};
pub use sizes::LayerNormSizes;
pub use sparse_moe::{RmsSparseMoeBlock, SparseMoeForCausalLm};
pub use starcoder2::{Starcoder2ForCausalLm, Starcoder2Mlp};
pub use t5::{T5Config, T5EncoderModel, T5ForConditionalGeneration};
pub use unet::{
    AddedConditions, TIME_IDS, Unet2dConditionConfig, Unet2dConditionModel, UnetAddition, UnetLevel,
};
pub use vae::{AutoencoderKl, AutoencoderKlConfig, AutoencoderKlEncoder};
pub use vision_tile::VisionTile;
pub use z_image::{ZImageTransformer2dConfig, ZImageTransformer2dModel};
