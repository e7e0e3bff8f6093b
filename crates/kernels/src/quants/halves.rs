//! Numbers of 4 bits in the halves of bytes, looked up among what all sixteen are worth.

use super::{Quants, bytes, f16_at, products};
use crate::simd::Vector;

/// A scale and 16 bytes: in the lower half of each the first 16 numbers, in the upper half the
/// others. Either numbers are plus 8, `LESS`, or behind the scale is what is added to all.
pub(crate) struct Halves<const BYTES: usize, const LESS: i32>;

pub(crate) type Q4_0 = Halves<18, 8>;
pub(crate) type Q4_1 = Halves<20, 0>;

impl<const BYTES: usize, const LESS: i32> Quants for Halves<BYTES, LESS> {
    type Block = [u8; BYTES];
    /// The scale, and what is subtracted.
    type Scales = [f32; 2];
    type Step<V: Vector> = (V::Sixteen, [V::Bytes; 8]);
    const ELEMENTS: usize = 32;
    const STEP: usize = 32;

    #[inline(always)]
    unsafe fn scales<V: Vector>(block: &[u8; BYTES], _apart: *const u8) -> [f32; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let offset = if LESS == 0 { -f16_at::<V>(block, 2) } else { 0.0 };
            [f16_at::<V>(block, 0), offset]
        }
    }

    #[inline(always)]
    unsafe fn step<V: Vector>(
        block: &[u8; BYTES],
        [scale, offset]: &[f32; 2],
        _step: usize,
    ) -> (V::Sixteen, [V::Bytes; 8]) {
        // SAFETY: the caller's promise.
        unsafe { (V::sixteen::<LESS>(*scale, *offset), bytes::<V>(&block[BYTES - 16..])) }
    }

    #[inline(always)]
    unsafe fn elements<V: Vector>((sixteen, bytes): &(V::Sixteen, [V::Bytes; 8]), at: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            match at < 16 {
                true => V::halves::<false, LESS>(bytes[at / V::LANES], *sixteen),
                false => V::halves::<true, LESS>(bytes[(at - 16) / V::LANES], *sixteen),
            }
        }
    }
}

/// Two f16 by which scales and offsets are multiplied; eight scales and eight offsets of 6 bits;
/// and 128 bytes: in each 32 of them the next 32 numbers in the lower halves, and 32 more in the
/// upper.
pub(crate) struct Q4K;

impl Quants for Q4K {
    type Block = [u8; 144];
    /// Four scales, as many offsets, four scales, and as many offsets.
    type Scales = [f32; 16];
    type Step<V: Vector> = ([V::Sixteen; 2], [V::Bytes; 8]);
    const ELEMENTS: usize = 256;
    const STEP: usize = 64;

    #[inline(always)]
    unsafe fn scales<V: Vector>(block: &[u8; 144], _apart: *const u8) -> [f32; 16] {
        // SAFETY: the caller's promise.
        unsafe { six_bits::<V>(block, f16_at::<V>(block, 2)) }
    }

    #[inline(always)]
    unsafe fn step<V: Vector>(
        block: &[u8; 144],
        scales: &[f32; 16],
        step: usize,
    ) -> ([V::Sixteen; 2], [V::Bytes; 8]) {
        let first = step / 2 * 8 + step % 2 * 2;
        // SAFETY: the caller's promise.
        unsafe {
            let low = V::sixteen::<0>(scales[first], scales[first + 4]);
            let high = V::sixteen::<0>(scales[first + 1], scales[first + 5]);
            ([low, high], bytes::<V>(&block[16 + 32 * step..][..32]))
        }
    }

    #[inline(always)]
    unsafe fn elements<V: Vector>(
        ([low, high], bytes): &([V::Sixteen; 2], [V::Bytes; 8]),
        at: usize,
    ) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            match at < 32 {
                true => V::halves::<false, 0>(bytes[at / V::LANES], *low),
                false => V::halves::<true, 0>(bytes[(at - 32) / V::LANES], *high),
            }
        }
    }
}

/// Four scales, as many offsets, four scales, and as many offsets, from the beginning of a block of
/// Q4_K or Q5_K and what offsets are multiplied by.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn six_bits<V: Vector>(block: &[u8], offset: f32) -> [f32; 16] {
    // Four scales and four offsets at a time: the lower 6 bits of the first ones; of the others 4
    // bits here and 2 there.
    let first = u64::from_le_bytes(block[4..].as_chunks().0[0]);
    let last = u64::from(u32::from_le_bytes(block[12..].as_chunks().0[0]));
    let rest = (last | last << 28) & 0x0f0f_0f0f_0f0f_0f0f | first >> 2 & 0x3030_3030_3030_3030;
    let numbers = u128::from(first & 0x3f3f_3f3f_3f3f_3f3f) | u128::from(rest) << 64;
    // SAFETY: the caller's promise.
    unsafe {
        let mut factors = [f16_at::<V>(block, 0); 16];
        factors[4..8].fill(offset);
        factors[12..].fill(offset);
        products::<V>(numbers.to_le_bytes(), factors)
    }
}
