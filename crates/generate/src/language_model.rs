//! What generating needs from a model.

/// What the loops need from a model: sequences side by side, often one, with a memory of the tokens
/// that they have seen.
pub trait LanguageModel {
    /// Why a forward pass failed.
    type Error;

    /// Appends `rows[i]` to sequence `i`; returns the logits after the last token of each, shape
    /// `[rows, vocab]`. No row is empty. There are as many rows as sequences; if there are none
    /// yet, each row begins one, and they may differ in length.
    ///
    /// # Errors
    /// The model's own.
    fn forward_rows(&mut self, rows: &[&[u32]]) -> Result<Vec<f32>, Self::Error>;

    /// Begins sequences behind the first `held`, which wait and stay as they are; returns the
    /// logits after the last token of each new one. Where sequences are [not
    /// replaced](Self::replaces_rows) none is held.
    ///
    /// # Errors
    /// The model's own.
    fn begin_rows(&mut self, _held: usize, rows: &[&[u32]]) -> Result<Vec<f32>, Self::Error> {
        self.forward_rows(rows)
    }

    /// Whether sequences may begin while others are on their way, each with a context of its own.
    fn replaces_rows(&self) -> bool {
        false
    }

    /// As [`recomputed_beyond`](outsize_models::CacheSpec::recomputed_beyond).
    fn recomputed_beyond(&self) -> Option<usize> {
        None
    }

    /// Whether a text of `prompt` tokens and `new` ones has just grown beyond that length, so that
    /// all of it is computed anew.
    fn recomputes(&self, prompt: usize, new: usize) -> bool {
        let beyond = self.recomputed_beyond();
        beyond.is_some_and(|beyond| prompt <= beyond && prompt + new == beyond + 1)
    }

    /// Forgets all sequences, so that they begin anew. Only where texts are [computed
    /// anew](Self::recomputes).
    fn forget_rows(&mut self) {}

    /// Copies sequences, one after the other: of each pair the second becomes what the first is,
    /// and may be one past those there are. Then the first `rows` stay.
    ///
    /// # Errors
    /// The model's own.
    fn copy_rows(&mut self, copies: &[(usize, usize)], rows: usize) -> Result<(), Self::Error>;

    /// [`forward_rows`](Self::forward_rows) of a single sequence: logits of shape `[vocab]`.
    ///
    /// # Errors
    /// The model's own.
    fn forward(&mut self, ids: &[u32]) -> Result<Vec<f32>, Self::Error> {
        self.forward_rows(&[ids])
    }

    /// What a sequence begins with, given a prompt: the prompt itself, unless an encoder reads it.
    fn beginning<'a>(&'a self, prompt: &'a [u32]) -> &'a [u32] {
        prompt
    }

    /// How many tokens a sequence can hold, in tokens; `None` if the oldest make room for new ones.
    fn context(&self) -> Option<usize>;

    /// How many tokens the longest sequence holds now, in tokens.
    fn position(&self) -> usize;

    /// What can be done where a text of `needed` tokens leaves no room for a new one.
    fn advice(&self, _needed: usize) -> String {
        "shorten the prompt".to_owned()
    }

    /// Whether a forward pass failed only because somebody wants it to end: generation then ends as
    /// if the caller had asked.
    fn is_stopped(_error: &Self::Error) -> bool {
        false
    }
}
