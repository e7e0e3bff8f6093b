//! The layers of T5's encoder and decoder, each behind a norm and added to the residual stream.

#![allow(non_snake_case, reason = "fields have the names of the checkpoint's modules")]

use burn::module::Module;
use burn::tensor::Tensor;

use super::T5Config;
use crate::architecture::Init;
use crate::layers::{
    Activation, Embedding, Linear, PositionBias, QueryPositions, RmsNorm, Scores, attend_all,
    attend_prompt, attend_with, gated_down, three,
};
use crate::{Activations, Error, KvCache, PassShape};

/// The layers of one depth.
#[derive(Module, Debug)]
pub(super) struct T5Block<L: Module> {
    pub layer: L,
}

/// Self-attention behind a norm.
#[derive(Module, Debug)]
pub(super) struct T5LayerSelfAttention {
    /// `[hidden]`.
    pub layer_norm: RmsNorm,
    pub SelfAttention: T5Attention,
}

/// Cross-attention behind a norm.
#[derive(Module, Debug)]
pub(super) struct T5LayerCrossAttention {
    /// `[hidden]`.
    pub layer_norm: RmsNorm,
    pub EncDecAttention: T5Attention,
}

/// The MLP behind a norm.
#[derive(Module, Debug)]
pub(super) struct T5LayerFeedForward {
    /// `[hidden]`.
    pub layer_norm: RmsNorm,
    pub DenseReluDense: T5DenseActDense,
}

/// Attention whose scores are not scaled, and know positions by a bias.
#[derive(Module, Debug)]
pub(super) struct T5Attention {
    /// `[buckets, heads]`, in the first layer.
    pub relative_attention_bias: Option<Embedding>,
    /// `[heads · d_kv, hidden]`.
    q: Linear,
    /// `[heads · d_kv, hidden]`.
    k: Linear,
    /// `[heads · d_kv, hidden]`.
    v: Linear,
    /// `[hidden, heads · d_kv]`.
    o: Linear,
    heads: usize,
    d_kv: usize,
}

/// `wo(act(wi(x)))`, or `wo(act(wi_0(x)) · wi_1(x))`.
#[derive(Module, Debug)]
pub(super) struct T5DenseActDense {
    /// `[inner, hidden]`, if not gated.
    wi: Option<Linear>,
    /// `[inner, hidden]`, if gated.
    wi_0: Option<Linear>,
    /// `[inner, hidden]`, if gated.
    wi_1: Option<Linear>,
    /// `[hidden, inner]`.
    wo: Linear,
    #[module(skip)]
    activation: Activation,
}

fn norm(config: &T5Config, init: &Init) -> RmsNorm {
    RmsNorm::new(config.d_model, config.layer_norm_epsilon, init)
}

impl T5LayerSelfAttention {
    pub fn new(config: &T5Config, has_bias: bool, init: &Init) -> Self {
        let SelfAttention = T5Attention::new(config, has_bias, init);
        Self { SelfAttention, layer_norm: norm(config, init) }
    }
}

impl T5LayerCrossAttention {
    pub fn new(config: &T5Config, init: &Init) -> Self {
        let EncDecAttention = T5Attention::new(config, false, init);
        Self { EncDecAttention, layer_norm: norm(config, init) }
    }
}

impl T5LayerFeedForward {
    pub fn new(config: &T5Config, init: &Init) -> Self {
        let wi = || Linear::new(config.d_model, config.d_ff, false, init);
        let gated = config.is_gated;
        let DenseReluDense = T5DenseActDense {
            wi: (!gated).then(wi),
            wi_0: gated.then(wi),
            wi_1: gated.then(wi),
            wo: Linear::new(config.d_ff, config.d_model, false, init),
            activation: config.activation,
        };
        Self { DenseReluDense, layer_norm: norm(config, init) }
    }
}

impl T5Attention {
    fn new(config: &T5Config, has_bias: bool, init: &Init) -> Self {
        let (hidden, heads, d_kv) = (config.d_model, config.num_heads, config.d_kv);
        let inwards = || Linear::new(hidden, heads * d_kv, false, init);
        let table = || Embedding::new(config.relative_attention_num_buckets, heads, init);
        Self {
            q: inwards(),
            k: inwards(),
            v: inwards(),
            o: Linear::new(heads * d_kv, hidden, false, init),
            relative_attention_bias: has_bias.then(table),
            heads,
            d_kv,
        }
    }

    pub fn heads(&self) -> usize {
        self.heads
    }

    /// `[batch, tokens, heads · d_kv]` to `[batch, tokens, heads, d_kv]`.
    fn split(&self, y: Tensor<3>) -> Tensor<4> {
        let [batch, tokens, _] = y.dims();
        y.reshape([batch, tokens, self.heads, self.d_kv])
    }

    /// Scores are not scaled.
    fn scores<'a>(&self, bias: Option<&'a PositionBias>) -> Scores<'a> {
        Scores { compute: self.o.compute, scale: Some(1.0), softcap: None, bias, sinks: None }
    }

    /// In an encoder, where all tokens see each other: `[batch, tokens, hidden]` f32 to the same.
    pub fn encode(
        &self,
        x: Tensor<3>,
        bias: Option<&PositionBias>,
        positions: &QueryPositions<'_>,
    ) -> Tensor<3> {
        let projected = three([&self.q, &self.k, &self.v], x).map(|y| self.split(y));
        self.o.forward(attend_all(projected, self.scores(bias), positions))
    }

    /// In a decoder: `[batch, tokens, hidden]` f32 to the same. The tokens' keys and values are
    /// appended to layer `layer` of the cache.
    pub fn decode(
        &self,
        x: Tensor<3>,
        bias: Option<&PositionBias>,
        positions: &QueryPositions<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let projected = three([&self.q, &self.k, &self.v], x).map(|y| self.split(y));
        let mixed = attend_with(projected, self.scores(bias), positions, cache, layer)?;
        Ok(self.o.forward(mixed))
    }

    /// Over the prompt that the encoder read: `[batch, tokens, hidden]` f32 to the same.
    pub fn over_prompt(
        &self,
        x: Tensor<3>,
        cache: &KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let queries = self.split(self.q.forward(x));
        Ok(self.o.forward(attend_prompt(queries, self.scores(None), cache, layer)?))
    }

    /// Keys and values of the encoder's states `[batch, tokens, hidden]`:
    /// `[batch, tokens, heads, d_kv]` f32 each.
    pub fn keys_and_values(&self, states: &Tensor<3>) -> (Tensor<4>, Tensor<4>) {
        let [keys, values] =
            [&self.k, &self.v].map(|layer| self.split(layer.forward(states.clone())));
        (keys, values)
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let [hidden, inner]: [usize; 2] = self.o.weight.lazy_shape().dims();
        let (hidden, inner) = (hidden as u64, inner as u64);
        // The norm's output and the three projections, of which one is twice there if it comes in
        // tiles; these and attention's result; its projection and the copy of a tiled one.
        let project = hidden + 4 * inner;
        let held_back = if pass.holds_back() { 2 * inner } else { 0 };
        let attend = 4 * inner + held_back;
        let output = inner + 2 * hidden;
        let scratch = pass.attention_scratch(self.heads, self.heads, self.d_kv);
        Activations::values(pass.rows() * project.max(attend).max(output))
            .with_unpooled(pass.rows() * (2 * inner + held_back))
            .with_scratch(scratch)
    }

    /// The same of [`keys_and_values`](Self::keys_and_values), with the states and what the cache
    /// makes of them.
    pub fn activations_of_prompt(&self, prompt: &PassShape) -> Activations {
        let [hidden, inner]: [usize; 2] = self.o.weight.lazy_shape().dims();
        Activations::values(prompt.rows() * (hidden as u64 + 4 * inner as u64))
            .with_unpooled(prompt.rows() * 2 * inner as u64)
    }
}

impl T5DenseActDense {
    /// `[batch, tokens, hidden]` f32 to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        match (&self.wi, &self.wi_0, &self.wi_1) {
            (_, Some(gate), Some(up)) => gated_down([gate, up], &self.wo, self.activation, x),
            (Some(wi), ..) => self.wo.forward(self.activation.activate(wi.forward(x))),
            _ => unreachable!("a layer has either or"),
        }
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let [hidden, inner]: [usize; 2] = self.wo.weight.lazy_shape().dims();
        // The norm's output or the result, and the inner layer with its gate and a copy.
        Activations::values(pass.rows() * (hidden as u64 + 3 * inner as u64)).with_unpooled(0)
    }
}
