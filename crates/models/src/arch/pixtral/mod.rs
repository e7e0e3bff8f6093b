//! The vision encoder of Mistral Small 3.1 and later, of Ministral 3 and of Mistral Large 4, with
//! what makes features of its states. Agrawal et al. 2024 (arXiv:2410.07073).

mod config;

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

use self::config::PROJECTOR;
pub use self::config::PixtralVisionConfig;
use super::mistral3::MULTIMODAL;
use super::vision_fields::{is_no_vision, is_within_model, vision_weight_use};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{
    Activation, AxialRope, Linear, Mlp, RmsNorm, Rotation, attend_layers, fetched_rows,
    two_layers_of_pixels,
};
use crate::pass_shape::pixel_attention_scratch;
use crate::vision_model::patch_places;
use crate::{
    Activations, Error, ImageFeatures, ImageScaling, ImageSpelling, PatchLayout, PatchOrder,
    PicturePass, VisionModel, WeightUse,
};

/// What the encoder's norms add to mean squares.
const EPSILON: f64 = 1e-5;

/// What the names of its tensors begin with as Mistral publishes them.
const PUBLISHED_PARTS: [&str; 4] =
    ["vision_encoder.", "patch_merger.", "pre_mm_projector_norm.", "vision_language_adapter."];

/// What stands there for its names.
const PUBLISHED_NAMES: &[(&str, &str)] = &[
    (r"^vision_tower\.", "vision_encoder."),
    (r"\.attention\.([qkvo])_proj\.", ".attention.w$1."),
    (r"\.feed_forward\.gate_proj\.", ".feed_forward.w1."),
    (r"\.feed_forward\.down_proj\.", ".feed_forward.w2."),
    (r"\.feed_forward\.up_proj\.", ".feed_forward.w3."),
    (r"^multi_modal_projector\.norm\.", "pre_mm_projector_norm."),
    (r"^multi_modal_projector\.patch_merger\.", "patch_merger."),
    (r"^multi_modal_projector\.linear_1\.", "vision_language_adapter.w_in."),
    (r"^multi_modal_projector\.linear_2\.", "vision_language_adapter.w_out."),
];

/// Whether a checkpoint has these names; neighbouring rows of queries and keys are rotated together
/// then.
fn is_published(tensors: &[TensorInfo]) -> bool {
    tensors.iter().any(|tensor| tensor.name.starts_with(PUBLISHED_PARTS[0]))
}

/// A vision encoder with its projector.
#[derive(Module, Debug)]
pub struct PixtralVisionModel {
    vision_tower: PixtralTower,
    multi_modal_projector: PixtralProjector,
    #[module(skip)]
    config: PixtralVisionConfig,
}

/// Patches to states.
#[derive(Module, Debug)]
struct PixtralTower {
    /// `[hidden, values of a patch]`.
    patch_conv: Linear,
    ln_pre: RmsNorm,
    transformer: PixtralTransformer,
}

#[derive(Module, Debug)]
struct PixtralTransformer {
    layers: Vec<PixtralAttentionLayer>,
}

#[derive(Module, Debug)]
struct PixtralAttentionLayer {
    attention_norm: RmsNorm,
    attention: PixtralAttention,
    ffn_norm: RmsNorm,
    feed_forward: Mlp,
}

#[derive(Module, Debug)]
struct PixtralAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    heads: usize,
}

/// States to features.
#[derive(Module, Debug)]
struct PixtralProjector {
    norm: RmsNorm,
    patch_merger: PixtralPatchMerger,
    linear_1: Linear,
    linear_2: Linear,
    #[module(skip)]
    activation: Activation,
}

#[derive(Module, Debug)]
struct PixtralPatchMerger {
    /// `[hidden, patches of a token · hidden]`.
    merging_layer: Linear,
}

impl Architecture for PixtralVisionModel {
    type Config = PixtralVisionConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("mistral3", "Mistral3"), ("mistral_large4", "MistralLarge4")];
    const CLASS_PREFIX: &'static str = "Pixtral";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("PixtralTower", "PixtralVisionModel"),
        ("PixtralTransformer", "PixtralTransformer"),
        ("PixtralAttentionLayer", "PixtralAttentionLayer"),
        ("PixtralAttention", "PixtralAttention"),
        ("Mlp", "PixtralMLP"),
        ("PixtralProjector", "Mistral3MultiModalProjector"),
        ("PixtralPatchMerger", "Mistral3PatchMerger"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["PixtralAttentionLayer"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[PROJECTOR, MULTIMODAL]
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<PixtralVisionConfig, Error> {
        PixtralVisionConfig::read(fields, if model_type == "mistral3" { 5120 } else { 6144 })
    }

    fn new(config: &PixtralVisionConfig, init: &Init) -> Self {
        let hidden = config.hidden_size;
        let norm = |epsilon| RmsNorm::new(hidden, epsilon, init);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, false, init);
        let square = || linear(hidden, hidden);
        let layer = |_| PixtralAttentionLayer {
            attention_norm: norm(EPSILON),
            attention: PixtralAttention {
                q_proj: square(),
                k_proj: square(),
                v_proj: square(),
                o_proj: square(),
                heads: config.num_attention_heads,
            },
            ffn_norm: norm(EPSILON),
            feed_forward: Mlp::new(
                hidden,
                config.intermediate_size,
                false,
                config.activation,
                init,
            ),
        };
        let layout = Self::layout(config);
        let (text, bias) = (config.text_hidden_size, config.projector_bias);
        Self {
            vision_tower: PixtralTower {
                patch_conv: linear(layout.patch_values(), hidden),
                ln_pre: norm(EPSILON),
                transformer: PixtralTransformer {
                    layers: (0..config.num_hidden_layers).map(layer).collect(),
                },
            },
            multi_modal_projector: PixtralProjector {
                norm: norm(config.rms_norm_eps),
                patch_merger: PixtralPatchMerger {
                    merging_layer: linear(hidden * layout.merged(), hidden),
                },
                linear_1: Linear::new(hidden, text, bias, init),
                linear_2: Linear::new(text, text, bias, init),
                activation: config.projector_activation,
            },
            config: config.clone(),
        }
    }
}

impl Component for PixtralVisionModel {
    fn names(_: &PixtralVisionConfig, tensors: &[TensorInfo]) -> Names {
        let renamed: &[_] = match is_within_model(tensors) {
            true => &[("^", "model.")],
            false if is_published(tensors) => PUBLISHED_NAMES,
            false => &[],
        };
        let names = (renamed.iter())
            .try_fold(Names::default(), |names, (pattern, with)| names.rename(pattern, with));
        // The expressions are ours, and valid.
        names.unwrap_or_default()
    }

    fn of_checkpoint(config: &PixtralVisionConfig, tensors: &[TensorInfo]) -> PixtralVisionConfig {
        let rope_interleaved = config.rope_interleaved || is_published(tensors);
        PixtralVisionConfig { rope_interleaved, ..config.clone() }
    }

    fn is_unused(_: &PixtralVisionConfig, tensor: &str) -> bool {
        is_no_vision(tensor) && !PUBLISHED_PARTS.iter().any(|part| tensor.starts_with(part))
    }

    fn weight_use(config: &PixtralVisionConfig, path: &str, pass: &PicturePass) -> WeightUse {
        vision_weight_use(path, pass, Self::layout(config).merged())
    }
}

impl VisionModel for PixtralVisionModel {
    fn layout(config: &PixtralVisionConfig) -> PatchLayout {
        PatchLayout {
            patch_size: config.patch_size,
            merge_size: config.spatial_merge_size,
            frames: 1,
            features: config.text_hidden_size,
            scaling: ImageScaling::LongestEdge,
            image_token: config.image_token,
            spelling: ImageSpelling::Rows,
            sees_itself: false,
            order: PatchOrder::ColoursFirst,
        }
    }

    fn see(&self, pixels: Tensor<2>, sides: [usize; 2]) -> ImageFeatures {
        let PixtralVisionConfig { hidden_size, num_attention_heads, rope_theta, .. } = self.config;
        let [count, values] = pixels.dims();
        let PixtralTower { patch_conv, ln_pre, transformer } = &self.vision_tower;
        let mut x = ln_pre.forward(patch_conv.forward_pixels(pixels.reshape([1, count, values])));
        let places = patch_places(sides, self.config.spatial_merge_size);
        let width = hidden_size / num_attention_heads;
        let rope = AxialRope::new(rope_theta, [width / 2; 2]).rounding_angles().taking_turns();
        let rope = if self.config.rope_interleaved { rope } else { rope.halves() };
        let rotation = rope.at(&places, &x.device());
        for layer in &transformer.layers {
            x = layer.forward(x, &rotation);
        }
        let merged = Self::layout(&self.config).merged();
        let embeddings = self.multi_modal_projector.forward(x, merged);
        ImageFeatures { embeddings, deepstack: Vec::new(), positions: None, sees_itself: false }
    }

    fn activation_bytes(&self, patches: usize, threads: usize) -> u64 {
        let config = &self.config;
        let (hidden, count) = (config.hidden_size as u64, patches as u64);
        let inner = config.intermediate_size as u64;
        let (layout, text) = (Self::layout(config), config.text_hidden_size as u64);
        // The norm's output, queries, keys and values, one of them rotated, and what attention
        // gives; or both inner layers and what the gate makes of one; or the pixels; beside the
        // residual stream.
        let most = (7 * hidden).max(2 * hidden + 3 * inner);
        let most = most.max(layout.patch_values() as u64 + 2 * hidden);
        // The projector: patches of a token side by side, twice, then its two layers.
        let tokens = count / layout.merged() as u64;
        let projector = count * 3 * hidden + tokens * (hidden + 3 * text);
        let width = config.hidden_size / config.num_attention_heads;
        let scratch = pixel_attention_scratch(
            [1, patches, patches],
            config.num_attention_heads,
            width,
            threads,
        );
        let values = count.saturating_mul(most).max(projector);
        let alive = count.saturating_mul(hidden + width as u64) + tokens * text;
        Activations::values(values + alive).with_scratch(scratch).bytes()
    }
}

impl PixtralAttentionLayer {
    /// `[1, patches, hidden]` f32 to the same.
    fn forward(&self, x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
        let mixed = self.attention.forward(self.attention_norm.forward(x.clone()), rotation);
        let (x, normed) = self.ffn_norm.add_forward(x, mixed);
        let added = self.feed_forward.forward_pixels(normed);
        x + added
    }
}

impl PixtralAttention {
    /// Each patch attends to all.
    fn forward(&self, x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
        let layers = [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj];
        attend_layers(layers, self.heads, x, Some(rotation))
    }
}

impl PixtralProjector {
    /// `[1, patches, hidden]` f32 to `[tokens, text's hidden]` f32, in main memory.
    fn forward(&self, x: Tensor<3>, patches: usize) -> Tensor<2> {
        let [_, count, hidden] = x.dims();
        let tokens = count / patches;
        // Of each channel all patches of a token.
        let x = self.norm.forward(x).reshape([tokens, patches, hidden]).swap_dims(1, 2);
        let x = x.reshape([1, tokens, hidden * patches]);
        let x = self.patch_merger.merging_layer.forward_pixels(x);
        let layers = [&self.linear_1, &self.linear_2];
        let features = two_layers_of_pixels(layers, self.activation, x);
        fetched_rows(features, &self.linear_2.weight)
    }
}
