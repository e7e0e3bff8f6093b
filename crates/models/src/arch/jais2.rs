//! Jais 2: Llama's blocks with LayerNorm, biases, and an MLP of two matrices with a squared ReLU.
//! Inception 2025 (<https://huggingface.co/inceptionai/Jais-2-8B-Chat>).

use super::rms_config::{BlockNormKind, DEFAULTS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, layer_windows};
use crate::layers::Activation;

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        sizes: &[
            ("vocab_size", 150_272),
            ("hidden_size", 3328),
            ("intermediate_size", 26_624),
            ("num_hidden_layers", 32),
            ("num_attention_heads", 26),
        ],
        max_position_embeddings: 8192,
        rms_norm_eps: 1e-5,
        epsilon: "layer_norm_eps",
        activation: ("hidden_act", Activation::Relu2),
        ..DEFAULTS
    };
    let config = RmsConfig::read(fields, &absent)?.with_rope(fields)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    let bias = fields.flag_or("attention_bias", true)?;
    Ok(RmsConfig {
        norm_kind: BlockNormKind::Layer { bias: true },
        attention_in_bias: bias,
        attention_out_bias: bias,
        mlp_bias: fields.flag_or("mlp_bias", true)?,
        ..config
    })
}

pub(super) const JAIS2: &[KnownField] =
    &[("attention_bias", Read), ("hidden_act", Read), ("layer_norm_eps", Read), ("mlp_bias", Read)];
