//! Linear attention: a state of one size in place of keys and values.

#![allow(non_snake_case, reason = "a tensor is called so, and the derived code names it too")]

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use outsize_core::Names;
use outsize_kernels::{DeltaGates, LinearAttentionHeads, causal_convolution, delta_rule};

use super::attention::QueryPositions;
use super::linear::ones;
use super::{CausalConv1d, Linear, RmsNormGated, entered};
use crate::kv_cache::RecurrentState;
use crate::{Activations, Error, Init, KvCache, PassShape, RecurrentCache};

/// The sizes of a [`GatedDeltaNet`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GatedDeltaNetConfig {
    /// Heads, of each of which there is a matrix.
    pub heads: LinearAttentionHeads,
    /// Taps of the convolution before them.
    pub taps: usize,
    /// Added to the mean square in the norm of each head.
    pub epsilon: f64,
    /// Which matrices are one.
    pub layout: DeltaLayout,
    /// Whether rates are stored negated, rather than as their logarithms.
    pub rates_are_negated: bool,
}

impl GatedDeltaNetConfig {
    /// What it keeps of a text.
    pub(crate) fn state(&self) -> RecurrentCache {
        let Self { heads, taps, .. } = *self;
        RecurrentCache { heads: Some(heads), channels: heads.channels(), taps }
    }

    /// The rules for the one matrix that Lara is published with.
    pub(crate) fn names(&self, names: Names) -> Result<Names, outsize_core::Error> {
        let LinearAttentionHeads { value_heads, value_dim, .. } = self.heads;
        let (mixed, gates) = (self.heads.channels(), value_heads * value_dim);
        let parts = [("qkv", mixed), ("z", gates), ("b", value_heads), ("a", value_heads)];
        let (mut start, all) = (0, parts.iter().map(|(_, rows)| rows).sum());
        parts.into_iter().try_fold(names, |names, (part, rows)| {
            let rows = start..start + rows;
            start = rows.end;
            names.or_parts(&format!(r"\.in_proj_{part}\.weight$"), ".in_proj.weight", rows, all)
        })
    }
}

/// Which matrices of a [`GatedDeltaNet`] are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaLayout {
    /// What makes queries, keys, values and gates; and what makes the two numbers of a head. Both
    /// head by head.
    Joint,
    /// The latter alone.
    JointGates,
    /// None of these.
    Apart,
}

/// A gated delta net ([Yang et al., 2024](https://arxiv.org/abs/2412.06464)): a convolution over
/// the last tokens, then the [delta rule](outsize_kernels::delta_rule), then a norm and a gate of
/// each head.
#[derive(Module, Debug)]
pub struct GatedDeltaNet {
    /// `[2 · key_heads · key_dim + 2 · value_heads · value_dim,
    /// hidden]`: of each head of keys its query, its key, the values and the gates of its heads.
    pub in_proj_qkvz: Option<Linear>,
    /// `[2 · value_heads, hidden]`: of each head of keys, which parts its heads replace, then how
    /// fast they forget.
    pub in_proj_ba: Option<Linear>,
    /// `[2 · key_heads · key_dim + value_heads · value_dim,
    /// hidden]`, where they are apart: all queries, keys and values.
    pub in_proj_qkv: Option<Linear>,
    /// `[value_heads · value_dim, hidden]`: all gates.
    pub in_proj_z: Option<Linear>,
    /// `[value_heads, hidden]`: which part is replaced.
    pub in_proj_b: Option<Linear>,
    /// `[value_heads, hidden]`: how fast a head forgets.
    pub in_proj_a: Option<Linear>,
    /// Over queries, keys and values.
    pub conv1d: CausalConv1d,
    /// `[value_heads]`: added to how fast a head forgets.
    pub dt_bias: Param<Tensor<1>>,
    /// `[value_heads]`: the logarithm of what that is multiplied by; or what it is multiplied by,
    /// negated.
    pub A_log: Param<Tensor<1>>,
    /// `[value_dim]`: of each head.
    pub norm: RmsNormGated,
    /// `[hidden, value_heads · value_dim]`.
    pub out_proj: Linear,
    #[module(skip)]
    heads: LinearAttentionHeads,
    rates_are_negated: bool,
}

/// What passes between tokens: a convolution, then the delta rule. Streamed, it holds a part of the
/// ring.
pub(super) struct DeltaMixer {
    pub heads: LinearAttentionHeads,
    pub gates: DeltaGates,
    /// `[channels, taps]`.
    pub taps: Tensor<2>,
    /// `[value_heads]`, or their logarithms.
    pub rates: Tensor<1>,
    /// `[value_heads]`, or as many for each element of a key.
    pub forget_bias: Tensor<1>,
    pub rates_are_negated: bool,
}

impl DeltaMixer {
    /// What comes, `[batch, tokens, value_heads, value_dim]`, of queries, keys and values, of what
    /// is forgotten and of what is replaced. The state of layer `layer` of the cache goes on with
    /// the tokens.
    pub fn mix(
        self,
        of_tokens: [Tensor<3>; 3],
        positions: &QueryPositions<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<4>, Error> {
        cache.with_state(layer, positions, of_tokens, |of_tokens, state, rows| {
            // The state stays where it is.
            let device = state.inputs.device();
            let [mixed, forget, write] = of_tokens.map(|values| values.to_device(&device));
            let of_heads = [&self.rates, &self.forget_bias];
            let [rates, bias] = of_heads.map(|values| values.clone().to_device(&device));
            let rates = if self.rates_are_negated { rates.neg() } else { rates.exp() };
            let RecurrentState { matrices: Some(matrices), inputs } = state else {
                unreachable!("a cache of other layers was refused")
            };
            let taps = self.taps.clone().to_device(&device);
            let (mixed, inputs) = causal_convolution(mixed, taps, None, inputs, rows.clone(), true);
            let (forgotten, of_heads) = ([forget, write], [rates, bias]);
            let (mixed, matrices) =
                delta_rule(self.heads, self.gates, mixed, forgotten, of_heads, matrices, rows);
            (mixed, RecurrentState { matrices: Some(matrices), inputs })
        })
    }
}

/// What is made of the tokens before anything passes between them: `[batch, tokens, ..]`.
struct Projected {
    /// Queries, keys and values of all heads.
    mixed: Tensor<3>,
    gate: Tensor<3>,
    write: Tensor<3>,
    forget: Tensor<3>,
}

impl GatedDeltaNet {
    /// A block without storage.
    pub fn new(hidden: usize, config: &GatedDeltaNetConfig, init: &Init) -> Self {
        let GatedDeltaNetConfig { heads, taps, .. } = *config;
        let (channels, values) = (heads.channels(), heads.value_heads * heads.value_dim);
        let linear = |outputs| Linear::new(hidden, outputs, false, init);
        let linear_if = |has: bool, outputs| has.then(|| linear(outputs));
        let is_joint = config.layout == DeltaLayout::Joint;
        let are_apart = config.layout == DeltaLayout::Apart;
        Self {
            in_proj_qkvz: linear_if(is_joint, channels + values),
            in_proj_ba: linear_if(!are_apart, 2 * heads.value_heads),
            in_proj_qkv: linear_if(!is_joint, channels),
            in_proj_z: linear_if(!is_joint, values),
            in_proj_b: linear_if(are_apart, heads.value_heads),
            in_proj_a: linear_if(are_apart, heads.value_heads),
            conv1d: CausalConv1d::new(channels, taps, false, init),
            dt_bias: ones(heads.value_heads, &init.device),
            A_log: ones(heads.value_heads, &init.device),
            norm: RmsNormGated::new(heads.value_dim, config.epsilon, init),
            out_proj: Linear::new(values, hidden, false, init),
            heads,
            rates_are_negated: config.rates_are_negated,
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
        let Projected { mixed, gate, write, forget } = self.projected(x);
        let mixer = DeltaMixer {
            heads: self.heads,
            gates: DeltaGates::default(),
            taps: self.conv1d.taps(),
            rates: self.A_log.val().cast(DType::F32),
            forget_bias: self.dt_bias.val().cast(DType::F32),
            rates_are_negated: self.rates_are_negated,
        };
        let mixed = mixer.mix([mixed, forget, write], positions, cache, layer)?;
        let gate = gate.reshape([batch, tokens, value_heads, value_dim]);
        let mixed = self.norm.forward(mixed, gate);
        Ok(self.out_proj.forward(mixed.reshape([batch, tokens, value_heads * value_dim])))
    }

    fn projected(&self, x: Tensor<3>) -> Projected {
        let x = entered(x, &self.out_proj.weight);
        let LinearAttentionHeads { key_heads, value_heads, key_dim, value_dim, .. } = self.heads;
        let of_key = value_heads / key_heads;
        let [write, forget] = match (&self.in_proj_ba, &self.in_proj_b, &self.in_proj_a) {
            (Some(both), ..) => by_head(both.forward(x.clone()), key_heads, [of_key, of_key]),
            (None, Some(write), Some(forget)) => {
                [write.forward(x.clone()), forget.forward(x.clone())]
            }
            _ => unreachable!("they are made as one or apart"),
        };
        let (mixed, gate) = match (&self.in_proj_qkvz, &self.in_proj_qkv, &self.in_proj_z) {
            (Some(all), ..) => {
                let values = of_key * value_dim;
                let widths = [key_dim, key_dim, values, values];
                let [queries, keys, values, gate] = by_head(all.forward(x), key_heads, widths);
                (Tensor::cat(vec![queries, keys, values], 2), gate)
            }
            (None, Some(mixed), Some(gate)) => (mixed.forward(x.clone()), gate.forward(x)),
            _ => unreachable!("they are made as one or apart"),
        };
        Projected { mixed, gate, write, forget }
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let LinearAttentionHeads { value_heads, value_dim, .. } = self.heads;
        let hidden = self.out_proj.weight.lazy_shape()[0] as u64;
        let (channels, values) = (self.heads.channels() as u64, (value_heads * value_dim) as u64);
        let gates = 2 * value_heads as u64;
        // The norm's output; all that is projected, and as much again for the copy of a tiled
        // product, or for the parts of heads and what is made of them.
        let copies = if self.in_proj_qkvz.is_some() { 2 * channels + values } else { channels };
        let project = hidden + channels + values + copies + 2 * gates;
        // Queries, keys, values and gates; what comes of them, its norm. Or all of these, and a
        // part of them before a snapshot or behind it, and what comes of it.
        let mix = channels + values + gates + (2 * values).max(channels + values);
        // The gated result, its projection and the copy of a tiled product.
        let output = values + 2 * hidden;
        let state: u64 = self.conv1d.weight.lazy_shape().iter().map(|&n| n as u64).product();
        let unpooled = if self.in_proj_qkvz.is_some() { copies } else { 0 };
        let states = pass.state_values(self.heads.state().iter().map(|&n| n as u64).product());
        Activations::values(pass.rows() * project.max(mix).max(output) + 2 * state + states)
            .with_unpooled(pass.rows() * unpooled + 2 * state)
    }
}

/// Parts of so many widths that each head of `[batch, tokens, heads · width]` has, one behind the
/// other: of all heads together.
pub(super) fn by_head<const N: usize>(
    x: Tensor<3>,
    heads: usize,
    widths: [usize; N],
) -> [Tensor<3>; N] {
    let [batch, tokens, all] = x.dims();
    let x = x.reshape([batch, tokens, heads, all / heads]);
    let mut from = 0;
    widths.map(|width| {
        from += width;
        let part = x.clone().narrow(3, from - width, width);
        part.reshape([batch, tokens, heads * width])
    })
}
