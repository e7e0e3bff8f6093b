//! Texts that run side by side.

use std::ops::Range;

use crate::Error;

/// Token ids of texts that run side by side, one row each. A row that is shorter than the longest
/// has padding before its first token, so that all rows end together and go on together.
///
/// ```
/// let batch = outsize_models::Batch::left_padded(&[&[5, 6, 7][..], &[8]])?;
/// assert_eq!((batch.rows(), batch.tokens(), batch.padding()), (2, 3, &[0, 2][..]));
/// # Ok::<(), outsize_models::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// `[rows, tokens]`.
    ids: Vec<u32>,
    tokens: usize,
    /// Of each row, how many columns at the start have no token.
    padding: Vec<usize>,
}

impl Batch {
    /// Rows of any length, made equally long by padding at the left.
    ///
    /// # Errors
    /// No rows, or one without tokens.
    pub fn left_padded(rows: &[impl AsRef<[u32]>]) -> Result<Self, Error> {
        let tokens = rows.iter().map(|row| row.as_ref().len()).max().ok_or(Error::NoTokens)?;
        // Padding runs through the model like a token, and has to be one: any that is needed
        // anyway.
        Self::filled(rows, tokens, |row| row.first().copied())
    }

    /// Rows of up to so many tokens, made that long by `padding` at the left.
    ///
    /// # Errors
    /// No rows, or one without tokens.
    ///
    /// # Panics
    /// If a row is longer.
    pub(crate) fn left_filled(
        rows: &[impl AsRef<[u32]>],
        padding: u32,
        tokens: usize,
    ) -> Result<Self, Error> {
        Self::filled(rows, tokens, |row| row.first().map(|_| padding))
    }

    /// Rows that are made as long as said by what one of tokens gives; of one without it gives
    /// nothing.
    fn filled(
        rows: &[impl AsRef<[u32]>],
        tokens: usize,
        padding_of: impl Fn(&[u32]) -> Option<u32>,
    ) -> Result<Self, Error> {
        if rows.is_empty() {
            return Err(Error::NoTokens);
        }
        let rows = || rows.iter().map(AsRef::as_ref);
        let mut ids = Vec::with_capacity(rows().len() * tokens);
        let mut padding = Vec::with_capacity(rows().len());
        for row in rows() {
            let filler = padding_of(row).ok_or(Error::NoTokens)?;
            ids.extend(std::iter::repeat_n(filler, tokens - row.len()));
            ids.extend(row);
            padding.push(tokens - row.len());
        }
        Ok(Self { ids, tokens, padding })
    }

    /// How many texts.
    pub fn rows(&self) -> usize {
        self.padding.len()
    }

    /// Columns: tokens of the longest text.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Of each row, how many columns at the start have no token.
    pub fn padding(&self) -> &[usize] {
        &self.padding
    }

    /// `[rows, tokens]`; padding repeats a row's first token.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The batch in pieces of at most `tokens` columns (at least 1), to be run one after the other.
    pub fn chunks(&self, tokens: usize) -> impl Iterator<Item = Self> + '_ {
        let tokens = tokens.max(1);
        (0..self.tokens)
            .step_by(tokens)
            .map(move |start| self.columns(start..self.tokens.min(start + tokens)))
    }

    /// Some of its columns.
    ///
    /// # Panics
    /// If it does not have all of them.
    pub fn columns(&self, range: Range<usize>) -> Self {
        Self {
            ids: self
                .ids
                .chunks_exact(self.tokens)
                .flat_map(|row| &row[range.clone()])
                .copied()
                .collect(),
            tokens: range.len(),
            padding: self
                .padding
                .iter()
                .map(|padding| padding.clamp(&range.start, &range.end) - range.start)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_keep_their_share_of_the_padding() {
        let batch = Batch::left_padded(&[vec![1, 2, 3, 4, 5], vec![6, 7], vec![8]]).unwrap();
        assert_eq!(batch.ids(), [1, 2, 3, 4, 5, 6, 6, 6, 6, 7, 8, 8, 8, 8, 8]);
        let pieces: Vec<_> = batch.chunks(2).collect();
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces[0].padding(), [0, 2, 2]);
        assert_eq!(pieces[1].padding(), [0, 1, 2]);
        assert_eq!(pieces[2].padding(), [0, 0, 0]);
        assert_eq!(pieces[1].ids(), [3, 4, 6, 6, 8, 8]);
        assert_eq!((pieces[2].tokens(), pieces[2].ids()), (1, &[5, 7, 8][..]));
        assert_eq!(batch.chunks(0).count(), 5);
        assert_eq!(batch.chunks(9).collect::<Vec<_>>(), [batch]);
    }

    #[test]
    fn rows_without_tokens_are_refused() {
        for rows in [vec![], vec![vec![]], vec![vec![1], vec![]]] {
            assert!(matches!(Batch::left_padded(&rows), Err(Error::NoTokens)));
        }
    }
}
