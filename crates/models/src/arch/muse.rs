//! Muse Glimmer, its text part: gated attention with norms of queries and keys that have no
//! weights, norms around attention and MLP, and layers of a sliding window before each that sees
//! everything and rotates nothing. Meta 2026
//! (<https://huggingface.co/meta-models/Muse-Glimmer-30B>).

mod experts;
mod spark;

pub use experts::{InputScaledRmsNorm, MuseSparkMoe};
pub use spark::{MuseSparkForCausalLm, MuseSparkResidualGate, MuseSparkTextDecoderLayer};

use super::gemma::softcap;
use super::gemma3::TEXT_PART;
use super::rms_config::{BlockNorms, DEFAULTS, FIELDS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::architecture::MultimodalNames;
use crate::config::Effect::{Harmless, Only, Read};
use crate::config::{COMMON, Fields, KnownField, check, epsilon, layer_windows, sliding_window};
use crate::layers::{Activation, AttentionGate, GateFunction, GateProjection};

/// Those of `MuseGlimmerTextConfig`.
const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 202_048),
        ("hidden_size", 6656),
        ("intermediate_size", 19_968),
        ("num_hidden_layers", 52),
        ("num_attention_heads", 32),
    ],
    key_value_heads: Some(2),
    head_dim: Some(128),
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-5,
    activation: ("hidden_activation", Activation::Silu),
    ..DEFAULTS
};

/// Reads the text part.
pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    check(&text, &[GLIMMER, TEXT, TEXT_PART, FIELDS, COMMON])?;
    read_text(fields, &text, &ABSENT, [3.87, 0.196_116_135_131_838_04])
}

/// The same of any Muse: what else stands in place of absent fields, and what multiplies queries
/// and logits then.
fn read_text(
    fields: &Fields<'_>,
    text: &Fields<'_>,
    absent: &RmsDefaults<'_>,
    [of_queries, of_logits]: [f64; 2],
) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(text, absent)?.with_rope(text)?.with_attention_bias(text)?;
    let layers = config.num_hidden_layers;
    let sees_all = |layer: usize| (layers - 1 - layer).is_multiple_of(4);
    let window = sliding_window(text, 2048)?;
    let by_rule = (0..layers).map(|layer| window.filter(|_| !sees_all(layer))).collect();
    let factor = |field, absent| text.number_within_or(field, absent, 1e-6, 1e6);
    let scale = factor("qk_scale_factor", of_queries)?;
    Ok(RmsConfig {
        norms: BlockNorms::Around,
        norm_plus_one: true,
        last_norm_plain: true,
        post_norm_eps: Some(epsilon(text, "post_norm_eps", 1e-8)?),
        embed_norm: true,
        query_key_norms: Some(QueryKeyNorms::Unit),
        query_pre_attn_scalar: Some(config.head_dim as f64 / scale.powi(2)),
        attention_gate: Some(AttentionGate {
            projection: GateProjection::Gate,
            function: GateFunction::Sigmoid,
            of_heads: false,
        }),
        logit_scale: Some(factor("output_multiplier", of_logits)?),
        logit_softcap: softcap(text, "final_logit_softcapping", 20.0)?,
        windows: layer_windows(text, window, by_rule)?,
        rotated_layers: rotated_layers(text, &config, sees_all)?,
        // That of the whole model counts.
        tie_word_embeddings: fields.flag_or("tie_word_embeddings", false)?,
        ..config
    })
}

/// Of each layer, whether it rotates queries and keys: those whose base is not 0.
fn rotated_layers(
    text: &Fields<'_>,
    config: &RmsConfig,
    sees_all: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, Error> {
    let (field, layers, base) = ("layer_rope_theta", config.num_hidden_layers, config.rope.theta);
    let Some(value) = text.get(field) else {
        return Ok((0..layers).map(|layer| !sees_all(layer)).collect());
    };
    let rotates = |value: &serde_json::Value| match value.as_f64() {
        Some(0.0) => Some(false),
        Some(theta) => (theta == base).then_some(true),
        None => None,
    };
    let all = value.as_array().and_then(|all| all.iter().map(rotates).collect::<Option<Vec<_>>>());
    all.filter(|all| all.len() == layers).ok_or_else(|| {
        let expected = format!("it must be a list of {layers}, each 0 or the base, {base}");
        text.refuse(field, expected)
    })
}

/// Of `text_config`, of any Muse.
const TEXT: &[KnownField] = &[
    ("attention_bias", Read),
    ("final_logit_softcapping", Read),
    ("layer_rope_theta", Read),
    ("output_multiplier", Read),
    ("post_norm_eps", Read),
    ("qk_scale_factor", Read),
    ("sliding_window", Read),
];

const GLIMMER: &[KnownField] =
    &[("hidden_activation", Read), ("model_type", Only(&["\"muse_glimmer_text\""]))];

/// Of the whole model.
pub(super) const MULTIMODAL: &[KnownField] = &[
    ("audio_config", Harmless),
    ("audio_token_id", Harmless),
    ("image_token_id", Harmless),
    ("out_hidden_size", Harmless),
    ("projector_hidden_act", Harmless),
    ("projector_hidden_size", Harmless),
    ("text_config", Read),
    ("video_token_id", Harmless),
    ("vision_config", Harmless),
];

pub(super) const NAMES: MultimodalNames = MultimodalNames {
    prefixes: &[("model.language_model.", "model.")],
    others: &[
        "model.audio_tower.",
        "model.vision_adapter.",
        "model.vision_projection.",
        "model.vision_tower.",
    ],
};
