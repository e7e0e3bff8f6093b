//! Arcee: Llama's blocks with an MLP of two matrices and a squared ReLU. Arcee AI 2025
//! (<https://www.arcee.ai/blog/announcing-the-arcee-foundation-model-family>).

use burn::module::Module;
use burn::tensor::Tensor;

use super::cohere::LAYER_NORM_FIELDS;
use super::nemotron;
use super::rms_config::{DEFAULTS, FIELDS, RmsConfig, RmsDefaults};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use crate::architecture::Init;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, layer_windows};
use crate::layers::{Activation, Linear, two_layer_activations, two_layers};
use crate::{Activations, Error, PassShape};

/// An Arcee with its language-modelling head.
pub type ArceeForCausalLm = RmsForCausalLm<RmsDecoderLayer<ArceeMlp>>;

/// `down(act(up(x)))`.
#[derive(Module, Debug)]
pub struct ArceeMlp {
    /// `[intermediate, hidden]`.
    pub up_proj: Linear,
    /// `[hidden, intermediate]`.
    pub down_proj: Linear,
    #[module(skip)]
    activation: Activation,
}

impl RmsFeedForward for ArceeMlp {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("arcee", "Arcee"), ("nemotron", "Nemotron")];

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "nemotron" => &[nemotron::NEMOTRON, LAYER_NORM_FIELDS],
            _ => &[ARCEE, FIELDS],
        }
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        if model_type == "nemotron" {
            return nemotron::read(fields);
        }
        let absent = RmsDefaults {
            max_position_embeddings: 4096,
            rms_norm_eps: 1e-5,
            activation: ("hidden_act", Activation::Relu2),
            ..DEFAULTS
        };
        let config = RmsConfig::read(fields, &absent)?.with_rope(fields)?;
        // All layers see everything, whatever else a file may ask for.
        layer_windows(fields, None, config.windows.clone())?;
        let mlp_bias = fields.flag_or("mlp_bias", false)?;
        Ok(RmsConfig { mlp_bias, ..config.with_attention_bias(fields)? })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        Self {
            up_proj: Linear::new(hidden, inner, config.mlp_bias, init),
            down_proj: Linear::new(inner, hidden, config.mlp_bias, init),
            activation: config.activation,
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        two_layers([&self.up_proj, &self.down_proj], self.activation, x)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        two_layer_activations(&self.up_proj, pass)
    }
}

const ARCEE: &[KnownField] = &[("attention_bias", Read), ("hidden_act", Read), ("mlp_bias", Read)];
