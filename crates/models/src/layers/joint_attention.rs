//! Attention among the tokens of a picture and a text, all of which see each other. Esser et al.
//! 2024 (arXiv:2403.03206).

use burn::module::Module;
use burn::tensor::Tensor;

use super::{Linear, RmsNorm, Rotation, attend_tokens, entered, heads_with, joined};
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
    /// What norms of queries and keys add to mean squares, if there are such norms.
    pub epsilon: Option<f64>,
    /// Whether anything comes of a text's tokens.
    pub gives_text: bool,
}

/// Attention with projections of its own for the tokens of a text.
#[derive(Module, Debug)]
pub struct JointAttention {
    // In the order of use.
    to_q: Linear,
    norm_q: Option<RmsNorm>,
    add_q_proj: Linear,
    norm_added_q: Option<RmsNorm>,
    to_k: Linear,
    norm_k: Option<RmsNorm>,
    add_k_proj: Linear,
    norm_added_k: Option<RmsNorm>,
    to_v: Linear,
    add_v_proj: Linear,
    /// `[hidden, hidden]`; one layer.
    to_out: Vec<Linear>,
    to_add_out: Option<Linear>,
    /// Of one head.
    width: usize,
}

impl JointAttention {
    pub(crate) fn new(config: &JointAttentionConfig, init: &Init) -> Self {
        let JointAttentionConfig { hidden, head_dim, bias, epsilon, gives_text } = *config;
        let square = || Linear::new(hidden, hidden, bias, init);
        let norm = || epsilon.map(|epsilon| RmsNorm::new(head_dim, epsilon, init));
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
            to_add_out: gives_text.then(square),
            width: head_dim,
        }
    }

    /// Tokens of a picture and of a text, `[batch, tokens, hidden]` f32 each, to the same; the
    /// text's are rotated as the first. Where nothing comes of a text, its tokens are as attention
    /// gives them.
    pub(crate) fn forward(
        &self,
        streams: [Tensor<3>; 2],
        rotation: Option<&Rotation>,
    ) -> [Tensor<3>; 2] {
        let [image_tokens, text_tokens] = streams.each_ref().map(|x| x.dims()[1]);
        let projected =
            self.projected(streams, rotation, |[image, text]| joined(vec![text, image], 1));
        let mixed = attend_tokens(self.to_q.compute, projected);
        let image = mixed.clone().narrow(1, text_tokens, image_tokens);
        self.out([image, mixed.narrow(1, 0, text_tokens)])
    }

    /// The same of pictures whose texts are of these lengths: their tokens lie one behind the
    /// other, `[1, tokens of all, hidden]` f32 each. A picture's tokens are rotated behind those of
    /// its text.
    pub(crate) fn forward_each(
        &self,
        streams: [Tensor<3>; 2],
        texts: &[usize],
        rotation: &Rotation,
    ) -> [Tensor<3>; 2] {
        let image_tokens = streams[0].dims()[1] / texts.len();
        let projected = self.projected(streams, Some(rotation), |[images, all]| {
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

    /// Queries, keys and values of pictures and texts, put together by `both`; the first two
    /// normalised and rotated.
    fn projected(
        &self,
        [image, text]: [Tensor<3>; 2],
        rotation: Option<&Rotation>,
        both: impl Fn([Tensor<4>; 2]) -> Tensor<4>,
    ) -> [Tensor<4>; 3] {
        let of =
            |linear, norm: &Option<RmsNorm>, x| heads_with(linear, norm.as_ref(), x, self.width);
        let rotated = |x| match rotation {
            Some(rotation) => rotation.apply(x),
            None => x,
        };
        let queries = rotated(both([
            of(&self.to_q, &self.norm_q, &image),
            of(&self.add_q_proj, &self.norm_added_q, &text),
        ]));
        let keys = rotated(both([
            of(&self.to_k, &self.norm_k, &image),
            of(&self.add_k_proj, &self.norm_added_k, &text),
        ]));
        let values = both([of(&self.to_v, &None, &image), of(&self.add_v_proj, &None, &text)]);
        [queries, keys, values]
    }

    /// What attention gave of pictures and of texts, projected.
    fn out(&self, [image, text]: [Tensor<3>; 2]) -> [Tensor<3>; 2] {
        let image = self.to_out.iter().fold(image, |x, linear| linear.forward_pixels(x));
        let text = match &self.to_add_out {
            Some(linear) => linear.forward_pixels(text),
            None => text,
        };
        [image, text]
    }

    /// Activations where its block computes.
    pub(crate) fn entered<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        entered(x, &self.to_q.weight)
    }
}
