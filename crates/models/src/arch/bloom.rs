//! BLOOM: linear biases instead of positions. BigScience 2022 (arXiv:2211.05100).

use burn::module::Module;
use burn::tensor::Tensor;

use super::sizes::LayerNormSizes;
use crate::architecture::{Architecture, Init};
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField};
use crate::decoder::{Decoder, DecoderArchitecture, Head};
use crate::kv_cache::MAX_CONTEXT;
use crate::layers::{
    Activation, Embedding, FeedForward, FusedAttention, FusedAttentionConfig, LayerNorm, Linear,
};
use crate::pass::Pass;
use crate::{
    Activations, Alibi, BlockInputs, Blocks, CacheSpec, Error, KvCache, PassShape, Residual,
    Rotation,
};

/// The configuration of a BLOOM.
#[derive(Debug, Clone, PartialEq)]
pub struct BloomConfig {
    /// Its sizes.
    pub sizes: LayerNormSizes,
    /// Whether what attention and MLP give is added to their norm's output rather than to its
    /// input.
    pub apply_residual_connection_post_layernorm: bool,
}

/// A BLOOM with its language-modelling head.
#[derive(Module, Debug)]
pub struct BloomForCausalLm {
    /// The transformer.
    pub transformer: BloomModel,
    /// `[vocabulary, hidden]`; `None` if tied, when the embedding table serves.
    pub lm_head: Option<Linear>,
    #[module(skip)]
    cache: CacheSpec,
}

/// Embedding and its norm, decoder layers and final norm.
#[derive(Module, Debug)]
pub struct BloomModel {
    /// `[vocabulary, hidden]`.
    pub word_embeddings: Embedding,
    /// `[hidden]`.
    pub word_embeddings_layernorm: LayerNorm,
    /// In order of execution.
    pub h: Vec<BloomBlock>,
    /// `[hidden]`.
    pub ln_f: LayerNorm,
}

/// One decoder layer: attention, then MLP, each behind a norm and added to the residual stream.
#[derive(Module, Debug)]
pub struct BloomBlock {
    /// `[hidden]`.
    pub input_layernorm: LayerNorm,
    /// Causal self-attention.
    pub self_attention: FusedAttention,
    /// `[hidden]`.
    pub post_attention_layernorm: LayerNorm,
    /// Feed-forward block.
    pub mlp: FeedForward,
    post_layernorm: bool,
}

impl Architecture for BloomForCausalLm {
    type Config = BloomConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("bloom", "Bloom")];
    const CLASS_PREFIX: &'static str = "Bloom";
    const NO_SPLIT: &'static [&'static str] = &["BloomBlock"];
    const OPTIONAL_PREFIX: &'static str = "transformer.";
    const WITHOUT_PARAMETERS: &'static [(&'static str, &'static str)] = &[
        ("transformer.h.*.self_attention.attention_dropout", "Dropout"),
        ("transformer.h.*.mlp.gelu_impl", "BloomGelu"),
    ];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<BloomConfig, Error> {
        // Later names stand in for the earlier ones.
        let first = |names: [&'static str; 2]| {
            names.into_iter().find(|name| fields.get(name).is_some()).unwrap_or(names[0])
        };
        let names = [
            first(["n_embed", "hidden_size"]),
            first(["n_layer", "num_hidden_layers"]),
            first(["n_head", "num_attention_heads"]),
        ];
        let sizes = LayerNormSizes::read(fields, names, Some("layer_norm_epsilon"), |hidden| {
            Ok((
                4 * hidden,
                fields.size_or("seq_length", 2048, MAX_CONTEXT)?,
                Activation::GeluTanh,
                fields.flag_or("tie_word_embeddings", true)?,
            ))
        })?;
        let field = "apply_residual_connection_post_layernorm";
        let apply_residual_connection_post_layernorm = fields.flag_or(field, false)?;
        Ok(BloomConfig { sizes, apply_residual_connection_post_layernorm })
    }

    fn new(config: &BloomConfig, init: &Init) -> Self {
        let sizes = &config.sizes;
        Self {
            transformer: BloomModel {
                word_embeddings: Embedding::new(sizes.vocabulary, sizes.hidden, init),
                word_embeddings_layernorm: sizes.norm(init),
                h: (0..sizes.layers).map(|_| BloomBlock::new(config, init)).collect(),
                ln_f: sizes.norm(init),
            },
            lm_head: (!sizes.tied)
                .then(|| Linear::new(sizes.hidden, sizes.vocabulary, false, init)),
            cache: CacheSpec { longest_context: MAX_CONTEXT, ..sizes.cache(sizes.heads) },
        }
    }
}

impl DecoderArchitecture for BloomForCausalLm {
    const LAYERS: &'static str = "transformer.h";
}

impl Decoder for BloomForCausalLm {
    fn cache(&self) -> &CacheSpec {
        &self.cache
    }

    fn hidden(&self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<Tensor<3>, Error> {
        self.through(pass, cache)
    }

    fn blocks(&self) -> Option<&dyn Blocks> {
        Some(self)
    }

    fn head(&self) -> Head<'_> {
        Head::new(self.lm_head.as_ref(), &self.transformer.word_embeddings)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let mut most = self.head().activations(pass);
        for block in &self.transformer.h {
            let block = block.self_attention.activations(pass).or(block.mlp.activations(pass));
            most = most.or(block);
        }
        // Alive throughout: the residual stream.
        let hidden = self.transformer.word_embeddings.width() as u64;
        most.and(Activations::values(pass.rows() * hidden))
    }
}

impl Blocks for BloomForCausalLm {
    fn count(&self) -> usize {
        self.transformer.h.len()
    }

    fn inputs(&self, pass: &Pass<'_>) -> Result<BlockInputs, Error> {
        let model = &self.transformer;
        let x = model.word_embeddings_layernorm.forward(pass.embed(&model.word_embeddings));
        Ok(BlockInputs { residual: Residual::new(x), rotations: Vec::new() })
    }

    fn block(
        &self,
        index: usize,
        residual: Residual,
        _rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
    ) -> Result<Residual, Error> {
        self.transformer.h[index].forward(residual, pass, cache, index)
    }

    fn normed(&self, residual: Residual, pass: &Pass<'_>) -> Tensor<3> {
        let Residual { stream, pending } = residual.wanted(pass);
        self.transformer.ln_f.after(stream, pending).1
    }
}

impl BloomBlock {
    fn new(config: &BloomConfig, init: &Init) -> Self {
        let sizes = &config.sizes;
        let attention = FusedAttentionConfig {
            hidden: sizes.hidden,
            heads: sizes.heads,
            key_value_heads: sizes.heads,
            bias: true,
        };
        let alibi = Some(Alibi::new(sizes.heads));
        Self {
            input_layernorm: sizes.norm(init),
            self_attention: FusedAttention::new(&attention, init).with_alibi(alibi),
            post_attention_layernorm: sizes.norm(init),
            mlp: FeedForward::new(sizes.hidden, sizes.inner, true, sizes.activation, init),
            post_layernorm: config.apply_residual_connection_post_layernorm,
        }
    }

    /// Takes the residual stream and what is still to be added to it, and gives them.
    fn forward(
        &self,
        Residual { stream: x, pending }: Residual,
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Residual, Error> {
        let residual = |x, normed: &Tensor<3>| if self.post_layernorm { normed.clone() } else { x };
        let (x, normed) = self.input_layernorm.after(x, pending);
        let x = residual(x, &normed);
        let mixed =
            self.self_attention.forward(normed, None, &pass.query_positions(), cache, index)?;
        let (x, normed) = self.post_attention_layernorm.after(pass.needed(x), Some(mixed));
        let x = residual(x, &normed);
        Ok(Residual { stream: x, pending: Some(self.mlp.forward(normed)) })
    }
}

const FIELDS: &[KnownField] = &[
    ("apply_residual_connection_post_layernorm", Read),
    ("hidden_size", Read),
    ("layer_norm_epsilon", Read),
    ("n_embed", Read),
    ("n_head", Read),
    ("n_inner", Effect::UNSET),
    ("n_layer", Read),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("seq_length", Read),
    // How it is computed, or was trained elsewhere.
    ("attention_softmax_in_fp32", Harmless),
    ("bias_dropout_fusion", Harmless),
    ("masked_softmax_fusion", Harmless),
    ("offset_alibi", Harmless),
    ("skip_bias_add", Harmless),
    ("skip_bias_add_qkv", Harmless),
    ("slow_but_exact", Harmless),
];
