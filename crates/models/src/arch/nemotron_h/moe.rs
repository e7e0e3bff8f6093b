//! Experts of two matrices each, one of them for all tokens, and perhaps narrower than the residual
//! stream.

use burn::module::Module;
use burn::tensor::Tensor;

use super::super::arcee::ArceeMlp;
use super::super::rms_config::{ExpertsConfig, RmsConfig};
use crate::architecture::Init;
use crate::layers::{
    Expert, Linear, Router, announce_all, entered, expert_activations, route, spread,
};
use crate::{Activations, PassShape};

/// Experts, a few of which each token goes to, and one that all go to.
#[derive(Module, Debug)]
pub struct NemotronHMoe {
    /// `[experts, hidden]`: scores the experts.
    pub gate: Router,
    /// `[latent, hidden]`: what the experts take, where they are not as wide as the residual
    /// stream.
    pub fc1_latent_proj: Option<Linear>,
    /// Feed-forward blocks.
    pub experts: Vec<ArceeMlp>,
    /// `[hidden, latent]`.
    pub fc2_latent_proj: Option<Linear>,
    /// The one that all tokens go to.
    pub shared_experts: ArceeMlp,
}

impl NemotronHMoe {
    pub(super) fn new(config: &RmsConfig, experts: &ExpertsConfig, init: &Init) -> Self {
        let (hidden, latent) = (config.hidden_size, experts.latent_size);
        let mlp = |sizes, bias| ArceeMlp::of(sizes, bias, config.activation, init);
        let sizes = [latent.unwrap_or(hidden), experts.intermediate_size];
        let shared = experts.shared_intermediate_size.unwrap_or(experts.intermediate_size);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, config.mlp_bias, init);
        Self {
            gate: Router::new(hidden, experts.count, experts.routing, init).corrected(init),
            fc1_latent_proj: latent.map(|latent| linear(hidden, latent)),
            experts: (0..experts.count).map(|_| mlp(sizes, false)).collect(),
            fc2_latent_proj: latent.map(|latent| linear(latent, hidden)),
            shared_experts: mlp([hidden, shared], config.mlp_bias),
        }
    }

    /// Says which experts' weights a pass of `rows` tokens will ask for, if that is known before it
    /// comes to them.
    pub(super) fn announce(&self, rows: usize) {
        announce_all(&self.experts, &self.gate, rows);
    }

    /// `[batch, tokens, hidden]` f32 to the same.
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = entered(x, &self.gate.weight);
        let [batch, tokens, hidden] = x.dims();
        let rows = x.clone().reshape([batch * tokens, hidden]);
        let routed = route(rows.clone(), &self.gate, None);
        let projected = |layer: &Option<Linear>, x| match layer {
            Some(layer) => layer.forward(x),
            None => x,
        };
        let mixed = spread(projected(&self.fc1_latent_proj, rows), routed, false, &self.experts);
        let mixed = projected(&self.fc2_latent_proj, mixed).reshape([batch, tokens, hidden]);
        mixed + Expert::forward(&self.shared_experts, x)
    }

    /// What it holds at most, besides the residual stream.
    pub(super) fn activations(&self, pass: &PassShape) -> Activations {
        let hidden = self.gate.hidden() as u64;
        let latent = self.fc1_latent_proj.as_ref().map_or(0, |layer| layer.widths()[0] as u64);
        let most = expert_activations(&self.gate, &self.experts, pass)
            .and(Activations::values(pass.rows() * 3 * latent));
        // The input of the shared one waits for the others, and what these make for it.
        let kept = Activations::values(pass.rows() * 2 * hidden);
        most.or(Expert::activations(&self.shared_experts, pass)).and(kept)
    }
}
