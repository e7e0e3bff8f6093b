//! The most that tiles compute: products of tiles that are in their registers.

use half::bf16;

use super::SUMS;
use super::tiles::{self, COLUMNS, ROW_BYTES, ROWS, STEP, Tiles};

/// Multiply-adds of one instruction on full tiles.
const PRODUCTS: usize = ROWS * COLUMNS * STEP;

/// Adds up products of tiles of ones in four tiles of sums, `rounds` times each: how many
/// operations these were, or nothing if they came to a wrong sum. Sums are exact below 2²⁴.
///
/// # Safety
///
/// [`Isa::AmxBf16`](crate::Isa::AmxBf16) is available, and no product is under way on this thread.
pub(crate) unsafe fn rounds(rounds: usize) -> Option<u64> {
    let ones = [bf16::ONE; ROWS * STEP];
    let mut sums = [0.0f32; SUMS];
    // SAFETY: the caller's promise; the tiles are configured as full ones, and the memory holds one
    // each.
    let right = unsafe {
        let _tiles = Tiles::configure(COLUMNS);
        tiles::load!(4, ones.as_ptr(), ROW_BYTES);
        tiles::load!(6, ones.as_ptr(), ROW_BYTES);
        for _ in 0..rounds {
            tiles::multiply!(0, 4, 6);
            tiles::multiply!(1, 4, 6);
            tiles::multiply!(2, 4, 6);
            tiles::multiply!(3, 4, 6);
        }
        let right = (rounds * STEP) as f32;
        let mut all = true;
        tiles::store!(0, sums.as_mut_ptr(), ROW_BYTES);
        all &= sums.iter().all(|sum| *sum == right);
        tiles::store!(3, sums.as_mut_ptr(), ROW_BYTES);
        all && sums.iter().all(|sum| *sum == right)
    };
    right.then_some((rounds * 4 * 2 * PRODUCTS) as u64)
}
