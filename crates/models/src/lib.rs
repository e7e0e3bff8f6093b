//! Well-known architectures as Burn modules, read from a Hugging Face `config.json`.
//!
//! ```
//! use outsize_models::{CacheOptions, KvCache, ModelConfig, presets};
//!
//! # fn main() -> Result<(), outsize_models::Error> {
//! let config = ModelConfig::from_json(presets::config("llama-demo")?)?;
//! assert_eq!(config.parameter_count(), 254_313_472); // shapes only: no parameter has storage
//! let options = CacheOptions::new(2048);
//! assert_eq!(KvCache::bytes(config.cache(), &options), 2 * 16 * 8 * 2048 * 64 * 4);
//! # Ok(())
//! # }
//! ```
//!
//! Parameters are lazy and carry the checkpoint's own names and shapes (`[out, in]` for a linear
//! layer), so a checkpoint loads tensor by tensor with no renaming and no transposing. Weights may
//! be kept in bf16, f16 or f32; activations and all arithmetic are f32.
#![forbid(unsafe_code)]

mod any_decoder;
pub mod arch;
mod architecture;
mod batch;
mod blocks;
mod cache_options;
mod cache_spec;
mod chosen_tokens;
mod component;
mod config;
mod decoder;
mod dispatched_decoder;
mod error;
mod full_gradients;
mod head_gradients;
mod head_scores;
mod headless;
mod image_features;
mod kv_cache;
mod layers;
mod learning_memory;
mod logits;
mod loss;
mod low_rank_gradients;
mod model_config;
mod modules;
mod observed_blocks;
mod pass;
mod pass_images;
mod pass_shape;
mod picture_size;
mod picture_work;
pub mod presets;
mod random;
mod registry;
mod rewriting;
mod stored_layout;
mod tree;
mod vision_model;
mod weights;

pub use architecture::{Architecture, Init, MultimodalNames};
pub use batch::Batch;
pub use blocks::{BlockInputs, Blocks, Residual};
pub use cache_options::{CacheOptions, KvDtype, WhenFull};
pub use cache_spec::{AttentionCache, CacheLayer, CacheSpec, EntryCache, RecurrentCache};
pub use component::{Component, ComponentConfig};
pub use config::{
    Effect, Fields, IntegerGroups, KnownField, RopeConfig, RopeScaling, compressed_integers,
};
pub use decoder::{Decoder, DecoderArchitecture, Head};
pub use dispatched_decoder::DispatchedDecoder;
pub use error::Error;
pub use full_gradients::BatchLoss;
pub use head_gradients::Labels;
pub use head_scores::{Scores, Scoring};
pub use image_features::{FIRST_IMAGE_ID, GridPositions, ImageFeatures, RotaryAxis};
pub use kv_cache::{KvCache, MAX_BATCH, MAX_CONTEXT, RowPrefix};
pub use layers::{
    Activation, Attention, AttentionConfig, Conv1d, Conv2d, Either, Embedding, ExpertGroups,
    FeedForward, FusedAttention, FusedAttentionConfig, FusedMlp, GroupNorm, HeadMatrices,
    LatentAttention, LatentAttentionConfig, LayerNorm, Linear, Mlp, QueryPositions, ResnetBlock2d,
    ResnetSizes, RmsNorm, Rope, Rotation, Router, Routing, SCORE_BYTES, Shares,
};
pub use logits::{Logits, MOST_TOP_TOKENS};
pub use loss::next_token_loss;
pub use low_rank_gradients::LowRankGradients;
pub use model_config::ModelConfig;
pub use modules::{ExpertStack, ModuleKind, ModuleSpec};
pub use observed_blocks::AfterBlock;
pub use outsize_core::Access;
pub use outsize_kernels::ActivationDtype;
pub use outsize_kernels::attention::Alibi;
pub use pass::Pass;
pub use pass_shape::{Activations, PassShape};
pub use picture_size::{PicturePass, PictureSize, WeightUse};
pub use random::{RANDOM_BLOCK, RandomWeights, expert_table};
pub use registry::model_types;
pub use rewriting::{Rewriting, rewriting};
pub use vision_model::{ImageScaling, ImageSpelling, PatchLayout, PatchOrder, VisionModel};
pub use weights::{WeightKind, WeightSpec};
