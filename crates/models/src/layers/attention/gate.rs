//! What the results of attention are multiplied by.

use burn::tensor::Tensor;
use burn::tensor::activation::{relu, sigmoid};

use crate::layers::Linear;

/// A gate of attention: a function of a projection of attention's input multiplies what comes of
/// each head ([Qiu et al., 2025](https://arxiv.org/abs/2505.06708)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionGate {
    /// Whose the projection is.
    pub projection: GateProjection,
    /// What is made of what it gives.
    pub function: GateFunction,
    /// Whether it gives one number for each head, rather than one for each element.
    pub of_heads: bool,
}

/// Whose projection a gate is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateProjection {
    /// That of queries, which gives of each head its query, then its gate.
    Queries,
    /// One of its own, `gate_proj`.
    Gate,
    /// The same with the name `g_proj`.
    G,
}

/// What is made of what the projection of a gate gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateFunction {
    /// `1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `ln(1 + eˣ)`.
    Softplus,
}

impl AttentionGate {
    /// `mixed`, `[batch, tokens, heads · head_dim]` f32, times the gate that is made of what a
    /// projection gave.
    pub(super) fn applied(
        &self,
        projected: Tensor<3>,
        mixed: Tensor<3>,
        heads: usize,
    ) -> Tensor<3> {
        let gate = match self.function {
            GateFunction::Sigmoid => sigmoid(projected),
            GateFunction::Softplus => relu(projected.clone()) + projected.abs().neg().exp().log1p(),
        };
        let mixed = mixed.to_device(&gate.device());
        if !self.of_heads {
            return mixed * gate;
        }
        let [batch, tokens, width] = mixed.dims();
        let mixed = mixed.reshape([batch, tokens, heads, width / heads]);
        (mixed * gate.unsqueeze_dim::<4>(3)).reshape([batch, tokens, width])
    }

    /// Values of a token that a projection of its own gives, with those that are made of them.
    pub(super) fn values(projection: Option<&Linear>) -> u64 {
        projection.map_or(0, |projection| 4 * projection.widths()[0] as u64)
    }
}
