//! What decoders of RMSNorm and rotary positions have in common: all but their blocks.

use std::fmt::Debug;

use burn::module::{Module, ModuleDisplay};
use burn::tensor::Tensor;

use super::llama::head_dim;
use crate::architecture::{Architecture, Init};
use crate::config::Effect::Read;
use crate::config::{
    self, Fields, KnownField, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, MAX_POSITIONS,
    MAX_VOCAB, RopeScaling,
};
use crate::decoder::{Decoder, Head, Pass};
use crate::kv_cache::MAX_CONTEXT;
use crate::layers::{
    Activation, Attention, AttentionConfig, Embedding, Linear, Mlp, RmsNorm, Rope, Rotation,
};
use crate::{Activations, CacheLayer, CacheSpec, Error, KvCache, PassShape};

/// The sizes of a decoder whose configuration has Llama's fields. Fields carry the names of `transformers`.
#[derive(Debug, Clone, PartialEq)]
pub struct RmsSizes {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP's inner layer.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Width of one head; even. Not always `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Token ids run from 0 to this, exclusive.
    pub vocab_size: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f64,
    /// The non-linear function of the MLP.
    pub activation: Activation,
    /// Whether the output head is the embedding table.
    pub tie_word_embeddings: bool,
    /// The longest context that the model was trained for, in tokens.
    pub max_position_embeddings: usize,
}

/// What `transformers` takes where a field is absent.
pub(super) struct RmsDefaults {
    /// `None`: as many as heads of queries.
    pub key_value_heads: Option<usize>,
    /// `None`: the residual stream's width over the heads.
    pub head_dim: Option<usize>,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    /// The name of the field, and what it says if absent.
    pub activation: (&'static str, Activation),
    pub tie_word_embeddings: bool,
}

impl RmsSizes {
    pub(super) fn read(fields: &Fields<'_>, absent: &RmsDefaults) -> Result<Self, Error> {
        let hidden_size = fields.size("hidden_size", MAX_HIDDEN)?;
        let heads = fields.size("num_attention_heads", MAX_HEADS)?;
        // Absent and null are not the same here.
        let field = "num_key_value_heads";
        let key_value_heads = absent.key_value_heads.filter(|_| !fields.has(field));
        let key_value_heads = fields.size_or(field, key_value_heads.unwrap_or(heads), MAX_HEADS)?;
        if heads % key_value_heads != 0 {
            let expected = format!(
                "{key_value_heads} key-value heads must divide num_attention_heads, {heads}"
            );
            return Err(fields.refuse(field, expected));
        }
        let (field, activation) = absent.activation;
        let positions = absent.max_position_embeddings;
        Ok(Self {
            hidden_size,
            intermediate_size: fields.size("intermediate_size", MAX_INTERMEDIATE)?,
            num_hidden_layers: fields.size("num_hidden_layers", MAX_LAYERS)?,
            num_attention_heads: heads,
            num_key_value_heads: key_value_heads,
            head_dim: match absent.head_dim.filter(|_| fields.get("head_dim").is_none()) {
                Some(width) => width,
                None => head_dim(fields, hidden_size, heads)?,
            },
            vocab_size: fields.size("vocab_size", MAX_VOCAB)?,
            rms_norm_eps: config::epsilon(fields, "rms_norm_eps", absent.rms_norm_eps)?,
            activation: config::activation(fields, field, activation)?,
            tie_word_embeddings: fields
                .flag_or("tie_word_embeddings", absent.tie_word_embeddings)?,
            max_position_embeddings: fields.size_or(
                "max_position_embeddings",
                positions,
                MAX_POSITIONS,
            )?,
        })
    }

    /// Projections of one kind each, of which all or none have a bias.
    pub(super) fn attention(&self, bias: bool, init: &Init) -> Attention {
        let shape = AttentionConfig {
            hidden: self.hidden_size,
            heads: self.num_attention_heads,
            key_value_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            in_bias: bias,
            out_bias: bias,
        };
        Attention::new(&shape, init)
    }

    /// A gated feed-forward block without biases.
    pub(super) fn mlp(&self, init: &Init) -> Mlp {
        Mlp::new(self.hidden_size, self.intermediate_size, false, self.activation, init)
    }

    /// The norm of a residual stream.
    pub(super) fn norm(&self, init: &Init) -> RmsNorm {
        RmsNorm::new(self.hidden_size, self.rms_norm_eps, init)
    }

    /// The parts around the blocks, with the windows of each block and one rotary embedding of all.
    pub(super) fn frame(&self, windows: &[Option<usize>], rope: Rope, init: &Init) -> RmsFrame {
        let layer = |&window| CacheLayer {
            heads: self.num_attention_heads,
            key_value_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            window,
        };
        let trained_context = self.max_position_embeddings;
        RmsFrame {
            sizes: self.clone(),
            norm: self.norm(init),
            embed_scale: None,
            cache: CacheSpec {
                layers: windows.iter().map(layer).collect(),
                cross: Vec::new(),
                trained_context,
                longest_context: match rope.config().scaling {
                    RopeScaling::Dynamic { .. } => MAX_CONTEXT,
                    _ => trained_context,
                },
                cannot_slide: rope.config().cannot_slide(),
            },
            ropes: vec![rope],
        }
    }
}

/// What surrounds a decoder's blocks.
#[derive(Debug, Clone)]
pub struct RmsFrame {
    pub(super) sizes: RmsSizes,
    /// The norm behind the last block.
    pub(super) norm: RmsNorm,
    /// What embeddings are multiplied by.
    pub(super) embed_scale: Option<f64>,
    /// Those that blocks choose from.
    pub(super) ropes: Vec<Rope>,
    pub(super) cache: CacheSpec,
}

/// A decoder layer, and what its model has besides such layers.
pub trait RmsBlock: Module + ModuleDisplay + Debug + Send + Sync + 'static {
    /// As [`Architecture::Config`].
    type Config: Debug + Clone + PartialEq + Send + Sync + 'static;

    /// As [`Architecture::MODEL_TYPES`].
    const MODEL_TYPES: &'static [(&'static str, &'static str)];

    /// The name of this class.
    const NO_SPLIT: &'static [&'static str];

    /// As [`Architecture::fields`].
    fn fields() -> &'static [&'static [KnownField]];

    /// As [`Architecture::read`].
    ///
    /// # Errors
    /// As there.
    fn read(fields: &Fields<'_>) -> Result<Self::Config, Error>;

    /// What surrounds the blocks.
    fn frame(config: &Self::Config, init: &Init) -> RmsFrame;

    /// The block of that number, without storage.
    fn new(config: &Self::Config, index: usize, init: &Init) -> Self;

    /// Takes the residual stream and what is still to be added to it, and gives them, so that each addition can be made
    /// together with the norm behind it.
    ///
    /// # Errors
    /// As [`Decoder::hidden`].
    fn forward(
        &self,
        x: Tensor<3>,
        pending: Option<Tensor<3>>,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<(Tensor<3>, Tensor<3>), Error>;

    /// What it holds at most, besides the residual stream and the rotations.
    fn activations(&self, pass: &PassShape) -> Activations;
}

/// A decoder with its language-modelling head.
#[derive(Module, Debug)]
pub struct RmsForCausalLm<B: Module> {
    /// The transformer.
    pub model: RmsModel<B>,
    /// `[vocabulary, hidden]`; `None` if tied, when the embedding table serves.
    pub lm_head: Option<Linear>,
    #[module(skip)]
    ropes: Vec<Rope>,
    #[module(skip)]
    embed_scale: Option<f64>,
    #[module(skip)]
    cache: CacheSpec,
}

/// Embedding, decoder layers and final norm.
#[derive(Module, Debug)]
pub struct RmsModel<B: Module> {
    /// `[vocabulary, hidden]`.
    pub embed_tokens: Embedding,
    /// In order of execution.
    pub layers: Vec<B>,
    /// `[hidden]`.
    pub norm: RmsNorm,
}

impl<B: RmsBlock> Architecture for RmsForCausalLm<B> {
    type Config = B::Config;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = B::MODEL_TYPES;
    const CLASS_PREFIX: &'static str = "Rms";
    const NO_SPLIT: &'static [&'static str] = B::NO_SPLIT;
    const IGNORED: &'static [&'static str] = &[".rotary_emb.inv_freq"];
    const WITHOUT_PARAMETERS: &'static [(&'static str, &'static str)] = &[
        ("model.rotary_emb", "RotaryEmbedding"),
        ("model.layers.*.mlp.act_fn", "Activation"),
        ("model.layers.*.mlp.activation_fn", "Activation"),
        ("model.layers.*.resid_attn_dropout", "Dropout"),
        ("model.layers.*.resid_mlp_dropout", "Dropout"),
    ];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        B::fields()
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<B::Config, Error> {
        B::read(fields)
    }

    fn new(config: &B::Config, init: &Init) -> Self {
        let RmsFrame { sizes, norm, embed_scale, ropes, cache } = B::frame(config, init);
        let (hidden, vocabulary) = (sizes.hidden_size, sizes.vocab_size);
        Self {
            model: RmsModel {
                embed_tokens: Embedding::new(vocabulary, hidden, init),
                layers: (0..sizes.num_hidden_layers)
                    .map(|index| B::new(config, index, init))
                    .collect(),
                norm,
            },
            lm_head: (!sizes.tie_word_embeddings)
                .then(|| Linear::new(hidden, vocabulary, false, init)),
            ropes,
            embed_scale,
            cache,
        }
    }
}

impl<B: RmsBlock> Decoder for RmsForCausalLm<B> {
    const LAYERS: &'static str = "model.layers";

    fn cache(&self) -> &CacheSpec {
        &self.cache
    }

    fn hidden(&self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<Tensor<3>, Error> {
        let mut x = pass.embed(&self.model.embed_tokens);
        if let Some(scale) = self.embed_scale {
            x = x * scale;
        }
        let rotations: Vec<_> =
            self.ropes.iter().map(|rope| pass.rotation(rope, &x.device())).collect();
        let mut pending = None;
        for (index, layer) in self.model.layers.iter().enumerate() {
            let (sum, more) = layer.forward(x, pending, &rotations, pass, cache, index)?;
            (x, pending) = (sum, Some(more));
        }
        let pending = pending.map(|more| pass.wanted(more));
        Ok(self.model.norm.after(pass.wanted(x), pending).1)
    }

    fn head(&self) -> Head<'_> {
        match &self.lm_head {
            Some(head) => Head::Own(head),
            None => Head::Tied(&self.model.embed_tokens),
        }
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let layers = self.model.layers.iter().map(|layer| layer.activations(pass));
        let most = layers.fold(self.head().activations(pass), Activations::or);
        // Alive throughout: the residual stream, and the rotations.
        let rotations: usize = self.ropes.iter().map(Rope::width).sum();
        let alive = self.model.embed_tokens.width() + rotations;
        most.and(Activations::values(pass.rows() * alive as u64))
    }
}

/// Fields of all of these, beside those of all architectures.
pub(super) const FIELDS: &[KnownField] = &[
    ("head_dim", Read),
    ("hidden_size", Read),
    ("intermediate_size", Read),
    ("layer_types", Read),
    ("max_position_embeddings", Read),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("num_key_value_heads", Read),
    ("original_max_position_embeddings", Read),
    ("rms_norm_eps", Read),
    ("rope_parameters", Read),
    ("rope_scaling", Read),
    ("rope_theta", Read),
];
