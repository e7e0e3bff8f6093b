//! The vision encoder of Gemma 3, SigLIP's, with what makes features of its states. Zhai et al.
//! 2023 (arXiv:2303.15343), Gemma Team 2025 (arXiv:2503.19786).

mod config;

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

pub use self::config::SiglipVisionConfig;
use super::gemma3::MULTIMODAL;
use super::vision_fields::{is_no_vision, is_within_model, vision_weight_use};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{
    Activation, Embedding, LayerNorm, Linear, RmsNorm, attend_layers, fetched_rows,
    two_layers_of_pixels,
};
use crate::pass_shape::pixel_attention_scratch;
use crate::vision_model::patch_places;
use crate::{
    Activations, Error, ImageFeatures, ImageScaling, ImageSpelling, PatchLayout, PatchOrder,
    PicturePass, VisionModel, WeightUse,
};

/// A vision encoder with its projector.
#[derive(Module, Debug)]
pub struct SiglipVisionModel {
    vision_tower: SiglipTower,
    multi_modal_projector: SiglipProjector,
    #[module(skip)]
    config: SiglipVisionConfig,
}

/// Patches to states.
#[derive(Module, Debug)]
struct SiglipTower {
    embeddings: SiglipEmbeddings,
    encoder: SiglipEncoder,
    post_layernorm: LayerNorm,
}

#[derive(Module, Debug)]
struct SiglipEmbeddings {
    /// `[hidden, values of a patch]`.
    patch_embedding: Linear,
    /// `[patches, hidden]`.
    position_embedding: Embedding,
}

#[derive(Module, Debug)]
struct SiglipEncoder {
    layers: Vec<SiglipEncoderLayer>,
}

#[derive(Module, Debug)]
struct SiglipEncoderLayer {
    layer_norm1: LayerNorm,
    self_attn: SiglipAttention,
    layer_norm2: LayerNorm,
    mlp: SiglipMlp,
}

#[derive(Module, Debug)]
struct SiglipAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    out_proj: Linear,
    heads: usize,
}

#[derive(Module, Debug)]
struct SiglipMlp {
    fc1: Linear,
    fc2: Linear,
    #[module(skip)]
    activation: Activation,
}

/// States to features.
#[derive(Module, Debug)]
struct SiglipProjector {
    mm_soft_emb_norm: RmsNorm,
    /// `[hidden, text's hidden]`.
    mm_input_projection: Linear,
}

impl Architecture for SiglipVisionModel {
    type Config = SiglipVisionConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("gemma3", "Gemma3")];
    const CLASS_PREFIX: &'static str = "Siglip";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("SiglipTower", "SiglipVisionModel"),
        ("SiglipEmbeddings", "SiglipVisionEmbeddings"),
        ("SiglipEncoder", "SiglipEncoder"),
        ("SiglipEncoderLayer", "SiglipEncoderLayer"),
        ("SiglipAttention", "SiglipAttention"),
        ("SiglipMlp", "SiglipMLP"),
        ("SiglipProjector", "Gemma3MultiModalProjector"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["SiglipEncoderLayer"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[MULTIMODAL]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<SiglipVisionConfig, Error> {
        SiglipVisionConfig::read(fields)
    }

    fn new(config: &SiglipVisionConfig, init: &Init) -> Self {
        let (layout, hidden) = (Self::layout(config), config.hidden_size);
        let norm = || LayerNorm::new(hidden, config.layer_norm_eps, init);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, true, init);
        let square = || linear(hidden, hidden);
        let layer = |_| SiglipEncoderLayer {
            layer_norm1: norm(),
            self_attn: SiglipAttention {
                q_proj: square(),
                k_proj: square(),
                v_proj: square(),
                out_proj: square(),
                heads: config.num_attention_heads,
            },
            layer_norm2: norm(),
            mlp: SiglipMlp {
                fc1: linear(hidden, config.intermediate_size),
                fc2: linear(config.intermediate_size, hidden),
                activation: config.activation,
            },
        };
        let patches = (config.image_size / config.patch_size).pow(2);
        let text = config.text_hidden_size;
        let rms_norm = if config.adds_one { RmsNorm::plus_one } else { RmsNorm::new };
        Self {
            vision_tower: SiglipTower {
                embeddings: SiglipEmbeddings {
                    patch_embedding: linear(layout.patch_values(), hidden),
                    position_embedding: Embedding::new(patches, hidden, init),
                },
                encoder: SiglipEncoder {
                    layers: (0..config.num_hidden_layers).map(layer).collect(),
                },
                post_layernorm: norm(),
            },
            multi_modal_projector: SiglipProjector {
                mm_soft_emb_norm: rms_norm(hidden, config.layer_norm_eps, init),
                mm_input_projection: Linear::in_out(hidden, text, false, init),
            },
            config: config.clone(),
        }
    }
}

impl Component for SiglipVisionModel {
    fn names(_: &SiglipVisionConfig, tensors: &[TensorInfo]) -> Names {
        let is_named = |tensor: &TensorInfo| tensor.name.contains("vision_tower.vision_model.");
        let mut rules = vec![(r"mm_input_projection\.weight$", "mm_input_projection_weight")];
        if tensors.iter().any(is_named) {
            rules.push((r"^vision_tower\.", "vision_tower.vision_model."));
        }
        if is_within_model(tensors) {
            rules.push(("^", "model."));
        }
        // The expressions are ours, and valid.
        rules.into_iter().fold(Names::default(), |names, (pattern, with)| {
            names.clone().rename(pattern, with).unwrap_or(names)
        })
    }

    fn is_unused(_: &SiglipVisionConfig, tensor: &str) -> bool {
        is_no_vision(tensor)
    }

    fn weight_use(config: &SiglipVisionConfig, path: &str, pass: &PicturePass) -> WeightUse {
        vision_weight_use(path, pass, Self::layout(config).merged())
    }
}

impl VisionModel for SiglipVisionModel {
    fn layout(config: &SiglipVisionConfig) -> PatchLayout {
        PatchLayout {
            patch_size: config.patch_size,
            merge_size: config.image_size / config.patch_size / config.tokens,
            frames: 1,
            features: config.text_hidden_size,
            scaling: ImageScaling::Square(config.image_size),
            image_token: config.image_token,
            spelling: ImageSpelling::Framed,
            sees_itself: true,
            order: PatchOrder::ColoursFirst,
        }
    }

    fn see(&self, pixels: Tensor<2>, sides: [usize; 2]) -> ImageFeatures {
        let [count, values] = pixels.dims();
        let SiglipTower { embeddings, encoder, post_layernorm } = &self.vision_tower;
        let merge = Self::layout(&self.config).merge_size;
        let x = embeddings.patch_embedding.forward_pixels(pixels.reshape([1, count, values]));
        let places = patch_places(sides, merge);
        let ids = places.iter().map(|[row, column]| (row * sides[1] + column) as u32);
        let positions = embeddings.position_embedding.forward(&ids.collect::<Vec<_>>());
        let mut x = x.clone() + positions.to_device(&x.device());
        let mut pending = None;
        for layer in &encoder.layers {
            let (sum, normed) = layer.layer_norm1.after(x, pending);
            let mixed = layer.self_attn.forward(normed);
            let (sum, normed) = layer.layer_norm2.after(sum, Some(mixed));
            (x, pending) = (sum, Some(layer.mlp.forward(normed)));
        }
        let states = post_layernorm.after(x, pending).1;
        let embeddings = self.multi_modal_projector.forward(states, merge * merge);
        ImageFeatures { embeddings, deepstack: Vec::new(), positions: None, sees_itself: true }
    }

    fn activation_bytes(&self, patches: usize, threads: usize) -> u64 {
        let config = &self.config;
        let (hidden, count) = (config.hidden_size as u64, patches as u64);
        let (inner, layout) = (config.intermediate_size as u64, Self::layout(config));
        // The norm's output, queries, keys and values, and what attention gives; or the inner layer
        // and a copy; or the pixels and their positions; beside the residual stream.
        let most = (6 * hidden).max(2 * hidden + 2 * inner);
        let most = most.max(layout.patch_values() as u64 + 2 * hidden);
        let width = config.hidden_size / config.num_attention_heads;
        let scratch = pixel_attention_scratch(
            [1, patches, patches],
            config.num_attention_heads,
            width,
            threads,
        );
        let features = count / layout.merged() as u64 * config.text_hidden_size as u64;
        let values = count.saturating_mul(most).max(2 * features);
        Activations::values(values + count * hidden + features).with_scratch(scratch).bytes()
    }
}

impl SiglipAttention {
    /// Each patch attends to all.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let layers = [&self.q_proj, &self.k_proj, &self.v_proj, &self.out_proj];
        attend_layers(layers, self.heads, x, None)
    }
}

impl SiglipMlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        two_layers_of_pixels([&self.fc1, &self.fc2], self.activation, x)
    }
}

impl SiglipProjector {
    /// `[1, patches, hidden]` f32 to `[tokens, text's hidden]` f32, in main memory: of the mean of
    /// a token's patches.
    fn forward(&self, x: Tensor<3>, patches: usize) -> Tensor<2> {
        let [_, count, hidden] = x.dims();
        let means = x.reshape([count / patches, patches, hidden]).mean_dim(1);
        let normed = self.mm_soft_emb_norm.forward(means.reshape([1, count / patches, hidden]));
        let projection = &self.mm_input_projection;
        fetched_rows(projection.forward(normed), &projection.weight)
    }
}
