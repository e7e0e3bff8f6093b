//! The matmul in four lanes, of the vector instructions that every processor of a target has:
//! SSE2, NEON, SIMD128, or plain arithmetic where there are none.

use std::ops::Range;

use wide::f32x4;

use super::Operands;
use super::blocks;
use super::element::Element;
use super::small_m;
use super::tile::{self, Blocking, RowBlock};
use super::vector::{E4M3_FIELDS, Vector, padded};
use crate::BlockWeight;
use crate::cast::{widen_bf16, widen_f16};

/// Computes `y[rows, columns]`.
///
/// # Safety
///
/// That of [`MatmulLoops::region`](super::MatmulLoops::region).
pub(super) unsafe fn region<E: Element>(
    operands: &Operands<f32, E>,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    // SAFETY: the caller's promises.
    unsafe { tile::region::<F32x4, E, false>(operands, rows, columns) }
}

/// Computes `y[.., columns]` of a few rows.
///
/// # Safety
///
/// That of [`MatmulLoops::small_m`](super::MatmulLoops::small_m).
pub(super) unsafe fn small_m<E: Element>(operands: &Operands<f32, E>, columns: Range<usize>) {
    // SAFETY: the caller's promises.
    unsafe { small_m::columns::<F32x4, E>(operands, columns) }
}

/// Computes `y` for one row of activations and a weight in blocks.
///
/// # Safety
///
/// That of [`blocks::gemv`].
pub(super) unsafe fn gemv_blocks(
    x: *const f32,
    weight: BlockWeight<&[u8]>,
    y: *mut f32,
    others: &dyn Fn(Range<usize>),
) {
    // SAFETY: the caller's promises.
    unsafe { blocks::gemv::<F32x4>(x, weight, y, others) }
}

/// Four f32.
#[derive(Clone, Copy)]
pub(crate) struct F32x4(pub(crate) f32x4);

impl Vector for F32x4 {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(f32x4::ZERO)
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(f32x4::splat(value))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: `to` points to four elements.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0.to_array()) };
    }

    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // Fused where the target has the instruction.
        Self(a.0.mul_add(b.0, self.0))
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let [a, b, c, d] = self.0.to_array();
        (a + c) + (b + d)
    }

    #[inline(always)]
    unsafe fn e4m3(from: *const u8, scale: Self) -> Self {
        // SAFETY: `from` points to four bytes.
        let bytes = unsafe { from.cast::<[i8; 4]>().read_unaligned() };
        let wide = bytes.map(|byte| {
            let bits = (i32::from(byte) << 20) & E4M3_FIELDS;
            f32::from_bits(bits as u32)
        });
        Self(f32x4::from(wide) * scale.0)
    }

    #[inline(always)]
    unsafe fn f32(from: *const f32) -> Self {
        // SAFETY: `from` points to four elements.
        Self(f32x4::new(unsafe { from.cast::<[f32; 4]>().read() }))
    }

    #[inline(always)]
    unsafe fn f32_part(from: *const f32, count: usize) -> Self {
        // SAFETY: `from` points to `count` elements.
        Self(f32x4::new(unsafe { padded::<_, 4>(from, count) }))
    }

    #[inline(always)]
    unsafe fn bf16(from: *const u16) -> Self {
        // SAFETY: `from` points to four elements.
        Self(f32x4::new(unsafe { four(from) }.map(widen_bf16)))
    }

    #[inline(always)]
    unsafe fn bf16_part(from: *const u16, count: usize) -> Self {
        // SAFETY: `from` points to `count` elements.
        Self(f32x4::new(unsafe { padded::<_, 4>(from, count) }.map(widen_bf16)))
    }

    #[inline(always)]
    unsafe fn f16(from: *const u16) -> Self {
        // SAFETY: `from` points to four elements.
        Self(f32x4::new(unsafe { four(from) }.map(widen_f16)))
    }

    #[inline(always)]
    unsafe fn f16_part(from: *const u16, count: usize) -> Self {
        // SAFETY: `from` points to `count` elements.
        Self(f32x4::new(unsafe { padded::<_, 4>(from, count) }.map(widen_f16)))
    }

    #[inline(always)]
    fn prefetch(_address: *const u8) {}
}

impl Blocking for F32x4 {
    const MAX_ROWS: usize = 4;
    const PANEL: usize = 12;

    #[inline(always)]
    unsafe fn row_block<E: Element, const PACKED: bool>(
        operands: &Operands<f32, E>,
        block: RowBlock,
    ) {
        // SAFETY: the caller's promises.
        unsafe {
            match block.height {
                1 => tile::row_block::<Self, E, PACKED, 1, 8>(operands, block),
                2 => tile::row_block::<Self, E, PACKED, 2, 4>(operands, block),
                3 => tile::row_block::<Self, E, PACKED, 3, 3>(operands, block),
                _ => tile::row_block::<Self, E, PACKED, 4, 3>(operands, block),
            }
        }
    }
}

/// Four elements, read one by one: the compiler makes that one vector load, where an array would go
/// through a scalar register.
///
/// # Safety
///
/// `from` points to four elements.
#[inline(always)]
unsafe fn four(from: *const u16) -> [u16; 4] {
    // SAFETY: the caller's promise.
    std::array::from_fn(|i| unsafe { from.add(i).read() })
}
