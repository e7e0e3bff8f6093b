//! Qwen3-Next and Qwen3.5, its text part: linear attention in most layers, gated attention in the
//! others. Qwen Team 2025.

use serde_json::Value;

use super::expert_fields::{EXPERTS, sparse_layers};
use super::rms_config::{
    DEFAULTS, ExpertsConfig, FIELDS, LayerMixer, QueryKeyNorms, RmsConfig, RmsDefaults,
};
use crate::Error;
use crate::architecture::MultimodalNames;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{
    COMMON, Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS, MAX_INTERMEDIATE, MAX_LAYERS, RopeConfig,
    check,
};
use crate::layers::{
    AttentionGate, DeltaLayout, GateFunction, GateProjection, GatedDeltaNetConfig,
};
use outsize_kernels::LinearAttentionHeads;

/// The most tokens that a convolution is over.
const MAX_TAPS: usize = 64;

/// The fields of that type.
pub(super) fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
    match model_type {
        "qwen3_next" => &[NEXT, LINEAR, EXPERTS, FIELDS],
        "qwen3_5_moe_text" => &[MOE, TEXT, LINEAR, EXPERTS, FIELDS],
        "qwen3_5_text" => &[DENSE, TEXT, LINEAR, FIELDS],
        _ => &[MULTIMODAL],
    }
}

/// Reads the configuration of a model of that type.
pub(super) fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text_type = match model_type {
        "qwen3_5" => "qwen3_5_text",
        "qwen3_5_moe" => "qwen3_5_moe_text",
        text => return read_text(text, fields),
    };
    let text = fields.required_object("text_config")?;
    let mut tables = vec![NESTED];
    tables.extend(self::fields(text_type));
    tables.push(COMMON);
    check(&text, &tables)?;
    if let Some(found) = text.text("model_type")?.filter(|found| *found != text_type) {
        return Err(
            text.refuse("model_type", format!("in a {model_type} it is {text_type}, not {found}"))
        );
    }
    // That of the whole model counts.
    let tie_word_embeddings = fields.flag_or("tie_word_embeddings", false)?;
    Ok(RmsConfig { tie_word_embeddings, ..read_text(text_type, &text)? })
}

fn read_text(model_type: &str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &absent(model_type))?
        .with_attention_bias(fields)?
        .with_silu_alone(fields)?;
    let names = ["rope_theta", "partial_rotary_factor"];
    let (rope, rotary_dim) = RopeConfig::read_partial(&config.rope_context(fields), names, 0.25)?;
    let mixers = mixers(fields, config.num_hidden_layers)?;
    let mut config = RmsConfig {
        rope,
        rotary_dim,
        norm_plus_one: fields.flag_or("rms_norm_add_unit_offset", true)?,
        query_key_norms: Some(QueryKeyNorms::EachHead),
        attention_gate: Some(AttentionGate {
            projection: GateProjection::Queries,
            function: GateFunction::Sigmoid,
            of_heads: false,
        }),
        linear_attention: Some(GatedDeltaNetConfig {
            heads: heads(fields, [16, 32])?,
            taps: taps(fields)?,
            epsilon: config.rms_norm_eps,
            layout: match (model_type, fields.flag_or("linear_qkvz_apart", false)?) {
                ("qwen3_next", false) => DeltaLayout::Joint,
                ("qwen3_next", true) => DeltaLayout::JointGates,
                _ => DeltaLayout::Apart,
            },
            rates_are_negated: fields.flag_or("linear_rates_negated", false)?,
        }),
        mixers,
        ..config
    };
    if model_type != "qwen3_5_text" {
        let is_next = model_type == "qwen3_next";
        let (count, per_token) = if is_next { (512, 10) } else { (256, 8) };
        let normalized = fields.flag_or("norm_topk_prob", true)?;
        let names = ["num_experts", "num_local_experts"];
        config = config.with_experts(fields, names, (count, per_token), normalized)?;
        if is_next {
            config.sparse_layers = sparse_layers(fields, config.num_hidden_layers)?;
        }
        let size = |name| fields.size_or(name, 512, MAX_INTERMEDIATE);
        if let Some(experts) = &mut config.experts {
            *experts = ExpertsConfig {
                intermediate_size: size("moe_intermediate_size")?,
                shared_intermediate_size: Some(size("shared_expert_intermediate_size")?),
                ..*experts
            };
        }
    }
    Ok(config)
}

/// What `transformers` takes where a field is absent.
fn absent(model_type: &str) -> RmsDefaults<'static> {
    let sizes: &[_] = match model_type {
        "qwen3_next" => &[
            ("vocab_size", 151_936),
            ("hidden_size", 2048),
            ("intermediate_size", 5632),
            ("num_hidden_layers", 48),
            ("num_attention_heads", 16),
        ],
        "qwen3_5_text" => &[
            ("vocab_size", 248_320),
            ("hidden_size", 4096),
            ("intermediate_size", 12_288),
            ("num_hidden_layers", 32),
            ("num_attention_heads", 16),
        ],
        _ => &[
            ("vocab_size", 248_320),
            ("hidden_size", 2048),
            // There is no layer without experts.
            ("intermediate_size", 1),
            ("num_hidden_layers", 40),
            ("num_attention_heads", 16),
        ],
    };
    RmsDefaults {
        sizes,
        key_value_heads: Some(if model_type == "qwen3_5_text" { 4 } else { 2 }),
        head_dim: Some(256),
        max_position_embeddings: 32_768,
        ..DEFAULTS
    }
}

/// The heads of linear attention: absent, so many of keys and of values.
pub(super) fn heads(
    fields: &Fields<'_>,
    [keys, values]: [usize; 2],
) -> Result<LinearAttentionHeads, Error> {
    let size = |field, absent, max| fields.size_or(field, absent, max);
    let heads = LinearAttentionHeads {
        key_heads: size("linear_num_key_heads", keys, MAX_HEADS)?,
        value_heads: size("linear_num_value_heads", values, MAX_HEADS)?,
        key_dim: size("linear_key_head_dim", 128, MAX_HEAD_DIM)?,
        value_dim: size("linear_value_head_dim", 128, MAX_HEAD_DIM)?,
        in_turns: fields.flag_or("linear_heads_in_turns", false)?,
    };
    if !heads.value_heads.is_multiple_of(heads.key_heads) {
        let expected = format!("it must divide linear_num_value_heads, {}", heads.value_heads);
        return Err(fields.refuse("linear_num_key_heads", expected));
    }
    Ok(heads)
}

/// Tokens that a convolution is over.
pub(super) fn taps(fields: &Fields<'_>) -> Result<usize, Error> {
    convolution_taps(fields, "linear_conv_kernel_dim", 4)
}

/// The same in a field.
pub(super) fn convolution_taps(
    fields: &Fields<'_>,
    field: &str,
    absent: usize,
) -> Result<usize, Error> {
    match fields.size_or(field, absent, MAX_TAPS)? {
        1 => Err(fields.refuse(field, format!("it must be from 2 to {MAX_TAPS}"))),
        taps => Ok(taps),
    }
}

/// What layers have: as is listed, or linear attention in all but every so many.
fn mixers(fields: &Fields<'_>, layers: usize) -> Result<Vec<LayerMixer>, Error> {
    if fields.get("layer_types").is_some() {
        return listed_mixers(fields, "layer_types", layers);
    }
    let interval = fields.size_or("full_attention_interval", 4, MAX_LAYERS)?;
    let attends = (1..=layers).map(|layer| layer.is_multiple_of(interval));
    Ok(attends.map(LayerMixer::attends).collect())
}

/// What a field that is there says that layers have.
pub(super) fn listed_mixers(
    fields: &Fields<'_>,
    field: &str,
    layers: usize,
) -> Result<Vec<LayerMixer>, Error> {
    let mixer = |kind: &Value| match kind.as_str() {
        // The latter as Mamba-2's models were first published.
        Some("linear_attention" | "mamba") => Some(LayerMixer::Linear),
        Some("full_attention" | "attention") => Some(LayerMixer::Attention),
        _ => None,
    };
    let kinds = fields.get(field).and_then(Value::as_array);
    let kinds = kinds.and_then(|kinds| kinds.iter().map(mixer).collect());
    kinds.filter(|kinds: &Vec<_>| kinds.len() == layers).ok_or_else(|| {
        let expected = format!(
            "it must be a list of {layers} of \"linear_attention\" and \"full_attention\", or of \"mamba\" and \"attention\""
        );
        fields.refuse(field, expected)
    })
}

const LINEAR: &[KnownField] = &[
    ("attention_bias", Read),
    ("full_attention_interval", Read),
    ("linear_conv_kernel_dim", Read),
    ("linear_key_head_dim", Read),
    ("linear_num_key_heads", Read),
    ("linear_num_value_heads", Read),
    ("linear_value_head_dim", Read),
    // As GGUF files have it: heads in another order, matrices apart, and what is computed of
    // weights beforehand.
    ("linear_heads_in_turns", Read),
    ("linear_qkvz_apart", Read),
    ("linear_rates_negated", Read),
    ("rms_norm_add_unit_offset", Read),
    ("partial_rotary_factor", Read),
    // In transformers these are always so.
    ("attn_output_gate", Effect::ON),
    ("mamba_ssm_dtype", Harmless),
    ("use_sliding_window", Effect::OFF),
    ("max_window_layers", Harmless),
    ("sliding_window", Harmless),
];

const DENSE: &[KnownField] = &[("hidden_act", Read), ("mlp_bias", Effect::OFF)];

const NEXT: &[KnownField] = &[
    ("decoder_sparse_step", Read),
    ("mlp_only_layers", Read),
    ("moe_intermediate_size", Read),
    ("norm_topk_prob", Read),
    ("shared_expert_intermediate_size", Read),
];

const MOE: &[KnownField] = &[
    ("moe_intermediate_size", Read),
    ("norm_topk_prob", Effect::ON),
    ("shared_expert_intermediate_size", Read),
];

/// Of the text part.
const TEXT: &[KnownField] = &[
    // Of layers that guess more tokens.
    ("mtp_num_hidden_layers", Harmless),
    ("mtp_use_dedicated_embeddings", Harmless),
];

/// Of `text_config`, beside [`TEXT`]: the whole model's count.
const NESTED: &[KnownField] = &[
    ("dtype", Harmless),
    ("model_type", Read),
    ("quantization_config", Effect::UNSET),
    ("tie_word_embeddings", Harmless),
    ("torch_dtype", Harmless),
];

/// Of a model that sees images too.
const MULTIMODAL: &[KnownField] = &[
    ("image_token_id", Harmless),
    ("text_config", Read),
    ("video_token_id", Harmless),
    ("vision_config", Harmless),
    ("vision_end_token_id", Harmless),
    ("vision_start_token_id", Harmless),
];

/// Where checkpoints keep the text part, if it is a part of what they hold.
pub(super) fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
    matches!(model_type, "qwen3_5" | "qwen3_5_moe").then_some(&NAMES)
}

const NAMES: MultimodalNames = MultimodalNames {
    prefixes: &[("model.language_model.", "model.")],
    others: &["model.visual."],
};

/// Whether a model is of these.
pub(super) fn is_one(model_type: &str) -> bool {
    model_type.starts_with("qwen3_5") || model_type == "qwen3_next"
}
