//! Attention among the tokens of a picture and a text, all of which see each other. Esser et al. 2024 (arXiv:2403.03206).

use burn::module::Module;
use burn::tensor::Tensor;

use super::{Linear, RmsNorm, Rotation, attend_tokens, entered, heads, joined, normed_heads};
use crate::architecture::Init;

/// The sizes of a [`JointAttention`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct JointAttentionConfig {
    /// Width of the residual stream, and of all heads together.
    pub hidden: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Whether projections have a bias.
    pub bias: bool,
    /// What norms of queries and keys add to mean squares.
    pub epsilon: f64,
}

/// Attention with projections of its own for the tokens of a text.
#[derive(Module, Debug)]
pub struct JointAttention {
    // In the order of use.
    to_q: Linear,
    norm_q: RmsNorm,
    add_q_proj: Linear,
    norm_added_q: RmsNorm,
    to_k: Linear,
    norm_k: RmsNorm,
    add_k_proj: Linear,
    norm_added_k: RmsNorm,
    to_v: Linear,
    add_v_proj: Linear,
    /// `[hidden, hidden]`; one layer.
    to_out: Vec<Linear>,
    to_add_out: Linear,
}

impl JointAttention {
    pub(crate) fn new(config: &JointAttentionConfig, init: &Init) -> Self {
        let JointAttentionConfig { hidden, head_dim, bias, epsilon } = *config;
        let square = || Linear::new(hidden, hidden, bias, init);
        let norm = || RmsNorm::new(head_dim, epsilon, init);
        Self {
            to_q: square(),
            norm_q: norm(),
            add_q_proj: square(),
            norm_added_q: norm(),
            to_k: square(),
            norm_k: norm(),
            add_k_proj: square(),
            norm_added_k: norm(),
            to_v: square(),
            add_v_proj: square(),
            to_out: vec![square()],
            to_add_out: square(),
        }
    }

    /// Tokens of a picture and of a text, `[batch, tokens, hidden]` f32 each, to the same; the text's are rotated as the first.
    pub(crate) fn forward(&self, streams: [Tensor<3>; 2], rotation: &Rotation) -> [Tensor<3>; 2] {
        let [image_tokens, text_tokens] = streams.each_ref().map(|x| x.dims()[1]);
        let projected =
            self.projected(streams, rotation, |[image, text]| joined(vec![text, image], 1));
        let mixed = attend_tokens(self.to_q.compute, projected);
        let image = mixed.clone().narrow(1, text_tokens, image_tokens);
        self.out([image, mixed.narrow(1, 0, text_tokens)])
    }

    /// The same of pictures whose texts are of these lengths: their tokens lie one behind the other, `[1, tokens of all, hidden]`
    /// f32 each. A picture's tokens are rotated behind those of its text.
    pub(crate) fn forward_each(
        &self,
        streams: [Tensor<3>; 2],
        texts: &[usize],
        rotation: &Rotation,
    ) -> [Tensor<3>; 2] {
        let image_tokens = streams[0].dims()[1] / texts.len();
        let projected = self.projected(streams, rotation, |[images, all]| {
            let mut parts = Vec::with_capacity(2 * texts.len());
            let mut start = 0;
            for (picture, &tokens) in texts.iter().enumerate() {
                parts.push(all.clone().narrow(1, start, tokens));
                parts.push(images.clone().narrow(1, picture * image_tokens, image_tokens));
                start += tokens;
            }
            drop((images, all));
            joined(parts, 1)
        });
        let (mut images, mut all, mut start) = (Vec::new(), Vec::new(), 0);
        for &tokens in texts {
            let own = projected.clone().map(|part| part.narrow(1, start, tokens + image_tokens));
            let mixed = attend_tokens(self.to_q.compute, own);
            images.push(mixed.clone().narrow(1, tokens, image_tokens));
            all.push(mixed.narrow(1, 0, tokens));
            start += tokens + image_tokens;
        }
        drop(projected);
        self.out([images, all].map(|parts| joined(parts, 1)))
    }

    /// Queries, keys and values of pictures and texts, put together by `both`; the first two normalised and rotated.
    fn projected(
        &self,
        [image, text]: [Tensor<3>; 2],
        rotation: &Rotation,
        both: impl Fn([Tensor<4>; 2]) -> Tensor<4>,
    ) -> [Tensor<4>; 3] {
        let width = self.norm_q.width();
        let queries = both([
            normed_heads(&self.to_q, &self.norm_q, &image),
            normed_heads(&self.add_q_proj, &self.norm_added_q, &text),
        ]);
        let queries = rotation.apply(queries);
        let keys = both([
            normed_heads(&self.to_k, &self.norm_k, &image),
            normed_heads(&self.add_k_proj, &self.norm_added_k, &text),
        ]);
        let keys = rotation.apply(keys);
        let values =
            both([heads(&self.to_v, &image, width), heads(&self.add_v_proj, &text, width)]);
        [queries, keys, values]
    }

    /// What attention gave of pictures and of texts, projected.
    fn out(&self, [image, text]: [Tensor<3>; 2]) -> [Tensor<3>; 2] {
        let image = self.to_out.iter().fold(image, |x, linear| linear.forward_pixels(x));
        [image, self.to_add_out.forward_pixels(text)]
    }

    /// Activations where its block computes.
    pub(crate) fn entered<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        entered(x, &self.to_q.weight)
    }
}
