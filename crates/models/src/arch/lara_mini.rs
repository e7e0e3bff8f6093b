//! Lara 4 Mini: experts beside a shared one, linear attention in some layers, attention with a
//! sliding window in others, and in the rest attention that sees everything and rotates nothing.
//! Translated 2026 (<https://huggingface.co/translated/Lara-4-Mini-Base>).

use serde_json::Value;

use super::expert_fields::EXPERTS;
use super::qwen3_next::{heads, taps};
use super::rms_config::{self, DEFAULTS, LayerMixer, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, MAX_INTERMEDIATE, sliding_window};
use crate::layers::{DeltaLayout, GatedDeltaNetConfig};

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 151_936),
        ("hidden_size", 1024),
        // No layer has one: all have experts.
        ("intermediate_size", 512),
        ("num_hidden_layers", 34),
        ("num_attention_heads", 16),
    ],
    key_value_heads: Some(4),
    head_dim: Some(128),
    max_position_embeddings: 131_072,
    tie_word_embeddings: true,
    ..DEFAULTS
};

/// As it is published.
const NAMES: &[(&str, &str)] = &[
    (r"\.mlp\.shared_experts\.", ".mlp.shared_expert."),
    (r"\.linear_attn\.norm\.", ".linear_attn.out_norm."),
];

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let size = |field| fields.size_or(field, 512, MAX_INTERMEDIATE);
    let inner = size("moe_intermediate_size")?;
    let config = RmsConfig::read(fields, &ABSENT)?
        .with_rope(fields)?
        .with_attention_bias(fields)?
        .with_silu_alone(fields)?;
    let normalized = fields.flag_or("norm_topk_prob", true)?;
    let names = ["num_experts", "num_local_experts"];
    let mut config = config.with_experts(fields, names, (128, 4), normalized)?;
    if let Some(experts) = &mut config.experts {
        experts.intermediate_size = inner;
        experts.shared_intermediate_size = Some(size("shared_expert_intermediate_size")?);
        experts.renamed = NAMES;
    }
    let window = sliding_window(fields, 512)?;
    let kinds = kinds(fields, config.num_hidden_layers, window)?;
    let windows = kinds.iter().map(|kind| window.filter(|_| *kind == Kind::Sliding));
    Ok(RmsConfig {
        query_key_norms: Some(QueryKeyNorms::EachHead),
        linear_attention: Some(GatedDeltaNetConfig {
            heads: heads(fields, [8, 16])?,
            taps: taps(fields)?,
            epsilon: config.rms_norm_eps,
            layout: DeltaLayout::Apart,
            rates_are_negated: false,
        }),
        mixers: kinds.iter().map(|kind| LayerMixer::attends(*kind != Kind::Linear)).collect(),
        rotated_layers: kinds.iter().map(|kind| *kind == Kind::Sliding).collect(),
        windows: windows.collect(),
        ..config
    })
}

/// What a layer has.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Linear,
    Sliding,
    Full,
}

/// What layers have: as is listed, or these five in turns.
fn kinds(fields: &Fields<'_>, layers: usize, window: Option<usize>) -> Result<Vec<Kind>, Error> {
    let field = "layer_types";
    let kind = |kind: &Value| match kind.as_str() {
        Some("linear_attention") => Some(Kind::Linear),
        Some("sliding_attention") => Some(Kind::Sliding),
        Some("full_attention") => Some(Kind::Full),
        _ => None,
    };
    let kinds: Option<Vec<_>> = match fields.get(field) {
        Some(listed) => listed.as_array().and_then(|listed| listed.iter().map(kind).collect()),
        None => {
            let all = [Kind::Linear, Kind::Sliding, Kind::Linear, Kind::Full, Kind::Sliding];
            Some(all.into_iter().cycle().take(layers).collect())
        }
    };
    let kinds = kinds.filter(|kinds| kinds.len() == layers).ok_or_else(|| {
        let expected = format!(
            "it must be a list of {layers} of \"linear_attention\", \"sliding_attention\" and \"full_attention\""
        );
        fields.refuse(field, expected)
    })?;
    if window.is_none() && kinds.contains(&Kind::Sliding) {
        return Err(fields.refuse("sliding_window", "some layers need one".to_owned()));
    }
    Ok(kinds)
}

pub(super) const FIELDS: &[&[KnownField]] = &[LARA, EXPERTS, rms_config::FIELDS];

const LARA: &[KnownField] = &[
    ("attention_bias", Read),
    ("linear_conv_kernel_dim", Read),
    ("linear_key_head_dim", Read),
    ("linear_num_key_heads", Read),
    ("linear_num_value_heads", Read),
    ("linear_value_head_dim", Read),
    ("moe_intermediate_size", Read),
    ("norm_topk_prob", Read),
    ("shared_expert_intermediate_size", Read),
    ("sliding_window", Read),
];
