//! The blocks: first those in which pictures and texts have weights of their own, then those in
//! which they have the same. The scales, shifts and shares of all blocks of a kind are the same.

use burn::module::Module;
use burn::tensor::Tensor;

use super::Flux2Transformer2dConfig;
use super::attention::Flux2ParallelSelfAttention;
use crate::architecture::Init;
use crate::layers::{
    Activation, JointAttention, JointAttentionConfig, Linear, Modulation, Rotation, add_share,
};

/// Attention among picture and text, and an MLP for each.
#[derive(Module, Debug)]
pub(super) struct Flux2TransformerBlock {
    attn: JointAttention,
    ff: Flux2FeedForward,
    ff_context: Flux2FeedForward,
}

/// Attention and MLP side by side.
#[derive(Module, Debug)]
pub(super) struct Flux2SingleTransformerBlock {
    attn: Flux2ParallelSelfAttention,
}

/// `linear_out(silu(gate) · up)`, where `linear_in` gives both.
#[derive(Module, Debug)]
struct Flux2FeedForward {
    // In the order of use.
    /// `[2 · inner, hidden]`: the gate, then what goes through it.
    linear_in: Linear,
    /// `[hidden, inner]`.
    linear_out: Linear,
}

/// What goes into a branch, and how much of what comes of it is added.
pub(super) struct Branch {
    modulation: Modulation,
    /// `[1, hidden]` f32.
    share: Tensor<2>,
    /// What the norm adds to variances.
    epsilon: f64,
}

impl Branch {
    /// Of the parts of a modulation that are a branch's, `[1, hidden]` f32 each.
    pub fn new([shift, scale, share]: [Tensor<2>; 3], epsilon: f64) -> Self {
        Self { modulation: Modulation { scale, shift }, share, epsilon }
    }

    /// Of those of two branches.
    pub fn two([a, b, c, d, e, f]: [Tensor<2>; 6], epsilon: f64) -> [Self; 2] {
        [Self::new([a, b, c], epsilon), Self::new([d, e, f], epsilon)]
    }

    fn norm(&self, x: &Tensor<3>) -> Tensor<3> {
        self.modulation.norm(x, self.epsilon)
    }

    fn add(&self, x: Tensor<3>, made: Tensor<3>) -> Tensor<3> {
        add_share(x, self.share.clone(), made)
    }
}

impl Flux2TransformerBlock {
    pub fn new(config: &Flux2Transformer2dConfig, init: &Init) -> Self {
        let (hidden, head_dim) = (config.hidden(), config.attention_head_dim);
        let attention = JointAttentionConfig {
            hidden,
            head_dim,
            bias: false,
            epsilon: Some(config.eps),
            gives_text: true,
        };
        Self {
            attn: JointAttention::new(&attention, init),
            ff: Flux2FeedForward::new(config, init),
            ff_context: Flux2FeedForward::new(config, init),
        }
    }

    /// Tokens of pictures and of a text, `[batch, tokens, hidden]` f32 each, to the same; with the
    /// branches of either.
    pub fn forward(
        &self,
        [image, text]: [Tensor<3>; 2],
        [of_image, of_text]: &[[Branch; 2]; 2],
        rotation: &Rotation,
    ) -> [Tensor<3>; 2] {
        let [image, text] = [image, text].map(|x| self.attn.entered(x));
        let normed = [of_image[0].norm(&image), of_text[0].norm(&text)];
        let [image_mixed, text_mixed] = self.attn.forward(normed, Some(rotation));
        let image = of_image[0].add(image, image_mixed);
        let text = of_text[0].add(text, text_mixed);
        [self.ff.add(image, &of_image[1]), self.ff_context.add(text, &of_text[1])]
    }
}

impl Flux2SingleTransformerBlock {
    pub fn new(config: &Flux2Transformer2dConfig, init: &Init) -> Self {
        Self { attn: Flux2ParallelSelfAttention::new(config, init) }
    }

    /// Tokens of a text and of pictures behind them, `[batch, tokens, hidden]` f32, to the same.
    pub fn forward(&self, x: Tensor<3>, branch: &Branch, rotation: &Rotation) -> Tensor<3> {
        let x = self.attn.entered(x);
        let made = self.attn.forward(branch.norm(&x), rotation);
        branch.add(x, made)
    }
}

impl Flux2FeedForward {
    fn new(config: &Flux2Transformer2dConfig, init: &Init) -> Self {
        let (hidden, inner) = (config.hidden(), config.inner);
        Self {
            linear_in: Linear::new(hidden, 2 * inner, false, init),
            linear_out: Linear::new(inner, hidden, false, init),
        }
    }

    /// `[batch, tokens, hidden]` f32, and the share of what comes of its norm.
    fn add(&self, x: Tensor<3>, branch: &Branch) -> Tensor<3> {
        let inner = self.linear_out.widths()[1];
        let [gate, up] = self.linear_in.parts_pixels(branch.norm(&x), [inner, inner]);
        let made = self.linear_out.forward_pixels(Activation::Silu.gate(gate, up));
        branch.add(x, made)
    }
}
