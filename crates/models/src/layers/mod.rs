//! The layers that architectures are made of.

mod activation;
mod attention;
mod embedding;
mod linear;
mod mlp;
mod rms_norm;
mod rope;

pub use activation::Activation;
pub use attention::{Attention, AttentionConfig, QueryPositions, SCORE_BYTES};
pub use embedding::Embedding;
pub use linear::Linear;
pub use mlp::Mlp;
pub use rms_norm::RmsNorm;
pub use rope::{Rope, Rotation};
