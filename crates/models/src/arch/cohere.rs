//! Command R: attention and MLP side by side behind one LayerNorm, neighbouring elements of a head
//! rotated together, and scaled logits; the later ones with layers of a sliding window, which alone
//! rotate. Cohere 2024 (<https://docs.cohere.com/docs/command-r>), 2025 (arXiv:2504.00698).

use super::gemma3::TEXT_PART;
use super::rms_config::{BlockNormKind, BlockNorms, DEFAULTS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    COMMON, DEFAULT_WINDOW, Fields, KnownField, MAX_LAYERS, check, layer_windows, sliding_window,
};

pub(super) const ABSENT: RmsDefaults<'static> = RmsDefaults {
    max_position_embeddings: 8192,
    rms_norm_eps: 1e-5,
    epsilon: "layer_norm_eps",
    tie_word_embeddings: true,
    ..DEFAULTS
};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = read_both(fields, &RmsDefaults { rope_theta: 500_000.0, ..ABSENT })?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    Ok(config)
}

pub(super) fn read_cohere2(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = read_both(fields, &ABSENT)?;
    if config.head_dim * config.num_attention_heads != config.hidden_size {
        let expected = "the heads must be as wide as hidden_size together".to_owned();
        return Err(fields.refuse("head_dim", expected));
    }
    let window = sliding_window(fields, DEFAULT_WINDOW)?;
    if window.is_none() {
        return Err(fields.refuse("sliding_window", "a cohere2 needs one".to_owned()));
    }
    let pattern = fields.size_or("sliding_window_pattern", 4, MAX_LAYERS)?;
    let slides = |layer: usize| !(layer + 1).is_multiple_of(pattern);
    let by_rule = (0..config.num_hidden_layers).map(|n| window.filter(|_| slides(n))).collect();
    let windows = layer_windows(fields, window, by_rule)?;
    let rotated_layers = windows.iter().map(Option::is_some).collect();
    Ok(RmsConfig { rotated_layers, windows, ..config })
}

/// The text part of a model that sees images too.
pub(super) fn read_part(model_type: &str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    check(&text, &[TEXT_TYPE, TEXT_PART, COHERE2, COHERE, LAYER_NORM_FIELDS, COMMON])?;
    // What the whole model says of its head counts.
    let tie_word_embeddings = fields.flag_or("tie_word_embeddings", true)?;
    let part = read_cohere2(&text)?;
    // Of Command A Vision logits are as they come.
    let logit_scale = part.logit_scale.filter(|_| model_type == AYA_VISION);
    Ok(RmsConfig { logit_scale, tie_word_embeddings, ..part })
}

/// What all have.
pub(super) fn read_both(fields: &Fields<'_>, absent: &RmsDefaults<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, absent)?.with_rope(fields)?.with_attention_bias(fields)?;
    let logit_scale = fields.number_within_or("logit_scale", 0.0625, 1e-6, 1e6)?;
    Ok(RmsConfig {
        norms: BlockNorms::Parallel,
        norm_kind: BlockNormKind::Layer { bias: false },
        logit_scale: Some(logit_scale),
        rope_interleaved: true,
        ..config
    })
}

const TEXT_TYPE: &[KnownField] =
    &[("model_type", Only(&["\"cohere2\""])), ("tie_word_embeddings", Harmless)];

/// Of a model that sees images too.
pub(super) const MULTIMODAL: &[KnownField] = &[
    ("alignment_intermediate_size", Harmless),
    ("downsample_factor", Harmless),
    ("image_token_id", Harmless),
    ("text_config", Read),
    ("vision_config", Harmless),
];

/// What it is called.
pub(super) const VISION: &str = "cohere2_vision";

/// Of Aya Vision.
pub(super) const AYA_MULTIMODAL: &[KnownField] = &[
    ("adapter_layer_norm_eps", Harmless),
    ("alignment_intermediate_size", Harmless),
    ("downsample_factor", Harmless),
    ("image_token_id", Harmless),
    ("image_token_index", Harmless),
    ("max_splits_per_img", Harmless),
    ("text_config", Read),
    ("vision_config", Harmless),
    ("vision_feature_layer", Only(&["-1"])),
    ("vision_feature_select_strategy", Only(&["\"full\""])),
];

/// What that is called.
pub(super) const AYA_VISION: &str = "aya_vision";

/// Of both.
pub(super) const COHERE: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Read),
    ("layer_norm_eps", Read),
    ("logit_scale", Read),
    ("max_window_layers", Effect::UNSET),
    ("mlp_bias", Effect::OFF),
    ("model_max_length", Harmless),
];

pub(super) const COHERE2: &[KnownField] = &[
    ("_sliding_window_pattern", Harmless),
    ("cache_implementation", Harmless),
    ("layer_switch", Harmless),
    ("order_of_interleaved_layers", Only(&["\"local_attn_first\""])),
    ("position_embedding_type", Only(&["\"rope_gptj\""])),
    ("rotary_pct", Effect::ONE),
    ("sliding_window", Read),
    ("sliding_window_pattern", Read),
    ("use_embedding_sharing", Harmless),
    ("use_gated_activation", Effect::ON),
    ("use_parallel_block", Effect::ON),
    ("use_parallel_embedding", Effect::OFF),
];

pub(super) const COHERE1: &[KnownField] =
    &[("sliding_window", Effect::UNSET), ("use_sliding_window", Effect::OFF)];

/// Those of decoders with Llama's names and LayerNorm: as [`FIELDS`](super::rms_config::FIELDS),
/// but for what the norm adds, whose field has several names.
pub(super) const LAYER_NORM_FIELDS: &[KnownField] = &[
    ("head_dim", Read),
    ("hidden_size", Read),
    ("intermediate_size", Read),
    ("layer_types", Read),
    ("max_position_embeddings", Read),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("num_key_value_heads", Read),
    ("original_max_position_embeddings", Read),
    // Nothing reads it.
    ("rms_norm_eps", Harmless),
    ("rope_parameters", Read),
    ("rope_scaling", Read),
    ("rope_theta", Read),
];
