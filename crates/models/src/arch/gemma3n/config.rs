//! The configuration of Gemma 3n's text part.

use serde_json::Value;

use crate::Error;
use crate::arch::gemma3::{self, TEXT_PART};
use crate::arch::gemma4::{Gemma4Config, Gemma4Layer, PerLayerConfig, key_value_sources};
use crate::arch::rms_config::{DEFAULTS, FIELDS, RmsConfig, RmsDefaults};
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{
    COMMON, Fields, KnownField, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, check, layer_windows,
    sliding_window,
};
use crate::layers::Activation;

/// The configuration of a Gemma 3n's text part.
#[derive(Debug, Clone, PartialEq)]
pub struct Gemma3nConfig {
    /// What Gemma 4 has too.
    pub base: Gemma4Config,
    /// The inputs that each layer has of its own.
    pub inputs: PerLayerConfig,
    /// Of each layer, how many deviations above its mean what the MLP's gate lets through is, if it
    /// does not let through all.
    pub deviations: Vec<Option<f64>>,
    /// The residual streams.
    pub altup: AltUpConfig,
    /// Width of the low-rank path beside attention.
    pub laurel_rank: usize,
}

/// The residual streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AltUpConfig {
    /// How many there are.
    pub streams: usize,
    /// Which of them is computed.
    pub active: usize,
    /// Whether that is scaled where a layer's own input is taken.
    pub scales_output: bool,
}

/// The most residual streams.
const MAX_STREAMS: usize = 16;

/// The fields of that type.
pub(super) fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
    match model_type {
        "gemma3n" => &[MULTIMODAL],
        _ => &[TEXT, FIELDS],
    }
}

pub(super) fn read(model_type: &str, fields: &Fields<'_>) -> Result<Gemma3nConfig, Error> {
    if model_type != "gemma3n" {
        return read_text(fields);
    }
    let text = fields.required_object("text_config")?;
    check(&text, &[TEXT_TYPE, TEXT_PART, TEXT, FIELDS, COMMON])?;
    let mut config = read_text(&text)?;
    // That of the whole model counts.
    config.base.text.tie_word_embeddings = fields.flag_or("tie_word_embeddings", true)?;
    Ok(config)
}

fn read_text(fields: &Fields<'_>) -> Result<Gemma3nConfig, Error> {
    let layers = fields.size_or("num_hidden_layers", 35, MAX_LAYERS)?;
    let widths = widths(fields, layers)?;
    let config = RmsConfig::read_with_inner(fields, &ABSENT, widths[0])?;
    let config = config.with_attention_bias(fields)?;
    let window = sliding_window(fields, 512)?;
    if window.is_none() {
        return Err(fields.refuse("sliding_window", "a gemma3n_text needs one".to_owned()));
    }
    let by_rule = (1..=layers).map(|layer| window.filter(|_| layer % 5 != 0)).collect();
    let windows = layer_windows(fields, window, by_rule)?;
    let field = "num_kv_shared_layers";
    let shared = match fields.get(field).and_then(Value::as_u64) {
        Some(0) => 0,
        _ => fields.size_or(field, 15, MAX_LAYERS)?,
    };
    let sources = key_value_sources(fields, field, &windows, shared, false)?;
    let layer = |(source, intermediate_size)| Gemma4Layer {
        key_value_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        intermediate_size,
        source,
    };
    let of_layers = sources.into_iter().zip(widths).map(layer).collect();
    let around = config.rope_context(fields);
    let rope = gemma3::rope(&around, "full_attention", ("rope_theta", 1e6))?;
    let local = gemma3::rope(&around, "sliding_attention", ("rope_local_base_freq", 1e4))?;
    let softcap = "final_logit_softcapping";
    let logit_softcap = match (fields.has(softcap), fields.get(softcap)) {
        (true, None) => None,
        (false, _) => Some(30.0),
        (true, Some(_)) => Some(fields.number_within(softcap, 1e-6, 1e6)?),
    };
    let streams = fields.size_or("altup_num_inputs", 4, MAX_STREAMS)?;
    let active = match fields.get("altup_active_idx") {
        None => 0,
        Some(value) => {
            let index = value.as_u64().filter(|&index| index < streams as u64);
            let expected = || format!("there are {streams} streams");
            index.ok_or_else(|| fields.refuse("altup_active_idx", expected()))? as usize
        }
    };
    let inputs = PerLayerConfig::read(fields, layers)?;
    let text = RmsConfig { rope, local_rope: Some(local), windows, logit_softcap, ..config };
    Ok(Gemma3nConfig {
        deviations: deviations(fields, layers)?,
        altup: AltUpConfig {
            streams,
            active,
            scales_output: fields.flag_or("altup_correct_scale", true)?,
        },
        laurel_rank: fields.size_or("laurel_rank", 64, MAX_HIDDEN)?,
        inputs,
        base: Gemma4Config { text, layers: of_layers, per_layer: Some(inputs) },
    })
}

/// Of each layer, the width of the MLP's inner layer.
fn widths(fields: &Fields<'_>, layers: usize) -> Result<Vec<usize>, Error> {
    let field = "intermediate_size";
    let Some(Value::Array(values)) = fields.get(field) else {
        return Ok(vec![fields.size_or(field, 16_384, MAX_INTERMEDIATE)?; layers]);
    };
    let width = |value: &Value| {
        let width = value.as_u64().and_then(|width| usize::try_from(width).ok());
        width.filter(|width| (1..=MAX_INTERMEDIATE).contains(width))
    };
    let widths: Option<Vec<_>> = values.iter().map(width).collect();
    widths.filter(|widths| widths.len() == layers).ok_or_else(|| {
        let expected = format!("a list must have {layers} numbers from 1 to {MAX_INTERMEDIATE}");
        fields.refuse(field, expected)
    })
}

/// Of each layer, how many deviations above its mean what the gate lets through is.
fn deviations(fields: &Fields<'_>, layers: usize) -> Result<Vec<Option<f64>>, Error> {
    let field = "activation_sparsity_pattern";
    let shares: Vec<f64> = match fields.get(field) {
        None => {
            let sparse = if layers > 10 { 10 } else { 0 };
            (0..layers).map(|layer| if layer < sparse { 0.95 } else { 0.0 }).collect()
        }
        Some(value) => {
            let share = |value: &Value| value.as_f64().filter(|share| (0.0..1.0).contains(share));
            let shares = value.as_array().and_then(|all| all.iter().map(share).collect());
            shares.filter(|shares: &Vec<_>| shares.len() == layers).ok_or_else(|| {
                let expected = format!("it must be a list of {layers} numbers from 0, below 1");
                fields.refuse(field, expected)
            })?
        }
    };
    Ok(shares.into_iter().map(|share| (share > 0.0).then(|| normal_quantile(share))).collect())
}

/// How many deviations above the mean a share of a normal distribution is below: the inverse of its
/// cumulative function, within 2e-9 of it
/// ([Acklam](https://web.archive.org/web/20151030215612/http://home.online.no/~pjacklam/notes/invnorm/)).
fn normal_quantile(share: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.38357751867269e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const B: [f64; 5] = [
        -5.447609879822406e1,
        1.615858368580409e2,
        -1.556989798598866e2,
        6.680131188771972e1,
        -1.328068155288572e1,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 4] =
        [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416];
    let polynomial = |factors: &[f64], x: f64| factors.iter().fold(0.0, |sum, f| sum * x + f);
    let tail = |share: f64| {
        let q = (-2.0 * share.ln()).sqrt();
        polynomial(&C, q) / (polynomial(&D, q) * q + 1.0)
    };
    const TAIL: f64 = 0.02425;
    match share {
        share if share < TAIL => tail(share),
        share if share > 1.0 - TAIL => -tail(1.0 - share),
        share => {
            let q = share - 0.5;
            let r = q * q;
            polynomial(&A, r) * q / (polynomial(&B, r) * r + 1.0)
        }
    }
}

/// Those of `Gemma3nTextConfig`.
const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("hidden_size", 2048),
        ("num_attention_heads", 8),
        ("num_hidden_layers", 35),
        ("vocab_size", 262_400),
    ],
    key_value_heads: Some(2),
    head_dim: Some(256),
    max_position_embeddings: 32_768,
    activation: ("hidden_activation", Activation::GeluTanh),
    tie_word_embeddings: true,
    ..DEFAULTS
};

const TEXT: &[KnownField] = &[
    ("activation_sparsity_pattern", Read),
    ("altup_active_idx", Read),
    // Of training.
    ("altup_coef_clip", Harmless),
    ("altup_correct_scale", Read),
    // No code of it is there.
    ("altup_lr_multiplier", Harmless),
    ("altup_num_inputs", Read),
    ("attention_bias", Read),
    ("final_logit_softcapping", Read),
    ("hidden_activation", Read),
    ("hidden_size_per_layer_input", Read),
    ("laurel_rank", Read),
    ("num_kv_shared_layers", Read),
    ("query_pre_attn_scalar", Harmless),
    ("rope_local_base_freq", Read),
    ("sliding_window", Read),
    ("vocab_size_per_layer_input", Read),
];

const TEXT_TYPE: &[KnownField] =
    &[("model_type", Effect::Only(&["\"gemma3n_text\""])), ("tie_word_embeddings", Harmless)];

/// Of a model that sees and hears too.
const MULTIMODAL: &[KnownField] = &[
    ("audio_config", Harmless),
    ("audio_soft_tokens_per_image", Harmless),
    ("audio_token_id", Harmless),
    ("boa_token_id", Harmless),
    ("boi_token_id", Harmless),
    ("eoa_token_id", Harmless),
    ("eoi_token_id", Harmless),
    ("image_token_id", Harmless),
    ("text_config", Read),
    ("vision_config", Harmless),
    ("vision_soft_tokens_per_image", Harmless),
];

#[cfg(test)]
mod tests {
    use super::normal_quantile;

    #[test]
    fn quantiles_are_those_of_torch() {
        // `torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(share, dtype=torch.float64))`
        for (share, expected) in [
            (0.95, 1.6448536269514717),
            (0.5, 0.0),
            (0.6, 0.2533471031357997),
            (0.01, -2.3263478740408408),
            (0.999, 3.0902323061678128),
        ] {
            let found = normal_quantile(share);
            assert!((found - expected).abs() < 1e-8, "{share}: {found} for {expected}");
        }
    }
}
