//! GPT-NeoX and Pythia: a part of each head rotated, attention and MLP side by side. Black et al.
//! 2022 (arXiv:2204.06745).

use burn::module::Module;
use burn::tensor::Tensor;

use super::sizes::LayerNormSizes;
use crate::architecture::{Architecture, Init};
use crate::config::Effect::{Harmless, Read};
use crate::config::{
    self, Fields, KnownField, MAX_INTERMEDIATE, MAX_POSITIONS, RopeConfig, RopeContext, RopeScaling,
};
use crate::decoder::{Decoder, DecoderArchitecture, Head};
use crate::kv_cache::MAX_CONTEXT;
use crate::layers::{
    Activation, Embedding, FeedForward, FusedAttention, FusedAttentionConfig, LayerNorm, Linear,
    Rope, Rotation,
};
use crate::pass::Pass;
use crate::{Activations, BlockInputs, Blocks, CacheSpec, Error, KvCache, PassShape, Residual};

/// The configuration of a GPT-NeoX.
#[derive(Debug, Clone, PartialEq)]
pub struct GptNeoxConfig {
    /// Its sizes.
    pub sizes: LayerNormSizes,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// Elements of a head that are rotated, the first ones; even.
    pub rotary_dim: usize,
    /// Whether attention and MLP take the same residual stream.
    pub use_parallel_residual: bool,
    /// Whether attention's projections have a bias.
    pub attention_bias: bool,
}

/// A GPT-NeoX with its language-modelling head.
#[derive(Module, Debug)]
pub struct GptNeoxForCausalLm {
    /// The transformer.
    pub gpt_neox: GptNeoxModel,
    /// `[vocabulary, hidden]`; `None` if tied, when the embedding table serves.
    pub embed_out: Option<Linear>,
    #[module(skip)]
    rope: Rope,
    #[module(skip)]
    cache: CacheSpec,
}

/// Embedding, decoder layers and final norm.
#[derive(Module, Debug)]
pub struct GptNeoxModel {
    /// `[vocabulary, hidden]`.
    pub embed_in: Embedding,
    /// In order of execution.
    pub layers: Vec<GptNeoxLayer>,
    /// `[hidden]`.
    pub final_layer_norm: LayerNorm,
}

/// One decoder layer: attention and MLP, each behind a norm of its own, one behind the other or
/// side by side.
#[derive(Module, Debug)]
pub struct GptNeoxLayer {
    /// `[hidden]`.
    pub input_layernorm: LayerNorm,
    /// Causal self-attention.
    pub attention: FusedAttention,
    /// `[hidden]`.
    pub post_attention_layernorm: LayerNorm,
    /// Feed-forward block.
    pub mlp: FeedForward,
    parallel: bool,
}

impl Architecture for GptNeoxForCausalLm {
    type Config = GptNeoxConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("gpt_neox", "GPTNeoX")];
    const CLASS_PREFIX: &'static str = "GptNeox";
    const NO_SPLIT: &'static [&'static str] = &["GptNeoxLayer"];
    const IGNORED: &'static [&'static str] =
        &[".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"];
    const WITHOUT_PARAMETERS: &'static [(&'static str, &'static str)] = &[
        ("gpt_neox.emb_dropout", "Dropout"),
        ("gpt_neox.rotary_emb", "RotaryEmbedding"),
        ("gpt_neox.layers.*.post_attention_dropout", "Dropout"),
        ("gpt_neox.layers.*.post_mlp_dropout", "Dropout"),
        ("gpt_neox.layers.*.mlp.act", "Activation"),
    ];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<GptNeoxConfig, Error> {
        let names = ["hidden_size", "num_hidden_layers", "num_attention_heads"];
        let sizes = LayerNormSizes::read(fields, names, Some("layer_norm_eps"), |_| {
            Ok((
                fields.size("intermediate_size", MAX_INTERMEDIATE)?,
                fields.size_or("max_position_embeddings", 2048, MAX_POSITIONS)?,
                config::activation(fields, "hidden_act", Activation::Gelu)?,
                fields.flag_or("tie_word_embeddings", false)?,
            ))
        })?;
        let around = RopeContext {
            fields,
            head_dim: sizes.head_dim(),
            max_position_embeddings: sizes.positions,
            theta: 10_000.0,
        };
        let (rope, rotary_dim) =
            RopeConfig::read_partial(&around, ["rotary_emb_base", "rotary_pct"], 0.25)?;
        Ok(GptNeoxConfig {
            rope,
            rotary_dim,
            use_parallel_residual: fields.flag_or("use_parallel_residual", true)?,
            attention_bias: fields.flag_or("attention_bias", true)?,
            sizes,
        })
    }

    fn new(config: &GptNeoxConfig, init: &Init) -> Self {
        let sizes = &config.sizes;
        let (hidden, vocabulary) = (sizes.hidden, sizes.vocabulary);
        let mut cache = sizes.cache(sizes.heads);
        cache.cannot_slide = config.rope.cannot_slide();
        cache.rescaled_beyond = config.rope.rescaled_beyond();
        if let RopeScaling::Dynamic { .. } = config.rope.scaling {
            cache.longest_context = MAX_CONTEXT;
        }
        Self {
            gpt_neox: GptNeoxModel {
                embed_in: Embedding::new(vocabulary, hidden, init),
                layers: (0..sizes.layers).map(|_| GptNeoxLayer::new(config, init)).collect(),
                final_layer_norm: sizes.norm(init),
            },
            embed_out: (!sizes.tied).then(|| Linear::new(hidden, vocabulary, false, init)),
            rope: Rope::new(&config.rope, config.rotary_dim),
            cache,
        }
    }
}

impl DecoderArchitecture for GptNeoxForCausalLm {
    const LAYERS: &'static str = "gpt_neox.layers";
    const HEAD: &'static str = "embed_out";
}

impl Decoder for GptNeoxForCausalLm {
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
        Head::new(self.embed_out.as_ref(), &self.gpt_neox.embed_in)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let hidden = pass.rows() * self.gpt_neox.embed_in.width() as u64;
        let mut most = self.head().activations(pass);
        for layer in &self.gpt_neox.layers {
            // What attention gave waits for the MLP that runs beside it.
            let waits = if layer.parallel { hidden } else { 0 };
            most = most.or(layer.attention.activations(pass));
            most = most.or(layer.mlp.activations(pass).and(Activations::values(waits)));
        }
        // Alive throughout: the residual stream, and the rotations.
        most.and(Activations::values(hidden + pass.rows() * self.rope.width() as u64))
    }
}

impl Blocks for GptNeoxForCausalLm {
    fn count(&self) -> usize {
        self.gpt_neox.layers.len()
    }

    fn inputs(&self, pass: &Pass<'_>) -> Result<BlockInputs, Error> {
        let x = pass.embed(&self.gpt_neox.embed_in);
        let rotations = vec![pass.rotation(&self.rope, &x.device())];
        Ok(BlockInputs { residual: Residual::new(x), rotations })
    }

    fn block(
        &self,
        index: usize,
        residual: Residual,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
    ) -> Result<Residual, Error> {
        self.gpt_neox.layers[index].forward(residual, &rotations[0], pass, cache, index)
    }

    fn normed(&self, residual: Residual, pass: &Pass<'_>) -> Tensor<3> {
        let Residual { stream, pending } = residual.wanted(pass);
        self.gpt_neox.final_layer_norm.after(stream, pending).1
    }
}

impl GptNeoxLayer {
    fn new(config: &GptNeoxConfig, init: &Init) -> Self {
        let sizes = &config.sizes;
        let attention = FusedAttentionConfig {
            hidden: sizes.hidden,
            heads: sizes.heads,
            key_value_heads: sizes.heads,
            bias: config.attention_bias,
        };
        Self {
            input_layernorm: sizes.norm(init),
            attention: FusedAttention::new(&attention, init),
            post_attention_layernorm: sizes.norm(init),
            mlp: FeedForward::new(sizes.hidden, sizes.inner, true, sizes.activation, init),
            parallel: config.use_parallel_residual,
        }
    }

    /// Takes the residual stream and what is still to be added to it, and gives them.
    fn forward(
        &self,
        Residual { stream: x, pending }: Residual,
        rotation: &Rotation,
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Residual, Error> {
        let (x, normed) = self.input_layernorm.after(x, pending);
        let mixed = self.attention.forward(
            normed,
            Some(rotation),
            &pass.query_positions(),
            cache,
            index,
        )?;
        let x = pass.needed(x);
        if self.parallel {
            let normed = self.post_attention_layernorm.forward(x.clone());
            return Ok(Residual { stream: x, pending: Some(mixed + self.mlp.forward(normed)) });
        }
        let (x, normed) = self.post_attention_layernorm.after(x, Some(mixed));
        Ok(Residual { stream: x, pending: Some(self.mlp.forward(normed)) })
    }
}

const FIELDS: &[KnownField] = &[
    ("attention_bias", Read),
    ("attention_probs_dropout_prob", Harmless),
    ("classifier_dropout", Harmless),
    ("hidden_act", Read),
    ("hidden_dropout_prob", Harmless),
    ("hidden_size", Read),
    ("intermediate_size", Read),
    ("layer_norm_eps", Read),
    ("max_position_embeddings", Read),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("original_max_position_embeddings", Read),
    ("rope_parameters", Read),
    ("rope_scaling", Read),
    ("rotary_emb_base", Read),
    ("rotary_pct", Read),
    ("use_parallel_residual", Read),
];
