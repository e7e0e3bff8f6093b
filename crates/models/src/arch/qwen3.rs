//! Qwen3: Llama's blocks with norms of each head of queries and keys. Yang et al. 2025 (arXiv:2505.09388).

use burn::module::Module;
use burn::tensor::Tensor;

use super::llama;
use super::rms_decoder::{FIELDS, RmsBlock, RmsDefaults, RmsForCausalLm, RmsFrame, RmsSizes};
use crate::architecture::Init;
use crate::config::Effect::{self, Read};
use crate::config::{Fields, KnownField, RopeConfig, RopeContext};
use crate::decoder::Pass;
use crate::layers::{Activation, Attention, Mlp, RmsNorm, Rope, Rotation};
use crate::{Activations, Error, KvCache, PassShape};

/// A Qwen3 with its language-modelling head.
pub type Qwen3ForCausalLm = RmsForCausalLm<Qwen3DecoderLayer>;

/// The configuration of a Qwen3.
#[derive(Debug, Clone, PartialEq)]
pub struct Qwen3Config {
    /// Its sizes.
    pub sizes: RmsSizes,
    /// Whether attention's projections have a bias.
    pub attention_bias: bool,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// Of each layer, how many tokens a token sees, itself included; `None` is all before it.
    pub windows: Vec<Option<usize>>,
}

/// One decoder layer: attention, then MLP, each behind a norm and added to the residual stream.
#[derive(Module, Debug)]
pub struct Qwen3DecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention.
    pub self_attn: Attention,
    /// `[hidden]`.
    pub post_attention_layernorm: RmsNorm,
    /// Gated feed-forward block.
    pub mlp: Mlp,
}

impl RmsBlock for Qwen3DecoderLayer {
    type Config = Qwen3Config;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("qwen3", "Qwen3")];
    const NO_SPLIT: &'static [&'static str] = &["Qwen3DecoderLayer"];

    fn fields() -> &'static [&'static [KnownField]] {
        &[QWEN3, FIELDS]
    }

    fn read(fields: &Fields<'_>) -> Result<Qwen3Config, Error> {
        let absent = RmsDefaults {
            key_value_heads: Some(32),
            head_dim: Some(128),
            max_position_embeddings: 32_768,
            rms_norm_eps: 1e-6,
            activation: ("hidden_act", Activation::Silu),
            tie_word_embeddings: false,
        };
        let sizes = RmsSizes::read(fields, &absent)?;
        Ok(Qwen3Config {
            attention_bias: fields.flag_or("attention_bias", false)?,
            rope: RopeConfig::read(&RopeContext {
                fields,
                head_dim: sizes.head_dim,
                max_position_embeddings: sizes.max_position_embeddings,
            })?,
            windows: llama::windows("qwen3", fields, sizes.num_hidden_layers)?,
            sizes,
        })
    }

    fn frame(config: &Qwen3Config, init: &Init) -> RmsFrame {
        let rope = Rope::new(&config.rope, config.sizes.head_dim);
        config.sizes.frame(&config.windows, rope, init)
    }

    fn new(config: &Qwen3Config, _: usize, init: &Init) -> Self {
        let sizes = &config.sizes;
        let head = || RmsNorm::new(sizes.head_dim, sizes.rms_norm_eps, init);
        Self {
            input_layernorm: sizes.norm(init),
            self_attn: sizes.attention(config.attention_bias, init).normed(head(), head()),
            post_attention_layernorm: sizes.norm(init),
            mlp: sizes.mlp(init),
        }
    }

    fn forward(
        &self,
        x: Tensor<3>,
        pending: Option<Tensor<3>>,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<(Tensor<3>, Tensor<3>), Error> {
        let (x, normed) = self.input_layernorm.after(x, pending);
        let positions = pass.query_positions();
        let mixed = self.self_attn.forward(normed, &rotations[0], &positions, cache, index)?;
        let (x, normed) = self.post_attention_layernorm.add_forward(x, mixed);
        Ok((x, self.mlp.forward(normed)))
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        self.self_attn.activations(pass).or(self.mlp.activations(pass))
    }
}

const QWEN3: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Read),
    ("max_window_layers", Read),
    ("mlp_bias", Effect::OFF),
    ("sliding_window", Read),
    ("use_sliding_window", Read),
];
