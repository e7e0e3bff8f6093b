//! Mamba-2: a state space model in place of attention, or beside it.

#![allow(non_snake_case, reason = "a tensor is called so, and the derived code names it too")]

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor, TensorData};
use outsize_kernels::{LinearAttentionHeads, StateRule, causal_convolution, state_space};

use super::attention::QueryPositions;
use super::linear::ones;
use super::rms_norm_gated::silu_gated;
use super::{CausalConv1d, Linear, RmsNormGated};
use crate::kv_cache::RecurrentState;
use crate::{Activations, Error, Init, KvCache, PassShape, RecurrentCache};

/// The sizes of a [`Mamba2Mixer`], and what it is made with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba2Config {
    /// Heads, of each of which there is a matrix. In Mamba-2's words heads of keys are groups, as
    /// wide as the state is large.
    pub heads: LinearAttentionHeads,
    /// Taps of the convolution before them.
    pub taps: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projection from the residual stream has one.
    pub in_bias: bool,
    /// Whether the projection to it has one.
    pub out_bias: bool,
    /// The least step and the greatest, and how rates are stored.
    pub rule: StateRule,
    /// The norm before the last projection, in as many parts as there are heads of keys; without
    /// one there is the gate alone.
    pub norm: Option<Mamba2Norm>,
    /// What gates, values, keys, queries and steps are multiplied by as they are projected.
    pub multipliers: [f64; 5],
}

/// The norm of a [`Mamba2Mixer`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba2Norm {
    /// Added to the mean square.
    pub epsilon: f64,
    /// Whether the gate comes behind it, rather than before.
    pub is_before_gate: bool,
}

impl Mamba2Config {
    /// What it keeps of a text.
    pub(crate) fn state(&self) -> RecurrentCache {
        let Self { heads, taps, .. } = *self;
        RecurrentCache { heads: Some(heads), channels: heads.channels(), taps }
    }

    /// Values of all heads.
    fn inner(&self) -> usize {
        self.heads.value_heads * self.heads.value_dim
    }
}

/// Mamba-2 ([Dao and Gu, 2024](https://arxiv.org/abs/2405.21060)): a convolution over the last
/// tokens, then a [state space model](outsize_kernels::state_space), then a gate and a norm.
#[derive(Module, Debug)]
pub struct Mamba2Mixer {
    /// `[inner + channels + heads, hidden]`: the gates, what the convolution is over, and the
    /// steps.
    pub in_proj: Linear,
    /// Over values, keys and queries.
    pub conv1d: CausalConv1d,
    /// `[heads]`: added to the steps.
    pub dt_bias: Param<Tensor<1>>,
    /// `[heads]`: the logarithm of what is lost for each step; or that, negated.
    pub A_log: Param<Tensor<1>>,
    /// `[heads]`: what part of a value is added to what comes of it.
    pub D: Param<Tensor<1>>,
    /// `[inner]`.
    pub norm: Option<RmsNormGated>,
    /// `[hidden, inner]`.
    pub out_proj: Linear,
    #[module(skip)]
    config: Mamba2Config,
}

impl Mamba2Mixer {
    /// A block without storage.
    pub fn new(hidden: usize, config: &Mamba2Config, init: &Init) -> Self {
        let (heads, inner) = (config.heads, config.inner());
        let of_heads = || ones(heads.value_heads, &init.device);
        let projected = inner + heads.channels() + heads.value_heads;
        let norm = |Mamba2Norm { epsilon, is_before_gate }| {
            let norm = RmsNormGated::new(inner, epsilon, init).in_groups(heads.key_heads);
            if is_before_gate { norm } else { norm.behind_gate() }
        };
        Self {
            in_proj: Linear::new(hidden, projected, config.in_bias, init),
            conv1d: CausalConv1d::new(heads.channels(), config.taps, config.conv_bias, init),
            dt_bias: of_heads(),
            A_log: of_heads(),
            D: of_heads(),
            norm: config.norm.map(norm),
            out_proj: Linear::new(inner, hidden, config.out_bias, init),
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
        let Mamba2Config { heads, rule, .. } = self.config;
        let [gate, mixed, step] = self.projected(x);
        let (taps, conv_bias) = (self.conv1d.taps(), self.conv1d.bias());
        let of_heads = [&self.A_log, &self.dt_bias, &self.D].map(|it| it.val().cast(DType::F32));

        let mixed =
            cache.with_state(layer, positions, [mixed, step], |[mixed, step], state, rows| {
                // The state stays where it is.
                let device = state.inputs.device();
                let [mixed, step] = [mixed, step].map(|values| values.to_device(&device));
                let of_heads = of_heads.each_ref().map(|values| values.clone().to_device(&device));
                let RecurrentState { matrices: Some(matrices), inputs } = state else {
                    unreachable!("a cache of other layers was refused")
                };
                let taps = taps.clone().to_device(&device);
                let conv_bias = conv_bias.clone().map(|bias| bias.to_device(&device));
                let (mixed, inputs) =
                    causal_convolution(mixed, taps, conv_bias, inputs, rows.clone(), true);
                let (mixed, matrices) =
                    state_space(heads, mixed, step, of_heads, rule, matrices, rows);
                (mixed, RecurrentState { matrices: Some(matrices), inputs })
            })?;
        // Streamed ones hold a part of the ring.
        drop((taps, conv_bias, of_heads));

        let mixed = mixed.reshape(gate.dims());
        let mixed = match &self.norm {
            Some(norm) => norm.forward(mixed, gate),
            None => silu_gated(mixed.to_device(&gate.device()), gate),
        };
        Ok(self.out_proj.forward(mixed))
    }

    /// Gates, what the convolution is over, and steps.
    fn projected(&self, x: Tensor<3>) -> [Tensor<3>; 3] {
        let Mamba2Config { heads, multipliers, .. } = self.config;
        let (inner, keys) = (self.config.inner(), heads.key_heads * heads.key_dim);
        let mut all = self.in_proj.forward(x);
        if multipliers != [1.0; 5] {
            let widths = [inner, inner, keys, keys, heads.value_heads];
            let values = multipliers.into_iter().zip(widths);
            let values = values.flat_map(|(by, width)| std::iter::repeat_n(by as f32, width));
            let values = TensorData::new(values.collect::<Vec<f32>>(), [all.dims()[2]]);
            let values = Tensor::<1>::from_data(values, (&all.device(), DType::F32));
            all = all * values.unsqueeze();
        }
        let mut from = 0;
        [inner, heads.channels(), heads.value_heads].map(|width| {
            from += width;
            all.clone().narrow(2, from - width, width)
        })
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let heads = self.config.heads;
        let [projected, hidden] = self.in_proj.widths().map(|n| n as u64);
        let (inner, channels) = (self.config.inner() as u64, heads.channels() as u64);
        let states = pass.state_values(heads.state().iter().map(|&n| n as u64).product());
        // The norm's output, and all that is projected with the copy of a tiled or a biased
        // product, or of one that is multiplied.
        let project = hidden + 2 * projected;
        // All of it, a copy of what goes through convolution and state space, and what comes of it:
        // of two parts around a snapshot, and of both.
        let copied = channels + heads.value_heads as u64;
        let mix = projected + copied + 2 * inner;
        // All of it, a copy of the gates, what is gated and its norm, before and behind the weight.
        let norm = projected + 4 * inner;
        // That, its projection and the copy of a tiled product.
        let output = inner + 2 * hidden;
        let taps: u64 = self.conv1d.weight.lazy_shape().iter().map(|&n| n as u64).product();
        let most = project.max(mix).max(norm).max(output);
        Activations::values(pass.rows() * most + 2 * taps + states)
            .with_unpooled(pass.rows() * (projected + copied.max(2 * inner)) + 2 * taps + states)
    }
}
