//! What becomes of the products of queries and keys.

use burn::tensor::Tensor;

use super::position_bias::PositionBias;
use crate::ActivationDtype;

/// What becomes of the products of queries and keys before their softmax.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scores<'a> {
    /// What they may be products of.
    pub compute: ActivationDtype,
    /// What they are multiplied by, if not by `1 / √head_dim`.
    pub scale: Option<f64>,
    /// What they stay below in magnitude then, if anything.
    pub softcap: Option<f64>,
    /// What is added then.
    pub bias: Option<&'a PositionBias>,
    /// `[heads]` f32: what each head's softmax has besides.
    pub sinks: Option<&'a Tensor<1>>,
}
