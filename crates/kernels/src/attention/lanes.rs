//! What attention asks of a vector besides what products ask.

use crate::product::Vector;

/// A vector of f32 lanes that can be filled with one number, stored, and summed four at once.
///
/// # Safety
///
/// As for [`Vector`]: the processor has the instructions that the type is for.
pub(super) trait Lanes: Vector {
    /// How many vectors of a row of values are summed side by side.
    const WIDE: usize;

    /// One number in every lane.
    unsafe fn splat(value: f32) -> Self;

    /// Writes all lanes to a pointer to as many.
    unsafe fn store(self, to: *mut f32);

    /// The sums of the lanes of four vectors, each in the order of [`Vector::sum`].
    #[inline(always)]
    unsafe fn sums(four: [Self; 4]) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { [four[0].sum(), four[1].sum(), four[2].sum(), four[3].sum()] }
    }
}

impl Lanes for crate::product::F32x4 {
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
    use crate::product::{F32x8, F32x16};

    impl Lanes for F32x8 {
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

        #[inline(always)]
        unsafe fn sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
            // SAFETY: as in `splat`. Halves onto each other, three times, as `sum` does for one.
            unsafe {
                let (ab, cd) = (halves_256(a.0, b.0), halves_256(c.0, d.0));
                // Of each lane: a, a, c, c and b, b, d, d.
                let two = _mm256_add_ps(
                    _mm256_shuffle_ps::<0x44>(ab, cd),
                    _mm256_shuffle_ps::<0xee>(ab, cd),
                );
                let one = _mm256_add_ps(two, _mm256_permute_ps::<0xb1>(two));
                let acbd = _mm_shuffle_ps::<0x88>(
                    _mm256_castps256_ps128(one),
                    _mm256_extractf128_ps::<1>(one),
                );
                let mut sums = [0.0; 4];
                _mm_storeu_ps(sums.as_mut_ptr(), _mm_permute_ps::<0xd8>(acbd));
                sums
            }
        }
    }

    impl Lanes for F32x16 {
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

        #[inline(always)]
        unsafe fn sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
            // SAFETY: as in `splat`. Halves onto each other, four times, as `sum` does for one.
            unsafe {
                let (ab, cd) = (halves_512(a.0, b.0), halves_512(c.0, d.0));
                // Four lanes of each of the four.
                let four = _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0x88>(ab, cd),
                    _mm512_shuffle_f32x4::<0xdd>(ab, cd),
                );
                let two = _mm512_add_ps(four, _mm512_permute_ps::<0x4e>(four));
                let one = _mm512_add_ps(two, _mm512_permute_ps::<0xb1>(two));
                let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
                let mut sums = [0.0; 4];
                let gathered = _mm512_permutexvar_ps(firsts, one);
                _mm_storeu_ps(sums.as_mut_ptr(), _mm512_castps512_ps128(gathered));
                sums
            }
        }
    }

    /// The halves of each of two vectors added: first those of `a`, then those of `b`.
    ///
    /// # Safety
    ///
    /// The processor has AVX2.
    #[inline(always)]
    unsafe fn halves_256(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(a, b),
                _mm256_permute2f128_ps::<0x31>(a, b),
            )
        }
    }

    /// As [`halves_256`].
    ///
    /// # Safety
    ///
    /// The processor has AVX-512.
    #[inline(always)]
    unsafe fn halves_512(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            _mm512_add_ps(
                _mm512_shuffle_f32x4::<0x44>(a, b),
                _mm512_shuffle_f32x4::<0xee>(a, b),
            )
        }
    }
}
