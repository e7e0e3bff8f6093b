//! The decoder layer of Gemma 3n.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use outsize_kernels::has_kernels;

use super::{Gemma3nAltUp, Gemma3nConfig};
use crate::layers::{
    Activation, Linear, RmsNorm, Rotation, SharedAttention, gated_activations, gated_down, two,
};
use crate::pass::Pass;
use crate::{Activations, Error, Init, KvCache, PassShape};

/// One decoder layer: attention with a low-rank path beside it, then an MLP, with norms around
/// both, of one residual stream.
#[derive(Module, Debug)]
pub struct Gemma3nDecoderLayer {
    /// What predicts and corrects the streams.
    pub altup: Gemma3nAltUp,
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Beside attention.
    pub laurel: Gemma3nLaurelBlock,
    /// Causal self-attention.
    pub self_attn: SharedAttention,
    /// `[hidden]`: of what attention gives.
    pub post_attention_layernorm: RmsNorm,
    /// `[hidden]`.
    pub pre_feedforward_layernorm: RmsNorm,
    /// Gated feed-forward block.
    pub mlp: Gemma3nMlp,
    /// `[hidden]`: of what the MLP gives.
    pub post_feedforward_layernorm: RmsNorm,
    /// `[width, hidden]`: how much the layer takes of its input.
    pub per_layer_input_gate: Linear,
    /// `[hidden, width]`.
    pub per_layer_projection: Linear,
    /// `[hidden]`.
    pub post_per_layer_input_norm: RmsNorm,
    #[module(skip)]
    activation: Activation,
    active: usize,
    is_local: bool,
}

/// `x + norm(right(left(x)))` ([Menghani et al., 2024](https://arxiv.org/abs/2411.07501)).
#[derive(Module, Debug)]
pub struct Gemma3nLaurelBlock {
    /// `[rank, hidden]`.
    pub linear_left: Linear,
    /// `[hidden, rank]`.
    pub linear_right: Linear,
    /// `[hidden]`.
    pub post_laurel_norm: RmsNorm,
}

impl Gemma3nLaurelBlock {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let low = self.linear_right.forward(self.linear_left.forward(x.clone()));
        let normed = self.post_laurel_norm.forward(low);
        x.to_device(&normed.device()) + normed
    }
}

/// `down(act(gate(x)) · up(x))`, of which the gate may be zero but for what is far above its mean.
#[derive(Module, Debug)]
pub struct Gemma3nMlp {
    /// `[intermediate, hidden]`.
    pub gate_proj: Linear,
    /// `[intermediate, hidden]`.
    pub up_proj: Linear,
    /// `[hidden, intermediate]`.
    pub down_proj: Linear,
    #[module(skip)]
    activation: Activation,
    /// By how many deviations.
    #[module(skip)]
    deviations: Option<f64>,
}

impl Gemma3nMlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let Some(deviations) = self.deviations else {
            let layers = [&self.gate_proj, &self.up_proj];
            return gated_down(layers, &self.down_proj, self.activation, x);
        };
        let [gate, up] = two([&self.gate_proj, &self.up_proj], x);
        let mean = gate.clone().mean_dim(2);
        let beside = gate - mean;
        let deviation = (beside.clone() * beside.clone()).mean_dim(2).sqrt();
        let gate = relu(beside - deviation * deviations);
        let inner = match has_kernels(&gate.device()) {
            true => outsize_kernels::gated(self.activation.kernel(), gate, up),
            false => self.activation.apply(gate) * up,
        };
        self.down_proj.forward(inner)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let [inner, hidden]: [usize; 2] = self.gate_proj.weight.lazy_shape().dims();
        // The gate beside its square and what is left of it, and what goes through.
        let sparse = Activations::values(pass.rows() * (hidden + 4 * inner) as u64);
        gated_activations(&self.gate_proj, pass).or(sparse)
    }
}

impl Gemma3nDecoderLayer {
    /// The layer of that number, without storage.
    pub fn new(config: &Gemma3nConfig, index: usize, init: &Init) -> Self {
        let (text, own) = (&config.base.text, &config.base.layers[index]);
        let hidden = text.hidden_size;
        let norm = || RmsNorm::new(hidden, text.rms_norm_eps, init);
        let linear = |from, to| Linear::new(from, to, false, init);
        let inner = own.intermediate_size;
        Self {
            altup: Gemma3nAltUp::new(config, init),
            input_layernorm: norm(),
            laurel: Gemma3nLaurelBlock {
                linear_left: linear(hidden, config.laurel_rank),
                linear_right: linear(config.laurel_rank, hidden),
                post_laurel_norm: norm(),
            },
            self_attn: SharedAttention::new(&config.base.attention(index), init),
            post_attention_layernorm: norm(),
            pre_feedforward_layernorm: norm(),
            mlp: Gemma3nMlp {
                gate_proj: linear(hidden, inner),
                up_proj: linear(hidden, inner),
                down_proj: linear(inner, hidden),
                activation: text.activation,
                deviations: config.deviations[index],
            },
            post_feedforward_layernorm: norm(),
            per_layer_input_gate: linear(hidden, config.inputs.width),
            per_layer_projection: linear(config.inputs.width, hidden),
            post_per_layer_input_norm: norm(),
            activation: text.activation,
            active: config.altup.active,
            is_local: text.windows[index].is_some(),
        }
    }

    /// All streams, `[batch, tokens, hidden]` f32 each, and `[batch, tokens, width]` f32 of the
    /// layer's own input, to the former.
    pub(super) fn forward(
        &self,
        streams: Vec<Tensor<3>>,
        input: Tensor<3>,
        rotations: &[Rotation; 2],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Vec<Tensor<3>>, Error> {
        let predicted = self.altup.predict(&streams);
        drop(streams);
        let x = predicted[self.active].clone();
        let normed = self.input_layernorm.forward(x.clone());
        let beside = self.laurel.forward(normed.clone());
        let rotation = &rotations[usize::from(self.is_local)];
        let positions = pass.query_positions();
        let mixed = self.self_attn.forward(normed, rotation, &positions, cache, index)?;
        let predicted: Vec<_> = predicted.into_iter().map(|x| pass.needed(x)).collect();
        let [x, beside, input] = [x, beside, input].map(|x| pass.needed(x));
        let x = x + self.post_attention_layernorm.forward(mixed);
        let x = (x + beside) * 0.5f64.sqrt();
        let inner = self.mlp.forward(self.pre_feedforward_layernorm.forward(x.clone()));
        let computed = x + self.post_feedforward_layernorm.forward(inner);
        let mut streams = self.altup.correct(predicted, computed);
        let taken =
            self.per_layer_input_gate.forward(self.altup.scaled(streams[self.active].clone()));
        let taken = self.activation.apply(taken);
        let taken = taken.clone() * input.to_device(&taken.device());
        let taken =
            self.post_per_layer_input_norm.forward(self.per_layer_projection.forward(taken));
        for stream in &mut streams[1..] {
            *stream = stream.clone() + taken.clone();
        }
        Ok(streams)
    }

    /// What it holds at most, besides the residual streams, the rotations and the layers' own
    /// inputs.
    pub(super) fn activations(&self, pass: &PassShape) -> Activations {
        let hidden = self.input_layernorm.width() as u64;
        let [width, _]: [usize; 2] = self.per_layer_input_gate.weight.lazy_shape().dims();
        let [squares, streams]: [usize; 2] = self.altup.prediction_coefs.weight.lazy_shape().dims();
        // Streams as predicted beside those before, or as corrected beside these, with what one
        // more becomes; and coefficients.
        let others = (streams as u64 + 2) * hidden + 2 * squares as u64;
        let inner = self.self_attn.activations(pass).or(self.mlp.activations(pass));
        // What is beside attention, and the stream that is computed.
        let inner = inner.and(Activations::values(pass.rows() * 3 * hidden));
        let taken = Activations::values(pass.rows() * (4 * width as u64 + 3 * hidden));
        inner.or(taken).and(Activations::values(pass.rows() * others))
    }
}
