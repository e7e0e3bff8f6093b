//! Numbers from -1 to 1.

use super::f16_at;
use super::unpacked::{Unpacked, two_bits};
use crate::simd::Vector;

/// 64 bytes as in [`Q2K`](super::Q2K), of numbers plus one, and a scale.
pub(crate) struct Tq2_0;

impl Unpacked for Tq2_0 {
    type Block = [u8; 66];
    type Factors = [f32; 1];
    type Numbers = [u8; 128];
    const ELEMENTS: [usize; 2] = [256, 128];
    const GROUP: usize = 256;

    #[inline(always)]
    unsafe fn factors<V: Vector>(block: &[u8; 66]) -> [f32; 1] {
        // SAFETY: the caller's promise.
        unsafe { [f16_at::<V>(block, 64)] }
    }

    #[inline(always)]
    unsafe fn numbers<V: Vector>(block: &[u8; 66], step: usize) -> [u8; 128] {
        let mut numbers = two_bits(&block[32 * step..]);
        for number in &mut numbers {
            *number = number.wrapping_sub(1);
        }
        numbers
    }
}

/// 48 bytes of five numbers each, and 4 of four: digits to the base of three, plus one, of a
/// fraction of 256; and a scale. The first digits of 32 bytes come first, then their second ones
/// and so on; then those of 16 bytes, and of the last 4.
pub(crate) struct Tq1_0;

impl Unpacked for Tq1_0 {
    type Block = [u8; 54];
    type Factors = [f32; 1];
    type Numbers = [u8; 256];
    const ELEMENTS: [usize; 2] = [256, 256];
    const GROUP: usize = 256;

    #[inline(always)]
    unsafe fn factors<V: Vector>(block: &[u8; 54]) -> [f32; 1] {
        // SAFETY: the caller's promise.
        unsafe { [f16_at::<V>(block, 52)] }
    }

    #[inline(always)]
    unsafe fn numbers<V: Vector>(block: &[u8; 54], _step: usize) -> [u8; 256] {
        let mut numbers = [0; 256];
        let mut rest = &mut numbers[..];
        for (bytes, digits) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
            let (some, others) = rest.split_at_mut(digits * bytes.len());
            rest = others;
            let mut power = 1u8;
            for numbers in some.chunks_exact_mut(bytes.len()) {
                for (number, byte) in numbers.iter_mut().zip(bytes) {
                    let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
                    *number = (digit as u8).wrapping_sub(1);
                }
                power *= 3;
            }
        }
        numbers
    }
}
