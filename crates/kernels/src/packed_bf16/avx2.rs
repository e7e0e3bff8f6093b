//! Unpacking with AVX2: half a group at a time.

use std::arch::x86_64::*;

use half::bf16;
use outsize_checkpoint::PackedBf16;

use super::{GROUP, position, unpacked};

/// Unpacks one block.
///
/// # Safety
///
/// This processor has AVX2; `block` and `to` have the bytes and elements of a block.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn unpack(packed: PackedBf16, block: &[u8], to: &mut [bf16]) {
    // SAFETY: the caller's promises.
    unsafe {
        match packed.exponent_bits() {
            3 => unpack_bits::<3>(packed, block, to),
            _ => unpack_bits::<4>(packed, block, to),
        }
    }
}

/// Unpacks one block whose exponents have so many bits.
///
/// # Safety
///
/// As for [`unpack`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn unpack_bits<const BITS: usize>(packed: PackedBf16, block: &[u8], to: &mut [bf16]) {
    let (head, rest) = block.split_at(packed.head());
    let (exponents, numbers) = rest.split_at(packed.groups() * 8 * BITS);
    let mut outside = head[1..].iter();
    let lowest = _mm256_set1_epi8(head[0] as i8);
    let (exponents, _) = exponents.as_chunks::<8>().0.as_chunks::<BITS>();
    let groups = exponents.iter().zip(numbers.as_chunks::<GROUP>().0);
    for ((planes, numbers), to) in groups.zip(to.as_chunks_mut::<GROUP>().0) {
        let planes = planes.map(u64::from_le_bytes);
        for half in 0..2 {
            let mut exponents = lowest;
            for (bit, plane) in planes.iter().enumerate() {
                let set = set_bits((plane >> (32 * half)) as u32);
                let worth = _mm256_set1_epi8(1 << bit);
                exponents = _mm256_add_epi8(exponents, _mm256_and_si256(set, worth));
            }
            // SAFETY: half of a group; of each sixteen words four times four go where they belong.
            unsafe {
                let numbers = _mm256_loadu_si256(numbers.as_ptr().add(32 * half).cast());
                let select = |mask, one, other| {
                    _mm256_or_si256(_mm256_and_si256(mask, one), _mm256_andnot_si256(mask, other))
                };
                // What shifts bring from a neighbour is masked.
                let sign = _mm256_set1_epi8(0x80_u8 as i8);
                let upper = select(sign, numbers, _mm256_srli_epi16::<1>(exponents));
                let lower = select(sign, _mm256_slli_epi16::<7>(exponents), numbers);
                let words =
                    [_mm256_unpacklo_epi8(lower, upper), _mm256_unpackhi_epi8(lower, upper)];
                for (at, words) in words.into_iter().enumerate() {
                    let words = _mm256_permute4x64_epi64::<0xd8>(words);
                    let to = to.as_mut_ptr().add(32 * at + 8 * half);
                    _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(words));
                    _mm_storeu_si128(to.add(16).cast(), _mm256_extracti128_si256::<1>(words));
                }
            }
        }
        // Those outside of the window are put right where they went: to put them into vectors that
        // are loaded at once would wait for memory.
        let mut left = planes.into_iter().fold(!0, |all, plane| all & plane);
        while left != 0 {
            let place = left.trailing_zeros() as usize;
            // There are no more where a file was damaged.
            let exponent = outside.next().copied().unwrap_or_default();
            to[position(place)] = unpacked(exponent, numbers[place]);
            left &= left - 1;
        }
    }
}

/// All bits of a byte for each bit that is set.
#[inline]
#[target_feature(enable = "avx2")]
fn set_bits(bits: u32) -> __m256i {
    let place = |byte: i64| byte * 0x0101_0101_0101_0101;
    let places = _mm256_set_epi64x(place(3), place(2), place(1), place(0));
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), places);
    let own = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, own), own)
}
