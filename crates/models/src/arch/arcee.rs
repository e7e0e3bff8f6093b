//! Arcee: Llama's blocks with an MLP of two matrices and a squared ReLU. Arcee AI 2025
//! (<https://www.arcee.ai/blog/announcing-the-arcee-foundation-model-family>).

use burn::module::Module;
use burn::tensor::Tensor;

use super::cohere::LAYER_NORM_FIELDS;
use super::rms_config::{DEFAULTS, FIELDS, RmsConfig, RmsDefaults};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use super::{jais2, nanochat, nemotron};
use crate::architecture::Init;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, layer_windows};
use crate::layers::{Activation, Expert, Linear, two_layer_activations, two_layers};
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

impl ArceeMlp {
    /// A block without storage.
    pub(super) fn of(
        [hidden, inner]: [usize; 2],
        bias: bool,
        activation: Activation,
        init: &Init,
    ) -> Self {
        let up_proj = Linear::new(hidden, inner, bias, init);
        Self { up_proj, down_proj: Linear::new(inner, hidden, bias, init), activation }
    }
}

impl Expert for ArceeMlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        two_layers([&self.up_proj, &self.down_proj], self.activation, x)
    }

    fn layers(&self) -> impl Iterator<Item = &Linear> {
        [&self.up_proj, &self.down_proj].into_iter()
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        two_layer_activations(&self.up_proj, pass)
    }
}

impl RmsFeedForward for ArceeMlp {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("arcee", "Arcee"),
        ("jais2", "Jais2"),
        ("nanochat", "NanoChat"),
        ("nemotron", "Nemotron"),
    ];

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "jais2" => &[jais2::JAIS2, LAYER_NORM_FIELDS],
            "nanochat" => &[nanochat::NANOCHAT, FIELDS],
            "nemotron" => &[nemotron::NEMOTRON, LAYER_NORM_FIELDS],
            _ => &[ARCEE, FIELDS],
        }
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        match model_type {
            "jais2" => return jais2::read(fields),
            "nanochat" => return nanochat::read(fields),
            "nemotron" => return nemotron::read(fields),
            _ => {}
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
        let rope_interleaved = fields.flag_or("rope_interleaved", false)?;
        Ok(RmsConfig { mlp_bias, rope_interleaved, ..config.with_attention_bias(fields)? })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let sizes = [config.hidden_size, config.intermediate_size];
        Self::of(sizes, config.mlp_bias, config.activation, init)
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        Expert::forward(self, x)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        Expert::activations(self, pass)
    }
}

const ARCEE: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Read),
    ("mlp_bias", Read),
    // As GGUF files have it.
    ("rope_interleaved", Read),
];
