//! Mixtral: Mistral's blocks with a few large experts in place of the MLP. Jiang et al. 2024
//! (arXiv:2401.04088). MiniMax-M2 has its experts too, and more of them; so have Phi-3.5-MoE and
//! MiniMax-01, which chooses them as Mixtral does.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use outsize_core::Names;

use super::expert_fields::EXPERTS;
use super::rms_config::{DEFAULTS, ExpertsConfig, FIELDS, RmsConfig, RmsDefaults};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{FeedForwardName, RmsDecoderLayer, RmsFeedForward};
use super::sparse_moe::stacked;
use super::{minimax_m2, phimoe};
use crate::architecture::Init;
use crate::config::Effect::{self, Read};
use crate::config::{Fields, KnownField, sliding_window, uniform_windows};
use crate::layers::{
    Activation, Expert, Linear, Router, Shares, announce_all, correction_of, expert_activations,
    gated_activations, gated_down, mixed_with, zeros,
};
use crate::{Activations, Error, PassShape};

/// A Mixtral with its language-modelling head.
pub type MixtralForCausalLm = RmsForCausalLm<RmsDecoderLayer<MixtralMoe>>;

/// Experts, a few of which each token goes to.
#[derive(Module, Debug)]
pub struct MixtralMoe {
    /// `[experts, hidden]`: scores the experts.
    pub gate: Router,
    /// `[experts]`: added to the experts' shares while they are chosen, where there is one.
    pub e_score_correction_bias: Option<Param<Tensor<1>>>,
    /// Gated feed-forward blocks.
    pub experts: Vec<MixtralExpert>,
}

/// A gated feed-forward block.
#[derive(Module, Debug)]
pub struct MixtralExpert {
    /// `[intermediate, hidden]`: the gate.
    pub w1: Linear,
    /// `[hidden, intermediate]`.
    pub w2: Linear,
    /// `[intermediate, hidden]`: what goes through the gate.
    pub w3: Linear,
    #[module(skip)]
    activation: Activation,
}

impl MixtralExpert {
    /// A block without storage.
    pub fn new(hidden: usize, inner: usize, activation: Activation, init: &Init) -> Self {
        Self {
            w1: Linear::new(hidden, inner, false, init),
            w2: Linear::new(inner, hidden, false, init),
            w3: Linear::new(hidden, inner, false, init),
            activation,
        }
    }
}

impl Expert for MixtralExpert {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        gated_down([&self.w1, &self.w3], &self.w2, self.activation, x)
    }

    fn layers(&self) -> impl Iterator<Item = &Linear> {
        [&self.w1, &self.w3, &self.w2].into_iter()
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        gated_activations(&self.w1, pass)
    }
}

impl RmsFeedForward for MixtralMoe {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("mixtral", "Mixtral"), ("minimax_m2", "MiniMaxM2"), ("phimoe", "Phimoe")];
    const NAME: FeedForwardName = FeedForwardName::BlockSparseMoe;

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "minimax_m2" => &[minimax_m2::MINIMAX_M2, EXPERTS, FIELDS],
            "phimoe" => &[phimoe::PHIMOE, FIELDS],
            _ => &[MIXTRAL, EXPERTS, FIELDS],
        }
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        match model_type {
            "minimax_m2" => return minimax_m2::read(fields),
            "phimoe" => return phimoe::read(fields),
            _ => {}
        }
        let absent = RmsDefaults {
            key_value_heads: Some(8),
            max_position_embeddings: 4096 * 32,
            rms_norm_eps: 1e-5,
            rope_theta: 1e6,
            ..DEFAULTS
        };
        let config = RmsConfig::read(fields, &absent)?.with_rope(fields)?;
        let names = ["num_local_experts", "num_experts"];
        let config = config.with_experts(fields, names, (8, 2), true)?;
        let window = match fields.has("sliding_window") {
            true => sliding_window(fields, 0)?,
            false => None,
        };
        let windows = uniform_windows(fields, "mixtral", window, config.num_hidden_layers)?;
        let rope_interleaved = fields.flag_or("rope_interleaved", false)?;
        Ok(RmsConfig { windows, rope_interleaved, ..config })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let experts = config.experts.expect("the configuration of a model with experts");
        let (hidden, inner) = (config.hidden_size, experts.intermediate_size);
        let one = |_| MixtralExpert::new(hidden, inner, config.activation, init);
        Self {
            gate: Router::new(hidden, experts.count, experts.routing, init),
            e_score_correction_bias: (experts.routing.shares == Shares::Sigmoid)
                .then(|| zeros(experts.count, &init.device)),
            experts: (0..experts.count).map(one).collect(),
        }
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        stacked(names, r"\.block_sparse_moe", ["w1", "w3", "w2"], experts.count)?
            .or_rename(r"\.block_sparse_moe\.gate\.", ".mlp.gate.")?
            // Of Phi-3.5-MoE.
            .or_rename(r"\.block_sparse_moe\.gate\.", ".mlp.router.")?
            .or_rename(
                r"\.block_sparse_moe\.e_score_correction_bias$",
                ".mlp.e_score_correction_bias",
            )
    }

    fn announce(&self, rows: usize) {
        announce_all(&self.experts, &self.gate, rows);
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let correction = self.e_score_correction_bias.as_ref().map(correction_of);
        mixed_with(x, &self.gate, correction, &self.experts)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        expert_activations(&self.gate, &self.experts, pass)
    }
}

const MIXTRAL: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    ("max_window_layers", Effect::UNSET),
    ("rope_interleaved", Read),
    ("sliding_window", Read),
    ("use_sliding_window", Effect::OFF),
];
