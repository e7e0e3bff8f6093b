//! Streamed weights in a backward pass.

use super::Streamed;
use crate::Access;
use outsize_kernels::{FrozenOperand, FrozenWeight, WeightTensor};
use std::ops::Range;
use std::sync::Arc;

impl Streamed {
    /// The matrix as an operand of products that gradients flow through: it is fetched for each, so that none is held from
    /// one to the next. Shaped `[in, out]` if `in_out`.
    pub fn frozen(&self, in_out: bool) -> FrozenOperand {
        FrozenOperand { weight: Arc::new(self.clone()), in_out }
    }

    /// The same of some rows of a matrix that is fetched as a whole.
    pub fn frozen_rows(&self, rows: Range<usize>, in_out: bool) -> FrozenOperand {
        FrozenOperand { weight: Arc::new(FrozenRows { matrix: self.clone(), rows }), in_out }
    }
}

/// Some rows of a matrix that is fetched as a whole.
#[derive(Debug)]
struct FrozenRows {
    matrix: Streamed,
    rows: Range<usize>,
}

impl FrozenWeight for FrozenRows {
    fn dims(&self) -> [usize; 2] {
        [self.rows.len(), self.matrix.dims()[1]]
    }

    fn tiles(&self) -> Box<dyn Iterator<Item = (Range<usize>, WeightTensor)> + '_> {
        let rows = self.matrix.weight().slice(self.rows.clone());
        Box::new(std::iter::once((0..self.rows.len(), rows)))
    }
}

impl FrozenWeight for Streamed {
    fn dims(&self) -> [usize; 2] {
        let shape = self.shape();
        let rows = self.inner.weight.rows();
        [rows, shape.iter().product::<usize>() / rows.max(1)]
    }

    fn tiles(&self) -> Box<dyn Iterator<Item = (Range<usize>, WeightTensor)> + '_> {
        match self.is_resident() || self.access() != Access::Tiles {
            false => Box::new(self.tiles()),
            true => {
                let weight = self.weight();
                Box::new(std::iter::once((0..weight.dims()[0], weight)))
            }
        }
    }
}
