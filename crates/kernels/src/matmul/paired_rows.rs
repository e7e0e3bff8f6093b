//! `y += x · W` with a bf16 weight stored `[in, out]`, in products of pairs of bf16.
//!
//! Rows `2i` and `2i + 1` of the weight are pairs, wherever it is cut: the last row of a tile that
//! ends between them waits for the next tile. An output is one chain of such pairs in order, so
//! that tiles give the same bits as all rows at once, and so does any sharing of columns and rows
//! among threads. Some pairs of a few columns are put side by side in the first-level cache, where
//! all rows of activations pass them.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns are counted, and each indexes several things"
)]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use half::bf16;

use super::claims::row_parts;
use super::{Claims, Size, pack};
use crate::{ActivationDtype, Isa, cast};

/// Pairs of the weight's rows in a panel.
const DEPTH: usize = 64;

/// Pairs of which activations are packed at once.
const PACKED: usize = 8 * DEPTH;

/// Vectors of columns in a panel.
const WIDTH: usize = 4;

/// Lanes of a vector.
const LANES: usize = 16;

/// Columns of a panel, at most.
const COLUMNS: usize = WIDTH * LANES;

/// Rows of activations side by side: with [`WIDTH`] vectors of sums for each they fill the
/// registers.
const HEIGHT: usize = 6;

/// A sum `y [m, n] += x [m, k] · W [k, n]` to which the weight comes in tiles of rows. Activations
/// are rounded to bf16, and numbers too small for a normal one count as zero.
#[derive(Debug)]
pub(crate) struct PairedRows<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
    size: Size,
    /// Rows of the weight that have come.
    next: usize,
    /// The last of them, if it waits for the second one of its pair.
    waiting: Vec<bf16>,
}

impl<'a> PairedRows<'a> {
    /// Whether such products are asked for, and this processor has them.
    pub fn are_for(isa: Isa, compute: ActivationDtype) -> bool {
        compute == ActivationDtype::Bf16 && matches!(isa, Isa::Avx512Bf16 | Isa::AmxBf16)
    }

    /// A sum that begins with what `y` holds.
    ///
    /// # Panics
    ///
    /// If a slice does not have the length that the sizes ask for, or if this processor has no such
    /// products.
    pub fn new(x: &'a [f32], k: usize, y: &'a mut [f32], n: usize) -> Self {
        assert!(Isa::Avx512Bf16.is_available(), "this processor has no products of bf16");
        let m = y.len().checked_div(n).unwrap_or(0);
        assert!(m * n == y.len() && x.len() == m * k, "x and y must have as many rows");
        Self { x, y, size: Size { m, n, k }, next: 0, waiting: Vec::new() }
    }

    /// Adds what the next rows of the weight give.
    ///
    /// # Panics
    ///
    /// If these are not whole rows, or more than there are columns of `x`.
    pub fn add(&mut self, rows: &[bf16]) {
        let n = self.size.n;
        let count = rows.len().checked_div(n).unwrap_or(0);
        assert_eq!(count * n, rows.len(), "rows of {n} elements");
        assert!(self.next + count <= self.size.k, "more rows than columns of x");
        let mut rest = rows;
        if !self.waiting.is_empty() && count > 0 {
            let waiting = std::mem::take(&mut self.waiting);
            let (second, others) = rows.split_at(n);
            self.add_pairs(self.next - 1, [&waiting, second], 1);
            rest = others;
        }
        let first = self.next + (rows.len() - rest.len()) / n.max(1);
        let pairs = rest.len() / (2 * n).max(1);
        if pairs > 0 {
            self.add_pairs(first, [rest, &rest[n..]], pairs);
        }
        self.waiting.extend(&rest[pairs * 2 * n..]);
        self.next += count;
    }

    /// Adds what waits.
    pub fn finish(mut self) {
        if !self.waiting.is_empty() {
            let waiting = std::mem::take(&mut self.waiting);
            // As if a row of zeros came.
            let zeros = vec![bf16::ZERO; waiting.len()];
            self.add_pairs(self.next - 1, [&waiting, &zeros], 1);
        }
    }

    /// Adds what pairs of rows from number `first` on give; each slice begins with a row of the
    /// first pair, and those of the next are two rows on.
    fn add_pairs(&mut self, first: usize, rows: [&[bf16]; 2], pairs: usize) {
        let Size { m, n, k } = self.size;
        for start in (0..pairs).step_by(PACKED) {
            let count = PACKED.min(pairs - start);
            let mut packed = pack::bf16s(m * count * 2);
            for depth in (0..count).step_by(DEPTH) {
                let deep = DEPTH.min(count - depth);
                let from = first + 2 * (start + depth);
                let to = &mut packed[2 * depth * m..][..2 * deep * m];
                for (i, to) in to.chunks_exact_mut(2 * deep).enumerate() {
                    // The last pair may have one row alone.
                    let x = &self.x[i * k + from..i * k + k.min(from + 2 * deep)];
                    let (to, missing) = to.split_at_mut(x.len());
                    cast::f32_to_bf16(x, to);
                    missing.fill(bf16::ZERO);
                }
            }
            let rows = rows.map(|rows| rows[start * 2 * n..].as_ptr());
            let operands =
                Operands { x: packed.as_ptr(), rows, y: self.y.as_mut_ptr(), m, n, count };
            operands.share();
        }
    }
}

/// What threads share.
struct Operands {
    /// Activations: [`DEPTH`] pairs of all rows, the next ones, and so on.
    x: *const bf16,
    /// The first and the second row of the first pair.
    rows: [*const bf16; 2],
    y: *mut f32,
    m: usize,
    n: usize,
    /// Pairs.
    count: usize,
}

// SAFETY: addresses and sizes. What threads may do with the addresses is the contract of `panel`.
unsafe impl Sync for Operands {}

impl Operands {
    fn share(&self) {
        let Self { m, n, .. } = *self;
        let threads = rayon::current_num_threads();
        let panels = n.div_ceil(COLUMNS);
        let parts = row_parts(m, panels, threads);
        Claims::of(panels * parts, threads).share(|run| {
            for index in run {
                let (panel, part) = (index / parts, index % parts);
                let rows = m * part / parts..m * (part + 1) / parts;
                let start = panel * COLUMNS;
                // SAFETY: `PairedRows::new` checked that this processor has the instructions, and
                // its callers that slices are as long as the sizes say; all are borrowed until
                // `share` returns. No two indices have an element of `y` in common.
                unsafe { self.panel(rows, start..n.min(start + COLUMNS)) };
            }
        });
    }

    /// Adds what all pairs give to the outputs of some rows and of `columns`.
    ///
    /// # Safety
    ///
    /// The processor has the instructions; the addresses are those of matrices of these sizes; and
    /// during the call nothing else reads or writes `y[rows, columns]`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn panel(&self, rows: Range<usize>, columns: Range<usize>) {
        let mut pairs = [const { MaybeUninit::<__m512i>::uninit() }; DEPTH * WIDTH];
        let lanes: [__mmask16; WIDTH] = std::array::from_fn(|j| {
            let count = columns.len().saturating_sub(j * LANES).min(LANES);
            ((1u32 << count) - 1) as __mmask16
        });
        for first in (0..self.count).step_by(DEPTH) {
            let depth = DEPTH.min(self.count - first);
            for l in 0..depth {
                for j in 0..WIDTH {
                    let at = (first + l) * 2 * self.n + columns.start + j * LANES;
                    // SAFETY: a masked load touches no other lanes than those that the weight has.
                    let [one, other] = self.rows.map(|rows| unsafe {
                        let row = rows.wrapping_add(at).cast();
                        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes[j], row))
                    });
                    let both = _mm512_or_si512(one, _mm512_slli_epi32::<16>(other));
                    pairs[l * WIDTH + j].write(both);
                }
            }
            let mut row = rows.start;
            while row < rows.end {
                let block = Block {
                    // SAFETY: activations have `2 * depth` elements for each row from there on.
                    x: unsafe { self.x.add(2 * (first * self.m + row * depth)) },
                    pairs: pairs.as_ptr().cast(),
                    depth,
                    y: self.y.wrapping_add(row * self.n + columns.start),
                    n: self.n,
                    lanes,
                };
                // SAFETY: the caller's promise; as many pairs are written as are read.
                row += unsafe {
                    match (rows.end - row).min(HEIGHT) {
                        HEIGHT.. => block.add::<HEIGHT>(),
                        5 => block.add::<5>(),
                        4 => block.add::<4>(),
                        3 => block.add::<3>(),
                        2 => block.add::<2>(),
                        _ => block.add::<1>(),
                    }
                };
            }
        }
    }
}

/// A few rows of activations and a panel.
struct Block {
    x: *const bf16,
    pairs: *const __m512i,
    depth: usize,
    y: *mut f32,
    /// Elements from one row of `y` to the next.
    n: usize,
    lanes: [__mmask16; WIDTH],
}

impl Block {
    /// Adds what the panel gives to `R` rows of outputs; says how many these are.
    ///
    /// # Safety
    ///
    /// As for [`Operands::panel`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    #[inline]
    unsafe fn add<const R: usize>(&self) -> usize {
        // SAFETY: the caller's promise: there are as many rows of `x` and `y`, and of these the
        // lanes of the masks; a vector of bf16 is a vector of bits.
        unsafe {
            let y = |i: usize, j: usize| self.y.wrapping_add(i * self.n + j * LANES);
            let mut sums = [[_mm512_setzero_ps(); WIDTH]; R];
            for i in 0..R {
                for j in 0..WIDTH {
                    sums[i][j] = _mm512_maskz_loadu_ps(self.lanes[j], y(i, j));
                }
            }
            let mut pairs = self.pairs;
            for l in 0..self.depth {
                let weights: [__m512bh; WIDTH] =
                    std::array::from_fn(|j| std::mem::transmute(pairs.add(j).read()));
                for i in 0..R {
                    let x = self.x.add(2 * (i * self.depth + l)).cast::<i32>().read_unaligned();
                    let x: __m512bh = std::mem::transmute(_mm512_set1_epi32(x));
                    for j in 0..WIDTH {
                        sums[i][j] = _mm512_dpbf16_ps(sums[i][j], weights[j], x);
                    }
                }
                pairs = pairs.add(WIDTH);
            }
            for i in 0..R {
                for j in 0..WIDTH {
                    _mm512_mask_storeu_ps(y(i, j), self.lanes[j], sums[i][j]);
                }
            }
        }
        R
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 311.0 - 1.6).collect()
    }

    fn sum([m, k, n]: [usize; 3], tiles: &[usize]) -> Vec<f32> {
        let (x, mut y) = (values(m * k, 1), values(m * n, 2));
        let weight: Vec<bf16> = values(k * n, 3).into_iter().map(bf16::from_f32).collect();
        let mut sum = PairedRows::new(&x, k, &mut y, n);
        let mut from = 0;
        for to in tiles.iter().copied().chain([k]) {
            sum.add(&weight[from * n..to * n]);
            from = to;
        }
        sum.finish();
        y
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn follows_the_formula_however_it_is_cut(
            m in 1usize..60, k in 0usize..300, n in 1usize..150,
            mut cuts in prop::collection::vec(0.0f64..=1.0, 0..4),
        ) {
            if !Isa::Avx512Bf16.is_available() {
                eprintln!("SKIPPED: this processor has no products of bf16");
                return Ok(());
            }
            let whole = sum([m, k, n], &[]);
            let (x, y) = (values(m * k, 1), values(m * n, 2));
            let weight = values(k * n, 3);
            let rounded = |value: f32| f64::from(bf16::from_f32(value).to_f32());
            for (index, found) in whole.iter().enumerate() {
                let (i, j) = (index / n, index % n);
                let products = (0..k).map(|l| rounded(x[i * k + l]) * rounded(weight[l * n + j]));
                let (want, all) = products.fold((0.0, 0.0), |(sum, all), product: f64| {
                    (sum + product, all + product.abs())
                });
                let (want, all) = (want + f64::from(y[index]), all + f64::from(y[index].abs()));
                let allowed = (k + 1) as f64 * 2f64.powi(-23) * all;
                prop_assert!((f64::from(*found) - want).abs() <= allowed, "{found} for {want}");
            }
            cuts.sort_by(f64::total_cmp);
            let tiles: Vec<usize> = cuts.iter().map(|cut| (cut * k as f64) as usize).collect();
            let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&sum([m, k, n], &tiles)), bits(&whole));
        }
    }

    /// Several packed parts of activations, and rows that are cut.
    #[test]
    fn threads_change_nothing() {
        if !Isa::Avx512Bf16.is_available() {
            return eprintln!("SKIPPED: this processor has no products of bf16");
        }
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| sum([200, 2300, 70], &[1111]))
        };
        let alone = on(1);
        assert!([2, 3, 7].into_iter().all(|threads| on(threads) == alone));
    }
}
