//! Fields of models with Mamba-2 in some layers.

use outsize_kernels::{LinearAttentionHeads, StateRule};
use serde_json::Value;

use super::mamba_fields::{self, RATES_NEGATED};
use super::qwen3_next::convolution_taps;
use super::rms_config::RmsConfig;
use crate::Error;
use crate::config::Effect::{Harmless, Read};
use crate::config::{Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS};
use crate::layers::{Mamba2Config, Mamba2Norm};

/// Those of IBM's models and Falcon-H1.
pub(super) const MAMBA2: &[KnownField] = &[
    (RATES_NEGATED, Read),
    ("mamba_conv_bias", Read),
    ("mamba_d_conv", Read),
    ("mamba_d_head", Read),
    ("mamba_d_state", Read),
    ("mamba_expand", Read),
    ("mamba_n_groups", Read),
    ("mamba_n_heads", Read),
    ("mamba_proj_bias", Read),
    ("time_step_limit", Read),
    // How many tokens are computed at once, how weights were drawn, and with which kernels.
    ("mamba_chunk_size", Harmless),
    ("num_logits_to_keep", Harmless),
    ("time_step_floor", Harmless),
    ("time_step_max", Harmless),
    ("time_step_min", Harmless),
    ("time_step_rank", Harmless),
    ("use_mamba_kernels", Harmless),
];

/// Reads these, of a model whose Mamba-2 is `inner` wide, or else a multiple of the residual
/// stream.
pub(super) fn read_mamba2(
    fields: &Fields<'_>,
    config: &RmsConfig,
    inner: Option<usize>,
) -> Result<Mamba2Config, Error> {
    mamba_fields::refuse_other_functions(fields, config, "Mamba-2")?;
    let multiple = mamba_fields::inner(fields, "mamba_expand", config.hidden_size)?;
    let inner = inner.unwrap_or(multiple);
    let heads = fields.size_or("mamba_n_heads", 128, MAX_HEADS)?;
    if !inner.is_multiple_of(heads) {
        let expected = format!("it must divide the width of all heads, {inner}");
        return Err(fields.refuse("mamba_n_heads", expected));
    }
    let width = inner / heads;
    let field = "mamba_d_head";
    let is_auto = fields.get(field).is_none_or(|value| value.as_str() == Some("auto"));
    if width > MAX_HEAD_DIM || !is_auto && fields.size(field, MAX_HEAD_DIM)? != width {
        let expected = format!("{heads} heads of a width of {inner} must be as wide as it says");
        return Err(fields.refuse(field, expected));
    }
    let in_bias = fields.flag_or("mamba_proj_bias", false)?;
    Ok(Mamba2Config {
        heads: LinearAttentionHeads {
            key_heads: groups(fields, "mamba_n_groups", 1, heads)?,
            value_heads: heads,
            key_dim: fields.size_or("mamba_d_state", 256, MAX_HEAD_DIM)?,
            value_dim: width,
            in_turns: false,
        },
        taps: convolution_taps(fields, "mamba_d_conv", 4)?,
        conv_bias: fields.flag_or("mamba_conv_bias", true)?,
        in_bias,
        out_bias: in_bias,
        rule: state_rule(fields, Some("time_step_limit"))?,
        norm: Some(Mamba2Norm { epsilon: config.rms_norm_eps, is_before_gate: false }),
        multipliers: [1.0; 5],
    })
}

/// Reads those of Nemotron-H and of models of Mamba-2 alone, of so many heads of that width, with
/// such steps and rates.
pub(super) fn read_mamba2_of(
    fields: &Fields<'_>,
    state: &str,
    [value_heads, value_dim]: [usize; 2],
    rule: StateRule,
    epsilon: f64,
) -> Result<Mamba2Config, Error> {
    let bias = fields.flag_or("use_bias", false)?;
    Ok(Mamba2Config {
        heads: LinearAttentionHeads {
            key_heads: groups(fields, "n_groups", 8, value_heads)?,
            value_heads,
            key_dim: fields.size_or(state, 128, MAX_HEAD_DIM)?,
            value_dim,
            in_turns: false,
        },
        taps: convolution_taps(fields, "conv_kernel", 4)?,
        conv_bias: fields.flag_or("use_conv_bias", true)?,
        in_bias: bias,
        out_bias: bias,
        rule,
        norm: Some(Mamba2Norm { epsilon, is_before_gate: false }),
        multipliers: [1.0; 5],
    })
}

/// Groups of heads that have the same keys and queries.
fn groups(fields: &Fields<'_>, field: &str, absent: usize, heads: usize) -> Result<usize, Error> {
    match fields.size_or(field, absent, MAX_HEADS)? {
        groups if heads.is_multiple_of(groups) => Ok(groups),
        _ => Err(fields.refuse(field, format!("it must divide the number of heads, {heads}"))),
    }
}

/// What steps and rates are, with the least step and the greatest of a field, if one says them.
pub(super) fn state_rule(fields: &Fields<'_>, limits: Option<&str>) -> Result<StateRule, Error> {
    let rates_are_negated = fields.flag_or(RATES_NEGATED, false)?;
    let rule = StateRule { rates_are_negated, ..StateRule::default() };
    let Some((field, value)) = limits.and_then(|field| Some((field, fields.get(field)?))) else {
        return Ok(rule);
    };
    let number = |value: &Value| match value.as_f64() {
        Some(number) => Some(number as f32),
        None => (value.get("__float__")?.as_str()? == "Infinity").then_some(f32::INFINITY),
    };
    let limits = match value.as_array().map(Vec::as_slice) {
        Some([least, greatest]) => number(least).zip(number(greatest)),
        _ => None,
    };
    match limits {
        Some((least, greatest)) if 0.0 <= least && least <= greatest && least.is_finite() => {
            Ok(StateRule { limits: [least, greatest], ..rule })
        }
        _ => {
            let expected = "it must be two numbers from 0 to infinity, the lesser one first";
            Err(fields.refuse(field, expected.to_owned()))
        }
    }
}
