//! A convolution over the last few tokens, of each channel by itself, and perhaps SiLU of that;
//! over slices.

use crate::Isa;
use crate::activation::swish;
use crate::matmul::{Claims, OutputPtr};
use crate::simd::for_each_isa;
use crate::state_rows::StateRows;

/// Channels that are worked on at a time: half a page, since those of the next token are in another
/// one.
const BLOCK: usize = 512;

/// A convolution of some texts.
#[derive(Debug)]
pub struct CausalConvolution<'a> {
    /// `[texts, tokens, channels]`; in the end what comes of them. Zero where a text has not begun.
    pub x: &'a mut [f32],
    /// Channels.
    pub channels: usize,
    /// `[channels, taps]`: the last tap is that of the token itself.
    pub weight: &'a [f32],
    /// `[channels]`: what is added.
    pub bias: &'a [f32],
    /// Of rows of texts, the last inputs, `[rows, taps - 1, channels]`, the oldest first.
    pub state: &'a mut [f32],
    /// Which rows are those of the texts.
    pub rows: &'a StateRows,
    /// Whether SiLU comes behind it.
    pub is_activated: bool,
}

/// Writes `bias + Σ weight[tap] · x[token + 1 - taps + tap]`, or SiLU of it, to `x`, and the last
/// inputs to the state. The bits do not depend on how a text is cut, on texts beside it, on threads
/// or on instructions.
///
/// # Panics
///
/// If sizes do not fit each other, or if this processor does not have `isa`.
pub fn convolve_causally(isa: Isa, convolution: CausalConvolution<'_>) {
    let CausalConvolution { x, channels, weight, bias, state, rows, is_activated } = convolution;
    let texts = rows.begins.len();
    let taps = weight.len() / channels.max(1);
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    assert!(
        taps > 1 && weight.len() == channels * taps,
        "convolution: a weight of {} elements for {channels} channels",
        weight.len()
    );
    assert_eq!(bias.len(), channels, "convolution: bias");
    assert!(
        texts > 0 && x.len().is_multiple_of(texts * channels),
        "convolution: {texts} texts of {channels} channels must fill {}",
        x.len()
    );
    let row = (taps - 1) * channels;
    assert!(
        state.len() >= (rows.first + texts) * row,
        "convolution: a state of {} elements has no row {}",
        state.len(),
        rows.first + texts - 1
    );
    let tokens = x.len() / (texts * channels);
    let blocks = channels.div_ceil(BLOCK);
    // A thread is worth some thousand elements.
    let threads = crate::threads().min((x.len() * taps).div_ceil(1 << 15));
    let shared = Shared {
        x: OutputPtr(x.as_mut_ptr()),
        state: OutputPtr(state[rows.first * row..].as_mut_ptr()),
        weight,
        bias,
        begins: &rows.begins,
        is_activated,
        sizes: [tokens, channels, taps],
        claims: Claims::of(texts * blocks, threads),
    };
    // SAFETY: the assertions: the processor has `isa`, and all sizes are as `work` asks for.
    crate::thread_pool::share(threads, || unsafe { work(isa, &shared) });
}

struct Shared<'a> {
    x: OutputPtr,
    state: OutputPtr,
    weight: &'a [f32],
    bias: &'a [f32],
    begins: &'a [Option<usize>],
    is_activated: bool,
    /// Tokens, channels, taps.
    sizes: [usize; 3],
    /// Of a text, a block of channels.
    claims: Claims,
}

for_each_isa! {
    /// # Safety
    ///
    /// `x` points to `[texts, tokens, channels]` and `state` to `[texts, taps - 1, channels]`
    /// elements which nobody but calls of this with the same claims touches.
    unsafe fn work<V>(shared: &Shared<'_>) {
        let [tokens, channels, taps] = shared.sizes;
        let blocks = channels.div_ceil(BLOCK);
        // Of each tap one number a channel; then the inputs of as many tokens.
        let mut weights = vec![[0.0f32; BLOCK]; taps];
        let mut inputs = vec![[0.0f32; BLOCK]; taps];
        let mut sums = [0.0f32; BLOCK];
        while let Some(claimed) = shared.claims.claim() {
            for task in claimed {
                let (text, start) = (task / blocks, task % blocks * BLOCK);
                let width = BLOCK.min(channels - start);
                for (tap, weights) in weights.iter_mut().enumerate() {
                    for (channel, weight) in weights[..width].iter_mut().enumerate() {
                        *weight = shared.weight[(start + channel) * taps + tap];
                    }
                }
                let begin = shared.begins[text];
                // Those before the pass are in the places of tokens -1, -2 …
                for (tap, inputs) in inputs[1..].iter_mut().enumerate() {
                    let at = (text * (taps - 1) + tap) * channels + start;
                    // SAFETY: within the state; a block of a text is claimed once.
                    let held = unsafe { std::slice::from_raw_parts(shared.state.0.add(at), width) };
                    inputs[..width].copy_from_slice(held);
                }
                for token in 0..tokens {
                    let at = (text * tokens + token) * channels + start;
                    // SAFETY: likewise within `x`.
                    let x = unsafe { std::slice::from_raw_parts_mut(shared.x.0.add(at), width) };
                    if begin.is_some_and(|begin| token < begin) {
                        x.fill(0.0);
                        continue;
                    }
                    if begin == Some(token) {
                        inputs.fill([0.0; BLOCK]);
                    }
                    inputs[token % taps][..width].copy_from_slice(x);
                    sums[..width].copy_from_slice(&shared.bias[start..start + width]);
                    for (tap, weights) in weights.iter().enumerate() {
                        let inputs = &inputs[(token + 1 + tap) % taps];
                        for i in 0..BLOCK {
                            sums[i] += weights[i] * inputs[i];
                        }
                    }
                    for (x, sum) in x.iter_mut().zip(&sums) {
                        *x = if shared.is_activated { swish(*sum, *sum) } else { *sum };
                    }
                }
                for tap in 0..taps - 1 {
                    let at = (text * (taps - 1) + tap) * channels + start;
                    // SAFETY: as where they were read.
                    let held = unsafe { std::slice::from_raw_parts_mut(shared.state.0.add(at), width) };
                    held.copy_from_slice(&inputs[(tokens + 1 + tap) % taps][..width]);
                }
            }
        }
    }
}
