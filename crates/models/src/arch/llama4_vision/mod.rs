//! The vision encoder of Llama 4, which sees an image as tiles, with what makes features of its
//! states. Meta 2025 (<https://ai.meta.com/blog/llama-4-multimodal-intelligence>).

mod config;

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

pub use self::config::Llama4VisionConfig;
use super::llama4::MULTIMODAL;
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{
    Activation, AxialRope, Embedding, LayerNorm, Linear, Rotation, attend_layers, fetched,
    two_layers_of_pixels, zeros,
};
use crate::vision_model::patch_places;
use crate::{
    Error, ImageFeatures, ImageScaling, ImageSpelling, PatchLayout, PatchOrder, PicturePass,
    VisionModel, WeightUse,
};

/// What norms add to the variance.
const EPSILON: f64 = 1e-5;

/// What the names of the encoder's tensors begin with, and of what makes features of its states.
const PARTS: [&str; 2] = ["vision_model.", "multi_modal_projector."];

/// A vision encoder with its projector.
#[derive(Module, Debug)]
pub struct Llama4VisionModel {
    vision_model: Llama4Encoder,
    multi_modal_projector: Llama4Projector,
    #[module(skip)]
    config: Llama4VisionConfig,
}

/// Patches of tiles to features.
#[derive(Module, Debug)]
struct Llama4Encoder {
    patch_embedding: Llama4PatchEmbedding,
    /// `[hidden]`: of the token that each tile has behind its patches.
    class_embedding: Param<Tensor<1>>,
    /// `[patches of a tile + 1, hidden]`.
    positional_embedding_vlm: Embedding,
    layernorm_pre: LayerNorm,
    model: Llama4Layers,
    layernorm_post: LayerNorm,
    vision_adapter: Llama4Adapter,
}

#[derive(Module, Debug)]
struct Llama4PatchEmbedding {
    /// `[hidden, values of a patch]`.
    linear: Linear,
}

#[derive(Module, Debug)]
struct Llama4Layers {
    layers: Vec<Llama4VisionLayer>,
}

#[derive(Module, Debug)]
struct Llama4VisionLayer {
    input_layernorm: LayerNorm,
    self_attn: Llama4VisionAttention,
    post_attention_layernorm: LayerNorm,
    mlp: Llama4VisionMlp,
}

#[derive(Module, Debug)]
struct Llama4VisionAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    heads: usize,
}

#[derive(Module, Debug)]
struct Llama4VisionMlp {
    fc1: Linear,
    fc2: Linear,
}

#[derive(Module, Debug)]
struct Llama4Adapter {
    mlp: Llama4VisionMlp,
}

#[derive(Module, Debug)]
struct Llama4Projector {
    /// `[text's hidden, features]`.
    linear_1: Linear,
}

impl Llama4VisionMlp {
    fn new([inputs, inner, outputs]: [usize; 3], bias: bool, init: &Init) -> Self {
        let linear = |inputs, outputs| Linear::new(inputs, outputs, bias, init);
        Self { fc1: linear(inputs, inner), fc2: linear(inner, outputs) }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        two_layers_of_pixels([&self.fc1, &self.fc2], Activation::Gelu, x)
    }
}

impl Architecture for Llama4VisionModel {
    type Config = Llama4VisionConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("llama4", "Llama4")];
    const CLASS_PREFIX: &'static str = "Llama4";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("Llama4Encoder", "Llama4VisionModel"),
        ("Llama4PatchEmbedding", "Llama4UnfoldConvolution"),
        ("Llama4Layers", "Llama4VisionEncoder"),
        ("Llama4VisionLayer", "Llama4VisionEncoderLayer"),
        ("Llama4VisionAttention", "Llama4VisionAttention"),
        ("Llama4VisionMlp", "Llama4VisionMLP"),
        ("Llama4Adapter", "Llama4VisionPixelShuffleMLP"),
        ("Llama4Projector", "Llama4MultiModalProjector"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["Llama4VisionLayer"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[MULTIMODAL]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<Llama4VisionConfig, Error> {
        Llama4VisionConfig::read(fields)
    }

    fn new(config: &Llama4VisionConfig, init: &Init) -> Self {
        let (layout, hidden) = (Self::layout(config), config.hidden_size);
        let norm = || LayerNorm::new(hidden, EPSILON, init);
        let square = || Linear::new(hidden, hidden, true, init);
        let layer = |_| Llama4VisionLayer {
            input_layernorm: norm(),
            self_attn: Llama4VisionAttention {
                q_proj: square(),
                k_proj: square(),
                v_proj: square(),
                o_proj: square(),
                heads: config.num_attention_heads,
            },
            post_attention_layernorm: norm(),
            mlp: Llama4VisionMlp::new([hidden, config.intermediate_size, hidden], true, init),
        };
        let (merged, features) = (hidden * layout.merged(), config.projector_dim);
        Self {
            vision_model: Llama4Encoder {
                patch_embedding: Llama4PatchEmbedding {
                    linear: Linear::new(layout.patch_values(), hidden, false, init),
                },
                class_embedding: zeros(hidden, &init.device),
                positional_embedding_vlm: Embedding::new(config.tile.tokens(), hidden, init),
                layernorm_pre: norm(),
                model: Llama4Layers { layers: (0..config.num_hidden_layers).map(layer).collect() },
                layernorm_post: norm(),
                vision_adapter: Llama4Adapter {
                    mlp: Llama4VisionMlp::new([merged, features, features], false, init),
                },
            },
            multi_modal_projector: Llama4Projector {
                linear_1: Linear::new(features, config.text_hidden_size, false, init),
            },
            config: config.clone(),
        }
    }
}

impl Component for Llama4VisionModel {
    fn names(_: &Llama4VisionConfig, _: &[TensorInfo]) -> Names {
        let table = (r"positional_embedding_vlm\.weight$", "positional_embedding_vlm");
        // The expression is ours, and valid.
        Names::default().rename(table.0, table.1).unwrap_or_default()
    }

    fn is_unused(_: &Llama4VisionConfig, tensor: &str) -> bool {
        !PARTS.iter().any(|part| tensor.starts_with(part))
    }

    fn weight_use(config: &Llama4VisionConfig, path: &str, pass: &PicturePass) -> WeightUse {
        let is_of_token = path.contains("vision_adapter.") || path.starts_with(PARTS[1]);
        config.tile.weight_use(path, pass, is_of_token)
    }
}

impl VisionModel for Llama4VisionModel {
    fn layout(config: &Llama4VisionConfig) -> PatchLayout {
        PatchLayout {
            patch_size: config.tile.patch_size,
            merge_size: config.tile.merge_size,
            frames: 1,
            features: config.text_hidden_size,
            scaling: ImageScaling::Tiles(config.tile.image_size),
            image_token: config.image_token,
            spelling: ImageSpelling::Tiles,
            sees_itself: false,
            order: PatchOrder::ColoursFirst,
        }
    }

    fn see(&self, pixels: Tensor<2>, _: [usize; 2]) -> ImageFeatures {
        let (config, [count, values]) = (&self.config, pixels.dims());
        let (side, hidden, merge) =
            (config.tile.side(), config.hidden_size, config.tile.merge_size);
        let (patches, encoder) = (config.tile.patches(), &self.vision_model);
        let tiles = count / patches;
        let x = encoder.patch_embedding.linear.forward_pixels(pixels.reshape([1, count, values]));
        let class = encoder.class_embedding.val().cast(DType::F32).to_device(&x.device());
        let class = class.reshape([1, 1, hidden]).repeat_dim(0, tiles);
        let x = Tensor::cat(vec![x.reshape([tiles, patches, hidden]), class], 1);
        let places = patch_places([side; 2], merge);
        let ids = places.iter().map(|[row, column]| (row * side + column) as u32);
        let ids: Vec<_> = ids.chain([patches as u32]).collect();
        let positions = encoder.positional_embedding_vlm.forward(&ids).to_device(&x.device());
        let mut x = encoder.layernorm_pre.forward(x + positions);
        // Columns are first, and count from one; what is no patch is not rotated.
        let places = places.iter().map(|[row, column]| [column + 1, row + 1]);
        let places: Vec<_> = places.chain([[0; 2]]).collect();
        let width = hidden / config.num_attention_heads;
        let rope = AxialRope::new(config.rope_theta, [width / 2; 2]).rounding_angles();
        let rotation = rope.at(&places, &x.device());
        let mut pending = None;
        for layer in &encoder.model.layers {
            let (sum, normed) = layer.input_layernorm.after(x, pending);
            let mixed = layer.self_attn.forward(normed, &rotation);
            let (sum, normed) = layer.post_attention_layernorm.after(sum, Some(mixed));
            (x, pending) = (sum, Some(layer.mlp.forward(normed)));
        }
        let states = encoder.layernorm_post.after(x, pending).1.narrow(1, 0, patches);
        let merged = merge * merge;
        let states = states.reshape([1, count / merged, hidden * merged]);
        let features = Activation::Gelu.activate(encoder.vision_adapter.mlp.forward(states));
        let last = &self.multi_modal_projector.linear_1;
        let embeddings = fetched(last.forward_pixels(features), &last.weight).squeeze_dim(0);
        ImageFeatures { embeddings, deepstack: Vec::new(), positions: None, sees_itself: false }
    }

    fn activation_bytes(&self, patches: usize, threads: usize) -> u64 {
        let config = &self.config;
        let (tile, hidden, heads) = (&config.tile, config.hidden_size, config.num_attention_heads);
        // Features, twice more, and what the language model takes.
        let of_token = 3 * config.projector_dim + config.text_hidden_size;
        let rotation = tile.tokens() * (hidden / heads + 2 * hidden);
        let sizes = [hidden, heads, config.intermediate_size];
        tile.activation_bytes([patches, threads], sizes, of_token, rotation)
    }
}

impl Llama4VisionAttention {
    /// Each patch attends to those of its tile.
    fn forward(&self, x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
        let layers = [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj];
        attend_layers(layers, self.heads, x, Some(rotation))
    }
}
