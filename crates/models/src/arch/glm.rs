//! GLM-4: a fused MLP, and half of each head rotated, neighbouring elements together; the later ones with norms around
//! attention and MLP. GLM Team 2024 (arXiv:2406.12793).

use burn::tensor::Tensor;

use super::rms_config::{BlockNorms, DEFAULTS, FIELDS, RmsConfig, RmsDefaults};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use crate::architecture::Init;
use crate::config::Effect::{self, Read};
use crate::config::{Fields, KnownField, RopeConfig, layer_windows};
use crate::layers::FusedMlp;
use crate::{Activations, Error, PassShape};

/// A GLM-4 with its language-modelling head.
pub type GlmForCausalLm = RmsForCausalLm<RmsDecoderLayer<FusedMlp>>;

impl RmsFeedForward for FusedMlp {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("glm", "Glm"), ("glm4", "Glm4")];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[GLM, FIELDS]
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let absent = RmsDefaults {
            key_value_heads: Some(2),
            head_dim: Some(128),
            max_position_embeddings: 131_072,
            rms_norm_eps: 0.000_000_156_25,
            ..DEFAULTS
        };
        let config = RmsConfig::read(fields, &absent)?;
        // All layers see everything, whatever else a file may ask for.
        layer_windows(fields, None, config.windows.clone())?;
        let names = ["rope_theta", "partial_rotary_factor"];
        let (rope, rotary_dim) =
            RopeConfig::read_partial(&config.rope_context(fields), names, 0.5)?;
        Ok(RmsConfig {
            norms: if model_type == "glm" { BlockNorms::Before } else { BlockNorms::AroundGlm },
            attention_in_bias: fields.flag_or("attention_bias", true)?,
            rope,
            rotary_dim,
            rope_interleaved: true,
            ..config
        })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        Self::new(config.hidden_size, config.intermediate_size, config.activation, init)
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        Self::forward(self, x)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        Self::activations(self, pass)
    }
}

const GLM: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Read),
    ("mlp_bias", Effect::OFF),
    ("partial_rotary_factor", Read),
];
