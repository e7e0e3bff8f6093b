//! Rows of a weight, or parts of a matmul, that threads claim.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Size;
use crate::thread_pool;

/// A run is at least this many bytes of weights, about 4 µs of memory bandwidth …
const MIN_WEIGHT_BYTES: usize = 64 << 10;

/// … or makes at least this many multiply-adds, about half as long in compute.
const MIN_MULTIPLY_ADDS: usize = 128 << 10;

/// Rows of activations that a thread takes through a panel of weights at least, so that it is worth
/// making.
const MIN_ROWS: usize = 48;

/// How many parts `m` rows of activations are cut into, that go through so many panels of weights:
/// several only where there are too few panels for all threads.
pub(super) fn row_parts(m: usize, panels: usize, threads: usize) -> usize {
    (4 * threads).div_ceil(panels.max(1)).min(m.div_ceil(MIN_ROWS)).max(1)
}

/// The rows of a weight, or parts of other work, claimed by threads run by run.
pub(crate) struct Claims {
    next: AtomicUsize,
    rows: usize,
    /// A run is a multiple of so many rows: what tiles take side by side.
    unit: usize,
    /// Rows of the shortest run, but for the last.
    least: usize,
    /// What is left is claimed in so many parts.
    parts: usize,
    threads: usize,
}

impl Claims {
    /// For weights of `element` bytes and up to `threads`, in multiples of `unit` rows.
    pub(crate) fn new(
        Size { m, n, k }: Size,
        element: usize,
        threads: usize,
        unit: usize,
    ) -> Claims {
        let by_bytes = MIN_WEIGHT_BYTES.div_ceil(k.saturating_mul(element).max(1));
        let by_multiply_adds = MIN_MULTIPLY_ADDS.div_ceil(k.saturating_mul(m).max(1));
        Claims {
            next: AtomicUsize::new(0),
            rows: n,
            unit,
            least: by_bytes.min(by_multiply_adds).next_multiple_of(unit),
            parts: threads.saturating_mul(2),
            threads,
        }
    }

    /// The same in runs of one length, a multiple of `unit` and at most `most` rows, such that all
    /// threads claim as many.
    pub(crate) fn alike(rows: usize, threads: usize, most: usize, unit: usize) -> Claims {
        let each = rows.div_ceil(threads.max(1));
        let least = each.div_ceil(each.div_ceil(most).max(1)).next_multiple_of(unit);
        Claims { next: AtomicUsize::new(0), rows, unit, least, parts: usize::MAX, threads }
    }

    /// For as many `parts` of work, each large enough to be claimed alone.
    pub(crate) fn of(parts: usize, threads: usize) -> Claims {
        let next = AtomicUsize::new(0);
        Claims { next, rows: parts, unit: 1, least: 1, parts: threads.saturating_mul(2), threads }
    }

    /// Whether there is more than one run.
    pub(crate) fn are_many(&self) -> bool {
        self.threads > 1 && self.rows > self.least
    }

    /// Calls `work` with each run, on several threads if there is more than one run.
    pub(crate) fn share(&self, work: impl Fn(Range<usize>) + Sync) {
        let threads = if self.are_many() { self.threads } else { 1 };
        thread_pool::share(threads, || {
            while let Some(run) = self.claim() {
                work(run);
            }
        });
    }

    /// The next run, for this thread alone.
    pub(crate) fn claim(&self) -> Option<Range<usize>> {
        let claimed = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |start| {
            let run = self.run(start);
            (!run.is_empty()).then_some(run.end)
        });
        Some(self.run(claimed.ok()?))
    }

    /// The run that begins with row `start`.
    fn run(&self, start: usize) -> Range<usize> {
        let left = self.rows - start;
        let len = (left / self.parts).next_multiple_of(self.unit).max(self.least).min(left);
        start..start + len
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::small_m::unit;
    use super::*;

    fn runs(size: Size, element: usize, threads: usize) -> Vec<Range<usize>> {
        let claims = Claims::new(size, element, threads, unit(size.m));
        std::iter::from_fn(|| claims.claim()).collect()
    }

    proptest! {
        /// The promise that sharing rests on: every row is in exactly one run.
        #[test]
        fn runs_cover_the_rows_once(
            m in 1usize..16, n in 0usize..70_000, k in 0usize..9000, element in 1usize..=4, threads in 1usize..70,
        ) {
            let mut end = 0;
            for run in runs(Size { m, n, k }, element, threads) {
                prop_assert_eq!(run.start, end);
                prop_assert!(!run.is_empty());
                end = run.end;
            }
            prop_assert_eq!(end, n);
        }
    }

    proptest! {
        /// Runs of one length cover the rows once, none is longer than the most, and all threads
        /// get as many, but for what is rounded to whole units.
        #[test]
        fn runs_that_are_alike_cover_the_rows_once(
            rows in 0usize..70_000, threads in 1usize..70, unit in 1usize..40, units in 1usize..10,
        ) {
            let most = unit * units;
            let claims = Claims::alike(rows, threads, most, unit);
            let runs: Vec<_> = std::iter::from_fn(|| claims.claim()).collect();
            prop_assert_eq!(runs.iter().map(Range::len).sum::<usize>(), rows);
            prop_assert!(runs.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(runs.iter().all(|run| (1..=most).contains(&run.len())));
            let rounds = rows.div_ceil(threads).div_ceil(most);
            prop_assert!(runs.len() <= rounds * threads);
        }
    }

    #[test]
    fn tiles_of_a_weight_are_cut_evenly() {
        let lengths = |rows| {
            let claims = Claims::alike(rows, 2, 256, 32);
            std::iter::from_fn(move || claims.claim()).map(|run| run.len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(1024), [256; 4]);
        assert_eq!(lengths(372), [192, 180]);
        assert_eq!(lengths(40), [32, 8]);
    }

    #[test]
    fn every_part_is_claimed_once() {
        for threads in [1, 2, 3, 64] {
            for end in [0, 1, 2, 7, 32, 1000] {
                let claims = Claims::of(end, threads);
                let mut next = 0;
                while let Some(claimed) = claims.claim() {
                    assert_eq!(claimed.start, next);
                    assert!(!claimed.is_empty());
                    next = claimed.end;
                }
                assert_eq!(next, end);
            }
        }
    }

    #[test]
    fn runs_are_long_at_first_and_short_at_last() {
        let lengths: Vec<usize> =
            runs(Size { m: 1, n: 2048, k: 2048 }, 2, 2).into_iter().map(|run| run.len()).collect();
        assert_eq!(lengths[0], 512);
        assert!(lengths.is_sorted_by(|a, b| a >= b), "{lengths:?}");
        assert!(lengths.last() <= Some(&16), "{lengths:?}");
    }

    #[test]
    fn small_products_are_not_shared() {
        let many = |m, n| Claims::new(Size { m, n, k: 512 }, 2, 8, unit(m)).are_many();
        assert!(!many(1, 64));
        assert!(many(1, 640));
        assert!(!many(15, 24));
        assert!(!Claims::new(Size { m: 1, n: 9999, k: 999 }, 2, 1, 8).are_many());
    }
}
