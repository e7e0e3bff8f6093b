//! Linear attention whose states lose a fixed part with each token.

use burn::module::Module;
use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_kernels::{LinearAttentionHeads, StateRule, state_space};

use super::attention::QueryPositions;
use super::gated_delta_net::by_head;
use super::{Activation, Linear, RmsNorm, entered};
use crate::kv_cache::RecurrentState;
use crate::{Activations, Error, Init, KvCache, PassShape, RecurrentCache};

/// The norm of what comes of all heads adds this, whatever others add.
const EPSILON: f64 = 1e-6;

/// The sizes of a [`LightningAttention`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LightningAttentionConfig {
    /// Heads, of each of which there is a matrix.
    pub heads: usize,
    /// Width of queries, keys and values of a head.
    pub head_dim: usize,
    /// Layers of the model: the later ones lose less.
    pub layers: usize,
    /// The function that queries, keys and values go through.
    pub activation: Activation,
}

impl LightningAttentionConfig {
    /// What it keeps of a text.
    pub(crate) fn state(&self) -> RecurrentCache {
        // Without a convolution: one number, which nothing reads.
        RecurrentCache { heads: Some(self.state_heads()), channels: 1, taps: 2 }
    }

    fn state_heads(&self) -> LinearAttentionHeads {
        LinearAttentionHeads {
            key_heads: self.heads,
            value_heads: self.heads,
            key_dim: self.head_dim,
            value_dim: self.head_dim,
            in_turns: false,
        }
    }
}

/// Lightning attention ([Qin et al., 2024](https://arxiv.org/abs/2405.17381)): a [state space
/// model](outsize_kernels::state_space()) whose steps are all alike, then a norm of all heads and a
/// gate.
#[derive(Module, Debug)]
pub struct LightningAttention {
    /// `[heads · 3 · head_dim, hidden]`: of each head its query, its key and its value.
    pub qkv_proj: Linear,
    /// `[heads · head_dim]`.
    pub norm: RmsNorm,
    /// `[heads · head_dim, hidden]`.
    pub output_gate: Linear,
    /// `[hidden, heads · head_dim]`.
    pub out_proj: Linear,
    #[module(skip)]
    config: LightningAttentionConfig,
    /// Which layer it is.
    layer: usize,
}

impl LightningAttention {
    /// The block of that layer, without storage.
    pub fn new(
        hidden: usize,
        config: &LightningAttentionConfig,
        layer: usize,
        init: &Init,
    ) -> Self {
        let width = config.heads * config.head_dim;
        let linear = |inputs, outputs| Linear::new(inputs, outputs, false, init);
        Self {
            qkv_proj: linear(hidden, 3 * width),
            norm: RmsNorm::new(width, EPSILON, init),
            output_gate: linear(hidden, width),
            out_proj: linear(width, hidden),
            config: *config,
            layer,
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
        let LightningAttentionConfig { heads, head_dim, activation, .. } = self.config;
        let x = entered(x, &self.out_proj.weight);
        let [batch, tokens, _] = x.dims();
        let projected = activation.activate(self.qkv_proj.forward(x.clone()));
        let [queries, keys, values] = by_head(projected, heads, [head_dim; 3]);
        let of_tokens = [Tensor::cat(vec![values, keys, queries], 2)];
        let mixed = cache.with_state(layer, positions, of_tokens, |[mixed], state, rows| {
            // The state stays where it is.
            let device = state.inputs.device();
            let RecurrentState { matrices: Some(matrices), inputs } = state else {
                unreachable!("a cache of other layers was refused")
            };
            let mixed = mixed.to_device(&device);
            let [texts, tokens, _] = mixed.dims();
            // All of them one, by their limits.
            let steps = Tensor::zeros([texts, tokens, heads], (&device, DType::F32));
            let zeros = || Tensor::zeros([heads], (&device, DType::F32));
            let of_heads = [self.log_rates(&device), zeros(), zeros()];
            let rule = StateRule { limits: [1.0; 2], ..StateRule::default() };
            let heads = self.config.state_heads();
            let (mixed, matrices) =
                state_space(heads, mixed, steps, of_heads, rule, matrices, rows);
            (mixed, RecurrentState { matrices: Some(matrices), inputs })
        })?;
        let mixed = self.norm.forward(mixed.reshape([batch, tokens, heads * head_dim]));
        let gate = sigmoid(self.output_gate.forward(x));
        Ok(self.out_proj.forward(entered(mixed, &self.out_proj.weight) * gate))
    }

    /// The logarithm of how much each head's matrix loses with a token: `[heads]`.
    fn log_rates(&self, device: &Device) -> Tensor<1> {
        let LightningAttentionConfig { heads, layers, .. } = self.config;
        let behind = 1.0 - self.layer as f64 / ((layers - 1) as f64 + 1e-5) + 1e-5;
        let rate = |head: usize| (-8.0 * (head + 1) as f64 / heads as f64).exp2() * behind;
        let rates: Vec<f32> = (0..heads).map(|head| rate(head).ln() as f32).collect();
        Tensor::from_data(TensorData::new(rates, [heads]), (device, DType::F32))
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let heads = self.config.state_heads();
        let [width, hidden] = self.output_gate.widths().map(|n| n as u64);
        // The norm's output throughout. All that is projected, with the copy of a tiled product, or
        // of what is made of it; that by head, and beside each other.
        let project = 9 * width;
        // Values, keys and queries; what comes of them. Or both, and a part of them before a
        // snapshot or behind it.
        let mix = 3 * width + self.config.heads as u64 + width + 4 * width;
        // What is mixed, its norm, the gate, its sigmoid and the product; the result and the copy
        // of a tiled product.
        let output = (5 * width).max(width + 2 * hidden);
        let states = pass.state_values(heads.state().iter().map(|&n| n as u64).product());
        Activations::values(pass.rows() * (hidden + project.max(mix).max(output)) + states)
            .with_unpooled(pass.rows() * 6 * width + states)
    }
}
