//! MXFP4 ([OCP microscaling
//! formats](https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf)):
//! numbers of 4 bits in floating point (E2M1), and a power of two (E8M0) for each 32.

use super::{Quants, bytes};
use crate::simd::{NumberTable, Vector};

/// What every E8M0, a power of two, is worth: the first is subnormal, and the last taken for
/// infinity.
pub(crate) static E8M0: [f32; 256] = {
    let mut powers = [0.0; 256];
    let mut at = 0;
    while at < 256 {
        powers[at] = f32::from_bits(if at == 0 { 1 << 22 } else { (at as u32) << 23 });
        at += 1;
    }
    powers
};

/// The E2M1 (2 bits of exponent, 1 of mantissa, no infinity, no NaN) in the order of their bits.
struct E2m1;

impl NumberTable for E2m1 {
    const VALUES: [f32; 16] =
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    const IS_SYMMETRIC: bool = true;
}

/// A scale, and 16 bytes: in the lower half of each the first 16 numbers, in the upper half the
/// others.
pub(crate) struct Mxfp4;

impl Quants for Mxfp4 {
    type Block = [u8; 17];
    type Scales = f32;
    type Step<V: Vector> = (V::Table, [V::Bytes; 8]);
    const ELEMENTS: usize = 32;
    const STEP: usize = 32;

    #[inline(always)]
    unsafe fn scales<V: Vector>(block: &[u8; 17], _apart: *const u8) -> f32 {
        E8M0[usize::from(block[0])]
    }

    #[inline(always)]
    unsafe fn step<V: Vector>(
        block: &[u8; 17],
        scale: &f32,
        _step: usize,
    ) -> (V::Table, [V::Bytes; 8]) {
        // SAFETY: the caller's promise.
        unsafe { (V::table::<E2m1>(*scale), bytes::<V>(&block[1..])) }
    }

    #[inline(always)]
    unsafe fn elements<V: Vector>((table, bytes): &(V::Table, [V::Bytes; 8]), at: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            match at < 16 {
                true => V::look_up::<E2m1, false>(bytes[at / V::LANES], *table),
                false => V::look_up::<E2m1, true>(bytes[(at - 16) / V::LANES], *table),
            }
        }
    }
}

/// 32 numbers, neighbours in the halves of a byte, with their scale elsewhere.
pub(crate) struct Mxfp4Apart;

impl Quants for Mxfp4Apart {
    type Block = [u8; 16];
    type Scales = f32;
    type Step<V: Vector> = (V::Table, [V::Bytes; 8]);
    const ELEMENTS: usize = 32;
    const STEP: usize = 32;
    const SCALE_BYTES: usize = 1;

    #[inline(always)]
    unsafe fn scales<V: Vector>(_block: &[u8; 16], apart: *const u8) -> f32 {
        // SAFETY: the caller's promise.
        E8M0[usize::from(unsafe { apart.read() })]
    }

    #[inline(always)]
    unsafe fn step<V: Vector>(
        block: &[u8; 16],
        scale: &f32,
        _step: usize,
    ) -> (V::Table, [V::Bytes; 8]) {
        // SAFETY: the caller's promise.
        unsafe { (V::table::<E2m1>(*scale), V::neighbours(block)) }
    }

    #[inline(always)]
    unsafe fn elements<V: Vector>((table, numbers): &(V::Table, [V::Bytes; 8]), at: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::look_up::<E2m1, false>(numbers[at / V::LANES], *table) }
    }
}
