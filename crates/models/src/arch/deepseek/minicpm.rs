//! MiniCPM3, with attention over a compressed cache and scaled blocks, and MiniCPM5, whose heads of
//! attention are gated. OpenBMB 2024 (<https://huggingface.co/openbmb/MiniCPM3-4B>), 2026
//! (<https://huggingface.co/openbmb/MiniCPM5-15B-A2.5B>).

use super::super::rms_config::{DEFAULTS, RmsConfig, RmsDefaults};
use super::absent::{Absent, LatentWidths};
use crate::Error;
use crate::config::Effect::{self, Read};
use crate::config::{Fields, KnownField, MAX_HEAD_DIM};
use crate::layers::{AttentionGate, GateFunction, GateProjection};

pub(in super::super) const MINICPM3: &str = "minicpm3";
pub(super) const MINICPM5: &str = "minicpm5_moe";

/// MiniCPM5 as transformers has it in memory: it saves the published names.
pub(super) const MINICPM5_NAMES: &[(&str, &str)] =
    &[(r"\.self_attn\.q_proj\.", ".self_attn.q_gate_proj.")];

/// The same with the scales of MiniCPM3, and values as wide as its heads leave.
pub(super) fn scaled(fields: &Fields<'_>, mut config: RmsConfig) -> Result<RmsConfig, Error> {
    let (width, heads) = (config.hidden_size, config.num_attention_heads);
    if !width.is_multiple_of(heads) {
        let expected = format!("it must divide hidden_size, {width}");
        return Err(fields.refuse("num_attention_heads", expected));
    }
    if let Some(latent) = &mut config.latent_attention {
        latent.value = fields.size_or("v_head_dim", width / heads, MAX_HEAD_DIM)?;
    }
    // Null is that nothing is scaled, absent is not.
    let scale = |field, absent, unscaled| {
        let default = if fields.has(field) { unscaled } else { absent };
        fields.number_within_or(field, default, 1e-6, 1e6)
    };
    let (hidden, root) = (width as f64, (config.num_hidden_layers as f64).sqrt());
    Ok(RmsConfig {
        mlp_bias: fields.flag_or("mlp_bias", false)?,
        embed_scale: Some(scale("scale_emb", 12.0, 1.0)?),
        residual_scale: Some(scale("scale_depth", 1.4, root)? / root),
        logit_scale: Some(scale("dim_model_base", 256.0, hidden)? / hidden),
        ..config
    })
}

/// Attention as Llama's, each of whose heads is multiplied by what comes with its queries.
pub(super) fn with_attention(
    fields: &Fields<'_>,
    absent: &RmsDefaults<'_>,
) -> Result<RmsConfig, Error> {
    // Null is what the heads leave, absent is not.
    let head_dim = absent.head_dim.filter(|_| !fields.has("head_dim"));
    let config = RmsConfig::read(fields, &RmsDefaults { head_dim, ..*absent })?;
    let gate = AttentionGate {
        projection: GateProjection::Queries,
        function: GateFunction::Sigmoid,
        of_heads: false,
    };
    let config = config.with_rope(fields)?.with_attention_bias(fields)?;
    Ok(RmsConfig { attention_gate: Some(gate), ..config })
}

/// Of MiniCPM3, where it is not as in DeepSeek-V3.
pub(super) fn absent3(v3: Absent) -> Absent {
    Absent {
        sizes: RmsDefaults {
            sizes: &[
                ("vocab_size", 73_448),
                ("hidden_size", 2560),
                ("intermediate_size", 6400),
                ("num_hidden_layers", 62),
                ("num_attention_heads", 40),
            ],
            key_value_heads: Some(40),
            max_position_embeddings: 32_768,
            rms_norm_eps: 1e-5,
            tie_word_embeddings: true,
            ..DEFAULTS
        },
        latent: LatentWidths {
            query_rank: Some(768),
            rank: 256,
            plain: 64,
            rotated: 32,
            value: 64,
        },
        ..v3
    }
}

/// The same of MiniCPM5.
pub(super) fn absent5(v3: Absent) -> Absent {
    Absent {
        sizes: RmsDefaults {
            sizes: &[
                ("vocab_size", 130_560),
                ("hidden_size", 2048),
                ("intermediate_size", 8192),
                ("num_hidden_layers", 28),
                ("num_attention_heads", 32),
            ],
            key_value_heads: Some(2),
            head_dim: Some(128),
            max_position_embeddings: 524_288,
            rope_theta: 5e6,
            ..DEFAULTS
        },
        experts: 160,
        per_token: Some(16),
        moe_intermediate_size: 512,
        dense: 1,
        scale: 3.66,
        groups: (1, 1),
        ..v3
    }
}

/// Beside those of attention over a compressed cache.
pub(in super::super) const MINICPM3_FIELDS: &[KnownField] = &[
    ("attention_bias", Read),
    ("dim_model_base", Read),
    ("hidden_act", Read),
    ("mlp_bias", Read),
    ("rope_interleave", Effect::OFF),
    ("scale_depth", Read),
    ("scale_emb", Read),
];

/// Beside those of others.
pub(super) const MINICPM5_FIELDS: &[KnownField] = &[("use_gated_attention", Effect::ON)];
