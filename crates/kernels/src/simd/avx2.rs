//! AVX2 with FMA and F16C: eight lanes, sixteen registers.

use std::arch::x86_64::*;

use super::{E4M3_FIELDS, Vector};

/// Eight f32.
#[derive(Clone, Copy)]
pub(crate) struct F32x8(pub(crate) __m256);

impl Vector for F32x8 {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the processor has AVX2, FMA and F16C, the promise of every function here.
        Self(unsafe { _mm256_setzero_ps() })
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: as in `zero`.
        Self(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as in `zero`, and `to` points to eight elements.
        unsafe { _mm256_storeu_ps(to, self.0) };
    }

    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: as in `zero`.
        Self(unsafe { _mm256_fmadd_ps(a.0, b.0, self.0) })
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: as in `zero`. Halves onto each other, three times.
        unsafe {
            let upper = _mm256_extractf128_ps::<1>(self.0);
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), upper);
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // SAFETY: as in `zero`. Halves onto each other, three times, as `sum` does for one.
        unsafe {
            let halves = |a: Self, b: Self| {
                let upper = _mm256_permute2f128_ps::<0x31>(a.0, b.0);
                _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a.0, b.0), upper)
            };
            let (ab, cd) = (halves(a, b), halves(c, d));
            // Of each lane: a, a, c, c and b, b, d, d.
            let two =
                _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
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

    #[inline(always)]
    unsafe fn e4m3(from: *const u8, scale: Self) -> Self {
        // SAFETY: as in `zero`, and `from` points to eight bytes.
        unsafe {
            let wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()));
            let fields = _mm256_set1_epi32(E4M3_FIELDS);
            let bits = _mm256_and_si256(_mm256_slli_epi32::<20>(wide), fields);
            Self(_mm256_mul_ps(_mm256_castsi256_ps(bits), scale.0))
        }
    }

    #[inline(always)]
    unsafe fn f32(from: *const f32) -> Self {
        // SAFETY: as in `zero`, and `from` points to eight elements.
        Self(unsafe { _mm256_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn bf16(from: *const u16) -> Self {
        // SAFETY: as in `zero`, and `from` points to eight elements. A bf16 is the upper half of an
        // f32.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)))
        }
    }

    #[inline(always)]
    unsafe fn f16(from: *const u16) -> Self {
        // SAFETY: as in `zero`, and `from` points to eight elements.
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) })
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: SSE is part of x86-64, and a prefetch of any address, here to the second-level
        // cache, is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }
}
