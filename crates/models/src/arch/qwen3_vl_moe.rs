//! Qwen3-VL with experts, its text part.

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_core::Names;

use super::expert_fields::{EXPERTS, sparse_layers};
use super::gemma3::TEXT_PART;
use super::qwen_vl::{ABSENT_3, MULTIMODAL, NAMES, TEXT_3, read_qwen3_text};
use super::rms_config::{ExpertsConfig, FIELDS, RmsConfig, RmsDefaults, field_of};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use crate::architecture::{Init, MultimodalNames};
use crate::config::Effect::{self, Only, Read};
use crate::config::{COMMON, Fields, KnownField, MAX_EXPERTS, MAX_INTERMEDIATE, check};
use crate::layers::{Either, FusedMlp, Mlp, Router, announce_all, expert_activations, mixed};
use crate::{Activations, Error, PassShape};

/// The text part of a Qwen3-VL with experts, with its language-modelling head.
pub type Qwen3VlMoeForCausalLm = RmsForCausalLm<RmsDecoderLayer<Either<Mlp, Qwen3VlMoeBlock>>>;

/// Experts, a few of which each token goes to.
#[derive(Module, Debug)]
pub struct Qwen3VlMoeBlock {
    /// `[experts, hidden]`: scores the experts.
    pub gate: Router,
    /// Gated feed-forward blocks, whose weights are `[in, out]`.
    pub experts: Vec<FusedMlp>,
}

impl RmsFeedForward for Qwen3VlMoeBlock {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("qwen3_vl_moe", "Qwen3VLMoeText")];
    const IS_STACKED: bool = true;

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[MULTIMODAL]
    }

    fn multimodal(_: &str) -> Option<&'static MultimodalNames> {
        Some(&NAMES)
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let text = fields.required_object("text_config")?;
        check(&text, &[TEXT_TYPE_3_MOE, TEXT_PART, TEXT_3_MOE, TEXT_3, EXPERTS, FIELDS, COMMON])?;
        let absent = RmsDefaults { key_value_heads: Some(16), ..ABSENT_3 };
        let config = read_qwen3_text(fields, &text, &absent)?;
        let field = field_of(&text, ["num_experts", "num_local_experts"])?;
        let count = (field, text.size_or(field, 60, MAX_EXPERTS)?);
        let field = "num_experts_per_tok";
        let per_token = (field, text.size_or(field, 4, MAX_EXPERTS)?);
        let sparse_layers = sparse_layers(&text, config.num_hidden_layers)?;
        let mut config = config.with_experts_of(&text, count, per_token, true)?;
        if let Some(experts) = &mut config.experts {
            let field = "moe_intermediate_size";
            experts.intermediate_size = text.size_or(field, 1408, MAX_INTERMEDIATE)?;
        }
        Ok(RmsConfig { sparse_layers, ..config })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let experts = config.experts.expect("the configuration of a model with experts");
        let (hidden, inner) = (config.hidden_size, experts.intermediate_size);
        let one = |_| FusedMlp::in_out(hidden, inner, config.activation, init);
        Self {
            gate: Router::new(hidden, experts.count, experts.routing, init),
            experts: (0..experts.count).map(one).collect(),
        }
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        let module = r"\.mlp\.experts\.(?<n>\d+)\.(gate_up_proj|down_proj)\.weight$";
        names.stacked(module, ".mlp.experts.${2}", [0, 1], experts.count)
    }

    fn announce(&self, rows: usize) {
        announce_all(&self.experts, &self.gate, rows);
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        mixed(x, &self.gate, &self.experts)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        expert_activations(&self.gate, &self.experts, pass)
    }
}

const TEXT_TYPE_3_MOE: &[KnownField] = &[("model_type", Only(&["\"qwen3_vl_moe_text\""]))];

const TEXT_3_MOE: &[KnownField] = &[
    ("decoder_sparse_step", Read),
    ("mlp_only_layers", Read),
    ("moe_intermediate_size", Read),
    ("sliding_window", Effect::UNSET),
    ("norm_topk_prob", Effect::ON),
];
