//! One thread's work on attention: blocks of columns for the rows of a task.

use std::ops::Range;

use super::job::{Job, Task};
use super::lanes::{Lanes, MOST_LANES};
use super::mix::{self, Ahead, TALL, Weights, mix};
use super::record::{self, fold};
use super::score::{KEYS, score};
use super::soften::soften;
use super::{BLOCK, Stored};
use crate::product::Vector;

/// Rows that are scored together and then mixed.
#[derive(Debug)]
struct Strip {
    rows: Range<usize>,
    /// Rows that a vector has lanes for.
    lanes: usize,
    block: usize,
}

/// A task's rows, and memory to work in.
#[derive(Debug)]
pub(super) struct Worker<'a, E> {
    job: &'a Job<'a, E>,
    task: Option<&'a Task>,
    /// The task's queries, strip by strip: `[width, lanes]` of each.
    queries: Vec<f32>,
    /// `[columns, lanes]`.
    scores: Vec<f32>,
    /// Some keys in f32.
    wide: Vec<f32>,
    /// How the rows of a strip are mixed.
    pieces: Vec<Piece>,
}

/// Rows of a strip that see some columns of a block.
#[derive(Debug)]
struct Piece {
    rows: Range<usize>,
    columns: Range<usize>,
}

/// Elements that a [`Worker`] takes, for tasks of so many rows.
pub(super) fn elements(rows: usize, width: usize) -> usize {
    let [queries, scores, wide] = sizes(rows, width);
    queries.saturating_add(scores).saturating_add(wide)
}

fn sizes(rows: usize, width: usize) -> [usize; 3] {
    [
        rows.next_multiple_of(MOST_LANES).saturating_mul(width),
        (BLOCK + KEYS) * MOST_LANES,
        width.next_multiple_of(MOST_LANES).saturating_mul(KEYS),
    ]
}

/// The strips of so many rows: the last one may have no more than half of a vector's lanes.
#[inline(always)]
fn strips<V: Lanes>(rows: usize, block: usize) -> impl Iterator<Item = Strip> {
    (0..rows).step_by(V::LANES).map(move |start| {
        let end = rows.min(start + V::LANES);
        let half = end - start <= V::Half::LANES;
        Strip {
            rows: start..end,
            lanes: if half { V::Half::LANES } else { V::LANES },
            block,
        }
    })
}

/// Cuts rows, given what they see, into pieces: rows side by side at columns that all of them see, and before and after those, in order,
/// each row alone. What a row does not see may hold anything, even what is no number.
fn cut(seen: &[Range<usize>], pieces: &mut Vec<Piece>) {
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
                pieces.push(Piece { rows, columns });
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

impl<'a, E: Stored> Worker<'a, E> {
    /// For tasks of up to so many rows.
    pub fn new(job: &'a Job<'a, E>, rows: usize) -> Self {
        let [queries, scores, wide] = sizes(rows, job.heads.width);
        Self {
            job,
            task: None,
            queries: vec![0.0; queries],
            scores: vec![0.0; scores],
            wide: vec![0.0; wide],
            pieces: Vec::with_capacity(3 * MOST_LANES),
        }
    }

    /// Attends for a task, block after block, into a record for each row; `later` has room for as many. Then fetches what
    /// `next` begins with.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn attend<V: Lanes>(
        &mut self,
        task: &'a Task,
        next: Option<&'a Task>,
        records: &mut [f32],
        later: &mut [f32],
    ) {
        records.fill(0.0);
        let blocks = self.job.blocks(task);
        let after = next.map(|next| (next, self.job.blocks(next).start));
        let record = self.job.record();
        let rows = self.job.rows(task) * record;
        for block in blocks.clone() {
            let next = match block + 1 < blocks.end {
                true => Some((task, block + 1)),
                false => after,
            };
            // SAFETY: the caller's promise.
            unsafe { self.block::<V>((task, block), next, later) };
            let later = later[..rows].chunks_exact(record);
            for (earlier, later) in records[..rows].chunks_exact_mut(record).zip(later) {
                fold(earlier, later);
            }
        }
    }

    /// What comes of one block of columns: a record for each row of the task. Meanwhile fetches keys of the block that comes `next`.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn block<V: Lanes>(
        &mut self,
        (task, block): (&'a Task, usize),
        next: Option<(&'a Task, usize)>,
        records: &mut [f32],
    ) {
        let (rows, width, record) = (self.job.rows(task), self.job.heads.width, self.job.record());
        if !self.task.is_some_and(|packed| std::ptr::eq(packed, task)) {
            self.pack::<V>(task);
        }
        let columns = self.job.seen_of_block(task, 0..rows, block).len();
        let first = V::LANES.min(rows);
        let mut ahead = next.map_or(Ahead::NOTHING, |(task, block)| {
            let seen = self.job.seen_of_block(task, 0..self.job.rows(task), block);
            let keys = self.job.stretches(task, block, seen).next();
            let mixed = columns * mix::passes::<V>(first, width);
            keys.map_or(Ahead::NOTHING, |stretch| Ahead::of(&stretch.keys, mixed))
        });
        for strip in strips::<V>(rows, block) {
            let records = &mut records[strip.rows.start * record..strip.rows.end * record];
            // SAFETY: the caller's promise.
            unsafe {
                match strip.lanes == V::LANES {
                    true => self.strip::<V, V>(task, strip, &mut ahead, records),
                    false => self.strip::<V::Half, V>(task, strip, &mut ahead, records),
                }
            }
        }
    }

    /// Puts a task's queries into lanes.
    #[inline(always)]
    fn pack<V: Lanes>(&mut self, task: &'a Task) {
        let width = self.job.heads.width;
        for Strip { rows, lanes, .. } in strips::<V>(self.job.rows(task), 0) {
            let packed = &mut self.queries[rows.start * width..][..lanes * width];
            for lane in 0..lanes {
                let at = packed[lane..].iter_mut().step_by(lanes);
                match rows.start + lane < rows.end {
                    true => {
                        let query = self.job.query(task, rows.start + lane);
                        at.zip(query).for_each(|(at, &element)| *at = element);
                    }
                    false => at.for_each(|at| *at = 0.0),
                }
            }
        }
        self.task = Some(task);
    }

    /// [`block`](Self::block) of the rows of a strip, of as many lanes as `V`, whose records are `records`.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V` and `W`, and `V` has no more lanes than `W`.
    #[inline(always)]
    unsafe fn strip<V: Lanes, W: Lanes>(
        &mut self,
        task: &Task,
        strip: Strip,
        ahead: &mut Ahead,
        records: &mut [f32],
    ) {
        let Strip { rows, block, .. } = strip;
        let (job, width, record) = (self.job, self.job.heads.width, self.job.record());
        records.fill(0.0);
        let columns = job.seen_of_block(task, rows.clone(), block);
        if columns.is_empty() {
            return;
        }
        let queries = &self.queries[rows.start * width..][..V::LANES * width];
        assert!(self.scores.len() >= (BLOCK + KEYS) * V::LANES && width <= self.wide.len() / KEYS);
        for stretch in job.stretches(task, block, columns.clone()) {
            assert!(stretch.column + stretch.keys.rows <= BLOCK);
            // The first strip brings values into the cache, where the others find them.
            let ahead = (rows.start == 0).then_some(&stretch.values);
            let scores = self.scores[stretch.column * V::LANES..].as_mut_ptr();
            // SAFETY: the caller's promise; the assertions; the slice above; a stretch has rows of `width`.
            unsafe {
                score::<V, W, E>(
                    queries.as_ptr(),
                    &stretch.keys,
                    ahead,
                    width,
                    scores,
                    self.wide.as_mut_ptr(),
                )
            };
        }

        let mut seen: [Range<usize>; MOST_LANES] = std::array::from_fn(|_| 0..0);
        for (seen, row) in seen.iter_mut().zip(rows.clone()) {
            *seen = job.seen_of_block(task, row..row + 1, block);
        }
        let seen = &seen[..rows.len()];
        let scale = (width as f32).sqrt().recip();
        let totals = soften(V::LANES, &mut self.scores, seen, scale);
        for (record, totals) in records.chunks_exact_mut(record).zip(totals) {
            totals.write(record);
        }

        self.pieces.clear();
        cut(seen, &mut self.pieces);
        for Piece { rows, columns } in &self.pieces {
            let records = &mut records[rows.start * record..rows.end * record];
            let columns = columns.clone();
            let at = (block, rows.start, V::LANES);
            // SAFETY: the caller's promise.
            unsafe {
                match rows.len() {
                    TALL => self.add::<W, TALL>(task, at, columns, ahead, records),
                    2 => self.add::<W, 2>(task, at, columns, ahead, records),
                    _ => self.add::<W, 1>(task, at, columns, ahead, records),
                }
            }
        }
    }

    /// Adds the values at some columns of a block, each times its weight, to the records of `R` rows.
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
        ahead: &mut Ahead,
        records: &mut [f32],
    ) {
        let (width, record) = (self.job.heads.width, self.job.record());
        assert!(records.len() >= R * record && row + R <= lanes);
        for stretch in self.job.stretches(task, block, columns) {
            let rows = stretch.column * lanes..(stretch.column + stretch.values.rows) * lanes;
            let weights = Weights {
                first: self.scores[rows][row..].as_ptr(),
                step: lanes,
            };
            let records = records.as_mut_ptr();
            // SAFETY: the caller's promise; the slice above and the assertion; a stretch has rows of `width`.
            unsafe { mix::<W, E, R>(weights, &stretch.values, width, records, record, ahead) };
        }
    }
}

impl<E: Stored> Job<'_, E> {
    /// Elements of a record of this job.
    pub(super) fn record(&self) -> usize {
        record::record(self.heads.width)
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
            let mut pieces = vec![];
            cut(&seen, &mut pieces);
            for (row, seen) in seen.iter().enumerate() {
                let of_row = pieces.iter().filter(|piece| piece.rows.contains(&row));
                let columns: Vec<_> = of_row.flat_map(|piece| piece.columns.clone()).collect();
                prop_assert_eq!(columns, seen.clone().collect::<Vec<_>>());
            }
            prop_assert!(pieces.iter().all(|piece| [1, 2, TALL].contains(&piece.rows.len())));
            prop_assert!(pieces.len() <= 3 * MOST_LANES);
        }
    }
}
