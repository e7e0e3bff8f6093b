//! Mamba, Falcon Mamba and Mamba-2: blocks of a state space alone, with names and norms as
//! Nemotron-H's. Gu and Dao 2023 (arXiv:2312.00752), Zuo et al. 2024 (arXiv:2410.05355), Dao and Gu
//! 2024 (arXiv:2405.21060).

use super::mamba_fields::{MambaFields, RATES_NEGATED, inner, read_mamba};
use super::mamba2_fields::{read_mamba2_of, state_rule};
use super::rms_config::{DEFAULTS, LayerMixer, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{
    self, Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS, MAX_INTERMEDIATE, MAX_POSITIONS,
};
use crate::layers::{Mamba2Config, MambaNorms};

pub(super) fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
    match model_type {
        "falcon_mamba" => &[FALCON, MAMBA, BOTH],
        "mamba2" => &[MAMBA2, BOTH],
        _ => &[MAMBA, BOTH],
    }
}

pub(super) fn read(model_type: &str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let is_mamba2 = model_type == "mamba2";
    let absent = RmsDefaults {
        sizes: match is_mamba2 {
            true => {
                &[("vocab_size", 32_768), ("hidden_size", 4096), ("num_hidden_layers", 64), HEADS]
            }
            false => {
                &[("vocab_size", 50_280), ("hidden_size", 768), ("num_hidden_layers", 32), HEADS]
            }
        },
        head_dim: Some(2),
        // Nothing in these models ends at a position.
        max_position_embeddings: MAX_POSITIONS,
        rms_norm_eps: 1e-5,
        epsilon: "layer_norm_epsilon",
        tie_word_embeddings: !is_mamba2,
        ..DEFAULTS
    };
    // There is no MLP.
    let config = RmsConfig::read_with_inner(fields, &absent, 1)?;
    let layers = config.num_hidden_layers;
    let config = RmsConfig {
        mixers: vec![LayerMixer::Linear; layers],
        rotated_layers: vec![false; layers],
        ..config
    };
    if is_mamba2 {
        let mamba2 = Some(read_mamba2(fields, &config)?);
        return Ok(RmsConfig { mamba2, ..config });
    }
    // Falcon Mamba has another multiple in its file.
    let multiple = inner(fields, "expand", config.hidden_size)?;
    let inner = fields.size_or("intermediate_size", multiple, MAX_INTERMEDIATE)?;
    let norms = match model_type {
        "falcon_mamba" => {
            let epsilon = config::epsilon(fields, "mixer_rms_eps", 1e-6)?;
            Some(MambaNorms { epsilon, is_weighted: false })
        }
        _ => None,
    };
    Ok(RmsConfig { mamba: Some(read_mamba(fields, &NAMES, &config, inner, norms)?), ..config })
}

fn read_mamba2(fields: &Fields<'_>, config: &RmsConfig) -> Result<Mamba2Config, Error> {
    let channels = inner(fields, "expand", config.hidden_size)?;
    let (value_heads, value_dim) = (
        fields.size_or("num_heads", 128, MAX_HEADS)?,
        fields.size_or("head_dim", 64, MAX_HEAD_DIM)?,
    );
    if value_heads * value_dim != channels {
        let expected = format!("num_heads of them must be expand times hidden_size, {channels}");
        return Err(fields.refuse("head_dim", expected));
    }
    let rule = state_rule(fields, Some("time_step_limit"))?;
    read_mamba2_of(fields, NAMES.state, [value_heads, value_dim], rule, config.rms_norm_eps)
}

/// What is read with those of attention, though there is none.
const HEADS: (&str, usize) = ("num_attention_heads", 1);

const NAMES: MambaFields = MambaFields {
    state: "state_size",
    rank: "time_step_rank",
    taps: "conv_kernel",
    conv_bias: "use_conv_bias",
    bias: "use_bias",
};

const MAMBA: &[KnownField] = &[
    ("hidden_act", Read),
    ("intermediate_size", Read),
    ("time_step_rank", Read),
    ("use_associative_scan", Harmless),
    ("use_mambapy", Harmless),
];

const FALCON: &[KnownField] = &[("mixer_rms_eps", Read), ("use_falcon_mambapy", Harmless)];

const MAMBA2: &[KnownField] = &[
    ("chunk_size", Harmless),
    ("head_dim", Read),
    ("hidden_act", Effect::Only(&["\"silu\""])),
    ("n_groups", Read),
    ("num_heads", Read),
    ("time_step_limit", Read),
    // Not looked at in transformers, whatever files say; or of steps as they were drawn.
    ("intermediate_size", Harmless),
    ("norm_before_gate", Harmless),
    ("time_step_rank", Harmless),
];

const BOTH: &[KnownField] = &[
    ("conv_kernel", Read),
    ("expand", Read),
    ("hidden_size", Read),
    ("layer_norm_epsilon", Read),
    (RATES_NEGATED, Read),
    ("num_hidden_layers", Read),
    ("state_size", Read),
    ("use_bias", Read),
    ("use_conv_bias", Read),
    // Said again for other software, in which dtype is added, or how weights were drawn.
    ("d_inner", Harmless),
    ("d_model", Harmless),
    ("fused_add_norm", Harmless),
    ("n_layer", Harmless),
    ("pad_vocab_size_multiple", Harmless),
    ("rescale_prenorm_residual", Harmless),
    ("residual_in_fp32", Harmless),
    ("rms_norm", Effect::ON),
    ("ssm_cfg", Harmless),
    ("time_step_floor", Harmless),
    ("time_step_init_scheme", Harmless),
    ("time_step_max", Harmless),
    ("time_step_min", Harmless),
    ("time_step_scale", Harmless),
];
