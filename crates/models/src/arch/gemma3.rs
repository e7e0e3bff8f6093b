//! Gemma 3, its text part: four norms a block, and layers of a sliding window with a rotary base of
//! their own between those that see everything. Gemma Team 2025 (arXiv:2503.19786).

use super::rms_config::{BlockNorms, DEFAULTS, FIELDS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::architecture::MultimodalNames;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{
    COMMON, DEFAULT_WINDOW, Fields, KnownField, MAX_LAYERS, ROPE, RopeConfig, RopeContext,
    RopeScaling, check, layer_windows, sliding_window, theta,
};
use crate::layers::Activation;

/// Those of `Gemma3TextConfig`.
const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("hidden_size", 2304),
        ("intermediate_size", 9216),
        ("num_attention_heads", 8),
        ("num_hidden_layers", 26),
        ("vocab_size", 262_208),
    ],
    key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 131_072,
    activation: ("hidden_activation", Activation::GeluTanh),
    tie_word_embeddings: true,
    ..DEFAULTS
};

/// Reads the text part of a model that sees images too.
pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    check(&text, &[NESTED_TEXT, TEXT_PART, TEXT, FIELDS, COMMON])?;
    // That of the whole model counts.
    let tie_word_embeddings = fields.flag_or("tie_word_embeddings", true)?;
    Ok(RmsConfig { tie_word_embeddings, ..read_text(&text)? })
}

/// Reads the configuration of the text part alone.
pub(super) fn read_text(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &ABSENT)?.with_attention_bias(fields)?;
    let query_pre_attn_scalar =
        fields.number_within_or("query_pre_attn_scalar", 256.0, 1e-6, 1e6)?;
    let window = sliding_window(fields, DEFAULT_WINDOW)?;
    if window.is_none() {
        return Err(fields.refuse("sliding_window", "a gemma3_text needs one".to_owned()));
    }
    let pattern = fields.size_or("sliding_window_pattern", 6, MAX_LAYERS)?;
    let slides = |layer: usize| !(layer + 1).is_multiple_of(pattern);
    let by_rule = (0..config.num_hidden_layers).map(|n| window.filter(|_| slides(n))).collect();
    let around = config.rope_context(fields);
    let local = rope(&around, "sliding_attention", ("rope_local_base_freq", 10_000.0))?;
    Ok(RmsConfig {
        norms: BlockNorms::Around,
        norm_plus_one: fields.flag_or("rms_norm_add_unit_offset", true)?,
        query_key_norms: Some(QueryKeyNorms::EachHead),
        query_pre_attn_scalar: Some(query_pre_attn_scalar),
        embed_scale: Some((config.hidden_size as f64).sqrt()),
        rope: rope(&around, "full_attention", ("rope_theta", 1_000_000.0))?,
        local_rope: Some(local),
        windows: layer_windows(fields, window, by_rule)?,
        ..config
    })
}

/// The rotary embedding of one kind of layers: in `rope_parameters` under that name, or as files
/// had it before: with the base in a field, and scaled, if it is not the local one, by
/// `rope_scaling`.
pub(super) fn rope(
    around: &RopeContext<'_>,
    kind: &'static str,
    (base, absent): (&'static str, f64),
) -> Result<RopeConfig, Error> {
    let fields = around.fields;
    let theta = theta(fields, base, absent)?;
    let read = |object: &Fields<'_>| RopeConfig::read_object(object, around, theta, &[ROPE]);
    let plain = RopeConfig { theta, scaling: RopeScaling::Default };
    match (fields.object("rope_parameters")?, fields.object("rope_scaling")?) {
        (Some(_), Some(_)) => {
            let expected = "beside `rope_parameters` it is not supported".to_owned();
            Err(fields.refuse("rope_scaling", expected))
        }
        (Some(nested), None) => {
            check(&nested, &[NESTED])?;
            nested.object(kind)?.map_or(Ok(plain), |object| read(&object))
        }
        (None, Some(object)) if kind == "full_attention" => read(&object),
        (None, _) => Ok(plain),
    }
}

/// Of `rope_parameters`, whose objects are those of kinds of layers.
pub(super) const NESTED: &[KnownField] = &[("full_attention", Read), ("sliding_attention", Read)];

pub(super) const TEXT: &[KnownField] = &[
    // What is saved beside `layer_types`, and not read again.
    ("_sliding_window_pattern", Harmless),
    ("attention_bias", Read),
    ("cache_implementation", Harmless),
    ("hidden_activation", Read),
    ("query_pre_attn_scalar", Read),
    // Off in GGUF files, whose weights have it added.
    ("rms_norm_add_unit_offset", Read),
    ("rope_local_base_freq", Read),
    ("sliding_window", Read),
    ("sliding_window_pattern", Read),
    ("use_sliding_window", Effect::UNSET),
];

/// Of `text_config`, beside [`TEXT`].
const NESTED_TEXT: &[KnownField] =
    &[("model_type", Effect::Only(&["\"gemma3_text\""])), ("tie_word_embeddings", Harmless)];

/// Of any `text_config`: the whole model's count.
pub(super) const TEXT_PART: &[KnownField] =
    &[("dtype", Harmless), ("quantization_config", Effect::UNSET), ("torch_dtype", Harmless)];

/// Of a model that sees images too.
pub(super) const MULTIMODAL: &[KnownField] = &[
    ("boi_token_id", Harmless),
    ("boi_token_index", Harmless),
    ("eoi_token_id", Harmless),
    ("eoi_token_index", Harmless),
    ("image_token_id", Harmless),
    ("image_token_index", Harmless),
    ("mm_tokens_per_image", Harmless),
    ("text_config", Read),
    ("vision_config", Harmless),
];

pub(super) const NAMES: MultimodalNames = MultimodalNames {
    prefixes: &[("model.language_model.", "model."), ("language_model.", "")],
    others: &[
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ],
};
