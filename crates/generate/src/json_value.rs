//! Values of JSON in messages.

use std::path::Path;

use serde_json::Value;

use crate::error::Error;

/// The most characters of a value that an error message repeats.
const MOST_SHOWN: usize = 60;

/// The error for a key that has a value of the wrong kind.
pub(crate) fn bad_key(
    path: &Path,
    key: &'static str,
    value: &Value,
    expected: &'static str,
) -> Error {
    Error::BadKey { path: path.to_owned(), key, found: shown(value), expected }
}

/// A value as JSON, short enough for a message.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        // Not worth the memory to write it out.
        Value::Array(values) if values.len() > MOST_SHOWN => "a long list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        value => shorten(&value.to_string()),
    }
}

/// The beginning of a text.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(MOST_SHOWN) {
        Some((index, _)) => format!("{}…", &text[..index]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_short() {
        let long = "é".repeat(1000);
        assert_eq!(shown(&Value::from(long)).chars().count(), MOST_SHOWN + 1);
        assert_eq!(shown(&Value::from(vec![1, 2])), "[1,2]");
        assert_eq!(shown(&Value::from(vec!["x"; 100])), "a long list");
    }
}
