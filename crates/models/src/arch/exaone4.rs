//! EXAONE 4: norms behind attention and MLP, and of each head of queries and keys; where some
//! layers have a sliding window, these alone rotate. LG AI Research 2025 (arXiv:2507.11407). Of
//! EXAONE 4.5, which sees images too, the text part.

use super::gemma3::TEXT_PART;
use super::rms_config::{BlockNorms, DEFAULTS, FIELDS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::architecture::MultimodalNames;
use crate::config::Effect::{self, Only, Read};
use crate::config::{
    COMMON, DEFAULT_WINDOW, Fields, KnownField, MAX_LAYERS, check, layer_windows, sliding_window,
};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults { key_value_heads: Some(32), rms_norm_eps: 1e-5, ..DEFAULTS };
    let config = with_attention(fields, &absent)?;
    Ok(RmsConfig { norms: BlockNorms::Behind, ..config })
}

/// Reads the text part of a model that sees images too.
pub(super) fn read_part(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    check(&text, &[TEXT_TYPE, TEXT_PART, EXAONE4, WINDOWS, FIELDS, COMMON])?;
    // That of the whole model counts.
    let tie_word_embeddings = fields.flag_or("tie_word_embeddings", false)?;
    Ok(RmsConfig { tie_word_embeddings, ..read(&text)? })
}

/// What a model with experts has too: all but where norms are.
pub(super) fn with_attention(
    fields: &Fields<'_>,
    absent: &RmsDefaults<'_>,
) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, absent)?.with_rope(fields)?;
    let window = sliding_window(fields, DEFAULT_WINDOW)?;
    let field = "sliding_window_pattern";
    let pattern = match fields.get(field).and_then(|pattern| pattern.as_str()) {
        // Letters of local and global layers, of which nothing is read: the list beside them
        // counts.
        Some(letters) if letters.bytes().all(|letter| b"LG".contains(&letter)) => {
            if fields.get("layer_types").is_none() {
                return Err(fields.missing("layer_types"));
            }
            1
        }
        // As it is saved where nothing slides.
        _ if window.is_none() && fields.get(field).is_some_and(|it| *it == 0) => 1,
        _ => fields.size_or(field, 4, MAX_LAYERS)?,
    };
    with_windows(fields, config, window, pattern)
}

/// With norms of each head of queries and keys, and a window in all layers but every so many,
/// unless they are listed: where some layers have one, these alone rotate.
pub(super) fn with_windows(
    fields: &Fields<'_>,
    config: RmsConfig,
    window: Option<usize>,
    every: usize,
) -> Result<RmsConfig, Error> {
    let slides = |layer: usize| !(layer + 1).is_multiple_of(every);
    let by_rule = (0..config.num_hidden_layers).map(|n| window.filter(|_| slides(n))).collect();
    let windows = layer_windows(fields, window, by_rule)?;
    Ok(RmsConfig {
        query_key_norms: Some(QueryKeyNorms::EachHead),
        rotated_layers: windows.iter().map(|of| window.is_none() || of.is_some()).collect(),
        windows,
        ..config
    })
}

pub(super) const EXAONE4: &[KnownField] =
    &[("attention_bias", Effect::OFF), ("hidden_act", Read), ("mlp_bias", Effect::OFF)];

/// As it is, and as it was first published.
const TEXT_TYPE: &[KnownField] = &[("model_type", Only(&["\"exaone4\"", "\"exaone4_5_text\""]))];

pub(super) const NAMES: MultimodalNames = MultimodalNames {
    prefixes: &[("model.language_model.", "model.")],
    others: &["model.visual.", "mtp."],
};

/// Of a model with experts too.
pub(super) const WINDOWS: &[KnownField] =
    &[("sliding_window", Read), ("sliding_window_pattern", Read)];
