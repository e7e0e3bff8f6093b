//! A selective state space model, Mamba-2 or Mamba: linear attention that keeps of a text one
//! matrix a head, over slices.
//!
//! Of each token, the matrix is made less by a factor; the token's key times its value, times a
//! step, is added; and it is asked for what it gives for the token's query. What are key and query
//! here are called `B` and `C` in Dao and Gu 2024 (arXiv:2405.21060).
//!
//! In Mamba (Gu and Dao 2023, arXiv:2312.00752) a step is one column's, and each element of the
//! matrix has a factor of its own.

use crate::Isa;
use crate::exp::{exp, softplus};
use crate::matmul::{Claims, OutputPtr};
use crate::simd::{Vector, for_each_isa};
use crate::state_matrix::{LinearAttentionHeads, STATE_COLUMNS, change_rows};
use crate::state_rows::StateRows;

/// What the steps and the rates of a [`StateSpace`] are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StateRule {
    /// The least step and the greatest.
    pub limits: [f32; 2],
    /// Whether rates are given negated, rather than as their logarithms.
    pub rates_are_negated: bool,
}

impl Default for StateRule {
    /// Steps of any size, and logarithms.
    fn default() -> Self {
        Self { limits: [0.0, f32::INFINITY], rates_are_negated: false }
    }
}

impl StateRule {
    /// The rate that a number stands for.
    #[inline(always)]
    fn rate(self, given: f32) -> f32 {
        if self.rates_are_negated { -given } else { exp(given) }
    }
}

/// Some tokens of some texts.
#[derive(Debug)]
pub struct StateSpace<'a> {
    /// Sizes; neighbouring heads of values have the same keys and queries.
    pub heads: LinearAttentionHeads,
    /// `[texts, tokens, channels]`: values of all heads, then their keys, then their queries.
    pub x: &'a [f32],
    /// `[texts, tokens, steps]`: the steps, before a softplus; one for each head, or one for each
    /// column of its matrix.
    pub step: &'a [f32],
    /// How much a matrix loses for each step, as the rule says: `[value_heads]`, or
    /// `[value_heads, value_dim, key_dim]`, and there is a step for each column then.
    pub rates: &'a [f32],
    /// `[steps]`: what is added to steps before the softplus.
    pub step_bias: &'a [f32],
    /// `[steps]`: what part of a value is added to what comes of it.
    pub skip: &'a [f32],
    /// What steps and rates are.
    pub rule: StateRule,
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
    let StateSpace { heads, x, step, rates, step_bias, skip, rule, state, rows, y } = space;
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
    let values = value_heads * value_dim;
    let by_column = rates.len() != value_heads;
    let steps = if by_column { values } else { value_heads };
    assert_eq!(
        (step.len(), y.len()),
        (count * steps, count * values),
        "state space: {count} tokens of {value_heads} heads"
    );
    let limits = rule.limits;
    assert!(limits[0] <= limits[1], "state space: steps within {limits:?}");
    assert_eq!(
        (rates.len(), [step_bias.len(), skip.len()]),
        (if by_column { steps * key_dim } else { steps }, [steps; 2]),
        "state space: heads"
    );
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
        steps: Steps { step, bias: step_bias, limits },
        rates,
        rule,
        skip,
        by_column,
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
    rates: &'a [f32],
    rule: StateRule,
    skip: &'a [f32],
    /// Whether a step is that of one column.
    by_column: bool,
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
    bias: &'a [f32],
    limits: [f32; 2],
}

impl Steps<'_> {
    /// So many of a token's steps as there are, those from `first` on.
    #[inline(always)]
    fn of<const N: usize>(&self, token: usize, first: usize, count: usize) -> [f32; N] {
        let steps = &self.step[token * self.bias.len() + first..][..count];
        let mut of = [0.0; N];
        for ((of, step), bias) in of.iter_mut().zip(steps).zip(&self.bias[first..][..count]) {
            *of = step + bias;
        }
        let [least, greatest] = self.limits;
        for step in &mut of {
            *step = softplus(*step);
        }
        for step in &mut of {
            // Unlike `clamp`, without a branch.
            let above = if *step < least { least } else { *step };
            *step = if above > greatest { greatest } else { above };
        }
        of
    }
}

/// What a worker has of the block that it is at.
struct Block {
    /// `[key_dim, STATE_COLUMNS]`: what the elements lose for each step, where these are of
    /// columns.
    rates: Vec<f32>,
    /// What they are multiplied by for a token, likewise.
    keep: Vec<f32>,
    /// The values of a token, then what comes of them. What is beyond the last column stays zero.
    columns: [f32; STATE_COLUMNS],
    /// The columns' steps, and what part of a value each adds.
    step: [f32; STATE_COLUMNS],
    skip: [f32; STATE_COLUMNS],
}

for_each_isa! {
    /// # Safety
    ///
    /// `state` points to `[texts, blocks, key_dim, STATE_COLUMNS]` and `y` to
    /// `[texts, tokens, value_heads, value_dim]` elements which nobody but calls of this with the
    /// same claims touches.
    unsafe fn work<V>(shared: &Shared<'_>) {
        let elements = if shared.by_column { shared.heads.key_dim * STATE_COLUMNS } else { 0 };
        let mut block = Block {
            rates: vec![0.0; elements],
            keep: vec![0.0; elements],
            columns: [0.0; STATE_COLUMNS],
            step: [0.0; STATE_COLUMNS],
            skip: [0.0; STATE_COLUMNS],
        };
        while let Some(claimed) = shared.claims.claim() {
            for task in claimed {
                // SAFETY: the caller's promise; a block is claimed once.
                unsafe { shared.block::<V>(task, &mut block) };
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
    unsafe fn block<V: Vector>(&self, task: usize, block: &mut Block) {
        let LinearAttentionHeads { key_heads, value_heads, key_dim, value_dim, .. } = self.heads;
        let (channels, blocks) = (self.heads.channels(), self.heads.blocks());
        let (text, head) = (task / (value_heads * blocks), task / blocks % value_heads);
        let first = task % blocks * STATE_COLUMNS;
        let width = STATE_COLUMNS.min(value_dim - first);
        let first = head * value_dim + first;
        let key_head = head / (value_heads / key_heads);
        let key_at = value_heads * value_dim + key_head * key_dim;
        let query_at = key_at + key_heads * key_dim;
        let size = key_dim * STATE_COLUMNS;
        // SAFETY: the caller's promise: the block lies within the state.
        let state = unsafe { std::slice::from_raw_parts_mut(self.state.0.add(task * size), size) };
        let begin = self.begins[text];
        let of_head = if self.by_column { 0.0 } else { self.rule.rate(self.rates[head]) };
        block.columns.fill(0.0);
        match self.by_column {
            true => {
                block.skip[..width].copy_from_slice(&self.skip[first..first + width]);
                let rates = &self.rates[first * key_dim..][..width * key_dim];
                block.load_rates(rates, key_dim, self.rule);
            }
            false => block.skip.fill(self.skip[head]),
        }
        for token in 0..self.tokens {
            let at = text * self.tokens + token;
            // SAFETY: the caller's promise: within `y`, and nobody else is at these columns.
            let y = unsafe {
                let place = at * value_heads * value_dim + first;
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
            block.columns[..width].copy_from_slice(&x[first..][..width]);
            let of_token = [&x[key_at..][..key_dim], &x[query_at..][..key_dim]];
            // SAFETY: `state` has `STATE_COLUMNS` for each element of a key, and so has what is
            // kept where it is read.
            unsafe {
                if self.by_column {
                    block.step = self.steps.of(at, first, width);
                    block.write_kept();
                    let keep = block.keep.as_ptr();
                    let kept =
                        |row, column| V::f32(keep.add(row * STATE_COLUMNS + column * V::LANES));
                    advance::<V>(state, of_token, block, kept);
                } else {
                    let [step] = self.steps.of(at, head, 1);
                    block.step.fill(step);
                    let kept = exp(-of_head * step);
                    advance::<V>(state, of_token, block, |_, _| V::splat(kept));
                }
            }
            y.copy_from_slice(&block.columns[..width]);
        }
    }
}

impl Block {
    /// Takes what elements lose, given `[columns, key_dim]`.
    #[inline(always)]
    fn load_rates(&mut self, given: &[f32], key_dim: usize, rule: StateRule) {
        self.rates.fill(0.0);
        for (column, given) in given.chunks_exact(key_dim).enumerate() {
            for (row, given) in given.iter().enumerate() {
                self.rates[row * STATE_COLUMNS + column] = *given;
            }
        }
        for rate in &mut self.rates {
            *rate = rule.rate(*rate);
        }
    }

    /// Writes what the elements are multiplied by.
    #[inline(always)]
    fn write_kept(&mut self) {
        // On the stack: the compiler then knows that nothing written changes them.
        let step = self.step;
        let rows = self.keep.as_chunks_mut().0.iter_mut().zip(self.rates.as_chunks().0);
        for (keep, rates) in rows {
            let (mut kept, rates): (_, &[f32; STATE_COLUMNS]) = (step, rates);
            for (kept, rate) in kept.iter_mut().zip(rates) {
                *kept = exp(-rate * *kept);
            }
            *keep = kept;
        }
    }
}

/// One token: changes the state, and writes what comes of it in the place of the values.
///
/// # Safety
///
/// The state has `STATE_COLUMNS` elements for each of the key and the query, and the processor has
/// the instructions of `V`.
#[inline(always)]
unsafe fn advance<V: Vector>(
    state: &mut [f32],
    [key, query]: [&[f32]; 2],
    block: &mut Block,
    keep: impl Fn(usize, usize) -> V,
) {
    // SAFETY: the caller's promise: what a block has of its columns are `STATE_COLUMNS` each.
    unsafe {
        let of = |values: &[f32; STATE_COLUMNS], column: usize| {
            V::f32(values.as_ptr().add(column * V::LANES))
        };
        let mut change = [V::zero(); 8];
        for (column, change) in change[..STATE_COLUMNS / V::LANES].iter_mut().enumerate() {
            *change = of(&block.columns, column).mul(of(&block.step, column));
        }
        let sums = change_rows(state, keep, key, &change, query);
        for (column, sum) in sums[..STATE_COLUMNS / V::LANES].iter().enumerate() {
            let result = sum.fma(of(&block.columns, column), of(&block.skip, column));
            result.store(block.columns.as_mut_ptr().add(column * V::LANES));
        }
    }
}
