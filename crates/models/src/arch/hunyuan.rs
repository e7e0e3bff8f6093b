//! Hunyuan: Llama's blocks with norms of each head of queries and keys once these are rotated; or with experts beside a shared
//! one. Tencent Hunyuan Team 2025 (<https://github.com/Tencent-Hunyuan/Hunyuan-A13B>).

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_core::Names;
use serde_json::Value;

use super::expert_fields::EXPERTS;
use super::rms_config::{
    DEFAULTS, ExpertsConfig, FIELDS, QueryKeyNorms, RmsConfig, RmsDefaults, field_of,
};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use super::sparse_moe::stacked;
use crate::architecture::Init;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{Fields, KnownField, MAX_EXPERTS, ROPE, RopeConfig, layer_windows, theta};
use crate::config::{RopeScaling, check};
use crate::layers::{Mlp, Router, announce_all, beside_activations, mixed_beside};
use crate::{Activations, Error, PassShape};

/// A Hunyuan with experts, with its language-modelling head.
pub type HunyuanMoeForCausalLm = RmsForCausalLm<RmsDecoderLayer<HunyuanMoe>>;

/// Experts, a few of which each token goes to, and one that all go to.
#[derive(Module, Debug)]
pub struct HunyuanMoe {
    /// Scores the experts.
    pub gate: HunyuanGate,
    /// Gated feed-forward blocks.
    pub experts: Vec<Mlp>,
    /// One that all tokens go to.
    pub shared_mlp: Mlp,
}

/// Scores the experts.
#[derive(Module, Debug)]
pub struct HunyuanGate {
    /// `[experts, hidden]`.
    pub wg: Router,
}

/// Reads what models with and without experts have.
pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &RmsDefaults { rms_norm_eps: 1e-5, ..DEFAULTS })?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    Ok(RmsConfig {
        rope: rope(fields, &config)?,
        query_key_norms: Some(QueryKeyNorms::EachHeadRotated),
        ..config.with_attention_bias(fields)?
    })
}

/// The rotary embedding. One of the type "dynamic" with an `alpha` has a greater base, whatever the text's length
/// ([bloc97, 2023](https://www.reddit.com/r/LocalLLaMA/comments/14lz7j5)).
fn rope(fields: &Fields<'_>, config: &RmsConfig) -> Result<RopeConfig, Error> {
    let around = config.rope_context(fields);
    let base = theta(fields, "rope_theta", around.theta)?;
    let object = match fields.object("rope_scaling")? {
        Some(object) => Some(object),
        None => fields.object("rope_parameters")?,
    };
    let Some(object) = object else {
        return Ok(RopeConfig { theta: base, scaling: RopeScaling::Default });
    };
    let name = if object.get("rope_type").is_some() { "rope_type" } else { "type" };
    let alpha = object.number_or("alpha", 0.0)?;
    if object.text(name)? != Some("dynamic") || alpha == 0.0 {
        return RopeConfig::read_object(&object, &around, base, &[ALPHA, ROPE]);
    }
    check(&object, &[ALPHA, ROPE])?;
    let alpha = object.number_within("alpha", 1e-6, 1e6)?;
    let width = config.head_dim as f64;
    // The exponent is head_dim / (head_dim - 2).
    if config.head_dim <= 2 {
        let expected = "the type \"dynamic\" needs heads wider than 2".to_owned();
        return Err(fields.refuse("head_dim", expected));
    }
    let theta = theta(&object, "rope_theta", base)? * alpha.powf(width / (width - 2.0));
    Ok(RopeConfig { theta, scaling: RopeScaling::Default })
}

impl RmsFeedForward for HunyuanMoe {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("hunyuan_v1_moe", "HunYuanMoEV1")];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[MOE, HUNYUAN, EXPERTS, FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let config = read(fields)?;
        let field = field_of(fields, ["num_experts", "num_local_experts"])?;
        let count = (field, fields.size_or(field, 1, MAX_EXPERTS)?);
        let per_token = per_token(fields, config.num_hidden_layers)?;
        let mut config = config.with_experts_of(fields, count, per_token, true)?;
        if let Some(experts) = &mut config.experts {
            experts.shared_intermediate_size = Some(config.intermediate_size);
        }
        Ok(config)
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let experts = config.experts.expect("the configuration of a model with experts");
        let one = |_| config.mlp(experts.intermediate_size, init);
        let wg = Router::new(config.hidden_size, experts.count, experts.routing, init);
        Self {
            gate: HunyuanGate { wg },
            experts: (0..experts.count).map(one).collect(),
            shared_mlp: config.mlp(config.intermediate_size, init),
        }
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        stacked(names, r"\.mlp", ["gate_proj", "up_proj", "down_proj"], experts.count)
    }

    fn announce(&self, rows: usize) {
        announce_all(&self.experts, &self.gate.wg, rows);
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        mixed_beside(x, Some(&self.shared_mlp), &self.gate.wg, None, &self.experts)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        beside_activations(Some(&self.shared_mlp), &self.gate.wg, &self.experts, pass)
    }
}

/// How many experts each token goes to, and the field that says it: one number, or the same number for each layer.
fn per_token(fields: &Fields<'_>, layers: usize) -> Result<(&'static str, usize), Error> {
    let field = field_of(fields, ["moe_topk", "num_experts_per_tok"])?;
    let Some(Value::Array(all)) = fields.get(field) else {
        return Ok((field, fields.size_or(field, 1, MAX_EXPERTS)?));
    };
    let first = all.first().and_then(Value::as_u64);
    let is_same = all.iter().all(|one| one.as_u64() == first) && all.len() >= layers;
    let count = first.filter(|&count| is_same && (1..=MAX_EXPERTS as u64).contains(&count));
    let count = count.ok_or_else(|| {
        let expected =
            format!("a list must have the same whole number for each of {layers} layers");
        fields.refuse(field, expected)
    })?;
    Ok((field, count as usize))
}

/// Of the object of the rotary embedding.
const ALPHA: &[KnownField] = &[("alpha", Read)];

pub(super) const HUNYUAN: &[KnownField] = &[
    ("attention_bias", Read),
    ("attention_head_dim", Harmless),
    ("cla_share_factor", Harmless),
    ("eod_token_id", Harmless),
    ("norm_type", Only(&["\"rms\"", "\"hf_rms\""])),
    ("use_cla", Effect::OFF),
    ("use_qk_norm", Effect::ON),
    ("use_rotary_pos_emb", Effect::ON),
];

pub(super) const DENSE: &[KnownField] = &[("hidden_act", Read), ("mlp_bias", Effect::OFF)];

const MOE: &[KnownField] = &[
    // As wide as the others, whatever is said beside `intermediate_size`.
    ("moe_intermediate_size", Harmless),
    ("moe_layer_num_skipped", Effect::ZERO),
    ("moe_topk", Read),
    ("num_shared_expert", Harmless),
    ("use_mixed_mlp_moe", Effect::ON),
];
