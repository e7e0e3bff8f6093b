//! Tiles of outputs as sums of outer products: an activation, the same in all lanes, times the
//! weights of as many outputs.
//!
//! Each output is one lane's sum of products in order of `k`, whatever stands in the other lanes
//! and in the other rows of the tile. Nothing is added across lanes, and of each product one
//! operand is a vector that all rows share: so a tile reads a quarter of what one of dot products
//! reads. Weights must be turned over for it (see [`panel`](super::panel)), which pays if many rows
//! pass them.
//!
//! Everything here is inlined into a function of an instruction set, where its instructions are
//! enabled.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and vectors are counted, and each indexes several things"
)]

use std::marker::PhantomData;

use super::pack::RowBlocks;
use crate::simd::Vector;

/// What is multiplied at once of one row and one output: an f32, or two bf16, the first in the
/// lower half.
pub(crate) type Word = u32;

/// Vectors of weights side by side in a tile.
pub(crate) const WIDTH: usize = 2;

/// The most outputs of a tile, of any set of instructions.
pub(crate) const MAX_COLUMNS: usize = WIDTH * 16;

/// How words of activations and of weights are multiplied.
///
/// # Safety
///
/// All functions ask that the processor has the instructions that the type is for. `fma` has the
/// same result for the same lanes wherever it is inlined.
pub(crate) trait Broadcast {
    /// Words of weights, one for each lane of the sums.
    type Vector: Copy;

    /// Sums of products, one for each output.
    type Sum: Vector;

    /// The most rows of a tile: there are thirty-two registers of sixteen lanes, and sixteen of
    /// fewer.
    const MAX_HEIGHT: usize = if <Self::Sum as Vector>::LANES == 16 { 14 } else { 6 };

    /// One word in every lane.
    unsafe fn splat(x: *const Word) -> Self::Vector;

    /// As many words as there are lanes.
    unsafe fn load(weights: *const Word) -> Self::Vector;

    /// `sum` and the products of two vectors.
    unsafe fn fma(sum: Self::Sum, weights: Self::Vector, x: Self::Vector) -> Self::Sum;
}

/// Words that are f32.
pub(crate) struct Singles<V>(PhantomData<V>);

impl<V: Vector> Broadcast for Singles<V> {
    type Vector = V;
    type Sum = V;

    #[inline(always)]
    unsafe fn splat(x: *const Word) -> V {
        // SAFETY: the caller's promises, here and below.
        unsafe { V::splat(x.cast::<f32>().read()) }
    }

    #[inline(always)]
    unsafe fn load(weights: *const Word) -> V {
        // SAFETY: as above.
        unsafe { V::f32(weights.cast()) }
    }

    #[inline(always)]
    unsafe fn fma(sum: V, weights: V, x: V) -> V {
        // SAFETY: as above.
        unsafe { sum.fma(weights, x) }
    }
}

/// Words that are pairs of bf16. Products are exact in f32 and added in pairs; subnormal ones count
/// as zero.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Pairs;

#[cfg(target_arch = "x86_64")]
impl Broadcast for Pairs {
    type Vector = std::arch::x86_64::__m512i;
    type Sum = crate::simd::F32x16;

    #[inline(always)]
    unsafe fn splat(x: *const Word) -> Self::Vector {
        // SAFETY: the processor has AVX-512 with bf16, the promise of every function here, and the
        // pointers point to what the trait says.
        unsafe { std::arch::x86_64::_mm512_set1_epi32(x.read().cast_signed()) }
    }

    #[inline(always)]
    unsafe fn load(weights: *const Word) -> Self::Vector {
        // SAFETY: as above.
        unsafe { std::arch::x86_64::_mm512_loadu_si512(weights.cast()) }
    }

    #[inline(always)]
    unsafe fn fma(sum: Self::Sum, weights: Self::Vector, x: Self::Vector) -> Self::Sum {
        use std::arch::x86_64::{__m512bh, __m512i, _mm512_dpbf16_ps};
        // SAFETY: as above; a vector of bf16 is a vector of bits.
        unsafe {
            crate::simd::F32x16(_mm512_dpbf16_ps(
                sum.0,
                std::mem::transmute::<__m512i, __m512bh>(weights),
                std::mem::transmute::<__m512i, __m512bh>(x),
            ))
        }
    }
}

/// Where the words lie that an output sees, those of the next row `ROW` words further: in `SIDE`
/// lines, in each of which there are `depth` times `SIDE` words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<const SIDE: usize, const ROW: usize> {
    /// From one line to the next.
    pub line: usize,
    /// How many words of channels there are.
    pub depth: usize,
    /// From one of them to the next.
    pub word: usize,
    /// Where those of an output's neighbours lie.
    pub taps: [usize; SIDE],
}

/// What a tile's sums are added to, and where they go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination<'a> {
    /// The first output of the first row.
    pub y: *mut f32,
    /// From one row to the next.
    pub n: usize,
    /// How many outputs there are, at most as many as a tile has.
    pub columns: usize,
    /// What the sums begin with, if not with what is there.
    pub bias: Option<&'a [f32; MAX_COLUMNS]>,
}

/// Computes so many `rows`, one behind the other, for the outputs of one panel of weights:
/// `[SIDE, depth, SIDE, WIDTH · LANES]` words.
///
/// # Safety
///
/// The processor has the instructions of `K`. `x` points to the first word that the first row sees;
/// all words that `seen` asks for of each row are there, and the panel has its weights. Nothing
/// else reads or writes these outputs of `y`.
#[inline(always)]
pub(crate) unsafe fn rows<K: Broadcast, const SIDE: usize, const ROW: usize>(
    x: *const Word,
    seen: Seen<SIDE, ROW>,
    panel: *const Word,
    rows: usize,
    to: Destination<'_>,
) {
    for block in RowBlocks::new(rows, K::MAX_HEIGHT).all() {
        // SAFETY: the caller's promises, for rows within its own.
        unsafe {
            let x = x.add(block.start * ROW);
            let to = Destination { y: to.y.add(block.start * to.n), ..to };
            macro_rules! of_height {
                ($($height:literal)*) => {
                    match block.len() {
                        $($height => tile::<K, $height, SIDE, ROW>(x, seen, panel, to),)*
                        _ => {}
                    }
                };
            }
            match K::MAX_HEIGHT {
                14 => of_height!(1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                _ => of_height!(1 2 3 4 5 6),
            }
        }
    }
}

/// Computes `HEIGHT` rows.
///
/// # Safety
///
/// That of [`rows`].
#[inline(always)]
unsafe fn tile<K: Broadcast, const HEIGHT: usize, const SIDE: usize, const ROW: usize>(
    x: *const Word,
    seen: Seen<SIDE, ROW>,
    panel: *const Word,
    to: Destination<'_>,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let sums = sums::<K, HEIGHT, WIDTH, SIDE, ROW>(x, seen, panel);
        let lanes = <K::Sum as Vector>::LANES;
        let one = K::Sum::splat(1.0);
        for i in 0..HEIGHT {
            let y = to.y.add(i * to.n);
            let mut there = [0.0; MAX_COLUMNS];
            // The whole tile in place, part of one by way of memory that has room for all of it.
            let (from, into) = match (to.columns == WIDTH * lanes, to.bias) {
                (true, Some(bias)) => (bias.as_ptr(), y),
                (true, None) => (y.cast_const(), y),
                (false, Some(bias)) => (bias.as_ptr(), there.as_mut_ptr()),
                (false, None) => {
                    y.copy_to_nonoverlapping(there.as_mut_ptr(), to.columns);
                    (there.as_ptr(), there.as_mut_ptr())
                }
            };
            for j in 0..WIDTH {
                let before = K::Sum::f32(from.add(j * lanes));
                before.fma(sums[i][j], one).store(into.add(j * lanes));
            }
            if to.columns != WIDTH * lanes {
                y.copy_from_nonoverlapping(there.as_ptr(), to.columns);
            }
        }
    }
}

/// The sums of `HEIGHT` rows and `WIDTH` vectors of outputs.
///
/// # Safety
///
/// That of [`rows`], with a panel of `WIDTH` vectors.
#[inline(always)]
pub(crate) unsafe fn sums<
    K: Broadcast,
    const HEIGHT: usize,
    const WIDTH: usize,
    const SIDE: usize,
    const ROW: usize,
>(
    x: *const Word,
    seen: Seen<SIDE, ROW>,
    mut panel: *const Word,
) -> [[K::Sum; WIDTH]; HEIGHT] {
    let lanes = <K::Sum as Vector>::LANES;
    // SAFETY: the caller's promises: each step reads one vector of weights for each column, which
    // follow one another, and one word for each row.
    unsafe {
        let mut sums = [[K::Sum::zero(); WIDTH]; HEIGHT];
        for line in 0..SIDE {
            let mut x = x.add(line * seen.line);
            for _ in 0..seen.depth {
                for tap in seen.taps {
                    let x = x.add(tap);
                    let weights: [K::Vector; WIDTH] =
                        std::array::from_fn(|j| K::load(panel.add(j * lanes)));
                    for i in 0..HEIGHT {
                        let x = K::splat(x.add(i * ROW));
                        for j in 0..WIDTH {
                            sums[i][j] = K::fma(sums[i][j], weights[j], x);
                        }
                    }
                    panel = panel.add(WIDTH * lanes);
                }
                x = x.add(seen.word);
            }
        }
        sums
    }
}
