//! Functions that a request offers to the model.

use outsize_generate::{ChatOptions, ChatTool, ToolChoice};
use serde::Deserialize;

use crate::error::ApiError;

/// Which functions the model is to call.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum ToolChoiceField {
    /// `none`, `auto` or `required`.
    Mode(String),
    /// A certain one.
    Named(NamedTool),
}

/// `{"type": "function", "function": {"name": …}}`.
#[derive(Debug, Deserialize)]
pub(crate) struct NamedTool {
    function: NamedFunction,
}

#[derive(Debug, Deserialize)]
struct NamedFunction {
    name: String,
}

/// Lets the model call these functions.
pub(crate) fn offer(
    options: &mut ChatOptions,
    tools: Vec<ChatTool>,
    choice: Option<&ToolChoiceField>,
    parallel: Option<bool>,
) -> Result<(), ApiError> {
    options.tool_choice = match choice {
        None => ToolChoice::Auto,
        Some(ToolChoiceField::Named(NamedTool { function })) => {
            ToolChoice::Named(function.name.clone())
        }
        Some(ToolChoiceField::Mode(mode)) => match &**mode {
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            // A model that is not told of them does not call them.
            "none" => return Ok(()),
            mode => {
                let message = format!(
                    "it is {mode:?}: \"none\", \"auto\", \"required\" or a function are built in"
                );
                return Err(ApiError::field("tool_choice", message));
            }
        },
    };
    options.tools = tools;
    options.single_tool_call = parallel == Some(false);
    Ok(())
}
