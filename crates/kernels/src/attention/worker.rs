//! One thread's work on attention: blocks of columns for the rows of a task.

use std::ops::Range;

use super::inputs::{AttentionInputs, Task};
use super::lanes::{Lanes, MOST_LANES};
use super::partial::{self, fold};
use super::score::{KEYS, score};
use super::softmax::softmax;
#[cfg(target_arch = "x86_64")]
use super::tiles::{self, TileWorker};
use super::weighted_sum::{self, TALL, ValuePrefetch, Weights, weighted_sum};
use super::{BLOCK, KvElement};
use crate::ActivationDtype;
use crate::simd::Vector;

/// Rows that are scored together and then mixed.
#[derive(Debug)]
struct QueryTile {
    rows: Range<usize>,
    /// Rows that a vector has lanes for.
    lanes: usize,
    block: usize,
}

/// A task's rows, and memory to work in.
#[derive(Debug)]
pub(super) struct Worker<'a, E> {
    inputs: &'a AttentionInputs<'a, E>,
    task: Option<&'a Task>,
    /// The task's queries, query tile by query tile: `[width, lanes]` of each.
    queries: Vec<f32>,
    /// `[columns, lanes]`.
    scores: Vec<f32>,
    /// Some keys in f32.
    wide: Vec<f32>,
    /// How the rows of a query tile are mixed.
    spans: Vec<VisibleSpan>,
    /// Who does all of it instead, if it is in tiles.
    #[cfg(target_arch = "x86_64")]
    in_tiles: Option<TileWorker<'a, E>>,
}

/// Rows of a query tile that see some columns of a block.
#[derive(Debug)]
struct VisibleSpan {
    rows: Range<usize>,
    columns: Range<usize>,
}

/// Elements that a [`Worker`] takes, for tasks of so many rows; in tiles or not.
pub(super) fn elements(rows: usize, width: usize, in_tiles: bool) -> usize {
    let [queries, scores, wide] = sizes(rows, width);
    #[cfg(target_arch = "x86_64")]
    if in_tiles {
        return tiles::elements(ActivationDtype::F32, rows, width);
    }
    debug_assert!(!in_tiles);
    queries.saturating_add(scores).saturating_add(wide)
}

fn sizes(rows: usize, width: usize) -> [usize; 3] {
    [
        rows.next_multiple_of(MOST_LANES).saturating_mul(width),
        (BLOCK + KEYS) * MOST_LANES,
        width.next_multiple_of(MOST_LANES).saturating_mul(KEYS),
    ]
}

/// The query tiles of so many rows: the last one may have no more than half of a vector's lanes.
#[inline(always)]
fn query_tiles<V: Lanes>(rows: usize, block: usize) -> impl Iterator<Item = QueryTile> {
    (0..rows).step_by(V::LANES).map(move |start| {
        let end = rows.min(start + V::LANES);
        let half = end - start <= V::Half::LANES;
        QueryTile { rows: start..end, lanes: if half { V::Half::LANES } else { V::LANES }, block }
    })
}

/// Cuts rows, given what they see, into pieces: rows side by side at columns that all of them see,
/// and before and after those, in order, each row alone. What a row does not see may hold anything,
/// even what is no number.
fn cut(seen: &[Range<usize>], spans: &mut Vec<VisibleSpan>) {
    let mut row = 0;
    while row < seen.len() {
        let tall = match seen.len() - row {
            TALL.. => TALL,
            2.. => 2,
            _ => 1,
        };
        let group = &seen[row..row + tall];
        let start = group.iter().map(|seen| seen.start).max().unwrap_or(0);
        let end = group.iter().map(|seen| seen.end).min().unwrap_or(0);
        let all = start..end.max(start);
        let mut push = |rows, columns: Range<usize>| {
            if !columns.is_empty() {
                spans.push(VisibleSpan { rows, columns });
            }
        };
        for (row, seen) in (row..).zip(group) {
            push(row..row + 1, seen.start..seen.end.min(all.start));
        }
        push(row..row + tall, all.clone());
        for (row, seen) in (row..).zip(group) {
            push(row..row + 1, seen.start.max(all.end)..seen.end);
        }
        row += tall;
    }
}

impl<'a, E: KvElement> Worker<'a, E> {
    /// For tasks of up to so many rows.
    pub fn new(inputs: &'a AttentionInputs<'a, E>, rows: usize) -> Self {
        let [queries, scores, wide] = match inputs.in_tiles {
            true => [0; 3],
            false => sizes(rows, inputs.shape.width),
        };
        Self {
            #[cfg(target_arch = "x86_64")]
            in_tiles: inputs.in_tiles.then(|| TileWorker::new(inputs, rows)),
            inputs,
            task: None,
            queries: vec![0.0; queries],
            scores: vec![0.0; scores],
            wide: vec![0.0; wide],
            spans: Vec::with_capacity(3 * MOST_LANES),
        }
    }

    /// Attends for a task, block after block, into a partial for each row; `later` has room for as
    /// many. Then fetches what `next` begins with.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn attend<V: Lanes>(
        &mut self,
        task: &'a Task,
        next: Option<&'a Task>,
        partials: &mut [f32],
        later: &mut [f32],
    ) {
        partials.fill(0.0);
        let blocks = self.inputs.blocks(task);
        let after = next.map(|next| (next, self.inputs.blocks(next).start));
        let partial = self.inputs.partial_len();
        let rows = self.inputs.rows(task) * partial;
        for block in blocks.clone() {
            let next = match block + 1 < blocks.end {
                true => Some((task, block + 1)),
                false => after,
            };
            // SAFETY: the caller's promise.
            unsafe { self.block::<V>((task, block), next, later) };
            let later = later[..rows].chunks_exact(partial);
            for (earlier, later) in partials[..rows].chunks_exact_mut(partial).zip(later) {
                fold(earlier, later);
            }
        }
    }

    /// What comes of one block of columns: a partial for each row of the task. Meanwhile fetches
    /// keys of the block that comes `next`.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn block<V: Lanes>(
        &mut self,
        (task, block): (&'a Task, usize),
        next: Option<(&'a Task, usize)>,
        partials: &mut [f32],
    ) {
        #[cfg(target_arch = "x86_64")]
        if let Some(worker) = &mut self.in_tiles {
            // SAFETY: the caller's promise; where there is such a worker, the processor has tiles.
            return unsafe { worker.block(task, block, partials) };
        }
        let (rows, width, partial) =
            (self.inputs.rows(task), self.inputs.shape.width, self.inputs.partial_len());
        if !self.task.is_some_and(|packed| std::ptr::eq(packed, task)) {
            self.pack::<V>(task);
        }
        let columns = self.inputs.seen_of_block(task, 0..rows, block).len();
        let first = V::LANES.min(rows);
        let mut prefetch = next.map_or(ValuePrefetch::NONE, |(task, block)| {
            let seen = self.inputs.seen_of_block(task, 0..self.inputs.rows(task), block);
            let keys = self.inputs.runs(task, block, seen).next();
            let summed = columns * weighted_sum::passes::<V>(first, width);
            keys.map_or(ValuePrefetch::NONE, |run| ValuePrefetch::of(&run.keys, summed))
        });
        for query_tile in query_tiles::<V>(rows, block) {
            let partials =
                &mut partials[query_tile.rows.start * partial..query_tile.rows.end * partial];
            // SAFETY: the caller's promise.
            unsafe {
                match query_tile.lanes == V::LANES {
                    true => self.query_tile::<V, V>(task, query_tile, &mut prefetch, partials),
                    false => {
                        self.query_tile::<V::Half, V>(task, query_tile, &mut prefetch, partials)
                    }
                }
            }
        }
    }

    /// Puts a task's queries into lanes.
    #[inline(always)]
    fn pack<V: Lanes>(&mut self, task: &'a Task) {
        let width = self.inputs.shape.width;
        for QueryTile { rows, lanes, .. } in query_tiles::<V>(self.inputs.rows(task), 0) {
            let packed = &mut self.queries[rows.start * width..][..lanes * width];
            for lane in 0..lanes {
                let at = packed[lane..].iter_mut().step_by(lanes);
                match rows.start + lane < rows.end {
                    true => {
                        let query = self.inputs.query(task, rows.start + lane);
                        at.zip(query).for_each(|(at, &element)| *at = element);
                    }
                    false => at.for_each(|at| *at = 0.0),
                }
            }
        }
        self.task = Some(task);
    }

    /// [`block`](Self::block) of the rows of a query tile, of as many lanes as `V`, whose partials
    /// are `partials`.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V` and `W`, and `V` has no more lanes than `W`.
    #[inline(always)]
    unsafe fn query_tile<V: Lanes, W: Lanes>(
        &mut self,
        task: &Task,
        query_tile: QueryTile,
        prefetch: &mut ValuePrefetch,
        partials: &mut [f32],
    ) {
        let QueryTile { rows, block, .. } = query_tile;
        let (inputs, width, partial) =
            (self.inputs, self.inputs.shape.width, self.inputs.partial_len());
        partials.fill(0.0);
        let columns = inputs.seen_of_block(task, rows.clone(), block);
        if columns.is_empty() {
            return;
        }
        let queries = &self.queries[rows.start * width..][..V::LANES * width];
        assert!(self.scores.len() >= (BLOCK + KEYS) * V::LANES && width <= self.wide.len() / KEYS);
        for run in inputs.runs(task, block, columns.clone()) {
            assert!(run.column + run.keys.rows <= BLOCK);
            // The first query tile brings values into the cache, where the others find them.
            let prefetch = (rows.start == 0).then_some(&run.values);
            let scores = self.scores[run.column * V::LANES..].as_mut_ptr();
            // SAFETY: the caller's promise; the assertions; the slice above; a stretch has rows of
            // `width`.
            unsafe {
                score::<V, W, E>(
                    queries.as_ptr(),
                    &run.keys,
                    prefetch,
                    width,
                    scores,
                    self.wide.as_mut_ptr(),
                )
            };
        }

        inputs.cap_and_add_biases((task, block), rows.clone(), columns, V::LANES, &mut self.scores);
        let mut seen: [Range<usize>; MOST_LANES] = std::array::from_fn(|_| 0..0);
        for (seen, row) in seen.iter_mut().zip(rows.clone()) {
            *seen = inputs.seen_of_block(task, row..row + 1, block);
        }
        let seen = &seen[..rows.len()];
        let totals = softmax(V::LANES, &mut self.scores, seen, inputs.scale);
        for (partial, totals) in partials.chunks_exact_mut(partial).zip(totals) {
            totals.write(partial);
        }

        self.spans.clear();
        cut(seen, &mut self.spans);
        for VisibleSpan { rows, columns } in &self.spans {
            let partials = &mut partials[rows.start * partial..rows.end * partial];
            let columns = columns.clone();
            let at = (block, rows.start, V::LANES);
            // SAFETY: the caller's promise.
            unsafe {
                match rows.len() {
                    TALL => self.add::<W, TALL>(task, at, columns, prefetch, partials),
                    2 => self.add::<W, 2>(task, at, columns, prefetch, partials),
                    _ => self.add::<W, 1>(task, at, columns, prefetch, partials),
                }
            }
        }
    }

    /// Adds the values at some columns of a block, each times its weight, to the partials of `R`
    /// rows.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `W`.
    #[inline(always)]
    unsafe fn add<W: Lanes, const R: usize>(
        &self,
        task: &Task,
        (block, row, lanes): (usize, usize, usize),
        columns: Range<usize>,
        prefetch: &mut ValuePrefetch,
        partials: &mut [f32],
    ) {
        let (width, partial) = (self.inputs.shape.width, self.inputs.partial_len());
        assert!(partials.len() >= R * partial && row + R <= lanes);
        for run in self.inputs.runs(task, block, columns) {
            let rows = run.column * lanes..(run.column + run.values.rows) * lanes;
            let weights = Weights { first: self.scores[rows][row..].as_ptr(), step: lanes };
            let partials = partials.as_mut_ptr();
            // SAFETY: the caller's promise; the slice above and the assertion; a stretch has rows
            // of `width`.
            unsafe {
                weighted_sum::<W, E, R>(weights, &run.values, width, partials, partial, prefetch)
            };
        }
    }
}

impl<E: KvElement> AttentionInputs<'_, E> {
    /// Elements of a partial of this job.
    pub(super) fn partial_len(&self) -> usize {
        partial::partial_len(self.shape.width)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each row gets each column that it sees once, in order, and no other.
        #[test]
        fn pieces_are_what_rows_see(seen in prop::collection::vec((0usize..20, 0usize..20), 0..=MOST_LANES)) {
            let seen: Vec<_> = seen.into_iter().map(|(start, len)| start..start + len).collect();
            let mut spans = vec![];
            cut(&seen, &mut spans);
            for (row, seen) in seen.iter().enumerate() {
                let of_row = spans.iter().filter(|span| span.rows.contains(&row));
                let columns: Vec<_> = of_row.flat_map(|span| span.columns.clone()).collect();
                prop_assert_eq!(columns, seen.clone().collect::<Vec<_>>());
            }
            prop_assert!(spans.iter().all(|span| [1, 2, TALL].contains(&span.rows.len())));
            prop_assert!(spans.len() <= 3 * MOST_LANES);
        }
    }
}
