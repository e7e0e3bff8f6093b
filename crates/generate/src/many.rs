//! Many prompts: as many side by side as there is room for, the next one in the place of each that
//! ends.

use std::ops::ControlFlow;

use crate::error::Error;
use crate::language_model::LanguageModel;
use crate::request::{Finish, GenerateError, Request};
use crate::text::{TextGeneration, TextOptions, TextOutcome};
use crate::tokenizer::Tokenizer;

/// Texts begin once so much of the batch has ended: a pass over their prompts lets the others wait.
const REFILL_SHARE: usize = 8;

/// Generates the texts of all `requests`, `batch` of them side by side, each what it would be
/// alone. Where one ends the next one begins, a few at a time; where an encoder reads the prompts,
/// once all have ended. Requests are taken as there is room.
///
/// `done` gets the number of each request, counted from 0, and its text as soon as it has ended, in
/// the order in which they end; or why it cannot be generated. Gives whether all were generated:
/// `done` may break, and the caller may stop a pass.
///
/// The decoder is [made](outsize_models::WhenFull::Replace) for texts that are replaced, and for at
/// least `batch` of them. Without a tokenizer the text is the tokens' numbers.
///
/// # Errors
/// What the model returns, and logits that are not numbers.
pub fn generate_many<'t, D: LanguageModel>(
    decoder: &mut D,
    tokenizer: impl Into<Option<&'t Tokenizer>>,
    batch: usize,
    requests: impl IntoIterator<Item = (Request, TextOptions)>,
    mut done: impl FnMut(usize, Result<TextOutcome, Error>) -> ControlFlow<()>,
) -> Result<bool, GenerateError<D::Error>> {
    let mut requests = requests.into_iter().enumerate().peekable();
    let mut texts = TextGeneration::empty(decoder, tokenizer.into())?;
    // Of each row, the request that it is of.
    let mut rows: Vec<Option<usize>> = vec![None; batch];
    loop {
        let free = rows.iter().filter(|row| row.is_none()).count();
        if free == batch && requests.peek().is_none() {
            return Ok(true);
        }
        let refill = match texts.replaces_rows() {
            true => batch.div_ceil(REFILL_SHARE),
            false => batch,
        };
        if free >= refill {
            for (row, of) in rows.iter_mut().enumerate().filter(|(_, of)| of.is_none()) {
                for (number, request) in requests.by_ref() {
                    match texts.replace(row, request) {
                        Ok(()) => {
                            *of = Some(number);
                            break;
                        }
                        Err(GenerateError::Request(error)) => {
                            if done(number, Err(error)).is_break() {
                                return Ok(false);
                            }
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        texts.advance()?;
        for (row, of) in rows.iter_mut().enumerate() {
            let Some(number) = *of else { continue };
            let Some(outcome) = texts.ended(row)? else { continue };
            if outcome.outcome.finish == Finish::Stopped {
                return Ok(false);
            }
            *of = None;
            if done(number, Ok(outcome)).is_break() {
                return Ok(false);
            }
        }
    }
}
