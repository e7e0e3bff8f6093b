//! What [`broadcast`](super::super::broadcast) computes, in tiles: sixteen outputs by sixteen
//! pixels, thirty-two products of each in one instruction.
//!
//! Pixels lie as a second operand wants them, pairs of channels side by side, so that a tile of any
//! sixteen neighbours is read where it lies.

use std::arch::x86_64::*;

use super::super::broadcast::{Destination, Seen, Word};
use super::tiles::{self, Aligned, COLUMNS, ROW_BYTES, ROWS, Tiles};
use super::{PAIR, SUMS};
use crate::simd::transposed;

/// Words of a row of a tile of weights.
const WORDS: usize = 16;

/// Computes so many pixels, one behind the other, for the outputs of one panel of weights:
/// `[SIDE, depth / 16, SIDE, 32, 16]` words.
///
/// # Safety
///
/// [`Isa::AmxBf16`](crate::Isa::AmxBf16) is available. `x` points to the first word that the first
/// pixel sees; all words that `seen` asks for of each are there, and 31 more behind the last; the
/// depth is one of whole tiles, and the panel has its weights. Nothing else reads or writes these
/// outputs of `y`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
pub(in super::super) unsafe fn rows<const SIDE: usize>(
    x: *const Word,
    seen: Seen<SIDE, 1>,
    panel: *const Word,
    rows: usize,
    to: Destination<'_>,
) {
    let mut sums = Aligned([0.0f32; 4 * SUMS]);
    let sums = sums.0.as_mut_ptr();
    let stride = seen.word * size_of::<Word>();
    // SAFETY: the processor has AMX, and there is one such loop on a thread at a time.
    let _tiles = unsafe { Tiles::configure(COLUMNS) };
    for first in (0..rows).step_by(2 * COLUMNS) {
        let wide = rows - first > COLUMNS;
        // SAFETY: tiles are configured. Those of weights are one behind the other in the panel,
        // those of pixels where `seen` says, rows of sixteen words; `sums` has room for four.
        unsafe {
            tiles::zero!(0);
            tiles::zero!(1);
            tiles::zero!(2);
            tiles::zero!(3);
            let mut weights = panel;
            for line in 0..SIDE {
                let mut x = x.add(line * seen.line + first);
                for _ in 0..seen.depth / WORDS {
                    for tap in seen.taps {
                        tiles::load!(4, weights, ROW_BYTES);
                        tiles::load!(5, weights.add(ROWS * WORDS), ROW_BYTES);
                        tiles::load!(6, x.add(tap), stride);
                        tiles::multiply!(0, 4, 6);
                        tiles::multiply!(2, 5, 6);
                        if wide {
                            tiles::load!(7, x.add(tap + COLUMNS), stride);
                            tiles::multiply!(1, 4, 7);
                            tiles::multiply!(3, 5, 7);
                        }
                        weights = weights.add(PAIR * WORDS);
                    }
                    x = x.add(WORDS * seen.word);
                }
            }
            tiles::store!(0, sums, ROW_BYTES);
            tiles::store!(1, sums.add(SUMS), ROW_BYTES);
            tiles::store!(2, sums.add(2 * SUMS), ROW_BYTES);
            tiles::store!(3, sums.add(3 * SUMS), ROW_BYTES);
        }
        for tile in 0..4 {
            let (output, pixel) = (tile / 2 * ROWS, first + tile % 2 * COLUMNS);
            if output >= to.columns || pixel >= rows {
                continue;
            }
            // SAFETY: `sums` holds four tiles of sixteen vectors; `y` has these pixels and outputs,
            // and masked accesses touch no others; a bias has room for all outputs of a panel.
            unsafe {
                let sums = sums.add(tile * SUMS);
                let vectors =
                    std::array::from_fn(|row| _mm512_loadu_si512(sums.add(row * COLUMNS).cast()));
                let there = ((1u32 << (to.columns - output).min(ROWS)) - 1) as __mmask16;
                let pixels = transposed(vectors).into_iter().take(rows - pixel).enumerate();
                for (row, sums) in pixels {
                    let y = to.y.add((pixel + row) * to.n + output);
                    let before = match to.bias {
                        Some(bias) => _mm512_loadu_ps(bias.as_ptr().add(output)),
                        None => _mm512_maskz_loadu_ps(there, y),
                    };
                    let sums = _mm512_add_ps(before, _mm512_castsi512_ps(sums));
                    _mm512_mask_storeu_ps(y, there, sums);
                }
            }
        }
    }
}
