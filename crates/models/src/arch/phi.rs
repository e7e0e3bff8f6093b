//! Phi: attention and an MLP of two matrices side by side behind one LayerNorm, biases everywhere,
//! and a part of each head rotated. Gunasekar et al. 2023 (arXiv:2306.11644), Li et al. 2023
//! (arXiv:2309.05463).

use burn::module::Module;
use burn::tensor::Tensor;

use super::cohere::LAYER_NORM_FIELDS;
use super::rms_config::{BlockNormKind, BlockNorms, DEFAULTS, RmsConfig, RmsDefaults};
use super::rms_decoder::{FinalNormName, RmsBlock, RmsForCausalLm};
use crate::architecture::Init;
use crate::config::Effect::{self, Read};
use crate::config::{Fields, KnownField, RopeConfig, layer_windows};
use crate::layers::{
    Activation, Linear, Norm, Rotation, attend, three, two_layer_activations, two_layers,
};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// A Phi with its language-modelling head.
pub type PhiForCausalLm = RmsForCausalLm<PhiDecoderLayer>;

/// One decoder layer: attention and MLP of the same norm, both added to the residual stream.
#[derive(Module, Debug)]
pub struct PhiDecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: Norm,
    /// Causal self-attention.
    pub self_attn: PhiAttention,
    /// Feed-forward block.
    pub mlp: PhiMlp,
}

/// Causal self-attention with biases.
#[derive(Module, Debug)]
pub struct PhiAttention {
    /// `[heads · head_dim, hidden]`.
    pub q_proj: Linear,
    /// `[key_value_heads · head_dim, hidden]`.
    pub k_proj: Linear,
    /// `[key_value_heads · head_dim, hidden]`.
    pub v_proj: Linear,
    /// `[hidden, heads · head_dim]`.
    pub dense: Linear,
    heads: usize,
    key_value_heads: usize,
    head_dim: usize,
}

/// `fc2(act(fc1(x)))`.
#[derive(Module, Debug)]
pub struct PhiMlp {
    /// `[intermediate, hidden]`.
    pub fc1: Linear,
    /// `[hidden, intermediate]`.
    pub fc2: Linear,
    #[module(skip)]
    activation: Activation,
}

impl RmsBlock for PhiDecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("phi", "Phi")];
    const NO_SPLIT: &'static [&'static str] = &["PhiDecoderLayer"];
    const FINAL_NORM: FinalNormName = FinalNormName::FinalLayernorm;

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[PHI, LAYER_NORM_FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let absent = RmsDefaults {
            rms_norm_eps: 1e-5,
            epsilon: "layer_norm_eps",
            activation: ("hidden_act", Activation::GeluTanh),
            ..DEFAULTS
        };
        let config = RmsConfig::read(fields, &absent)?;
        // All layers see everything, whatever else a file may ask for.
        layer_windows(fields, None, config.windows.clone())?;
        if config.tie_word_embeddings {
            let expected = "the output head has a bias, and so a weight of its own".to_owned();
            return Err(fields.refuse("tie_word_embeddings", expected));
        }
        let names = ["rope_theta", "partial_rotary_factor"];
        let (rope, rotary_dim) =
            RopeConfig::read_partial(&config.rope_context(fields), names, 0.5)?;
        Ok(RmsConfig {
            norms: BlockNorms::Parallel,
            norm_kind: BlockNormKind::Layer { bias: true },
            head_bias: true,
            rope,
            rotary_dim,
            ..config
        })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (heads, key_value_heads) = (config.num_attention_heads, config.num_key_value_heads);
        let [queries, keys] = [heads, key_value_heads].map(|heads| heads * config.head_dim);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, true, init);
        Self {
            input_layernorm: config.block_norm(init),
            self_attn: PhiAttention {
                q_proj: linear(hidden, queries),
                k_proj: linear(hidden, keys),
                v_proj: linear(hidden, keys),
                dense: linear(queries, hidden),
                heads,
                key_value_heads,
                head_dim: config.head_dim,
            },
            mlp: PhiMlp {
                fc1: linear(hidden, inner),
                fc2: linear(inner, hidden),
                activation: config.activation,
            },
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
        let (x, normed) = self.input_layernorm.after(x, pending);
        let mixed = self.self_attn.forward(normed.clone(), &rotations[0], pass, cache, index)?;
        let [x, normed] = [x, normed].map(|x| pass.needed(x));
        let PhiMlp { fc1, fc2, activation } = &self.mlp;
        Ok(Residual {
            stream: x,
            pending: Some(mixed + two_layers([fc1, fc2], *activation, normed)),
        })
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let most = self.self_attn.activations(pass);
        let hidden = pass.rows() * self.input_layernorm.width() as u64;
        // What both take waits for the second, then what the first gave.
        most.or(two_layer_activations(&self.mlp.fc1, pass)).and(Activations::values(hidden))
    }
}

impl PhiAttention {
    /// `[batch, tokens, hidden]` f32 to the same. The tokens' keys and values are appended to layer
    /// `layer` of the cache.
    fn forward(
        &self,
        x: Tensor<3>,
        rotation: &Rotation,
        pass: &Pass<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let [batch, tokens, _] = x.dims();
        let split = |y: Tensor<3>, heads| y.reshape([batch, tokens, heads, self.head_dim]);
        let [queries, keys, values] = three([&self.q_proj, &self.k_proj, &self.v_proj], x);
        let all = [
            rotation.apply(split(queries, self.heads)),
            rotation.apply(split(keys, self.key_value_heads)),
            split(values, self.key_value_heads),
        ];
        let positions = pass.query_positions();
        let mixed = attend(all, self.dense.compute, None, &positions, cache, layer)?;
        Ok(self.dense.forward(mixed))
    }

    /// What it holds at most, besides the residual stream.
    fn activations(&self, pass: &PassShape) -> Activations {
        let [hidden, queries]: [usize; 2] = self.dense.weight.lazy_shape().dims();
        let (hidden, queries) = (hidden as u64, queries as u64);
        let keys = (self.key_value_heads * self.head_dim) as u64;
        // As `Attention` has it: projecting and rotating, attending, or projecting what came of it.
        let project = hidden + queries + (2 * queries).max(3 * keys);
        let held_back = if pass.holds_back() { 2 * keys } else { 0 };
        let most = project.max(2 * queries + held_back).max(queries + 2 * hidden);
        let scratch = pass.attention_scratch(self.heads, self.key_value_heads, self.head_dim);
        Activations::values(pass.rows() * most)
            .with_unpooled(pass.rows() * (2 * keys + held_back))
            .with_scratch(scratch)
    }
}

const PHI: &[KnownField] = &[
    ("attention_bias", Effect::ON),
    ("hidden_act", Read),
    ("layer_norm_eps", Read),
    ("mlp_bias", Effect::ON),
    ("partial_rotary_factor", Read),
    ("sliding_window", Effect::UNSET),
];
