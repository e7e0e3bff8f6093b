//! The configuration of Nemotron-H.

use outsize_kernels::StateRule;
use serde_json::Value;

use super::super::expert_fields::expert_groups;
use super::super::mamba_fields::RATES_NEGATED;
use super::super::mamba2_fields::{read_mamba2_of, state_rule};
use super::super::rms_config::{
    DEFAULTS, ExpertsConfig, LayerMixer, RmsConfig, RmsDefaults, field_of,
};
use crate::Error;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{
    Fields, KnownField, MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE,
    MAX_LAYERS,
};
use crate::layers::{Activation, Mamba2Config, Routing, Shares};

/// What a block has.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Mamba,
    Attention,
    Mlp,
    Experts,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let parts = parts(fields)?;
    let absent = RmsDefaults {
        sizes: &[
            ("vocab_size", 131_072),
            ("hidden_size", 4096),
            ("intermediate_size", 21_504),
            ("num_hidden_layers", parts.len()),
            ("num_attention_heads", 32),
        ],
        key_value_heads: Some(8),
        head_dim: Some(128),
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        epsilon: "layer_norm_epsilon",
        activation: ("mlp_hidden_act", Activation::Relu2),
        ..DEFAULTS
    };
    let mut config = RmsConfig::read(fields, &absent)?;
    if config.num_hidden_layers != parts.len() {
        let expected = format!("there are {} blocks", parts.len());
        return Err(fields.refuse("num_hidden_layers", expected));
    }
    // As in the first of these models.
    let of_width = field_of(fields, ["head_dim", "attention_head_dim"])?;
    config.head_dim = fields.size_or(of_width, config.head_dim, MAX_HEAD_DIM)?;
    config.rotary_dim = config.head_dim;
    config.rotated_layers = vec![false; parts.len()];
    config.mlp_bias = fields.flag_or("mlp_bias", false)?;
    let mixer = |part: &Part| match part {
        Part::Mamba => LayerMixer::Linear,
        Part::Attention => LayerMixer::Attention,
        Part::Mlp | Part::Experts => LayerMixer::None,
    };
    config.mixers = parts.iter().map(mixer).collect();
    config.sparse_layers = parts.iter().map(|part| *part == Part::Experts).collect();
    if parts.contains(&Part::Mamba) {
        config.mamba2 = Some(read_mamba(fields, config.rms_norm_eps)?);
    }
    if parts.contains(&Part::Experts) { with_experts(fields, config) } else { Ok(config) }
}

/// What the blocks have, in a list or in a letter each.
fn parts(fields: &Fields<'_>) -> Result<Vec<Part>, Error> {
    let named = |kind: &Value| match kind.as_str()? {
        "linear_attention" | "mamba" => Some(Part::Mamba),
        "full_attention" | "attention" => Some(Part::Attention),
        "mlp" => Some(Part::Mlp),
        "moe" => Some(Part::Experts),
        _ => None,
    };
    let lettered = |letter: char| match letter {
        'M' => Some(Part::Mamba),
        '*' => Some(Part::Attention),
        '-' => Some(Part::Mlp),
        'E' => Some(Part::Experts),
        _ => None,
    };
    let pattern = "hybrid_override_pattern";
    let list = field_of(fields, ["layers_block_type", "layer_types"])?;
    let refused = |field| {
        let expected = "each block must be \"linear_attention\", \"full_attention\", \"mlp\" or \"moe\", or M, *, - or E \
                        in a pattern";
        fields.refuse(field, expected.to_owned())
    };
    let checked = |field, parts: Option<Vec<Part>>| {
        let parts = parts.filter(|parts| (1..=MAX_LAYERS).contains(&parts.len()));
        parts.ok_or_else(|| refused(field))
    };
    let lettered = fields.text(pattern)?.map(|letters| letters.chars().map(lettered).collect());
    let lettered = lettered.map(|parts| checked(pattern, parts)).transpose()?;
    let listed = fields.get(list).map(|kinds| {
        checked(list, kinds.as_array().and_then(|kinds| kinds.iter().map(named).collect()))
    });
    match (listed.transpose()?, lettered) {
        (Some(listed), Some(lettered)) if listed != lettered => {
            Err(fields.refuse(pattern, format!("it must be what {list} says")))
        }
        (Some(parts), _) | (None, Some(parts)) => Ok(parts),
        (None, None) => Err(fields.missing(pattern)),
    }
}

fn read_mamba(fields: &Fields<'_>, epsilon: f64) -> Result<Mamba2Config, Error> {
    let value_heads = fields.size_or("mamba_num_heads", 128, MAX_HEADS)?;
    let value_dim = fields.size_or("mamba_head_dim", 64, MAX_HEAD_DIM)?;
    if value_heads * value_dim > MAX_INTERMEDIATE {
        let expected = format!("all heads together may be {MAX_INTERMEDIATE} wide");
        return Err(fields.refuse("mamba_head_dim", expected));
    }
    let least = match fields.get("time_step_min") {
        Some(_) => fields.number_within("time_step_min", 0.0, 1e6)?,
        None => 1e-3,
    };
    let limits = [least as f32, f32::INFINITY];
    let rule = StateRule { limits, ..state_rule(fields, None)? };
    read_mamba2_of(fields, "ssm_state_size", [value_heads, value_dim], rule, epsilon)
}

fn with_experts(fields: &Fields<'_>, config: RmsConfig) -> Result<RmsConfig, Error> {
    let size = |field, absent| Ok((field, fields.size_or(field, absent, MAX_EXPERTS)?));
    let normalized = fields.flag_or("norm_topk_prob", true)?;
    let (count, per_token) = (size("n_routed_experts", 8)?, size("num_experts_per_tok", 2)?);
    let mut config = config.with_experts_of(fields, count, per_token, normalized)?;
    if let Some(experts) = &mut config.experts {
        let inner = |field| fields.size_or(field, 7688, MAX_INTERMEDIATE);
        let scale = fields.number_within_or("routed_scaling_factor", 1.0, 0.0, 1e6)?;
        *experts = ExpertsConfig {
            intermediate_size: inner("moe_intermediate_size")?,
            shared_intermediate_size: Some(inner("moe_shared_expert_intermediate_size")?),
            latent_size: match fields.get("moe_latent_size") {
                Some(_) => Some(fields.size("moe_latent_size", MAX_HIDDEN)?),
                None => None,
            },
            routing: Routing {
                shares: Shares::Sigmoid,
                scale,
                groups: expert_groups(fields, false, experts, (1, 1))?,
                ..experts.routing
            },
            ..*experts
        };
    }
    Ok(config)
}

/// All fields.
pub(super) const FIELDS: &[KnownField] = &[
    ("attention_head_dim", Read),
    ("conv_kernel", Read),
    ("head_dim", Read),
    ("hidden_size", Read),
    ("hybrid_override_pattern", Read),
    ("intermediate_size", Read),
    ("layer_norm_epsilon", Read),
    ("layer_types", Read),
    ("layers_block_type", Read),
    (RATES_NEGATED, Read),
    ("mamba_head_dim", Read),
    ("mamba_num_heads", Read),
    ("max_position_embeddings", Read),
    ("mlp_bias", Read),
    ("mlp_hidden_act", Read),
    ("moe_intermediate_size", Read),
    ("moe_latent_size", Read),
    ("moe_shared_expert_intermediate_size", Read),
    ("n_group", Read),
    ("n_groups", Read),
    ("n_routed_experts", Read),
    ("norm_topk_prob", Read),
    ("num_attention_heads", Read),
    ("num_experts_per_tok", Read),
    ("num_hidden_layers", Read),
    ("num_key_value_heads", Read),
    ("routed_scaling_factor", Read),
    ("ssm_state_size", Read),
    ("time_step_min", Read),
    ("topk_group", Read),
    ("use_bias", Read),
    ("use_conv_bias", Read),
    // In transformers these are always so.
    ("attention_bias", Effect::OFF),
    ("mamba_hidden_act", Effect::Only(&["\"silu\""])),
    ("sliding_window", Effect::UNSET),
    ("tie_word_embeddings", Effect::OFF),
    ("topk_method", Effect::Only(&["\"noaux_tc\""])),
    // Names of some of these fields that transformers takes too.
    ("mamba_conv_bias", Effect::UNSET),
    ("mamba_d_conv", Effect::UNSET),
    ("mamba_dt_limit", Effect::UNSET),
    ("mamba_dt_min", Effect::UNSET),
    ("mamba_n_groups", Effect::UNSET),
    ("num_local_experts", Effect::UNSET),
    // Nothing is rotated.
    ("partial_rotary_factor", Harmless),
    ("rope_parameters", Harmless),
    ("rope_scaling", Harmless),
    ("rope_theta", Harmless),
    // Not looked at, as steps are clamped from below alone; or said again for other software.
    ("expand", Harmless),
    ("mamba_proj_bias", Harmless),
    ("n_shared_experts", Harmless),
    ("norm_eps", Harmless),
    ("num_query_groups", Harmless),
    ("rms_norm_eps", Harmless),
    ("time_step_limit", Harmless),
    // How tokens are computed, how weights were drawn, and layers that guess further tokens.
    ("chunk_size", Harmless),
    ("mamba_ssm_cache_dtype", Harmless),
    ("moe_shared_expert_overlap", Harmless),
    ("mtp_hybrid_override_pattern", Harmless),
    ("mtp_layers_block_type", Harmless),
    ("num_logits_to_keep", Harmless),
    ("num_nextn_predict_layers", Harmless),
    ("output_router_logits", Harmless),
    ("rescale_prenorm_residual", Harmless),
    ("residual_in_fp32", Harmless),
    ("time_step_floor", Harmless),
    ("time_step_max", Harmless),
    ("time_step_rank", Harmless),
    ("use_mamba_kernels", Harmless),
];
