//! The experts of Muse Spark, narrower than the residual stream, with a norm behind each.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};

use super::super::rms_config::RmsConfig;
use crate::architecture::Init;
use crate::layers::{
    Expert, Linear, Mlp, RmsNorm, Router, announce_all, entered, expert_activations, route, spread,
    unit_rms_norm, zeros,
};
use crate::{Activations, PassShape};

/// `y / sqrt(mean(y²) + epsilon)` over the last dimension of `y = x · (1 + weight)`, in f32.
#[derive(Module, Debug)]
pub struct InputScaledRmsNorm {
    /// `[hidden]`; in f32, bf16 or f16.
    pub weight: Param<Tensor<1>>,
    epsilon: f64,
}

impl InputScaledRmsNorm {
    pub(super) fn new(hidden: usize, epsilon: f64, init: &Init) -> Self {
        Self { weight: zeros(hidden, &init.device), epsilon }
    }

    /// `[batch, tokens, hidden]` f32 to the same.
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = entered(x, &self.weight);
        let scale = self.weight.val().cast(DType::F32).add_scalar(1.0).to_device(&x.device());
        unit_rms_norm(x * scale.unsqueeze::<3>(), self.epsilon)
    }
}

/// Experts, a few of which each token goes to.
#[derive(Module, Debug)]
pub struct MuseSparkMoe {
    /// `[experts, hidden]`: scores the experts.
    pub gate: Router,
    /// `[latent, hidden]`: what the experts take.
    pub pre_expert_proj: Linear,
    /// `[latent]`: of that.
    pub pre_expert_norm: RmsNorm,
    /// Gated feed-forward blocks.
    pub experts: Vec<Mlp>,
    /// `[latent]`: of what any of them gives.
    pub post_expert_norm: InputScaledRmsNorm,
    /// `[hidden, latent]`.
    pub post_expert_proj: Linear,
    /// What scores of experts are multiplied by.
    score_scale: f64,
}

/// One of them with the norm that all share.
#[derive(Clone, Copy)]
struct Normed<'a>(&'a Mlp, &'a InputScaledRmsNorm);

impl Expert for Normed<'_> {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.1.forward(self.0.forward(x))
    }

    fn layers(&self) -> impl Iterator<Item = &Linear> {
        self.0.layers()
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let width = self.0.down_proj.widths()[0] as u64;
        self.0.activations(pass).and(Activations::values(pass.rows() * 2 * width))
    }
}

impl MuseSparkMoe {
    pub(super) fn new(config: &RmsConfig, init: &Init) -> Self {
        let experts = config.experts.expect("of a Muse Spark");
        let (hidden, latent) = (config.hidden_size, experts.latent_size.unwrap_or_default());
        let inner = experts.intermediate_size;
        let epsilon = config.post_norm_eps.unwrap_or(config.rms_norm_eps);
        Self {
            gate: Router::new(hidden, experts.count, experts.routing, init).corrected(init),
            pre_expert_proj: Linear::new(hidden, latent, false, init),
            pre_expert_norm: config.norm(latent, init),
            experts: (0..experts.count)
                .map(|_| Mlp::new(latent, inner, false, config.activation, init))
                .collect(),
            post_expert_norm: InputScaledRmsNorm::new(latent, epsilon, init),
            post_expert_proj: Linear::new(latent, hidden, false, init),
            score_scale: config.logit_scale.unwrap_or(1.0),
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
        let rows = x.reshape([batch * tokens, hidden]);
        let routed = route(rows.clone() * self.score_scale, &self.gate, None);
        let latent = self.pre_expert_norm.forward(self.pre_expert_proj.forward(rows));
        let mixed = spread(latent, routed, false, &self.normed());
        self.post_expert_proj.forward(mixed).reshape([batch, tokens, hidden])
    }

    fn normed(&self) -> Vec<Normed<'_>> {
        self.experts.iter().map(|expert| Normed(expert, &self.post_expert_norm)).collect()
    }

    /// What it holds at most, besides the residual stream.
    pub(super) fn activations(&self, pass: &PassShape) -> Activations {
        let [latent, hidden] = self.pre_expert_proj.widths().map(|width| width as u64);
        expert_activations(&self.gate, &self.normed(), pass)
            .and(Activations::values(pass.rows() * (hidden + 3 * latent)))
    }
}
