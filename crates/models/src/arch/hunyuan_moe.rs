//! Hunyuan with experts beside a shared one. Tencent Hunyuan Team 2025
//! (<https://github.com/Tencent-Hunyuan/Hunyuan-A13B>).

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_core::Names;
use serde_json::Value;

use super::expert_fields::EXPERTS;
use super::hunyuan::{self, HUNYUAN};
use super::rms_config::{ExpertsConfig, FIELDS, RmsConfig, field_of};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use super::sparse_moe::stacked;
use crate::architecture::Init;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField, MAX_EXPERTS};
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

impl RmsFeedForward for HunyuanMoe {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("hunyuan_v1_moe", "HunYuanMoEV1")];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[MOE, HUNYUAN, EXPERTS, FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let config = hunyuan::read(fields)?;
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

/// How many experts each token goes to, and the field that says it: one number, or the same number
/// for each layer.
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

const MOE: &[KnownField] = &[
    // As wide as the others, whatever is said beside `intermediate_size`.
    ("moe_intermediate_size", Harmless),
    ("moe_layer_num_skipped", Effect::ZERO),
    ("moe_topk", Read),
    ("num_shared_expert", Harmless),
    ("use_mixed_mlp_moe", Effect::ON),
];
