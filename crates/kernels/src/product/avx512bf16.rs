//! The product of bf16 with bf16 in AVX-512: thirty-two elements a vector, two products in each of sixteen sums.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::Job;
use super::skinny;
use super::tile::{self, Kernel, Strip};

/// Computes `y[rows, columns]`.
///
/// # Safety
///
/// That of [`Loops::region`](super::Loops::region), on a processor that has [`Isa::Avx512Bf16`](crate::Isa::Avx512Bf16).
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn region(job: &Job<bf16, bf16>, rows: Range<usize>, columns: Range<usize>) {
    // SAFETY: the caller's promises.
    unsafe { tile::region::<Bf16x32, bf16, true>(job, rows, columns) }
}

/// Computes `y[.., columns]` of a few rows.
///
/// # Safety
///
/// That of [`Loops::run`](super::Loops::run), on a processor that has [`Isa::Avx512Bf16`](crate::Isa::Avx512Bf16).
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn run(job: &Job<bf16, bf16>, columns: Range<usize>) {
    // SAFETY: the caller's promises.
    unsafe { skinny::run::<Bf16x32, bf16>(job, columns) }
}

/// Thirty-two bf16. Products are exact in f32 and added in pairs; subnormal ones count as zero.
pub(super) struct Bf16x32;

impl Kernel<bf16> for Bf16x32 {
    type X = bf16;
    type Vector = __m512i;
    type Sum = __m512;
    const LANES: usize = 32;
    const TALLEST: usize = 6;
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
        // SAFETY: as in `zero`, and `from` points to `count` elements: a masked load touches no others.
        unsafe { _mm512_maskz_loadu_epi16((1u32 << count) - 1, from.cast()) }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        super::avx2::prefetch(address);
    }

    #[inline(always)]
    unsafe fn strip<const PACKED: bool>(job: &Job<bf16, bf16>, place: Strip) {
        // SAFETY: the caller's promises.
        unsafe {
            match place.height {
                1 => tile::strip::<Self, bf16, PACKED, 1, 8>(job, place),
                2 => tile::strip::<Self, bf16, PACKED, 2, 8>(job, place),
                3 => tile::strip::<Self, bf16, PACKED, 3, 6>(job, place),
                4 => tile::strip::<Self, bf16, PACKED, 4, 6>(job, place),
                5 => tile::strip::<Self, bf16, PACKED, 5, 4>(job, place),
                6 => tile::strip::<Self, bf16, PACKED, 6, 4>(job, place),
                7 => tile::strip::<Self, bf16, PACKED, 7, 3>(job, place),
                _ => tile::strip::<Self, bf16, PACKED, 8, 3>(job, place),
            }
        }
    }
}
