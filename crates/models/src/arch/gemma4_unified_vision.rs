//! How Gemma 4 12B sees images, without an encoder: norms and linear layers make features of the
//! pixels of a token. Gemma Team 2026 (<https://huggingface.co/google/gemma-4-12B-it>).

use burn::module::{Module, Param};
use burn::tensor::{DType, Int, Tensor, TensorData};
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

use super::gemma4::{MULTIMODAL, UNIFIED};
use super::vision_fields::{IMAGE_TOKEN, MAX_PATCH, vision_fields};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::Effect::{Only, Read};
use crate::config::{COMMON, Fields, KnownField, MAX_HIDDEN, epsilon, token_id};
use crate::layers::{LayerNorm, Linear, fetched_rows, lazy, unit_rms_norm};
use crate::vision_model::patch_places;
use crate::{
    Activations, Error, ImageFeatures, ImageScaling, ImageSpelling, PatchLayout, PatchOrder,
    PicturePass, VisionModel, WeightUse,
};

/// What norms add to the variance.
const EPSILON: f64 = 1e-5;

/// The most rows or columns of tokens that there are positions for.
const MAX_POSITIONS: usize = 1 << 16;

/// What makes features of pixels.
#[derive(Module, Debug)]
pub struct Gemma4UnifiedVisionModel {
    embed_vision: Gemma4UnifiedVisionEmbedder,
    #[module(skip)]
    config: Gemma4UnifiedVisionConfig,
}

#[derive(Module, Debug)]
struct Gemma4UnifiedVisionEmbedder {
    /// `[values of a token]`.
    patch_ln1: LayerNorm,
    /// `[hidden, values of a token]`.
    patch_dense: Linear,
    patch_ln2: LayerNorm,
    /// `[positions, 2, hidden]`: of columns, and of rows.
    pos_embedding: Param<Tensor<3>>,
    pos_norm: LayerNorm,
    multimodal_embedder: Gemma4UnifiedMultimodalEmbedder,
}

/// States to features.
#[derive(Module, Debug)]
struct Gemma4UnifiedMultimodalEmbedder {
    /// `[text's hidden, hidden]`.
    embedding_projection: Linear,
}

/// The configuration of what makes features of pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct Gemma4UnifiedVisionConfig {
    /// Width of its states.
    pub hidden_size: usize,
    /// What the norm of these adds to mean squares.
    pub rms_norm_eps: f64,
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Patches of a token's side.
    pub pooling_kernel_size: usize,
    /// Rows and columns of tokens that there are positions for.
    pub positions: usize,
    /// Width of the language model.
    pub text_hidden_size: usize,
    /// Whether the tokens of an image see each other.
    pub sees_itself: bool,
    /// The token that stands for an image in a prompt.
    pub image_token: u32,
    /// What is before an image and behind it.
    pub image_marks: [u32; 2],
}

impl Gemma4UnifiedVisionConfig {
    fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        let vision = vision_fields(fields, &[VISION, COMMON])?;
        let text = fields.required_object("text_config")?;
        let size = |field, absent, most| vision.size_or(field, absent, most);
        let hidden_size = size("mm_embed_dim", 3840, MAX_HIDDEN)?;
        let field = "output_proj_dims";
        if size(field, 3840, MAX_HIDDEN)? != hidden_size {
            return Err(vision.refuse(field, format!("it must be mm_embed_dim, {hidden_size}")));
        }
        let pooling_kernel_size = size("pooling_kernel_size", 3, MAX_PATCH)?;
        let patch_size = size("patch_size", 16, MAX_PATCH)?;
        let field = "model_patch_size";
        let side = pooling_kernel_size * patch_size;
        if size(field, side, MAX_PATCH * MAX_PATCH)? != side {
            let expected = format!("it must be patch_size times pooling_kernel_size, {side}");
            return Err(vision.refuse(field, expected));
        }
        // Absent and null are not the same here.
        let field = "use_bidirectional_attention";
        let sees_itself = !text.has(field) || text.text(field)? == Some("vision");
        Ok(Self {
            hidden_size,
            rms_norm_eps: epsilon(&vision, "rms_norm_eps", 1e-6)?,
            patch_size,
            pooling_kernel_size,
            positions: size("mm_posemb_size", 1120, MAX_POSITIONS)?,
            text_hidden_size: text.size_or("hidden_size", 2304, MAX_HIDDEN)?,
            sees_itself,
            image_token: token_id(fields, &IMAGE_TOKEN, 258_880)?,
            image_marks: [
                token_id(fields, &["boi_token_id"], 255_999)?,
                token_id(fields, &["eoi_token_id"], 258_882)?,
            ],
        })
    }
}

impl Architecture for Gemma4UnifiedVisionModel {
    type Config = Gemma4UnifiedVisionConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[(UNIFIED, "Gemma4Unified")];
    const CLASS_PREFIX: &'static str = "Gemma4Unified";
    const NO_SPLIT: &'static [&'static str] = &["Gemma4UnifiedVisionEmbedder"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[MULTIMODAL]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<Gemma4UnifiedVisionConfig, Error> {
        Gemma4UnifiedVisionConfig::read(fields)
    }

    fn new(config: &Gemma4UnifiedVisionConfig, init: &Init) -> Self {
        let (layout, hidden) = (Self::layout(config), config.hidden_size);
        let values = layout.patch_values() * layout.merged();
        let norm = |width| LayerNorm::new(width, EPSILON, init);
        let projection = Linear::new(hidden, config.text_hidden_size, false, init);
        Self {
            embed_vision: Gemma4UnifiedVisionEmbedder {
                patch_ln1: norm(values),
                patch_dense: Linear::new(values, hidden, true, init),
                patch_ln2: norm(hidden),
                pos_embedding: lazy(
                    [config.positions, 2, hidden],
                    &init.device,
                    |shape, device| Tensor::zeros(shape, device),
                ),
                pos_norm: norm(hidden),
                multimodal_embedder: Gemma4UnifiedMultimodalEmbedder {
                    embedding_projection: projection,
                },
            },
            config: config.clone(),
        }
    }
}

impl Component for Gemma4UnifiedVisionModel {
    fn names(_: &Self::Config, _: &[TensorInfo]) -> Names {
        // As it is published, then as transformers has it in memory. The expressions are ours, and
        // valid.
        let names = Names::default()
            .rename(r"^embed_vision\.multimodal_embedder\.", "model.embed_vision.")
            .and_then(|names| names.rename(r"^embed_vision\.", "model.vision_embedder."))
            .and_then(|names| names.or_rename(r"\.vision_embedder\.", ".embed_vision."))
            .and_then(|names| {
                names.or_rename(r"\.embed_vision\.", ".embed_vision.multimodal_embedder.")
            });
        names.unwrap_or_default()
    }

    fn is_unused(_: &Gemma4UnifiedVisionConfig, tensor: &str) -> bool {
        let parts = ["model.vision_embedder.", "model.embed_vision."];
        !parts.iter().any(|part| tensor.starts_with(part))
    }

    fn weight_use(config: &Gemma4UnifiedVisionConfig, _: &str, pass: &PicturePass) -> WeightUse {
        WeightUse::of_rows(pass.latents.pixels() / Self::layout(config).merged() as u64)
    }
}

impl VisionModel for Gemma4UnifiedVisionModel {
    fn layout(config: &Gemma4UnifiedVisionConfig) -> PatchLayout {
        PatchLayout {
            patch_size: config.patch_size,
            merge_size: config.pooling_kernel_size,
            frames: 1,
            features: config.text_hidden_size,
            scaling: ImageScaling::Tokens(config.positions),
            image_token: config.image_token,
            spelling: ImageSpelling::Wrapped(config.image_marks),
            sees_itself: config.sees_itself,
            order: PatchOrder::ColoursLast,
        }
    }

    fn see(&self, pixels: Tensor<2>, sides: [usize; 2]) -> ImageFeatures {
        let (config, embedder) = (&self.config, &self.embed_vision);
        let (side, merge) = (config.patch_size, config.pooling_kernel_size);
        let [count, values] = pixels.dims();
        let tokens = count / (merge * merge);
        // Here colours are from 0 to 1, and the rows of a token, not those of its patches, one
        // behind the other.
        let x = (pixels + 1.0) * 0.5;
        let x = x.reshape([tokens, merge, merge, side, values / side]).permute([0, 1, 3, 2, 4]);
        let x = x.reshape([1, tokens, values * merge * merge]);
        let x = embedder.patch_dense.forward_pixels(embedder.patch_ln1.forward(x));
        let x = embedder.patch_ln2.forward(x);
        let places = patch_places(sides.map(|side| side / merge), 1);
        let x = x.clone() + self.positions(&places).to_device(&x.device());
        let x = unit_rms_norm(embedder.pos_norm.forward(x), config.rms_norm_eps);
        let projection = &embedder.multimodal_embedder.embedding_projection;
        ImageFeatures {
            embeddings: fetched_rows(projection.forward_pixels(x), &projection.weight),
            deepstack: Vec::new(),
            positions: None,
            sees_itself: config.sees_itself,
        }
    }

    fn activation_bytes(&self, patches: usize, _: usize) -> u64 {
        let (config, layout) = (&self.config, Self::layout(&self.config));
        let (hidden, merged) = (config.hidden_size as u64, layout.merged());
        let tokens = (patches / merged) as u64;
        // The pixels of all tokens as they come, scaled, in rows and normed; or the states, normed,
        // with positions and all sums of these, and features; of the table a half and a copy.
        let pixels = tokens.saturating_mul((layout.patch_values() * merged) as u64);
        let states = tokens.saturating_mul(6 * hidden + 2 * config.text_hidden_size as u64);
        let table = 2 * config.positions as u64 * hidden;
        let most = pixels.saturating_mul(4).max(pixels.saturating_add(states) + table);
        Activations::values(most.saturating_add(tokens.saturating_mul(hidden))).bytes()
    }
}

impl Gemma4UnifiedVisionModel {
    /// The embeddings of the places of tokens, rows first, `[1, tokens, hidden]` f32.
    fn positions(&self, places: &[[usize; 2]]) -> Tensor<3> {
        let (table, tokens) = (self.embed_vision.pos_embedding.val(), places.len());
        // Columns are first.
        let along = |side: usize| {
            let ids: Vec<i32> = places.iter().map(|place| place[1 - side] as i32).collect();
            let ids = Tensor::<1, Int>::from_data(TensorData::from(&*ids), &table.device());
            let of_side = table.clone().narrow(1, side, 1).select(0, ids).cast(DType::F32);
            of_side.reshape([1, tokens, self.config.hidden_size])
        };
        along(0) + along(1)
    }
}

const VISION: &[KnownField] = &[
    ("mm_embed_dim", Read),
    ("mm_posemb_size", Read),
    ("model_patch_size", Read),
    ("model_type", Only(&["\"gemma4_unified_vision\""])),
    ("output_proj_dims", Read),
    ("patch_size", Read),
    ("pooling_kernel_size", Read),
    ("rms_norm_eps", Read),
];
