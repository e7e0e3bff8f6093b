//! What a request wants its text to be.

use outsize_generate::JsonConstraint;
use serde_json::Value;

use crate::error::ApiError;

/// The constraint of a `response_format`; none for any text.
pub(crate) fn constraint(format: &Value) -> Result<Option<JsonConstraint>, ApiError> {
    let refused = |message: String| Err(ApiError::field("response_format", message));
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(JsonConstraint::object())),
        Some("json_schema") => match &format["json_schema"]["schema"] {
            schema @ Value::Object(_) => Ok(Some(JsonConstraint::new(schema.clone()))),
            _ => refused("it needs a `json_schema` with a `schema`, which is an object".to_owned()),
        },
        _ => refused(format!(
            "its `type` is {}: \"text\", \"json_object\" and \"json_schema\" are built in",
            format["type"]
        )),
    }
}
