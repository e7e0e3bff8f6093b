//! OLMo, the first: Llama's blocks with LayerNorm that has no weights, and queries, keys and values
//! that may be clipped. Groeneveld et al. 2024 (arXiv:2402.00838).

use super::rms_config::{BlockNormKind, DEFAULTS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Read};
use crate::config::{Fields, KnownField, layer_windows};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        sizes: &[
            ("vocab_size", 50_304),
            ("hidden_size", 4096),
            ("intermediate_size", 11_008),
            ("num_hidden_layers", 32),
            ("num_attention_heads", 32),
        ],
        // No field says another.
        rms_norm_eps: 1e-5,
        epsilon: "",
        ..DEFAULTS
    };
    let config = RmsConfig::read(fields, &absent)?.with_rope(fields)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    let clip = match fields.get("clip_qkv") {
        Some(_) => Some(fields.number_within("clip_qkv", 0.0, 1e30)?),
        None => None,
    };
    Ok(RmsConfig {
        norm_kind: BlockNormKind::UnweightedLayer,
        attention_clip: clip,
        rope_interleaved: fields.flag_or("rope_interleaved", false)?,
        ..config.with_attention_bias(fields)?
    })
}

pub(super) const OLMO: &[KnownField] = &[
    ("attention_bias", Read),
    ("clip_qkv", Read),
    ("hidden_act", Read),
    ("mlp_bias", Effect::OFF),
    ("rope_interleaved", Read),
];
