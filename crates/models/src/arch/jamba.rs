//! Jamba: attention without positions in one layer of eight, Mamba in the others, experts in every
//! other one. AI21 2024 (arXiv:2403.19887).

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_core::Names;

use super::mamba_fields::{MambaFields, RATES_NEGATED, inner, read_mamba};
use super::rms_config::{DEFAULTS, ExpertsConfig, LayerMixer, RmsConfig, RmsDefaults};
use super::sparse_moe::stacked_in;
use crate::architecture::Init;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField, MAX_LAYERS};
use crate::layers::{MambaNorms, Mlp, Router, announce_all, expert_activations, mixed};
use crate::{Activations, Error, PassShape};

/// Experts, a few of which each token goes to.
#[derive(Module, Debug)]
pub struct JambaMoe {
    /// `[experts, hidden]`: scores the experts.
    pub router: Router,
    /// Gated feed-forward blocks.
    pub experts: Vec<Mlp>,
}

impl JambaMoe {
    pub(super) fn new(config: &RmsConfig, experts: &ExpertsConfig, init: &Init) -> Self {
        let one = |_| config.mlp(experts.intermediate_size, init);
        Self {
            router: Router::new(config.hidden_size, experts.count, experts.routing, init),
            experts: (0..experts.count).map(one).collect(),
        }
    }

    /// Says which experts' weights a pass of `rows` tokens will ask for, if that is known before it
    /// comes to them.
    pub(super) fn announce(&self, rows: usize) {
        announce_all(&self.experts, &self.router, rows);
    }

    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        mixed(x, &self.router, &self.experts)
    }

    pub(super) fn activations(&self, pass: &PassShape) -> Activations {
        expert_activations(&self.router, &self.experts, pass)
    }
}

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        sizes: &[
            ("vocab_size", 65_536),
            ("hidden_size", 4096),
            ("intermediate_size", 14_336),
            ("num_hidden_layers", 32),
            ("num_attention_heads", 32),
        ],
        key_value_heads: Some(8),
        max_position_embeddings: 262_144,
        ..DEFAULTS
    };
    let config = RmsConfig::read(fields, &absent)?;
    let layers = config.num_hidden_layers;
    let attends = every(fields, ["attn_layer_period", "attn_layer_offset"], [8, 4], layers)?;
    let sparse = every(fields, ["expert_layer_period", "expert_layer_offset"], [2, 1], layers)?;
    let names = ["num_experts", "num_local_experts"];
    let config = config.with_experts(fields, names, (16, 2), false)?;
    let norms = MambaNorms { epsilon: config.rms_norm_eps, is_weighted: true };
    let inner = inner(fields, "mamba_expand", config.hidden_size)?;
    // One expert is an MLP.
    let experts = config.experts.filter(|experts| experts.count > 1 && sparse.contains(&true));
    Ok(RmsConfig {
        mixers: attends.into_iter().map(LayerMixer::attends).collect(),
        mamba: Some(read_mamba(fields, &MAMBA_FIELDS, &config, inner, Some(norms))?),
        rotated_layers: vec![false; layers],
        sparse_layers: sparse.into_iter().map(|sparse| sparse && experts.is_some()).collect(),
        experts,
        ..config
    })
}

/// Of each layer, whether it is one of those that come once in a period, behind an offset.
fn every(
    fields: &Fields<'_>,
    [period, offset]: [&str; 2],
    [absent, behind]: [usize; 2],
    layers: usize,
) -> Result<Vec<bool>, Error> {
    let every = fields.size_or(period, absent, MAX_LAYERS)?;
    let from = match fields.get(offset).map(|value| value.as_u64()) {
        None => behind,
        Some(Some(0)) => 0,
        Some(_) => fields.size(offset, MAX_LAYERS)?,
    };
    match from < every {
        true => Ok((0..layers).map(|layer| layer % every == from).collect()),
        false => Err(fields.refuse(offset, format!("it must be below {period}, {every}"))),
    }
}

/// The rules for experts as transformers stacks them.
pub(super) fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
    let layers = ["gate_proj", "up_proj", "down_proj"];
    stacked_in(names, r"\.feed_forward", ".feed_forward", layers, experts.count)
}

const MAMBA_FIELDS: MambaFields = MambaFields {
    state: "mamba_d_state",
    rank: "mamba_dt_rank",
    taps: "mamba_d_conv",
    conv_bias: "mamba_conv_bias",
    bias: "mamba_proj_bias",
};

pub(super) const JAMBA: &[KnownField] = &[
    ("attn_layer_offset", Read),
    ("attn_layer_period", Read),
    ("expert_layer_offset", Read),
    ("expert_layer_period", Read),
    ("hidden_size", Read),
    ("intermediate_size", Read),
    (RATES_NEGATED, Read),
    ("mamba_conv_bias", Read),
    ("mamba_d_conv", Read),
    ("mamba_d_state", Read),
    ("mamba_dt_rank", Read),
    ("mamba_expand", Read),
    ("mamba_proj_bias", Read),
    ("max_position_embeddings", Read),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("num_key_value_heads", Read),
    ("rms_norm_eps", Read),
    ("sliding_window", Effect::UNSET),
    // With which kernels, and what of logits is computed; or said again.
    ("layer_types", Harmless),
    ("layers_block_type", Harmless),
    ("layers_num_experts", Harmless),
    ("mamba_inner_layernorms", Effect::ON),
    ("n_ctx", Harmless),
    ("num_logits_to_keep", Harmless),
    ("calc_logits_for_entire_prompt", Harmless),
    ("use_associative_scan", Harmless),
    ("use_mamba_kernels", Harmless),
    ("use_mambapy", Harmless),
];
