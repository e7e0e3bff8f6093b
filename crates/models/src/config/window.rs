//! Which layers have a sliding window, as `transformers` decides it.

use serde_json::Value;

use super::fields::Fields;
use super::{Architecture, MAX_LAYERS, MAX_POSITIONS};
use crate::Error;

/// The window where the field is absent.
const DEFAULT_WINDOW: usize = 4096;

/// The layer from which on Qwen2 slides where the field is absent.
const DEFAULT_FIRST: usize = 28;

/// Of each layer, how many tokens a token sees.
pub(super) fn read(
    architecture: Architecture,
    fields: &Fields<'_>,
    layers: usize,
) -> Result<Vec<Option<usize>>, Error> {
    let (window, first) = match architecture {
        Architecture::Llama => (None, 0),
        Architecture::Mistral => (window(fields)?, 0),
        Architecture::Qwen2 => {
            let used = fields.flag_or("use_sliding_window", false)?;
            // Checked even where it is not used.
            let (window, first) = (window(fields)?, first(fields)?);
            (window.filter(|_| used), first)
        }
    };
    let by_rule = (0..layers).map(|layer| window.filter(|_| layer >= first));
    let Some(value) = fields.get("layer_types") else {
        return Ok(by_rule.collect());
    };
    let types: Vec<&str> = value
        .as_array()
        .map(|types| types.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    if types.len() != layers || value.as_array().is_some_and(|all| all.len() != layers) {
        let expected = format!("it must be a list of {layers} strings, one per layer");
        return Err(fields.refuse("layer_types", expected));
    }
    let windows: Option<Vec<_>> = types
        .iter()
        .map(|name| match *name {
            "full_attention" | "attention" => Some(None),
            "sliding_attention" => window.map(Some),
            _ => None,
        })
        .collect();
    let Some(windows) = windows else {
        let expected = match window {
            Some(_) => "only \"full_attention\" and \"sliding_attention\" are supported",
            None => "without a sliding window in use, only \"full_attention\" is supported",
        };
        return Err(fields.refuse("layer_types", expected.to_owned()));
    };
    // Only Qwen2 chooses by layer; the others must not contradict themselves.
    if architecture != Architecture::Qwen2 && !windows.iter().copied().eq(by_rule) {
        let expected = format!("all layers of a {architecture} with this sliding window are alike");
        return Err(fields.refuse("layer_types", expected));
    }
    Ok(windows)
}

/// The window's length. Absent and null are not the same.
fn window(fields: &Fields<'_>) -> Result<Option<usize>, Error> {
    let field = "sliding_window";
    match fields.has(field) {
        true if fields.get(field).is_none() => Ok(None),
        _ => fields
            .size_or(field, DEFAULT_WINDOW, MAX_POSITIONS)
            .map(Some),
    }
}

/// The first layer that slides; may be beyond the last.
fn first(fields: &Fields<'_>) -> Result<usize, Error> {
    let field = "max_window_layers";
    let Some(value) = fields.get(field) else {
        return Ok(DEFAULT_FIRST);
    };
    value
        .as_u64()
        .filter(|&first| first <= MAX_LAYERS as u64)
        .map(|first| first as usize)
        .ok_or_else(|| {
            let expected = format!("it must be a whole number from 0 to {MAX_LAYERS}");
            fields.refuse(field, expected)
        })
}
