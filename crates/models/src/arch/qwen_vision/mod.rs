//! The vision encoder of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: patches of an image to
//! features that stand among the tokens of a text. Wang et al. 2024 (arXiv:2409.12191), Bai et al.
//! 2025 (arXiv:2502.13923, arXiv:2511.21631).

pub(super) mod block;
mod config;
pub(super) mod merger;
mod windows;

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

use self::block::QwenVisionBlock;
use self::config::EXAONE;
pub(super) use self::config::stretches;
pub use self::config::{QwenVisionConfig, QwenVisionVersion};
use self::merger::{Merger, QwenVisionPatchMerger};
pub(super) use self::windows::ImageWindows;
use super::llama::{ACT, QWEN2};
use super::qwen_omni::{OMNI, thinker};
use super::qwen_vl::MULTIMODAL;
use super::rms_config::FIELDS;
use super::vision_positions::{between_two, position_embeddings};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{AxialRope, Embedding, Linear};
use crate::pass_shape::pixel_attention_scratch;
use crate::vision_model::patch_places;
use crate::{
    Activations, Error, GridPositions, ImageFeatures, ImageScaling, ImageSpelling, PatchLayout,
    PatchOrder, PicturePass, VisionModel, WeightUse,
};

/// A vision encoder.
#[derive(Module, Debug)]
pub struct QwenVisionModel {
    patch_embed: QwenVisionPatchEmbed,
    /// `[positions, hidden]`.
    pos_embed: Option<Embedding>,
    blocks: Vec<QwenVisionBlock>,
    deepstack_merger_list: Vec<QwenVisionPatchMerger>,
    merger: Merger,
    #[module(skip)]
    config: QwenVisionConfig,
}

/// Pixels of patches to the residual stream.
#[derive(Module, Debug)]
pub(super) struct QwenVisionPatchEmbed {
    /// `[hidden, values of a patch]`.
    proj: Linear,
    /// The same of the second frame, if it has a weight of its own.
    proj_1: Option<Linear>,
}

impl Architecture for QwenVisionModel {
    type Config = QwenVisionConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("qwen3_vl", "Qwen3VLVision"),
        ("qwen3_vl_moe", "Qwen3VLMoeVision"),
        ("qwen3_5", "Qwen3_5Vision"),
        ("qwen3_5_moe", "Qwen3_5MoeVision"),
        ("qwen2_vl", "Qwen2VLVision"),
        ("qwen2_5_vl", "Qwen2_5_VLVision"),
        ("qwen2_5_omni", "Qwen2_5OmniVision"),
        ("qwen3_omni_moe", "Qwen3OmniMoeVision"),
        (EXAONE, "Exaone4_5_Vision"),
    ];
    const CLASS_PREFIX: &'static str = "QwenVision";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("Mlp", "Qwen2_5_VLMLP"),
        ("Qwen2VisionMlp", "VisionMlp"),
        ("Qwen2VisionPatchMerger", "PatchMerger"),
        ("RmsNorm", "Qwen2_5_VLRMSNorm"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["QwenVisionBlock"];

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            // As first published with the fields of the text part.
            "qwen2_vl" | "qwen2_5_vl" => &[MULTIMODAL, QWEN2, ACT, FIELDS],
            "qwen2_5_omni" | "qwen3_omni_moe" => &[OMNI],
            _ => &[MULTIMODAL],
        }
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<QwenVisionConfig, Error> {
        match model_type {
            "qwen2_5_omni" | "qwen3_omni_moe" => {
                QwenVisionConfig::read(model_type, &thinker(fields)?)
            }
            _ => QwenVisionConfig::read(model_type, fields),
        }
    }

    fn new(config: &QwenVisionConfig, init: &Init) -> Self {
        let (layout, hidden) = (Self::layout(config), config.hidden_size);
        let has_bias = config.version == QwenVisionVersion::Qwen3;
        let deepstack = |_| QwenVisionPatchMerger::new(config, hidden * layout.merged(), init);
        Self {
            patch_embed: QwenVisionPatchEmbed::new(
                [layout.patch_values(), hidden],
                has_bias,
                config.frames_apart,
                init,
            ),
            pos_embed: config.grid.map(|grid| Embedding::new(grid * grid, hidden, init)),
            blocks: (0..config.depth)
                .map(|_| QwenVisionBlock::new(&config.block(), init))
                .collect(),
            deepstack_merger_list: config.deepstack.iter().map(deepstack).collect(),
            merger: Merger::new(config, init),
            config: config.clone(),
        }
    }
}

impl Component for QwenVisionModel {
    fn names(_: &QwenVisionConfig, tensors: &[TensorInfo]) -> Names {
        let renamed = |names: Names, (pattern, with): &(&str, &str)| names.or_rename(pattern, with);
        // The expressions are ours, and valid.
        OMNI_NAMES.iter().try_fold(visual_names(tensors), renamed).unwrap_or_default()
    }

    fn is_unused(_: &QwenVisionConfig, tensor: &str) -> bool {
        is_no_visual(tensor)
    }

    fn weight_use(config: &QwenVisionConfig, path: &str, pass: &PicturePass) -> WeightUse {
        let merged = Self::layout(config).merged();
        let block = path.split('.').find_map(|part| part.parse().ok());
        let window = block.and_then(|block| config.window_of(block));
        let seen = window.map(|side| (side * side * merged) as u64);
        visual_weight_use(path, pass, path.contains("merger"), merged, seen)
    }
}

/// What stands in Qwen3-Omni for names of mergers, and in Qwen2.5-Omni for those of projections.
const OMNI_NAMES: &[(&str, &str)] = &[
    (r"\.attn\.qkv\.([qkv])_proj\.", ".attn.$1."),
    (r"\.merger\.norm\.", ".merger.ln_q."),
    (r"\.merger\.linear_fc1\.", ".merger.mlp.0."),
    (r"\.merger\.linear_fc2\.", ".merger.mlp.2."),
    (r"\.deepstack_merger_list\.(\d+)\.norm\.", ".merger_list.$1.ln_q."),
    (r"\.deepstack_merger_list\.(\d+)\.linear_fc1\.", ".merger_list.$1.mlp.0."),
    (r"\.deepstack_merger_list\.(\d+)\.linear_fc2\.", ".merger_list.$1.mlp.2."),
];

/// What the names of its tensors begin with.
const PREFIXES: [&str; 3] = ["model.visual.", "thinker.visual.", "visual."];

/// The names of an encoder that is called `visual` in a checkpoint with these tensors.
pub(super) fn visual_names(tensors: &[TensorInfo]) -> Names {
    let is_one = |prefix: &&str| tensors.iter().any(|tensor| tensor.name.starts_with(*prefix));
    let prefix = PREFIXES.into_iter().find(is_one).unwrap_or(PREFIXES[2]);
    // The expression is ours, and valid.
    Names::default().rename("^", prefix).unwrap_or_default()
}

/// Whether a tensor is of no such encoder.
pub(super) fn is_no_visual(tensor: &str) -> bool {
    !PREFIXES.iter().any(|prefix| tensor.starts_with(prefix))
}

/// What a pass does with a weight of an encoder of [blocks](QwenVisionBlock), of patches that see
/// so many each, or all; or of tokens of so many patches.
pub(super) fn visual_weight_use(
    path: &str,
    pass: &PicturePass,
    of_token: bool,
    merged: usize,
    seen: Option<u64>,
) -> WeightUse {
    let patches = pass.latents.pixels();
    if of_token {
        return WeightUse::of_rows(patches / merged as u64);
    }
    let of_queries = [".qkv.weight", ".qkv.q_proj.weight"];
    let Some(is_apart) = of_queries.iter().position(|end| path.ends_with(end)) else {
        return WeightUse::of_rows(patches);
    };
    let seen = seen.unwrap_or(u64::MAX).min(patches);
    // Of queries, keys and values together one in three is a query.
    let attended = if is_apart == 1 { seen } else { seen / 3 };
    WeightUse { rows: patches, attended }
}

impl VisionModel for QwenVisionModel {
    fn layout(config: &QwenVisionConfig) -> PatchLayout {
        PatchLayout {
            patch_size: config.patch_size,
            merge_size: config.spatial_merge_size,
            frames: if config.frames_apart { 1 } else { config.temporal_patch_size },
            features: config.out_hidden_size * (1 + config.deepstack.len()),
            scaling: ImageScaling::Pixels,
            image_token: config.image_token,
            spelling: config.image_marks.map_or(ImageSpelling::Bare, ImageSpelling::Marked),
            sees_itself: false,
            order: PatchOrder::ColoursFirst,
        }
    }

    fn see(&self, pixels: Tensor<2>, [rows, columns]: [usize; 2]) -> ImageFeatures {
        let (config, merged) = (&self.config, Self::layout(&self.config).merged());
        let [count, values] = pixels.dims();
        let merge = config.spatial_merge_size;
        let mut places = patch_places([rows, columns], merge);
        let mut x = self.patch_embed.forward(pixels.reshape([1, count, values]));
        if let (Some(table), Some(grid)) = (&self.pos_embed, config.grid) {
            let positions =
                position_embeddings(std::slice::from_ref(table), &places, |at, side| {
                    between_two(at, [rows, columns][side], grid)
                });
            x = x.clone() + positions.to_device(&x.device());
        }
        let tokens = [rows / merge, columns / merge];
        let windows = config.window.map(|side| ImageWindows::new(tokens, side, merged));
        if let Some(windows) = &windows {
            (x, places) = (windows.ordered(x), windows.ordered_places(&places));
        }
        let width = config.hidden_size / config.num_heads;
        let rope = AxialRope::new(config.rope_theta, [width / 2; 2]).halves().rounding_angles();
        let rotation = rope.at(&places, &x.device());
        let mut deepstack = Vec::with_capacity(config.deepstack.len());
        for (index, block) in self.blocks.iter().enumerate() {
            let within = windows.as_ref().filter(|_| config.window_of(index).is_some());
            x = block.forward(x, &rotation, within);
            let merger = config.deepstack.iter().position(|behind| *behind == index);
            if let Some(merger) = merger.map(|place| &self.deepstack_merger_list[place]) {
                deepstack.push(merger.forward(x.clone(), merged));
            }
        }
        let embeddings = self.merger.forward(x, merged);
        ImageFeatures {
            embeddings: match windows {
                Some(windows) => windows.in_rows(embeddings),
                None => embeddings,
            },
            deepstack,
            positions: config.axes.clone().map(|axes| GridPositions {
                rows: tokens[0],
                columns: tokens[1],
                axes,
            }),
            sees_itself: false,
        }
    }

    fn activation_bytes(&self, patches: usize, threads: usize) -> u64 {
        let (config, layout) = (&self.config, Self::layout(&self.config));
        let (hidden, count) = (config.hidden_size as u64, patches as u64);
        let (inner, merged) = (config.intermediate_size as u64, layout.merged() as u64);
        // The norm's output, queries, keys and values as they come and each by itself, one of them
        // rotated, and what attention gives; or the inner layer and a copy, or both inner layers
        // and what the gate makes of one; or the pixels and their positions, of the table; beside
        // the residual stream.
        let inner_layers = if config.version == QwenVisionVersion::Qwen2_5 { 3 } else { 2 };
        let block = (9 * hidden).max(2 * hidden + inner_layers * inner);
        let table = config.grid.map_or(0, |grid| (grid * grid) as u64 * hidden);
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

impl QwenVisionPatchEmbed {
    /// Of so many values of a patch, or of one frame of it, to so many of the residual stream.
    pub fn new(
        [values, hidden]: [usize; 2],
        has_bias: bool,
        frames_apart: bool,
        init: &Init,
    ) -> Self {
        Self {
            proj: Linear::new(values, hidden, has_bias, init),
            proj_1: frames_apart.then(|| Linear::new(values, hidden, false, init)),
        }
    }

    /// `[1, patches, values]` f32 to `[1, patches, hidden]`: both frames of an image are alike.
    pub fn forward(&self, pixels: Tensor<3>) -> Tensor<3> {
        match &self.proj_1 {
            None => self.proj.forward_pixels(pixels),
            Some(second) => {
                self.proj.forward_pixels(pixels.clone()) + second.forward_pixels(pixels)
            }
        }
    }
}
