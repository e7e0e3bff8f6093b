//! nanochat: norms without weights, one of them behind the embeddings, heads that are rotated the
//! other way and then normed, and an MLP of two matrices with a squared ReLU. Karpathy 2025
//! (<https://github.com/karpathy/nanochat>).

use super::gemma::softcap;
use super::rms_config::{BlockNormKind, DEFAULTS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, layer_windows};
use crate::layers::Activation;

/// What checkpoints call the two matrices.
const NAMES: &[(&str, &str)] =
    &[(r"\.mlp\.up_proj\.", ".mlp.fc1."), (r"\.mlp\.down_proj\.", ".mlp.fc2.")];

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        sizes: &[
            ("vocab_size", 50_304),
            ("hidden_size", 768),
            ("intermediate_size", 8192),
            ("num_hidden_layers", 12),
            ("num_attention_heads", 6),
        ],
        activation: ("hidden_act", Activation::Relu2),
        ..DEFAULTS
    };
    let config = RmsConfig::read(fields, &absent)?.with_rope(fields)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    Ok(RmsConfig {
        norm_kind: BlockNormKind::UnweightedRms,
        embed_norm: true,
        query_key_norms: Some(QueryKeyNorms::UnitRotated),
        rope_reversed: true,
        logit_softcap: softcap(fields, "final_logit_softcapping", 15.0)?,
        renamed: NAMES,
        ..config.with_attention_bias(fields)?
    })
}

pub(super) const NANOCHAT: &[KnownField] =
    &[("attention_bias", Read), ("final_logit_softcapping", Read), ("hidden_act", Read)];
