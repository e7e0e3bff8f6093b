//! Numbers of 4 bits that stand for those of a table, which has more of them near zero.

use super::{Quants, bytes, f16_at};
use crate::simd::{NumberTable, Vector};

/// What numbers stand for.
pub(crate) struct Uneven;

impl NumberTable for Uneven {
    const VALUES: [f32; 16] = [
        -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0,
        69.0, 89.0, 113.0,
    ];
}

/// As [`Q4_0`](super::Q4_0), but for the table.
pub(crate) struct Iq4Nl;

impl Quants for Iq4Nl {
    type Block = [u8; 18];
    type Scales = f32;
    type Step<V: Vector> = (V::Table, [V::Bytes; 8]);
    const ELEMENTS: usize = 32;
    const STEP: usize = 32;

    #[inline(always)]
    unsafe fn scales<V: Vector>(block: &[u8; 18], _apart: *const u8) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { f16_at::<V>(block, 0) }
    }

    #[inline(always)]
    unsafe fn step<V: Vector>(
        block: &[u8; 18],
        scale: &f32,
        _step: usize,
    ) -> (V::Table, [V::Bytes; 8]) {
        // SAFETY: the caller's promise.
        unsafe { (V::table::<Uneven>(*scale), bytes::<V>(&block[2..])) }
    }

    #[inline(always)]
    unsafe fn elements<V: Vector>((table, bytes): &(V::Table, [V::Bytes; 8]), at: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            match at < 16 {
                true => V::look_up::<Uneven, false>(bytes[at / V::LANES], *table),
                false => V::look_up::<Uneven, true>(bytes[(at - 16) / V::LANES], *table),
            }
        }
    }
}

/// An f16 by which scales are multiplied; of these, plus 32, the upper 2 bits of all, and then the
/// lower 4; and 128 bytes: in each 16 of them 32 numbers as in [`Iq4Nl`].
pub(crate) struct Iq4Xs;

impl Quants for Iq4Xs {
    type Block = [u8; 136];
    type Scales = [f32; 8];
    type Step<V: Vector> = ([V::Table; 2], [V::Bytes; 8]);
    const ELEMENTS: usize = 256;
    const STEP: usize = 64;

    #[inline(always)]
    unsafe fn scales<V: Vector>(block: &[u8; 136], _apart: *const u8) -> [f32; 8] {
        // SAFETY: the caller's promise.
        let factor = unsafe { f16_at::<V>(block, 0) };
        let high = u32::from(u16::from_le_bytes([block[2], block[3]]));
        let low = u32::from_le_bytes(block[4..].as_chunks().0[0]);
        let mut scales = [factor; 8];
        for (at, scale) in scales.iter_mut().enumerate() {
            let number = low >> (4 * at) & 15 | (high >> (2 * at) & 3) << 4;
            *scale *= (number as i32 - 32) as f32;
        }
        scales
    }

    #[inline(always)]
    unsafe fn step<V: Vector>(
        block: &[u8; 136],
        scales: &[f32; 8],
        step: usize,
    ) -> ([V::Table; 2], [V::Bytes; 8]) {
        // SAFETY: the caller's promise.
        unsafe {
            let tables =
                [V::table::<Uneven>(scales[2 * step]), V::table::<Uneven>(scales[2 * step + 1])];
            (tables, bytes::<V>(&block[8 + 32 * step..][..32]))
        }
    }

    #[inline(always)]
    unsafe fn elements<V: Vector>(
        (tables, bytes): &([V::Table; 2], [V::Bytes; 8]),
        at: usize,
    ) -> V {
        let (table, bytes) = (tables[at / 32], bytes[(at / 32 * 16 + at % 16) / V::LANES]);
        // SAFETY: the caller's promise.
        unsafe {
            match at % 32 < 16 {
                true => V::look_up::<Uneven, false>(bytes, table),
                false => V::look_up::<Uneven, true>(bytes, table),
            }
        }
    }
}
