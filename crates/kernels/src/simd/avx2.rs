//! AVX2 with FMA and F16C: eight lanes, sixteen registers.

use std::arch::x86_64::*;

use super::{E4M3_FIELDS, NumberTable, Vector};

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
    unsafe fn mul(self, by: Self) -> Self {
        // SAFETY: as in `zero`.
        Self(unsafe { _mm256_mul_ps(self.0, by.0) })
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

    /// The scale and the offset.
    type Sixteen = [Self; 2];
    type Bytes = __m256i;

    #[inline(always)]
    unsafe fn sixteen<const LESS: i32>(scale: f32, offset: f32) -> [Self; 2] {
        // SAFETY: as in `zero`.
        unsafe { [Self::splat(scale), Self::splat(offset)] }
    }

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> __m256i {
        // SAFETY: as in `zero`, and `from` points to eight bytes.
        unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())) }
    }

    #[inline(always)]
    unsafe fn halves<const UPPER: bool, const LESS: i32>(
        bytes: __m256i,
        [scale, offset]: [Self; 2],
    ) -> Self {
        // SAFETY: as in `zero`.
        unsafe {
            let halves = match UPPER {
                true => _mm256_srli_epi32::<4>(bytes),
                false => _mm256_and_si256(bytes, _mm256_set1_epi32(15)),
            };
            let numbers = _mm256_cvtepi32_ps(_mm256_sub_epi32(halves, _mm256_set1_epi32(LESS)));
            Self(_mm256_fmsub_ps(numbers, scale.0, offset.0))
        }
    }

    #[inline(always)]
    unsafe fn neighbours(from: &[u8; 16]) -> [__m256i; 8] {
        // SAFETY: as in `zero`. Each lane shifts its own number of eight to the lowest 4 bits. What
        // is above does not matter.
        unsafe {
            let shift = _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0);
            let mut vectors = [shift; 8];
            for (vector, eight) in vectors.iter_mut().zip(from.as_chunks().0) {
                let eight = _mm256_set1_epi32(i32::from_le_bytes(*eight));
                *vector = _mm256_srlv_epi32(eight, shift);
            }
            vectors
        }
    }

    /// The first eight and the last.
    type Table = [Self; 2];

    #[inline(always)]
    unsafe fn table<T: NumberTable>(scale: f32) -> [Self; 2] {
        let values = const { &T::VALUES };
        // SAFETY: as in `zero`, and there are twice eight.
        unsafe {
            let scale = Self::splat(scale);
            [Self::f32(values.as_ptr()).mul(scale), Self::f32(values[8..].as_ptr()).mul(scale)]
        }
    }

    #[inline(always)]
    unsafe fn look_up<T: NumberTable, const UPPER: bool>(
        bytes: __m256i,
        [first, last]: [Self; 2],
    ) -> Self {
        // SAFETY: as in `zero`. What is looked up are the lower 3 bits, and the fourth tells the
        // sign or which eight.
        unsafe {
            let halves = if UPPER { _mm256_srli_epi32::<4>(bytes) } else { bytes };
            let fourth = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(halves));
            let first = _mm256_permutevar8x32_ps(first.0, halves);
            if T::IS_SYMMETRIC {
                return Self(_mm256_xor_ps(first, _mm256_and_ps(fourth, _mm256_set1_ps(-0.0))));
            }
            Self(_mm256_blendv_ps(first, _mm256_permutevar8x32_ps(last.0, halves), fourth))
        }
    }

    #[inline(always)]
    unsafe fn upper_six(low: &[u8; 64], high: &[u8; 32]) -> [u8; 128] {
        // SAFETY: as in `zero`, and all vectors are loaded from as many bytes. What shifts bring
        // from a neighbour is masked.
        unsafe {
            let a = _mm256_loadu_si256(low.as_ptr().cast());
            let b = _mm256_loadu_si256(low[32..].as_ptr().cast());
            let high = _mm256_loadu_si256(high.as_ptr().cast());
            std::mem::transmute([
                six(_mm256_slli_epi16::<2>(a), _mm256_slli_epi16::<6>(high)),
                six(_mm256_slli_epi16::<2>(b), _mm256_slli_epi16::<4>(high)),
                six(_mm256_srli_epi16::<2>(a), _mm256_slli_epi16::<2>(high)),
                six(_mm256_srli_epi16::<2>(b), high),
            ])
        }
    }

    #[inline(always)]
    unsafe fn five<const LESS: i8>(low: &[u8; 16], high: u32) -> [i8; 32] {
        // SAFETY: as in `zero`; a vector is as many bytes. Eight bytes get the byte that has their
        // bits, of which each keeps its own.
        unsafe {
            let place = |byte: i64| byte * 0x0101_0101_0101_0101;
            let places = _mm256_set_epi64x(place(3), place(2), place(1), place(0));
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(high as i32), places);
            let own = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, own), own);
            let sixteen = _mm256_and_si256(set, _mm256_set1_epi8(16));
            let numbers = _mm256_or_si256(four_bits(low), sixteen);
            std::mem::transmute(_mm256_sub_epi8(numbers, _mm256_set1_epi8(LESS)))
        }
    }

    #[inline(always)]
    unsafe fn i8(from: *const u8) -> Self {
        // SAFETY: as in `zero`, and `from` points to eight bytes.
        let wide = unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())) };
        // SAFETY: as in `zero`.
        Self(unsafe { _mm256_cvtepi32_ps(wide) })
    }

    #[inline(always)]
    unsafe fn u8(from: *const u8) -> Self {
        // SAFETY: as in `zero`, and `from` points to eight bytes.
        Self(unsafe { _mm256_cvtepi32_ps(Self::bytes(from)) })
    }

    #[inline(always)]
    unsafe fn widen_f16(bits: u16) -> f32 {
        let vector;
        // SAFETY: as in `zero`. The compiler would insert the bits into a register that holds
        // something else, and wait for that.
        unsafe {
            std::arch::asm!(
                "vmovd {vector}, {bits:e}",
                vector = lateout(xmm_reg) vector,
                bits = in(reg) u32::from(bits),
                options(pure, nomem, nostack, preserves_flags),
            );
            _mm_cvtss_f32(_mm_cvtph_ps(vector))
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

/// The lower halves of bytes, and the upper ones.
///
/// # Safety
///
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn four_bits(from: &[u8; 16]) -> __m256i {
    // SAFETY: the caller's promise, and these are sixteen bytes.
    unsafe {
        let lower = _mm_loadu_si128(from.as_ptr().cast());
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(lower), lower);
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }
}

/// Of each byte 4 bits of `low` and 2 of `high`, of which the uppermost is flipped.
///
/// # Safety
///
/// The processor has AVX2.
#[inline(always)]
unsafe fn six(low: __m256i, high: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let low = _mm256_and_si256(low, _mm256_set1_epi8(0x3c));
        let high = _mm256_and_si256(high, _mm256_set1_epi8(0xc0_u8 as i8));
        _mm256_xor_si256(_mm256_or_si256(low, high), _mm256_set1_epi8(0x80_u8 as i8))
    }
}
