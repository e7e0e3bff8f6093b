//! A block of the vision encoder, which GLM's has too.

use burn::module::Module;
use burn::tensor::Tensor;

use super::windows::ImageWindows;
use crate::Init;
use crate::layers::{
    Activation, Either, LayerNorm, Linear, Mlp, Norm, RmsNorm, Rotation, attend_tokens, heads,
    two_layers_of_pixels,
};

/// What a block is made of.
#[derive(Debug, Clone, Copy)]
pub(in crate::arch) struct QwenVisionBlockShape {
    /// Width of the residual stream, of the MLP's inner layer, and how many heads there are; of
    /// keys and values perhaps fewer, if they are made by one layer with queries.
    pub hidden: usize,
    pub inner: usize,
    pub heads: usize,
    pub key_value_heads: usize,
    pub norm: QwenVisionNorm,
    pub mlp: QwenVisionMlpKind,
    pub activation: Activation,
    /// Whether queries, keys and values have weights of their own, and whether they have biases.
    pub qkv_apart: bool,
    pub qkv_bias: bool,
    /// Whether the other layers have biases.
    pub bias: bool,
}

/// The kind of norms, with what they add to mean squares, or to the variance.
#[derive(Debug, Clone, Copy)]
pub(in crate::arch) enum QwenVisionNorm {
    Rms(f64),
    Layer(f64),
}

/// The kind of MLP.
#[derive(Debug, Clone, Copy)]
pub(in crate::arch) enum QwenVisionMlpKind {
    Gated,
    /// With the names of Qwen3-VL.
    TwoLayers,
    /// With those of Qwen2-VL.
    TwoLayersOf2,
}

/// A block: attention, then an MLP, each behind a norm.
#[derive(Module, Debug)]
pub(in crate::arch) struct QwenVisionBlock {
    norm1: Norm,
    attn: QwenVisionAttention,
    norm2: Norm,
    /// Qwen2.5-VL's, Qwen3-VL's or Qwen2-VL's.
    mlp: Either<Mlp, Either<QwenVisionMlp, Qwen2VisionMlp>>,
}

#[derive(Module, Debug)]
struct QwenVisionAttention {
    /// `[3 · hidden, hidden]`, or a third of it each; less where there are fewer heads of keys and
    /// values.
    qkv: Either<Linear, QwenVisionQkv>,
    /// `[hidden, hidden]`.
    proj: Linear,
    heads: usize,
    key_value_heads: usize,
}

#[derive(Module, Debug)]
struct QwenVisionQkv {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
}

#[derive(Module, Debug)]
struct QwenVisionMlp {
    /// `[inner, hidden]`.
    linear_fc1: Linear,
    /// `[hidden, inner]`.
    linear_fc2: Linear,
    #[module(skip)]
    activation: Activation,
}

/// The same under other names.
#[derive(Module, Debug)]
struct Qwen2VisionMlp {
    fc1: Linear,
    fc2: Linear,
    #[module(skip)]
    activation: Activation,
}

impl QwenVisionNorm {
    /// One of so many values.
    pub fn of(self, width: usize, init: &Init) -> Norm {
        match self {
            Self::Rms(epsilon) => Norm::One(RmsNorm::new(width, epsilon, init)),
            Self::Layer(epsilon) => Norm::Other(LayerNorm::new(width, epsilon, init)),
        }
    }
}

impl QwenVisionBlock {
    pub fn new(shape: &QwenVisionBlockShape, init: &Init) -> Self {
        let &QwenVisionBlockShape {
            hidden,
            inner,
            heads,
            key_value_heads,
            norm,
            activation,
            bias,
            ..
        } = shape;
        let linear = |inputs, outputs| Linear::new(inputs, outputs, bias, init);
        let (first, last) = (|| linear(hidden, inner), || linear(inner, hidden));
        let mlp = match shape.mlp {
            QwenVisionMlpKind::Gated => {
                Either::One(Mlp::new(hidden, inner, bias, activation, init))
            }
            QwenVisionMlpKind::TwoLayersOf2 => Either::Other(Either::Other(Qwen2VisionMlp {
                fc1: first(),
                fc2: last(),
                activation,
            })),
            QwenVisionMlpKind::TwoLayers => Either::Other(Either::One(QwenVisionMlp {
                linear_fc1: first(),
                linear_fc2: last(),
                activation,
            })),
        };
        let projection = |outputs| Linear::new(hidden, outputs, shape.qkv_bias, init);
        let qkv = match shape.qkv_apart {
            false => Either::One(projection(hidden + 2 * key_value_heads * (hidden / heads))),
            true => Either::Other(QwenVisionQkv {
                q_proj: projection(hidden),
                k_proj: projection(hidden),
                v_proj: projection(hidden),
            }),
        };
        Self {
            norm1: norm.of(hidden, init),
            attn: QwenVisionAttention { qkv, proj: linear(hidden, hidden), heads, key_value_heads },
            norm2: norm.of(hidden, init),
            mlp,
        }
    }

    /// `[1, patches, hidden]` f32 to the same. Without windows, each patch attends to all.
    pub fn forward(
        &self,
        x: Tensor<3>,
        rotation: &Rotation,
        windows: Option<&ImageWindows>,
    ) -> Tensor<3> {
        let mixed = self.attn.forward(self.norm1.forward(x.clone()), rotation, windows);
        let (x, normed) = self.norm2.after(x, Some(mixed));
        let added = match &self.mlp {
            Either::One(gated) => gated.forward_pixels(normed),
            Either::Other(Either::One(QwenVisionMlp { linear_fc1, linear_fc2, activation })) => {
                two_layers_of_pixels([linear_fc1, linear_fc2], *activation, normed)
            }
            Either::Other(Either::Other(Qwen2VisionMlp { fc1, fc2, activation })) => {
                two_layers_of_pixels([fc1, fc2], *activation, normed)
            }
        };
        x + added
    }
}

impl QwenVisionAttention {
    /// Each head of keys or values for all heads of queries that it has.
    fn repeated(&self, x: Tensor<4>) -> Tensor<4> {
        let ([_, patches, few, width], heads) = (x.dims(), self.heads);
        if few == heads {
            return x;
        }
        let x = x.reshape([patches, few, 1, width]).repeat_dim(2, heads / few);
        x.reshape([1, patches, heads, width])
    }

    fn forward(
        &self,
        x: Tensor<3>,
        rotation: &Rotation,
        windows: Option<&ImageWindows>,
    ) -> Tensor<3> {
        let [_, patches, hidden] = x.dims();
        let width = hidden / self.heads;
        let [queries, keys, values] = match &self.qkv {
            Either::One(qkv) => {
                let projected = qkv.forward_pixels(x);
                let few = self.key_value_heads;
                let part = |first: usize, heads: usize| {
                    let part = projected.clone().narrow(2, first * width, heads * width);
                    part.reshape([1, patches, heads, width])
                };
                let [queries, keys, values] =
                    [part(0, self.heads), part(self.heads, few), part(self.heads + few, few)];
                [queries, self.repeated(keys), self.repeated(values)]
            }
            Either::Other(QwenVisionQkv { q_proj, k_proj, v_proj }) => {
                [q_proj, k_proj, v_proj].map(|layer| heads(layer, &x, width))
            }
        };
        let (queries, keys) = (rotation.apply(queries), rotation.apply(keys));
        let (compute, projected) = (self.proj.compute, [queries, keys, values]);
        self.proj.forward_pixels(match windows {
            Some(windows) => windows.attend(compute, projected),
            None => attend_tokens(compute, projected),
        })
    }
}
