//! What an adapter adds to a weight on its way.

use burn::tensor::DType;
use outsize_checkpoint::Dtype;

use super::{Rewrite, Source, through};
use crate::convert::{burn_type, float};
use crate::{Error, LowRank};

impl Rewrite {
    /// The same with what an adapter adds to the rows as they are stored, or to those of `part` of
    /// so many equal `parts` along the first axes: computed in f32, and rounded once.
    ///
    /// # Errors
    /// A weight that does not become floats, is made of several, or has no matrix there of the
    /// adapter's shape.
    pub fn with_low_rank(
        mut self,
        [part, parts]: [usize; 2],
        added: LowRank,
    ) -> Result<Self, Error> {
        let spec = self.spec();
        let refuse = |reason: &str| {
            Err(Error::Rewrite { tensor: spec.name.clone(), reason: reason.to_string() })
        };
        if !matches!(self.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return refuse(
                "it is quantised, and what an adapter adds goes to floats only: have it written as floats",
            );
        }
        if !matches!(self.source, Source::Weight(..)) {
            return refuse("it is made of several, and an adapter cannot be merged into it");
        }
        let rows = spec.shape.first().copied().unwrap_or(0) * matrix_rows(&spec.shape);
        let (2.., Some(columns), true) =
            (spec.shape.len(), spec.shape.last(), part < parts && rows.is_multiple_of(parts))
        else {
            return refuse("it is no matrix, and an adapter cannot be merged into it");
        };
        let rows = rows / parts;
        added.check(&spec.name, [rows, *columns])?;
        self.added.push((part * rows, added));
        self.check()?;
        Ok(self)
    }

    /// The type that weights are converted to: the new one, or what is added to is f32.
    pub(super) fn converted_type(&self) -> DType {
        if self.added.is_empty() { burn_type(self.dtype) } else { DType::F32 }
    }

    /// Rows of all matrices from row `start` of what is stored on, with what is added to them, in
    /// the new type.
    pub(super) fn with_added(&self, start: usize, mut bytes: Vec<u8>) -> Vec<u8> {
        if self.added.is_empty() {
            return bytes;
        }
        let row = self.spec().shape.last().map_or(1, |columns| columns * size_of::<f32>()).max(1);
        let end = start + bytes.len() / row;
        for (first, added) in &self.added {
            let from = start.max(*first);
            let Some(count) = end.min(first + added.stored_rows()).checked_sub(from) else {
                continue;
            };
            let more = added.rows(from - first..from - first + count).into_data();
            let values = &mut bytes[(from - start) * row..(from - start + count) * row];
            let values = values.as_chunks_mut().0.iter_mut();
            for (value, more) in values.zip(more.as_bytes().as_chunks().0) {
                *value = (f32::from_le_bytes(*value) + f32::from_ne_bytes(*more)).to_le_bytes();
            }
        }
        // There is one from f32 to each of the floats.
        let last = float(Dtype::F32, burn_type(self.dtype)).ok().flatten();
        through(bytes, 0, last.as_slice())
    }
}

/// How many rows of matrices one of the first axis is: of a matrix one.
pub(super) fn matrix_rows(shape: &[usize]) -> usize {
    shape.get(1..shape.len().saturating_sub(1)).map_or(1, |rows| rows.iter().product())
}
