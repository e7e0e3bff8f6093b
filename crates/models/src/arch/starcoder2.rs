//! StarCoder 2: Llama's blocks with LayerNorm, biases and an MLP of two matrices. Lozhkov et al.
//! 2024 (arXiv:2402.19173).

use burn::module::Module;
use burn::tensor::Tensor;

use super::cohere::LAYER_NORM_FIELDS;
use super::rms_config::{BlockNormKind, DEFAULTS, RmsConfig, RmsDefaults};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use crate::architecture::Init;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{Fields, KnownField, sliding_window, uniform_windows};
use crate::layers::{Activation, Linear, two_layer_activations, two_layers};
use crate::{Activations, Error, PassShape};

/// A StarCoder 2 with its language-modelling head.
pub type Starcoder2ForCausalLm = RmsForCausalLm<RmsDecoderLayer<Starcoder2Mlp>>;

/// `c_proj(act(c_fc(x)))`.
#[derive(Module, Debug)]
pub struct Starcoder2Mlp {
    /// `[intermediate, hidden]`.
    pub c_fc: Linear,
    /// `[hidden, intermediate]`.
    pub c_proj: Linear,
    #[module(skip)]
    activation: Activation,
}

impl RmsFeedForward for Starcoder2Mlp {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("starcoder2", "Starcoder2")];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[STARCODER2, LAYER_NORM_FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let absent = RmsDefaults {
            key_value_heads: Some(2),
            max_position_embeddings: 4096,
            rms_norm_eps: 1e-5,
            epsilon: "norm_epsilon",
            activation: ("hidden_act", Activation::GeluTanh),
            tie_word_embeddings: true,
            ..DEFAULTS
        };
        let config = RmsConfig::read(fields, &absent)?.with_rope(fields)?;
        let window = match fields.has("sliding_window") {
            true => sliding_window(fields, 0)?,
            false => None,
        };
        let bias = fields.flag_or("use_bias", true)?;
        Ok(RmsConfig {
            norm_kind: BlockNormKind::Layer { bias: true },
            attention_in_bias: bias,
            attention_out_bias: bias,
            mlp_bias: bias,
            windows: uniform_windows(fields, "starcoder2", window, config.num_hidden_layers)?,
            ..config
        })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        Self {
            c_fc: Linear::new(hidden, inner, config.mlp_bias, init),
            c_proj: Linear::new(inner, hidden, config.mlp_bias, init),
            activation: config.activation,
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        two_layers([&self.c_fc, &self.c_proj], self.activation, x)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        two_layer_activations(&self.c_fc, pass)
    }
}

const STARCODER2: &[KnownField] = &[
    // Of an earlier version, beside what counts.
    ("activation_function", Harmless),
    ("attention_bias", Effect::ON),
    ("attention_softmax_in_fp32", Harmless),
    ("hidden_act", Read),
    ("layer_norm_epsilon", Harmless),
    ("mlp_bias", Effect::ON),
    ("mlp_type", Only(&["\"default\""])),
    ("norm_epsilon", Read),
    ("norm_type", Only(&["\"layer_norm\""])),
    ("scale_attention_softmax_in_fp32", Harmless),
    ("scale_attn_weights", Effect::ON),
    ("sliding_window", Read),
    ("use_bias", Read),
];
