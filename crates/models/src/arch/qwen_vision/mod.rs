//! The vision encoder of Qwen3-VL and Qwen3.5: patches of an image to features that stand among the tokens of a text. Bai et
//! al. 2025 (arXiv:2511.21631).

mod config;
mod positions;

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

pub use self::config::QwenVisionConfig;
use self::positions::position_embeddings;
use super::qwen_vl::MULTIMODAL;
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{
    Activation, AxialRope, Embedding, LayerNorm, Linear, Rotation, attend_tokens, fetched_rows,
};
use crate::pass_shape::pixel_attention_scratch;
use crate::vision_model::patch_places;
use crate::{
    Activations, Error, GridPositions, ImageFeatures, ImageScaling, ImageSpelling, PatchLayout,
    PicturePass, VisionModel, WeightUse,
};

/// What LayerNorm adds to the variance.
const EPSILON: f64 = 1e-6;

/// The base of the frequencies.
const THETA: f64 = 10_000.0;

/// A vision encoder.
#[derive(Module, Debug)]
pub struct QwenVisionModel {
    patch_embed: QwenVisionPatchEmbed,
    /// `[positions, hidden]`.
    pos_embed: Embedding,
    blocks: Vec<QwenVisionBlock>,
    deepstack_merger_list: Vec<QwenVisionPatchMerger>,
    merger: QwenVisionPatchMerger,
    #[module(skip)]
    config: QwenVisionConfig,
}

/// Pixels of patches to the residual stream.
#[derive(Module, Debug)]
struct QwenVisionPatchEmbed {
    /// `[hidden, values of a patch]`.
    proj: Linear,
}

#[derive(Module, Debug)]
struct QwenVisionBlock {
    norm1: LayerNorm,
    attn: QwenVisionAttention,
    norm2: LayerNorm,
    mlp: QwenVisionMlp,
}

#[derive(Module, Debug)]
struct QwenVisionAttention {
    /// `[3 · hidden, hidden]`.
    qkv: Linear,
    /// `[hidden, hidden]`.
    proj: Linear,
    heads: usize,
}

#[derive(Module, Debug)]
struct QwenVisionMlp {
    /// `[inner, hidden]`.
    linear_fc1: Linear,
    /// `[hidden, inner]`.
    linear_fc2: Linear,
    #[module(skip)]
    activation: Activation,
}

/// The patches of a token to its features.
#[derive(Module, Debug)]
struct QwenVisionPatchMerger {
    /// Of each patch, or of all patches of a token together.
    norm: LayerNorm,
    linear_fc1: Linear,
    linear_fc2: Linear,
}

impl Architecture for QwenVisionModel {
    type Config = QwenVisionConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("qwen3_vl", "Qwen3VLVision"),
        ("qwen3_vl_moe", "Qwen3VLMoeVision"),
        ("qwen3_5", "Qwen3_5Vision"),
        ("qwen3_5_moe", "Qwen3_5MoeVision"),
    ];
    const CLASS_PREFIX: &'static str = "QwenVision";
    const NO_SPLIT: &'static [&'static str] = &["QwenVisionBlock"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[MULTIMODAL]
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<QwenVisionConfig, Error> {
        QwenVisionConfig::read(model_type, fields)
    }

    fn new(config: &QwenVisionConfig, init: &Init) -> Self {
        let (layout, hidden) = (Self::layout(config), config.hidden_size);
        let merged = hidden * layout.merged();
        let norm = |width| LayerNorm::new(width, EPSILON, init);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, true, init);
        let block = |_| QwenVisionBlock {
            norm1: norm(hidden),
            attn: QwenVisionAttention {
                qkv: linear(hidden, 3 * hidden),
                proj: linear(hidden, hidden),
                heads: config.num_heads,
            },
            norm2: norm(hidden),
            mlp: QwenVisionMlp {
                linear_fc1: linear(hidden, config.intermediate_size),
                linear_fc2: linear(config.intermediate_size, hidden),
                activation: config.activation,
            },
        };
        let merger = |normed| QwenVisionPatchMerger {
            norm: norm(normed),
            linear_fc1: linear(merged, merged),
            linear_fc2: linear(merged, config.out_hidden_size),
        };
        Self {
            patch_embed: QwenVisionPatchEmbed { proj: linear(layout.patch_values(), hidden) },
            pos_embed: Embedding::new(config.grid * config.grid, hidden, init),
            blocks: (0..config.depth).map(block).collect(),
            deepstack_merger_list: config.deepstack.iter().map(|_| merger(merged)).collect(),
            merger: merger(hidden),
            config: config.clone(),
        }
    }
}

impl Component for QwenVisionModel {
    fn names(_: &QwenVisionConfig, tensors: &[TensorInfo]) -> Names {
        let is_inner = tensors.iter().any(|tensor| tensor.name.starts_with(PREFIXES[0]));
        let prefix = if is_inner { PREFIXES[0] } else { PREFIXES[1] };
        // The expression is ours, and valid.
        Names::default().rename("^", prefix).unwrap_or_default()
    }

    fn is_unused(_: &QwenVisionConfig, tensor: &str) -> bool {
        !PREFIXES.iter().any(|prefix| tensor.starts_with(prefix))
    }

    fn weight_use(config: &QwenVisionConfig, path: &str, pass: &PicturePass) -> WeightUse {
        let patches = pass.latents.pixels();
        if path.contains("merger") {
            return WeightUse::of_rows(patches / Self::layout(config).merged() as u64);
        }
        // Of queries, keys and values one in three is a query.
        let attended = if path.ends_with(".qkv.weight") { patches / 3 } else { 0 };
        WeightUse { rows: patches, attended }
    }
}

/// What the names of its tensors begin with.
const PREFIXES: [&str; 2] = ["model.visual.", "visual."];

impl VisionModel for QwenVisionModel {
    fn layout(config: &QwenVisionConfig) -> PatchLayout {
        PatchLayout {
            patch_size: config.patch_size,
            merge_size: config.spatial_merge_size,
            frames: config.temporal_patch_size,
            features: config.out_hidden_size * (1 + config.deepstack.len()),
            scaling: ImageScaling::Pixels,
            image_token: config.image_token,
            spelling: ImageSpelling::Marked(config.image_marks),
            sees_itself: false,
        }
    }

    fn see(&self, pixels: Tensor<2>, [rows, columns]: [usize; 2]) -> ImageFeatures {
        let (config, merged) = (&self.config, Self::layout(&self.config).merged());
        let [count, values] = pixels.dims();
        let merge = config.spatial_merge_size;
        let places = patch_places([rows, columns], merge);
        let x = self.patch_embed.proj.forward_pixels(pixels.reshape([1, count, values]));
        let positions = position_embeddings(&self.pos_embed, &places, [rows, columns], config.grid);
        let mut x = x.clone() + positions.to_device(&x.device());
        let width = config.hidden_size / config.num_heads;
        let rope = AxialRope::new(THETA, [width / 2; 2]).halves().rounding_angles();
        let rotation = rope.at(&places, &x.device());
        let mut deepstack = Vec::with_capacity(config.deepstack.len());
        for (index, block) in self.blocks.iter().enumerate() {
            x = block.forward(x, &rotation);
            let merger = config.deepstack.iter().position(|behind| *behind == index);
            if let Some(merger) = merger.map(|place| &self.deepstack_merger_list[place]) {
                deepstack.push(merger.forward(x.clone(), merged));
            }
        }
        ImageFeatures {
            embeddings: self.merger.forward(x, merged),
            deepstack,
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
        let (inner, merged) = (config.intermediate_size as u64, layout.merged() as u64);
        // The norm's output, queries, keys and values as they come and each by itself, one of them rotated, and what attention
        // gives; or the inner layer and a copy; or the pixels and their positions, of the table; beside the residual stream.
        let block = (9 * hidden).max(2 * hidden + 2 * inner);
        let table = (config.grid * config.grid) as u64 * hidden;
        let pixels = layout.patch_values() as u64 + 2 * hidden;
        let most = count.saturating_mul(block).max(count.saturating_mul(pixels) + 2 * table);
        // Features stay. The inner layer of a merger is as wide as the patches of its token.
        let features = (count / merged).saturating_mul(layout.features as u64);
        let width = config.hidden_size / config.num_heads;
        let rotation = count * width as u64;
        let stream = count.saturating_mul(hidden);
        let scratch =
            pixel_attention_scratch([1, patches, patches], config.num_heads, width, threads);
        Activations::values(most + stream + rotation + features).with_scratch(scratch).bytes()
    }
}

impl QwenVisionBlock {
    /// `[1, patches, hidden]` f32 to the same.
    fn forward(&self, x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
        let mixed = self.attn.forward(self.norm1.forward(x.clone()), rotation);
        let (x, normed) = self.norm2.after(x, Some(mixed));
        let added = self.mlp.forward(normed);
        x + added
    }
}

impl QwenVisionAttention {
    /// Each patch attends to all.
    fn forward(&self, x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
        let [_, patches, hidden] = x.dims();
        let projected = self.qkv.forward_pixels(x);
        let shape = [1, patches, self.heads, hidden / self.heads];
        let part = |index| projected.clone().narrow(2, index * hidden, hidden).reshape(shape);
        let [queries, keys] = [0, 1].map(|index| rotation.apply(part(index)));
        let values = part(2);
        drop(projected);
        self.proj.forward_pixels(attend_tokens(self.proj.compute, [queries, keys, values]))
    }
}

impl QwenVisionMlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let inner = self.activation.activate(self.linear_fc1.forward_pixels(x));
        self.linear_fc2.forward_pixels(inner)
    }
}

impl QwenVisionPatchMerger {
    /// `[1, patches, hidden]` f32 to `[tokens, out]` f32, in main memory.
    fn forward(&self, x: Tensor<3>, patches: usize) -> Tensor<2> {
        let [_, count, hidden] = x.dims();
        let merged = [1, count / patches, hidden * patches];
        let x = match self.norm.width() == hidden {
            true => self.norm.forward(x).reshape(merged),
            false => self.norm.forward(x.reshape(merged)),
        };
        let inner = Activation::Gelu.activate(self.linear_fc1.forward_pixels(x));
        fetched_rows(self.linear_fc2.forward_pixels(inner), &self.linear_fc2.weight)
    }
}
