//! Decoders with many small experts: Qwen2-MoE, Qwen3-MoE, OLMoE, FlexOlmo and Mellum 2. Yang et
//! al. 2025 (arXiv:2505.09388), Muennighoff et al. 2024 (arXiv:2409.02060), Shi et al. 2025
//! (arXiv:2507.07024).

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::sigmoid;
use outsize_core::Names;

use super::expert_fields::{EXPERTS, sparse_layers};
use super::internvl::INTERNVL;
use super::rms_config::{
    BlockNorms, DEFAULTS, ExpertsConfig, FIELDS, QueryKeyNorms, RmsConfig, RmsDefaults,
};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use super::{gemma3, internvl, mellum, qwen_omni, qwen3_next};
use crate::architecture::{Init, MultimodalNames};
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField, MAX_INTERMEDIATE, layer_windows};
use crate::layers::{Either, Linear, Mlp, Router, announce_all, expert_activations, mixed};
use crate::{Activations, Error, PassShape};

/// A Qwen2-MoE, Qwen3-MoE or OLMoE with its language-modelling head.
pub type SparseMoeForCausalLm = RmsForCausalLm<RmsDecoderLayer<Either<Mlp, RmsSparseMoeBlock>>>;

/// Experts, a few of which each token goes to; and perhaps one that all go to.
#[derive(Module, Debug)]
pub struct RmsSparseMoeBlock {
    /// `[experts, hidden]`: scores the experts.
    pub gate: Router,
    /// Gated feed-forward blocks.
    pub experts: Vec<Mlp>,
    /// One that all tokens go to.
    pub shared_expert: Option<Mlp>,
    /// `[1, hidden]`: how much of that one is added.
    pub shared_expert_gate: Option<Linear>,
}

impl RmsFeedForward for RmsSparseMoeBlock {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("qwen2_moe", "Qwen2Moe"),
        ("qwen3_moe", "Qwen3Moe"),
        ("olmoe", "Olmoe"),
        ("flex_olmo", "FlexOlmo"),
        ("mellum", "Mellum"),
        ("qwen3_next", "Qwen3Next"),
        ("qwen3_5_moe_text", "Qwen3_5Moe"),
        ("qwen3_5_moe", "Qwen3_5Moe"),
        ("qwen3_omni_moe", "Qwen3OmniMoeThinkerText"),
        (INTERNVL, "Qwen3Moe"),
    ];

    fn text_types(model_type: &str) -> &'static [&'static str] {
        match model_type {
            INTERNVL => &["qwen3_moe"],
            _ => &[],
        }
    }

    fn has_more_layers(model_type: &str) -> bool {
        qwen3_next::is_one(model_type) || model_type == "mellum"
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        match model_type {
            "qwen3_omni_moe" => Some(&qwen_omni::NAMES),
            INTERNVL => Some(&gemma3::NAMES),
            _ => qwen3_next::multimodal(model_type),
        }
    }

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "qwen2_moe" => &[QWEN2_MOE, QWEN_MOE, EXPERTS, FIELDS],
            "qwen3_moe" => &[QWEN3_MOE, QWEN_MOE, EXPERTS, FIELDS],
            "mellum" => &[mellum::MELLUM, EXPERTS, FIELDS],
            "qwen3_omni_moe" => &[qwen_omni::OMNI],
            INTERNVL => &[internvl::MULTIMODAL],
            linear if qwen3_next::is_one(linear) => qwen3_next::fields(linear),
            _ => &[OLMOE, EXPERTS, FIELDS],
        }
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        if qwen3_next::is_one(model_type) {
            return qwen3_next::read(model_type, fields);
        }
        match model_type {
            "mellum" => return mellum::read(fields),
            "qwen3_omni_moe" => return qwen_omni::read(fields),
            INTERNVL => return internvl::read_part::<Self>(fields, &["qwen3_moe"]),
            _ => {}
        }
        let is_flex = model_type == "flex_olmo";
        let is_olmoe = model_type == "olmoe" || is_flex;
        let (key_value_heads, max_position_embeddings, experts) = match model_type {
            "qwen2_moe" => (Some(16), 32_768, (60, 4)),
            "qwen3_moe" => (Some(4), 32_768, (128, 8)),
            "flex_olmo" => (None, 4096, (7, 5)),
            _ => (None, 4096, (64, 8)),
        };
        let absent = RmsDefaults {
            // Of layers without experts.
            sizes: match model_type {
                "qwen2_moe" => &[("intermediate_size", 5632)],
                "qwen3_moe" => &[("intermediate_size", 6144)],
                "flex_olmo" => FLEX_OLMO,
                _ => &[],
            },
            key_value_heads,
            max_position_embeddings,
            rms_norm_eps: if model_type == "olmoe" { 1e-5 } else { 1e-6 },
            rope_theta: if is_flex { 500_000.0 } else { DEFAULTS.rope_theta },
            ..DEFAULTS
        };
        let normalized = fields.flag_or("norm_topk_prob", false)?;
        let config = RmsConfig::read(fields, &absent)?.with_rope(fields)?;
        let names = ["num_experts", "num_local_experts"];
        let mut config = config.with_experts(fields, names, experts, normalized)?;
        // All layers see everything, whatever else a file may ask for.
        layer_windows(fields, None, config.windows.clone())?;
        config.sparse_layers = sparse_layers(fields, config.num_hidden_layers)?;
        let size = |name, absent| fields.size_or(name, absent, MAX_INTERMEDIATE);
        if let (Some(experts), false) = (&mut config.experts, is_olmoe) {
            let is_qwen2 = model_type == "qwen2_moe";
            *experts = ExpertsConfig {
                intermediate_size: size(
                    "moe_intermediate_size",
                    if is_qwen2 { 1408 } else { 768 },
                )?,
                shared_intermediate_size: match is_qwen2 {
                    true => Some(size("shared_expert_intermediate_size", 5632)?),
                    false => None,
                },
                ..*experts
            };
        }
        Ok(match model_type {
            "qwen2_moe" => {
                RmsConfig { attention_in_bias: fields.flag_or("qkv_bias", true)?, ..config }
            }
            _ => {
                let norms =
                    if is_olmoe { QueryKeyNorms::AllHeads } else { QueryKeyNorms::EachHead };
                let config = config.with_attention_bias(fields)?;
                let places = if is_flex { BlockNorms::Behind } else { config.norms };
                RmsConfig { query_key_norms: Some(norms), norms: places, ..config }
            }
        })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let experts = config.experts.expect("the configuration of a model with experts");
        let hidden = config.hidden_size;
        let one = |_| config.mlp(experts.intermediate_size, init);
        let shared = experts.shared_intermediate_size;
        Self {
            gate: Router::new(hidden, experts.count, experts.routing, init),
            experts: (0..experts.count).map(one).collect(),
            shared_expert: shared.map(|inner| config.mlp(inner, init)),
            shared_expert_gate: shared.map(|_| Linear::new(hidden, 1, false, init)),
        }
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        stacked(names, r"\.mlp", ["gate_proj", "up_proj", "down_proj"], experts.count)
    }

    fn announce(&self, rows: usize) {
        announce_all(&self.experts, &self.gate, rows);
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let shared = match (&self.shared_expert, &self.shared_expert_gate) {
            (Some(expert), Some(gate)) => {
                Some(expert.forward(x.clone()) * sigmoid(gate.forward(x.clone())))
            }
            _ => None,
        };
        let mixed = mixed(x, &self.gate, &self.experts);
        match shared {
            Some(shared) => mixed + shared,
            None => mixed,
        }
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let most = expert_activations(&self.gate, &self.experts, pass);
        let Some(shared) = &self.shared_expert else {
            return most;
        };
        // What the shared one makes of its input, and that times the gate; then the latter beside
        // the others.
        let hidden = self.gate.hidden();
        let kept = Activations::values(pass.rows() * 2 * hidden as u64);
        most.or(shared.activations(pass)).and(kept)
    }
}

/// The rules for experts as transformers stacks them: gate and up as one,
/// `[experts, 2 · intermediate, hidden]`, and `[experts, hidden, intermediate]`. `block` is a
/// pattern for what has the experts, `layers` are those of one.
pub(super) fn stacked(
    names: Names,
    block: &str,
    layers: [&str; 3],
    experts: usize,
) -> Result<Names, outsize_core::Error> {
    stacked_in(names, block, ".mlp", layers, experts)
}

/// The same where transformers calls that which has them `to`.
pub(super) fn stacked_in(
    names: Names,
    block: &str,
    to: &str,
    [gate, up, down]: [&str; 3],
    experts: usize,
) -> Result<Names, outsize_core::Error> {
    let (gate_up, down_proj) =
        (format!("{to}.experts.gate_up_proj"), format!("{to}.experts.down_proj"));
    let module = |layer| format!(r"{block}\.experts\.(?<n>\d+)\.{layer}\.weight$");
    names
        .stacked(&module(gate), &gate_up, [0, 2], experts)?
        .stacked(&module(up), &gate_up, [1, 2], experts)?
        .stacked(&module(down), &down_proj, [0, 1], experts)
}

/// Sizes of which a FlexOlmo has others if its file says so.
const FLEX_OLMO: &[(&str, usize)] = &[
    ("vocab_size", 100_352),
    ("hidden_size", 4096),
    ("intermediate_size", 11_008),
    ("num_hidden_layers", 32),
    ("num_attention_heads", 32),
];

const QWEN_MOE: &[KnownField] = &[
    ("decoder_sparse_step", Read),
    ("mlp_only_layers", Read),
    ("moe_intermediate_size", Read),
    ("norm_topk_prob", Read),
    ("use_sliding_window", Effect::OFF),
    // Not looked at where that is not set.
    ("max_window_layers", Harmless),
    ("sliding_window", Harmless),
];

const QWEN2_MOE: &[KnownField] = &[
    ("attention_bias", Effect::ON),
    ("qkv_bias", Read),
    ("shared_expert_intermediate_size", Read),
];

const QWEN3_MOE: &[KnownField] = &[("attention_bias", Read)];

const OLMOE: &[KnownField] = &[
    ("attention_bias", Read),
    ("norm_topk_prob", Read),
    ("max_window_layers", Effect::UNSET),
    ("sliding_window", Effect::UNSET),
    ("use_sliding_window", Effect::OFF),
];
