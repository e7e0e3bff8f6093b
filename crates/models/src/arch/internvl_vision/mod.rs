//! The vision encoder of InternVL (InternViT), which sees an image as tiles, with what makes
//! features of its states. Chen et al. 2024 (arXiv:2312.14238), Wang et al. 2025
//! (arXiv:2508.18265).

mod config;

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

pub use self::config::InternVlVisionConfig;
use self::config::PROJECTOR;
use super::internvl::{INTERNVL, MULTIMODAL};
use super::vision_fields::{is_no_vision, is_within_model};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{
    Activation, Either, LayerNorm, Linear, Norm, RmsNorm, attend_tokens, fetched_rows, lazy,
    two_layers_of_pixels, zeros,
};
use crate::{
    Error, ImageFeatures, ImageScaling, ImageSpelling, PatchLayout, PatchOrder, PicturePass,
    VisionModel, WeightUse,
};

/// What the norm of the projector adds to the variance.
const PROJECTOR_EPSILON: f64 = 1e-5;

/// What norms of queries and keys add to mean squares.
const HEAD_EPSILON: f64 = 1e-6;

/// A vision encoder with its projector.
#[derive(Module, Debug)]
pub struct InternVlVisionModel {
    vision_tower: InternVlTower,
    multi_modal_projector: InternVlProjector,
    #[module(skip)]
    config: InternVlVisionConfig,
}

/// Patches of tiles to states.
#[derive(Module, Debug)]
struct InternVlTower {
    embeddings: InternVlEmbeddings,
    encoder: InternVlEncoder,
}

#[derive(Module, Debug)]
struct InternVlEmbeddings {
    /// `[1, 1, hidden]`: of the token that each tile has before its patches.
    cls_token: Param<Tensor<3>>,
    patch_embeddings: InternVlPatchEmbeddings,
    /// `[1, patches of a tile + 1, hidden]`.
    position_embeddings: Param<Tensor<3>>,
}

#[derive(Module, Debug)]
struct InternVlPatchEmbeddings {
    /// `[hidden, values of a patch]`.
    projection: Linear,
}

#[derive(Module, Debug)]
struct InternVlEncoder {
    layer: Vec<InternVlLayer>,
}

#[derive(Module, Debug)]
struct InternVlLayer {
    layernorm_before: Norm,
    attention: InternVlAttention,
    /// `[hidden]`: what attention's result is multiplied by.
    lambda_1: Param<Tensor<1>>,
    layernorm_after: Norm,
    mlp: InternVlMlp,
    /// `[hidden]`: what the MLP's is.
    lambda_2: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct InternVlAttention {
    q_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_proj: Linear,
    k_norm: Option<RmsNorm>,
    v_proj: Linear,
    projection_layer: Linear,
    heads: usize,
}

#[derive(Module, Debug)]
struct InternVlMlp {
    fc1: Linear,
    fc2: Linear,
    #[module(skip)]
    activation: Activation,
}

/// States to features.
#[derive(Module, Debug)]
struct InternVlProjector {
    /// `[patches of a token · hidden]`.
    layer_norm: LayerNorm,
    linear_1: Linear,
    linear_2: Linear,
    #[module(skip)]
    activation: Activation,
}

impl Architecture for InternVlVisionModel {
    type Config = InternVlVisionConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[(INTERNVL, "InternVL")];
    const CLASS_PREFIX: &'static str = "InternVl";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("InternVlTower", "InternVLVisionModel"),
        ("InternVlEmbeddings", "InternVLVisionEmbeddings"),
        ("InternVlPatchEmbeddings", "InternVLVisionPatchEmbeddings"),
        ("InternVlEncoder", "InternVLVisionEncoder"),
        ("InternVlLayer", "InternVLVisionLayer"),
        ("InternVlAttention", "InternVLVisionAttention"),
        ("InternVlMlp", "InternVLVisionMLP"),
        ("InternVlProjector", "InternVLMultiModalProjector"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["InternVlLayer"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[PROJECTOR, MULTIMODAL]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<InternVlVisionConfig, Error> {
        InternVlVisionConfig::read(fields)
    }

    fn new(config: &InternVlVisionConfig, init: &Init) -> Self {
        let (layout, hidden, device) = (Self::layout(config), config.hidden_size, &init.device);
        let norm = || match config.rms_norms {
            true => Either::One(RmsNorm::new(hidden, config.layer_norm_eps, init)),
            false => Either::Other(LayerNorm::new(hidden, config.layer_norm_eps, init)),
        };
        let head_norm = || config.query_key_norms.then(|| RmsNorm::new(hidden, HEAD_EPSILON, init));
        let linear = |inputs, outputs| Linear::new(inputs, outputs, true, init);
        let projected = || Linear::new(hidden, hidden, config.attention_bias, init);
        let table =
            |rows| lazy([1, rows, hidden], device, |shape, device| Tensor::zeros(shape, device));
        let layer = |_| InternVlLayer {
            layernorm_before: norm(),
            attention: InternVlAttention {
                q_proj: projected(),
                q_norm: head_norm(),
                k_proj: projected(),
                k_norm: head_norm(),
                v_proj: projected(),
                projection_layer: linear(hidden, hidden),
                heads: config.num_attention_heads,
            },
            lambda_1: zeros(hidden, device),
            layernorm_after: norm(),
            mlp: InternVlMlp {
                fc1: linear(hidden, config.intermediate_size),
                fc2: linear(config.intermediate_size, hidden),
                activation: config.activation,
            },
            lambda_2: zeros(hidden, device),
        };
        let (merged, text) = (hidden * layout.merged(), config.text_hidden_size);
        Self {
            vision_tower: InternVlTower {
                embeddings: InternVlEmbeddings {
                    cls_token: table(1),
                    patch_embeddings: InternVlPatchEmbeddings {
                        projection: linear(layout.patch_values(), hidden),
                    },
                    position_embeddings: table(config.tile.tokens()),
                },
                encoder: InternVlEncoder {
                    layer: (0..config.num_hidden_layers).map(layer).collect(),
                },
            },
            multi_modal_projector: InternVlProjector {
                layer_norm: LayerNorm::new(merged, PROJECTOR_EPSILON, init),
                linear_1: linear(merged, text),
                linear_2: linear(text, text),
                activation: config.projector_activation,
            },
            config: config.clone(),
        }
    }
}

impl Component for InternVlVisionModel {
    fn names(_: &InternVlVisionConfig, tensors: &[TensorInfo]) -> Names {
        let prefix = if is_within_model(tensors) { "model." } else { "" };
        // The expression is ours, and valid.
        Names::default().rename("^", prefix).unwrap_or_default()
    }

    fn is_unused(_: &InternVlVisionConfig, tensor: &str) -> bool {
        is_no_vision(tensor)
    }

    fn weight_use(config: &InternVlVisionConfig, path: &str, pass: &PicturePass) -> WeightUse {
        let is_of_token = path.starts_with("multi_modal_projector.");
        config.tile.weight_use(path, pass, is_of_token)
    }
}

impl VisionModel for InternVlVisionModel {
    fn layout(config: &InternVlVisionConfig) -> PatchLayout {
        PatchLayout {
            patch_size: config.tile.patch_size,
            merge_size: config.tile.merge_size,
            frames: 1,
            features: config.text_hidden_size,
            scaling: ImageScaling::StretchedTiles(config.tile.image_size),
            image_token: config.image_token,
            spelling: ImageSpelling::Named(["<img>", "</img>"]),
            sees_itself: false,
            order: PatchOrder::ColoursFirst,
        }
    }

    fn see(&self, pixels: Tensor<2>, _: [usize; 2]) -> ImageFeatures {
        let (config, [count, values]) = (&self.config, pixels.dims());
        let (side, hidden, merge) =
            (config.tile.side(), config.hidden_size, config.tile.merge_size);
        let (patches, embeddings) = (config.tile.patches(), &self.vision_tower.embeddings);
        let tiles = count / patches;
        let projection = &embeddings.patch_embeddings.projection;
        let x = projection.forward_pixels(pixels.reshape([1, count, values]));
        let table = |table: &Param<Tensor<3>>| table.val().cast(DType::F32).to_device(&x.device());
        let class = table(&embeddings.cls_token).repeat_dim(0, tiles);
        let positions = table(&embeddings.position_embeddings);
        let of_class = positions.clone().narrow(1, 0, 1);
        // Of the patches in the order in which those of a token are neighbours.
        let positions = positions.narrow(1, 1, patches);
        let positions = positions.reshape([side / merge, merge, side / merge, merge * hidden]);
        let positions = positions.swap_dims(1, 2).reshape([1, patches, hidden]);
        let positions = Tensor::cat(vec![of_class, positions], 1);
        let x = Tensor::cat(vec![class, x.reshape([tiles, patches, hidden])], 1);
        let mut x = x + positions;
        for layer in &self.vision_tower.encoder.layer {
            x = layer.forward(x);
        }
        let merged = merge * merge;
        let states = x.narrow(1, 1, patches).reshape([1, count / merged, hidden * merged]);
        let embeddings = self.multi_modal_projector.forward(states);
        ImageFeatures { embeddings, deepstack: Vec::new(), positions: None, sees_itself: false }
    }

    fn activation_bytes(&self, patches: usize, threads: usize) -> u64 {
        let InternVlVisionConfig { tile, hidden_size, text_hidden_size, .. } = self.config;
        let sizes = [hidden_size, self.config.num_attention_heads, self.config.intermediate_size];
        // What the language model takes, twice more; positions as they are and in order.
        let positions = tile.tokens() * 2 * hidden_size;
        tile.activation_bytes([patches, threads], sizes, 3 * text_hidden_size, positions)
    }
}

impl InternVlLayer {
    /// `[tiles, tokens, hidden]` f32 to the same.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let mixed = self.attention.forward(self.layernorm_before.forward(x.clone()));
        let x = x + scaled(mixed, &self.lambda_1);
        let inner = self.mlp.forward(self.layernorm_after.forward(x.clone()));
        x + scaled(inner, &self.lambda_2)
    }
}

/// A branch times its factors.
fn scaled(x: Tensor<3>, factors: &Param<Tensor<1>>) -> Tensor<3> {
    let factors = factors.val().cast(DType::F32).to_device(&x.device());
    x * factors.unsqueeze::<3>()
}

impl InternVlAttention {
    /// Each token attends to those of its tile.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [tiles, tokens, hidden] = x.dims();
        let normed = |layer: &Linear, norm: Option<&RmsNorm>| {
            let y = layer.forward_pixels(x.clone());
            let y = match norm {
                Some(norm) => norm.forward(y),
                None => y,
            };
            y.reshape([tiles, tokens, self.heads, hidden / self.heads])
        };
        let projected = [
            normed(&self.q_proj, self.q_norm.as_ref()),
            normed(&self.k_proj, self.k_norm.as_ref()),
            normed(&self.v_proj, None),
        ];
        drop(x);
        let mixed = attend_tokens(self.projection_layer.compute, projected);
        self.projection_layer.forward_pixels(mixed)
    }
}

impl InternVlMlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        two_layers_of_pixels([&self.fc1, &self.fc2], self.activation, x)
    }
}

impl InternVlProjector {
    /// `[1, tokens, patches of a token · hidden]` f32 to `[tokens, text's hidden]` f32, in main
    /// memory.
    fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let layers = [&self.linear_1, &self.linear_2];
        let features = two_layers_of_pixels(layers, self.activation, self.layer_norm.forward(x));
        fetched_rows(features, &self.linear_2.weight)
    }
}
