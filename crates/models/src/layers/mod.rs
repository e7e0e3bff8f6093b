//! The layers that architectures are made of.

mod activation;
mod attention;
mod axial_rope;
mod block_indexer;
mod causal_conv1d;
mod channel_norm;
mod chosen_attention;
mod compressed_attention;
mod compressor;
mod conv1d;
mod conv2d;
mod convolution;
mod delta_attention;
mod either;
mod embedding;
mod entered;
mod experts;
mod feed_forward;
mod fused_attention;
mod fused_mlp;
mod gated_delta_net;
mod gelu_feed_forward;
mod group_norm;
mod hyper_connection;
mod indexer;
mod joined;
mod joint_attention;
mod latent_attention;
mod layer_norm;
mod learned_frequencies;
mod lightning_attention;
mod linear;
mod mamba;
mod mamba2;
mod mlp;
mod modulation;
mod norm;
mod norm_gate;
mod parameterless;
mod picture_attention;
mod picture_norm;
mod query_scaling;
mod resnet_block;
mod rms_norm;
mod rms_norm_gated;
mod rope;
mod rotation;
mod router;
mod shared_attention;
mod short_convolution;
mod sparse_mixer;
mod time_text_embedding;
mod timestep;

pub use activation::Activation;
pub(crate) use activation::tanh;
pub use attention::{
    Attention, AttentionConfig, AttentionGate, GateFunction, GateProjection, QueryPositions,
    SCORE_BYTES,
};
pub(crate) use attention::{
    DistanceBuckets, PositionBias, Scores, attend, attend_all, attend_causal, attend_prompt,
    attend_with,
};
pub(crate) use axial_rope::{AxialRope, axis_widths};
pub use block_indexer::{BlockIndexer, BlockIndexerConfig};
pub use causal_conv1d::CausalConv1d;
pub use channel_norm::ChannelNorm;
pub(crate) use chosen_attention::gathered;
pub use compressed_attention::{
    CompressedAttention, CompressedAttentionConfig, EntryIndexerConfig, SeenBlocks,
};
pub use conv1d::Conv1d;
pub use conv2d::{Conv2d, Resampler};
pub(crate) use convolution::UNPACKED_BYTES;
pub use delta_attention::{DeltaAttention, DeltaAttentionConfig, DeltaAttentionLayout};
pub use either::Either;
pub(crate) use either::either;
pub use embedding::Embedding;
pub(crate) use entered::{entered, fetched, fetched_rows};
pub(crate) use experts::{
    Expert, announce_all, beside_activations, expert_activations, mixed, mixed_beside,
    mixed_chosen_beside, mixed_with, route, spread,
};
pub use feed_forward::FeedForward;
pub(crate) use feed_forward::{two_layer_activations, two_layers, two_layers_of_pixels};
pub use fused_attention::{FusedAttention, FusedAttentionConfig};
pub use fused_mlp::FusedMlp;
pub(crate) use fused_mlp::{fused, fused_activations};
pub use gated_delta_net::{DeltaLayout, GatedDeltaNet, GatedDeltaNetConfig};
pub use gelu_feed_forward::GeluFeedForward;
pub use group_norm::GroupNorm;
pub use hyper_connection::{HyperConnection, HyperConnectionConfig};
pub use indexer::{Indexer, IndexerConfig};
pub(crate) use joined::joined;
pub use joint_attention::JointAttention;
pub(crate) use joint_attention::JointAttentionConfig;
pub use latent_attention::{
    HeadMatrices, LatentAttention, LatentAttentionConfig, LatentChoice, LatentGate,
};
pub use layer_norm::LayerNorm;
pub use learned_frequencies::LearnedFrequencies;
pub use lightning_attention::{LightningAttention, LightningAttentionConfig};
pub use linear::Linear;
pub(crate) use linear::{lazy, ones, three, two, zeros};
pub use mamba::{MambaConfig, MambaMixer, MambaNorms};
pub use mamba2::{Mamba2Config, Mamba2Mixer, Mamba2Norm};
pub use mlp::{Mlp, MlpClamp};
pub(crate) use mlp::{gated_activations, gated_down};
pub use modulation::{AdaLayerNorm, SHIFT_FIRST};
pub(crate) use modulation::{
    Modulation, Run, add_share, add_share_runs, modulation_parts, names_with_shift_first,
    two_branches,
};
pub use norm::Norm;
pub use norm_gate::NormGate;
pub use parameterless::Parameterless;
pub(crate) use picture_attention::{attend_layers, attend_tokens, heads, heads_with, normed_heads};
pub use picture_norm::{PictureNorm, PictureNormKind};
pub use query_scaling::QueryScaling;
pub use resnet_block::{ResnetBlock2d, ResnetSizes};
pub use rms_norm::RmsNorm;
pub(crate) use rms_norm::unit_rms_norm;
pub use rms_norm_gated::RmsNormGated;
pub use rope::{QueryGrowth, Rope};
pub use rotation::Rotation;
pub(crate) use rotation::rotated;
pub(crate) use router::correction_of;
pub use router::{ExpertGroups, Router, Routing, Shares};
pub use shared_attention::{KeyValueSource, SharedAttention, SharedAttentionConfig};
pub use short_convolution::ShortConvolution;
pub use time_text_embedding::TimeTextEmbedding;
pub(crate) use timestep::Sinusoids;
pub use timestep::TimestepEmbedding;
