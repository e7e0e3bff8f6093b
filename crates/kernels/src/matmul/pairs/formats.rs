//! Formats whose numbers are multiplied in pairs of bf16.

use std::arch::x86_64::*;

use half::bf16;

use super::{BLOCK, SCALES, STEP};
use crate::quants::{Q3K, Q4K, Q5K, Q6K, Quants};
use crate::simd::F32x16;

/// A format whose numbers are looked up. In 64 bytes, each two bytes hold four numbers, of which
/// vector `p` of four has the one in bits `4 p` to `4 p + 3`.
pub(super) trait Pairs: Quants<Scales = [f32; SCALES]> {
    /// How far apart numbers are whose bytes are 32 apart, and those in the two halves of a byte.
    const DISTANCES: [usize; 2];

    /// Whether there are offsets.
    const OFFSETS: bool;

    /// Where the scales of sixteen numbers at a time are.
    const SCALES_OF: [usize; BLOCK / 16];

    /// Where those are that the sums of the even vectors of each step take, and of the odd ones.
    const LANES: [[[i32; 16]; 2]; 2] = scale_lanes(Self::DISTANCES, Self::SCALES_OF);

    /// What numbers are looked up in.
    type Table: Copy;

    /// What they are worth, in bf16.
    ///
    /// # Safety
    ///
    /// This processor has AVX-512.
    unsafe fn table() -> Self::Table;

    /// Scales of a block, and offsets.
    ///
    /// # Safety
    ///
    /// This processor has AVX-512; this is a block.
    unsafe fn scales(block: *const u8) -> __m512;

    /// The numbers of a step, in bf16.
    ///
    /// # Safety
    ///
    /// This processor has AVX-512; the block has this step.
    unsafe fn numbers(block: *const u8, step: usize, table: Self::Table) -> [__m512i; 4];
}

/// The number of which a vector has the bf16 in lane `lane` of 32, in a step.
pub(super) const fn element([bytes, half]: [usize; 2], vector: usize, lane: usize) -> usize {
    lane / 16 * bytes + vector % 2 * half + lane % 16 * 2 + vector / 2
}

const fn scale_lanes(distances: [usize; 2], scales_of: [usize; 16]) -> [[[i32; 16]; 2]; 2] {
    let mut lanes = [[[0; 16]; 2]; 2];
    let mut at = 0;
    while at < 64 {
        let (step, odd, lane) = (at / 32, at / 16 % 2, at % 16);
        let first = STEP * step + element(distances, odd, 2 * lane);
        lanes[step][odd][lane] = scales_of[first / 16] as i32;
        at += 1;
    }
    lanes
}

/// Some numbers in bf16.
fn worth<const LEN: usize>(of: impl Fn(usize) -> f32) -> [bf16; LEN] {
    std::array::from_fn(|number| bf16::from_f32(of(number)))
}

impl Pairs for Q4K {
    const DISTANCES: [usize; 2] = [64, 32];
    const OFFSETS: bool = true;
    /// Behind four scales are four offsets.
    const SCALES_OF: [usize; 16] = [0, 0, 1, 1, 2, 2, 3, 3, 8, 8, 9, 9, 10, 10, 11, 11];
    type Table = __m512i;

    #[inline(always)]
    unsafe fn table() -> __m512i {
        // A look-up takes 5 bits, of which the upper is the next number's.
        // SAFETY: the caller's promise.
        unsafe { table_of(|number| (number % 16) as f32) }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8) -> __m512 {
        // SAFETY: the caller's promises.
        unsafe { six_bits(block) }
    }

    #[inline(always)]
    unsafe fn numbers(block: *const u8, step: usize, table: __m512i) -> [__m512i; 4] {
        // SAFETY: the caller's promises.
        unsafe {
            let low = _mm512_loadu_si512(block.add(16 + 64 * step).cast());
            let four = [
                low,
                _mm512_srli_epi16::<4>(low),
                _mm512_srli_epi16::<8>(low),
                _mm512_srli_epi16::<12>(low),
            ];
            four.map(|low| _mm512_permutexvar_epi16(low, table))
        }
    }
}

impl Pairs for Q5K {
    const DISTANCES: [usize; 2] = Q4K::DISTANCES;
    const OFFSETS: bool = true;
    const SCALES_OF: [usize; 16] = Q4K::SCALES_OF;
    type Table = __m512i;

    #[inline(always)]
    unsafe fn table() -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { table_of(|number| number as f32) }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8) -> __m512 {
        // SAFETY: the caller's promises.
        unsafe { six_bits(block) }
    }

    #[inline(always)]
    unsafe fn numbers(block: *const u8, step: usize, table: __m512i) -> [__m512i; 4] {
        // SAFETY: the caller's promises.
        unsafe {
            let low = _mm512_loadu_si512(block.add(48 + 64 * step).cast());
            let high = two_apart(block.add(16), 4 * step as i16);
            let both = |low, high| {
                let number = _mm512_ternarylogic_epi32::<0xe4>(high, low, _mm512_set1_epi16(0x10));
                _mm512_permutexvar_epi16(number, table)
            };
            [
                both(low, _mm512_slli_epi16::<4>(high)),
                both(_mm512_srli_epi16::<4>(low), _mm512_slli_epi16::<3>(high)),
                both(_mm512_srli_epi16::<8>(low), _mm512_srli_epi16::<4>(high)),
                both(_mm512_srli_epi16::<12>(low), _mm512_srli_epi16::<5>(high)),
            ]
        }
    }
}

impl Pairs for Q3K {
    const DISTANCES: [usize; 2] = [64, 32];
    const OFFSETS: bool = false;
    const SCALES_OF: [usize; 16] = Q6K::SCALES_OF;
    type Table = __m512i;

    #[inline(always)]
    unsafe fn table() -> __m512i {
        // A look-up takes 5 bits, of which the upper two are the next number's.
        // SAFETY: the caller's promise.
        unsafe { table_of(|number| (number % 8) as f32 - 4.0) }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8) -> __m512 {
        // SAFETY: the caller's promises; there are sixteen.
        unsafe {
            let scales = <Q3K as Quants>::scales::<F32x16>(&*block.cast(), block);
            _mm512_loadu_ps(scales.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn numbers(block: *const u8, step: usize, table: __m512i) -> [__m512i; 4] {
        // SAFETY: the caller's promises.
        unsafe {
            let low = _mm256_loadu_si256(block.add(32 + 32 * step).cast());
            let shift = _mm512_inserti64x4::<1>(_mm512_setzero_si512(), _mm256_set1_epi16(4));
            let low = _mm512_srlv_epi16(_mm512_broadcast_i64x4(low), shift);
            let high = two_apart(block, 4 * step as i16);
            let both = |low, high| {
                let number = _mm512_ternarylogic_epi32::<0xe4>(high, low, _mm512_set1_epi16(4));
                _mm512_permutexvar_epi16(number, table)
            };
            [
                both(low, _mm512_slli_epi16::<2>(high)),
                both(_mm512_srli_epi16::<2>(low), _mm512_slli_epi16::<1>(high)),
                both(_mm512_srli_epi16::<8>(low), _mm512_srli_epi16::<6>(high)),
                both(_mm512_srli_epi16::<10>(low), _mm512_srli_epi16::<7>(high)),
            ]
        }
    }
}

impl Pairs for Q6K {
    const DISTANCES: [usize; 2] = [32, 64];
    const OFFSETS: bool = false;
    const SCALES_OF: [usize; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    type Table = [__m512i; 2];

    #[inline(always)]
    unsafe fn table() -> [__m512i; 2] {
        // Four times the number: scales are a quarter.
        let table: [bf16; 64] = worth(|number| 4.0 * (number as f32 - 32.0));
        // SAFETY: the caller's promise; both are 128 bytes.
        unsafe { [0, 32].map(|first| _mm512_loadu_si512(table.as_ptr().add(first).cast())) }
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8) -> __m512 {
        // SAFETY: the caller's promises.
        unsafe {
            let numbers = _mm512_cvtepi8_epi32(_mm_loadu_si128(block.add(192).cast()));
            let factor = _mm256_set1_epi16(block.add(208).cast::<i16>().read_unaligned());
            // A quarter: numbers are taken four times.
            let factor = _mm512_mul_ps(_mm512_cvtph_ps(factor), _mm512_set1_ps(0.25));
            _mm512_mul_ps(_mm512_cvtepi32_ps(numbers), factor)
        }
    }

    #[inline(always)]
    unsafe fn numbers(block: *const u8, step: usize, table: [__m512i; 2]) -> [__m512i; 4] {
        // SAFETY: the caller's promises.
        unsafe {
            let low = _mm512_loadu_si512(block.add(64 * step).cast());
            let high = _mm256_loadu_si256(block.add(128 + 32 * step).cast());
            let high = _mm512_broadcast_i64x4(high);
            let shift = |a, b| _mm512_inserti64x4::<1>(_mm512_set1_epi16(a), _mm256_set1_epi16(b));
            // The upper two bits of numbers whose bytes are 32 apart are 2 apart. They are brought
            // to where they go above the lower four.
            let first = _mm512_sllv_epi16(high, shift(4, 2));
            let rest = _mm512_srlv_epi16(high, shift(0, 2));
            let both = |low, high| {
                let number = _mm512_ternarylogic_epi32::<0xe4>(high, low, _mm512_set1_epi16(0x30));
                _mm512_permutex2var_epi16(table[0], number, table[1])
            };
            [
                both(low, first),
                both(_mm512_srli_epi16::<4>(low), rest),
                both(_mm512_srli_epi16::<8>(low), _mm512_srli_epi16::<4>(rest)),
                both(_mm512_srli_epi16::<12>(low), _mm512_srli_epi16::<8>(rest)),
            ]
        }
    }
}

/// What the 32 numbers of 5 bits are worth.
///
/// # Safety
///
/// This processor has AVX-512.
#[inline(always)]
unsafe fn table_of(of: impl Fn(usize) -> f32) -> __m512i {
    let table: [bf16; 32] = worth(of);
    // SAFETY: the caller's promise; both are 64 bytes.
    unsafe { _mm512_loadu_si512(table.as_ptr().cast()) }
}

/// 32 bytes twice: words are shifted right by so many bits, and in the upper half by two more.
///
/// # Safety
///
/// This processor has AVX-512; these are 32 bytes.
#[inline(always)]
unsafe fn two_apart(from: *const u8, by: i16) -> __m512i {
    // SAFETY: the caller's promises.
    unsafe {
        let upper = _mm256_set1_epi16(by + 2);
        let shift = _mm512_inserti64x4::<1>(_mm512_set1_epi16(by), upper);
        _mm512_srlv_epi16(_mm512_broadcast_i64x4(_mm256_loadu_si256(from.cast())), shift)
    }
}

/// Four scales, as many offsets, four scales, and as many offsets.
///
/// # Safety
///
/// This processor has AVX-512; this is a block of Q4_K or Q5_K.
#[inline(always)]
unsafe fn six_bits(block: *const u8) -> __m512 {
    // Four scales and four offsets at a time: the lower 6 bits of the first ones; of the others 4
    // bits here and 2 there.
    // SAFETY: the caller's promises.
    unsafe {
        let packed = _mm_loadu_si128(block.add(4).cast());
        let last = _mm_srlv_epi32(_mm_shuffle_epi32::<0xa4>(packed), _mm_set_epi32(4, 0, 0, 0));
        let low =
            _mm_and_si128(last, _mm_set_epi32(0x0f0f_0f0f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0x3f3f_3f3f));
        let high = _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0x40>(packed));
        let high = _mm_and_si128(high, _mm_set_epi32(0x3030_3030, 0x3030_3030, 0, 0));
        let numbers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_or_si128(low, high)));
        let both = _mm256_set1_epi32(block.cast::<i32>().read_unaligned());
        let fours = _mm512_set_epi32(1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0);
        _mm512_mul_ps(numbers, _mm512_permutexvar_ps(fours, _mm512_cvtph_ps(both)))
    }
}
