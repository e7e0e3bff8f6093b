//! Attention of pixels to pixels or to a text, over slices: many queries, of which each sees all
//! keys.
//!
//! As [attention in general](super) in one pass over keys and values, without a tensor of scores.
//! Keys and values are first turned over, so that products are those of [matmuls of many
//! rows](crate::matmul); under [`ActivationDtype::Bf16`] they are of pairs of bf16 where the
//! processor multiplies such.
//!
//! # The contract
//!
//! The bits of a query's result depend on it, on the scale, on the keys and values of its picture
//! and head, in their order, on the [`Isa`] and the [`ActivationDtype`], **and on nothing else**:
//! keys are taken in blocks of [`BLOCK`]; a score takes the elements of a head in order, a sum of
//! values the keys of a block in order, and blocks are folded in order.
//!
//! # Accuracy
//!
//! In f32 that of [attention in general](super). Under [`ActivationDtype::Bf16`], with `s` as
//! there, queries, keys, values and the weights of values are rounded to bf16: the result is off by
//! at most `(4 e + 2⁻⁷) · m` more, with `e = 2⁻⁷ · s`, as long as `e` is small beside 1.

use std::ops::Range;

use super::BLOCK;
use crate::buffer;
use crate::cast::narrow_bf16;
use crate::exp::exp;
use crate::loops;
use crate::matmul::broadcast::{self, Broadcast, Seen, WIDTH, Word};
use crate::matmul::panel::{PanelSource, Pixels, Words, pack_panel, pack_pixels, pair};
use crate::matmul::{Claims, OutputPtr};
use crate::simd::{Vector, for_each_isa};
use crate::{ActivationDtype, Isa};

/// Queries that a task takes through the keys together.
const QUERIES: usize = 64;

/// The most lanes of a vector.
const LANES: usize = 16;

/// The sizes of one call: queries `[batch, tokens, heads, width]`, keys and values
/// `[batch, seen, heads, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelAttentionShape {
    /// Pictures side by side.
    pub batch: usize,
    /// Queries of each.
    pub tokens: usize,
    /// Keys of each.
    pub seen: usize,
    /// Heads of queries, keys and values.
    pub heads: usize,
    /// Elements of a head.
    pub width: usize,
}

impl PixelAttentionShape {
    /// An upper bound on the bytes that [`attend_pixels_into`] allocates on so many threads.
    pub fn scratch_bytes(&self, threads: usize) -> u64 {
        let all = |count: usize, of: usize| (count as u64).saturating_mul(of as u64);
        let keys = self.seen.next_multiple_of(BLOCK);
        let elements = all(keys, 2 * self.width.next_multiple_of(LANES));
        let packed = all(self.batch, self.heads).saturating_mul(elements);
        let worker = self.width.saturating_mul(2).saturating_add(BLOCK + 3 * LANES);
        packed.saturating_add(all(threads * QUERIES, worker)).saturating_mul(4).saturating_add(1024)
    }
}

/// Where what was packed of a head lies, in words.
#[derive(Clone, Copy)]
struct Layout {
    shape: PixelAttentionShape,
    words: Words,
    /// Words of a query or a key.
    depth: usize,
    /// Keys of a panel.
    panel: usize,
    /// Lanes of the vectors of values.
    lanes: usize,
    /// Words of all keys of a head, and of all values.
    keys: usize,
    values: usize,
}

impl Layout {
    fn new(isa: Isa, words: Words, shape: PixelAttentionShape) -> Self {
        let lanes = lanes(isa);
        let (depth, blocks) = (words.count(shape.width), shape.seen.div_ceil(BLOCK));
        let vectors = shape.width.div_ceil(lanes);
        Self {
            shape,
            words,
            depth,
            panel: WIDTH * lanes,
            lanes,
            keys: blocks * BLOCK * depth,
            values: blocks * words.count(BLOCK) * vectors * lanes,
        }
    }

    fn vectors(&self) -> usize {
        self.shape.width.div_ceil(self.lanes)
    }

    /// The vectors of values, those that are summed side by side together.
    fn groups(self) -> impl Iterator<Item = Range<usize>> {
        let vectors = self.vectors();
        // Of an odd number, three are first.
        let odd = if vectors % 2 == 1 { vectors.min(3) } else { 0 };
        let rest = (odd..vectors).step_by(2).map(|start| start..start + 2);
        (odd > 0).then_some(0..odd).into_iter().chain(rest)
    }
}

for_each_isa! {
    fn lanes<V>() -> usize {
        V::LANES
    }
}

/// Writes, for each query, the mixture of its picture's values to `y`, row-major without gaps, as
/// the queries; scores are multiplied by `scale` before their softmax.
///
/// # Panics
///
/// If sizes do not fit each other, or if this processor does not have `isa`.
pub fn attend_pixels_into(
    isa: Isa,
    compute: ActivationDtype,
    [queries, keys, values]: [&[f32]; 3],
    shape: PixelAttentionShape,
    scale: f32,
    y: &mut [f32],
) {
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    let PixelAttentionShape { batch, tokens, seen, heads, width } = shape;
    let len = |rows: usize| [batch, rows, heads, width].into_iter().try_fold(1, usize::checked_mul);
    assert_eq!(Some(queries.len()), len(tokens), "queries must fill {shape:?}");
    assert_eq!(Some(y.len()), len(tokens), "y must fill {shape:?}");
    assert_eq!([Some(keys.len()), Some(values.len())], [len(seen); 2], "keys must fill {shape:?}");
    if keys.is_empty() || y.is_empty() {
        return y.fill(0.0);
    }
    let words = match Words::of(isa, compute) {
        Words::Tiles => Words::Pairs,
        words => words,
    };
    let layout = Layout::new(isa, words, shape);
    let of_head = layout.keys + layout.values;
    let mut packed = buffer::take(batch * heads * of_head);
    loops::share(packed.words().chunks_exact_mut(of_head).enumerate(), |(index, to)| {
        let first = index / heads * seen * heads * width + index % heads * width;
        let (to_keys, to_values) = to.split_at_mut(layout.keys);
        pack_keys(isa, &layout, &keys[first..], to_keys);
        pack_values(isa, &layout, &values[first..], to_values);
    });
    let packed: &[Word] = packed.words();
    let groups = tokens.div_ceil(QUERIES);
    let claims = Claims::of(batch * heads * groups, crate::threads());
    let output = OutputPtr(y.as_mut_ptr());
    claims.share(|run| {
        let mut worker = Worker::new(&layout);
        for task in run {
            let (index, group) = (task / groups, task % groups);
            let (first, end) = (group * QUERIES, tokens.min((group + 1) * QUERIES));
            let begin = ((index / heads * tokens + first) * heads + index % heads) * width;
            let task = Task {
                queries: &queries[begin..],
                count: end - first,
                packed: &packed[index * of_head..(index + 1) * of_head],
                scale,
                y: output.column(begin),
            };
            // SAFETY: the assertions: the processor has the instructions, and the slices have the
            // lengths that the shape asks for; no two tasks have a query and a head in common.
            unsafe {
                match words {
                    #[cfg(target_arch = "x86_64")]
                    Words::Pairs => pairs(&layout, &task, &mut worker),
                    _ => singles(isa, &layout, &task, &mut worker),
                }
            }
        }
    });
}

/// Turns the keys of a head over, panel by panel: `[depth, panel]` each. Keys that there are none
/// of are zero.
fn pack_keys(isa: Isa, layout: &Layout, keys: &[f32], to: &mut [Word]) {
    let PixelAttentionShape { seen, heads, width, .. } = layout.shape;
    let (row, channels) = (heads * width, 0..width);
    for (first, to) in
        (0..).step_by(layout.panel).zip(to.chunks_exact_mut(layout.panel * layout.depth))
    {
        if first >= seen {
            return to.fill(0);
        }
        let (weight, rows) = (&keys[first * row..], layout.panel.min(seen - first));
        let source = PanelSource { weight, rows, row, side: 1, channels: channels.clone() };
        // SAFETY: the caller saw that the processor has the instructions.
        unsafe { pack_panel(isa, layout.words, &source, to) };
    }
}

for_each_isa! {
    /// Writes the values of a head, block by block of keys, in each group by group of vectors:
    /// `[words of keys, lanes of the group]` each. What there is none of is zero.
    fn pack_values<V>(layout: &Layout, values: &[f32], to: &mut [Word]) {
        let PixelAttentionShape { seen, heads, width, .. } = layout.shape;
        let (words, depth) = (layout.words, layout.words.count(BLOCK));
        let lanes = layout.lanes;
        let blocks = to.chunks_exact_mut(depth * layout.vectors() * lanes);
        for (first, to) in (0..seen).step_by(BLOCK).zip(blocks) {
            let row = |key: usize| match first + key < seen {
                true => &values[(first + key) * heads * width..][..width],
                false => &[],
            };
            for group in layout.groups() {
                let columns = group.start * lanes..group.end * lanes;
                let to = &mut to[group.start * lanes * depth..group.end * lanes * depth];
                for (word, to) in to.chunks_exact_mut(columns.len()).enumerate() {
                    let of = |key: usize| {
                        let row = row(key);
                        &row[columns.start.min(row.len())..columns.end.min(row.len())]
                    };
                    to.fill(0);
                    if words == Words::Pairs {
                        let (low, high) = (of(2 * word), of(2 * word + 1));
                        match low.len() == high.len() {
                            true => to.iter_mut().zip(low).zip(high).for_each(|((to, low), high)| {
                                *to = pair(*low, *high);
                            }),
                            false => to.iter_mut().zip(low).for_each(|(to, low)| *to = pair(*low, 0.0)),
                        }
                    } else {
                        to.iter_mut().zip(of(word)).for_each(|(to, value)| *to = value.to_bits());
                    }
                }
            }
        }
    }
}

/// Some queries of a head.
struct Task<'a> {
    /// From the first on; the next one is a row further.
    queries: &'a [f32],
    count: usize,
    /// Keys and values of the head.
    packed: &'a [Word],
    scale: f32,
    y: *mut f32,
}

/// Memory for a task.
struct Worker {
    /// Tile by tile of queries: `[depth, rows]` words each.
    queries: Vec<Word>,
    /// `[rows, BLOCK]`.
    scores: Vec<f32>,
    /// Those as words: `[rows, words of BLOCK]`.
    weights: Vec<Word>,
    /// Of each query: its sums of values, padded to whole vectors.
    sums: Vec<f32>,
    /// Of each query: its largest score so far, and the sum of its weights.
    totals: [[f32; 2]; QUERIES],
}

impl Worker {
    fn new(layout: &Layout) -> Self {
        Self {
            queries: vec![0; QUERIES * layout.depth],
            scores: vec![0.0; MAX_ROWS * BLOCK],
            weights: vec![0; MAX_ROWS * BLOCK],
            sums: vec![0.0; QUERIES * layout.vectors() * layout.lanes],
            totals: [[0.0; 2]; QUERIES],
        }
    }
}

/// The most rows of a tile of queries.
const MAX_ROWS: usize = 8;

for_each_isa! {
    /// # Safety
    ///
    /// That of [`attend`].
    unsafe fn singles<V>(layout: &Layout, task: &Task<'_>, worker: &mut Worker) {
        // SAFETY: the caller's promises.
        unsafe {
            match V::LANES {
                16 => attend::<broadcast::Singles<V>, MAX_ROWS, BLOCK>(Isa::Avx512, layout, task, worker),
                8 => attend::<broadcast::Singles<V>, 4, BLOCK>(Isa::Avx2, layout, task, worker),
                _ => attend::<broadcast::Singles<V>, 4, BLOCK>(Isa::Portable, layout, task, worker),
            }
        }
    }
}

/// # Safety
///
/// That of [`attend`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn pairs(layout: &Layout, task: &Task<'_>, worker: &mut Worker) {
    // SAFETY: the caller's promises.
    unsafe {
        attend::<broadcast::Pairs, MAX_ROWS, { BLOCK / 2 }>(Isa::Avx512Bf16, layout, task, worker)
    }
}

/// Attends for the queries of a task, `ROWS` at a time; a row of weights has `ROW` words.
///
/// # Safety
///
/// The processor has the instructions of `K` and of `isa`; what is packed is so for them; the
/// queries are there, and nothing else reads or writes their results.
#[inline(always)]
unsafe fn attend<K: Broadcast, const ROWS: usize, const ROW: usize>(
    isa: Isa,
    layout: &Layout,
    task: &Task<'_>,
    worker: &mut Worker,
) {
    let Layout { shape, words, depth, panel, lanes, .. } = *layout;
    let PixelAttentionShape { seen, heads, width, .. } = shape;
    let padded = layout.vectors() * lanes;
    let (keys, values) = task.packed.split_at(layout.keys);
    worker.sums.fill(0.0);
    worker.totals.fill([f32::NEG_INFINITY, 0.0]);
    let tiles = || (0..task.count).step_by(ROWS);
    for first in tiles() {
        let count = ROWS.min(task.count - first);
        let queries = Pixels {
            values: &task.queries[first * heads * width..],
            count,
            step: heads * width,
            channels: width,
            start: 0,
            slots: ROWS,
        };
        pack_pixels(isa, words, &queries, &mut worker.queries[first * depth..][..ROWS * depth]);
    }
    for (block, start) in (0..seen).step_by(BLOCK).enumerate() {
        let count = BLOCK.min(seen - start);
        let keys = &keys[block * BLOCK * depth..][..BLOCK * depth];
        let values = &values[block * words.count(BLOCK) * padded..][..words.count(BLOCK) * padded];
        for first in tiles() {
            let queries = &worker.queries[first * depth..][..ROWS * depth];
            let seen = Seen { line: 0, depth, word: ROWS, taps: [0] };
            for (number, keys) in keys.chunks_exact(panel * depth).enumerate() {
                if number * panel >= count {
                    break;
                }
                // SAFETY: the queries of a tile and a panel of keys have `depth` words each; a row
                // of scores has room for all panels of a block.
                unsafe {
                    let sums = broadcast::sums::<K, ROWS, WIDTH, 1, 1>(
                        queries.as_ptr(),
                        seen,
                        keys.as_ptr(),
                    );
                    for (row, sums) in sums.into_iter().enumerate() {
                        let to = worker.scores.as_mut_ptr().add(row * BLOCK + number * panel);
                        for (vector, sum) in sums.into_iter().enumerate() {
                            sum.store(to.add(vector * lanes));
                        }
                    }
                }
            }
            let mut faded = [0.0; ROWS];
            let rows = worker.scores.chunks_exact_mut(BLOCK).zip(&mut worker.totals[first..]);
            let rows = rows.zip(worker.weights.chunks_exact_mut(ROW)).zip(&mut faded);
            for (((scores, totals), weights), faded) in rows.take(ROWS) {
                *faded = soften(&mut scores[..count], task.scale, totals);
                weigh(words, &mut *scores, count, weights);
            }
            let seen = Seen { line: 0, depth: words.count(count), word: 1, taps: [0] };
            for group in layout.groups() {
                let values = values[group.start * lanes * words.count(BLOCK)..].as_ptr();
                let sums = worker.sums[first * padded + group.start * lanes..].as_mut_ptr();
                let weights = worker.weights.as_ptr();
                // SAFETY: a tile of weights has `ROWS` rows of `ROW` words, a group of values as
                // many words of each lane, and each row of sums the lanes of all groups.
                unsafe {
                    match group.len() {
                        1 => add::<K, ROWS, 1, ROW>(weights, seen, values, (sums, padded), faded),
                        2 => add::<K, ROWS, 2, ROW>(weights, seen, values, (sums, padded), faded),
                        _ => add::<K, ROWS, 3, ROW>(weights, seen, values, (sums, padded), faded),
                    }
                }
            }
        }
    }
    for (query, sums) in worker.sums.chunks_exact(padded).take(task.count).enumerate() {
        let [_, sum] = worker.totals[query];
        for (element, value) in sums[..width].iter().enumerate() {
            // SAFETY: the results of these queries are the caller's alone.
            unsafe { task.y.add(query * heads * width + element).write(value / sum) };
        }
    }
}

/// Turns scores of a block into weights: `exp` of what each, scaled, is below the largest so far.
/// Gives what the sums so far are to be multiplied by.
#[inline(always)]
fn soften(scores: &mut [f32], scale: f32, totals: &mut [f32; 2]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut most = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = scores.as_chunks::<LANES>();
    for scores in whole {
        for (most, score) in most.iter_mut().zip(scores) {
            *most = larger(*score * scale, *most);
        }
    }
    let most = rest.iter().map(|score| score * scale).chain(most).fold(totals[0], larger);
    let mut sums = [0.0; LANES];
    let (whole, rest) = scores.as_chunks_mut::<LANES>();
    for scores in whole {
        for (sum, score) in sums.iter_mut().zip(scores) {
            *score = exp(*score * scale - most);
            *sum += *score;
        }
    }
    for (sum, score) in sums.iter_mut().zip(rest) {
        *score = exp(*score * scale - most);
        *sum += *score;
    }
    let faded = exp(totals[0] - most);
    *totals = [most, totals[1] * faded + sums.iter().sum::<f32>()];
    faded
}

/// Writes weights as words; those of keys that there are none of are zero.
#[inline(always)]
fn weigh(words: Words, weights: &mut [f32], count: usize, to: &mut [Word]) {
    weights[count..].fill(0.0);
    match words {
        Words::Pairs => {
            for (to, [low, high]) in to.iter_mut().zip(weights.as_chunks().0) {
                *to = pair(*low, *high);
            }
        }
        Words::Rounded => {
            for (to, weight) in to.iter_mut().zip(weights) {
                *to = Word::from(narrow_bf16(*weight)) << 16;
            }
        }
        _ => {
            for (to, weight) in to.iter_mut().zip(weights) {
                *to = weight.to_bits();
            }
        }
    }
}

/// Adds values, each times its weight, to sums that are multiplied by `faded` first.
///
/// # Safety
///
/// The processor has the instructions of `K`; weights, values and rows of sums are there.
#[inline(always)]
unsafe fn add<K: Broadcast, const ROWS: usize, const WIDTH: usize, const ROW: usize>(
    weights: *const Word,
    seen: Seen<1, ROW>,
    values: *const Word,
    (to, row): (*mut f32, usize),
    faded: [f32; ROWS],
) {
    let lanes = <K::Sum as Vector>::LANES;
    // SAFETY: the caller's promises.
    unsafe {
        let sums = broadcast::sums::<K, ROWS, WIDTH, 1, ROW>(weights, seen, values);
        for (at, (sums, faded)) in sums.into_iter().zip(faded).enumerate() {
            let faded = K::Sum::splat(faded);
            for (vector, sum) in sums.into_iter().enumerate() {
                let to = to.add(at * row + vector * lanes);
                sum.fma(K::Sum::f32(to), faded).store(to);
            }
        }
    }
}
