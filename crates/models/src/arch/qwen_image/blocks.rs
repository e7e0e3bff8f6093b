//! The blocks: pictures and texts have weights of their own, and all their tokens attend to each
//! other.

use burn::module::Module;
use burn::tensor::Tensor;

use super::QwenImageTransformer2dConfig;
use super::config::EPSILON;
use crate::architecture::Init;
use crate::layers::{
    GeluFeedForward, JointAttention, JointAttentionConfig, Linear, Parameterless, Rotation, Run,
    add_share, add_share_runs, modulation_parts, two_branches,
};

/// What the inner layer of an MLP is wider by.
pub(super) const EXPANSION: usize = 4;

/// Attention among picture and text, and an MLP for each.
#[derive(Module, Debug)]
pub(super) struct QwenImageTransformerBlock {
    // In the order of use.
    /// `[6 · hidden, hidden]`.
    img_mod: (Parameterless, Linear),
    /// `[6 · hidden, hidden]`.
    txt_mod: (Parameterless, Linear),
    attn: JointAttention,
    img_mlp: GeluFeedForward,
    txt_mlp: GeluFeedForward,
}

/// Where the tokens of pictures and of their texts are.
pub(super) struct Places<'a> {
    /// Tokens of each text.
    pub texts: &'a [usize],
    /// Of each text, and of its pictures behind it.
    pub rotation: Rotation,
    /// Which conditioning the tokens of pictures have.
    pub runs: Vec<Run>,
}

impl QwenImageTransformerBlock {
    pub fn new(config: &QwenImageTransformer2dConfig, init: &Init) -> Self {
        let (hidden, head_dim) = (config.hidden(), config.attention_head_dim);
        let modulation = || (Parameterless {}, Linear::new(hidden, 6 * hidden, true, init));
        let attention = JointAttentionConfig {
            hidden,
            head_dim,
            bias: true,
            epsilon: Some(EPSILON),
            gives_text: true,
        };
        let mlp = || GeluFeedForward::new(hidden, EXPANSION, init);
        Self {
            img_mod: modulation(),
            txt_mod: modulation(),
            attn: JointAttention::new(&attention, init),
            img_mlp: mlp(),
            txt_mlp: mlp(),
        }
    }

    /// Tokens of all pictures and of all texts, `[1, tokens, hidden]` f32 each, to the same, for
    /// conditionings `[rows, hidden]` f32, of which texts have the first.
    pub fn forward(
        &self,
        streams: [Tensor<3>; 2],
        conditioning: &Tensor<2>,
        places: &Places<'_>,
    ) -> [Tensor<3>; 2] {
        let [image, text] = streams.map(|x| self.attn.entered(x));
        let branches = |(_, linear): &(Parameterless, Linear), conditioning: &Tensor<2>| {
            two_branches(modulation_parts(linear, conditioning))
        };
        let [(image_norm, image_share), image_mlp] = branches(&self.img_mod, conditioning);
        let of_text = conditioning.clone().narrow(0, 0, 1);
        let [(text_norm, text_share), text_mlp] = branches(&self.txt_mod, &of_text);
        let runs = &places.runs;
        let normed = [image_norm.norm_runs(&image, runs, EPSILON), text_norm.norm(&text, EPSILON)];
        let [image_mixed, text_mixed] =
            self.attn.forward_each(normed, places.texts, &places.rotation);
        let image = add_share_runs(image, &image_share, image_mixed, runs);
        let text = add_share(text, text_share, text_mixed);
        let (image_norm, image_share) = image_mlp;
        let mixed = self.img_mlp.forward(image_norm.norm_runs(&image, runs, EPSILON));
        let image = add_share_runs(image, &image_share, mixed, runs);
        [image, self.txt_mlp.add(text, text_mlp, EPSILON)]
    }
}
