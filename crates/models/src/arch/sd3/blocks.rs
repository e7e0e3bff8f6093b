//! The blocks: pictures and texts have weights of their own, and all their tokens attend to each
//! other.

use burn::module::Module;
use burn::tensor::Tensor;

use super::Sd3Transformer2dConfig;
use super::config::EPSILON;
use crate::architecture::Init;
use crate::layers::{
    AdaLayerNorm, GeluFeedForward, JointAttention, JointAttentionConfig, Linear, Modulation,
    RmsNorm, add_share, attend_tokens, heads, heads_with, two_branches,
};

/// What the inner layer of an MLP is wider by.
pub(super) const EXPANSION: usize = 4;

/// Attention among picture and text, and an MLP for each.
#[derive(Module, Debug)]
pub(super) struct Sd3TransformerBlock {
    norm1: AdaLayerNorm,
    norm1_context: AdaLayerNorm,
    attn: JointAttention,
    /// Among the tokens of a picture, beside the other.
    attn2: Option<Sd3Attention>,
    ff: GeluFeedForward,
    /// `None` in the last block, of which a text has nothing.
    ff_context: Option<GeluFeedForward>,
}

/// Attention among the tokens of a picture.
#[derive(Module, Debug)]
pub(super) struct Sd3Attention {
    to_q: Linear,
    norm_q: Option<RmsNorm>,
    to_k: Linear,
    norm_k: Option<RmsNorm>,
    to_v: Linear,
    /// `[hidden, hidden]`; one layer.
    to_out: Vec<Linear>,
    /// Of one head.
    width: usize,
}

impl Sd3TransformerBlock {
    /// The block of that number.
    pub fn new(config: &Sd3Transformer2dConfig, index: usize, init: &Init) -> Self {
        let hidden = config.hidden();
        let is_last = index + 1 == config.num_layers;
        let is_dual = config.dual_attention_layers.contains(&index);
        let norm = |parts| AdaLayerNorm::new(hidden, parts, true, init);
        let mlp = || GeluFeedForward::new(hidden, EXPANSION, init);
        let attention = JointAttentionConfig {
            hidden,
            head_dim: config.attention_head_dim,
            bias: true,
            epsilon: config.has_norms.then_some(EPSILON),
            gives_text: !is_last,
        };
        Self {
            norm1: norm(if is_dual { 9 } else { 6 }),
            norm1_context: norm(if is_last { 2 } else { 6 }),
            attn: JointAttention::new(&attention, init),
            attn2: is_dual.then(|| Sd3Attention::new(&attention, init)),
            ff: mlp(),
            ff_context: (!is_last).then(mlp),
        }
    }

    /// Tokens of a picture and of a text, `[batch, tokens, hidden]` f32 each, to the same, for a
    /// conditioning `[batch, hidden]` f32. Behind the last block those of a text are of no use.
    pub fn forward(
        &self,
        [image, text]: [Tensor<3>; 2],
        conditioning: &Tensor<2>,
    ) -> [Tensor<3>; 2] {
        let [image, text] = [image, text].map(|x| self.norm1.entered(x));
        let (parts, dual) = match &self.attn2 {
            None => (self.norm1.parts(conditioning), None),
            Some(attention) => {
                let [a, b, c, d, e, f, shift, scale, share] = self.norm1.parts(conditioning);
                let normed = Modulation { scale, shift }.norm(&image, EPSILON);
                ([a, b, c, d, e, f], Some((attention, normed, share)))
            }
        };
        let [(norm, share), image_mlp] = two_branches(parts);
        let normed = norm.norm(&image, EPSILON);
        let (text_norm, text_parts) = match &self.ff_context {
            None => (self.norm1_context.modulation(conditioning, false), None),
            Some(mlp) => {
                let [(norm, share), branch] = two_branches(self.norm1_context.parts(conditioning));
                (norm, Some((mlp, share, branch)))
            }
        };
        let text_normed = text_norm.norm(&text, EPSILON);
        let [image_mixed, text_mixed] = self.attn.forward([normed, text_normed], None);
        let image = add_share(image, share, image_mixed);
        let image = match dual {
            Some((attention, normed, share)) => add_share(image, share, attention.forward(&normed)),
            None => image,
        };
        let text = match text_parts {
            Some((mlp, share, branch)) => {
                mlp.add(add_share(text, share, text_mixed), branch, EPSILON)
            }
            None => text,
        };
        [self.ff.add(image, image_mlp, EPSILON), text]
    }
}

impl Sd3Attention {
    fn new(config: &JointAttentionConfig, init: &Init) -> Self {
        let JointAttentionConfig { hidden, head_dim, bias, epsilon, .. } = *config;
        let square = || Linear::new(hidden, hidden, bias, init);
        let norm = || epsilon.map(|epsilon| RmsNorm::new(head_dim, epsilon, init));
        Self {
            to_q: square(),
            norm_q: norm(),
            to_k: square(),
            norm_k: norm(),
            to_v: square(),
            to_out: vec![square()],
            width: head_dim,
        }
    }

    /// `[batch, tokens, hidden]` f32 to the same.
    fn forward(&self, x: &Tensor<3>) -> Tensor<3> {
        let projected = [
            heads_with(&self.to_q, self.norm_q.as_ref(), x, self.width),
            heads_with(&self.to_k, self.norm_k.as_ref(), x, self.width),
            heads(&self.to_v, x, self.width),
        ];
        let mixed = attend_tokens(self.to_q.compute, projected);
        self.to_out.iter().fold(mixed, |x, linear| linear.forward_pixels(x))
    }
}
