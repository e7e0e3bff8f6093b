//! The product of bf16 with bf16 in AVX-512: thirty-two elements a vector, two products in each of
//! sixteen sums.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::Operands;
use super::small_m;
use super::tile::{self, Kernel, RowBlock};

/// Computes `y[rows, columns]`.
///
/// # Safety
///
/// That of [`MatmulLoops::region`](super::MatmulLoops::region), on a processor that has
/// [`Isa::Avx512Bf16`](crate::Isa::Avx512Bf16).
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn region(
    operands: &Operands<bf16, bf16>,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    // SAFETY: the caller's promises.
    unsafe { tile::region::<Bf16x32, bf16, true>(operands, rows, columns) }
}

/// Computes `y[.., columns]` of a few rows.
///
/// # Safety
///
/// That of [`MatmulLoops::small_m`](super::MatmulLoops::small_m), on a processor that has
/// [`Isa::Avx512Bf16`](crate::Isa::Avx512Bf16).
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn small_m(operands: &Operands<bf16, bf16>, columns: Range<usize>) {
    // SAFETY: the caller's promises.
    unsafe { small_m::columns::<Bf16x32, bf16>(operands, columns) }
}

/// Thirty-two bf16. Products are exact in f32 and added in pairs; subnormal ones count as zero.
pub(super) struct Bf16x32;

impl Kernel<bf16> for Bf16x32 {
    type X = bf16;
    type Vector = __m512i;
    type Sum = __m512;
    const LANES: usize = 32;
    const MAX_ROWS: usize = 6;
    const PANEL: usize = 6;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the processor has AVX-512 with bf16, the promise of every function here.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn fma(sum: __m512, weight: __m512i, x: __m512i) -> __m512 {
        // SAFETY: as in `zero`; a vector of bf16 is a vector of bits.
        unsafe {
            _mm512_dpbf16_ps(
                sum,
                std::mem::transmute::<__m512i, __m512bh>(weight),
                std::mem::transmute::<__m512i, __m512bh>(x),
            )
        }
    }

    #[inline(always)]
    unsafe fn total(sum: __m512) -> f32 {
        // SAFETY: as in `zero`.
        unsafe { super::avx512::sum(sum) }
    }

    #[inline(always)]
    unsafe fn totals(sums: [__m512; 4]) -> [f32; 4] {
        // SAFETY: as in `zero`.
        unsafe { super::avx512::sums(sums) }
    }

    #[inline(always)]
    unsafe fn x(from: *const bf16) -> __m512i {
        // SAFETY: as in `zero`, and `from` points to thirty-two elements.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn x_part(from: *const bf16, count: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { Self::weight_part(from, count) }
    }

    #[inline(always)]
    unsafe fn weight(from: *const bf16) -> __m512i {
        // SAFETY: as in `x`.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn weight_part(from: *const bf16, count: usize) -> __m512i {
        // SAFETY: as in `zero`, and `from` points to `count` elements: a masked load touches no
        // others.
        unsafe { _mm512_maskz_loadu_epi16((1u32 << count) - 1, from.cast()) }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        super::avx2::prefetch(address);
    }

    #[inline(always)]
    unsafe fn row_block<const PACKED: bool>(operands: &Operands<bf16, bf16>, block: RowBlock) {
        // SAFETY: the caller's promises.
        unsafe {
            match block.height {
                1 => tile::row_block::<Self, bf16, PACKED, 1, 8>(operands, block),
                2 => tile::row_block::<Self, bf16, PACKED, 2, 8>(operands, block),
                3 => tile::row_block::<Self, bf16, PACKED, 3, 6>(operands, block),
                4 => tile::row_block::<Self, bf16, PACKED, 4, 6>(operands, block),
                5 => tile::row_block::<Self, bf16, PACKED, 5, 4>(operands, block),
                6 => tile::row_block::<Self, bf16, PACKED, 6, 4>(operands, block),
                7 => tile::row_block::<Self, bf16, PACKED, 7, 3>(operands, block),
                _ => tile::row_block::<Self, bf16, PACKED, 8, 3>(operands, block),
            }
        }
    }
}
