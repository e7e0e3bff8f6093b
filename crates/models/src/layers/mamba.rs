//! Mamba: a state space model in place of attention, whose channels have steps of their own.

#![allow(non_snake_case, reason = "a tensor is called so, and the derived code names it too")]

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use outsize_kernels::{LinearAttentionHeads, StateRule, state_space};

use super::attention::QueryPositions;
use super::linear::{lazy, normal, ones};
use super::rms_norm_gated::silu_gated;
use super::{CausalConv1d, Linear, RmsNorm};
use crate::kv_cache::RecurrentState;
use crate::{Activations, Error, Init, KvCache, PassShape, RecurrentCache};

/// The sizes of a [`MambaMixer`], and what it is made with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MambaConfig {
    /// Channels, each of which has a state.
    pub inner: usize,
    /// Elements of a state.
    pub state: usize,
    /// Width of what the steps of all channels are made of.
    pub rank: usize,
    /// Taps of the convolution before them.
    pub taps: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projections from the residual stream and to it have one.
    pub bias: bool,
    /// Norms of what steps, keys and queries are made of, if there are such.
    pub norms: Option<MambaNorms>,
    /// Whether rates are stored negated, rather than as their logarithms.
    pub rates_are_negated: bool,
}

/// The norms of a [`MambaMixer`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MambaNorms {
    /// Added to the mean square.
    pub epsilon: f64,
    /// Whether they have weights.
    pub is_weighted: bool,
}

impl MambaConfig {
    /// What it keeps of a text.
    pub(crate) fn state(&self) -> RecurrentCache {
        RecurrentCache { heads: Some(self.heads()), channels: self.inner, taps: self.taps }
    }

    /// The channels as columns of one matrix.
    fn heads(&self) -> LinearAttentionHeads {
        LinearAttentionHeads {
            key_heads: 1,
            value_heads: 1,
            key_dim: self.state,
            value_dim: self.inner,
            in_turns: false,
        }
    }
}

/// Mamba ([Gu and Dao, 2023](https://arxiv.org/abs/2312.00752)): a convolution over the last
/// tokens, then a [state space model](outsize_kernels::state_space()) whose steps, keys and queries
/// are made of what comes of that, then a gate.
#[derive(Module, Debug)]
pub struct MambaMixer {
    /// `[2 · inner, hidden]`: what the convolution is over, and the gates.
    pub in_proj: Linear,
    /// Over the channels.
    pub conv1d: CausalConv1d,
    /// `[rank + 2 · state, inner]`: what steps are made of, keys and queries.
    pub x_proj: Linear,
    /// `[rank]`.
    pub dt_layernorm: Option<RmsNorm>,
    /// `[state]`: of keys.
    pub b_layernorm: Option<RmsNorm>,
    /// `[state]`: of queries.
    pub c_layernorm: Option<RmsNorm>,
    /// `[inner, rank]`: steps, with what is added to them.
    pub dt_proj: Linear,
    /// `[inner, state]`: the logarithm of what is lost for each step; or that, negated.
    pub A_log: Param<Tensor<2>>,
    /// `[inner]`: what part of a value is added to what comes of it.
    pub D: Param<Tensor<1>>,
    /// `[hidden, inner]`.
    pub out_proj: Linear,
    #[module(skip)]
    config: MambaConfig,
}

impl MambaMixer {
    /// A block without storage.
    pub fn new(hidden: usize, config: &MambaConfig, init: &Init) -> Self {
        let MambaConfig { inner, state, rank, taps, conv_bias, bias, norms, .. } = *config;
        let norm = |width| {
            norms.map(|MambaNorms { epsilon, is_weighted }| {
                let norm = RmsNorm::new(width, epsilon, init);
                if is_weighted { norm } else { norm.unweighted() }
            })
        };
        Self {
            in_proj: Linear::new(hidden, 2 * inner, bias, init),
            conv1d: CausalConv1d::new(inner, taps, conv_bias, init),
            x_proj: Linear::new(inner, rank + 2 * state, false, init),
            dt_layernorm: norm(rank),
            b_layernorm: norm(state),
            c_layernorm: norm(state),
            dt_proj: Linear::new(rank, inner, true, init),
            A_log: lazy([inner, state], &init.device, normal),
            D: ones(inner, &init.device),
            out_proj: Linear::new(inner, hidden, bias, init),
            config: *config,
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
        let MambaConfig { inner, state: width, rates_are_negated, .. } = self.config;
        let projected = self.in_proj.forward(x);
        let mixed = projected.clone().narrow(2, 0, inner);
        let mixed = self.conv1d.forward(mixed, true, positions, cache, layer)?;
        let [steps, keys, queries] = self.selected(mixed.clone());
        let mixed = mixed.to_device(&keys.device());
        let values = Tensor::cat(vec![mixed, keys, queries], 2);
        let rates = self.A_log.val().cast(DType::F32).reshape([inner * width]);
        let skip = self.D.val().cast(DType::F32);
        let mixed = cache.with_state(
            layer,
            positions,
            [values, steps],
            |[values, steps], state, rows| {
                // The state stays where it is.
                let device = state.inputs.device();
                let [values, steps] = [values, steps].map(|of| of.to_device(&device));
                // What is added to steps is in them already.
                let bias = Tensor::zeros([inner], (&device, DType::F32));
                let [rates, skip] = [&rates, &skip].map(|of| of.clone().to_device(&device));
                let RecurrentState { matrices: Some(matrices), inputs } = state else {
                    unreachable!("a cache of other layers was refused")
                };
                let rule = StateRule { rates_are_negated, ..StateRule::default() };
                let heads = self.config.heads();
                let of_columns = [rates, bias, skip];
                let (mixed, matrices) =
                    state_space(heads, values, steps, of_columns, rule, matrices, rows);
                (mixed, RecurrentState { matrices: Some(matrices), inputs })
            },
        )?;
        // Streamed ones hold a part of the ring.
        drop((rates, skip));
        let gate = projected.narrow(2, inner, inner);
        let mixed = mixed.reshape(gate.dims()).to_device(&gate.device());
        Ok(self.out_proj.forward(silu_gated(mixed, gate)))
    }

    /// Steps, keys and queries of what comes of the convolution.
    fn selected(&self, mixed: Tensor<3>) -> [Tensor<3>; 3] {
        let MambaConfig { state, rank, .. } = self.config;
        let selected = self.x_proj.forward(mixed);
        let part = |from, width, norm: &Option<RmsNorm>| {
            let part = selected.clone().narrow(2, from, width);
            norm.as_ref().map_or_else(|| part.clone(), |norm| norm.forward(part.clone()))
        };
        let steps = self.dt_proj.forward(part(0, rank, &self.dt_layernorm));
        let keys = part(rank, state, &self.b_layernorm);
        [steps, keys, part(rank + state, state, &self.c_layernorm)]
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let MambaConfig { inner, state, rank, taps, .. } = self.config;
        let [inner, state, rank, taps] = [inner, state, rank, taps].map(|n| n as u64);
        let hidden = self.in_proj.widths()[1] as u64;
        let selected = rank + 2 * state;
        let states = self.config.heads().state().iter().map(|&n| n as u64).product();
        let states = pass.state_values(states);
        // The norm's output and all that is projected with the copy of a tiled or a biased product.
        let project = hidden + 4 * inner;
        // All that is projected; what comes of the convolution; that is selected, with a copy of a
        // tiled product, and its norms; steps with the same; or steps, what goes into the state
        // space and what comes of it, of two parts around a snapshot, and of both.
        let mix = 3 * inner + 3 * selected + (2 * inner).max(3 * inner + 2 * state);
        // All of it, a copy of the gates, what is mixed and what is gated; its projection and the
        // copy of a tiled product.
        let output = (5 * inner).max(inner + 2 * hidden);
        // Of the convolution and of the channels.
        let weights = inner * (2 * taps + state + 3);
        let most = project.max(mix).max(output);
        Activations::values(pass.rows() * most + weights + states)
            .with_unpooled(pass.rows() * (5 * inner + 2 * selected) + weights + states)
    }
}
