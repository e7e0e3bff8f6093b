//! The vision encoder of Gemma 3, Command A Vision, Aya Vision, Idefics3 and SmolVLM, SigLIP's,
//! with what makes features of its states. Zhai et al. 2023 (arXiv:2303.15343), Gemma Team 2025
//! (arXiv:2503.19786), Cohere 2025 (<https://huggingface.co/CohereLabs/command-a-vision-07-2025>,
//! arXiv:2505.08751), Laurençon et al. 2024 (arXiv:2408.12637).

mod config;

use burn::module::Module;
use burn::tensor::{Tensor, activation};
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

pub use self::config::{SiglipProjectorConfig, SiglipVisionConfig};
use super::idefics3::{IDEFICS3, SMOLVLM};
use super::vision_fields::{is_no_vision, is_within_model, vision_weight_use};
use super::{cohere, gemma3, idefics3};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{
    Activation, Either, Embedding, LayerNorm, Linear, RmsNorm, attend_layers, fetched_rows,
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
    multi_modal_projector: Projector,
    #[module(skip)]
    config: SiglipVisionConfig,
}

/// What makes features of states.
type Projector =
    Either<Either<SiglipProjector, ShuffledProjector>, Either<GatedProjector, NormedProjector>>;

/// Patches to states.
#[derive(Module, Debug)]
struct SiglipTower {
    embeddings: SiglipEmbeddings,
    encoder: SiglipEncoder,
    /// None of Aya Vision.
    post_layernorm: Option<LayerNorm>,
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

/// The same of all patches of a token side by side.
#[derive(Module, Debug)]
struct ShuffledProjector {
    /// `[text's hidden, patches of a token · hidden]`.
    proj: Linear,
}

/// The same with gates.
#[derive(Module, Debug)]
struct GatedProjector {
    /// `[inner, patches of a token · hidden]`: gates are the last half.
    linear_1: Linear,
    /// `[text's hidden, inner / 2]`.
    linear_2: Linear,
}

/// The same of the states' norm.
#[derive(Module, Debug)]
struct NormedProjector {
    /// `[patches of a token · hidden]`.
    layernorm: LayerNorm,
    linear_1: Linear,
    linear_2: Linear,
}

impl Architecture for SiglipVisionModel {
    type Config = SiglipVisionConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("gemma3", "Gemma3"),
        (cohere::VISION, "Cohere2Vision"),
        (cohere::AYA_VISION, "AyaVision"),
        (IDEFICS3, "Idefics3"),
        (SMOLVLM, "SmolVLM"),
    ];
    const CLASS_PREFIX: &'static str = "Siglip";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("SiglipTower", "SiglipVisionModel"),
        ("SiglipEmbeddings", "SiglipVisionEmbeddings"),
        ("SiglipEncoder", "SiglipEncoder"),
        ("SiglipEncoderLayer", "SiglipEncoderLayer"),
        ("SiglipAttention", "SiglipAttention"),
        ("SiglipMlp", "SiglipMLP"),
        ("SiglipProjector", "Gemma3MultiModalProjector"),
        ("ShuffledProjector", "Idefics3SimpleMLP"),
        ("GatedProjector", "Cohere2VisionMultiModalProjector"),
        ("NormedProjector", "AyaVisionMultiModalProjector"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["SiglipEncoderLayer"];

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            cohere::VISION => &[cohere::MULTIMODAL],
            cohere::AYA_VISION => &[cohere::AYA_MULTIMODAL],
            IDEFICS3 | SMOLVLM => &[idefics3::MULTIMODAL],
            _ => &[gemma3::MULTIMODAL],
        }
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<SiglipVisionConfig, Error> {
        SiglipVisionConfig::read(model_type, fields)
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
        let (text, of_token) = (config.text_hidden_size, hidden * layout.merged());
        let multi_modal_projector = match config.projector {
            SiglipProjectorConfig::Mean { adds_one } => {
                let rms_norm = if adds_one { RmsNorm::plus_one } else { RmsNorm::new };
                Either::One(Either::One(SiglipProjector {
                    mm_soft_emb_norm: rms_norm(hidden, config.layer_norm_eps, init),
                    mm_input_projection: Linear::in_out(hidden, text, false, init),
                }))
            }
            SiglipProjectorConfig::Shuffled => {
                let proj = Linear::new(of_token, text, false, init);
                Either::One(Either::Other(ShuffledProjector { proj }))
            }
            SiglipProjectorConfig::Gated { inner } => Either::Other(Either::One(GatedProjector {
                linear_1: linear(of_token, inner),
                linear_2: linear(inner / 2, text),
            })),
            SiglipProjectorConfig::NormedGated { inner, epsilon } => {
                Either::Other(Either::Other(NormedProjector {
                    layernorm: LayerNorm::new(of_token, epsilon, init),
                    linear_1: linear(of_token, inner),
                    linear_2: linear(inner / 2, text),
                }))
            }
        };
        Self {
            vision_tower: SiglipTower {
                embeddings: SiglipEmbeddings {
                    patch_embedding: linear(layout.patch_values(), hidden),
                    position_embedding: Embedding::new(config.patches(), hidden, init),
                },
                encoder: SiglipEncoder {
                    layers: (0..config.num_hidden_layers).map(layer).collect(),
                },
                post_layernorm: config.has_last_norm().then(norm),
            },
            multi_modal_projector,
            config: config.clone(),
        }
    }
}

impl Component for SiglipVisionModel {
    fn names(config: &SiglipVisionConfig, tensors: &[TensorInfo]) -> Names {
        let is_named = |tensor: &TensorInfo| tensor.name.contains("vision_tower.vision_model.");
        let mut rules = vec![(r"mm_input_projection\.weight$", "mm_input_projection_weight")];
        if tensors.iter().any(is_named) {
            rules.push((r"^vision_tower\.", "vision_tower.vision_model."));
        }
        if config.projector == SiglipProjectorConfig::Shuffled {
            rules.push((r"^vision_tower\.", "vision_model."));
            rules.push((r"^multi_modal_projector\.", "connector.modality_projection."));
        }
        if is_within_model(tensors) {
            rules.push(("^", "model."));
        }
        // The expressions are ours, and valid.
        rules.into_iter().fold(Names::default(), |names, (pattern, with)| {
            names.clone().rename(pattern, with).unwrap_or(names)
        })
    }

    fn is_unused(config: &SiglipVisionConfig, tensor: &str) -> bool {
        is_no_vision(tensor) || !config.has_last_norm() && tensor.contains(".post_layernorm.")
    }

    fn weight_use(config: &SiglipVisionConfig, path: &str, pass: &PicturePass) -> WeightUse {
        let of_image = vision_weight_use(path, pass, Self::layout(config).merged());
        WeightUse { attended: of_image.attended.min(config.patches() as u64), ..of_image }
    }
}

impl VisionModel for SiglipVisionModel {
    fn layout(config: &SiglipVisionConfig) -> PatchLayout {
        PatchLayout {
            patch_size: config.patch_size,
            merge_size: config.image_size / config.patch_size / config.tokens,
            frames: 1,
            features: config.text_hidden_size,
            scaling: match config.projector {
                SiglipProjectorConfig::Mean { .. } => ImageScaling::Square(config.image_size),
                SiglipProjectorConfig::Gated { .. } => ImageScaling::FittedTiles(config.image_size),
                SiglipProjectorConfig::NormedGated { .. } => {
                    ImageScaling::StretchedTiles(config.image_size)
                }
                SiglipProjectorConfig::Shuffled => ImageScaling::EdgeTiles(config.image_size),
            },
            image_token: config.image_token,
            spelling: match config.projector {
                SiglipProjectorConfig::Mean { .. } => ImageSpelling::Framed,
                SiglipProjectorConfig::Gated { .. } => ImageSpelling::NamedTiles([
                    "<|START_OF_IMG|>",
                    "<|IMG_LINE_BREAK|>",
                    "<|END_OF_IMG|>",
                ]),
                SiglipProjectorConfig::NormedGated { .. } => ImageSpelling::NumberedTiles,
                SiglipProjectorConfig::Shuffled => ImageSpelling::PlacedTiles,
            },
            sees_itself: !config.is_tiled(),
            order: PatchOrder::ColoursFirst,
        }
    }

    fn see(&self, pixels: Tensor<2>, _: [usize; 2]) -> ImageFeatures {
        let ([count, values], patches) = (pixels.dims(), self.config.patches());
        let (side, tiles) = (patches.isqrt(), count / patches);
        let SiglipTower { embeddings, encoder, post_layernorm } = &self.vision_tower;
        let merge = Self::layout(&self.config).merge_size;
        let x = embeddings.patch_embedding.forward_pixels(pixels.reshape([1, count, values]));
        let places = patch_places([side; 2], merge);
        let ids = places.iter().map(|[row, column]| (row * side + column) as u32);
        let positions = embeddings.position_embedding.forward(&ids.collect::<Vec<_>>());
        let x = x.reshape([tiles, patches, self.config.hidden_size]);
        let mut x = x.clone() + positions.to_device(&x.device());
        let mut pending = None;
        for layer in &encoder.layers {
            let (sum, normed) = layer.layer_norm1.after(x, pending);
            let mixed = layer.self_attn.forward(normed);
            let (sum, normed) = layer.layer_norm2.after(sum, Some(mixed));
            (x, pending) = (sum, Some(layer.mlp.forward(normed)));
        }
        let states = match (post_layernorm, pending) {
            (Some(norm), pending) => norm.after(x, pending).1,
            (None, Some(pending)) => x + pending,
            (None, None) => x,
        };
        let patches = merge * merge;
        let embeddings = match &self.multi_modal_projector {
            Either::One(Either::One(projector)) => projector.forward(states, patches),
            Either::One(Either::Other(ShuffledProjector { proj })) => {
                fetched_rows(proj.forward_pixels(of_tokens(states, patches)), &proj.weight)
            }
            Either::Other(Either::One(GatedProjector { linear_1, linear_2 })) => {
                gated([linear_1, linear_2], of_tokens(states, patches))
            }
            Either::Other(Either::Other(NormedProjector { layernorm, linear_1, linear_2 })) => {
                let normed = layernorm.forward(of_tokens(states, patches));
                gated([linear_1, linear_2], normed)
            }
        };
        let sees_itself = !self.config.is_tiled();
        ImageFeatures { embeddings, deepstack: Vec::new(), positions: None, sees_itself }
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
        let of_tile = config.patches();
        let scratch = pixel_attention_scratch(
            [patches.div_ceil(of_tile), of_tile, of_tile],
            config.num_attention_heads,
            width,
            threads,
        );
        let tokens = count / layout.merged() as u64;
        let features = tokens * config.text_hidden_size as u64;
        let projector = match config.projector {
            SiglipProjectorConfig::Mean { .. } => 2 * features,
            SiglipProjectorConfig::Shuffled => count * hidden + features,
            // The states, and what comes of the first matrix with its halves and their product.
            SiglipProjectorConfig::Gated { inner } => {
                count * hidden + tokens.saturating_mul(3 * inner as u64) + features
            }
            // The same beside their norm.
            SiglipProjectorConfig::NormedGated { inner, .. } => {
                2 * count * hidden + tokens.saturating_mul(3 * inner as u64) + features
            }
        };
        let values = count.saturating_mul(most).max(projector);
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

/// The states of tokens' patches side by side: `[tiles, patches, hidden]` f32 to
/// `[1, tokens, patches of a token · hidden]`.
fn of_tokens(x: Tensor<3>, patches: usize) -> Tensor<3> {
    let [tiles, count, hidden] = x.dims();
    x.reshape([1, tiles * count / patches, hidden * patches])
}

/// Those through two matrices with gates between them: `[tokens, text's hidden]` f32, in main
/// memory.
fn gated([first, second]: [&Linear; 2], x: Tensor<3>) -> Tensor<2> {
    let x = first.forward_pixels(x);
    let inner = x.dims()[2] / 2;
    let gates = activation::silu(x.clone().narrow(2, inner, inner));
    let x = second.forward_pixels(gates * x.narrow(2, 0, inner));
    fetched_rows(x, &second.weight)
}
