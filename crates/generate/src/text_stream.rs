//! Text that grows with every token.

use crate::error::Result;
use crate::tokenizer::{Role, Tokenizer};

/// Turns tokens into text one at a time, so that the pieces put together are what
/// [`Tokenizer::decode`] makes of all tokens.
///
/// A token's text depends on its neighbours: a character may be spread over several tokens, the
/// first word loses its space, and a run of bytes spelled as tokens (`<0xC3>`) is text only if all
/// of it is UTF-8. So each token is decoded behind two others that fix its surroundings: those that
/// began the text, and the last one whose text is out. Tokens wait as long as their text could
/// still change: an unfinished character for the rest of it, a run of byte tokens for the token
/// after it.
///
/// Text handed out is never taken back. That the pieces add up is certain for decoders whose text
/// only grows with more tokens, which is all kinds that language models use.
///
/// Where there is no tokenizer, the text is the tokens' numbers with commas between.
#[derive(Debug)]
pub struct TextStream<'t> {
    tokenizer: Option<&'t Tokenizer>,
    skip_special_tokens: bool,
    /// Special tokens that are not skipped.
    shown: Vec<u32>,
    /// The tokens of the first text handed out. Behind them no token is treated as the first of a
    /// text.
    head: Vec<u32>,
    /// The last token whose text is out, if that is not in the head.
    last: Option<u32>,
    /// Tokens whose text is not out yet.
    pending: Vec<u32>,
}

impl<'t> TextStream<'t> {
    /// A stream that has seen no token.
    pub(crate) fn new(
        tokenizer: Option<&'t Tokenizer>,
        skip_special_tokens: bool,
        shown: &[String],
    ) -> Self {
        let id = |token: &String| tokenizer?.token_id(token);
        let shown = shown.iter().filter_map(id).collect();
        let (head, last, pending) = (Vec::new(), None, Vec::new());
        Self { tokenizer, skip_special_tokens, shown, head, last, pending }
    }

    /// Takes the next token; returns the text that is now certain, in whole characters, if there is
    /// any.
    ///
    /// # Errors
    /// [`Error::Decode`](crate::Error::Decode), as [`Tokenizer::decode`].
    pub fn push(&mut self, id: u32) -> Result<Option<String>> {
        let Some(tokenizer) = self.tokenizer else {
            let comma = if self.last.replace(id).is_none() { "" } else { "," };
            return Ok(Some(format!("{comma}{id}")));
        };
        let role = tokenizer.role(id, self.skip_special_tokens && !self.shown.contains(&id));
        if role == Role::Nothing {
            return Ok(None);
        }
        self.pending.push(id);
        if role == Role::Byte {
            return Ok(None);
        }
        let (before, after) = self.texts(tokenizer)?;
        // A replacement character at the end may be the beginning of a real one.
        match after.strip_prefix(&before) {
            Some(text) if !text.is_empty() && !text.ends_with(char::REPLACEMENT_CHARACTER) => {
                self.settle();
                Ok(Some(text.to_owned()))
            }
            _ => Ok(None),
        }
    }

    /// The text of the tokens still waiting, if there is any; what never became a character is
    /// U+FFFD.
    ///
    /// # Errors
    /// [`Error::Decode`](crate::Error::Decode), as [`Tokenizer::decode`].
    pub fn finish(self) -> Result<Option<String>> {
        self.waiting()
    }

    /// The same of a text that may go on.
    pub(crate) fn waiting(&self) -> Result<Option<String>> {
        let Some(tokenizer) = self.tokenizer else { return Ok(None) };
        let (before, after) = self.texts(tokenizer)?;
        let common: usize = before
            .chars()
            .zip(after.chars())
            .take_while(|(a, b)| a == b)
            .map(|(a, _)| a.len_utf8())
            .sum();
        Ok(Some(after[common..].to_owned()).filter(|text| !text.is_empty()))
    }

    /// The text of the surroundings alone, and with the waiting tokens after them.
    fn texts(&self, tokenizer: &Tokenizer) -> Result<(String, String)> {
        let mut ids: Vec<u32> = self.head.iter().copied().chain(self.last).collect();
        // Those that are skipped never came here.
        let before = tokenizer.decode(&ids, false)?;
        ids.extend_from_slice(&self.pending);
        let after = tokenizer.decode(&ids, false)?;
        Ok((before, after))
    }

    /// Counts the waiting tokens among those whose text is out.
    fn settle(&mut self) {
        if self.head.is_empty() {
            self.head.append(&mut self.pending);
        } else {
            self.last = self.pending.pop();
            self.pending.clear();
        }
    }
}
