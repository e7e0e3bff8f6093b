//! OLMo 2: norms behind attention and MLP, and of all queries and keys. OLMo et al. 2024 (arXiv:2501.00656).

use super::rms_config::{BlockNorms, DEFAULTS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Read};
use crate::config::{Fields, KnownField, layer_windows};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &RmsDefaults { rms_norm_eps: 1e-5, ..DEFAULTS })?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    let config = config.with_attention_bias(fields)?.with_rope(fields)?;
    Ok(RmsConfig {
        norms: BlockNorms::Behind,
        query_key_norms: Some(QueryKeyNorms::AllHeads),
        ..config
    })
}

pub(super) const OLMO2: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Read),
    ("max_window_layers", Effect::UNSET),
    ("mlp_bias", Effect::OFF),
    ("sliding_window", Effect::UNSET),
    ("use_sliding_window", Effect::OFF),
];
