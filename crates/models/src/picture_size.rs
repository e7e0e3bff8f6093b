//! The size of a picture, as far as what a pass holds in activations depends on it.

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
