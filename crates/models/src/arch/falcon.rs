//! Falcon: one head of keys or few, attention and MLP side by side, rotary positions or linear
//! biases. Almazrouei et al. 2023 (arXiv:2311.16867).

use burn::module::Module;
use burn::tensor::Tensor;

use super::sizes::LayerNormSizes;
use crate::architecture::{Architecture, Init};
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{
    self, Fields, KnownField, MAX_HEADS, MAX_INTERMEDIATE, MAX_POSITIONS, RopeConfig, RopeContext,
    RopeScaling,
};
use crate::decoder::{Decoder, DecoderArchitecture, Head};
use crate::kv_cache::MAX_CONTEXT;
use crate::layers::{
    Activation, Embedding, FeedForward, FusedAttention, FusedAttentionConfig, LayerNorm, Linear,
    Rope, Rotation,
};
use crate::pass::Pass;
use crate::{
    Activations, Alibi, BlockInputs, Blocks, CacheSpec, Error, KvCache, PassShape, Residual,
};

/// The configuration of a Falcon.
#[derive(Debug, Clone, PartialEq)]
pub struct FalconConfig {
    /// Its sizes.
    pub sizes: LayerNormSizes,
    /// Key and value heads; divides the query heads.
    pub key_value_heads: usize,
    /// Rotary position embedding; `None` where there are linear biases instead (`alibi`).
    pub rope: Option<RopeConfig>,
    /// Whether linear layers have a bias.
    pub bias: bool,
    /// Which norms a block has.
    pub norms: FalconNorms,
}

/// Which norms a block has, and so what its MLP takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FalconNorms {
    /// One before attention, one between it and the MLP (`parallel_attn` is false).
    Serial,
    /// One for both, side by side.
    Shared,
    /// One for each, side by side (`num_ln_in_parallel_attn` is 2).
    Two,
}

/// A Falcon with its language-modelling head.
#[derive(Module, Debug)]
pub struct FalconForCausalLm {
    /// The transformer.
    pub transformer: FalconModel,
    /// `[vocabulary, hidden]`; `None` if tied, when the embedding table serves.
    pub lm_head: Option<Linear>,
    #[module(skip)]
    rope: Option<Rope>,
    #[module(skip)]
    cache: CacheSpec,
}

/// Embedding, decoder layers and final norm.
#[derive(Module, Debug)]
pub struct FalconModel {
    /// `[vocabulary, hidden]`.
    pub word_embeddings: Embedding,
    /// In order of execution.
    pub h: Vec<FalconDecoderLayer>,
    /// `[hidden]`.
    pub ln_f: LayerNorm,
}

/// One decoder layer: attention and MLP, one behind the other or side by side.
#[derive(Module, Debug)]
pub struct FalconDecoderLayer {
    /// `[hidden]`: before attention alone.
    pub ln_attn: Option<LayerNorm>,
    /// `[hidden]`: before attention, and before an MLP beside it.
    pub input_layernorm: Option<LayerNorm>,
    /// Causal self-attention.
    pub self_attention: FusedAttention,
    /// `[hidden]`: before an MLP beside attention.
    pub ln_mlp: Option<LayerNorm>,
    /// `[hidden]`: before an MLP behind attention.
    pub post_attention_layernorm: Option<LayerNorm>,
    /// Feed-forward block.
    pub mlp: FeedForward,
}

impl Architecture for FalconForCausalLm {
    type Config = FalconConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("falcon", "Falcon")];
    const CLASS_PREFIX: &'static str = "Falcon";
    const NO_SPLIT: &'static [&'static str] = &["FalconDecoderLayer"];
    const OPTIONAL_PREFIX: &'static str = "transformer.";
    const IGNORED: &'static [&'static str] = &[".rotary_emb.inv_freq", ".maybe_rotary.inv_freq"];
    const WITHOUT_PARAMETERS: &'static [(&'static str, &'static str)] = &[
        ("transformer.rotary_emb", "RotaryEmbedding"),
        ("transformer.h.*.self_attention.attention_dropout", "Dropout"),
        ("transformer.h.*.mlp.act", "Activation"),
    ];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<FalconConfig, Error> {
        let width = if fields.get("n_embed").is_some() { "n_embed" } else { "hidden_size" };
        let names = [width, "num_hidden_layers", "num_attention_heads"];
        let sizes = LayerNormSizes::read(fields, names, Some("layer_norm_epsilon"), |hidden| {
            Ok((
                fields.size_or("ffn_hidden_size", 4 * hidden, MAX_INTERMEDIATE)?,
                fields.size_or("max_position_embeddings", 2048, MAX_POSITIONS)?,
                config::activation(fields, "activation", Activation::Gelu)?,
                fields.flag_or("tie_word_embeddings", true)?,
            ))
        })?;
        let new = fields.flag_or("new_decoder_architecture", false)?;
        let rope = RopeConfig::read(&RopeContext {
            fields,
            head_dim: sizes.head_dim(),
            max_position_embeddings: sizes.positions,
            theta: 10_000.0,
        })?;
        let alibi = fields.flag_or("alibi", false)?;
        if !alibi && !sizes.head_dim().is_multiple_of(2) {
            let expected = "heads that are rotated must have an even width".to_owned();
            return Err(fields.refuse("num_attention_heads", expected));
        }
        Ok(FalconConfig {
            key_value_heads: key_value_heads(fields, new, sizes.heads)?,
            rope: (!alibi).then_some(rope),
            bias: fields.flag_or("bias", false)?,
            norms: norms(fields, new)?,
            sizes,
        })
    }

    fn new(config: &FalconConfig, init: &Init) -> Self {
        let sizes = &config.sizes;
        let scaling = config.rope.as_ref().map(|rope| &rope.scaling);
        let mut cache = sizes.cache(config.key_value_heads);
        cache.cannot_slide = config.rope.as_ref().and_then(RopeConfig::cannot_slide);
        cache.rescaled_beyond = config.rope.as_ref().and_then(RopeConfig::rescaled_beyond);
        if matches!(scaling, None | Some(RopeScaling::Dynamic { .. })) {
            cache.longest_context = cache.trained_context.max(MAX_CONTEXT);
        }
        Self {
            transformer: FalconModel {
                word_embeddings: Embedding::new(sizes.vocabulary, sizes.hidden, init),
                h: (0..sizes.layers).map(|_| FalconDecoderLayer::new(config, init)).collect(),
                ln_f: sizes.norm(init),
            },
            lm_head: (!sizes.tied)
                .then(|| Linear::new(sizes.hidden, sizes.vocabulary, false, init)),
            rope: config.rope.as_ref().map(|rope| Rope::new(rope, sizes.head_dim())),
            cache,
        }
    }
}

impl DecoderArchitecture for FalconForCausalLm {
    const LAYERS: &'static str = "transformer.h";
}

impl Decoder for FalconForCausalLm {
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
        let hidden = self.transformer.word_embeddings.width() as u64;
        let mut most = self.head().activations(pass);
        for layer in &self.transformer.h {
            // The norm's output waits for the MLP beside attention, then what attention gave for
            // that.
            let beside = layer.post_attention_layernorm.is_none();
            let shared = beside && layer.ln_mlp.is_none();
            let waits = |waits| Activations::values(pass.rows() * if waits { hidden } else { 0 });
            most = most.or(layer.self_attention.activations(pass).and(waits(shared)));
            most = most.or(layer.mlp.activations(pass).and(waits(beside)));
        }
        // Alive throughout: the residual stream, and the rotations.
        let alive = hidden + self.rope.as_ref().map_or(0, Rope::width) as u64;
        most.and(Activations::values(pass.rows() * alive))
    }
}

impl Blocks for FalconForCausalLm {
    fn count(&self) -> usize {
        self.transformer.h.len()
    }

    fn inputs(&self, pass: &Pass<'_>) -> Result<BlockInputs, Error> {
        let x = pass.embed(&self.transformer.word_embeddings);
        let rotations = self.rope.iter().map(|rope| pass.rotation(rope, &x.device())).collect();
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
        self.transformer.h[index].forward(residual, rotations.first(), pass, cache, index)
    }

    fn normed(&self, residual: Residual, pass: &Pass<'_>) -> Tensor<3> {
        let Residual { stream, pending } = residual.wanted(pass);
        self.transformer.ln_f.after(stream, pending).1
    }
}

impl FalconDecoderLayer {
    fn new(config: &FalconConfig, init: &Init) -> Self {
        let (sizes, norms) = (&config.sizes, config.norms);
        let norm = |wanted: bool| wanted.then(|| sizes.norm(init));
        let attention = FusedAttentionConfig {
            hidden: sizes.hidden,
            heads: sizes.heads,
            key_value_heads: config.key_value_heads,
            bias: config.bias,
        };
        let alibi = config.rope.is_none().then(|| Alibi::falcon(sizes.heads));
        let (hidden, inner) = (sizes.hidden, sizes.inner);
        Self {
            ln_attn: norm(norms == FalconNorms::Two),
            input_layernorm: norm(norms != FalconNorms::Two),
            self_attention: FusedAttention::new(&attention, init).with_alibi(alibi),
            ln_mlp: norm(norms == FalconNorms::Two),
            post_attention_layernorm: norm(norms == FalconNorms::Serial),
            mlp: FeedForward::new(hidden, inner, config.bias, sizes.activation, init),
        }
    }

    /// Takes the residual stream and what is still to be added to it, and gives them.
    fn forward(
        &self,
        Residual { stream: x, pending }: Residual,
        rotation: Option<&Rotation>,
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Residual, Error> {
        let first = self.ln_attn.as_ref().or(self.input_layernorm.as_ref());
        let (x, normed) = match first {
            Some(norm) => norm.after(x, pending),
            None => unreachable!("every block has a norm before attention"),
        };
        let attend = |normed: Tensor<3>, cache: &mut KvCache| {
            self.self_attention.forward(normed, rotation, &pass.query_positions(), cache, index)
        };
        if let Some(norm) = &self.post_attention_layernorm {
            let mixed = attend(normed, cache)?;
            let (x, normed) = norm.after(pass.needed(x), Some(mixed));
            return Ok(Residual { stream: x, pending: Some(self.mlp.forward(normed)) });
        }
        let (mixed, normed) = match &self.ln_mlp {
            Some(norm) => (attend(normed, cache)?, norm.forward(pass.needed(x.clone()))),
            None => (attend(normed.clone(), cache)?, pass.needed(normed)),
        };
        Ok(Residual { stream: pass.needed(x), pending: Some(mixed + self.mlp.forward(normed)) })
    }
}

fn key_value_heads(fields: &Fields<'_>, new: bool, heads: usize) -> Result<usize, Error> {
    let field = "num_kv_heads";
    let many = fields.size_or(field, heads, MAX_HEADS)?;
    let one = fields.flag_or("multi_query", true)?;
    if new && !heads.is_multiple_of(many) || !new && !one && many != heads {
        let expected = match new {
            true => format!("{many} key-value heads must divide num_attention_heads, {heads}"),
            false => format!("without multi_query it must be num_attention_heads, {heads}"),
        };
        return Err(fields.refuse(field, expected));
    }
    Ok(if new || !one { many } else { 1 })
}

fn norms(fields: &Fields<'_>, new: bool) -> Result<FalconNorms, Error> {
    let parallel = fields.flag_or("parallel_attn", true)?;
    let field = "num_ln_in_parallel_attn";
    let count = fields.size_or(field, if new { 2 } else { 1 }, 2)?;
    match (new, parallel, count) {
        (true, false, _) => {
            let expected = "with new_decoder_architecture it must be true".to_owned();
            Err(fields.refuse("parallel_attn", expected))
        }
        (true, true, 2) => Ok(FalconNorms::Two),
        (false, true, 2) => {
            let expected = "without new_decoder_architecture it must be 1".to_owned();
            Err(fields.refuse(field, expected))
        }
        (_, true, _) => Ok(FalconNorms::Shared),
        (false, false, _) => Ok(FalconNorms::Serial),
    }
}

const FIELDS: &[KnownField] = &[
    ("activation", Read),
    ("alibi", Read),
    ("apply_residual_connection_post_layernorm", Effect::OFF),
    ("auto_map", Harmless),
    ("bias", Read),
    ("ffn_hidden_size", Read),
    ("hidden_size", Read),
    ("layer_norm_epsilon", Read),
    ("max_position_embeddings", Read),
    ("multi_query", Read),
    ("n_embed", Read),
    ("new_decoder_architecture", Read),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("num_kv_heads", Read),
    ("num_ln_in_parallel_attn", Read),
    ("original_max_position_embeddings", Read),
    ("parallel_attn", Read),
    ("rope_parameters", Read),
    ("rope_scaling", Read),
    ("rope_theta", Read),
];
