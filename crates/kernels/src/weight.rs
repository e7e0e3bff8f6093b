//! A weight matrix as it is stored.

use half::{bf16, f16};

/// The elements of a weight `[out, in]`, row after row, in the dtype they are stored in.
///
/// Rows need no alignment beyond that of their dtype.
#[derive(Clone, Copy, Debug)]
pub enum Weight<'a> {
    /// bfloat16: the upper half of an f32.
    Bf16(&'a [bf16]),
    /// IEEE 754 binary16.
    F16(&'a [f16]),
    /// IEEE 754 binary32.
    F32(&'a [f32]),
}

impl<'a> Weight<'a> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Weight::Bf16(elements) => elements.len(),
            Weight::F16(elements) => elements.len(),
            Weight::F32(elements) => elements.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements from `start` up to `end`, for instance some rows of the matrix.
    ///
    /// # Panics
    ///
    /// If `start > end` or `end > len`.
    pub fn slice(&self, start: usize, end: usize) -> Weight<'a> {
        match self {
            Weight::Bf16(elements) => Weight::Bf16(&elements[start..end]),
            Weight::F16(elements) => Weight::F16(&elements[start..end]),
            Weight::F32(elements) => Weight::F32(&elements[start..end]),
        }
    }
}
