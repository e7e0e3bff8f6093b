//! Sums of values, each times its weight: the elements of a head in lanes.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and vectors are counted, and each indexes several things"
)]

use super::KvElement;
use super::columns::RowRun;
use super::lanes::Lanes;

/// Bytes that come from memory together.
const LINE: usize = 64;

/// What is fetched while values are mixed: bytes that lie one behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValuePrefetch {
    next: *const u8,
    lines: usize,
    /// How many are fetched with each value.
    pace: usize,
}

impl ValuePrefetch {
    pub const NONE: ValuePrefetch = ValuePrefetch { next: std::ptr::null(), lines: 0, pace: 0 };

    /// A run, if its rows have no gaps, while so many values are mixed.
    pub fn of<E>(run: &RowRun<'_, E>, values: usize) -> ValuePrefetch {
        if run.elements.len() != run.rows * run.step {
            return ValuePrefetch::NONE;
        }
        let lines = size_of_val(run.elements).div_ceil(LINE);
        ValuePrefetch {
            next: run.elements.as_ptr().cast(),
            lines,
            pace: lines.div_ceil(values.max(1)),
        }
    }

    /// Fetches some more.
    #[inline(always)]
    fn fetch<V: Lanes>(&mut self) {
        let lines = self.pace.min(self.lines);
        for line in 0..lines {
            V::prefetch(self.next.wrapping_add(line * LINE));
        }
        self.next = self.next.wrapping_add(lines * LINE);
        self.lines -= lines;
    }
}

/// Weights of some rows for a run of values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    /// That of the first row for the first value.
    pub first: *const f32,
    /// From one value's to the next one's.
    pub step: usize,
}

/// Rows that are mixed side by side, so that each vector of a value serves several of them.
pub(super) const TALL: usize = 4;

/// How often [`weighted_sum`] goes through the values for so many rows.
pub(super) fn passes<V: Lanes>(rows: usize, width: usize) -> usize {
    rows.div_ceil(TALL) * width.div_ceil(V::WIDE * V::LANES)
}

/// Adds a run of values, each times its weight for a row, to the partials of `R` rows, one every
/// `partial` elements.
///
/// # Safety
///
/// The processor has the instructions of `V`; values have `width` elements, and partials at least
/// as many, padded to whole vectors. There is a weight of each of `R` rows, one behind the other,
/// for each value.
#[inline(always)]
pub(super) unsafe fn weighted_sum<V: Lanes, E: KvElement, const R: usize>(
    weights: Weights,
    values: &RowRun<'_, E>,
    width: usize,
    partials: *mut f32,
    partial: usize,
    prefetch: &mut ValuePrefetch,
) {
    let mut at = 0;
    // SAFETY: the caller's promise; each asks for `N` vectors that begin before `width`, all but
    // the last with all of their lanes.
    unsafe {
        if V::WIDE == 4 {
            while at + 4 * V::LANES <= width {
                some::<V, E, R, 4>(weights, values, width, (partials, partial), at, prefetch);
                at += 4 * V::LANES;
            }
        }
        while at + 2 * V::LANES <= width {
            some::<V, E, R, 2>(weights, values, width, (partials, partial), at, prefetch);
            at += 2 * V::LANES;
        }
        while at < width {
            some::<V, E, R, 1>(weights, values, width, (partials, partial), at, prefetch);
            at += V::LANES;
        }
    }
}

/// [`weighted_sum`] for elements `at..at + N · LANES`, or what there is of them.
///
/// # Safety
///
/// As there; and `at + (N - 1) · LANES < width`, with `N = 1` unless all lanes are there.
#[inline(always)]
unsafe fn some<V: Lanes, E: KvElement, const R: usize, const N: usize>(
    weights: Weights,
    values: &RowRun<'_, E>,
    width: usize,
    (partials, partial): (*mut f32, usize),
    at: usize,
    prefetch: &mut ValuePrefetch,
) {
    let left = width - at;
    let from = values.elements.as_ptr();
    // SAFETY: the caller's promise: row `j` of the values is there, and vector `n` of it begins
    // before `width`; so it does of each partial.
    unsafe {
        let mut sums = [[V::zero(); N]; R];
        for i in 0..R {
            for n in 0..N {
                sums[i][n] = V::f32(partials.add(i * partial + at + n * V::LANES));
            }
        }
        for j in 0..values.rows {
            if prefetch.lines > 0 {
                prefetch.fetch::<V>();
            }
            let row = from.add(j * values.step + at);
            let weights = weights.first.add(j * weights.step);
            let mut v = [V::zero(); N];
            for n in 0..N {
                v[n] = match left < V::LANES {
                    true => E::load_part(row, left),
                    false => E::load(row.add(n * V::LANES)),
                };
            }
            for i in 0..R {
                let weight = V::splat(*weights.add(i));
                for n in 0..N {
                    sums[i][n] = sums[i][n].fma(v[n], weight);
                }
            }
        }
        for i in 0..R {
            for n in 0..N {
                sums[i][n].store(partials.add(i * partial + at + n * V::LANES));
            }
        }
    }
}
