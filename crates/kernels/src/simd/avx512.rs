//! AVX-512: sixteen lanes, thirty-two registers.

use std::arch::x86_64::*;

use super::avx2::four_bits;
use super::{E4M3_FIELDS, F32x8, NumberTable, Vector, transposed};

/// Sixteen f32.
#[derive(Clone, Copy)]
pub(crate) struct F32x16(pub(crate) __m512);

impl Vector for F32x16 {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the processor has AVX-512, the promise of every function here.
        Self(unsafe { _mm512_setzero_ps() })
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: as in `zero`.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as in `zero`, and `to` points to sixteen elements.
        unsafe { _mm512_storeu_ps(to, self.0) };
    }

    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: as in `zero`.
        Self(unsafe { _mm512_fmadd_ps(a.0, b.0, self.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, by: Self) -> Self {
        // SAFETY: as in `zero`.
        Self(unsafe { _mm512_mul_ps(self.0, by.0) })
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: as in `zero`. Written out: the order of `_mm512_reduce_add_ps` is the compiler's
        // to choose.
        unsafe {
            let upper = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self.0));
            let lower = _mm512_castps512_ps256(self.0);
            F32x8(_mm256_add_ps(lower, _mm256_castpd_ps(upper))).sum()
        }
    }

    #[inline(always)]
    unsafe fn sums(vectors: [Self; 4]) -> [f32; 4] {
        let [a, b, c, d] = vectors.map(|vector| vector.0);
        // SAFETY: as in `zero`; four f32 are as large as a vector of them. A quarter of the
        // instructions of four sums.
        unsafe {
            // Halves onto each other, of two vectors at once, then quarters of four.
            let halves = |a, b| {
                _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
                    _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
                )
            };
            let (ab, cd) = (halves(a, b), halves(c, d));
            let four = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
            );
            // Then within the quarters: the upper two lanes onto the lower, and the second onto the
            // first.
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0b11_10_11_10>(four));
            let one = _mm512_add_ps(two, _mm512_movehdup_ps(two));
            let firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
            std::mem::transmute(_mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one)))
        }
    }

    #[inline(always)]
    unsafe fn transpose(block: &mut [f32; 256]) {
        // SAFETY: as in `zero`; the block and sixteen vectors are of one size.
        unsafe {
            let rows: [__m512i; 16] = std::mem::transmute(*block);
            *block = std::mem::transmute::<[__m512i; 16], [f32; 256]>(transposed(rows));
        }
    }

    #[inline(always)]
    unsafe fn e4m3(from: *const u8, scale: Self) -> Self {
        // SAFETY: as in `zero`, and `from` points to sixteen bytes.
        unsafe {
            let wide = _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()));
            let fields = _mm512_set1_epi32(E4M3_FIELDS);
            let bits = _mm512_and_si512(_mm512_slli_epi32::<20>(wide), fields);
            Self(_mm512_mul_ps(_mm512_castsi512_ps(bits), scale.0))
        }
    }

    type Sixteen = Self;
    type Bytes = __m512i;

    #[inline(always)]
    unsafe fn sixteen<const LESS: i32>(scale: f32, offset: f32) -> Self {
        let mut numbers = [0.0; 16];
        for (at, number) in numbers.iter_mut().enumerate() {
            *number = (at as i32 - LESS) as f32;
        }
        // SAFETY: as in `zero`. Not fused: as two instructions each takes its scalar from memory.
        unsafe {
            let products = Self::f32(numbers.as_ptr()).mul(Self::splat(scale));
            Self(_mm512_sub_ps(products.0, _mm512_set1_ps(offset)))
        }
    }

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> __m512i {
        // SAFETY: as in `zero`, and `from` points to sixteen bytes.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn halves<const UPPER: bool, const LESS: i32>(bytes: __m512i, sixteen: Self) -> Self {
        // SAFETY: as in `zero`. What is looked up are the lower 4 bits.
        unsafe {
            let bytes = if UPPER { _mm512_srli_epi32::<4>(bytes) } else { bytes };
            Self(_mm512_permutexvar_ps(bytes, sixteen.0))
        }
    }

    #[inline(always)]
    unsafe fn neighbours(from: &[u8; 16]) -> [__m512i; 8] {
        // SAFETY: as in `zero`, and these are sixteen bytes. Four neighbours are in two bytes: each
        // four lanes get those of the first vector and those of the second, and shift their own
        // number to the lowest 4 bits. What is above does not matter.
        unsafe {
            let all = _mm512_broadcast_i32x4(_mm_loadu_si128(from.as_ptr().cast()));
            let mut places = [0x0908_0100; 16];
            for (lane, places) in places.iter_mut().enumerate() {
                *places += 0x0202_0202 * (lane as i32 / 4);
            }
            let four = _mm512_shuffle_epi8(all, _mm512_loadu_si512(places.as_ptr().cast()));
            let shift = |by: i32| _mm512_set4_epi32(by + 12, by + 8, by + 4, by);
            let (first, second) =
                (_mm512_srlv_epi32(four, shift(0)), _mm512_srlv_epi32(four, shift(16)));
            let mut vectors = [first; 8];
            vectors[1] = second;
            vectors
        }
    }

    type Table = Self;

    #[inline(always)]
    unsafe fn table<T: NumberTable>(scale: f32) -> Self {
        // SAFETY: as in `zero`, and there are sixteen.
        unsafe { Self::f32(const { &T::VALUES }.as_ptr()).mul(Self::splat(scale)) }
    }

    #[inline(always)]
    unsafe fn look_up<T: NumberTable, const UPPER: bool>(bytes: __m512i, table: Self) -> Self {
        // SAFETY: as in `zero`.
        unsafe { Self::halves::<UPPER, 0>(bytes, table) }
    }

    #[inline(always)]
    unsafe fn upper_six(low: &[u8; 64], high: &[u8; 32]) -> [u8; 128] {
        // SAFETY: as in `zero`, and all vectors are loaded from as many bytes. What shifts bring
        // from a neighbour is masked.
        unsafe {
            let low = _mm512_loadu_si512(low.as_ptr().cast());
            let high = _mm512_broadcast_i64x4(_mm256_loadu_si256(high.as_ptr().cast()));
            let left = |a, b| _mm512_inserti64x4::<1>(_mm512_set1_epi16(a), _mm256_set1_epi16(b));
            let first = _mm512_sllv_epi16(high, left(6, 4));
            let second = _mm512_sllv_epi16(high, left(2, 0));
            std::mem::transmute([
                six(_mm512_slli_epi16::<2>(low), first),
                six(_mm512_srli_epi16::<2>(low), second),
            ])
        }
    }

    #[inline(always)]
    unsafe fn five<const LESS: i8>(low: &[u8; 16], high: u32) -> [i8; 32] {
        // SAFETY: as in `zero`; a vector is as many bytes.
        unsafe {
            let numbers = _mm256_sub_epi8(four_bits(low), _mm256_set1_epi8(LESS));
            let sixteen = _mm256_set1_epi8(16);
            std::mem::transmute(_mm256_mask_add_epi8(numbers, high, numbers, sixteen))
        }
    }

    #[inline(always)]
    unsafe fn i8(from: *const u8) -> Self {
        // SAFETY: as in `zero`, and `from` points to sixteen bytes.
        let wide = unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) };
        // SAFETY: as in `zero`.
        Self(unsafe { _mm512_cvtepi32_ps(wide) })
    }

    #[inline(always)]
    unsafe fn u8(from: *const u8) -> Self {
        // SAFETY: as in `zero`, and `from` points to sixteen bytes.
        Self(unsafe { _mm512_cvtepi32_ps(Self::bytes(from)) })
    }

    #[inline(always)]
    unsafe fn widen_f16(bits: u16) -> f32 {
        // SAFETY: as in `zero`.
        unsafe { F32x8::widen_f16(bits) }
    }

    #[inline(always)]
    unsafe fn f32(from: *const f32) -> Self {
        // SAFETY: as in `zero`, and `from` points to sixteen elements.
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn f32_part(from: *const f32, count: usize) -> Self {
        // SAFETY: as in `zero`, and `from` points to `count` elements: a masked load touches no
        // others.
        Self(unsafe { _mm512_maskz_loadu_ps(mask(count), from) })
    }

    #[inline(always)]
    unsafe fn bf16(from: *const u16) -> Self {
        // SAFETY: as in `zero`, and `from` points to sixteen elements.
        unsafe { widen_bf16(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn bf16_part(from: *const u16, count: usize) -> Self {
        // SAFETY: as in `f32_part`.
        unsafe { widen_bf16(_mm256_maskz_loadu_epi16(mask(count), from.cast())) }
    }

    #[inline(always)]
    unsafe fn f16(from: *const u16) -> Self {
        // SAFETY: as in `zero`, and `from` points to sixteen elements.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn f16_part(from: *const u16, count: usize) -> Self {
        // SAFETY: as in `f32_part`.
        Self(unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(count), from.cast())) })
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        F32x8::prefetch(address);
    }
}

/// The first `count < 16` lanes.
#[inline(always)]
fn mask(count: usize) -> __mmask16 {
    (1 << count) - 1
}

/// Of each byte 4 bits of `low` and 2 of `high`, of which the uppermost is flipped.
///
/// # Safety
///
/// The processor has AVX-512.
#[inline(always)]
unsafe fn six(low: __m512i, high: __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let both = _mm512_ternarylogic_epi32::<0xe4>(high, low, _mm512_set1_epi8(0xc0_u8 as i8));
        let (kept, flipped) = (_mm512_set1_epi8(0xfc_u8 as i8), _mm512_set1_epi8(0x80_u8 as i8));
        _mm512_ternarylogic_epi32::<0x6a>(both, kept, flipped)
    }
}

/// A bf16 is the upper half of an f32.
///
/// # Safety
///
/// The processor has AVX-512.
#[inline(always)]
unsafe fn widen_bf16(bits: __m256i) -> F32x16 {
    // SAFETY: the caller's promise.
    unsafe { F32x16(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))) }
}
