//! The product of bf16 with bf16 in AVX-512: thirty-two elements a vector, two products in each of
//! sixteen sums.

use std::arch::x86_64::*;

use half::bf16;

use super::tile::Kernel;
use crate::simd::F32x16;

/// Thirty-two bf16. Products are exact in f32 and added in pairs; subnormal ones count as zero.
#[derive(Clone, Copy)]
pub(super) struct Bf16x32;

impl Kernel<bf16> for Bf16x32 {
    type X = bf16;
    type Vector = __m512i;
    type Sum = F32x16;
    const LANES: usize = 32;

    #[inline(always)]
    unsafe fn fma(sum: F32x16, weight: __m512i, x: __m512i) -> F32x16 {
        // SAFETY: the processor has AVX-512 with bf16, the promise of every function here; a vector
        // of bf16 is a vector of bits.
        unsafe {
            F32x16(_mm512_dpbf16_ps(
                sum.0,
                std::mem::transmute::<__m512i, __m512bh>(weight),
                std::mem::transmute::<__m512i, __m512bh>(x),
            ))
        }
    }

    #[inline(always)]
    unsafe fn x(from: *const bf16) -> __m512i {
        // SAFETY: as in `fma`, and `from` points to thirty-two elements.
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
        // SAFETY: as in `fma`, and `from` points to `count` elements: a masked load touches no
        // others.
        unsafe { _mm512_maskz_loadu_epi16((1u32 << count) - 1, from.cast()) }
    }
}
