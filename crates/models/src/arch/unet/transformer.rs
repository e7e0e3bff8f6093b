//! Transformers over the pixels of a picture, which see each other and a text.

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_kernels::{attend_pixels, gate_halves};

use super::Unet2dConditionConfig;
use crate::architecture::Init;
use crate::layers::{GroupNorm, LayerNorm, Linear};
use crate::pass_shape::pixel_attention_scratch;
use crate::{Activations, PictureSize};

/// What the norms of pictures and of pixels add to variances, whatever the configuration says of
/// others.
const PICTURE_EPSILON: f64 = 1e-6;
const PIXEL_EPSILON: f64 = 1e-5;

/// What the inner layer of the feed-forward block is wider by.
const EXPANSION: usize = 4;

/// A norm, and blocks between two projections, added to the picture.
#[derive(Module, Debug)]
pub(super) struct Transformer2dModel {
    /// `[channels]`.
    norm: GroupNorm,
    /// `[channels, channels]`; a 1x1 convolution in the first versions.
    proj_in: Linear,
    transformer_blocks: Vec<BasicTransformerBlock>,
    /// `[channels, channels]`.
    proj_out: Linear,
}

/// Attention among pixels, to the text, and MLP, each behind a norm and added to the residual
/// stream.
#[derive(Module, Debug)]
struct BasicTransformerBlock {
    norm1: LayerNorm,
    attn1: UnetAttention,
    norm2: LayerNorm,
    attn2: UnetAttention,
    norm3: LayerNorm,
    ff: GatedFeedForward,
}

/// Attention to pixels or to a text.
#[derive(Module, Debug)]
struct UnetAttention {
    /// `[channels, channels]`.
    to_q: Linear,
    /// `[channels, seen]`.
    to_k: Linear,
    /// `[channels, seen]`.
    to_v: Linear,
    /// `[channels, channels]`; one layer.
    to_out: Vec<Linear>,
    heads: usize,
}

/// `net.2(h · gelu(g))`, `net.0` giving `h` and `g`.
#[derive(Module, Debug)]
struct GatedFeedForward {
    net: (GeGlu, Dropout, Linear),
}

/// The projection that a gate is one half of.
#[derive(Module, Debug)]
struct GeGlu {
    /// `[2 · inner, channels]`: what goes through the gate, then the gate.
    proj: Linear,
}

/// What holds a place in the names of tensors.
#[derive(Module, Debug)]
struct Dropout {}

impl Transformer2dModel {
    pub fn new(config: &Unet2dConditionConfig, level: usize, init: &Init) -> Self {
        let level = &config.levels[level];
        let channels = level.channels;
        let norm = || LayerNorm::new(channels, PIXEL_EPSILON, init);
        let attention = |seen| UnetAttention::new(channels, seen, level.heads, init);
        let inner = EXPANSION * channels;
        let block = |_| BasicTransformerBlock {
            norm1: norm(),
            attn1: attention(channels),
            norm2: norm(),
            attn2: attention(config.cross_attention_dim),
            norm3: norm(),
            ff: GatedFeedForward {
                net: (
                    GeGlu { proj: Linear::new(channels, 2 * inner, true, init) },
                    Dropout {},
                    Linear::new(inner, channels, true, init),
                ),
            },
        };
        Self {
            norm: GroupNorm::new(channels, config.groups, PICTURE_EPSILON, init),
            proj_in: Linear::new(channels, channels, true, init),
            transformer_blocks: (0..level.transformer_layers).map(block).collect(),
            proj_out: Linear::new(channels, channels, true, init),
        }
    }

    /// `[batch, rows, columns, channels]` f32 to the same; the text is `[batch, tokens, text]` f32.
    pub fn forward(&self, picture: Tensor<4>, text: &Tensor<3>) -> Tensor<4> {
        let [batch, rows, columns, channels] = picture.dims();
        let pixels = self.norm.forward(picture.clone()).reshape([batch, rows * columns, channels]);
        let (mut x, mut pending) = (self.proj_in.forward_pixels(pixels), None);
        for block in &self.transformer_blocks {
            let (sum, normed) = block.norm1.after(x, pending);
            let mixed = block.attn1.forward(normed, None);
            let (sum, normed) = block.norm2.after(sum, Some(mixed));
            let mixed = block.attn2.forward(normed, Some(text));
            let (sum, normed) = block.norm3.after(sum, Some(mixed));
            (x, pending) = (sum, Some(block.ff.forward(normed)));
        }
        let x = match pending {
            Some(pending) => x + pending,
            None => x,
        };
        self.proj_out.forward_pixels(x).reshape([batch, rows, columns, channels]) + picture
    }

    /// What it holds at most, its input included.
    pub fn activations(&self, size: PictureSize, tokens: usize, threads: usize) -> Activations {
        let [channels, _]: [usize; 2] = self.proj_in.weight.lazy_shape().dims();
        let pixels = size.rows.saturating_mul(size.columns);
        let heads = self.transformer_blocks.first().map_or(1, |block| block.attn1.heads);
        let scratch = |keys| {
            pixel_attention_scratch([size.batch, pixels, keys], heads, channels / heads, threads)
        };
        // The picture, the residual stream, a norm's output with a copy; queries, keys and values,
        // or attention's result; or both halves of the gate, and what came through.
        let most = 3 * channels + (5 * channels).max(3 * EXPANSION * channels);
        size.values(most).with_scratch(scratch(pixels).max(scratch(tokens)))
    }
}

impl UnetAttention {
    fn new(channels: usize, seen: usize, heads: usize, init: &Init) -> Self {
        let linear = |inputs, bias| Linear::new(inputs, channels, bias, init);
        Self {
            to_q: linear(channels, false),
            to_k: linear(seen, false),
            to_v: linear(seen, false),
            to_out: vec![linear(channels, true)],
            heads,
        }
    }

    /// `[batch, pixels, channels]` f32 to the same, over these pixels or a text
    /// `[batch, tokens, text]` f32.
    fn forward(&self, x: Tensor<3>, text: Option<&Tensor<3>>) -> Tensor<3> {
        let queries = self.to_q.forward_pixels(x.clone());
        let seen = text.cloned().unwrap_or(x);
        let keys = self.to_k.forward_pixels(seen.clone());
        let values = self.to_v.forward_pixels(seen);
        let [batch, tokens, channels] = queries.dims();
        let width = channels / self.heads;
        let heads = [queries, keys, values].map(|y| {
            let [batch, tokens, _] = y.dims();
            y.reshape([batch, tokens, self.heads, width])
        });
        let scale = (width as f32).sqrt().recip();
        let mixed = attend_pixels(self.to_q.compute, heads, scale);
        let mixed = mixed.reshape([batch, tokens, channels]);
        self.to_out.iter().fold(mixed, |x, linear| linear.forward_pixels(x))
    }
}

impl GatedFeedForward {
    /// `[batch, pixels, channels]` f32 to the same.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let (GeGlu { proj }, _, down) = &self.net;
        down.forward_pixels(gate_halves(proj.forward_pixels(x)))
    }
}
