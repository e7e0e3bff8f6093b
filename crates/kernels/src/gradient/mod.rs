//! Backward passes, over slices.
//!
//! All arithmetic is f32, and sums are in an order that does not depend on the number of threads.

mod activation;
mod attention;
mod cross_entropy;
mod norm;

pub use crate::matmul::{input_gradient_into, weight_gradient_into};
pub use activation::{activation_gradient_in_place, gate_gradients_in_place};
pub use attention::{AttentionGradients, AttentionOperands, attention_gradients_into};
pub use cross_entropy::{cross_entropy, cross_entropy_gradient_in_place};
pub use norm::norm_gradients_into;
