//! Fields of models with Mamba in some layers.

use super::qwen3_next::convolution_taps;
use super::rms_config::RmsConfig;
use crate::Error;
use crate::config::{Fields, MAX_HEAD_DIM, MAX_HIDDEN, MAX_INTERMEDIATE};
use crate::layers::{Activation, MambaConfig, MambaNorms};

/// How a model calls them.
pub(super) struct MambaFields {
    pub state: &'static str,
    pub rank: &'static str,
    pub taps: &'static str,
    pub conv_bias: &'static str,
    pub bias: &'static str,
}

/// Says whether rates are stored negated, as in GGUF files.
pub(super) const RATES_NEGATED: &str = "linear_rates_negated";

/// Reads them, of a model with so many channels.
pub(super) fn read_mamba(
    fields: &Fields<'_>,
    names: &MambaFields,
    config: &RmsConfig,
    inner: usize,
    norms: Option<MambaNorms>,
) -> Result<MambaConfig, Error> {
    refuse_other_functions(fields, config, "Mamba")?;
    let rank = names.rank;
    let is_auto = fields.get(rank).is_none_or(|value| value.as_str() == Some("auto"));
    Ok(MambaConfig {
        inner,
        state: fields.size_or(names.state, 16, MAX_HEAD_DIM)?,
        rank: match is_auto {
            true => config.hidden_size.div_ceil(16),
            false => fields.size(rank, MAX_HIDDEN)?,
        },
        taps: convolution_taps(fields, names.taps, 4)?,
        conv_bias: fields.flag_or(names.conv_bias, true)?,
        bias: fields.flag_or(names.bias, false)?,
        norms,
        rates_are_negated: fields.flag_or(RATES_NEGATED, false)?,
    })
}

/// Refuses a function that is not SiLU beside what is called so.
pub(super) fn refuse_other_functions(
    fields: &Fields<'_>,
    config: &RmsConfig,
    beside: &str,
) -> Result<(), Error> {
    match config.activation {
        Activation::Silu => Ok(()),
        // The convolution has it too, and is built in with this one alone.
        _ => {
            let expected = format!("beside {beside} only \"silu\" is supported");
            Err(fields.refuse("hidden_act", expected))
        }
    }
}

/// How many channels there are, by the name of the field that says it for each value of the
/// residual stream.
pub(super) fn inner(fields: &Fields<'_>, expand: &str, hidden_size: usize) -> Result<usize, Error> {
    let inner = hidden_size.saturating_mul(fields.size_or(expand, 2, MAX_HIDDEN)?);
    if inner > MAX_INTERMEDIATE {
        let expected = format!("times hidden_size it must be at most {MAX_INTERMEDIATE}");
        return Err(fields.refuse(expand, expected));
    }
    Ok(inner)
}
