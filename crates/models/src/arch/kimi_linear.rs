//! Kimi Linear and Ling 3: experts as DeepSeek-V3's; linear attention in most layers, attention
//! over a compressed cache in the others, in the former without positions. Kimi Team 2025
//! (arXiv:2510.26692), Ling Team 2026 (<https://huggingface.co/inclusionAI/Ling-3.0-Flash>).

use burn::module::Module;
use outsize_core::Names;
use outsize_kernels::{DeltaGates, LinearAttentionHeads};

use super::deepseek::{self, RmsMoE};
use super::expert_fields::layers_named;
use super::mamba_fields::RATES_NEGATED;
use super::qwen3_next::{convolution_taps, listed_mixers};
use super::rms_config::{ExpertsConfig, LayerMixer, RmsConfig, field_of};
use super::rms_decoder::{RmsBlock, RmsForCausalLm};
use super::rms_layer::RmsFeedForward;
use crate::architecture::Init;
use crate::config::Effect::Read;
use crate::config::{
    Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, RopeScaling, check,
};
use crate::layers::{
    DeltaAttention, DeltaAttentionConfig, DeltaAttentionLayout, Either, LatentAttention,
    LatentGate, Mlp, RmsNorm, Rotation, either,
};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// A Kimi Linear or a Ling 3 with its language-modelling head.
pub type KimiForCausalLm = RmsForCausalLm<KimiDecoderLayer>;

/// One layer: attention, linear or not, then an MLP or experts, each added to the residual stream.
#[derive(Module, Debug)]
pub struct KimiDecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention.
    pub self_attn: Either<LatentAttention, DeltaAttention>,
    /// `[hidden]`.
    pub post_attention_layernorm: RmsNorm,
    /// Gated feed-forward block, or experts.
    pub mlp: Either<Mlp, RmsMoE>,
}

impl RmsBlock for KimiDecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("kimi_linear", "KimiLinear"), ("bailing_hybrid", "BailingHybrid")];
    const NO_SPLIT: &'static [&'static str] = &["KimiDecoderLayer"];

    fn has_more_layers(_: &str) -> bool {
        true
    }

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        deepseek::fields(model_type)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let config = deepseek::read(model_type, fields)?.with_silu_alone(fields)?;
        let field = field_of(fields, ["max_position_embeddings", "model_max_length"])?;
        let is_kimi = model_type == "kimi_linear";
        let most = if is_kimi { 1 << 20 } else { 1 << 18 };
        let config = RmsConfig {
            max_position_embeddings: fields.size_or(field, most, MAX_POSITIONS)?,
            ..config
        };
        if is_kimi { kimi(fields, config) } else { ling(fields, config) }
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        RmsMoE::stacked(names, experts)
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let hidden = config.hidden_size;
        let delta = config.delta_attention.filter(|_| config.mixers[index].has_linear());
        Self {
            input_layernorm: config.norm(hidden, init),
            self_attn: match (delta, config.latent_attention) {
                (Some(delta), _) => Either::Other(DeltaAttention::new(hidden, &delta, init)),
                (None, Some(latent)) => {
                    let (heads, bias) = (config.num_attention_heads, config.attention_in_bias);
                    Either::One(LatentAttention::new(hidden, heads, latent, bias, init))
                }
                (None, None) => unreachable!("its attention is over a compressed cache"),
            },
            post_attention_layernorm: config.norm(hidden, init),
            mlp: Either::<Mlp, RmsMoE>::new(config, index, init),
        }
    }

    fn forward(
        &self,
        Residual { stream: x, pending }: Residual,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Residual, Error> {
        self.mlp.announce(pass.rows());
        let (x, normed) = self.input_layernorm.after(x, pending);
        let positions = pass.query_positions();
        let mixed = match &self.self_attn {
            Either::One(attention) => {
                attention.forward(normed, rotations.first(), &positions, cache, index)
            }
            Either::Other(linear) => linear.forward(normed, &positions, cache, index),
        }?;
        let [x, mixed] = [x, mixed].map(|x| pass.needed(x));
        let (x, normed) = self.post_attention_layernorm.add_forward(x, mixed);
        Ok(Residual { stream: x, pending: Some(RmsFeedForward::forward(&self.mlp, normed)) })
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let mixed = either!(&self.self_attn, attention => attention.activations(pass));
        mixed.or(RmsFeedForward::activations(&self.mlp, pass))
    }
}

/// What Kimi Linear has beside DeepSeek.
fn kimi(fields: &Fields<'_>, mut config: RmsConfig) -> Result<RmsConfig, Error> {
    let layers = config.num_hidden_layers;
    let object = fields.object("linear_attn_config")?;
    if let Some(object) = &object {
        check(object, &[LINEAR])?;
    }
    // What the object says counts.
    let size = |[inner, outer]: [&str; 2], absent, max| {
        let outer = fields.size_or(outer, absent, max)?;
        object.as_ref().map_or(Ok(outer), |object| object.size_or(inner, outer, max))
    };
    let heads = size(["num_heads", "linear_num_heads"], 32, MAX_HEADS)?;
    let width = size(["head_dim", "linear_head_dim"], 128, MAX_HEAD_DIM)?;
    let outer = convolution_taps(fields, "linear_conv_kernel_dim", 4)?;
    let taps = match &object {
        Some(object) => convolution_taps(object, "short_conv_kernel_size", outer)?,
        None => outer,
    };
    let listed = match &object {
        Some(object) => listed_layers(object, layers)?,
        None => None,
    };
    config.mixers = match (fields.get("layer_types"), listed) {
        (Some(_), _) => listed_mixers(fields, "layer_types", layers)?,
        (None, Some(listed)) => listed,
        (None, None) => {
            let attends = (0..layers).map(|layer| layer > 0 && layer % 4 == 0);
            attends.map(LayerMixer::attends).collect()
        }
    };
    config.delta_attention = Some(DeltaAttentionConfig {
        heads: heads_of(heads, width),
        taps,
        epsilon: config.rms_norm_eps,
        layout: DeltaAttentionLayout::Narrow,
        gates: DeltaGates::default(),
        rates_are_negated: fields.flag_or(RATES_NEGATED, false)?,
    });
    // Nothing is rotated, whatever a file says of that.
    config.rotated_layers.fill(false);
    config.rope.scaling = RopeScaling::Default;
    if let Some(latent) = &mut config.latent_attention {
        latent.scale = (latent.query() as f64).powf(-0.5);
    }
    Ok(config)
}

/// What layers have, if an object lists those of both kinds, counted from 1.
fn listed_layers(object: &Fields<'_>, layers: usize) -> Result<Option<Vec<LayerMixer>>, Error> {
    let full = layers_named(object, "full_attn_layers")?;
    let linear = layers_named(object, "kda_layers")?;
    let (Some(full), Some(linear)) = (full, linear) else {
        return Ok(None);
    };
    let mixer = |layer: u64| match (full.contains(&layer), linear.contains(&layer)) {
        (true, false) => Some(LayerMixer::Attention),
        (false, true) => Some(LayerMixer::Linear),
        _ => None,
    };
    let mixers: Option<Vec<_>> = (1..=layers as u64).map(mixer).collect();
    mixers.map(Some).ok_or_else(|| {
        let expected = format!("each of {layers} layers must be in it or in `kda_layers`");
        object.refuse("full_attn_layers", expected)
    })
}

/// What Ling 3 has beside DeepSeek.
fn ling(fields: &Fields<'_>, mut config: RmsConfig) -> Result<RmsConfig, Error> {
    let layers = config.num_hidden_layers;
    let size = |field, absent, max| fields.size_or(field, absent, max);
    // As transformers saves it, `head_dim` is that of the other attention, and `linear_head_dim`
    // this one's.
    let width = size("head_dim", 128, MAX_HEAD_DIM)?;
    let width = size("linear_head_dim", width, MAX_HEAD_DIM)?;
    let heads = size("linear_num_heads", config.num_attention_heads, MAX_HEADS)?;
    let taps = convolution_taps(fields, "short_conv_kernel_size", 4)?;
    let taps = convolution_taps(fields, "linear_conv_kernel_dim", taps)?;
    let group = size("layer_group_size", 6, MAX_LAYERS)?;
    let bound = match fields.get("kda_lower_bound") {
        Some(_) => fields.number_within("kda_lower_bound", -1e3, 0.0)?,
        None => -5.0,
    };
    config.mixers = match fields.get("layer_types") {
        Some(_) => listed_mixers(fields, "layer_types", layers)?,
        None => {
            let attends = (1..=layers).map(|layer| layer.is_multiple_of(group));
            attends.map(LayerMixer::attends).collect()
        }
    };
    let is_bounded = fields.flag_or("kda_safe_gate", true)?;
    config.delta_attention = Some(DeltaAttentionConfig {
        heads: heads_of(heads, width),
        taps,
        epsilon: config.rms_norm_eps,
        layout: DeltaAttentionLayout::Wide,
        gates: DeltaGates { bound: is_bounded.then_some(bound as f32), ..DeltaGates::default() },
        rates_are_negated: false,
    });
    if let Some(latent) = &mut config.latent_attention {
        latent.gate = LatentGate::Heads;
    }
    Ok(config)
}

/// As many heads of each kind, all of one width.
fn heads_of(heads: usize, width: usize) -> LinearAttentionHeads {
    LinearAttentionHeads {
        key_heads: heads,
        value_heads: heads,
        key_dim: width,
        value_dim: width,
        in_turns: false,
    }
}

/// Of `linear_attn_config`.
const LINEAR: &[KnownField] = &[
    ("full_attn_layers", Read),
    ("head_dim", Read),
    ("kda_layers", Read),
    ("num_heads", Read),
    ("short_conv_kernel_size", Read),
];
