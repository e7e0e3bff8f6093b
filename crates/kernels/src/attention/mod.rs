//! Attention over keys and values as a cache stores them, over slices.
//!
//! Scaled dot products, their softmax and the weighted sum of values in one pass over keys and
//! values ([Milakov and Gimelshein, 2018](https://arxiv.org/abs/1805.02867); [Dao et al.,
//! 2022](https://arxiv.org/abs/2205.14135)): no tensor of scores exists. All arithmetic is f32;
//! keys and values are widened exactly as they are read. Where the processor has tiles of bf16
//! ([`Isa::AmxBf16`]), products are of those: queries, keys, values and the weights of values are
//! cut in three parts, or under [`ActivationDtype::Bf16`] rounded; all else is f32 still. What sees
//! a key or value that is infinite may then come to no number.
//!
//! # The contract
//!
//! The bits of a token's result depend on its query, on the scale and the soft cap, on the keys and
//! values that it sees, on how many columns of its sequence come before the first of them, on
//! [`Alibi`], [`RelativeBias`] and its head's sink, on the [`Isa`] and the
//! [`ActivationDtype`], **and on nothing else**: not on other tokens or sequences of the pass, nor
//! on how a sequence is cut into passes, padded, or laid out in the cache, nor on the type they are
//! stored in if it holds them exactly, nor on the number of threads.
//!
//! It holds by construction: the columns of a sequence are taken in blocks of [`BLOCK`], counted
//! from its first token. Of each block come a largest score, a sum and a weighted sum of values,
//! from nothing, and they are folded together in order of the columns. Within a block, each dot
//! product takes the elements of a head in order, each element of the sum of values the columns in
//! order, and weights are summed in two lanes, of even and of odd columns. Rows of queries are side
//! by side in a vector, and nothing passes between its lanes. In tiles, 32 elements or columns at a
//! time are multiplied, counted from the first.
//!
//! # Accuracy
//!
//! With `w` elements in a head, and `s` the most that `Σ |q · k|` times the scale is for any key
//! visible, each score is off by at most `e = (w + 6) · 2⁻²³ · s`. Where `n` columns are visible
//! and `m` is what the result would be of the magnitudes of the values, the result is off by at
//! most `(4 e + (5 n / 4 + 32) · 2⁻²³) · m`, as long as `e` is small beside 1. `s` counts the
//! largest bias too. With numbers rounded to bf16 `e` is `2⁻⁷ · s` more, and the result off by
//! `2⁻⁷ · m` more. With a soft cap `c`, `e` is `2⁻²⁰ · c` more.

mod alibi;
mod columns;
mod element;
mod inputs;
mod lanes;
mod partial;
mod pixels;
mod relative_bias;
mod score;
mod share;
mod softmax;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod weighted_sum;
mod worker;

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use crate::{ActivationDtype, Isa, Weight};
pub use alibi::Alibi;
use columns::TypedSegment;
use element::KvElement;
use inputs::{AttentionInputs, Task};
pub use pixels::{PixelAttentionShape, attend_pixels_into};
pub use relative_bias::RelativeBias;

/// Columns that are scored before they are folded into what came before.
pub const BLOCK: usize = 256;

/// Rows of queries that a task takes through the keys together, unless one token has more heads …
const ROWS: usize = 32;

/// … and in tiles, where keys and values are packed for each task.
const ROWS_IN_TILES: usize = 256;

/// Below so many multiply-adds, starting other threads takes longer than the work.
const MIN_MULTIPLY_ADDS: usize = 512 << 10;

/// The sizes of one call: queries `[batch, tokens, heads, width]`, keys and values of `key_heads`
/// heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Sequences side by side.
    pub batch: usize,
    /// Tokens of each sequence.
    pub tokens: usize,
    /// Heads of queries; a multiple of `key_heads`. Consecutive ones share a head of keys and
    /// values.
    pub heads: usize,
    /// Heads of keys and of values.
    pub key_heads: usize,
    /// Elements of a head.
    pub width: usize,
}

impl AttentionShape {
    /// An upper bound on the bytes that [`attend_into`] allocates on so many threads, if no token
    /// sees more than `columns` columns.
    pub fn scratch_bytes(&self, columns: usize, threads: usize) -> u64 {
        let in_tiles = Isa::detected() == Isa::AmxBf16;
        let step = self.tokens_of_task(in_tiles);
        let rows = self.heads.div_ceil(self.key_heads.max(1)).saturating_mul(step);
        let tasks = (self.batch as u64)
            .saturating_mul(self.key_heads as u64)
            .saturating_mul(self.tokens.div_ceil(step) as u64);
        let records_of_task = (partial::partial_len(self.width) as u64).saturating_mul(rows as u64);
        // One partial of each row for what came before and one for a block; or one for each block
        // of every task, where there are few of these.
        let (mut partials, mut lists) = (2 * threads as u64, 0);
        if tasks < 2 * threads as u64 {
            let blocks = (columns.saturating_add(self.tokens) / BLOCK + 2) as u64;
            let blocks = tasks.saturating_mul(blocks);
            partials = partials.max(blocks);
            lists = share::list_bytes(tasks, blocks);
        }
        let workers = worker::elements(rows, self.width, in_tiles) as u64;
        let workers = workers.saturating_mul(threads as u64);
        records_of_task
            .saturating_mul(partials)
            .saturating_add(workers)
            .saturating_mul(4)
            .saturating_add(tasks.saturating_mul(size_of::<Task>() as u64))
            .saturating_add(lists)
    }

    /// Tokens that a task takes through the keys together.
    fn tokens_of_task(&self, in_tiles: bool) -> usize {
        let group = (self.heads / self.key_heads.max(1)).max(1);
        let rows = if in_tiles { ROWS_IN_TILES } else { ROWS };
        (rows / group).clamp(1, self.tokens.max(1))
    }
}

/// What each token sees, and how well, by columns: the positions of the longest sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttentionMask {
    /// The column of the first token. Token `t` stands in column `start + t`.
    pub start: usize,
    /// One past the last column, if all tokens see all columns, as in an encoder. Else a token sees
    /// no later column than its own.
    pub end: Option<usize>,
    /// Columns that a token sees, its own included, at most; nothing to who sees all.
    pub window: usize,
    /// If sequences are cut into chunks of so many tokens: a token sees none of those before its
    /// own chunk.
    pub chunk: Option<usize>,
    /// Of each sequence, how many columns at the start have no token. They see nothing, and nothing
    /// sees them.
    pub padding: Vec<usize>,
    /// Of each sequence, one past the last column that is seen; if there is none, what is above
    /// alone says it.
    pub lengths: Vec<usize>,
    /// Columns that see each other, later ones too and older ones within the window: the tokens of
    /// an image.
    pub groups: Vec<Range<usize>>,
    /// What scores stay below in magnitude, if anything: a score `s` becomes `cap · tanh(s / cap)`
    /// before biases are added ([Bello et al., 2016](https://arxiv.org/abs/1611.09940)).
    pub softcap: Option<f32>,
    /// Linear biases that are added to scores, if any.
    pub alibi: Option<Alibi>,
    /// Biases by distance that are added to scores, if any.
    pub relative_bias: Option<RelativeBias>,
    /// Of each head of queries a score that takes its share of the softmax and gives no value, if
    /// there is one ([attention sinks](https://arxiv.org/abs/2309.17453), learned).
    pub sinks: Option<Arc<[f32]>>,
}

impl AttentionMask {
    /// The columns that a token of a sequence sees.
    pub(crate) fn columns(&self, sequence: usize, token: usize) -> Range<usize> {
        let padding = self.padding[sequence];
        let length = self.lengths.get(sequence).copied().unwrap_or(usize::MAX);
        if let Some(end) = self.end {
            return padding..end.min(length).max(padding);
        }
        let own = self.start + token;
        let group = self.groups.iter().find(|group| group.contains(&own));
        let end = own + 1;
        let chunk = self.chunk.map_or(padding, |chunk| {
            let position = (end - 1).saturating_sub(padding);
            padding + position - position % chunk
        });
        let start = chunk.max(end.saturating_sub(self.window));
        let end = group.map_or(end, |group| group.end);
        // What is behind all that is seen still looks back no further.
        start..end.min(length.max(start))
    }
}

/// Keys or values: where each row of `width` elements is. Rows have no gaps.
#[derive(Clone, Copy, Debug)]
pub struct StridedRows<'a> {
    /// All of them.
    pub elements: Weight<'a>,
    /// Elements from one sequence to the next.
    pub sequence_stride: usize,
    /// Elements from one head to the next.
    pub head_stride: usize,
    /// Elements from one slot to the next.
    pub slot_stride: usize,
}

/// Which column is at which slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// The first column held.
    pub first: usize,
    /// One past the last column held.
    pub end: usize,
    /// Places of each head. Column `c` is at slot `(c - origin) % capacity`.
    pub capacity: usize,
    /// The column that is, or would be, at slot 0 first.
    pub origin: usize,
}

/// Keys and values of consecutive columns.
#[derive(Clone, Copy, Debug)]
pub struct KvSegment<'a> {
    /// Of each column, sequence and head.
    pub keys: StridedRows<'a>,
    /// As [`keys`](Self::keys), in the same type.
    pub values: StridedRows<'a>,
    /// Where they are.
    pub ring: RingLayout,
}

/// Writes, for each query, the mixture of the values that its token sees to `y`; `queries` and `y`
/// are `[batch, tokens, heads, width]`, row-major without gaps. A token that sees nothing gets
/// zeros.
///
/// `segments` are keys and values of consecutive columns, older ones first, all of one type. Runs
/// on as many threads as the current rayon pool has when there is enough to share.
///
/// Scores are multiplied by `scale`, which is `1 / √width` if none is given; then they are capped,
/// and the mask's biases are added.
///
/// # Panics
///
/// If sizes do not fit each other, if a column that a token sees is not held, if the scale or the
/// soft cap is not above zero and finite, if chunks have no token, or if this processor does not
/// have `isa`.
pub fn attend_into(
    (isa, compute): (Isa, ActivationDtype),
    queries: &[f32],
    shape: AttentionShape,
    segments: &[KvSegment<'_>],
    mask: &AttentionMask,
    scale: Option<f32>,
    y: &mut [f32],
) {
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    let size = [shape.batch, shape.tokens, shape.heads, shape.width]
        .into_iter()
        .try_fold(1, usize::checked_mul);
    assert_eq!(Some(queries.len()), size, "queries must fill {shape:?}");
    assert_eq!(Some(y.len()), size, "y must fill {shape:?}");
    assert!(
        shape.key_heads > 0 && shape.heads.is_multiple_of(shape.key_heads),
        "heads of queries must be shared evenly among those of keys, in {shape:?}"
    );
    assert_eq!(mask.padding.len(), shape.batch, "each sequence has a padding");
    assert!(
        mask.lengths.is_empty() || mask.lengths.len() == shape.batch,
        "each sequence has a length, or none has"
    );
    assert!(
        mask.alibi.as_ref().is_none_or(|alibi| alibi.heads() == shape.heads),
        "each head of queries has a slope"
    );
    assert!(
        scale.is_none_or(|scale| scale > 0.0 && scale.is_finite()),
        "scores must be scaled by a number above zero, not by {scale:?}"
    );
    assert!(
        mask.softcap.is_none_or(|cap| cap > 0.0 && cap.is_finite()),
        "scores must be capped by a number above zero, not by {:?}",
        mask.softcap
    );
    assert!(mask.chunk != Some(0), "a chunk has tokens");
    assert!(
        mask.relative_bias.as_ref().is_none_or(|bias| bias.heads() == shape.heads),
        "each head of queries has a relative bias"
    );
    assert!(
        mask.sinks.as_ref().is_none_or(|sinks| sinks.len() == shape.heads),
        "each head of queries has a sink"
    );
    if y.is_empty() {
        return;
    }
    match segments.first().map(|segment| segment.keys.elements) {
        Some(Weight::Bf16(_)) => {
            attend_typed::<bf16>((isa, compute), queries, shape, segments, mask, scale, y)
        }
        Some(Weight::F16(_)) => {
            attend_typed::<f16>((isa, compute), queries, shape, segments, mask, scale, y)
        }
        Some(Weight::F32(_)) => {
            attend_typed::<f32>((isa, compute), queries, shape, segments, mask, scale, y)
        }
        Some(Weight::Blocks(_)) => panic!("keys and values must not be stored in blocks"),
        None => {
            let nothing = |sequence| mask.columns(sequence, shape.tokens - 1).is_empty();
            assert!((0..shape.batch).all(nothing), "what tokens see must be held");
            y.fill(0.0);
        }
    }
}

fn attend_typed<'a, E: KvElement>(
    (isa, compute): (Isa, ActivationDtype),
    queries: &[f32],
    shape: AttentionShape,
    segments: &[KvSegment<'a>],
    mask: &AttentionMask,
    scale: Option<f32>,
    y: &mut [f32],
) {
    let segments: Vec<TypedSegment<'a, E>> =
        segments.iter().map(|segment| TypedSegment::new(segment, &shape)).collect();
    for sequence in 0..shape.batch {
        let seen = mask.columns(sequence, 0).start..mask.columns(sequence, shape.tokens - 1).end;
        assert!(
            columns::cover(&segments, &seen),
            "columns {seen:?} are seen, but not all of them are held: {held:?}",
            held = segments.iter().map(TypedSegment::columns).collect::<Vec<_>>()
        );
    }
    let inputs = AttentionInputs {
        queries,
        shape,
        segments: &segments,
        mask,
        scale: scale.unwrap_or_else(|| (shape.width as f32).sqrt().recip()),
        in_tiles: isa == Isa::AmxBf16,
        compute,
    };
    let step = shape.tokens_of_task(inputs.in_tiles);
    let count = shape.batch * shape.key_heads * shape.tokens.div_ceil(step);
    let mut tasks = Vec::with_capacity(count);
    for sequence in 0..shape.batch {
        for head in 0..shape.key_heads {
            let tokens = (0..shape.tokens).step_by(step);
            tasks.extend(tokens.map(|first| Task {
                sequence,
                head,
                tokens: first..shape.tokens.min(first + step),
            }));
        }
    }
    let multiply_adds: usize = tasks.iter().map(|task| inputs.multiply_adds(task)).sum();
    let threads = match multiply_adds < MIN_MULTIPLY_ADDS {
        true => 1,
        false => rayon::current_num_threads(),
    };
    // SAFETY: `attend_into` checked that `isa` is available and that `y` has the size of
    // `shape`. No two tasks have a sequence, head and token in common.
    unsafe { share::attend(isa, &inputs, &tasks, threads, y) };
}
