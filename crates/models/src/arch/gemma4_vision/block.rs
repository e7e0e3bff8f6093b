//! A block of Gemma 4's vision encoder.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use outsize_kernels::attend_pixels;

use super::Gemma4VisionConfig;
use crate::Init;
use crate::layers::{Activation, Linear, RmsNorm, Rotation, ones, unit_rms_norm};

/// A block: attention and an MLP, each between two norms.
#[derive(Module, Debug)]
pub(super) struct Gemma4VisionEncoderLayer {
    input_layernorm: RmsNorm,
    self_attn: Gemma4VisionAttention,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: Gemma4VisionMlp,
    post_feedforward_layernorm: RmsNorm,
}

/// Attention of scores that are not scaled, of heads whose queries, keys and values are normed, the
/// last without weights.
#[derive(Module, Debug)]
struct Gemma4VisionAttention {
    q_proj: Gemma4ClippableLinear,
    q_norm: RmsNorm,
    k_proj: Gemma4ClippableLinear,
    k_norm: RmsNorm,
    v_proj: Gemma4ClippableLinear,
    o_proj: Gemma4ClippableLinear,
    epsilon: f64,
}

#[derive(Module, Debug)]
struct Gemma4VisionMlp {
    gate_proj: Gemma4ClippableLinear,
    up_proj: Gemma4ClippableLinear,
    down_proj: Gemma4ClippableLinear,
    #[module(skip)]
    activation: Activation,
}

/// A linear layer whose inputs and outputs may be clipped.
#[derive(Module, Debug)]
struct Gemma4ClippableLinear {
    input_min: Option<Param<Tensor<1>>>,
    input_max: Option<Param<Tensor<1>>>,
    linear: Linear,
    output_min: Option<Param<Tensor<1>>>,
    output_max: Option<Param<Tensor<1>>>,
}

impl Gemma4VisionEncoderLayer {
    pub fn new(config: &Gemma4VisionConfig, init: &Init) -> Self {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let heads = config.num_attention_heads * config.head_dim;
        let norm = |width| RmsNorm::new(width, config.rms_norm_eps, init);
        let linear = |inputs, outputs| {
            let bound = || config.is_clipped.then(|| ones(1, &init.device));
            Gemma4ClippableLinear {
                input_min: bound(),
                input_max: bound(),
                linear: Linear::new(inputs, outputs, false, init),
                output_min: bound(),
                output_max: bound(),
            }
        };
        Self {
            input_layernorm: norm(hidden),
            self_attn: Gemma4VisionAttention {
                q_proj: linear(hidden, heads),
                q_norm: norm(config.head_dim),
                k_proj: linear(hidden, heads),
                k_norm: norm(config.head_dim),
                v_proj: linear(hidden, heads),
                o_proj: linear(heads, hidden),
                epsilon: config.rms_norm_eps,
            },
            post_attention_layernorm: norm(hidden),
            pre_feedforward_layernorm: norm(hidden),
            mlp: Gemma4VisionMlp {
                gate_proj: linear(hidden, inner),
                up_proj: linear(hidden, inner),
                down_proj: linear(inner, hidden),
                activation: config.activation,
            },
            post_feedforward_layernorm: norm(hidden),
        }
    }

    /// `[1, patches, hidden]` f32 to the same. Rotations are of columns, and of rows.
    pub fn forward(&self, x: Tensor<3>, rotations: &[Rotation; 2]) -> Tensor<3> {
        let mixed = self.self_attn.forward(self.input_layernorm.forward(x.clone()), rotations);
        let mixed = self.post_attention_layernorm.forward(mixed);
        let (x, normed) = self.pre_feedforward_layernorm.add_forward(x, mixed);
        x + self.post_feedforward_layernorm.forward(self.mlp.forward(normed))
    }
}

impl Gemma4VisionAttention {
    /// Each patch attends to all.
    fn forward(&self, x: Tensor<3>, [across, down]: &[Rotation; 2]) -> Tensor<3> {
        let width = self.q_norm.width();
        let heads = |y: Tensor<3>| {
            let [_, patches, all] = y.dims();
            y.reshape([1, patches, all / width, width])
        };
        // Each half of a head by itself.
        let rotated = |y: Tensor<4>| {
            let half = |start| y.clone().narrow(3, start, width / 2);
            Tensor::cat(vec![across.apply(half(0)), down.apply(half(width / 2))], 3)
        };
        let queries = rotated(self.q_norm.forward(heads(self.q_proj.forward(x.clone()))));
        let keys = rotated(self.k_norm.forward(heads(self.k_proj.forward(x.clone()))));
        let values = unit_rms_norm(heads(self.v_proj.forward(x)), self.epsilon);
        let [_, patches, count, _] = queries.dims();
        let mixed = attend_pixels(self.o_proj.linear.compute, [queries, keys, values], 1.0);
        self.o_proj.forward(mixed.reshape([1, patches, count * width]))
    }
}

impl Gemma4VisionMlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let gate = self.gate_proj.forward(x.clone());
        self.down_proj.forward(self.activation.gate(gate, self.up_proj.forward(x)))
    }
}

impl Gemma4ClippableLinear {
    /// `[1, patches, inputs]` f32 to `[1, patches, outputs]`.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = clipped(x, [&self.input_min, &self.input_max]);
        clipped(self.linear.forward_pixels(x), [&self.output_min, &self.output_max])
    }
}

/// Values from the least to the most that there are to be, if that is said.
fn clipped(x: Tensor<3>, bounds: [&Option<Param<Tensor<1>>>; 2]) -> Tensor<3> {
    let [Some(least), Some(most)] = bounds else { return x };
    let bound = |bound: &Param<Tensor<1>>| bound.val().cast(DType::F32).into_scalar::<f32>();
    x.clamp_min(bound(least)).clamp_max(bound(most))
}
