//! The vision encoder of Gemma 4, with what makes features of its states. Gemma Team 2026.

mod block;
mod config;

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

use self::block::Gemma4VisionEncoderLayer;
pub use self::config::Gemma4VisionConfig;
use super::gemma4::MULTIMODAL;
use super::vision_fields::{is_no_vision, is_within_model, vision_weight_use};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{AxialRope, Embedding, Linear, fetched_rows, ones, unit_rms_norm, zeros};
use crate::pass_shape::pixel_attention_scratch;
use crate::vision_model::patch_places;
use crate::{
    Activations, Error, ImageFeatures, ImageScaling, ImageSpelling, PatchLayout, PatchOrder,
    PicturePass, VisionModel, WeightUse,
};

/// A vision encoder with its projector.
#[derive(Module, Debug)]
pub struct Gemma4VisionModel {
    vision_tower: Gemma4VisionTower,
    embed_vision: Gemma4MultimodalEmbedder,
    #[module(skip)]
    config: Gemma4VisionConfig,
}

/// Patches to states of tokens.
#[derive(Module, Debug)]
struct Gemma4VisionTower {
    patch_embedder: Gemma4VisionPatchEmbedder,
    encoder: Gemma4VisionEncoder,
    /// `[hidden]`: what is subtracted of a state, and what the rest is multiplied by.
    std_bias: Option<Param<Tensor<1>>>,
    std_scale: Option<Param<Tensor<1>>>,
}

#[derive(Module, Debug)]
struct Gemma4VisionPatchEmbedder {
    /// `[hidden, values of a patch]`.
    input_proj: Linear,
    /// `[positions, hidden]` each: of columns, and of rows.
    position_embedding_table: Vec<Embedding>,
}

#[derive(Module, Debug)]
struct Gemma4VisionEncoder {
    layers: Vec<Gemma4VisionEncoderLayer>,
}

/// States to features.
#[derive(Module, Debug)]
struct Gemma4MultimodalEmbedder {
    /// `[text's hidden, hidden]`.
    embedding_projection: Linear,
}

impl Architecture for Gemma4VisionModel {
    type Config = Gemma4VisionConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("gemma4", "Gemma4")];
    const CLASS_PREFIX: &'static str = "Gemma4";
    const CLASSES: &'static [(&'static str, &'static str)] =
        &[("Gemma4VisionTower", "Gemma4VisionModel")];
    const NO_SPLIT: &'static [&'static str] = &["Gemma4VisionEncoderLayer"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[MULTIMODAL]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<Gemma4VisionConfig, Error> {
        Gemma4VisionConfig::read(fields)
    }

    fn new(config: &Gemma4VisionConfig, init: &Init) -> Self {
        let (layout, hidden) = (Self::layout(config), config.hidden_size);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, false, init);
        let layers = 0..config.num_hidden_layers;
        Self {
            vision_tower: Gemma4VisionTower {
                patch_embedder: Gemma4VisionPatchEmbedder {
                    input_proj: linear(layout.patch_values(), hidden),
                    position_embedding_table: (0..2)
                        .map(|_| Embedding::new(config.positions, hidden, init))
                        .collect(),
                },
                encoder: Gemma4VisionEncoder {
                    layers: layers.map(|_| Gemma4VisionEncoderLayer::new(config, init)).collect(),
                },
                std_bias: config.is_standardized.then(|| zeros(hidden, &init.device)),
                std_scale: config.is_standardized.then(|| ones(hidden, &init.device)),
            },
            embed_vision: Gemma4MultimodalEmbedder {
                embedding_projection: linear(hidden, config.text_hidden_size),
            },
            config: config.clone(),
        }
    }
}

impl Component for Gemma4VisionModel {
    fn names(_: &Self::Config, tensors: &[TensorInfo]) -> Names {
        let names = match tensors.is_empty() || is_within_model(tensors) {
            true => Names::default().rename("^", "model."),
            false => Ok(Names::default()),
        };
        // Both tables are one tensor. The expressions are ours, and valid.
        let table = r"position_embedding_table\.(?<n>\d+)\.weight$";
        let stacked =
            names.and_then(|names| names.stacked(table, "position_embedding_table", [0, 1], 2));
        stacked.unwrap_or_default()
    }

    fn is_unused(_: &Gemma4VisionConfig, tensor: &str) -> bool {
        is_no_vision(tensor)
    }

    fn weight_use(config: &Gemma4VisionConfig, path: &str, pass: &PicturePass) -> WeightUse {
        vision_weight_use(path, pass, Self::layout(config).merged())
    }
}

impl VisionModel for Gemma4VisionModel {
    fn layout(config: &Gemma4VisionConfig) -> PatchLayout {
        PatchLayout {
            patch_size: config.patch_size,
            merge_size: config.pooling_kernel_size,
            frames: 1,
            features: config.text_hidden_size,
            scaling: ImageScaling::Tokens(config.positions / config.pooling_kernel_size),
            image_token: config.image_token,
            spelling: ImageSpelling::Wrapped(config.image_marks),
            sees_itself: config.sees_itself,
            order: match config.patch_colours_first {
                true => PatchOrder::ColoursFirst,
                false => PatchOrder::ColoursLast,
            },
        }
    }

    fn see(&self, pixels: Tensor<2>, sides: [usize; 2]) -> ImageFeatures {
        let config = &self.config;
        let ([count, values], tower) = (pixels.dims(), &self.vision_tower);
        let embedder = &tower.patch_embedder;
        let mut x = embedder.input_proj.forward_pixels(pixels.reshape([1, count, values]));
        let places = patch_places(sides, config.pooling_kernel_size);
        // Columns are first.
        let along: [Vec<usize>; 2] =
            [1, 0].map(|side| places.iter().map(|place| place[side]).collect());
        for (table, along) in embedder.position_embedding_table.iter().zip(&along) {
            let ids: Vec<u32> = along.iter().map(|place| *place as u32).collect();
            x = x.clone() + table.forward(&ids).to_device(&x.device());
        }
        let rope = AxialRope::new(config.rope_theta, [config.head_dim / 2]);
        let rope = rope.halves().rounding_angles();
        let rotations = along.map(|along| {
            let places: Vec<_> = along.into_iter().map(|place| [place]).collect();
            rope.at(&places, &x.device())
        });
        for layer in &tower.encoder.layers {
            x = layer.forward(x, &rotations);
        }
        // Of each token the mean of its patches.
        let (hidden, merged) = (config.hidden_size, Self::layout(config).merged());
        let x = x.reshape([count / merged, merged, hidden]).mean_dim(1);
        let x = x.reshape([1, count / merged, hidden]) * (hidden as f64).sqrt();
        let x = match (&tower.std_bias, &tower.std_scale) {
            (Some(bias), Some(scale)) => {
                let [bias, scale] = [bias, scale]
                    .map(|of_state| of_state.val().cast(DType::F32).reshape([1, 1, hidden]));
                (x - bias) * scale
            }
            _ => x,
        };
        let projection = &self.embed_vision.embedding_projection;
        let normed = unit_rms_norm(x, config.rms_norm_eps);
        ImageFeatures {
            embeddings: fetched_rows(projection.forward_pixels(normed), &projection.weight),
            deepstack: Vec::new(),
            positions: None,
            sees_itself: config.sees_itself,
        }
    }

    fn activation_bytes(&self, patches: usize, threads: usize) -> u64 {
        let (config, layout) = (&self.config, Self::layout(&self.config));
        let (hidden, count) = (config.hidden_size as u64, patches as u64);
        let (inner, width) = (config.intermediate_size as u64, config.head_dim);
        let heads = (config.num_attention_heads * width) as u64;
        // The norm's output, clipped; queries, keys and values, one of them as it comes, normed,
        // its rotated halves and both, and what attention gives. Or both inner layers, what the
        // gate makes of one, and that clipped; or the pixels and positions; beside the residual
        // stream.
        let most = (2 * hidden + 7 * heads).max(2 * hidden + 4 * inner);
        let most = most.max(layout.patch_values() as u64 + 2 * hidden);
        let tokens = count / layout.merged() as u64;
        let features = tokens * config.text_hidden_size as u64;
        let alive = count.saturating_mul(hidden + width as u64) + 2 * features;
        let scratch = pixel_attention_scratch(
            [1, patches, patches],
            config.num_attention_heads,
            width,
            threads,
        );
        let values = count.saturating_mul(most).max(3 * tokens * hidden);
        Activations::values(values + alive).with_scratch(scratch).bytes()
    }
}
