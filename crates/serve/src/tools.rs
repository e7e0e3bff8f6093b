//! Functions that a request offers to the model.

use outsize_generate::{ChatOptions, ChatTool};
use serde::Deserialize;

use crate::error::ApiError;

/// Which functions the model is to call.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum ToolChoice {
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
    choice: Option<&ToolChoice>,
    parallel: Option<bool>,
) -> Result<(), ApiError> {
    let refused = |message: String| Err(ApiError::field("tool_choice", message));
    match choice {
        None => options.tools = tools,
        Some(ToolChoice::Mode(mode)) => match &**mode {
            "auto" => options.tools = tools,
            // A model that is not told of them does not call them.
            "none" => {}
            mode => return refused(format!("it is {mode:?}: \"none\" and \"auto\" are built in")),
        },
        Some(ToolChoice::Named(NamedTool { function })) => {
            let name = &function.name;
            return refused(format!("it names {name:?}: \"none\" and \"auto\" are built in"));
        }
    }
    options.single_tool_call = parallel == Some(false);
    Ok(())
}
