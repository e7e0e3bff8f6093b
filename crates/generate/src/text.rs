//! The loop with text at its end: tokens to text, stop strings.

use std::ops::ControlFlow;

use crate::generate::{Finish, GenerateError, LanguageModel, Outcome, Request, generate};
use crate::stop::StopStrings;
use crate::tokenizer::Tokenizer;

/// How tokens become text.
#[derive(Debug, Clone, Default)]
pub struct TextOptions {
    /// Strings that end the text; they are cut off.
    pub stop: StopStrings,
    /// Whether special tokens among the new tokens are part of the text. The token that ends a text never is.
    pub show_special_tokens: bool,
}

/// What was generated, as text.
#[derive(Debug, Clone, PartialEq)]
pub struct TextOutcome {
    /// The text of the new tokens, up to a stop string.
    pub text: String,
    /// The string that ended the text.
    pub stop_string: Option<String>,
    /// The tokens; those that spell the stop string are among them.
    pub outcome: Outcome,
}

/// Generates text as [`generate`] does tokens, until a stop string as well.
///
/// `on_text` is called once for every token but one that ends the text, with the text that has become certain by it: often
/// none, while a character or a possible stop string is not complete; and once more at the end if there is a rest. The parts
/// together are [`TextOutcome::text`]. If it breaks, what was certain until then is the text. Stop strings are looked for in
/// the generated text alone, not across the end of the prompt.
///
/// # Errors
/// As [`generate`], and tokens that the tokenizer cannot decode.
pub fn generate_text<D: LanguageModel>(
    decoder: &mut D,
    tokenizer: &Tokenizer,
    request: &Request,
    options: &TextOptions,
    mut on_text: impl FnMut(&str) -> ControlFlow<()>,
) -> Result<TextOutcome, GenerateError<D::Error>> {
    let mut stream = tokenizer.stream(!options.show_special_tokens);
    let mut scan = options.stop.scan();
    let mut text = String::new();
    let mut stop_string = None;
    let mut failure = None;
    let mut outcome = generate(decoder, request, |token| {
        let part = match stream.push(token) {
            Ok(part) => part.unwrap_or_default(),
            Err(error) => {
                failure = Some(error);
                return ControlFlow::Break(());
            }
        };
        let (part, found) = scan.push(&part);
        text.push_str(&part);
        stop_string = found;
        match found {
            Some(_) => {
                // The text ends here anyway.
                let _ = on_text(&part);
                ControlFlow::Break(())
            }
            None => on_text(&part),
        }
    })?;
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    if stop_string.is_none() && outcome.finish != Finish::Stopped {
        let rest = stream.finish()?.unwrap_or_default();
        let (mut rest, found) = scan.push(&rest);
        stop_string = found;
        if found.is_none() {
            rest.push_str(&scan.finish());
        }
        if !rest.is_empty() {
            text.push_str(&rest);
            let _ = on_text(&rest);
        }
    }
    if stop_string.is_some() {
        outcome.finish = Finish::StopString;
    }
    Ok(TextOutcome { text, stop_string: stop_string.map(str::to_owned), outcome })
}
