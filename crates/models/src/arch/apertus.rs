//! Apertus: Llama's blocks with norms of queries and keys, and an MLP of two matrices with an
//! activation that learns. Swiss AI 2025 (arXiv:2509.14233).

use burn::module::{Module, Param};
use burn::tensor::activation::softplus;
use burn::tensor::{DType, Tensor};

use super::rms_config::{BlockNorms, DEFAULTS, FIELDS, QueryKeyNorms, RmsConfig, RmsDefaults};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use crate::architecture::Init;
use crate::config::Effect::{self, Read};
use crate::config::{
    Fields, KnownField, RopeConfig, RopeScaling, layer_windows, rope_object, theta,
};
use crate::layers::{Linear, ones};
use crate::{Activations, Error, PassShape};

/// An Apertus with its language-modelling head.
pub type ApertusForCausalLm = RmsForCausalLm<RmsDecoderLayer<ApertusMlp>>;

/// `down(act(up(x)))`.
#[derive(Module, Debug)]
pub struct ApertusMlp {
    /// `[intermediate, hidden]`.
    pub up_proj: Linear,
    /// What comes between.
    pub act_fn: Xielu,
    /// `[hidden, intermediate]`.
    pub down_proj: Linear,
}

/// xIELU ([Huang and Schlag, 2024](https://arxiv.org/abs/2411.13010)): `p x² + β x` above 0,
/// `n (eˣ - 1 - x) + β x` below, with `p = softplus(alpha_p)`, `n = β + softplus(alpha_n)` and
/// `β = 1/2`.
#[derive(Module, Debug)]
pub struct Xielu {
    /// `[1]`.
    pub alpha_p: Param<Tensor<1>>,
    /// `[1]`.
    pub alpha_n: Param<Tensor<1>>,
}

/// What the function's slope is at 0. Checkpoints have it as a buffer, and it is always this.
const BETA: f64 = 0.5;

/// The most that the exponential is of, likewise.
const EPSILON: f64 = -1e-6;

impl Xielu {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let device = x.device();
        let learned = |alpha: &Param<Tensor<1>>| {
            // Where it is used, wherever it is kept: devices differ in the last bit.
            let alpha = alpha.val().cast(DType::F32).to_device(&device);
            softplus(alpha, 1.0).reshape([1, 1, 1])
        };
        let above = x.clone() * x.clone() * learned(&self.alpha_p);
        let below = x.clone().clamp_max(EPSILON).exp() - 1.0 - x.clone();
        let below = below * (learned(&self.alpha_n) + BETA);
        let is_below = x.clone().lower_equal_elem(0.0);
        above.mask_where(is_below, below) + x * BETA
    }
}

impl RmsFeedForward for ApertusMlp {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("apertus", "Apertus")];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[APERTUS, FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let absent = RmsDefaults {
            max_position_embeddings: 65_536,
            rms_norm_eps: 1e-5,
            rope_theta: 12_000_000.0,
            // A function of its own is in its place.
            activation: ("", DEFAULTS.activation.1),
            ..DEFAULTS
        };
        let config = RmsConfig::read(fields, &absent)?;
        // All layers see everything, whatever else a file may ask for.
        layer_windows(fields, None, config.windows.clone())?;
        let rope = match rope_object(fields)? {
            Some(_) => RopeConfig::read(&config.rope_context(fields))?,
            // What transformers takes where nothing is said.
            None => RopeConfig {
                theta: theta(fields, "rope_theta", absent.rope_theta)?,
                scaling: RopeScaling::Llama3 {
                    factor: 8.0,
                    low_freq_factor: 1.0,
                    high_freq_factor: 4.0,
                    original_max_position_embeddings: 8192,
                },
            },
        };
        Ok(RmsConfig {
            rope,
            norms: BlockNorms::BeforeApertus,
            query_key_norms: Some(QueryKeyNorms::EachHead),
            ..config.with_attention_bias(fields)?
        })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let one = || ones(1, &init.device);
        Self {
            up_proj: Linear::new(hidden, inner, false, init),
            act_fn: Xielu { alpha_p: one(), alpha_n: one() },
            down_proj: Linear::new(inner, hidden, false, init),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.down_proj.forward(self.act_fn.forward(self.up_proj.forward(x)))
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let [inner, hidden]: [usize; 2] = self.up_proj.weight.lazy_shape().dims();
        // The inner layer, what it is on either side of 0 and one more in between; or the result
        // with copies of its own.
        let most = (hidden + 5 * inner).max(inner + 3 * hidden);
        Activations::values(pass.rows() * most as u64)
    }
}

const APERTUS: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Effect::Only(&["\"xielu\""])),
    ("mlp_bias", Effect::OFF),
    ("post_norm", Effect::OFF),
    ("qk_norm", Effect::ON),
];
