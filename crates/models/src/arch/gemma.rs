//! Gemma and Gemma 2: norms that scale by one more than their weight; in the latter four of them a
//! block, soft caps of scores and logits, and every other layer with a sliding window; in
//! VaultGemma the latter with two norms. Gemma Team 2024 (arXiv:2403.08295, arXiv:2408.00118),
//! Sinha et al. 2025 (arXiv:2510.15001).

use super::rms_config::{BlockNorms, DEFAULTS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{DEFAULT_WINDOW, Fields, KnownField, layer_windows, sliding_window};
use crate::layers::Activation;

/// Those of `Gemma2Config`, but for the sizes.
const ABSENT: RmsDefaults<'static> = RmsDefaults {
    key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 8192,
    activation: ("hidden_activation", Activation::GeluTanh),
    tie_word_embeddings: true,
    ..DEFAULTS
};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        key_value_heads: Some(16),
        activation: ("hidden_act", Activation::GeluTanh),
        ..ABSENT
    };
    let config = read_both(fields, &absent)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    // The first files say the one and mean the other.
    let activation = match config.activation {
        Activation::Gelu => Activation::GeluTanh,
        other => other,
    };
    Ok(RmsConfig { activation, ..config })
}

pub(super) fn read_gemma2(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = read_both(fields, &ABSENT)?;
    let window = sliding_window(fields, DEFAULT_WINDOW)?;
    if window.is_none() {
        return Err(fields.refuse("sliding_window", "some layers need one".to_owned()));
    }
    let by_rule = (0..config.num_hidden_layers).map(|layer| window.filter(|_| layer % 2 == 0));
    let query_pre_attn_scalar =
        fields.number_within_or("query_pre_attn_scalar", 256.0, 1e-6, 1e6)?;
    Ok(RmsConfig {
        norms: BlockNorms::Around,
        windows: layer_windows(fields, window, by_rule.collect())?,
        query_pre_attn_scalar: Some(query_pre_attn_scalar),
        attention_softcap: softcap(fields, "attn_logit_softcapping", 50.0)?,
        logit_softcap: softcap(fields, "final_logit_softcapping", 30.0)?,
        ..config
    })
}

/// As Gemma 2 without the norms behind attention and MLP.
pub(super) fn read_vaultgemma(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let renamed = &[(r"\.post_attention_layernorm\.", ".pre_feedforward_layernorm.")];
    Ok(RmsConfig { norms: BlockNorms::Before, renamed, ..read_gemma2(fields)? })
}

/// What all have.
fn read_both(fields: &Fields<'_>, absent: &RmsDefaults<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, absent)?.with_rope(fields)?.with_attention_bias(fields)?;
    Ok(RmsConfig {
        norm_plus_one: fields.flag_or("rms_norm_add_unit_offset", true)?,
        embed_scale: Some((config.hidden_size as f64).sqrt()),
        ..config
    })
}

/// What something stays below in magnitude; nothing if the field is null.
pub(super) fn softcap(fields: &Fields<'_>, field: &str, absent: f64) -> Result<Option<f64>, Error> {
    match fields.has(field) {
        true if fields.get(field).is_none() => Ok(None),
        true => fields.number_within(field, 1e-3, 1e6).map(Some),
        false => Ok(Some(absent)),
    }
}

pub(super) const GEMMA: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Read),
    // Said beside the other by files of later versions.
    ("hidden_activation", Only(&["\"gelu_pytorch_tanh\""])),
    ("max_window_layers", Effect::UNSET),
    ("mlp_bias", Effect::OFF),
    // Off in GGUF files, whose weights have it added.
    ("rms_norm_add_unit_offset", Read),
    ("sliding_window", Effect::UNSET),
    ("use_sliding_window", Effect::OFF),
];

pub(super) const GEMMA2: &[KnownField] = &[
    ("attention_bias", Read),
    ("attn_logit_softcapping", Read),
    ("cache_implementation", Harmless),
    ("final_logit_softcapping", Read),
    // The other one counts.
    ("hidden_act", Harmless),
    ("hidden_activation", Read),
    ("mlp_bias", Effect::OFF),
    ("query_pre_attn_scalar", Read),
    ("rms_norm_add_unit_offset", Read),
    ("sliding_window", Read),
    ("sliding_window_size", Harmless),
    ("use_sliding_window", Effect::UNSET),
];
