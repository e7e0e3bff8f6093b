//! Attention in tiles of bf16, where the processor multiplies such.
//!
//! Tasks, blocks, biases, the softmax and folding are those of [attention in general](super).
//! Queries, keys, values and the weights of values are cut in three parts, or rounded, as
//! activations of [matmuls in tiles](crate::matmul) are, and multiplied as there, 32 elements of a
//! head or 32 columns of a block at a time, counted from its first. Of the nine products of three
//! parts the six largest are made.
//!
//! | operand | rows | of | first or second |
//! |---|---|---|---|
//! | keys | a key each | elements | first, to |
//! | queries | a pair of elements each | 16 queries | second: scores `[keys, 16]` as the softmax takes them |
//! | weights | a query each | keys | first, to |
//! | values | a pair of keys each | elements | second: sums `[queries, elements]` |
//!
//! Columns that a row does not see have no weight. No weight times what is not finite would be no
//! number, so a row that comes to such is summed again with what it sees alone.

#![allow(
    clippy::needless_range_loop,
    reason = "parts are counted, and closures are called where they are not compiled for the processor"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::inputs::{AttentionInputs, Task};
use super::softmax::softmax_in_vectors;
use super::{BLOCK, KvElement};
use crate::ActivationDtype;
use crate::buffer::{self, Buffer};
use crate::matmul::{TileProducts, TileRows, TileSums, cut};
use crate::simd::{F32x16, Vector, transposed};

/// Queries of a tile, lanes of a vector.
const LANES: usize = TileProducts::COLUMNS;

/// Tiles of queries that go through a block together.
const TILES: usize = 2;

/// Rows that go through a block together.
const ROWS: usize = TILES * LANES;

/// Columns, or elements of a head, that are multiplied at once.
const STEP: usize = TileProducts::STEP;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Elements of a score tile's rows: all columns of a block.
const SCORES: usize = BLOCK * LANES;

/// Where the keys and values of a block's columns are; nowhere if no row of the task sees them.
struct Columns<E> {
    keys: [*const E; BLOCK],
    values: [*const E; BLOCK],
    /// Those that any row sees.
    seen: Range<usize>,
    /// Bytes from a key to the one a block further.
    next_block: usize,
}

/// A task's rows, and memory to work in.
#[derive(Debug)]
pub(super) struct TileWorker<'a, E> {
    inputs: &'a AttentionInputs<'a, E>,
    task: Option<&'a Task>,
    /// Of each part, tile by tile of queries: `[pairs of elements, 16]` pairs each.
    queries: Buffer,
    /// `[parts, BLOCK, elements]`, rows of whole steps.
    keys: Buffer,
    /// `[parts, pairs of columns, elements]` pairs.
    values: Buffer,
    /// `[TILES, BLOCK, 16]`.
    scores: Buffer,
    /// `[parts, ROWS, BLOCK]`.
    weights: Buffer,
    /// `[ROWS, elements]`, rows of whole vectors.
    sums: Buffer,
}

/// Elements of f32 that a [`TileWorker`] takes, for tasks of so many rows.
pub(super) fn elements(compute: ActivationDtype, rows: usize, width: usize) -> usize {
    sizes(compute, rows, width).into_iter().fold(0, |all, size| all.saturating_add(size + LANES))
}

/// Elements of f32, or pairs of bf16, of each piece of memory.
fn sizes(compute: ActivationDtype, rows: usize, width: usize) -> [usize; 6] {
    let parts = compute.parts();
    let (depth, padded) = (width.next_multiple_of(STEP), width.next_multiple_of(LANES));
    [
        (parts * rows.next_multiple_of(LANES)).saturating_mul(depth / 2),
        (parts * BLOCK / 2).saturating_mul(depth),
        (parts * BLOCK / 2).saturating_mul(padded),
        TILES * SCORES,
        parts * ROWS * BLOCK / 2,
        padded.saturating_mul(ROWS),
    ]
}

impl<'a, E: KvElement> TileWorker<'a, E> {
    /// For tasks of up to so many rows.
    pub(super) fn new(inputs: &'a AttentionInputs<'a, E>, rows: usize) -> Self {
        let [queries, keys, values, scores, weights, sums] =
            sizes(inputs.compute, rows, inputs.shape.width).map(buffer::take);
        Self { inputs, task: None, queries, keys, values, scores, weights, sums }
    }

    /// Elements of a row of queries and keys.
    fn depth(&self) -> usize {
        self.inputs.shape.width.next_multiple_of(STEP)
    }

    /// Elements of a row of values.
    fn padded(&self) -> usize {
        self.inputs.shape.width.next_multiple_of(LANES)
    }

    /// What comes of one block of columns: a partial for each row of the task.
    ///
    /// # Safety
    ///
    /// [`Isa::AmxBf16`](crate::Isa::AmxBf16) is available.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
    pub(super) unsafe fn block(&mut self, task: &'a Task, block: usize, partials: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.inputs.compute.parts() {
                1 => self.block_of::<1>(task, block, partials),
                _ => self.block_of::<3>(task, block, partials),
            }
        }
    }

    /// The same for a known number of parts.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    unsafe fn block_of<const PARTS: usize>(
        &mut self,
        task: &'a Task,
        block: usize,
        partials: &mut [f32],
    ) {
        let (rows, partial) = (self.inputs.rows(task), self.inputs.partial_len());
        let partials = &mut partials[..rows * partial];
        partials.fill(0.0);
        let columns = self.columns(task, block);
        if columns.seen.is_empty() {
            return;
        }
        // SAFETY: the caller's promise; nothing below uses tiles but through this.
        let products = unsafe {
            if !self.task.is_some_and(|packed| std::ptr::eq(packed, task)) {
                self.pack_queries::<PARTS>(task);
            }
            self.pack_keys::<PARTS>(&columns);
            self.pack_values::<PARTS>(&columns, &columns.seen);
            TileProducts::begin()
        };
        for first in (0..rows).step_by(ROWS) {
            let rows = first..rows.min(first + ROWS);
            let partials = &mut partials[rows.start * partial..rows.end * partial];
            // SAFETY: the caller's promise; all is packed.
            unsafe { self.rows::<PARTS>(&products, (task, block), rows, &columns, partials) };
        }
    }

    /// Attends for up to [`ROWS`] rows of a task.
    ///
    /// # Safety
    ///
    /// As for [`block`](Self::block); queries, keys and values are packed.
    #[inline(always)]
    unsafe fn rows<const PARTS: usize>(
        &mut self,
        products: &TileProducts,
        (task, block): (&Task, usize),
        rows: Range<usize>,
        columns: &Columns<E>,
        partials: &mut [f32],
    ) {
        let (inputs, padded, partial) = (self.inputs, self.padded(), self.inputs.partial_len());
        let seen = inputs.seen_of_block(task, rows.clone(), block);
        if seen.is_empty() {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { self.score::<PARTS>(products, rows.clone(), &seen) };
        let steps = seen.start / STEP * STEP..seen.end.next_multiple_of(STEP);
        for (tile, first) in rows.clone().step_by(LANES).enumerate() {
            let rows = first..rows.end.min(first + LANES);
            let scores = &mut self.scores[tile * SCORES..][..SCORES];
            let seen = inputs.seen_of_block(task, rows.clone(), block);
            if seen.is_empty() {
                // Whatever their weights come to counts for nothing.
                continue;
            }
            inputs.cap_and_add_biases((task, block), rows.clone(), seen.clone(), LANES, scores);
            let mut each: [Range<usize>; LANES] = std::array::from_fn(|_| 0..0);
            for (each, row) in each.iter_mut().zip(rows.clone()) {
                *each = inputs.seen_of_block(task, row..row + 1, block);
            }
            // SAFETY: the caller's promise.
            let totals = unsafe { softmax_in_vectors(scores, &each[..rows.len()], inputs.scale) };
            let own = &mut partials[tile * LANES * partial..];
            for (partial, totals) in own.chunks_exact_mut(partial).zip(totals).take(rows.len()) {
                totals.write(partial);
            }
            scores[steps.start * LANES..seen.start * LANES].fill(0.0);
            scores[seen.end * LANES..steps.end * LANES].fill(0.0);
            // SAFETY: the caller's promise.
            unsafe { self.weigh::<PARTS>(tile, &steps) };
        }
        // SAFETY: the caller's promise; weights of these steps are there.
        unsafe { self.sum::<PARTS>(products, rows.len(), &steps) };
        let mut spoiled = 0u32;
        for (index, partial) in partials.chunks_exact_mut(partial).enumerate() {
            spoiled |=
                u32::from(copy_sums(&self.sums[index * padded..][..padded], partial)) << index;
        }
        if spoiled == 0 {
            return;
        }
        for (index, row) in rows.clone().enumerate().filter(|(index, _)| spoiled >> index & 1 == 1)
        {
            let own = inputs.seen_of_block(task, row..row + 1, block);
            if own != columns.seen {
                // SAFETY: as above.
                unsafe {
                    self.pack_values::<PARTS>(columns, &own);
                    self.sum::<PARTS>(products, rows.len(), &steps);
                }
                copy_sums(&self.sums[index * padded..][..padded], &mut partials[index * partial..]);
            }
        }
        // SAFETY: as above.
        unsafe { self.pack_values::<PARTS>(columns, &columns.seen) };
    }

    /// Where the columns of a block are.
    fn columns(&self, task: &Task, block: usize) -> Columns<E> {
        let seen = self.inputs.seen_of_block(task, 0..self.inputs.rows(task), block);
        let nowhere = [std::ptr::null(); BLOCK];
        let mut columns =
            Columns { keys: nowhere, values: nowhere, seen: seen.clone(), next_block: 0 };
        for run in self.inputs.runs(task, block, seen) {
            columns.next_block = BLOCK * run.keys.step * size_of::<E>();
            for row in 0..run.keys.rows {
                columns.keys[run.column + row] = run.keys.elements[row * run.keys.step..].as_ptr();
                columns.values[run.column + row] =
                    run.values.elements[row * run.values.step..].as_ptr();
            }
        }
        columns
    }

    /// Puts a task's queries side by side, pair by pair of elements.
    ///
    /// # Safety
    ///
    /// That of [`block`](Self::block).
    #[inline(always)]
    unsafe fn pack_queries<const PARTS: usize>(&mut self, task: &'a Task) {
        let (rows, depth, width) = (self.inputs.rows(task), self.depth(), self.inputs.shape.width);
        let all = self.queries.len() / PARTS;
        // SAFETY: the caller's promise.
        let nothing = unsafe { _mm512_setzero_si512() };
        for first in (0..rows).step_by(LANES) {
            for at in (0..depth).step_by(STEP) {
                let mut parts = [[nothing; LANES]; PARTS];
                for (lane, row) in (first..rows.min(first + LANES)).enumerate() {
                    // SAFETY: the caller's promise; a query has `width` elements.
                    let cut: [_; PARTS] =
                        unsafe { step(self.inputs.query(task, row).as_ptr(), at, width) };
                    for part in 0..PARTS {
                        parts[part][lane] = cut[part];
                    }
                }
                for part in 0..PARTS {
                    let to = part * all + first * (depth / 2) + at / 2 * LANES;
                    let to = &mut self.queries[to..][..LANES * LANES];
                    // SAFETY: the caller's promise; the slice has room for sixteen vectors.
                    unsafe { store_all(transposed(parts[part]), to, LANES) };
                }
            }
        }
        self.task = Some(task);
    }

    /// Rounds the keys that any row sees, and fetches their values.
    ///
    /// # Safety
    ///
    /// That of [`block`](Self::block).
    #[inline(always)]
    unsafe fn pack_keys<const PARTS: usize>(&mut self, columns: &Columns<E>) {
        let (depth, width) = (self.depth(), self.inputs.shape.width);
        for column in columns.seen.clone() {
            fetch(columns.values[column], width, 0);
            for at in (0..depth).step_by(STEP) {
                // SAFETY: the caller's promise; what is seen is held, in rows of `width`; each
                // slice is one vector.
                unsafe {
                    let parts: [_; PARTS] = step(columns.keys[column], at, width);
                    for (part, pairs) in parts.into_iter().enumerate() {
                        let to = (part * BLOCK + column) * (depth / 2) + at / 2;
                        store_all([pairs], &mut self.keys[to..][..LANES], LANES);
                    }
                }
            }
        }
    }

    /// Puts the values at some of the columns that are seen side by side, pair by pair of columns,
    /// and zeros at all others of the same steps as any that are seen. Meanwhile fetches keys of
    /// the next block.
    ///
    /// # Safety
    ///
    /// That of [`block`](Self::block).
    #[inline(always)]
    unsafe fn pack_values<const PARTS: usize>(
        &mut self,
        columns: &Columns<E>,
        some: &Range<usize>,
    ) {
        let (padded, width) = (self.padded(), self.inputs.shape.width);
        let steps = columns.seen.start / STEP * STEP..columns.seen.end.next_multiple_of(STEP);
        for column in steps.step_by(2) {
            let [low, high] = [column, column + 1].map(|column| match some.contains(&column) {
                true => columns.values[column],
                false => std::ptr::null(),
            });
            for column in [column, column + 1] {
                if !columns.keys[column].is_null() {
                    fetch(columns.keys[column], width, columns.next_block);
                }
            }
            for at in (0..padded).step_by(LANES) {
                // SAFETY: the caller's promise; what is seen is held, in rows of `width`; each
                // slice is one vector.
                unsafe {
                    let parts: [_; PARTS] =
                        side_by_side(vector(low, at, width), vector(high, at, width));
                    for (part, pairs) in parts.into_iter().enumerate() {
                        let to = (part * BLOCK / 2 + column / 2) * padded + at;
                        store_all([pairs], &mut self.values[to..][..LANES], LANES);
                    }
                }
            }
        }
    }

    /// Multiplies the keys at some columns by the queries of some rows.
    ///
    /// # Safety
    ///
    /// As for [`rows`](Self::rows).
    #[inline(always)]
    unsafe fn score<const PARTS: usize>(
        &mut self,
        products: &TileProducts,
        rows: Range<usize>,
        seen: &Range<usize>,
    ) {
        let depth = self.depth();
        let tiles = seen.start / TileProducts::ROWS..seen.end.div_ceil(TileProducts::ROWS);
        let first = tiles.start * TileProducts::ROWS;
        let keys = TileRows {
            from: self.keys[first * (depth / 2)..].as_ptr().cast(),
            row_bytes: depth * size_of::<bf16>(),
            tile: TileProducts::ROWS * depth,
            step: STEP,
            part: BLOCK * depth,
        };
        let queries = TileRows {
            from: self.queries[rows.start * (depth / 2)..].as_ptr().cast(),
            row_bytes: LANES * size_of::<[bf16; 2]>(),
            tile: LANES * depth,
            step: LANES * STEP,
            part: 2 * (self.queries.len() / PARTS),
        };
        let scores = TileSums {
            to: self.scores[first * LANES..].as_mut_ptr(),
            row_bytes: LANES * size_of::<f32>(),
            down: TileProducts::ROWS * LANES,
            right: SCORES,
        };
        let size = [tiles.len(), rows.len().div_ceil(LANES)];
        // SAFETY: there are whole tiles of keys in a block, of queries, and room for their scores.
        unsafe { products.multiply::<PARTS>(keys, queries, size, depth / STEP, scores) };
    }

    /// Turns the weights of a tile of queries over, from a column each to a query each, for the
    /// columns of whole steps.
    ///
    /// # Safety
    ///
    /// As for [`rows`](Self::rows).
    #[inline(always)]
    unsafe fn weigh<const PARTS: usize>(&mut self, tile: usize, steps: &Range<usize>) {
        for step in steps.clone().step_by(STEP) {
            let scores = &self.scores[tile * SCORES + step * LANES..][..STEP * LANES];
            // SAFETY: the caller's promise; there are sixteen pairs of vectors of scores, and room
            // for as many pairs of weights in the row of each query.
            unsafe {
                let mut parts = [[_mm512_setzero_si512(); LANES]; PARTS];
                for pair in 0..LANES {
                    let scores = scores.as_ptr().add(pair * 2 * LANES);
                    let cut: [_; PARTS] =
                        side_by_side(_mm512_loadu_ps(scores), _mm512_loadu_ps(scores.add(LANES)));
                    for part in 0..PARTS {
                        parts[part][pair] = cut[part];
                    }
                }
                for part in 0..PARTS {
                    let to = (part * ROWS + tile * LANES) * (BLOCK / 2) + step / 2;
                    let to = &mut self.weights[to..][..(LANES - 1) * (BLOCK / 2) + STEP / 2];
                    store_all(transposed(parts[part]), to, BLOCK / 2);
                }
            }
        }
    }

    /// Sums values at the columns of whole steps, each times its weights for so many rows.
    ///
    /// # Safety
    ///
    /// As for [`rows`](Self::rows), with weights of these steps.
    #[inline(always)]
    unsafe fn sum<const PARTS: usize>(
        &mut self,
        products: &TileProducts,
        rows: usize,
        steps: &Range<usize>,
    ) {
        let padded = self.padded();
        let weights = TileRows {
            from: self.weights[steps.start / 2..].as_ptr().cast(),
            row_bytes: BLOCK * size_of::<bf16>(),
            tile: LANES * BLOCK,
            step: STEP,
            part: ROWS * BLOCK,
        };
        let values = TileRows {
            from: self.values[steps.start / 2 * padded..].as_ptr().cast(),
            row_bytes: padded * size_of::<[bf16; 2]>(),
            tile: 2 * LANES,
            step: STEP * padded,
            part: BLOCK * padded,
        };
        let sums = TileSums {
            to: self.sums.as_mut_ptr(),
            row_bytes: padded * size_of::<f32>(),
            down: LANES * padded,
            right: LANES,
        };
        let size = [rows.div_ceil(LANES), padded / LANES];
        // SAFETY: there are weights of two tiles of rows, values of these steps, and room for sums.
        unsafe { products.multiply::<PARTS>(weights, values, size, steps.len() / STEP, sums) };
    }
}

/// Fetches a row of `width` elements, so many bytes further, into the cache.
#[inline(always)]
fn fetch<E>(row: *const E, width: usize, further: usize) {
    for line in (0..width * size_of::<E>()).step_by(LINE) {
        F32x16::prefetch(row.cast::<u8>().wrapping_add(further + line));
    }
}

/// Parts of thirty-two elements of a row of `width` from `at` on; zeros beyond its end, and if it
/// is nowhere.
///
/// # Safety
///
/// The processor has AVX-512 with bf16, and the row, if there is one, has `width` elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn step<E: KvElement, const PARTS: usize>(
    row: *const E,
    at: usize,
    width: usize,
) -> [__m512i; PARTS] {
    // SAFETY: the caller's promises.
    unsafe { cut(vector(row, at, width), vector(row, at + LANES, width)) }
}

/// Sixteen elements of a row of `width` from `at` on; zeros beyond its end, and if it is nowhere.
///
/// # Safety
///
/// The processor has AVX-512, and the row, if there is one, has `width` elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn vector<E: KvElement>(row: *const E, at: usize, width: usize) -> __m512 {
    if row.is_null() || at >= width {
        return _mm512_setzero_ps();
    }
    // SAFETY: the caller's promises: there is an element at `at`, and `LANES` or what is left.
    let F32x16(vector) = unsafe {
        match width - at {
            LANES.. => E::load::<F32x16>(row.add(at)),
            left => E::load_part::<F32x16>(row.add(at), left),
        }
    };
    vector
}

/// Parts of two vectors, each lane of `low` beside that of `high`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn side_by_side<const PARTS: usize>(low: __m512, high: __m512) -> [__m512i; PARTS] {
    let order = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
        19, 3, 18, 2, 17, 1, 16, 0,
    );
    let mut parts: [_; PARTS] = cut(low, high);
    for part in &mut parts {
        *part = _mm512_permutexvar_epi16(order, *part);
    }
    parts
}

/// Stores vectors so many elements apart.
///
/// # Safety
///
/// The processor has AVX-512, and `to` has room for them.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_all<const N: usize>(vectors: [__m512i; N], to: &mut [f32], apart: usize) {
    debug_assert!(to.len() >= (N - 1) * apart + LANES);
    for (index, vector) in vectors.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().add(index * apart).cast(), vector) };
    }
}

/// Copies sums to a partial; says whether any is not a number. What is zero is so without a sign,
/// which might be that of what is not seen.
#[inline(always)]
fn copy_sums(sums: &[f32], partial: &mut [f32]) -> bool {
    let mut is_nan = false;
    for (to, sum) in partial.iter_mut().zip(sums) {
        *to = sum + 0.0;
        is_nan |= sum.is_nan();
    }
    is_nan
}
