//! A weight matrix as it is stored.

use std::borrow::Cow;

use half::{bf16, f16};

use crate::{BlockWeight, cast};

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
    /// Encoded in blocks.
    Blocks(BlockWeight<&'a [u8]>),
}

impl<'a> Weight<'a> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Weight::Bf16(elements) => elements.len(),
            Weight::F16(elements) => elements.len(),
            Weight::F32(elements) => elements.len(),
            Weight::Blocks(weight) => weight.shape().iter().product(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is packed bf16.
    pub(crate) fn is_packed_bf16(&self) -> bool {
        matches!(self, Weight::Blocks(weight) if weight.packed_bf16().is_some())
    }

    /// The elements from `start` up to `end`, for instance some rows of the matrix.
    ///
    /// # Panics
    ///
    /// If `start > end` or `end > len`, or if blocks are cut inside of a row.
    pub fn slice(&self, start: usize, end: usize) -> Weight<'a> {
        match self {
            Weight::Bf16(elements) => Weight::Bf16(&elements[start..end]),
            Weight::F16(elements) => Weight::F16(&elements[start..end]),
            Weight::F32(elements) => Weight::F32(&elements[start..end]),
            Weight::Blocks(weight) => {
                let columns = weight.shape()[1].max(1);
                let whole = start.is_multiple_of(columns) && end.is_multiple_of(columns);
                assert!(whole, "elements {start} to {end} are not rows of {columns}");
                Weight::Blocks(weight.slice(start / columns..end / columns))
            }
        }
    }

    /// Writes the f32 of every element.
    ///
    /// # Panics
    ///
    /// If `to` does not have room for exactly as many.
    pub fn widen(&self, to: &mut [f32]) {
        match self {
            Weight::Bf16(elements) => cast::bf16_to_f32(elements, to),
            Weight::F16(elements) => cast::f16_to_f32(elements, to),
            Weight::F32(elements) => to.copy_from_slice(elements),
            Weight::Blocks(weight) => weight.dequantize_with(crate::Isa::detected(), to),
        }
    }

    /// The f32 of every element: these themselves, or a copy.
    pub(crate) fn widened(self) -> Cow<'a, [f32]> {
        if let Weight::F32(elements) = self {
            return Cow::Borrowed(elements);
        }
        let mut wide = vec![0.0; self.len()];
        self.widen(&mut wide);
        Cow::Owned(wide)
    }
}
