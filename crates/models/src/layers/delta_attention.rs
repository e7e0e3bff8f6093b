//! Linear attention whose projections are apart: of OLMo Hybrid, Kimi Linear and Ling 3.

#![allow(non_snake_case, reason = "a tensor is called so, and the derived code names it too")]

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use outsize_core::Names;
use outsize_kernels::{DeltaGates, LinearAttentionHeads};

use super::attention::QueryPositions;
use super::gated_delta_net::DeltaMixer;
use super::linear::ones;
use super::{CausalConv1d, Linear, RmsNormGated, entered, three};
use crate::{Activations, Error, Init, KvCache, PassShape, RecurrentCache};

/// The sizes of a [`DeltaAttention`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaAttentionConfig {
    /// Heads, of each of which there is a matrix.
    pub heads: LinearAttentionHeads,
    /// Taps of the convolution before them.
    pub taps: usize,
    /// Added to the mean square in the norm of each head.
    pub epsilon: f64,
    /// What says how fast a head forgets, and what its results are multiplied by.
    pub layout: DeltaAttentionLayout,
    /// How both gates of the delta rule are made.
    pub gates: DeltaGates,
    /// Whether `A_log` has what is multiplied by itself, negated, as in GGUF files.
    pub rates_are_negated: bool,
}

/// What gates of a [`DeltaAttention`] are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaAttentionLayout {
    /// A head forgets as a whole; SiLU of a gate, in OLMo Hybrid.
    Heads,
    /// Elements of keys are forgotten by themselves; the sigmoid of a gate. Both by way of a narrow
    /// layer, in Kimi Linear.
    Narrow,
    /// The same without that layer, in Ling 3.
    Wide,
}

impl DeltaAttentionConfig {
    /// What it keeps of a text.
    pub(crate) fn state(&self) -> RecurrentCache {
        let Self { heads, taps, .. } = *self;
        RecurrentCache { heads: Some(heads), channels: heads.channels(), taps }
    }

    /// The rules for the one convolution that transformers has in memory.
    pub(crate) fn names(&self, names: Names) -> Result<Names, outsize_core::Error> {
        let LinearAttentionHeads { key_heads, key_dim, .. } = self.heads;
        let (keys, all) = (key_heads * key_dim, self.heads.channels());
        let parts = [("q", 0..keys), ("k", keys..2 * keys), ("v", 2 * keys..all)];
        parts.into_iter().try_fold(names, |names, (part, rows)| {
            names.or_parts(&format!(r"\.{part}_conv1d\.weight$"), ".conv1d.weight", rows, all)
        })
    }
}

/// A gated delta net ([Yang et al., 2024](https://arxiv.org/abs/2412.06464)), or one that forgets
/// each element of a key by itself ([Kimi Team, 2025](https://arxiv.org/abs/2510.26692)): a
/// convolution over the last tokens, then the [delta rule](outsize_kernels::delta_rule()), then a
/// norm and a gate of each head.
#[derive(Module, Debug)]
pub struct DeltaAttention {
    /// `[key_heads · key_dim, hidden]`.
    pub q_proj: Linear,
    /// `[key_heads · key_dim, hidden]`.
    pub k_proj: Linear,
    /// `[value_heads · value_dim, hidden]`.
    pub v_proj: Linear,
    /// Over queries.
    pub q_conv1d: CausalConv1d,
    /// Over keys.
    pub k_conv1d: CausalConv1d,
    /// Over values.
    pub v_conv1d: CausalConv1d,
    /// `[value_heads, hidden]`: how fast a head forgets.
    pub a_proj: Option<Linear>,
    /// `[key_dim, hidden]`: what the next one takes.
    pub f_a_proj: Option<Linear>,
    /// `[value_heads · key_dim, key_dim]`: how fast elements of keys are forgotten.
    pub f_b_proj: Option<Linear>,
    /// The same of the tokens: `[value_heads · key_dim, hidden]`.
    pub f_proj: Option<Linear>,
    /// `[value_heads, hidden]`: which part is replaced.
    pub b_proj: Linear,
    /// `[value_heads]` or `[value_heads · key_dim]`: added to how fast something is forgotten.
    pub dt_bias: Param<Tensor<1>>,
    /// `[value_heads]`: the logarithm of what that is multiplied by.
    pub A_log: Param<Tensor<1>>,
    /// `[value_heads · value_dim, hidden]`, of a gate.
    pub g_proj: Option<Linear>,
    /// `[value_dim, hidden]`: what the next one takes.
    pub g_a_proj: Option<Linear>,
    /// `[value_heads · value_dim, value_dim]`, of a gate.
    pub g_b_proj: Option<Linear>,
    /// `[value_dim]`: of each head.
    pub o_norm: RmsNormGated,
    /// `[hidden, value_heads · value_dim]`.
    pub o_proj: Linear,
    #[module(skip)]
    heads: LinearAttentionHeads,
    #[module(skip)]
    gates: DeltaGates,
    #[module(skip)]
    rates_are_negated: bool,
}

impl DeltaAttention {
    /// A block without storage.
    pub fn new(hidden: usize, config: &DeltaAttentionConfig, init: &Init) -> Self {
        let DeltaAttentionConfig { heads, taps, layout, gates, rates_are_negated, .. } = *config;
        let LinearAttentionHeads { key_heads, value_heads, key_dim, value_dim, .. } = heads;
        let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, false, init);
        let linear_if = |has: bool, inputs, outputs| has.then(|| linear(inputs, outputs));
        let convolution = |channels| CausalConv1d::new(channels, taps, false, init);
        let (of_heads, is_narrow) =
            (layout == DeltaAttentionLayout::Heads, layout == DeltaAttentionLayout::Narrow);
        let is_wide = layout == DeltaAttentionLayout::Wide;
        let factors = if of_heads { value_heads } else { value_heads * key_dim };
        Self {
            q_proj: linear(hidden, keys),
            k_proj: linear(hidden, keys),
            v_proj: linear(hidden, values),
            q_conv1d: convolution(keys),
            k_conv1d: convolution(keys),
            v_conv1d: convolution(values),
            a_proj: linear_if(of_heads, hidden, factors),
            f_a_proj: linear_if(is_narrow, hidden, key_dim),
            f_b_proj: linear_if(is_narrow, key_dim, factors),
            f_proj: linear_if(is_wide, hidden, factors),
            b_proj: linear(hidden, value_heads),
            dt_bias: ones(factors, &init.device),
            A_log: ones(value_heads, &init.device),
            g_proj: linear_if(!is_narrow, hidden, values),
            g_a_proj: linear_if(is_narrow, hidden, value_dim),
            g_b_proj: linear_if(is_narrow, value_dim, values),
            o_norm: RmsNormGated::new(value_dim, config.epsilon, init).by_sigmoid(!of_heads),
            o_proj: linear(values, hidden),
            heads,
            gates,
            rates_are_negated,
        }
    }

    /// `[batch, tokens, hidden]` f32 to the same. The state of layer `layer` of the cache goes on
    /// with the tokens.
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        positions: &QueryPositions<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let LinearAttentionHeads { value_heads, value_dim, .. } = self.heads;
        let [batch, tokens, _] = x.dims();
        let x = entered(x, &self.o_proj.weight);
        let projected = three([&self.q_proj, &self.k_proj, &self.v_proj], x.clone());
        let of_tokens = [
            Tensor::cat(projected.into(), 2),
            either_way([&self.a_proj, &self.f_proj], [&self.f_a_proj, &self.f_b_proj], &x),
            self.b_proj.forward(x.clone()),
        ];
        let taps = [&self.q_conv1d, &self.k_conv1d, &self.v_conv1d].map(CausalConv1d::taps);
        let mixer = DeltaMixer {
            heads: self.heads,
            gates: self.gates,
            taps: Tensor::cat(taps.into(), 0),
            rates: self.A_log.val().cast(DType::F32),
            forget_bias: self.dt_bias.val().cast(DType::F32),
            rates_are_negated: self.rates_are_negated,
        };
        let mixed = mixer.mix(of_tokens, positions, cache, layer)?;
        let gate = either_way([&self.g_proj, &None], [&self.g_a_proj, &self.g_b_proj], &x);
        drop(x);
        let mixed =
            self.o_norm.forward(mixed, gate.reshape([batch, tokens, value_heads, value_dim]));
        Ok(self.o_proj.forward(mixed.reshape([batch, tokens, value_heads * value_dim])))
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let LinearAttentionHeads { value_heads, value_dim, .. } = self.heads;
        let hidden = self.o_proj.weight.lazy_shape()[0] as u64;
        let (channels, values) = (self.heads.channels() as u64, (value_heads * value_dim) as u64);
        let gates = (value_heads + self.dt_bias.lazy_shape()[0]) as u64;
        // The norm's output throughout. All that is projected, first apart, and the copy of a tiled
        // product.
        let project = 2 * channels + 2 * gates;
        // Queries, keys and values, and gates; what comes of them. Or all of these, and a part of
        // them before a snapshot or behind it, and what comes of it.
        let mix = channels + gates + values + channels + gates;
        // What is mixed, its norm, the gate, its sigmoid and the product; the result and the copy
        // of a tiled product.
        let output = (5 * values).max(values + 2 * hidden);
        let taps = |it: &CausalConv1d| it.weight.lazy_shape().num_elements() as u64;
        let taps: u64 = [&self.q_conv1d, &self.k_conv1d, &self.v_conv1d].map(taps).iter().sum();
        let states = pass.state_values(self.heads.state().iter().map(|&n| n as u64).product());
        Activations::values(
            pass.rows() * (hidden + project.max(mix).max(output)) + 3 * taps + states,
        )
        .with_unpooled(pass.rows() * (channels + 2 * values) + 3 * taps)
    }
}

/// What a layer makes of `x`, the first of some that is there; else two, one behind the other.
fn either_way(one: [&Option<Linear>; 2], two: [&Option<Linear>; 2], x: &Tensor<3>) -> Tensor<3> {
    match (one.into_iter().flatten().next(), two) {
        (Some(layer), _) => layer.forward(x.clone()),
        (None, [Some(first), Some(second)]) => second.forward(first.forward(x.clone())),
        _ => unreachable!("it is made with one of them"),
    }
}
