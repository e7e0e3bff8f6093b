//! The vision encoder of Kimi K2.5 (MoonViT) and of Muse: blocks as Qwen2-VL's behind a table of
//! positions that is stretched over an image, in Muse most of them with windows. Kimi Team 2026
//! (arXiv:2602.02276), Meta 2026 (<https://huggingface.co/meta-models/Muse-Glimmer-30B>).

mod config;
mod projector;

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_checkpoint::TensorInfo;
use outsize_core::{Error as CoreError, Names};

pub use self::config::{KimiProjectorConfig, KimiVisionConfig};
use self::projector::Projector;
use super::deepseek::KIMI_IMAGES;
use super::muse::MULTIMODAL;
use super::qwen_vision::block::QwenVisionBlock;
use super::qwen_vision::{ImageWindows, visual_weight_use};
use super::vision_positions::{between_four, between_two_inside, position_embeddings};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{AxialRope, Embedding, LayerNorm, Linear};
use crate::pass_shape::pixel_attention_scratch;
use crate::vision_model::patch_places;
use crate::{
    Activations, Error, ImageFeatures, ImageScaling, ImageSpelling, PatchLayout, PatchOrder,
    PicturePass, VisionModel, WeightUse,
};

/// What the norm behind the blocks of a Kimi adds to the variance.
const EPSILON: f64 = 1e-5;

/// A vision encoder.
#[derive(Module, Debug)]
pub struct KimiVisionModel {
    /// `[hidden, values of a patch]`.
    patch_embed: Linear,
    /// `[positions, hidden]`, of all rows or of each.
    position_tables: Vec<Embedding>,
    ln_pre: Option<LayerNorm>,
    layers: Vec<QwenVisionBlock>,
    ln_post: LayerNorm,
    projector: Projector,
    #[module(skip)]
    config: KimiVisionConfig,
}

impl KimiVisionConfig {
    fn is_muse(&self) -> bool {
        matches!(self.projector, KimiProjectorConfig::Muse { .. })
    }
}

impl Architecture for KimiVisionModel {
    type Config = KimiVisionConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("kimi_k25", "Kimi_K25Vision"),
        ("muse_glimmer", "MuseGlimmerVision"),
        ("muse_spark", "MuseSparkVision"),
    ];
    const CLASS_PREFIX: &'static str = "KimiVision";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("QwenVisionBlock", "Kimi_K25VisionEncoderLayer"),
        ("QwenVisionAttention", "Kimi_K25VisionAttention"),
        ("Qwen2VisionMlp", "Kimi_K25VisionMLP"),
        ("KimiProjector", "Kimi_K25MultimodalProjection"),
        ("MuseProjector", "MuseGlimmerVisionAdapter"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["QwenVisionBlock"];

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "kimi_k25" => &[KIMI_IMAGES],
            _ => &[MULTIMODAL],
        }
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<KimiVisionConfig, Error> {
        KimiVisionConfig::read(model_type, fields)
    }

    fn new(config: &KimiVisionConfig, init: &Init) -> Self {
        let (hidden, grid) = (config.hidden_size, config.grid);
        let (encoder_epsilon, tables) = match config.projector {
            KimiProjectorConfig::Kimi { .. } => (EPSILON, [grid, grid]),
            KimiProjectorConfig::Muse { encoder_epsilon, .. } => {
                (encoder_epsilon, [1, grid * grid])
            }
        };
        let values = Self::layout(config).patch_values();
        let norm = || LayerNorm::new(hidden, encoder_epsilon, init);
        Self {
            patch_embed: Linear::new(values, hidden, !config.is_muse(), init),
            position_tables: (0..tables[0])
                .map(|_| Embedding::new(tables[1], hidden, init))
                .collect(),
            ln_pre: config.is_muse().then(norm),
            layers: (0..config.num_hidden_layers)
                .map(|_| QwenVisionBlock::new(&config.block(), init))
                .collect(),
            ln_post: norm(),
            projector: Projector::of(config, init),
            config: config.clone(),
        }
    }
}

impl Component for KimiVisionModel {
    fn names(config: &KimiVisionConfig, _: &[TensorInfo]) -> Names {
        let names = match config.is_muse() {
            true => muse_names(),
            false => kimi_names(config.grid),
        };
        // The expressions are ours, and valid.
        names.unwrap_or_default()
    }

    fn is_unused(_: &KimiVisionConfig, tensor: &str) -> bool {
        let name = tensor.strip_prefix("model.").unwrap_or(tensor);
        let parts = ["vision_tower.", "mm_projector.", "vision_adapter.", "vision_projection."];
        !parts.iter().any(|part| name.starts_with(part))
    }

    fn weight_use(config: &KimiVisionConfig, path: &str, pass: &PicturePass) -> WeightUse {
        let merged = Self::layout(config).merged();
        let block = path.split('.').find_map(|part| part.parse::<usize>().ok());
        let is_windowed =
            block.filter(|block| config.windowed_layers.get(*block).copied().unwrap_or_default());
        let seen = is_windowed.map(|_| (config.grid * config.grid) as u64);
        visual_weight_use(path, pass, path.starts_with("projector"), merged, seen)
    }
}

/// As transformers has it.
fn muse_names() -> Result<Names, CoreError> {
    let embedder = "model.vision_tower.patch_embedder";
    Names::default()
        .rename(r"^patch_embed\.", &format!("{embedder}.patch_embedding."))?
        .rename(r"^position_tables\.0\.", &format!("{embedder}.position_embedding_table."))?
        .rename(r"^(ln_pre|ln_post|layers)\.", "model.vision_tower.$1.")?
        .rename(r"\.attn\.qkv\.", ".attn.")?
        .rename(r"^projector\.(fc\d)\.", "model.vision_adapter.$1.")?
        .rename(r"^projector\.vision_projection\.", "model.vision_projection.")
}

/// As Kimi K2.5 is published.
fn kimi_names(grid: usize) -> Result<Names, CoreError> {
    Names::default()
        .rename(r"^patch_embed\.", "vision_tower.patch_embed.proj.")?
        .rename(r"^ln_post\.", "vision_tower.encoder.final_layernorm.")?
        .rename(r"^layers\.", "vision_tower.encoder.blocks.")?
        .rename(r"\.norm1\.", ".norm0.")?
        .rename(r"\.norm2\.", ".norm1.")?
        .rename(r"\.attn\.qkv\.", ".wqkv.")?
        .rename(r"\.attn\.proj\.", ".wo.")?
        .rename(r"\.mlp\.fc1\.", ".mlp.fc0.")?
        .rename(r"\.mlp\.fc2\.", ".mlp.fc1.")?
        .rename(r"^projector\.pre_norm\.", "mm_projector.pre_norm.")?
        .rename(r"^projector\.in_proj\.", "mm_projector.proj.0.")?
        .rename(r"^projector\.out_proj\.", "mm_projector.proj.2.")?
        .stacked(
            r"^position_tables\.(?<n>\d+)\.weight$",
            "vision_tower.patch_embed.pos_emb.weight",
            [0, 1],
            grid,
        )
}

impl VisionModel for KimiVisionModel {
    fn layout(config: &KimiVisionConfig) -> PatchLayout {
        PatchLayout {
            patch_size: config.patch_size,
            merge_size: config.merge_size,
            frames: config.frames,
            features: config.text_hidden_size,
            scaling: match config.is_muse() {
                true => ImageScaling::NearestGrid,
                false => ImageScaling::Padded,
            },
            image_token: config.image_token,
            spelling: match config.is_muse() {
                true => ImageSpelling::Named(["<|image_start|>", "<|image_end|>"]),
                false => ImageSpelling::Quoted {
                    token: "<|media_pad|>",
                    text: "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>",
                },
            },
            sees_itself: false,
            order: match config.is_muse() {
                true => PatchOrder::FramesFirst,
                false => PatchOrder::ColoursFirst,
            },
        }
    }

    fn see(&self, pixels: Tensor<2>, sides: [usize; 2]) -> ImageFeatures {
        let (config, merged) = (&self.config, Self::layout(&self.config).merged());
        let ([count, values], merge) = (pixels.dims(), config.merge_size);
        let mut places = patch_places(sides, merge);
        let x = self.patch_embed.forward_pixels(pixels.reshape([1, count, values]));
        let positions = self.positions(&places, sides);
        let x = x.clone() + positions.to_device(&x.device());
        let mut x = match &self.ln_pre {
            Some(norm) => norm.forward(x),
            None => x,
        };
        let windows = config.windowed_layers.contains(&true).then(|| {
            ImageWindows::new(sides.map(|side| side / merge), config.grid / merge, merged)
        });
        if let Some(windows) = &windows {
            (x, places) = (windows.ordered(x), windows.ordered_places(&places));
        }
        let width = config.hidden_size / config.num_attention_heads;
        let rope = AxialRope::new(config.rope_theta, [width / 2; 2]).rounding_angles();
        // Columns are first; those of Muse count from one.
        let (rope, first) = match config.is_muse() {
            true => (rope.halves(), 1),
            false => (rope.alternating(), 0),
        };
        let places: Vec<_> =
            places.iter().map(|[row, column]| [column + first, row + first]).collect();
        let rotation = rope.at(&places, &x.device());
        for (block, is_windowed) in self.layers.iter().zip(&config.windowed_layers) {
            x = block.forward(x, &rotation, windows.as_ref().filter(|_| *is_windowed));
        }
        let embeddings = self.projector.forward(self.ln_post.forward(x), merged);
        ImageFeatures {
            embeddings: match windows {
                Some(windows) => windows.in_rows(embeddings),
                None => embeddings,
            },
            deepstack: Vec::new(),
            positions: None,
            sees_itself: false,
        }
    }

    fn activation_bytes(&self, patches: usize, threads: usize) -> u64 {
        let (config, layout) = (&self.config, Self::layout(&self.config));
        let (hidden, count) = (config.hidden_size as u64, patches as u64);
        let inner = config.intermediate_size as u64;
        // The norm's output, queries, keys and values as they come and each by itself, one of them
        // rotated, and what attention gives; or the inner layer and a copy; or the pixels and their
        // positions, of the table; beside the residual stream.
        let block = (9 * hidden).max(2 * hidden + 2 * inner);
        // The table is read as a whole and copied, or row by row.
        let table = (config.grid * config.grid) as u64 * hidden;
        let row = if config.is_muse() { table } else { 2 * config.grid as u64 * hidden };
        let pixels = layout.patch_values() as u64 + 3 * hidden;
        let most = count.saturating_mul(block).max(count.saturating_mul(pixels) + table + row);
        // The states, normed, and the inner layer with a copy; or the states with the patches of a
        // token side by side, its inner layers, and features as they come, normed and in rows
        // again.
        let tokens = count / layout.merged() as u64;
        let out = tokens.saturating_mul(config.text_hidden_size as u64);
        let states = count.saturating_mul(hidden);
        let projector = match config.projector {
            KimiProjectorConfig::Kimi { .. } => 4 * states + out,
            KimiProjectorConfig::Muse { inner, .. } => {
                3 * states + (2 * tokens.saturating_mul(inner as u64)).max(3 * out)
            }
        };
        let width = config.hidden_size / config.num_attention_heads;
        let scratch = pixel_attention_scratch(
            [1, patches, patches],
            config.num_attention_heads,
            width,
            threads,
        );
        let rotation = count * width as u64;
        let values = (most + states).max(projector) + rotation;
        Activations::values(values).with_scratch(scratch).bytes()
    }
}

impl KimiVisionModel {
    /// The positions of patches at these places of an image with such sides, `[1, patches, hidden]`
    /// f32.
    fn positions(&self, places: &[[usize; 2]], sides: [usize; 2]) -> Tensor<3> {
        let (tables, grid) = (&self.position_tables[..], self.config.grid);
        if !self.config.is_muse() {
            return position_embeddings(tables, places, |at, side| {
                between_four(at, sides[side], grid)
            });
        }
        // The table is stretched over an image as wide as this one is high, and patches are counted
        // row by row in both.
        let [rows, columns] = sides;
        let turned = |[row, column]: &[usize; 2]| {
            let at = row * columns + column;
            [at / rows, at % rows]
        };
        let places: Vec<_> = places.iter().map(turned).collect();
        position_embeddings(tables, &places, |at, side| {
            between_two_inside(at, [columns, rows][side], grid)
        })
    }
}
