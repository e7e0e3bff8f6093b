//! Which layers have a sliding window, as `transformers` decides it.

use serde_json::Value;

use super::MAX_POSITIONS;
use super::fields::Fields;
use crate::Error;

/// The window where the field is absent.
pub(crate) const DEFAULT_WINDOW: usize = 4096;

/// Of each layer, how many tokens a token sees: as `layer_types` says, of which `window` is the
/// sliding one, or as `by_rule` where it is absent.
pub(crate) fn layer_windows(
    fields: &Fields<'_>,
    window: Option<usize>,
    by_rule: Vec<Option<usize>>,
) -> Result<Vec<Option<usize>>, Error> {
    layers_of(fields, ("sliding_attention", "a sliding window"), window, by_rule)
}

/// The same of layers that cut a text into chunks.
pub(crate) fn chunked_layers(
    fields: &Fields<'_>,
    chunk: Option<usize>,
    by_rule: Vec<Option<usize>>,
) -> Result<Vec<Option<usize>>, Error> {
    layers_of(fields, ("chunked_attention", "a chunk's size"), chunk, by_rule)
}

fn layers_of(
    fields: &Fields<'_>,
    (kind, size): (&str, &str),
    window: Option<usize>,
    by_rule: Vec<Option<usize>>,
) -> Result<Vec<Option<usize>>, Error> {
    let layers = by_rule.len();
    let Some(value) = fields.get("layer_types") else {
        return Ok(by_rule);
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
            other if other == kind => window.map(Some),
            _ => None,
        })
        .collect();
    let Some(windows) = windows else {
        let expected = match window {
            Some(_) => format!("only \"full_attention\" and \"{kind}\" are supported"),
            None => format!("without {size} in use, only \"full_attention\" is supported"),
        };
        return Err(fields.refuse("layer_types", expected));
    };
    Ok(windows)
}

/// The same for models whose layers are all alike: `layer_types` must not say otherwise.
pub(crate) fn uniform_windows(
    fields: &Fields<'_>,
    model_type: &str,
    window: Option<usize>,
    layers: usize,
) -> Result<Vec<Option<usize>>, Error> {
    let windows = vec![window; layers];
    if layer_windows(fields, window, windows.clone())? != windows {
        let expected = format!("all layers of a {model_type} with this sliding window are alike");
        return Err(fields.refuse("layer_types", expected));
    }
    Ok(windows)
}

/// The window's length in `sliding_window`. Absent, when it is `default`, and null, when there is
/// none, are not the same.
pub(crate) fn sliding_window(fields: &Fields<'_>, default: usize) -> Result<Option<usize>, Error> {
    let field = "sliding_window";
    match fields.has(field) {
        true if fields.get(field).is_none() => Ok(None),
        _ => fields.size_or(field, default, MAX_POSITIONS).map(Some),
    }
}
