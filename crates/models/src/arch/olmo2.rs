//! OLMo 2: norms behind attention and MLP, and of all queries and keys. OLMo et al. 2024 (arXiv:2501.00656).

use burn::module::Module;
use burn::tensor::Tensor;

use super::rms_decoder::{FIELDS, RmsBlock, RmsDefaults, RmsForCausalLm, RmsFrame, RmsSizes};
use crate::architecture::Init;
use crate::config::Effect::{self, Read};
use crate::config::{Fields, KnownField, RopeConfig, RopeContext, layer_windows};
use crate::decoder::Pass;
use crate::layers::{Activation, Attention, Mlp, RmsNorm, Rope, Rotation};
use crate::{Activations, Error, KvCache, PassShape};

/// An OLMo 2 with its language-modelling head.
pub type Olmo2ForCausalLm = RmsForCausalLm<Olmo2DecoderLayer>;

/// The configuration of an OLMo 2.
#[derive(Debug, Clone, PartialEq)]
pub struct Olmo2Config {
    /// Its sizes.
    pub sizes: RmsSizes,
    /// Whether attention's projections have a bias.
    pub attention_bias: bool,
    /// Rotary position embedding.
    pub rope: RopeConfig,
}

/// One decoder layer: attention, then MLP, each before a norm and added to the residual stream.
#[derive(Module, Debug)]
pub struct Olmo2DecoderLayer {
    /// Causal self-attention.
    pub self_attn: Attention,
    /// `[hidden]`.
    pub post_attention_layernorm: RmsNorm,
    /// Gated feed-forward block.
    pub mlp: Mlp,
    /// `[hidden]`.
    pub post_feedforward_layernorm: RmsNorm,
}

impl RmsBlock for Olmo2DecoderLayer {
    type Config = Olmo2Config;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("olmo2", "Olmo2")];
    const NO_SPLIT: &'static [&'static str] = &["Olmo2DecoderLayer"];

    fn fields() -> &'static [&'static [KnownField]] {
        &[OLMO2, FIELDS]
    }

    fn read(fields: &Fields<'_>) -> Result<Olmo2Config, Error> {
        let absent = RmsDefaults {
            key_value_heads: None,
            head_dim: None,
            max_position_embeddings: 2048,
            rms_norm_eps: 1e-5,
            activation: ("hidden_act", Activation::Silu),
            tie_word_embeddings: false,
        };
        let sizes = RmsSizes::read(fields, &absent)?;
        // All layers see everything, whatever else a file may ask for.
        layer_windows(fields, None, vec![None; sizes.num_hidden_layers])?;
        Ok(Olmo2Config {
            attention_bias: fields.flag_or("attention_bias", false)?,
            rope: RopeConfig::read(&RopeContext {
                fields,
                head_dim: sizes.head_dim,
                max_position_embeddings: sizes.max_position_embeddings,
            })?,
            sizes,
        })
    }

    fn frame(config: &Olmo2Config, init: &Init) -> RmsFrame {
        let rope = Rope::new(&config.rope, config.sizes.head_dim);
        config.sizes.frame(&vec![None; config.sizes.num_hidden_layers], rope, init)
    }

    fn new(config: &Olmo2Config, _: usize, init: &Init) -> Self {
        let sizes = &config.sizes;
        let all = |heads| RmsNorm::new(heads * sizes.head_dim, sizes.rms_norm_eps, init);
        let norms = [sizes.num_attention_heads, sizes.num_key_value_heads].map(all);
        let [queries, keys] = norms;
        Self {
            self_attn: sizes.attention(config.attention_bias, init).normed(queries, keys),
            post_attention_layernorm: sizes.norm(init),
            mlp: sizes.mlp(init),
            post_feedforward_layernorm: sizes.norm(init),
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
        let x = match pending {
            Some(pending) => x + pending,
            None => x,
        };
        let positions = pass.query_positions();
        let mixed = self.self_attn.forward(x.clone(), &rotations[0], &positions, cache, index)?;
        let x = x + self.post_attention_layernorm.forward(mixed);
        let inner = self.mlp.forward(x.clone());
        Ok((x, self.post_feedforward_layernorm.forward(inner)))
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        self.self_attn.activations(pass).or(self.mlp.activations(pass))
    }
}

const OLMO2: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Read),
    ("max_window_layers", Effect::UNSET),
    ("mlp_bias", Effect::OFF),
    ("sliding_window", Effect::UNSET),
    ("use_sliding_window", Effect::OFF),
];
