//! OLMo Hybrid: linear attention behind norms in most layers, OLMo 3's attention before them in the
//! others, perhaps without positions. Ai2 2026 (<https://huggingface.co/allenai/Olmo-Hybrid-7B>).

use outsize_kernels::{DeltaGates, LinearAttentionHeads};

use super::qwen3_next::{convolution_taps, listed_mixers};
use super::rms_config::{BlockNorms, DEFAULTS, LayerMixer, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS, rope_object};
use crate::layers::{DeltaAttentionConfig, DeltaAttentionLayout};

/// The norm behind linear attention adds this, whatever others add.
const EPSILON: f64 = 1e-5;

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 100_352),
        ("hidden_size", 3840),
        ("intermediate_size", 11_008),
        ("num_hidden_layers", 32),
        ("num_attention_heads", 30),
    ],
    max_position_embeddings: 65_536,
    ..DEFAULTS
};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config =
        RmsConfig::read(fields, &ABSENT)?.with_attention_bias(fields)?.with_rope(fields)?;
    let layers = config.num_hidden_layers;
    let by_rule = || {
        let attends =
            (0..layers).map(|layer| layer % 4 == 3 || (layers < 4 && layer + 1 == layers));
        attends.map(LayerMixer::attends).collect()
    };
    let mixers = match fields.get("layer_types") {
        Some(_) => listed_mixers(fields, "layer_types", layers)?,
        None => by_rule(),
    };
    if [LayerMixer::Attention, LayerMixer::Linear].iter().any(|kind| !mixers.contains(kind)) {
        let expected = "some layers must have attention, and some linear attention".to_owned();
        return Err(fields.refuse("layer_types", expected));
    }
    let most = if fields.flag_or("linear_allow_neg_eigval", true)? { 2.0 } else { 1.0 };
    let delta = DeltaAttentionConfig {
        heads: heads(fields, &config)?,
        taps: convolution_taps(fields, "linear_conv_kernel_dim", 4)?,
        epsilon: EPSILON,
        layout: DeltaAttentionLayout::Heads,
        gates: DeltaGates { most, bound: None },
        rates_are_negated: false,
    };
    Ok(RmsConfig {
        delta_attention: Some(delta),
        mixers,
        norms: BlockNorms::BehindAttention,
        query_key_norms: Some(QueryKeyNorms::AllHeads),
        rotated_layers: vec![has_positions(fields)?; layers],
        renamed: NAMES,
        ..config
    })
}

/// Whether there is a base of rotations: where it is null there are none.
fn has_positions(fields: &Fields<'_>) -> Result<bool, Error> {
    let field = "rope_theta";
    let object = rope_object(fields)?.filter(|object| object.has(field));
    let owner = object.as_ref().unwrap_or(fields);
    Ok(!owner.has(field) || owner.get(field).is_some())
}

/// The heads of linear attention.
fn heads(fields: &Fields<'_>, config: &RmsConfig) -> Result<LinearAttentionHeads, Error> {
    let of_attention = config.num_attention_heads;
    let key_heads = fields.size_or("linear_num_key_heads", of_attention, MAX_HEADS)?;
    let key = 3 * config.hidden_size / (4 * key_heads);
    let key_dim = fields.size_or("linear_key_head_dim", key.max(1), MAX_HEAD_DIM)?;
    let value = (2 * key_dim).min(MAX_HEAD_DIM);
    let heads = LinearAttentionHeads {
        key_heads,
        value_heads: fields.size_or("linear_num_value_heads", of_attention, MAX_HEADS)?,
        key_dim,
        value_dim: fields.size_or("linear_value_head_dim", value, MAX_HEAD_DIM)?,
        in_turns: false,
    };
    if !heads.value_heads.is_multiple_of(key_heads) {
        let expected = format!("it must divide linear_num_value_heads, {}", heads.value_heads);
        return Err(fields.refuse("linear_num_key_heads", expected));
    }
    Ok(heads)
}

/// As it is published.
const NAMES: &[(&str, &str)] = &[
    (r"\.input_layernorm\.", ".attention_layer_norm."),
    (r"\.post_attention_layernorm\.", ".feedforward_layer_norm."),
];

pub(super) const OLMO_HYBRID: &[KnownField] = &[
    ("attention_bias", Read),
    // The convolution has it too, and is built in with this one alone.
    ("hidden_act", Effect::Only(&["\"silu\""])),
    // What weights began with.
    ("linear_a_log_max", Harmless),
    ("linear_a_log_min", Harmless),
    ("linear_allow_neg_eigval", Read),
    ("linear_conv_kernel_dim", Read),
    ("linear_dt_init_floor", Harmless),
    ("linear_dt_max", Harmless),
    ("linear_dt_min", Harmless),
    ("linear_key_head_dim", Read),
    ("linear_num_key_heads", Read),
    ("linear_num_value_heads", Read),
    ("linear_use_gate", Effect::ON),
    ("linear_value_head_dim", Read),
    ("mlp_bias", Effect::OFF),
];
