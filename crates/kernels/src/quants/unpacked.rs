//! Numbers whose bits lie apart, unpacked to bytes in memory: from there instructions widen them.

use super::halves::six_bits;
use super::{Quants, f16_at, products};
use crate::simd::Vector;

/// A format whose numbers are unpacked a step at a time.
pub(crate) trait Unpacked {
    /// The bytes of a block.
    type Block;

    /// Scales, and offsets, negated, some way behind their scales.
    type Factors: Copy + Default + AsRef<[f32]>;

    /// The numbers of a step, bytes with a sign.
    type Numbers: Copy;

    /// Elements of a block, and of a step.
    const ELEMENTS: [usize; 2];

    /// Elements that share a scale.
    const GROUP: usize;

    /// From the first scale of a step to that of the next.
    const STRIDE: usize = Self::ELEMENTS[1] / Self::GROUP;

    /// From a scale to its offset; zero if there are none.
    const OFFSET: usize = 0;

    /// Scales of a block, and offsets.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    unsafe fn factors<V: Vector>(block: &Self::Block) -> Self::Factors;

    /// The numbers of a step of a block.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    unsafe fn numbers<V: Vector>(block: &Self::Block, step: usize) -> Self::Numbers;
}

impl<U: Unpacked> Quants for U {
    type Block = U::Block;
    type Scales = U::Factors;
    type Step<V: Vector> = (*const f32, U::Numbers);
    const ELEMENTS: usize = U::ELEMENTS[0];
    const STEP: usize = U::ELEMENTS[1];
    const UNPACKED: bool = true;

    #[inline(always)]
    unsafe fn scales<V: Vector>(block: &U::Block, _apart: *const u8) -> U::Factors {
        // SAFETY: the caller's promise.
        unsafe { U::factors::<V>(block) }
    }

    #[inline(always)]
    unsafe fn step<V: Vector>(
        block: &U::Block,
        factors: &U::Factors,
        step: usize,
    ) -> (*const f32, U::Numbers) {
        // SAFETY: the caller's promise.
        (factors.as_ref()[step * U::STRIDE..].as_ptr(), unsafe { U::numbers::<V>(block, step) })
    }

    #[inline(always)]
    unsafe fn elements<V: Vector>((factors, numbers): &(*const f32, U::Numbers), at: usize) -> V {
        // SAFETY: the caller's promise; there are factors of all elements.
        unsafe {
            let numbers = V::i8((&raw const *numbers).cast::<u8>().add(at));
            let scale = factors.add(at / U::GROUP);
            match U::OFFSET {
                0 => numbers.mul(V::splat(scale.read())),
                offset => V::splat(scale.add(offset).read()).fma(numbers, V::splat(scale.read())),
            }
        }
    }
}

/// 128 bytes of the lower 4 bits, 64 of the upper 2 bits, 16 scales of 8 bits for 16 numbers each,
/// and an f16 by which these are multiplied. Each half of the numbers, which are plus 32, has half
/// of the bytes: a byte holds parts of numbers that are 64, or 32, apart.
pub(crate) struct Q6K;

impl Unpacked for Q6K {
    type Block = [u8; 210];
    type Factors = [f32; 16];
    type Numbers = [u8; 128];
    const ELEMENTS: [usize; 2] = [256, 128];
    const GROUP: usize = 16;

    #[inline(always)]
    unsafe fn factors<V: Vector>(block: &[u8; 210]) -> [f32; 16] {
        // A quarter: numbers are taken four times.
        // SAFETY: the caller's promise.
        unsafe {
            let factor = f16_at::<V>(block, 208) * 0.25;
            products::<V>(block[192..].as_chunks().0[0], [factor; 16])
        }
    }

    #[inline(always)]
    unsafe fn numbers<V: Vector>(block: &[u8; 210], step: usize) -> [u8; 128] {
        let low = block[64 * step..].as_chunks().0;
        let high = block[128 + 32 * step..].as_chunks().0;
        // With the first bit flipped that is four times the number less 32.
        // SAFETY: the caller's promise.
        unsafe { V::upper_six(&low[0], &high[0]) }
    }
}

/// [`Q4K`](super::Q4K) with 32 bytes more behind the offsets: in bit `i` of each the fifth bit of
/// number `32 i` and of the 31 that follow.
pub(crate) struct Q5K;

impl Unpacked for Q5K {
    type Block = [u8; 176];
    /// As those of [`Q4K`](super::Q4K).
    type Factors = [f32; 16];
    type Numbers = [u8; 128];
    const ELEMENTS: [usize; 2] = [256, 128];
    const GROUP: usize = 32;
    const STRIDE: usize = 8;
    const OFFSET: usize = 4;

    #[inline(always)]
    unsafe fn factors<V: Vector>(block: &[u8; 176]) -> [f32; 16] {
        // SAFETY: the caller's promise.
        unsafe { six_bits::<V>(block, -f16_at::<V>(block, 2)) }
    }

    #[inline(always)]
    unsafe fn numbers<V: Vector>(block: &[u8; 176], step: usize) -> [u8; 128] {
        let high = &block[16..48];
        let mut numbers = [0; 128];
        for part in 0..2 {
            let low = &block[48 + 64 * step + 32 * part..][..32];
            let shift = 4 * step + 2 * part;
            let (first, second) = numbers[64 * part..][..64].split_at_mut(32);
            for at in 0..32 {
                let high = high[at] >> shift;
                first[at] = low[at] & 15 | (high & 1) << 4;
                second[at] = low[at] >> 4 | (high & 2) << 3;
            }
        }
        numbers
    }
}

/// 16 bytes with a scale in the lower half and an offset in the upper one, each for 16 numbers; 64
/// bytes, of which each half has half of the numbers, those in a byte 32 apart; and two f16 by
/// which scales and offsets are multiplied.
pub(crate) struct Q2K;

impl Unpacked for Q2K {
    type Block = [u8; 84];
    /// All scales, and all offsets.
    type Factors = [f32; 32];
    type Numbers = [u8; 128];
    const ELEMENTS: [usize; 2] = [256, 128];
    const GROUP: usize = 16;
    const OFFSET: usize = 16;

    #[inline(always)]
    unsafe fn factors<V: Vector>(block: &[u8; 84]) -> [f32; 32] {
        let both = u128::from_le_bytes(block.as_chunks().0[0]);
        let mask = u128::from_le_bytes([15; 16]);
        let mut factors = [0.0; 32];
        // SAFETY: the caller's promise.
        unsafe {
            let (scale, offset) = (f16_at::<V>(block, 80), -f16_at::<V>(block, 82));
            let scales = products::<V>((both & mask).to_le_bytes(), [scale; 16]);
            factors[..16].copy_from_slice(&scales);
            let offsets = products::<V>((both >> 4 & mask).to_le_bytes(), [offset; 16]);
            factors[16..].copy_from_slice(&offsets);
        }
        factors
    }

    #[inline(always)]
    unsafe fn numbers<V: Vector>(block: &[u8; 84], step: usize) -> [u8; 128] {
        two_bits(&block[16 + 32 * step..])
    }
}

/// 32 bytes with the third bit of all numbers, as in [`Q5K`]; 64 with the others as in [`Q2K`]; 12
/// bytes of scales of 6 bits, plus 32, for 16 numbers each; and an f16 by which these are
/// multiplied. Numbers are plus 4.
pub(crate) struct Q3K;

impl Unpacked for Q3K {
    type Block = [u8; 110];
    type Factors = [f32; 16];
    type Numbers = [[u8; 32]; 4];
    const ELEMENTS: [usize; 2] = [256, 128];
    const GROUP: usize = 16;

    #[inline(always)]
    unsafe fn factors<V: Vector>(block: &[u8; 110]) -> [f32; 16] {
        // The lower 4 bits of the first eight and of the last; of each byte of the others 2 bits
        // for scales that are four apart.
        let low = u128::from(u64::from_le_bytes(block[96..].as_chunks().0[0]));
        let low = (low | low << 60) & u128::from_le_bytes([15; 16]);
        let high = u128::from(u32::from_le_bytes(block[104..].as_chunks().0[0]));
        let high =
            (high << 4 | high << 34 | high << 64 | high << 94) & u128::from_le_bytes([0x30; 16]);
        let mut numbers = (low | high).to_le_bytes();
        for number in &mut numbers {
            *number = number.wrapping_sub(32);
        }
        // SAFETY: the caller's promise.
        unsafe { products::<V>(numbers, [f16_at::<V>(block, 108); 16]) }
    }

    #[inline(always)]
    unsafe fn numbers<V: Vector>(block: &[u8; 110], step: usize) -> [[u8; 32]; 4] {
        let low = &block[32 + 32 * step..][..32];
        let mut numbers = [[0; 32]; 4];
        for at in 0..32 {
            let (low, high) = (low[at], block[at] >> (4 * step));
            numbers[0][at] = (low & 3 | (high & 1) << 2).wrapping_sub(4);
            numbers[1][at] = (low >> 2 & 3 | (high & 2) << 1).wrapping_sub(4);
            numbers[2][at] = (low >> 4 & 3 | high & 4).wrapping_sub(4);
            numbers[3][at] = (low >> 6 | (high & 8) >> 1).wrapping_sub(4);
        }
        numbers
    }
}

/// Four numbers out of each of 32 bytes, 32 apart.
#[inline(always)]
pub(super) fn two_bits(bytes: &[u8]) -> [u8; 128] {
    let mut numbers = [0; 128];
    for (part, numbers) in numbers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for at in 0..32 {
            numbers[at] = bytes[at] >> (2 * part) & 3;
        }
    }
    numbers
}

/// [`Q4_0`](super::Q4_0) or [`Q4_1`](super::Q4_1) with 4 bytes more behind the scale and the
/// offset: the fifth bit of each number, which is either plus 16, `LESS`, or has an offset.
pub(crate) struct Fifths<const BYTES: usize, const LESS: i8>;

pub(crate) type Q5_0 = Fifths<22, 16>;
pub(crate) type Q5_1 = Fifths<24, 0>;

impl<const BYTES: usize, const LESS: i8> Unpacked for Fifths<BYTES, LESS> {
    type Block = [u8; BYTES];
    type Factors = [f32; 2];
    type Numbers = [i8; 32];
    const ELEMENTS: [usize; 2] = [32, 32];
    const GROUP: usize = 32;
    const OFFSET: usize = if LESS == 0 { 1 } else { 0 };

    #[inline(always)]
    unsafe fn factors<V: Vector>(block: &[u8; BYTES]) -> [f32; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let offset = if LESS == 0 { f16_at::<V>(block, 2) } else { 0.0 };
            [f16_at::<V>(block, 0), offset]
        }
    }

    #[inline(always)]
    unsafe fn numbers<V: Vector>(block: &[u8; BYTES], _step: usize) -> [i8; 32] {
        let high = u32::from_le_bytes(block[BYTES - 20..].as_chunks().0[0]);
        // SAFETY: the caller's promise.
        unsafe { V::five::<LESS>(&block[BYTES - 16..].as_chunks().0[0], high) }
    }
}
