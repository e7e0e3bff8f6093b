//! The types that keys and values are stored in.

use half::{bf16, f16};

use super::lanes::Lanes;
use crate::matmul::Element;

/// A type that keys and values are stored in.
pub(super) trait KvElement: Element {
    /// Rows in f32: where they are, or copies in `wide`.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`; each row has `width` elements, and `wide` has
    /// room for as many rows, each padded to a multiple of `V::LANES`.
    #[inline(always)]
    unsafe fn widened<V: Lanes, const N: usize>(
        rows: [*const Self; N],
        width: usize,
        wide: *mut f32,
    ) -> [*const f32; N] {
        let padded = width.next_multiple_of(V::LANES);
        let mut copies = [wide.cast_const(); N];
        for (index, row) in rows.into_iter().enumerate() {
            let copy = wide.wrapping_add(index * padded);
            copies[index] = copy;
            let mut at = 0;
            // SAFETY: the caller's promise: there are elements at `at`, `LANES` of them or what is
            // left.
            unsafe {
                while at + V::LANES <= width {
                    Self::load::<V>(row.add(at)).store(copy.add(at));
                    at += V::LANES;
                }
                if at < width {
                    Self::load_part::<V>(row.add(at), width - at).store(copy.add(at));
                }
            }
        }
        copies
    }
}

impl KvElement for f32 {
    #[inline(always)]
    unsafe fn widened<V: Lanes, const N: usize>(
        rows: [*const Self; N],
        _width: usize,
        _wide: *mut f32,
    ) -> [*const f32; N] {
        rows
    }
}

impl KvElement for bf16 {}

impl KvElement for f16 {}
