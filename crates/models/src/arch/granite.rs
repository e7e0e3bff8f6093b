//! Granite: Llama's blocks with a multiplier at each place where scales matter; in some models with
//! sinks, and a sliding window in most layers. Granite Team 2024
//! (<https://github.com/ibm-granite/granite-3.0-language-models>), 2026
//! (<https://huggingface.co/ibm-granite/granite-swash-3b-a600m>). HyperCLOVA X SEED Think has its
//! multipliers, and norms behind attention and MLP. NAVER Cloud 2025
//! (<https://huggingface.co/naver-hyperclovax/HyperCLOVAX-SEED-Think-14B>).

use super::rms_config::{BlockNorms, DEFAULTS, RmsConfig, RmsDefaults, SinkLayers};
use crate::Error;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, MAX_POSITIONS, RopeConfig, layer_windows, multiplier};

/// Of Granite with a sliding window.
const SWA: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 100_352),
        ("hidden_size", 2560),
        ("intermediate_size", 8192),
        ("num_hidden_layers", 24),
        ("num_attention_heads", 20),
    ],
    key_value_heads: Some(4),
    max_position_embeddings: 8192,
    rms_norm_eps: 1e-5,
    tie_word_embeddings: true,
    ..DEFAULTS
};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &DEFAULTS)?.with_rope(fields)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    scaled(fields, config)
}

pub(super) fn read_hyperclovax(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = read(fields)?;
    let norms = match fields.flag_or("use_post_norm", true)? {
        true => BlockNorms::AroundGlm,
        false => BlockNorms::Before,
    };
    // As other models, unless said otherwise.
    let scores = fields.get("attention_multiplier").and(config.query_pre_attn_scalar);
    Ok(RmsConfig {
        query_pre_attn_scalar: scores,
        // It multiplies here.
        logit_scale: multiplier(fields, "logits_scaling")?,
        norms,
        renamed: &[
            (r"\.post_self_attn_layernorm\.", ".post_norm1."),
            (r"\.post_mlp_layernorm\.", ".post_norm2."),
        ],
        ..config
    })
}

pub(super) fn read_swa(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    with_windows(fields, RmsConfig::read(fields, &SWA)?)
}

/// With sinks, and a sliding window in most layers.
pub(super) fn with_windows(fields: &Fields<'_>, config: RmsConfig) -> Result<RmsConfig, Error> {
    let config = scaled(fields, config.with_rope(fields)?)?;
    let layers = config.num_hidden_layers;
    let window = match fields.has("sliding_window") && fields.get("sliding_window").is_none() {
        true => return Err(fields.refuse("sliding_window", "some layers need one".to_owned())),
        false => fields.size_or("sliding_window", 128, MAX_POSITIONS)?,
    };
    let by_rule = (0..layers).map(|layer| (layer % 4 != 0).then_some(window));
    let config = RmsConfig {
        attention_sinks: SinkLayers::All,
        windows: layer_windows(fields, Some(window), by_rule.collect())?,
        ..config
    };
    let field = "layer_rope_theta";
    let Some(thetas) = fields.get(field) else {
        return Ok(config);
    };
    let bases: Option<Vec<_>> =
        thetas.as_array().and_then(|all| all.iter().map(|theta| theta.as_f64()).collect());
    let is_base = |theta: &f64| *theta == 0.0 || (1.0..=1e30).contains(theta);
    let bases = bases.filter(|bases| bases.len() == layers && bases.iter().all(is_base));
    // Of layers of one kind, those that rotate have one base.
    let base_of = |bases: &[f64], slides: bool| {
        let of_kind = bases
            .iter()
            .zip(&config.windows)
            .filter(|(base, window)| **base != 0.0 && window.is_some() == slides);
        let mut of_kind = of_kind.map(|(base, _)| *base);
        let first = of_kind.next();
        of_kind.all(|base| Some(base) == first).then_some(first.unwrap_or(config.rope.theta))
    };
    let both =
        bases.as_ref().and_then(|bases| Some((base_of(bases, false)?, base_of(bases, true)?)));
    let (Some(bases), Some((full, local))) = (bases, both) else {
        let expected = format!(
            "it must be a list of {layers} bases, or 0; the same in layers that slide, and in those that see everything"
        );
        return Err(fields.refuse(field, expected));
    };
    let rope = |theta| RopeConfig { theta, ..config.rope.clone() };
    Ok(RmsConfig {
        rope: rope(full),
        local_rope: Some(rope(local)),
        rotated_layers: bases.iter().map(|base| *base != 0.0).collect(),
        ..config
    })
}

/// The same with Granite's multipliers and biases.
pub(super) fn scaled(fields: &Fields<'_>, config: RmsConfig) -> Result<RmsConfig, Error> {
    // Scores are multiplied by this itself, not by the root of it.
    let attention = multiplier(fields, "attention_multiplier")?.unwrap_or(1.0);
    Ok(RmsConfig {
        gates_apart: fields.flag_or("gates_apart", false)?,
        rope_interleaved: fields.flag_or("rope_interleaved", false)?,
        mlp_bias: fields.flag_or("mlp_bias", false)?,
        query_pre_attn_scalar: Some(attention.powi(-2)),
        embed_scale: multiplier(fields, "embedding_multiplier")?,
        residual_scale: multiplier(fields, "residual_multiplier")?,
        logit_scale: multiplier(fields, "logits_scaling")?.map(f64::recip),
        ..config.with_attention_bias(fields)?
    })
}

/// Beside those of Granite.
pub(super) const HYPERCLOVAX: &[KnownField] = &[("use_post_norm", Read)];

/// Beside those of others.
pub(super) const WINDOWS: &[KnownField] = &[("layer_rope_theta", Read), ("sliding_window", Read)];

pub(super) const GRANITE: &[KnownField] = &[
    ("attention_bias", Read),
    ("attention_multiplier", Read),
    ("embedding_multiplier", Read),
    ("hidden_act", Read),
    ("logits_scaling", Read),
    ("mlp_bias", Read),
    ("residual_multiplier", Read),
    ("rope_interleaved", Read),
];
