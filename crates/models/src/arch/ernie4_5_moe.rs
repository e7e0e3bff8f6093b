//! ERNIE 4.5 with experts beside shared ones in most layers, which are chosen with a bias.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use outsize_core::Names;

use super::ernie4_5::{ABSENT, read_both};
use super::expert_fields::EXPERTS;
use super::rms_config::{ExpertsConfig, FIELDS, RmsConfig, RmsDefaults, field_of};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use super::sparse_moe::stacked;
use crate::architecture::Init;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{Fields, KnownField, MAX_EXPERTS, MAX_INTERMEDIATE, MAX_LAYERS};
use crate::layers::{
    Either, Mlp, Router, announce_all, beside_activations, correction_of, lazy, mixed_beside,
};
use crate::{Activations, Error, PassShape};

/// An ERNIE 4.5 with experts, with its language-modelling head.
pub type ErnieMoeForCausalLm = RmsForCausalLm<RmsDecoderLayer<Either<Mlp, ErnieSparseMoeBlock>>>;

/// Experts, a few of which each token goes to, and one that all go to.
#[derive(Module, Debug)]
pub struct ErnieSparseMoeBlock {
    /// `[experts, hidden]`: scores the experts.
    pub gate: Router,
    /// What is added to the experts' shares while they are chosen.
    pub moe_statics: ErnieMoeStatics,
    /// Gated feed-forward blocks.
    pub experts: Vec<Mlp>,
    /// As wide as all shared experts together.
    pub shared_experts: Option<Mlp>,
}

/// What is added to the experts' shares while they are chosen.
#[derive(Module, Debug)]
pub struct ErnieMoeStatics {
    /// `[1, experts]`.
    pub e_score_correction_bias: Param<Tensor<2>>,
}

impl RmsFeedForward for ErnieSparseMoeBlock {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("ernie4_5_moe", "Ernie4_5_Moe")];

    fn has_more_layers(_: &str) -> bool {
        true
    }

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[ERNIE4_5_MOE, EXPERTS, FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let absent = RmsDefaults { key_value_heads: Some(4), ..ABSENT };
        let config = read_both(fields, &absent)?;
        let field = field_of(fields, ["moe_num_experts", "num_experts", "num_local_experts"])?;
        let count = (field, fields.size_or(field, 64, MAX_EXPERTS)?);
        let field = field_of(fields, ["moe_k", "num_experts_per_tok"])?;
        let per_token = (field, fields.size_or(field, 6, MAX_EXPERTS)?);
        let sparse_layers = sparse_layers(fields, config.num_hidden_layers)?;
        let mut config = config.with_experts_of(fields, count, per_token, true)?;
        let inner = fields.size_or("moe_intermediate_size", 1536, MAX_INTERMEDIATE)?;
        let field = "moe_num_shared_experts";
        let shared = inner.saturating_mul(whole(fields, field, 2, MAX_EXPERTS)?);
        if shared > MAX_INTERMEDIATE {
            let expected = format!("together they may be {MAX_INTERMEDIATE} wide");
            return Err(fields.refuse(field, expected));
        }
        if let Some(experts) = &mut config.experts {
            *experts = ExpertsConfig {
                intermediate_size: inner,
                shared_intermediate_size: (shared > 0).then_some(shared),
                ..*experts
            };
        }
        Ok(RmsConfig { sparse_layers, ..config })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let experts = config.experts.expect("the configuration of a model with experts");
        let one = |_| config.mlp(experts.intermediate_size, init);
        let zeros = |shape, device: &_| Tensor::zeros(shape, device);
        Self {
            gate: Router::new(config.hidden_size, experts.count, experts.routing, init),
            moe_statics: ErnieMoeStatics {
                e_score_correction_bias: lazy([1, experts.count], &init.device, zeros),
            },
            experts: (0..experts.count).map(one).collect(),
            shared_experts: experts.shared_intermediate_size.map(|inner| config.mlp(inner, init)),
        }
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        stacked(names, r"\.mlp", ["gate_proj", "up_proj", "down_proj"], experts.count)?
            .or_rename(r"\.mlp\.moe_statics\.", ".mlp.gate.moe_statics.")
    }

    fn announce(&self, rows: usize) {
        announce_all(&self.experts, &self.gate, rows);
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let correction = Some(correction_of(&self.moe_statics.e_score_correction_bias));
        mixed_beside(x, self.shared_experts.as_ref(), &self.gate, correction, &self.experts)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        beside_activations(self.shared_experts.as_ref(), &self.gate, &self.experts, pass)
    }
}

/// Which layers have experts: every so many of a range.
fn sparse_layers(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    let step = fields.size_or("moe_layer_interval", 1, MAX_LAYERS)?;
    let first = whole(fields, "moe_layer_start_index", 1, MAX_LAYERS)?;
    let field = "moe_layer_end_index";
    let last = match fields.get(field) {
        Some(value) if value.as_i64() != Some(-1) => whole(fields, field, 0, MAX_LAYERS)?,
        _ => layers - 1,
    };
    let is_sparse =
        |layer: usize| (layer + 1).is_multiple_of(step) && (first..=last).contains(&layer);
    Ok((0..layers).map(is_sparse).collect())
}

/// A whole number from 0 to `max`.
fn whole(fields: &Fields<'_>, field: &str, absent: usize, max: usize) -> Result<usize, Error> {
    match fields.get(field) {
        Some(value) if value.as_u64() == Some(0) => Ok(0),
        _ => fields.size_or(field, absent, max),
    }
}

const ERNIE4_5_MOE: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    ("moe_capacity", Harmless),
    ("moe_gate", Only(&["\"topk\""])),
    ("moe_intermediate_size", Read),
    ("moe_k", Read),
    ("moe_layer_end_index", Read),
    ("moe_layer_interval", Read),
    ("moe_layer_start_index", Read),
    // What shares add up to at least while they are divided by their sum: nothing to those of the
    // best experts.
    ("moe_norm_min", Only(&["1e-12"])),
    ("moe_num_experts", Read),
    ("moe_num_shared_experts", Read),
    ("moe_use_aux_free", Effect::ON),
    ("num_nextn_predict_layers", Harmless),
    ("use_bias", Effect::OFF),
];
