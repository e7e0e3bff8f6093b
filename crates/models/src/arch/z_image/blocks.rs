//! The blocks, of attention and MLP, each between two norms.

#![allow(non_snake_case, reason = "a module is called so, and the derived code names it too")]

use burn::module::Module;
use burn::tensor::Tensor;

use super::ZImageTransformer2dConfig;
use super::sequences::Sequences;
use crate::architecture::Init;
use crate::layers::{
    Activation, Linear, RmsNorm, attend_tokens, heads, joined, normed_heads, tanh,
};

/// What norms of queries and keys add to mean squares.
const EPSILON: f64 = 1e-5;

/// Attention and an MLP, whose norms the time scales if the block knows it.
#[derive(Module, Debug)]
pub(super) struct ZImageTransformerBlock {
    // In the order of use.
    /// `[4 · hidden, time]`; one layer, or none.
    adaLN_modulation: Vec<Linear>,
    attention_norm1: RmsNorm,
    attention: ZImageAttention,
    attention_norm2: RmsNorm,
    ffn_norm1: RmsNorm,
    feed_forward: ZImageFeedForward,
    ffn_norm2: RmsNorm,
}

/// Attention among the tokens of a sequence.
#[derive(Module, Debug)]
struct ZImageAttention {
    // In the order of use.
    to_q: Linear,
    norm_q: RmsNorm,
    to_k: Linear,
    norm_k: RmsNorm,
    to_v: Linear,
    /// `[hidden, hidden]`; one layer.
    to_out: Vec<Linear>,
}

/// `w2(silu(w1(x)) · w3(x))`.
#[derive(Module, Debug)]
struct ZImageFeedForward {
    // In the order of use.
    w1: Linear,
    w3: Linear,
    w2: Linear,
}

impl ZImageTransformerBlock {
    /// A block without storage; `time` is the width of a time's embedding, if the block knows it.
    pub fn new(config: &ZImageTransformer2dConfig, time: Option<usize>, init: &Init) -> Self {
        let (hidden, inner) = (config.dim, config.inner());
        let norm = || RmsNorm::new(hidden, config.norm_eps, init);
        let head_norm = || RmsNorm::new(hidden / config.n_heads, EPSILON, init);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, false, init);
        Self {
            adaLN_modulation: time
                .map(|width| Linear::new(width, 4 * hidden, true, init))
                .into_iter()
                .collect(),
            attention_norm1: norm(),
            attention: ZImageAttention {
                to_q: linear(hidden, hidden),
                norm_q: head_norm(),
                to_k: linear(hidden, hidden),
                norm_k: head_norm(),
                to_v: linear(hidden, hidden),
                to_out: vec![linear(hidden, hidden)],
            },
            attention_norm2: norm(),
            ffn_norm1: norm(),
            feed_forward: ZImageFeedForward {
                w1: linear(hidden, inner),
                w3: linear(hidden, inner),
                w2: linear(inner, hidden),
            },
            ffn_norm2: norm(),
        }
    }

    /// Tokens of all sequences, `[1, tokens, hidden]` f32, to the same, for the embedding of a time
    /// `[1, time]` f32.
    pub fn forward(&self, x: Tensor<3>, time: &Tensor<2>, sequences: &Sequences) -> Tensor<3> {
        let x = self.attention_norm1.entered(x);
        let factors = self.factors(time);
        let scaled = |norm: &RmsNorm, x: Tensor<3>, part: usize| match &factors {
            Some(factors) => norm.forward_scaled(x, factors[part].clone()),
            None => norm.forward(x),
        };
        let mixed = self.attention.forward(scaled(&self.attention_norm1, x.clone(), 0), sequences);
        let x = x + scaled(&self.attention_norm2, mixed, 1);
        let inner = self.feed_forward.forward(scaled(&self.ffn_norm1, x.clone(), 2));
        x + scaled(&self.ffn_norm2, inner, 3)
    }

    /// What the norms are multiplied with, `[hidden]` f32 each, in their order: what goes into a
    /// branch with a scale, what comes of it with a share.
    fn factors(&self, time: &Tensor<2>) -> Option<[Tensor<1>; 4]> {
        let all = self.adaLN_modulation.first()?.forward(time.clone());
        let hidden = all.dims()[1] / 4;
        Some(std::array::from_fn(|part| {
            let part_values = all.clone().narrow(1, part * hidden, hidden).reshape([hidden]);
            match part % 2 {
                0 => part_values.add_scalar(1.0),
                _ => tanh(part_values),
            }
        }))
    }
}

impl ZImageAttention {
    fn forward(&self, x: Tensor<3>, Sequences { lengths, rotation }: &Sequences) -> Tensor<3> {
        let queries = rotation.apply(normed_heads(&self.to_q, &self.norm_q, &x));
        let keys = rotation.apply(normed_heads(&self.to_k, &self.norm_k, &x));
        let values = heads(&self.to_v, &x, self.norm_q.width());
        drop(x);
        let all = [queries, keys, values];
        let mut start = 0;
        let mixed = lengths.iter().map(|length| {
            let own = all.clone().map(|part| part.narrow(1, start, *length));
            start += length;
            attend_tokens(self.to_q.compute, own)
        });
        let mixed: Vec<_> = mixed.collect();
        drop(all);
        let mixed = joined(mixed, 1);
        self.to_out.iter().fold(mixed, |x, linear| linear.forward_pixels(x))
    }
}

impl ZImageFeedForward {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let gate = self.w1.forward_pixels(x.clone());
        let inner = Activation::Silu.gate(gate, self.w3.forward_pixels(x));
        self.w2.forward_pixels(inner)
    }
}
