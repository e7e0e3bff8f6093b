//! The loops of attention, written once for every kind of vector.
//!
//! Everything here is inlined into the functions at the end, where instructions are enabled. Closures would not be: arrays of vectors are
//! filled by loops.

#![allow(
    clippy::needless_range_loop,
    reason = "rows, keys and vectors are counted, and each indexes several things"
)]

use std::ops::Range;

use super::columns::{self, Part, Run};
use super::lanes::Lanes;
use super::{BLOCK, Heads, Sight, Stored};
use crate::Isa;
use crate::exp::exp;

/// Rows that are scored side by side, so that each vector of a key or value serves several of them.
const TALL: usize = 4;

/// Keys that are scored side by side.
const KEYS: usize = 4;

/// Elements that a row of a record is padded to: lanes of the widest vector.
const PAD: usize = 16;

/// Elements of a record, which a row's blocks are summed up in: the sum of values, padded; the largest score; the sum of weights, zero if
/// the row saw nothing.
pub(super) fn record(width: usize) -> usize {
    width.next_multiple_of(PAD) + PAD
}

/// One call of attention.
#[derive(Debug)]
pub(super) struct Job<'a, E> {
    /// `[batch, tokens, heads, width]`.
    pub queries: &'a [f32],
    pub heads: Heads,
    /// Keys and values, older columns first.
    pub parts: &'a [Part<'a, E>],
    pub sight: &'a Sight,
}

/// Some tokens of a text, and the heads of queries that share a head of keys.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub text: usize,
    /// The head of keys.
    pub head: usize,
    pub tokens: Range<usize>,
}

impl<E: Stored> Job<'_, E> {
    /// Heads of queries that share a head of keys.
    fn group(&self) -> usize {
        self.heads.heads / self.heads.key_heads
    }

    /// Rows of queries of a task: for each token those of each head.
    pub fn rows(&self, task: &Task) -> usize {
        task.tokens.len() * self.group()
    }

    /// Elements of a record of this job.
    pub fn record(&self) -> usize {
        record(self.heads.width)
    }

    /// Columns that a row of a task sees, counted from the text's first token.
    #[inline(always)]
    fn seen(&self, task: &Task, row: usize) -> Range<usize> {
        let Range { start, end } = self
            .sight
            .columns(task.text, task.tokens.start + row / self.group());
        // Padding sees nothing.
        let first = self.sight.padding[task.text];
        start.saturating_sub(first)..end.saturating_sub(first)
    }

    /// Blocks of columns that any row of a task sees.
    pub fn blocks(&self, task: &Task) -> Range<usize> {
        let start = self.seen(task, 0).start;
        let end = self.seen(task, self.rows(task) - 1).end;
        start.min(end) / BLOCK..end.div_ceil(BLOCK)
    }

    /// Multiply-adds of a task, about.
    pub fn products(&self, task: &Task) -> usize {
        let blocks = self.blocks(task);
        let seen = self.seen(task, self.rows(task) - 1).len();
        let columns = seen.min(blocks.len().saturating_mul(BLOCK));
        2 * self.rows(task) * columns * self.heads.width
    }

    /// The query of a row.
    #[inline(always)]
    fn query(&self, task: &Task, row: usize) -> &[f32] {
        let width = self.heads.width;
        &self.queries[self.place(task, row)..][..width]
    }

    /// Where in queries and results a row begins.
    #[inline(always)]
    fn place(&self, task: &Task, row: usize) -> usize {
        let (heads, group) = (&self.heads, self.group());
        let token = task.text * heads.tokens + task.tokens.start + row / group;
        (token * heads.heads + task.head * group + row % group) * heads.width
    }

    /// Folds the records of a later block into those of earlier ones.
    #[inline(always)]
    pub fn fold(&self, task: &Task, records: &mut [f32], later: &[f32]) {
        let record = self.record();
        let (largest, sum) = (record - PAD, record - PAD + 1);
        let pairs = records
            .chunks_exact_mut(record)
            .zip(later.chunks_exact(record));
        for (earlier, later) in pairs.take(self.rows(task)) {
            if later[sum] == 0.0 {
                continue;
            }
            if earlier[sum] == 0.0 {
                earlier.copy_from_slice(later);
                continue;
            }
            let most = if later[largest] > earlier[largest] {
                later[largest]
            } else {
                earlier[largest]
            };
            let (old, new) = (exp(earlier[largest] - most), exp(later[largest] - most));
            for (earlier, later) in earlier[..largest].iter_mut().zip(&later[..largest]) {
                *earlier = *earlier * old + *later * new;
            }
            earlier[sum] = earlier[sum] * old + later[sum] * new;
            earlier[largest] = most;
        }
    }

    /// Writes the results of a task; zeros where there is no record.
    ///
    /// # Safety
    ///
    /// `y` points to `[batch, tokens, heads, width]` elements, and nothing else reads or writes those of the task's text, tokens and heads
    /// meanwhile.
    #[inline(always)]
    pub unsafe fn finish(&self, task: &Task, records: &[f32], y: *mut f32) {
        let (record, width) = (self.record(), self.heads.width);
        let mut records = records.chunks_exact(record);
        for row in 0..self.rows(task) {
            // SAFETY: the caller's promise; `place` gives a row of `width` elements of the task's own.
            let y = unsafe { std::slice::from_raw_parts_mut(y.add(self.place(task, row)), width) };
            match records.next() {
                Some(record) if record[record.len() - PAD + 1] != 0.0 => {
                    let sum = record[record.len() - PAD + 1];
                    for (y, value) in y.iter_mut().zip(record) {
                        *y = value / sum;
                    }
                }
                _ => y.fill(0.0),
            }
        }
    }

    /// Attends for a task: block after block.
    ///
    /// # Safety
    ///
    /// That of [`attend`], with the instructions of `V`.
    #[inline(always)]
    unsafe fn attend<V: Lanes>(&self, task: &Task, y: *mut f32) {
        let records = self.rows(task) * self.record();
        let mut memory = vec![0.0; 2 * records];
        let (folded, next) = memory.split_at_mut(records);
        for (index, block) in self.blocks(task).enumerate() {
            match index {
                // SAFETY: the caller's promise, here and below.
                0 => unsafe { self.block::<V>(task, block, folded) },
                _ => {
                    // SAFETY: the caller's promise.
                    unsafe { self.block::<V>(task, block, next) };
                    self.fold(task, folded, next);
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.finish(task, folded, y) };
    }

    /// What comes of one block of columns: a record for each row.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    #[inline(always)]
    unsafe fn block<V: Lanes>(&self, task: &Task, block: usize, records: &mut [f32]) {
        let (rows, record) = (self.rows(task), self.record());
        let mut scores = [[0.0f32; BLOCK]; TALL];
        let mut row = 0;
        while row < rows {
            let tall = if rows - row >= TALL { TALL } else { 1 };
            let records = &mut records[row * record..(row + tall) * record];
            // SAFETY: the caller's promise.
            unsafe {
                match tall {
                    TALL => self.strip::<V, TALL>(task, row, block, &mut scores, records),
                    _ => {
                        let scores = scores.first_chunk_mut().unwrap_or_else(|| unreachable!());
                        self.strip::<V, 1>(task, row, block, scores, records);
                    }
                }
            }
            row += tall;
        }
    }

    /// [`block`](Self::block) of rows `row..row + R`, whose records are `records`.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    unsafe fn strip<V: Lanes, const R: usize>(
        &self,
        task: &Task,
        row: usize,
        block: usize,
        scores: &mut [[f32; BLOCK]; R],
        records: &mut [f32],
    ) {
        let (width, record) = (self.heads.width, self.record());
        let head = (task.text, task.head);
        // Columns within the block; `first` is the column of the first of them.
        let first = self.sight.padding[task.text] + block * BLOCK;
        let within = |at: usize| at.saturating_sub(block * BLOCK).min(BLOCK);
        let seen: [Range<usize>; R] = std::array::from_fn(|i| {
            let Range { start, end } = self.seen(task, row + i);
            within(start)..within(end).max(within(start))
        });
        records.fill(0.0);
        let start = seen.iter().map(|seen| seen.start).min().unwrap_or(0);
        let end = seen.iter().map(|seen| seen.end).max().unwrap_or(0);
        if start >= end {
            return;
        }

        let queries: [&[f32]; R] = std::array::from_fn(|i| self.query(task, row + i));
        for (column, run) in columns::keys(self.parts, head, first + start..first + end) {
            // SAFETY: the caller's promise. A run lies in its slice, and its columns in the block.
            unsafe { score::<V, E, R>(&queries, &run, width, scores, column - first) };
        }
        let scale = (width as f32).sqrt().recip();
        for i in 0..R {
            let (largest, sum) = soften(&mut scores[i], &seen[i], scale);
            records[i * record + record - PAD] = largest;
            records[i * record + record - PAD + 1] = sum;
        }

        // Columns that all rows see are taken together. Others may hold anything, even what is no number.
        let all = seen.iter().map(|seen| seen.start).max().unwrap_or(0)
            ..seen.iter().map(|seen| seen.end).min().unwrap_or(0);
        if all.is_empty() {
            for i in 0..R {
                let records = &mut records[i * record..][..record];
                // SAFETY: the caller's promise, here and below.
                unsafe { self.mix_row::<V>(head, first, seen[i].clone(), &scores[i], records) };
            }
            return;
        }
        for i in 0..R {
            let (records, early) = (
                &mut records[i * record..][..record],
                seen[i].start..all.start,
            );
            // SAFETY: the caller's promise.
            unsafe { self.mix_row::<V>(head, first, early, &scores[i], records) };
        }
        for (column, run) in columns::values(self.parts, head, first + all.start..first + all.end) {
            let weights: [&[f32]; R] = std::array::from_fn(|i| &scores[i][column - first..]);
            // SAFETY: as above.
            unsafe { mix::<V, E, R>(&weights, &run, width, records) };
        }
        for i in 0..R {
            let (records, late) = (&mut records[i * record..][..record], all.end..seen[i].end);
            // SAFETY: the caller's promise.
            unsafe { self.mix_row::<V>(head, first, late, &scores[i], records) };
        }
    }

    /// Adds the values at some columns of a block, each times its weight, to the record of one row.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    #[inline(always)]
    unsafe fn mix_row<V: Lanes>(
        &self,
        head: (usize, usize),
        first: usize,
        columns: Range<usize>,
        weights: &[f32; BLOCK],
        record: &mut [f32],
    ) {
        if columns.is_empty() {
            return;
        }
        let columns = first + columns.start..first + columns.end;
        for (column, run) in columns::values(self.parts, head, columns) {
            // SAFETY: the caller's promise; there is a weight for each row of the run.
            unsafe {
                mix::<V, E, 1>(
                    &[&weights[column - first..]],
                    &run,
                    self.heads.width,
                    record,
                )
            };
        }
    }
}

/// The products of `R` queries with a run of keys, into places `at..` of their scores.
///
/// # Safety
///
/// The processor has the instructions of `V`; queries and keys have `width` elements.
#[inline(always)]
unsafe fn score<V: Lanes, E: Stored, const R: usize>(
    queries: &[&[f32]; R],
    keys: &Run<'_, E>,
    width: usize,
    scores: &mut [[f32; BLOCK]; R],
    at: usize,
) {
    let mut key = 0;
    while key < keys.rows {
        let count = if keys.rows - key >= KEYS { KEYS } else { 1 };
        let from = &keys.elements[key * keys.step..];
        // SAFETY: the caller's promise; the run goes on for `count` rows.
        unsafe {
            if count == KEYS {
                let sums = tile::<V, E, R, KEYS>(queries, from, keys.step, width);
                for i in 0..R {
                    scores[i][at + key..][..KEYS].copy_from_slice(&V::sums(sums[i]));
                }
            } else {
                let sums = tile::<V, E, R, 1>(queries, from, keys.step, width);
                for i in 0..R {
                    scores[i][at + key] = sums[i][0].sum();
                }
            }
        }
        key += count;
    }
}

/// The products of `R` queries with `C` keys, each in one vector.
///
/// # Safety
///
/// The processor has the instructions of `V`; each query has `width` elements, and `keys` has `C` rows of `width`, one every `step`.
#[inline(always)]
unsafe fn tile<V: Lanes, E: Stored, const R: usize, const C: usize>(
    queries: &[&[f32]; R],
    keys: &[E],
    step: usize,
    width: usize,
) -> [[V; C]; R] {
    let keys = keys.as_ptr();
    // SAFETY: the caller's promise. Loads of `LANES` elements at `at` happen while `at + LANES <= width`, the last one is of what is
    // left.
    unsafe {
        let mut sums = [[V::zero(); C]; R];
        let mut at = 0;
        while at + V::LANES <= width {
            let mut k = [V::zero(); C];
            for j in 0..C {
                k[j] = E::load(keys.add(j * step + at));
            }
            for i in 0..R {
                let q = V::f32(queries[i].as_ptr().add(at));
                for j in 0..C {
                    sums[i][j] = sums[i][j].fma(k[j], q);
                }
            }
            at += V::LANES;
        }
        if at < width {
            let mut k = [V::zero(); C];
            for j in 0..C {
                k[j] = E::load_part(keys.add(j * step + at), width - at);
            }
            for i in 0..R {
                let q = V::f32_part(queries[i].as_ptr().add(at), width - at);
                for j in 0..C {
                    sums[i][j] = sums[i][j].fma(k[j], q);
                }
            }
        }
        sums
    }
}

/// Turns the products at `seen` into weights: `exp` of what each, scaled, is below the largest. Gives the largest score and the sum
/// of the weights.
#[inline(always)]
fn soften(scores: &mut [f32; BLOCK], seen: &Range<usize>, scale: f32) -> (f32, f32) {
    const LANES: usize = 16;
    if seen.is_empty() {
        return (0.0, 0.0);
    }
    // Whole vectors, counted from the start of the block; what is not seen has no weight.
    let (from, to) = (seen.start / LANES * LANES, seen.end.next_multiple_of(LANES));
    scores[from..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..to].fill(f32::NEG_INFINITY);
    let (vectors, _) = scores[from..to].as_chunks_mut::<LANES>();
    let mut largest = [f32::NEG_INFINITY; LANES];
    for vector in vectors.iter_mut() {
        for (score, largest) in vector.iter_mut().zip(&mut largest) {
            *score *= scale;
            *largest = if *score > *largest { *score } else { *largest };
        }
    }
    let largest = largest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0f32; LANES];
    for vector in vectors.iter_mut() {
        for (score, sum) in vector.iter_mut().zip(&mut sums) {
            *score = exp(*score - largest);
            *sum += *score;
        }
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    (largest, sums[0])
}

/// Adds a run of values, each times its weight for a row, to the records of `R` rows.
///
/// # Safety
///
/// The processor has the instructions of `V`; values have `width` elements. Each row has a weight for each of the run.
#[inline(always)]
unsafe fn mix<V: Lanes, E: Stored, const R: usize>(
    weights: &[&[f32]; R],
    values: &Run<'_, E>,
    width: usize,
    records: &mut [f32],
) {
    let mut at = 0;
    // SAFETY: the caller's promise; each asks for `N` vectors that begin before `width`, all but the last with all of their lanes.
    unsafe {
        if V::WIDE == 4 {
            while at + 4 * V::LANES <= width {
                mix_some::<V, E, R, 4>(weights, values, width, records, at);
                at += 4 * V::LANES;
            }
        }
        while at + 2 * V::LANES <= width {
            mix_some::<V, E, R, 2>(weights, values, width, records, at);
            at += 2 * V::LANES;
        }
        while at < width {
            mix_some::<V, E, R, 1>(weights, values, width, records, at);
            at += V::LANES;
        }
    }
}

/// [`mix`] for elements `at..at + N · LANES`, or what there is of them.
///
/// # Safety
///
/// As there; and `at + (N - 1) · LANES < width`, with `N = 1` unless all lanes are there.
#[inline(always)]
unsafe fn mix_some<V: Lanes, E: Stored, const R: usize, const N: usize>(
    weights: &[&[f32]; R],
    values: &Run<'_, E>,
    width: usize,
    records: &mut [f32],
    at: usize,
) {
    let record = records.len() / R;
    assert!(at + N * V::LANES <= record && weights.iter().all(|row| row.len() >= values.rows));
    let left = width - at;
    let to = records.as_mut_ptr();
    let from = values.elements.as_ptr();
    // SAFETY: the assertion, for weights and records; the caller's promise for values: row `j` is there, and vector `n` of it begins
    // before `width`.
    unsafe {
        let mut sums = [[V::zero(); N]; R];
        for i in 0..R {
            for n in 0..N {
                sums[i][n] = V::f32(to.add(i * record + at + n * V::LANES));
            }
        }
        for j in 0..values.rows {
            let row = from.add(j * values.step + at);
            let mut v = [V::zero(); N];
            for n in 0..N {
                v[n] = match left < V::LANES {
                    true => E::load_part(row, left),
                    false => E::load(row.add(n * V::LANES)),
                };
            }
            for i in 0..R {
                let weight = V::splat(*weights[i].get_unchecked(j));
                for n in 0..N {
                    sums[i][n] = sums[i][n].fma(v[n], weight);
                }
            }
        }
        for i in 0..R {
            for n in 0..N {
                sums[i][n].store(to.add(i * record + at + n * V::LANES));
            }
        }
    }
}

/// Writes the results of a task to `y`.
///
/// # Safety
///
/// The processor has `isa`. `y` points to `[batch, tokens, heads, width]` elements, and nothing else reads or writes those of the task's text,
/// tokens and heads meanwhile.
pub(super) unsafe fn attend<E: Stored>(isa: Isa, job: &Job<'_, E>, task: &Task, y: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => x86::attend_avx512(job, task, y),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::attend_avx2(job, task, y),
            _ => job.attend::<crate::product::F32x4>(task, y),
        }
    }
}

/// Computes the records of one block of columns for a task.
///
/// # Safety
///
/// The processor has `isa`.
pub(super) unsafe fn block<E: Stored>(
    isa: Isa,
    job: &Job<'_, E>,
    task: &Task,
    block: usize,
    records: &mut [f32],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => x86::block_avx512(job, task, block, records),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::block_avx2(job, task, block, records),
            _ => job.block::<crate::product::F32x4>(task, block, records),
        }
    }
}

/// The same with instructions enabled; the loops are inlined.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Job, Stored, Task};
    use crate::product::{F32x8, F32x16};

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn attend_avx512<E: Stored>(job: &Job<'_, E>, task: &Task, y: *mut f32) {
        // SAFETY: the promises of `attend`, here and below.
        unsafe { job.attend::<F32x16>(task, y) }
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn block_avx512<E: Stored>(
        job: &Job<'_, E>,
        task: &Task,
        block: usize,
        records: &mut [f32],
    ) {
        // SAFETY: as above.
        unsafe { job.block::<F32x16>(task, block, records) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn attend_avx2<E: Stored>(job: &Job<'_, E>, task: &Task, y: *mut f32) {
        // SAFETY: as above.
        unsafe { job.attend::<F32x8>(task, y) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn block_avx2<E: Stored>(
        job: &Job<'_, E>,
        task: &Task,
        block: usize,
        records: &mut [f32],
    ) {
        // SAFETY: as above.
        unsafe { job.block::<F32x8>(task, block, records) }
    }
}
