//! What makes features of the patches of a token.

use burn::module::Module;
use burn::tensor::Tensor;

use super::config::{QwenVisionConfig, QwenVisionVersion};
use crate::Init;
use crate::layers::{
    Activation, Either, Linear, Norm, Parameterless, fetched_rows, two_layers_of_pixels,
};

/// The patches of a token to its features.
#[derive(Module, Debug)]
pub(super) struct QwenVisionPatchMerger {
    /// Of each patch, or of all patches of a token together.
    norm: Norm,
    linear_fc1: Linear,
    linear_fc2: Linear,
}

/// The same under the names of Qwen2-VL and Qwen2.5-VL.
#[derive(Module, Debug)]
pub(super) struct Qwen2VisionPatchMerger {
    ln_q: Norm,
    mlp: (Linear, Parameterless, Linear),
}

/// Either of them.
pub(super) type Merger = Either<QwenVisionPatchMerger, Qwen2VisionPatchMerger>;

impl QwenVisionPatchMerger {
    /// One whose norm is of so many values.
    pub fn new(config: &QwenVisionConfig, normed: usize, init: &Init) -> Self {
        let norm = config.block().norm.of(normed, init);
        let [linear_fc1, linear_fc2] = layers(config, init);
        Self { norm, linear_fc1, linear_fc2 }
    }

    /// As [`Merger::forward`].
    pub fn forward(&self, x: Tensor<3>, patches: usize) -> Tensor<2> {
        merged(&self.norm, [&self.linear_fc1, &self.linear_fc2], x, patches)
    }
}

impl Merger {
    /// That of the last block's patches.
    pub fn new(config: &QwenVisionConfig, init: &Init) -> Self {
        let hidden = config.hidden_size;
        if config.version == QwenVisionVersion::Qwen3 {
            return Self::One(QwenVisionPatchMerger::new(config, hidden, init));
        }
        let [first, last] = layers(config, init);
        let ln_q = config.block().norm.of(hidden, init);
        Self::Other(Qwen2VisionPatchMerger { ln_q, mlp: (first, Parameterless {}, last) })
    }

    /// `[1, patches, hidden]` f32 to `[tokens, out]` f32, in main memory; tokens are of so many
    /// patches.
    pub fn forward(&self, x: Tensor<3>, patches: usize) -> Tensor<2> {
        match self {
            Self::One(merger) => merger.forward(x, patches),
            Self::Other(Qwen2VisionPatchMerger { ln_q, mlp: (first, _, last) }) => {
                merged(ln_q, [first, last], x, patches)
            }
        }
    }
}

fn layers(config: &QwenVisionConfig, init: &Init) -> [Linear; 2] {
    let merged = config.hidden_size * config.spatial_merge_size.pow(2);
    [merged, config.out_hidden_size].map(|outputs| Linear::new(merged, outputs, true, init))
}

/// The patches of tokens of so many through a norm, of each or of all of a token together, and two
/// layers.
pub(in crate::arch) fn merged(
    norm: &Norm,
    layers: [&Linear; 2],
    x: Tensor<3>,
    patches: usize,
) -> Tensor<2> {
    let [_, count, hidden] = x.dims();
    let merged = [1, count / patches, hidden * patches];
    let x = match norm.width() == hidden {
        true => norm.forward(x).reshape(merged),
        false => norm.forward(x.reshape(merged)),
    };
    fetched_rows(two_layers_of_pixels(layers, Activation::Gelu, x), &layers[1].weight)
}
