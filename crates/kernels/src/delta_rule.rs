//! The gated delta rule: attention that keeps of a text one matrix a head, over slices.
//!
//! Of each token, the matrix is made less by a factor, or each of its rows by one of its own; what
//! it gives for the token's key is replaced, by some part, by the token's value; and it is asked
//! for what it gives for the token's query. Yang et al. 2024 (arXiv:2412.06464), Kimi Team 2025
//! (arXiv:2510.26692).

use crate::Isa;
use crate::exp::{exp, softplus};
use crate::loops::{share, share_size};
use crate::matmul::{Claims, OutputPtr};
use crate::norm::lanes_sum;
use crate::simd::{Vector, for_each_isa};
use crate::state_matrix::{
    LinearAttentionHeads, STATE_COLUMNS, add_row, change_rows, rows_apart, sums_together,
};
use crate::state_rows::StateRows;

/// Tokens whose vectors are put beside each other at a time.
const GATHERED: usize = 8;

/// What is added to the square of a length before something is divided by that length.
pub(crate) const LENGTH_EPSILON: f64 = 1e-6;

/// What the gates of the delta rule are made with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaGates {
    /// The most that may be replaced: 1, or 2 where what a matrix gives may turn round.
    pub most: f32,
    /// What the logarithms of factors stay above, where a sigmoid of so much says them rather than
    /// a softplus.
    pub bound: Option<f32>,
}

impl Default for DeltaGates {
    fn default() -> Self {
        Self { most: 1.0, bound: None }
    }
}

/// Some tokens of some texts.
#[derive(Debug)]
pub struct DeltaRule<'a> {
    /// Sizes.
    pub heads: LinearAttentionHeads,
    /// How gates are made.
    pub gates: DeltaGates,
    /// `[texts, tokens, channels]`: queries, keys and values of all heads. Queries and keys are
    /// made as long as they should be.
    pub x: &'a mut [f32],
    /// `[texts, tokens, value_heads]`: how fast the matrix is forgotten, before a softplus; or
    /// `[texts, tokens, value_heads, key_dim]`, of each of its rows.
    pub forget: &'a [f32],
    /// `[texts, tokens, value_heads]`: which part is replaced, before a sigmoid.
    pub write: &'a [f32],
    /// `[value_heads]`: what the former are multiplied by then.
    pub rates: &'a [f32],
    /// `[value_heads]` or `[value_heads, key_dim]`: what is added to the former before.
    pub forget_bias: &'a [f32],
    /// Of rows of texts, the matrices: `[rows, ..]` of [`LinearAttentionHeads::state`].
    pub state: &'a mut [f32],
    /// Which rows are those of the texts.
    pub rows: &'a StateRows,
    /// `[texts, tokens, value_heads, value_dim]`: what comes of it.
    pub y: &'a mut [f32],
}

/// Runs the texts' tokens, one after the other. The bits do not depend on how a text is cut, on
/// texts beside it or on threads.
///
/// # Panics
///
/// If sizes do not fit each other, or if this processor does not have `isa`.
pub fn delta_rule_into(isa: Isa, rule: DeltaRule<'_>) {
    let DeltaRule { heads, gates, x, forget, write, rates, forget_bias, state, rows, y } = rule;
    let LinearAttentionHeads { key_heads, value_heads, key_dim, value_dim, .. } = heads;
    let (channels, texts) = (heads.channels(), rows.begins.len());
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    assert!(
        key_heads > 0 && value_heads.is_multiple_of(key_heads) && key_dim > 0 && value_dim > 0,
        "delta rule: {heads:?}"
    );
    assert!(
        texts > 0 && x.len().is_multiple_of(texts * channels),
        "delta rule: {texts} texts of {channels} channels must fill {}",
        x.len()
    );
    let count = x.len() / channels;
    assert_eq!(
        (forget.len(), write.len(), y.len()),
        (count * forget_bias.len(), count * value_heads, count * value_heads * value_dim),
        "delta rule: {count} tokens of {value_heads} heads"
    );
    assert_eq!(rates.len(), value_heads, "delta rule: heads");
    assert!(
        [1, key_dim].map(|width| value_heads * width).contains(&forget_bias.len()),
        "delta rule: {} factors of {value_heads} heads",
        forget_bias.len()
    );
    let [blocks, ..] = heads.state();
    let block = key_dim * STATE_COLUMNS;
    assert!(
        state.len() >= (rows.first + texts) * blocks * block,
        "delta rule: a state of {} elements has no row {}",
        state.len(),
        rows.first + texts - 1
    );
    let size = share_size(x.len(), channels);
    share(x.chunks_mut(size), |x| lengthen(isa, x, heads));
    // A thread is worth some thousand elements.
    let threads = crate::threads().min((count * blocks * block).div_ceil(1 << 14));
    let shared = Shared {
        heads,
        x,
        gates: Gates { gates, forget, write, rates, forget_bias },
        begins: &rows.begins,
        tokens: count / texts,
        state: OutputPtr(state[rows.first * blocks * block..].as_mut_ptr()),
        y: OutputPtr(y.as_mut_ptr()),
        claims: Claims::of(texts * key_heads, threads),
    };
    // SAFETY: the assertions: the processor has `isa`, and all sizes are as `work` asks for.
    crate::thread_pool::share(threads, || unsafe { work(isa, &shared) });
}

struct Shared<'a> {
    heads: LinearAttentionHeads,
    x: &'a [f32],
    gates: Gates<'a>,
    begins: &'a [Option<usize>],
    /// Of each text.
    tokens: usize,
    state: OutputPtr,
    y: OutputPtr,
    /// Of a text, a head of keys.
    claims: Claims,
}

/// What says how much is kept and how much is replaced.
struct Gates<'a> {
    gates: DeltaGates,
    forget: &'a [f32],
    write: &'a [f32],
    rates: &'a [f32],
    forget_bias: &'a [f32],
}

impl Gates<'_> {
    /// Factors of a head: one, or one for each row of its matrix.
    fn width(&self) -> usize {
        self.forget_bias.len() / self.rates.len()
    }

    /// Writes what a head's matrix is multiplied by for a token; gives the part that is replaced.
    fn of(&self, token: usize, head: usize, keep: &mut [f32]) -> f32 {
        let (rate, at) = (self.rates[head], head * self.width());
        let forget = &self.forget[token * self.forget_bias.len() + at..];
        for ((keep, forget), bias) in keep.iter_mut().zip(forget).zip(&self.forget_bias[at..]) {
            let forget = forget + bias;
            *keep = exp(match self.gates.bound {
                None => -(rate * softplus(forget)),
                Some(bound) => bound * sigmoid(rate * forget),
            });
        }
        self.gates.most * sigmoid(self.write[token * self.rates.len() + head])
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

for_each_isa! {
    /// Makes keys 1 long, and queries the root of their width less.
    fn lengthen(x: &mut [f32], heads: LinearAttentionHeads) {
        let LinearAttentionHeads { key_heads, key_dim, .. } = heads;
        let queries = (key_dim as f64).sqrt().recip();
        for x in x.chunks_exact_mut(heads.channels()) {
            let vectors = x[..2 * key_heads * key_dim].chunks_exact_mut(key_dim);
            for (head, vector) in vectors.enumerate() {
                let square = lanes_sum(vector, |x| x * x);
                let length = (square + LENGTH_EPSILON).sqrt().recip();
                let scale = if head < key_heads { length * queries } else { length } as f32;
                for x in vector {
                    *x *= scale;
                }
            }
        }
    }
}

for_each_isa! {
    /// # Safety
    ///
    /// `state` points to `[texts, blocks, key_dim, STATE_COLUMNS]` and `y` to
    /// `[texts, tokens, value_heads, value_dim]` elements which nobody but calls of this with the
    /// same claims touches.
    unsafe fn work<V>(shared: &Shared<'_>) {
        let key_dim = shared.heads.key_dim;
        let mut gathered = Gathered {
            queries: vec![0.0; GATHERED * key_dim],
            keys: vec![0.0; GATHERED * key_dim],
            values: vec![0.0; GATHERED * shared.heads.blocks() * STATE_COLUMNS],
            keep: vec![0.0; GATHERED * shared.gates.width()],
            write: [0.0; GATHERED],
        };
        while let Some(claimed) = shared.claims.claim() {
            for task in claimed {
                // SAFETY: the caller's promise; the heads of a text are claimed once.
                unsafe { shared.heads::<V>(task, &mut gathered) };
            }
        }
    }
}

/// Vectors of some tokens beside each other: in the tensors those of a head lie pages apart.
struct Gathered {
    /// `[tokens, key_dim]` each.
    queries: Vec<f32>,
    keys: Vec<f32>,
    /// Of each token the columns of all blocks of one head; then what comes of them.
    values: Vec<f32>,
    /// Of each token what that head keeps: one factor, or one for each row.
    keep: Vec<f32>,
    /// Of each token what it replaces.
    write: [f32; GATHERED],
}

impl Shared<'_> {
    /// All tokens of a text, for the heads that have the same keys.
    ///
    /// # Safety
    ///
    /// As for `work`, and nobody else is at these heads; the processor has the instructions of `V`.
    #[inline(always)]
    unsafe fn heads<V: Vector>(&self, task: usize, gathered: &mut Gathered) {
        let LinearAttentionHeads { key_heads, value_heads, key_dim, value_dim, in_turns } =
            self.heads;
        let (text, key_head) = (task / key_heads, task % key_heads);
        let (of_key, blocks) = (value_heads / key_heads, self.heads.blocks());
        let head = |of_key_head: usize| match in_turns {
            true => of_key_head * key_heads + key_head,
            false => key_head * of_key + of_key_head,
        };
        let (size, padded) = (key_dim * STATE_COLUMNS, blocks * STATE_COLUMNS);
        let width = self.gates.width();
        let begin = self.begins[text].unwrap_or(0).min(self.tokens);
        let is_new = self.begins[text].is_some();
        for token in 0..begin {
            for of_key_head in 0..of_key {
                // SAFETY: the caller's promise.
                unsafe { self.result(text * self.tokens + token, head(of_key_head)) }.fill(0.0);
            }
        }
        for start in (begin..self.tokens).step_by(GATHERED) {
            let count = GATHERED.min(self.tokens - start);
            let token = |at: usize| text * self.tokens + start + at;
            for at in 0..count {
                let of_key_head = key_head * key_dim..(key_head + 1) * key_dim;
                let (queries, keys, _) = self.vectors(token(at));
                let place = at * key_dim..(at + 1) * key_dim;
                gathered.queries[place.clone()].copy_from_slice(&queries[of_key_head.clone()]);
                gathered.keys[place].copy_from_slice(&keys[of_key_head]);
            }
            for head in (0..of_key).map(head) {
                for at in 0..count {
                    let (.., values) = self.vectors(token(at));
                    let (value, beyond) =
                        gathered.values[at * padded..][..padded].split_at_mut(value_dim);
                    value.copy_from_slice(&values[head * value_dim..][..value_dim]);
                    // What is beyond the last column stays zero.
                    beyond.fill(0.0);
                    let keep = &mut gathered.keep[at * width..(at + 1) * width];
                    gathered.write[at] = self.gates.of(token(at), head, keep);
                }
                for block in 0..blocks {
                    let place = (text * value_heads + head) * blocks + block;
                    // SAFETY: the caller's promise: the block lies within the state.
                    let state = unsafe {
                        std::slice::from_raw_parts_mut(self.state.0.add(place * size), size)
                    };
                    if is_new && start == begin {
                        state.fill(0.0);
                    }
                    for at in 0..count {
                        let vectors = at * key_dim..(at + 1) * key_dim;
                        let columns = at * padded + block * STATE_COLUMNS;
                        let query = &gathered.queries[vectors.clone()];
                        let key = &gathered.keys[vectors];
                        let value = &mut gathered.values[columns..columns + STATE_COLUMNS];
                        let write = gathered.write[at];
                        // SAFETY: the caller's promise: `state` has `STATE_COLUMNS` for each
                        // element of a key.
                        unsafe {
                            match &gathered.keep[at * width..(at + 1) * width] {
                                &[keep] => step::<V>(state, query, key, value, |_| keep, write),
                                keep => step::<V>(state, query, key, value, |row| keep[row], write),
                            }
                        }
                    }
                }
                for at in 0..count {
                    // SAFETY: the caller's promise.
                    let result = unsafe { self.result(token(at), head) };
                    result.copy_from_slice(&gathered.values[at * padded..][..value_dim]);
                }
            }
        }
    }

    /// Queries, keys and values of a token.
    fn vectors(&self, token: usize) -> (&[f32], &[f32], &[f32]) {
        let channels = self.heads.channels();
        let of_keys = self.heads.key_heads * self.heads.key_dim;
        let (queries, rest) = self.x[token * channels..][..channels].split_at(of_keys);
        let (keys, values) = rest.split_at(of_keys);
        (queries, keys, values)
    }

    /// What comes of a token's head.
    ///
    /// # Safety
    ///
    /// Nobody else has it.
    #[allow(clippy::mut_from_ref, reason = "each head of a token is its claimant's alone")]
    unsafe fn result(&self, token: usize, head: usize) -> &mut [f32] {
        let LinearAttentionHeads { value_heads, value_dim, .. } = self.heads;
        let at = (token * value_heads + head) * value_dim;
        // SAFETY: within `y`; and the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.y.0.add(at), value_dim) }
    }
}

/// One token: changes the state, of whose rows `keep` says what they are multiplied by, and writes
/// what comes of it in the place of the value.
///
/// # Safety
///
/// The state has `STATE_COLUMNS` elements for each of the key and the query, the value has as many,
/// and the processor has the instructions of `V`.
#[inline(always)]
unsafe fn step<V: Vector>(
    state: &mut [f32],
    query: &[f32],
    key: &[f32],
    value: &mut [f32],
    keep: impl Fn(usize) -> f32 + Copy,
    write: f32,
) {
    let (rows, apart) = (key.len(), rows_apart::<V>());
    let even = rows / apart * apart;
    // SAFETY: the caller's promise: all that is read and written lies within the state, the vectors
    // and what has `STATE_COLUMNS`.
    unsafe {
        let place = state.as_ptr();
        let row = |row: usize| place.add(row * STATE_COLUMNS);
        let mut sums = [[V::zero(); 8]; 4];
        for first in (0..even).step_by(apart) {
            for (at, sums) in (first..).zip(&mut sums[..apart]) {
                add_row(sums, row(at), keep(at) * *key.get_unchecked(at));
            }
        }
        for at in even..rows {
            add_row(&mut sums[0], row(at), keep(at) * *key.get_unchecked(at));
        }
        let mut change = sums_together(&sums, apart);
        for (column, change) in change.iter_mut().enumerate().take(STATE_COLUMNS / V::LANES) {
            let value = V::f32(value.as_ptr().add(column * V::LANES)).mul(V::splat(write));
            *change = value.fma(*change, V::splat(-write));
        }
        let sums = change_rows(state, |row, _| V::splat(keep(row)), key, &change, query);
        for (column, sum) in sums.iter().enumerate().take(STATE_COLUMNS / V::LANES) {
            sum.store(value.as_mut_ptr().add(column * V::LANES));
        }
    }
}
