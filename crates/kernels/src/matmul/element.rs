//! The dtypes a weight may have.

use half::{bf16, f16};

use super::vector::Vector;
use crate::Weight;

/// An element of a stored weight: which loads of a [`Vector`] read it.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// The elements of a weight of this dtype; `None` if it is of another.
    fn of(weight: Weight<'_>) -> Option<&[Self]>;

    /// `V::LANES` elements, widened to f32.
    ///
    /// # Safety
    ///
    /// `from` points to `V::LANES` elements, and the processor has `V`'s instructions.
    unsafe fn load<V: Vector>(from: *const Self) -> V;

    /// `count` elements, widened to f32, in the first lanes, and zero in the others.
    ///
    /// # Safety
    ///
    /// `from` points to `count < V::LANES` elements, and the processor has `V`'s instructions.
    unsafe fn load_part<V: Vector>(from: *const Self, count: usize) -> V;
}

impl Element for f32 {
    fn of(weight: Weight<'_>) -> Option<&[Self]> {
        match weight {
            Weight::F32(elements) => Some(elements),
            _ => None,
        }
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::f32(from) }
    }

    #[inline(always)]
    unsafe fn load_part<V: Vector>(from: *const Self, count: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::f32_part(from, count) }
    }
}

impl Element for bf16 {
    fn of(weight: Weight<'_>) -> Option<&[Self]> {
        match weight {
            Weight::Bf16(elements) => Some(elements),
            _ => None,
        }
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: the caller's promise; `bf16` is a transparent u16.
        unsafe { V::bf16(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_part<V: Vector>(from: *const Self, count: usize) -> V {
        // SAFETY: the caller's promise; `bf16` is a transparent u16.
        unsafe { V::bf16_part(from.cast(), count) }
    }
}

impl Element for f16 {
    fn of(weight: Weight<'_>) -> Option<&[Self]> {
        match weight {
            Weight::F16(elements) => Some(elements),
            _ => None,
        }
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: the caller's promise; `f16` is a transparent u16.
        unsafe { V::f16(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_part<V: Vector>(from: *const Self, count: usize) -> V {
        // SAFETY: the caller's promise; `f16` is a transparent u16.
        unsafe { V::f16_part(from.cast(), count) }
    }
}
