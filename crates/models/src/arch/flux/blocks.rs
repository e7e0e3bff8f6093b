//! The blocks: first those in which pictures and texts have weights of their own, then those in
//! which they have the same.

use burn::module::Module;
use burn::tensor::Tensor;

use super::FluxTransformer2dConfig;
use super::attention::FluxAttention;
use super::config::EPSILON;
use crate::architecture::Init;
use crate::layers::{
    Activation, AdaLayerNorm, GeluFeedForward, JointAttention, JointAttentionConfig, Linear,
    Modulation, Rotation, add_share, joined, two_branches,
};

/// What the inner layer of an MLP is wider by.
pub(super) const EXPANSION: usize = 4;

/// Attention among picture and text, and an MLP for each.
#[derive(Module, Debug)]
pub(super) struct FluxTransformerBlock {
    norm1: AdaLayerNorm,
    norm1_context: AdaLayerNorm,
    attn: JointAttention,
    ff: GeluFeedForward,
    ff_context: GeluFeedForward,
}

/// Attention and MLP side by side.
#[derive(Module, Debug)]
pub(super) struct FluxSingleTransformerBlock {
    norm: AdaLayerNorm,
    attn: FluxAttention,
    /// `[inner, hidden]`.
    proj_mlp: Linear,
    /// `[hidden, hidden + inner]`.
    proj_out: Linear,
}

impl FluxTransformerBlock {
    pub fn new(config: &FluxTransformer2dConfig, init: &Init) -> Self {
        let hidden = config.hidden();
        let norm = || AdaLayerNorm::new(hidden, 6, true, init);
        let head_dim = config.attention_head_dim;
        let attention = JointAttentionConfig {
            hidden,
            head_dim,
            bias: true,
            epsilon: Some(EPSILON),
            gives_text: true,
        };
        Self {
            norm1: norm(),
            norm1_context: norm(),
            attn: JointAttention::new(&attention, init),
            ff: GeluFeedForward::new(hidden, EXPANSION, init),
            ff_context: GeluFeedForward::new(hidden, EXPANSION, init),
        }
    }

    /// Tokens of a picture and of a text, `[batch, tokens, hidden]` f32 each, to the same, for a
    /// conditioning `[batch, hidden]` f32.
    pub fn forward(
        &self,
        [image, text]: [Tensor<3>; 2],
        conditioning: &Tensor<2>,
        rotation: &Rotation,
    ) -> [Tensor<3>; 2] {
        let [image, text] = [image, text].map(|x| self.norm1.entered(x));
        let [(norm, share), image_mlp] = two_branches(self.norm1.parts(conditioning));
        let normed = norm.norm(&image, EPSILON);
        let [(norm, text_share), text_mlp] = two_branches(self.norm1_context.parts(conditioning));
        let text_normed = norm.norm(&text, EPSILON);
        let [image_mixed, text_mixed] = self.attn.forward([normed, text_normed], Some(rotation));
        let image = add_share(image, share, image_mixed);
        let text = add_share(text, text_share, text_mixed);
        [self.ff.add(image, image_mlp, EPSILON), self.ff_context.add(text, text_mlp, EPSILON)]
    }
}

impl FluxSingleTransformerBlock {
    pub fn new(config: &FluxTransformer2dConfig, init: &Init) -> Self {
        let hidden = config.hidden();
        let inner = EXPANSION * hidden;
        Self {
            norm: AdaLayerNorm::new(hidden, 3, true, init),
            attn: FluxAttention::new(config, init),
            proj_mlp: Linear::new(hidden, inner, true, init),
            proj_out: Linear::new(hidden + inner, hidden, true, init),
        }
    }

    /// Tokens of a text and of a picture behind them, `[batch, tokens, hidden]` f32, to the same.
    pub fn forward(
        &self,
        x: Tensor<3>,
        conditioning: &Tensor<2>,
        rotation: &Rotation,
    ) -> Tensor<3> {
        let x = self.norm.entered(x);
        let [shift, scale, share] = self.norm.parts(conditioning);
        let normed = Modulation { scale, shift }.norm(&x, EPSILON);
        let mixed = self.attn.forward(&normed, rotation);
        let inner = Activation::GeluTanh.activate(self.proj_mlp.forward_pixels(normed));
        let both = joined(vec![mixed, inner], 2);
        add_share(x, share, self.proj_out.forward_pixels(both))
    }
}
