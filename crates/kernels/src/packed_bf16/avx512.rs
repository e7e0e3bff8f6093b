//! Unpacking with AVX-512, in registers: a group at a time.

use std::arch::x86_64::*;
use std::sync::OnceLock;

use half::bf16;
use outsize_checkpoint::PackedBf16;

use super::{GROUP, sizes};
use crate::matmul::FAR;
use crate::simd::{F32x16, Vector};

/// Whether this processor has what this takes besides AVX-512: Intel's since Ice Lake, AMD's since
/// Zen 4.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        is_x86_feature_detected!("avx512vbmi2") && is_x86_feature_detected!("popcnt")
    })
}

/// A block that is being unpacked, with so many bits for an exponent.
#[derive(Clone, Copy)]
pub(crate) struct Block<const BITS: usize> {
    lowest: __m512i,
    /// The next exponent outside of the window.
    outside: *const u8,
    exponents: *const u8,
    numbers: *const u8,
}

impl<const BITS: usize> Block<BITS> {
    /// The block that begins there.
    ///
    /// # Safety
    ///
    /// This processor has AVX-512; there is a whole block of so many bits.
    #[inline(always)]
    pub(crate) unsafe fn at(packed: PackedBf16, block: *const u8) -> Self {
        let exponents = block.wrapping_add(packed.head());
        // SAFETY: the caller's promise.
        let lowest = unsafe { _mm512_set1_epi8(block.read().cast_signed()) };
        Self {
            lowest,
            outside: block.wrapping_add(1),
            exponents,
            numbers: exponents.wrapping_add(packed.groups() * 8 * BITS),
        }
    }

    /// The lower and the upper halves of the words of a group, by position: the next one of the
    /// block, which is number `group`.
    ///
    /// # Safety
    ///
    /// This processor [has the instructions](is_available); the block is still there, and has this
    /// group.
    #[inline(always)]
    pub(crate) unsafe fn halves(&mut self, group: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promises. No more exponents are outside than there are elements
        // before, so that the 64 bytes from the next one on lie in the block, which has as many
        // bytes of numbers behind them, even where a file was damaged.
        unsafe {
            let planes = self.exponents.add(group * 8 * BITS).cast::<u64>();
            let (mut exponents, mut all_ones) = (self.lowest, !0);
            for bit in 0..BITS {
                let plane = planes.add(bit).read_unaligned();
                let worth = _mm512_set1_epi8(1 << bit);
                exponents = _mm512_mask_add_epi8(exponents, plane, exponents, worth);
                all_ones &= plane;
            }
            let others = _mm512_loadu_si512(self.outside.cast());
            exponents = _mm512_mask_expand_epi8(exponents, all_ones, others);
            self.outside = self.outside.add(all_ones.count_ones() as usize);
            let numbers = _mm512_loadu_si512(self.numbers.add(group * GROUP).cast());
            // Bits of the first where the mask has them, else of the second. What shifts bring from
            // a neighbour is masked.
            let sign = _mm512_set1_epi8(i8::MIN);
            let lower = _mm512_slli_epi16::<7>(exponents);
            let upper = _mm512_srli_epi16::<1>(exponents);
            [
                _mm512_ternarylogic_epi64::<0xca>(sign, lower, numbers),
                _mm512_ternarylogic_epi64::<0xca>(sign, numbers, upper),
            ]
        }
    }

    /// The elements of a group, widened to f32, in order. Otherwise as [`halves`](Self::halves).
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn singles(&mut self, group: usize) -> [__m512; 4] {
        // SAFETY: the caller's promises.
        unsafe {
            let [lower, upper] = self.halves(group);
            let zero = _mm512_setzero_si512();
            let words = [_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)];
            [
                _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, words[0])),
                _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, words[0])),
                _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, words[1])),
                _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, words[1])),
            ]
        }
    }

    /// The elements of a group, in order. Otherwise as [`halves`](Self::halves).
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn words(&mut self, group: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promises.
        unsafe {
            let [lower, upper] = self.halves(group);
            let order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
            [_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)]
                .map(|words| _mm512_permutexvar_epi64(order, words))
        }
    }
}

/// Unpacks one block.
///
/// # Safety
///
/// This processor [has the instructions](is_available); `block` and `to` have the bytes and
/// elements of a block.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,popcnt")]
pub(super) unsafe fn unpack(packed: PackedBf16, block: &[u8], to: &mut [bf16]) {
    // SAFETY: the caller's promises.
    unsafe {
        match packed.exponent_bits() {
            3 => unpack_bits::<3>(packed, block, to),
            _ => unpack_bits::<4>(packed, block, to),
        }
    }
}

/// The same with so many bits for an exponent.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn unpack_bits<const BITS: usize>(packed: PackedBf16, block: &[u8], to: &mut [bf16]) {
    let (elements, bytes) = sizes(packed);
    assert!(block.len() == bytes && to.len() == elements, "one block");
    // SAFETY: the caller's promises; as was checked, these are a block, and room for its elements.
    unsafe {
        // What is fetched ahead of need may be any address.
        let mut ahead = block.as_ptr().wrapping_add(FAR);
        let mut block = Block::<BITS>::at(packed, block.as_ptr());
        for group in 0..packed.groups() {
            F32x16::prefetch(ahead);
            F32x16::prefetch(ahead.wrapping_add(64));
            ahead = ahead.wrapping_add(bytes / packed.groups());
            let [first, second] = block.words(group);
            let to = to.as_mut_ptr().add(group * GROUP);
            _mm512_storeu_si512(to.cast(), first);
            _mm512_storeu_si512(to.add(GROUP / 2).cast(), second);
        }
    }
}
