//! What makes features of the states of an encoder.

use burn::module::Module;
use burn::tensor::Tensor;

use super::config::{KimiProjectorConfig, KimiVisionConfig};
use crate::Init;
use crate::arch::qwen_vision::merger::merged;
use crate::layers::{Activation, Either, LayerNorm, Linear, Norm, fetched_rows, unit_rms_norm};

/// Either of them.
pub(super) type Projector = Either<KimiProjector, MuseProjector>;

/// A norm of each patch, and two layers of all patches of a token.
#[derive(Module, Debug)]
pub(super) struct KimiProjector {
    pre_norm: Norm,
    in_proj: Linear,
    out_proj: Linear,
}

/// Three layers of all patches of a token, of each channel those of all patches, and a norm without
/// a weight.
#[derive(Module, Debug)]
pub(super) struct MuseProjector {
    fc1: Linear,
    fc2: Linear,
    vision_projection: Linear,
    #[module(skip)]
    activation: Activation,
    epsilon: f64,
}

impl Projector {
    /// The one of an encoder, without storage.
    pub fn of(config: &KimiVisionConfig, init: &Init) -> Self {
        let (hidden, out) = (config.hidden_size, config.text_hidden_size);
        let merged = hidden * config.merge_size * config.merge_size;
        match config.projector {
            KimiProjectorConfig::Kimi { epsilon } => Self::One(KimiProjector {
                pre_norm: Norm::Other(LayerNorm::new(hidden, epsilon, init)),
                in_proj: Linear::new(merged, merged, true, init),
                out_proj: Linear::new(merged, out, true, init),
            }),
            KimiProjectorConfig::Muse { inner, activation, epsilon, .. } => {
                Self::Other(MuseProjector {
                    fc1: Linear::new(merged, inner, false, init),
                    fc2: Linear::new(inner, inner, false, init),
                    vision_projection: Linear::new(inner, out, false, init),
                    activation,
                    epsilon,
                })
            }
        }
    }

    /// `[1, patches, hidden]` f32 to `[tokens, out]` f32, in main memory; tokens are of so many
    /// patches.
    pub fn forward(&self, x: Tensor<3>, patches: usize) -> Tensor<2> {
        match self {
            Self::One(KimiProjector { pre_norm, in_proj, out_proj }) => {
                merged(pre_norm, [in_proj, out_proj], x, patches)
            }
            Self::Other(muse) => muse.forward(x, patches),
        }
    }
}

impl MuseProjector {
    fn forward(&self, x: Tensor<3>, patches: usize) -> Tensor<2> {
        let [_, count, hidden] = x.dims();
        let tokens = count / patches;
        let x = x.reshape([tokens, patches, hidden]).swap_dims(1, 2);
        let mut x = x.reshape([1, tokens, hidden * patches]);
        for layer in [&self.fc1, &self.fc2] {
            x = self.activation.activate(layer.forward_pixels(x));
        }
        let x = unit_rms_norm(self.vision_projection.forward_pixels(x), self.epsilon);
        fetched_rows(x, &self.vision_projection.weight)
    }
}
