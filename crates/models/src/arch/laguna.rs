//! Laguna: experts as DeepSeek's, and gated attention whose layers with a sliding window have other
//! heads and a rotary embedding of their own. Poolside 2026
//! (<https://huggingface.co/poolside/Laguna-XS.2>).

use serde_json::Value;

use super::expert_fields::{EXPERTS, listed_layers, share_scale};
use super::gemma3;
use super::rms_config::{self, DEFAULTS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    Fields, KnownField, MAX_HEADS, MAX_INTERMEDIATE, RopeConfig, check, check_no_rope_scaling,
    layer_windows, sliding_window,
};
use crate::layers::{AttentionGate, GateFunction, GateProjection, Shares};

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 100_352),
        ("hidden_size", 2048),
        ("intermediate_size", 8192),
        ("num_hidden_layers", 40),
        ("num_attention_heads", 48),
    ],
    key_value_heads: Some(8),
    head_dim: Some(128),
    max_position_embeddings: 131_072,
    ..DEFAULTS
};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &ABSENT)?.with_attention_bias(fields)?;
    let layers = config.num_hidden_layers;
    let mut config =
        config.with_experts(fields, ["num_experts", "num_local_experts"], (256, 8), true)?;
    if let Some(experts) = &mut config.experts {
        let size = |field| fields.size_or(field, 512, MAX_INTERMEDIATE);
        experts.intermediate_size = size("moe_intermediate_size")?;
        experts.shared_intermediate_size = Some(size("shared_expert_intermediate_size")?);
        experts.routing.shares = Shares::Sigmoid;
        experts.routing.scale = share_scale(fields, "moe_routed_scaling_factor", 1.0)?;
        experts.renamed = NAMES;
    }
    config.sparse_layers = match fields.get("mlp_layer_types") {
        Some(kinds) => listed_layers(fields, kinds, layers)?,
        None => (0..layers).map(|layer| layer > 0).collect(),
    };
    let (rope, rotary_dim) = rope_of(fields, &config, ("full_attention", 500_000.0, 0.5))?;
    let (local, local_dim) = rope_of(fields, &config, ("sliding_attention", 10_000.0, 1.0))?;
    Ok(RmsConfig {
        query_key_norms: Some(QueryKeyNorms::EachHead),
        attention_gate: Some(AttentionGate {
            projection: GateProjection::G,
            function: GateFunction::Softplus,
            of_heads: gates_heads(fields)?,
        }),
        layer_heads: layer_heads(fields, &config)?,
        windows: layer_windows(fields, sliding_window(fields, 512)?, vec![None; layers])?,
        rope,
        rotary_dim,
        local_rope: Some(local),
        local_rotary_dim: Some(local_dim),
        ..config
    })
}

/// The rotary embedding of one kind of layers, with how many elements of a head are rotated.
pub(super) fn rope_of(
    fields: &Fields<'_>,
    config: &RmsConfig,
    (kind, theta, part): (&str, f64, f64),
) -> Result<(RopeConfig, usize), Error> {
    let around = config.rope_context(fields);
    check_no_rope_scaling(fields)?;
    let object = match fields.object("rope_parameters")? {
        Some(kinds) => {
            check(&kinds, &[gemma3::NESTED])?;
            kinds.object(kind)?
        }
        None => None,
    };
    RopeConfig::read_part(object.as_ref(), &around, theta, part)
}

/// Whether a gate is one number for each head.
fn gates_heads(fields: &Fields<'_>) -> Result<bool, Error> {
    match fields.get("gating") {
        None | Some(Value::Bool(true)) => Ok(true),
        Some(Value::String(kind)) if kind == "per-head" => Ok(true),
        Some(Value::String(kind)) if kind == "per-element" => Ok(false),
        Some(_) => {
            let expected = "only true, \"per-head\" and \"per-element\" are supported".to_owned();
            Err(fields.refuse("gating", expected))
        }
    }
}

fn layer_heads(fields: &Fields<'_>, config: &RmsConfig) -> Result<Option<Vec<usize>>, Error> {
    let field = "num_attention_heads_per_layer";
    let Some(value) = fields.get(field) else {
        return Ok(None);
    };
    let (layers, shared) = (config.num_hidden_layers, config.num_key_value_heads);
    let is_count = |heads: &usize| (1..=MAX_HEADS).contains(heads) && heads.is_multiple_of(shared);
    let heads: Option<Vec<usize>> = value.as_array().and_then(|all| {
        all.iter()
            .map(|heads| heads.as_u64().map(|heads| heads as usize).filter(is_count))
            .collect()
    });
    heads.filter(|heads| heads.len() == layers).map(Some).ok_or_else(|| {
        let expected = format!(
            "it must be a list of {layers} multiples of num_key_value_heads, {shared}, up to {MAX_HEADS}"
        );
        fields.refuse(field, expected)
    })
}

const NAMES: &[(&str, &str)] = &[
    (r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.experts.e_score_correction_bias"),
    (r"\.mlp\.shared_experts\.", ".mlp.shared_expert."),
];

pub(super) const FIELDS: &[&[KnownField]] = &[LAGUNA, EXPERTS, rms_config::FIELDS];

const LAGUNA: &[KnownField] = &[
    ("attention_bias", Read),
    ("auto_map", Harmless),
    ("gating", Read),
    ("mlp_layer_types", Read),
    ("moe_apply_router_weight_on_input", Effect::OFF),
    ("moe_intermediate_size", Read),
    ("moe_routed_scaling_factor", Read),
    ("moe_router_logit_softcapping", Only(&["0", "0.0"])),
    ("norm_topk_prob", Effect::ON),
    ("num_attention_heads_per_layer", Read),
    ("shared_expert_intermediate_size", Read),
    ("sliding_window", Read),
];
