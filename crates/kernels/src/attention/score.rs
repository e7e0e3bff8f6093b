//! Scores: products of queries with keys, a row of queries in each lane.
//!
//! So no lanes are ever added up, which would take twice as long as the products: a score is one
//! lane's sum of products, in order of the elements of a head, whatever stands in the other lanes.

#![allow(clippy::needless_range_loop, reason = "keys are counted, and each indexes several things")]

use super::KvElement;
use super::columns::RowRun;
use super::lanes::Lanes;

/// Keys that are scored side by side: enough sums that none waits for itself.
pub(super) const KEYS: usize = 8;

/// Elements between two looks at whether there are more.
const STEP: usize = 4;

/// Bytes that come from memory together.
const LINE: usize = 64;

/// Writes the products of `V::LANES` queries with a run of keys, all products of a key one behind
/// the other; those of up to `KEYS - 1` keys more are written too, and mean nothing. Meanwhile
/// fetches `prefetch`, which has as many rows.
///
/// # Safety
///
/// The processor has the instructions of `V`. `queries` is `[width, V::LANES]`, and keys have
/// `width` elements. `scores` has room for `rows + KEYS - 1` vectors; `wide` has room for `KEYS`
/// rows of `width`, each padded to a multiple of `W::LANES`.
#[inline(always)]
pub(super) unsafe fn score<V: Lanes, W: Lanes, E: KvElement>(
    queries: *const f32,
    keys: &RowRun<'_, E>,
    prefetch: Option<&RowRun<'_, E>>,
    width: usize,
    scores: *mut f32,
    wide: *mut f32,
) {
    let mut key = 0;
    while key < keys.rows {
        // The last rows again where there are no more.
        let at: [usize; KEYS] = std::array::from_fn(|j| (key + j).min(keys.rows - 1));
        let rows = keys.elements.as_ptr();
        let next = match prefetch {
            Some(prefetch) => prefetch.elements.as_ptr().wrapping_add(key * prefetch.step),
            None => std::ptr::null(),
        };
        let next_step = prefetch.map_or(0, |prefetch| prefetch.step);
        // SAFETY: the caller's promise; `at` are rows of the run.
        unsafe {
            let rows = E::widened::<W, KEYS>(at.map(|at| rows.add(at * keys.step)), width, wide);
            let mut sums = [V::zero(); KEYS];
            let mut start = 0;
            while start < width {
                let end = width.min(start + LINE / size_of::<E>());
                if prefetch.is_some() {
                    for j in 0..KEYS {
                        let element = next.wrapping_add(j * next_step + start);
                        V::prefetch(element.cast());
                    }
                }
                while start + STEP <= end {
                    for i in 0..STEP {
                        add::<V>(&mut sums, &rows, queries, start + i);
                    }
                    start += STEP;
                }
                while start < end {
                    add::<V>(&mut sums, &rows, queries, start);
                    start += 1;
                }
            }
            for j in 0..KEYS {
                sums[j].store(scores.add((key + j) * V::LANES));
            }
        }
        key += KEYS;
    }
}

/// Adds the products of one element of the queries and of each key.
///
/// # Safety
///
/// The processor has the instructions of `V`; queries and keys have an element `at`.
#[inline(always)]
unsafe fn add<V: Lanes>(
    sums: &mut [V; KEYS],
    keys: &[*const f32; KEYS],
    queries: *const f32,
    at: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let query = V::f32(queries.add(at * V::LANES));
        for j in 0..KEYS {
            sums[j] = sums[j].fma(V::splat(*keys[j].add(at)), query);
        }
    }
}
