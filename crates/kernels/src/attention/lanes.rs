//! What attention asks of a vector besides what matmuls ask.

use crate::matmul::Vector;

/// A vector of f32 lanes that can be filled with one number and stored.
///
/// # Safety
///
/// As for [`Vector`]: the processor has the instructions that the type is for.
pub(super) trait Lanes: Vector {
    /// A vector of half as many lanes, of which there are two in the time of one of these; or this
    /// one.
    type Half: Lanes;

    /// How many vectors of a row of values are summed side by side.
    const WIDE: usize;

    /// One number in every lane.
    unsafe fn splat(value: f32) -> Self;

    /// Writes all lanes to a pointer to as many.
    unsafe fn store(self, to: *mut f32);
}

/// The most lanes of a vector.
pub(super) const MOST_LANES: usize = 16;

impl Lanes for crate::matmul::F32x4 {
    type Half = Self;

    const WIDE: usize = 2;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(wide::f32x4::splat(value))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: `to` points to four elements.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0.to_array()) };
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Lanes;
    use crate::matmul::{F32x8, F32x16};

    impl Lanes for F32x8 {
        type Half = Self;

        const WIDE: usize = 2;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the processor has AVX2, the promise of every function here.
            Self(unsafe { _mm256_set1_ps(value) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: as in `splat`, and `to` points to eight elements.
            unsafe { _mm256_storeu_ps(to, self.0) };
        }
    }

    impl Lanes for F32x16 {
        // Where processors take sixteen lanes at once, half of them would be idle either way.
        type Half = F32x8;

        const WIDE: usize = 4;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the processor has AVX-512, the promise of every function here.
            Self(unsafe { _mm512_set1_ps(value) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: as in `splat`, and `to` points to sixteen elements.
            unsafe { _mm512_storeu_ps(to, self.0) };
        }
    }
}
