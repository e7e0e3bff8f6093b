//! Helium: Llama's blocks, of whose heads neighbouring elements are rotated together. Kyutai 2025
//! (<https://huggingface.co/kyutai/helium-1-preview>).

use super::rms_config::{DEFAULTS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, layer_windows};

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 48_000),
        ("hidden_size", 2560),
        ("intermediate_size", 7040),
        ("num_hidden_layers", 24),
        ("num_attention_heads", 20),
    ],
    key_value_heads: Some(20),
    head_dim: Some(128),
    max_position_embeddings: 4096,
    rms_norm_eps: 1e-8,
    rope_theta: 100_000.0,
    ..DEFAULTS
};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &ABSENT)?.with_rope(fields)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    if config.head_dim * config.num_attention_heads != config.hidden_size {
        let expected = "the heads must be as wide as hidden_size together".to_owned();
        return Err(fields.refuse("head_dim", expected));
    }
    Ok(RmsConfig {
        attention_in_bias: fields.flag_or("attention_bias", false)?,
        mlp_bias: fields.flag_or("mlp_bias", false)?,
        rope_interleaved: true,
        ..config
    })
}

pub(super) const HELIUM: &[KnownField] =
    &[("attention_bias", Read), ("hidden_act", Read), ("mlp_bias", Read)];
