//! A selective state space model, Mamba-2: linear attention that keeps of a text one matrix a head,
//! over slices.
//!
//! Of each token, the matrix is made less by a factor; the token's key times its value, times a
//! step, is added; and it is asked for what it gives for the token's query. What are key and query
//! here are called `B` and `C` in Dao and Gu 2024 (arXiv:2405.21060).

use crate::Isa;
use crate::exp::{exp, softplus};
use crate::matmul::{Claims, OutputPtr};
use crate::simd::{Vector, for_each_isa};
use crate::state_matrix::{LinearAttentionHeads, STATE_COLUMNS, change_rows};
use crate::state_rows::StateRows;

/// Some tokens of some texts.
#[derive(Debug)]
pub struct StateSpace<'a> {
    /// Sizes; neighbouring heads of values have the same keys and queries.
    pub heads: LinearAttentionHeads,
    /// `[texts, tokens, channels]`: values of all heads, then their keys, then their queries.
    pub x: &'a [f32],
    /// `[texts, tokens, value_heads]`: the steps, before a softplus.
    pub step: &'a [f32],
    /// `[value_heads]`: how much a matrix loses for each step; not negative.
    pub rates: &'a [f32],
    /// `[value_heads]`: what is added to steps before the softplus.
    pub step_bias: &'a [f32],
    /// `[value_heads]`: what part of a value is added to what comes of it.
    pub skip: &'a [f32],
    /// The least step and the greatest.
    pub limits: [f32; 2],
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
pub fn state_space_into(isa: Isa, space: StateSpace<'_>) {
    let StateSpace { heads, x, step, rates, step_bias, skip, limits, state, rows, y } = space;
    let LinearAttentionHeads { key_heads, value_heads, key_dim, value_dim, in_turns } = heads;
    let (channels, texts) = (heads.channels(), rows.begins.len());
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    assert!(
        key_heads > 0
            && value_heads.is_multiple_of(key_heads)
            && key_dim > 0
            && value_dim > 0
            && !in_turns,
        "state space: {heads:?}"
    );
    assert!(
        texts > 0 && x.len().is_multiple_of(texts * channels),
        "state space: {texts} texts of {channels} channels must fill {}",
        x.len()
    );
    let count = x.len() / channels;
    assert_eq!(
        (step.len(), y.len()),
        (count * value_heads, count * value_heads * value_dim),
        "state space: {count} tokens of {value_heads} heads"
    );
    assert!(limits[0] <= limits[1], "state space: steps within {limits:?}");
    assert_eq!([rates, step_bias, skip].map(<[f32]>::len), [value_heads; 3], "state space: heads");
    let [blocks, ..] = heads.state();
    let block = key_dim * STATE_COLUMNS;
    assert!(
        state.len() >= (rows.first + texts) * blocks * block,
        "state space: a state of {} elements has no row {}",
        state.len(),
        rows.first + texts - 1
    );
    // A thread is worth some thousand elements.
    let threads = crate::threads().min((count * blocks * block).div_ceil(1 << 14));
    let shared = Shared {
        heads,
        x,
        steps: Steps { step, rates, bias: step_bias, limits },
        skip,
        begins: &rows.begins,
        tokens: count / texts,
        state: OutputPtr(state[rows.first * blocks * block..].as_mut_ptr()),
        y: OutputPtr(y.as_mut_ptr()),
        claims: Claims::of(texts * blocks, threads),
    };
    // SAFETY: the assertions: the processor has `isa`, and all sizes are as `work` asks for.
    crate::thread_pool::share(threads, || unsafe { work(isa, &shared) });
}

struct Shared<'a> {
    heads: LinearAttentionHeads,
    x: &'a [f32],
    steps: Steps<'a>,
    skip: &'a [f32],
    begins: &'a [Option<usize>],
    /// Of each text.
    tokens: usize,
    state: OutputPtr,
    y: OutputPtr,
    /// Of a text, a block of a head's columns.
    claims: Claims,
}

/// What says how much is kept and how much is added.
struct Steps<'a> {
    step: &'a [f32],
    rates: &'a [f32],
    bias: &'a [f32],
    limits: [f32; 2],
}

impl Steps<'_> {
    /// What a head's matrix is multiplied by for a token, and the step.
    fn of(&self, token: usize, head: usize) -> (f32, f32) {
        let step = softplus(self.step[token * self.rates.len() + head] + self.bias[head]);
        let [least, greatest] = self.limits;
        let step = step.clamp(least, greatest);
        (exp(-self.rates[head] * step), step)
    }
}

for_each_isa! {
    /// # Safety
    ///
    /// `state` points to `[texts, blocks, key_dim, STATE_COLUMNS]` and `y` to
    /// `[texts, tokens, value_heads, value_dim]` elements which nobody but calls of this with the
    /// same claims touches.
    unsafe fn work<V>(shared: &Shared<'_>) {
        while let Some(claimed) = shared.claims.claim() {
            for task in claimed {
                // SAFETY: the caller's promise; a block is claimed once.
                unsafe { shared.block::<V>(task) };
            }
        }
    }
}

impl Shared<'_> {
    /// All tokens of a text, for some columns of one head.
    ///
    /// # Safety
    ///
    /// As for `work`, and nobody else is at this block; the processor has the instructions of `V`.
    #[inline(always)]
    unsafe fn block<V: Vector>(&self, task: usize) {
        let LinearAttentionHeads { key_heads, value_heads, key_dim, value_dim, .. } = self.heads;
        let (channels, blocks) = (self.heads.channels(), self.heads.blocks());
        let (text, head) = (task / (value_heads * blocks), task / blocks % value_heads);
        let first = task % blocks * STATE_COLUMNS;
        let width = STATE_COLUMNS.min(value_dim - first);
        let key_head = head / (value_heads / key_heads);
        let key_at = value_heads * value_dim + key_head * key_dim;
        let query_at = key_at + key_heads * key_dim;
        let size = key_dim * STATE_COLUMNS;
        // SAFETY: the caller's promise: the block lies within the state.
        let state = unsafe { std::slice::from_raw_parts_mut(self.state.0.add(task * size), size) };
        let begin = self.begins[text];
        // What is beyond the last column stays zero.
        let mut columns = [0.0f32; STATE_COLUMNS];
        for token in 0..self.tokens {
            let at = text * self.tokens + token;
            // SAFETY: the caller's promise: within `y`, and nobody else is at these columns.
            let y = unsafe {
                let place = (at * value_heads + head) * value_dim + first;
                std::slice::from_raw_parts_mut(self.y.0.add(place), width)
            };
            if begin.is_some_and(|begin| token < begin) {
                y.fill(0.0);
                continue;
            }
            if begin == Some(token) {
                state.fill(0.0);
            }
            let x = &self.x[at * channels..][..channels];
            columns[..width].copy_from_slice(&x[head * value_dim + first..][..width]);
            let (key, query) = (&x[key_at..][..key_dim], &x[query_at..][..key_dim]);
            let (keep, step) = self.steps.of(at, head);
            // SAFETY: `state` has `STATE_COLUMNS` for each element of a key, and so many are the
            // columns.
            unsafe {
                advance::<V>(state, [key, query], &mut columns, [keep, step, self.skip[head]])
            };
            y.copy_from_slice(&columns[..width]);
        }
    }
}

/// One token: changes the state, and writes what comes of it in the place of the value.
///
/// # Safety
///
/// The state has `STATE_COLUMNS` elements for each of the key and the query, and the processor has
/// the instructions of `V`.
#[inline(always)]
unsafe fn advance<V: Vector>(
    state: &mut [f32],
    [key, query]: [&[f32]; 2],
    value: &mut [f32; STATE_COLUMNS],
    [keep, step, skip]: [f32; 3],
) {
    // SAFETY: the caller's promise: the value has `STATE_COLUMNS`.
    unsafe {
        let value = value.as_mut_ptr();
        let at = |column: usize| value.add(column * V::LANES);
        let mut change = [V::zero(); 8];
        for (column, change) in change[..STATE_COLUMNS / V::LANES].iter_mut().enumerate() {
            *change = V::f32(at(column)).mul(V::splat(step));
        }
        let sums = change_rows(state, |_| keep, key, &change, query);
        for (column, sum) in sums[..STATE_COLUMNS / V::LANES].iter().enumerate() {
            let result = sum.fma(V::f32(at(column)), V::splat(skip));
            result.store(at(column));
        }
    }
}
