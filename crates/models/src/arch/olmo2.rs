//! OLMo 2 and 3: norms behind attention and MLP, and of all queries and keys; in the latter layers
//! of a sliding window between those that see everything. OLMo et al. 2024 (arXiv:2501.00656), 2025
//! (arXiv:2512.13961).

use super::gemma3;
use super::rms_config::{BlockNorms, DEFAULTS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Read};
use crate::config::{DEFAULT_WINDOW, Fields, KnownField, layer_windows, sliding_window};

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

pub(super) fn read_olmo3(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    const THETA: f64 = 500_000.0;
    let config = RmsConfig::read(fields, &RmsDefaults { rms_norm_eps: 1e-5, ..DEFAULTS })?;
    // Outside of `rope_parameters` there is a base for the layers that see everything alone.
    let field = "rope_theta";
    if fields.number_or(field, THETA)? != THETA {
        return Err(fields.refuse(field, format!("only {THETA} is supported here")));
    }
    let window = sliding_window(fields, DEFAULT_WINDOW)?;
    if window.is_none() {
        return Err(fields.refuse("sliding_window", "an olmo3 needs one".to_owned()));
    }
    let slides = |layer: usize| !(layer + 1).is_multiple_of(4);
    let by_rule = (0..config.num_hidden_layers).map(|n| window.filter(|_| slides(n))).collect();
    let around = config.rope_context(fields);
    let rope = |kind| gemma3::rope(&around, kind, (field, THETA));
    Ok(RmsConfig {
        norms: BlockNorms::Behind,
        query_key_norms: Some(QueryKeyNorms::AllHeads),
        rope: rope("full_attention")?,
        local_rope: Some(rope("sliding_attention")?),
        windows: layer_windows(fields, window, by_rule)?,
        ..config.with_attention_bias(fields)?
    })
}

pub(super) const OLMO3: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Read),
    ("max_window_layers", Effect::UNSET),
    ("mlp_bias", Effect::OFF),
    ("sliding_window", Read),
    ("use_sliding_window", Effect::UNSET),
];

pub(super) const OLMO2: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Read),
    ("max_window_layers", Effect::UNSET),
    ("mlp_bias", Effect::OFF),
    ("sliding_window", Effect::UNSET),
    ("use_sliding_window", Effect::OFF),
];
