//! EXAONE 3 and 3.5: a Llama whose checkpoints have names of their own. LG AI Research 2024
//! (arXiv:2408.03541).

use super::rms_config::{DEFAULTS, RmsConfig, RmsDefaults, field_of};
use crate::Error;
use crate::config::Effect::{Harmless, Read};
use crate::config::{Fields, KnownField, layer_windows};
use crate::layers::Activation;

/// What is in checkpoints as they were published.
const NAMES: &[(&str, &str)] = &[
    (r"^model\.embed_tokens\.", "transformer.wte."),
    (r"^model\.norm\.", "transformer.ln_f."),
    (r"^model\.layers\.(\d+)\.input_layernorm\.", "transformer.h.${1}.ln_1."),
    (r"^model\.layers\.(\d+)\.post_attention_layernorm\.", "transformer.h.${1}.ln_2."),
    (
        r"^model\.layers\.(\d+)\.self_attn\.([qkv])_proj\.",
        "transformer.h.${1}.attn.attention.${2}_proj.",
    ),
    (r"^model\.layers\.(\d+)\.self_attn\.o_proj\.", "transformer.h.${1}.attn.attention.out_proj."),
    (r"^model\.layers\.(\d+)\.mlp\.gate_proj\.", "transformer.h.${1}.mlp.c_fc_0."),
    (r"^model\.layers\.(\d+)\.mlp\.up_proj\.", "transformer.h.${1}.mlp.c_fc_1."),
    (r"^model\.layers\.(\d+)\.mlp\.down_proj\.", "transformer.h.${1}.mlp.c_proj."),
];

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let activation = field_of(fields, ["activation_function", "hidden_act"])?;
    let layers = field_of(fields, ["num_layers", "num_hidden_layers"])?;
    let absent = RmsDefaults {
        sizes: &[
            ("vocab_size", 102_400),
            ("hidden_size", 4096),
            ("intermediate_size", 14_336),
            (layers, 32),
            ("num_attention_heads", 32),
        ],
        layers,
        key_value_heads: Some(8),
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        epsilon: field_of(fields, ["layer_norm_epsilon", "rms_norm_eps"])?,
        rope_theta: 500_000.0,
        activation: (activation, Activation::Silu),
        ..DEFAULTS
    };
    let config = RmsConfig::read(fields, &absent)?.with_rope(fields)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    let mlp_bias = fields.flag_or("mlp_bias", false)?;
    Ok(RmsConfig { mlp_bias, renamed: NAMES, ..config.with_attention_bias(fields)? })
}

pub(super) const EXAONE: &[KnownField] = &[
    ("activation_function", Read),
    ("attention_bias", Read),
    // Only training has it.
    ("embed_dropout", Harmless),
    ("hidden_act", Read),
    ("layer_norm_epsilon", Read),
    ("mlp_bias", Read),
    ("num_layers", Read),
];
