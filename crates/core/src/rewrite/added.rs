//! What an adapter adds to a weight on its way.

use burn::tensor::DType;
use outsize_checkpoint::Dtype;

use super::{Rewrite, Source, through};
use crate::convert::{burn_type, float};
use crate::{Error, LowRank};

impl Rewrite {
    /// The same with what an adapter adds to the rows as they are stored: computed in f32, and
    /// rounded once.
    ///
    /// # Errors
    /// A weight that does not become floats, is made of several, or is no matrix of the adapter's
    /// shape.
    pub fn with_low_rank(mut self, added: LowRank) -> Result<Self, Error> {
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
        let [rows, columns] = spec.shape[..] else {
            return refuse("it is no matrix, and an adapter cannot be merged into it");
        };
        added.check(&spec.name, [rows, columns])?;
        self.added = Some(added);
        self.check()?;
        Ok(self)
    }

    /// The type that weights are converted to: the new one, or what is added to is f32.
    pub(super) fn converted_type(&self) -> DType {
        if self.added.is_some() { DType::F32 } else { burn_type(self.dtype) }
    }

    /// Rows from row `start` of what is stored on, with what is added to them, in the new type.
    pub(super) fn with_added(&self, start: usize, mut bytes: Vec<u8>) -> Vec<u8> {
        let Some(added) = &self.added else {
            return bytes;
        };
        let columns = self.spec().shape[1];
        let rows = bytes.len() / (columns * size_of::<f32>()).max(1);
        let more = added.rows(start..start + rows).into_data();
        let values = bytes.as_chunks_mut().0.iter_mut();
        for (value, more) in values.zip(more.as_bytes().as_chunks().0) {
            *value = (f32::from_le_bytes(*value) + f32::from_ne_bytes(*more)).to_le_bytes();
        }
        // There is one from f32 to each of the floats.
        let last = float(Dtype::F32, burn_type(self.dtype)).ok().flatten();
        through(bytes, 0, last.as_slice())
    }
}
