//! The vision encoder of GLM-4.1V, GLM-4.5V and GLM-4.6V: blocks as Qwen2.5-VL's without windows,
//! and a table of positions that is stretched over an image. GLM-V Team 2025 (arXiv:2507.01006).

mod config;

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

pub use self::config::GlmVisionConfig;
use super::glm::MULTIMODAL;
use super::qwen_vision::block::QwenVisionBlock;
use super::qwen_vision::{QwenVisionPatchEmbed, is_no_visual, visual_names, visual_weight_use};
use super::vision_positions::{between_four, position_embeddings};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{Activation, AxialRope, Embedding, LayerNorm, Linear, RmsNorm, fetched_rows};
use crate::pass_shape::pixel_attention_scratch;
use crate::vision_model::patch_places;
use crate::{
    Activations, Error, GridPositions, ImageFeatures, ImageScaling, ImageSpelling, PatchLayout,
    PatchOrder, PicturePass, VisionModel, WeightUse,
};

/// What the norm of a merger adds to the variance.
const EPSILON: f64 = 1e-5;

/// A vision encoder.
#[derive(Module, Debug)]
pub struct GlmVisionModel {
    patch_embed: QwenVisionPatchEmbed,
    post_conv_layernorm: RmsNorm,
    embeddings: GlmVisionEmbeddings,
    blocks: Vec<QwenVisionBlock>,
    post_layernorm: RmsNorm,
    /// `[out, patches of a token · hidden]`.
    downsample: Linear,
    merger: GlmVisionPatchMerger,
    #[module(skip)]
    config: GlmVisionConfig,
}

#[derive(Module, Debug)]
struct GlmVisionEmbeddings {
    /// `[positions, hidden]`.
    position_embedding: Embedding,
}

/// States of tokens to features.
#[derive(Module, Debug)]
struct GlmVisionPatchMerger {
    proj: Linear,
    post_projection_norm: LayerNorm,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    #[module(skip)]
    activation: Activation,
}

impl Architecture for GlmVisionModel {
    type Config = GlmVisionConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("glm4v", "Glm4vVision"), ("glm4v_moe", "Glm4vMoeVision"), ("glm46v", "Glm4vVision")];
    const CLASS_PREFIX: &'static str = "GlmVision";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("QwenVisionPatchEmbed", "Glm4vVisionPatchEmbed"),
        ("QwenVisionBlock", "Glm4vVisionBlock"),
        ("QwenVisionAttention", "Glm4vVisionAttention"),
        ("Mlp", "Glm4VisionMlp"),
        ("RmsNorm", "Glm4vRMSNorm"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["QwenVisionBlock"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[MULTIMODAL]
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<GlmVisionConfig, Error> {
        GlmVisionConfig::read(model_type, fields)
    }

    fn new(config: &GlmVisionConfig, init: &Init) -> Self {
        let (layout, hidden) = (Self::layout(config), config.hidden_size);
        let (out, inner) = (config.out_hidden_size, config.intermediate_size);
        let norm = || RmsNorm::new(hidden, config.rms_norm_eps, init);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, false, init);
        Self {
            patch_embed: QwenVisionPatchEmbed::new(
                [layout.patch_values(), hidden],
                true,
                config.frames_apart,
                init,
            ),
            post_conv_layernorm: norm(),
            embeddings: GlmVisionEmbeddings {
                position_embedding: Embedding::new(config.grid * config.grid, hidden, init),
            },
            blocks: (0..config.depth)
                .map(|_| QwenVisionBlock::new(&config.block(), init))
                .collect(),
            post_layernorm: norm(),
            downsample: Linear::new(hidden * layout.merged(), out, true, init),
            merger: GlmVisionPatchMerger {
                proj: linear(out, out),
                post_projection_norm: LayerNorm::new(out, EPSILON, init),
                gate_proj: linear(out, inner),
                up_proj: linear(out, inner),
                down_proj: linear(inner, out),
                activation: config.activation,
            },
            config: config.clone(),
        }
    }
}

impl Component for GlmVisionModel {
    fn names(_: &GlmVisionConfig, tensors: &[TensorInfo]) -> Names {
        visual_names(tensors)
    }

    fn is_unused(_: &GlmVisionConfig, tensor: &str) -> bool {
        is_no_visual(tensor)
    }

    fn weight_use(config: &GlmVisionConfig, path: &str, pass: &PicturePass) -> WeightUse {
        let of_token = path.contains("merger") || path.contains("downsample");
        visual_weight_use(path, pass, of_token, Self::layout(config).merged(), None)
    }
}

impl VisionModel for GlmVisionModel {
    fn layout(config: &GlmVisionConfig) -> PatchLayout {
        PatchLayout {
            patch_size: config.patch_size,
            merge_size: config.spatial_merge_size,
            frames: if config.frames_apart { 1 } else { config.temporal_patch_size },
            features: config.out_hidden_size,
            scaling: ImageScaling::PixelsOfFrames,
            image_token: config.image_token,
            spelling: ImageSpelling::Marked(config.image_marks),
            sees_itself: false,
            order: PatchOrder::ColoursFirst,
        }
    }

    fn see(&self, pixels: Tensor<2>, [rows, columns]: [usize; 2]) -> ImageFeatures {
        let (config, merged) = (&self.config, Self::layout(&self.config).merged());
        let ([count, values], merge) = (pixels.dims(), config.spatial_merge_size);
        let places = patch_places([rows, columns], merge);
        let x = self.patch_embed.forward(pixels.reshape([1, count, values]));
        let x = self.post_conv_layernorm.forward(x);
        let table = &self.embeddings.position_embedding;
        let positions = position_embeddings(std::slice::from_ref(table), &places, |at, side| {
            between_four(at, [rows, columns][side], config.grid)
        });
        let mut x = x.clone() + positions.to_device(&x.device());
        let width = config.hidden_size / config.num_heads;
        let rope = AxialRope::new(config.rope_theta, [width / 2; 2]).halves().rounding_angles();
        let rotation = rope.at(&places, &x.device());
        for block in &self.blocks {
            x = block.forward(x, &rotation, None);
        }
        // Of each channel all patches of a token.
        let (tokens, hidden) = (count / merged, config.hidden_size);
        let x = self.post_layernorm.forward(x).reshape([tokens, merged, hidden]).swap_dims(1, 2);
        let x = self.downsample.forward_pixels(x.reshape([1, tokens, hidden * merged]));
        ImageFeatures {
            embeddings: self.merger.forward(x),
            deepstack: Vec::new(),
            positions: Some(GridPositions {
                rows: rows / merge,
                columns: columns / merge,
                axes: config.axes.clone(),
            }),
            sees_itself: false,
        }
    }

    fn activation_bytes(&self, patches: usize, threads: usize) -> u64 {
        let (config, layout) = (&self.config, Self::layout(&self.config));
        let (hidden, count) = (config.hidden_size as u64, patches as u64);
        let (out, inner) = (config.out_hidden_size as u64, config.intermediate_size as u64);
        // The norm's output, queries, keys and values as they come and each by itself, one of them
        // rotated, and what attention gives; or both inner layers and what the gate makes of one;
        // or the pixels and their positions, of the table; beside the residual stream.
        let block = (9 * hidden).max(2 * hidden + 3 * out);
        let table = (config.grid * config.grid) as u64 * hidden;
        let pixels = layout.patch_values() as u64 + 3 * hidden;
        let most = count.saturating_mul(block).max(count.saturating_mul(pixels) + 2 * table);
        // Patches of a token side by side, twice; then of each token what it becomes, its inner
        // layers, and what the gate makes.
        let tokens = count / layout.merged() as u64;
        let merger = 3 * count.saturating_mul(hidden) + tokens * (4 * out + 3 * inner);
        let width = config.hidden_size / config.num_heads;
        let scratch =
            pixel_attention_scratch([1, patches, patches], config.num_heads, width, threads);
        let alive = count.saturating_mul(hidden + width as u64) + tokens * out;
        Activations::values(most.max(merger) + alive).with_scratch(scratch).bytes()
    }
}

impl GlmVisionPatchMerger {
    /// `[1, tokens, out]` f32 to `[tokens, out]` f32, in main memory.
    fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let x = self.post_projection_norm.forward(self.proj.forward_pixels(x));
        let x = Activation::Gelu.activate(x);
        let gate = self.gate_proj.forward_pixels(x.clone());
        let inner = self.activation.gate(gate, self.up_proj.forward_pixels(x));
        fetched_rows(self.down_proj.forward_pixels(inner), &self.down_proj.weight)
    }
}
