//! The size of a picture, as far as what a pass holds and computes depends on it.

use crate::Activations;

/// So many pictures of so many pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PictureSize {
    /// Pictures side by side.
    pub batch: usize,
    /// Rows of each.
    pub rows: usize,
    /// Pixels of a row.
    pub columns: usize,
}

impl PictureSize {
    /// Pixels of all pictures.
    pub fn pixels(&self) -> u64 {
        [self.batch, self.rows, self.columns].into_iter().fold(1, |n, m| n.saturating_mul(m as u64))
    }

    /// The same picture with as many halvings of its sides, each rounded up.
    pub(crate) fn halved(&self, times: usize) -> Self {
        let halve = |side: usize| (0..times).fold(side, |side, _| side.div_ceil(2));
        Self { rows: halve(self.rows), columns: halve(self.columns), ..*self }
    }

    /// What so many values for each pixel take.
    pub(crate) fn values(&self, channels: usize) -> Activations {
        Activations::values(self.pixels().saturating_mul(channels as u64))
    }

    /// The same picture with zeros around it.
    pub(crate) fn padded(&self) -> Self {
        let [rows, columns] = [self.rows, self.columns].map(|n| n.saturating_add(2));
        Self { rows, columns, ..*self }
    }

    /// The same picture with twice the rows and columns.
    pub(crate) fn doubled(&self) -> Self {
        let [rows, columns] = [self.rows, self.columns].map(|n| n.saturating_mul(2));
        Self { rows, columns, ..*self }
    }
}

/// A pass of one part of a model of pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PicturePass {
    /// The latents: of a text encoder the number of texts alone counts.
    pub latents: PictureSize,
    /// Tokens of each text.
    pub tokens: usize,
}

/// What a pass does with a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightUse {
    /// Rows that it makes: pixels or tokens of all pictures or texts.
    pub rows: u64,
    /// Positions that each of these rows attends to, if they are queries.
    pub attended: u64,
}

impl WeightUse {
    /// Of rows that are no queries.
    pub(crate) fn of_rows(rows: u64) -> Self {
        Self { rows, attended: 0 }
    }
}

impl PicturePass {
    /// Tokens of all texts.
    pub fn all_tokens(&self) -> u64 {
        (self.latents.batch as u64).saturating_mul(self.tokens as u64)
    }
}
