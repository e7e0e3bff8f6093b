//! What decoders of RMSNorm and rotary positions have in common: all but their blocks.

use std::fmt::Debug;

use burn::module::{Module, ModuleDisplay};
use burn::tensor::Tensor;
use outsize_core::{Names, Routed};

use super::rms_config::{ExpertsConfig, RmsConfig};
use crate::architecture::{Architecture, Init, MultimodalNames};
use crate::config::{Fields, KnownField};
use crate::decoder::{Decoder, DecoderArchitecture, Head};
use crate::layers::{
    DeltaAttentionConfig, Embedding, GatedDeltaNetConfig, HyperConnection, LearnedFrequencies,
    Linear, Norm, Rope, Rotation, unit_rms_norm,
};
use crate::pass::Pass;
use crate::{
    Activations, BlockInputs, Blocks, CacheLayer, CacheSpec, Error, KvCache, PassShape, Residual,
};

/// A decoder layer, and what its models have besides such layers.
pub trait RmsBlock: Module + ModuleDisplay + Debug + Send + Sync + 'static {
    /// As [`Architecture::MODEL_TYPES`].
    const MODEL_TYPES: &'static [(&'static str, &'static str)];

    /// The name of this class.
    const NO_SPLIT: &'static [&'static str];

    /// As [`CacheSpec::recomputes_keys`].
    const RECOMPUTES_KEYS: bool = false;

    /// What checkpoints call the norm behind all blocks.
    const FINAL_NORM: FinalNormName = FinalNormName::Norm;

    /// What checkpoints call the table of embeddings.
    const EMBEDDINGS: EmbeddingsName = EmbeddingsName::EmbedTokens;

    /// As [`DecoderArchitecture::ATTENTIONS`].
    const ATTENTIONS: usize = 1;

    /// As [`DecoderArchitecture::IS_STACKED`].
    const IS_STACKED: bool = false;

    /// As [`DecoderArchitecture::has_more_layers`].
    fn has_more_layers(_model_type: &str) -> bool {
        false
    }

    /// As [`Architecture::fields`].
    fn fields(model_type: &str) -> &'static [&'static [KnownField]];

    /// As [`Architecture::text_types`].
    fn text_types(_model_type: &str) -> &'static [&'static str] {
        &[]
    }

    /// As [`Architecture::multimodal`].
    fn multimodal(_model_type: &str) -> Option<&'static MultimodalNames> {
        None
    }

    /// As [`Architecture::read`].
    ///
    /// # Errors
    /// As there.
    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error>;

    /// Adds the rules for experts whose weights a checkpoint may have [stacked](Names::stacked).
    ///
    /// # Errors
    /// A rule that is none.
    fn stacked(names: Names, _experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        Ok(names)
    }

    /// Adds rules that depend on what a block is made of.
    ///
    /// # Errors
    /// A rule that is none.
    fn with_parts(&self, names: Names) -> Result<Names, outsize_core::Error> {
        Ok(names)
    }

    /// The block of that number, without storage.
    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self;

    /// Whether a tensor of a block, by its name there, is of no use to it.
    fn is_unused(&self, _name: &str) -> bool {
        false
    }

    /// Takes the residual stream and what is still to be added to it, and gives them, so that each
    /// addition can be made together with the norm behind it.
    ///
    /// # Errors
    /// As [`Decoder::hidden`].
    fn forward(
        &self,
        residual: Residual,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Residual, Error>;

    /// What it holds at most, besides the residual stream and the rotations.
    fn activations(&self, pass: &PassShape) -> Activations;

    /// What it leaves for later blocks until the pass ends, beside the residual stream.
    fn left_for_others(&self, _pass: &PassShape) -> Activations {
        Activations::default()
    }
}

/// What checkpoints call the norm behind all blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalNormName {
    /// `norm`.
    Norm,
    /// `final_layernorm`.
    FinalLayernorm,
    /// `embedding_norm`.
    EmbeddingNorm,
    /// `norm_f`.
    NormF,
}

/// What checkpoints call the table of embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingsName {
    /// `embed_tokens`.
    EmbedTokens,
    /// `embeddings`.
    Embeddings,
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
    /// The epsilon of the norm of embeddings, if they have one.
    #[module(skip)]
    embed_norm: Option<f64>,
    #[module(skip)]
    logit_scale: Option<f64>,
    #[module(skip)]
    logit_softcap: Option<f64>,
    #[module(skip)]
    cache: CacheSpec,
    #[module(skip)]
    experts: Option<ExpertsConfig>,
    #[module(skip)]
    linear_attention: Option<GatedDeltaNetConfig>,
    #[module(skip)]
    delta_attention: Option<DeltaAttentionConfig>,
    #[module(skip)]
    renamed: &'static [(&'static str, &'static str)],
    #[module(skip)]
    fused_projections: Option<&'static str>,
    /// Whether an indexer chooses the tokens that are seen: gradients through what is gathered are
    /// not bounded.
    chooses_tokens: bool,
}

/// Embedding, decoder layers and final norm.
#[derive(Module, Debug)]
pub struct RmsModel<B: Module> {
    /// `[vocabulary, hidden]`.
    pub embed_tokens: Option<Embedding>,
    /// The same where it has this name.
    pub embeddings: Option<Embedding>,
    /// What multiplies rotary frequencies, if that was learned.
    pub rotary_emb: Option<LearnedFrequencies>,
    /// In order of execution.
    pub layers: Vec<B>,
    /// The sum of several residual streams.
    pub hc_head: Option<HyperConnection>,
    /// `[hidden]`.
    pub norm: Option<Norm>,
    /// The same where it has this name.
    pub final_layernorm: Option<Norm>,
    /// The same where it has this one.
    pub embedding_norm: Option<Norm>,
    /// The same where it has this one.
    pub norm_f: Option<Norm>,
}

impl<B: Module> RmsModel<B> {
    fn table(&self) -> &Embedding {
        let table = self.embed_tokens.as_ref().or(self.embeddings.as_ref());
        table.expect("a model is made with one of them")
    }

    /// The norm behind all blocks.
    fn last_norm(&self) -> &Norm {
        let Self { norm, final_layernorm, embedding_norm, norm_f, .. } = self;
        let norms = [norm, final_layernorm, embedding_norm, norm_f];
        norms.into_iter().flatten().next().expect("a model is made with one of them")
    }

    /// How many residual streams there are.
    fn streams(&self) -> usize {
        self.hc_head.as_ref().map_or(1, HyperConnection::streams)
    }
}

impl<B: RmsBlock> Architecture for RmsForCausalLm<B> {
    type Config = RmsConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = B::MODEL_TYPES;
    const CLASS_PREFIX: &'static str = "Rms";
    const NO_SPLIT: &'static [&'static str] = B::NO_SPLIT;
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("ApertusMlp", "ApertusMLP"),
        ("FalconH1Mlp", "FalconH1MLP"),
        ("NemotronHMoe", "NemotronHMoE"),
        ("MuseSparkMoe", "MuseSparkMoE"),
        ("InputScaledRmsNorm", "MuseSparkTextInputScaledRMSNorm"),
        ("ArceeMlp", "ArceeMLP"),
        ("GraniteMoe", "GraniteMoeMoE"),
        ("Xielu", "XIELUActivation"),
        ("ErnieMoeStatics", "Ernie4_5_MoeStatics"),
        ("ErnieSparseMoeBlock", "Ernie4_5_MoeSparseMoeBlock"),
        ("HunyuanGate", "HunYuanMoEV1Gate"),
        ("HunyuanMoe", "HunYuanMoEV1Moe"),
        ("Llama4Moe", "Llama4TextMoe"),
        ("PhiMlp", "PhiMLP"),
        ("Qwen3VlMoeBlock", "Qwen3VLMoeTextSparseMoeBlock"),
        ("Starcoder2Mlp", "Starcoder2MLP"),
        ("HyV4DecoderLayer", "HYV4DecoderLayer"),
        ("DbrxFfn", "DbrxFFN"),
        ("JambaMoe", "JambaSparseMoeBlock"),
        ("HyperConnection", "HYV4HyperConnection"),
        ("LongcatDecoderLayer", "LongcatFlashDecoderLayer"),
        ("LongcatMoe", "LongcatFlashMoE"),
        ("MixtralMoe", "MixtralSparseMoeBlock"),
        ("MixtralExpert", "MixtralMLP"),
        ("LearnedFrequencies", "MistralLarge4TextRotaryEmbedding"),
        ("QueryScaling", "MistralLarge4TextSoftmaxScaling"),
    ];
    const HEADS: &'static [&'static str] = &[
        "ForCausalLM",
        "LMHeadModel",
        "Gemma3ForConditionalGeneration",
        "Llama4ForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "MistralLarge4ForConditionalGeneration",
        "InternVLForConditionalGeneration",
        "Cohere2VisionForConditionalGeneration",
        "AyaVisionForConditionalGeneration",
        "Idefics3ForConditionalGeneration",
        "SmolVLMForConditionalGeneration",
        "Dots3NoteForConditionalGeneration",
        "Kimi_K25ForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
        "Step3p7ForConditionalGeneration",
        "MiniMaxM3SparseForConditionalGeneration",
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "Glm46VForConditionalGeneration",
        "Exaone4_5_ForConditionalGeneration",
        "HYV4VLForConditionalGeneration",
        "MuseGlimmerForConditionalGeneration",
        "MuseSparkForConditionalGeneration",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen2_5OmniForConditionalGeneration",
        "Qwen2_5OmniModel",
        "Qwen3OmniMoeForConditionalGeneration",
    ];
    const IGNORED: &'static [&'static str] = &[
        ".rotary_emb.inv_freq",
        ".act_fn.beta",
        ".act_fn.eps",
        ".self_attn.slope_rate",
        ".self_attn.query_decay",
        ".self_attn.key_decay",
        ".self_attn.diagonal_decay",
    ];
    const WITHOUT_PARAMETERS: &'static [(&'static str, &'static str)] = &[
        ("model.rotary_emb", "RotaryEmbedding"),
        ("model.layers.*.self_attn.rotary_emb", "RotaryEmbedding"),
        ("model.layers.*.rotary_emb", "RotaryEmbedding"),
        ("model.layers.*.mlp.act_fn", "Activation"),
        ("model.layers.*.mlp.activation_fn", "Activation"),
        ("model.layers.*.resid_attn_dropout", "Dropout"),
        ("model.layers.*.resid_mlp_dropout", "Dropout"),
    ];

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        B::fields(model_type)
    }

    fn text_types(model_type: &str) -> &'static [&'static str] {
        B::text_types(model_type)
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        B::multimodal(model_type)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        B::read(model_type, fields)
    }

    fn new(config: &RmsConfig, init: &Init) -> Self {
        let (hidden, vocabulary) = (config.hidden_size, config.vocab_size);
        let layers = 0..config.num_hidden_layers;
        let norm = |name| (B::FINAL_NORM == name).then(|| config.last_norm(init));
        let table =
            |name| (B::EMBEDDINGS == name).then(|| Embedding::new(vocabulary, hidden, init));
        Self {
            model: RmsModel {
                embed_tokens: table(EmbeddingsName::EmbedTokens),
                embeddings: table(EmbeddingsName::Embeddings),
                rotary_emb: (config.learned_frequencies)
                    .then(|| LearnedFrequencies::new(config.rotary_dim, init)),
                layers: layers.map(|index| B::new(config, index, init)).collect(),
                hc_head: (config.hyper_connections)
                    .map(|hyper| HyperConnection::last(hidden, hyper, init)),
                norm: norm(FinalNormName::Norm),
                final_layernorm: norm(FinalNormName::FinalLayernorm),
                embedding_norm: norm(FinalNormName::EmbeddingNorm),
                norm_f: norm(FinalNormName::NormF),
            },
            lm_head: (!config.tie_word_embeddings)
                .then(|| Linear::new(hidden, vocabulary, config.head_bias, init)),
            ropes: config.ropes(),
            embed_scale: config.embed_scale,
            embed_norm: config.embed_norm.then_some(config.rms_norm_eps),
            logit_scale: config.logit_scale,
            logit_softcap: config.logit_softcap,
            experts: config.experts,
            linear_attention: config.linear_attention,
            delta_attention: config.delta_attention,
            renamed: config.renamed,
            fused_projections: config.fused_projections,
            chooses_tokens: config.block_indexer.is_some()
                || config.compressed_attention.is_some()
                || config.latent_attention.is_some_and(|latent| latent.indexer.is_some()),
            cache: CacheSpec { recomputes_keys: B::RECOMPUTES_KEYS, ..config.cache() },
        }
    }
}

impl<B: RmsBlock> DecoderArchitecture for RmsForCausalLm<B> {
    const LAYERS: &'static str = "model.layers";
    const IS_STACKED: bool = B::IS_STACKED;
    const ATTENTIONS: usize = B::ATTENTIONS;

    fn has_more_layers(model_type: &str) -> bool {
        B::has_more_layers(model_type)
    }
}

impl<B: RmsBlock> Decoder for RmsForCausalLm<B> {
    fn is_unused(&self, name: &str) -> bool {
        let block = name.strip_prefix("model.layers.").and_then(|name| name.split_once('.'));
        block.is_some_and(|(index, name)| {
            let index = index.parse().ok();
            let block = index.and_then(|index: usize| self.model.layers.get(index));
            block.is_some_and(|block| block.is_unused(name))
        })
    }

    fn cache(&self) -> &CacheSpec {
        &self.cache
    }

    fn routed(&self, path: &str) -> Option<Routed> {
        // A bias is small enough to stay.
        let experts =
            self.experts.filter(|_| path.contains(".experts.") && !path.ends_with(".bias"));
        experts.map(|experts| experts.routed())
    }

    fn names(&self, names: Names) -> Result<Names, outsize_core::Error> {
        let names = match &self.experts {
            Some(experts) => B::stacked(names, experts)?,
            None => names,
        };
        let names = match self.model.layers.first() {
            Some(block) => block.with_parts(names)?,
            None => names,
        };
        let names = (self.renamed.iter())
            .try_fold(names, |names, (pattern, with)| names.or_rename(pattern, with))?;
        let names = match &self.linear_attention {
            Some(linear) => linear.names(names)?,
            None => names,
        };
        let names = match &self.delta_attention {
            Some(delta) => delta.names(names)?,
            None => names,
        };
        let attention = self.cache.layers.iter().find_map(CacheLayer::attention);
        let (Some(fused), Some(layer)) = (self.fused_projections, attention) else {
            return Ok(names);
        };
        let (queries, keys) = (layer.heads, layer.heads + layer.key_value_heads);
        let all = keys + layer.key_value_heads;
        let rule = |names: Names, (projection, heads)| {
            let pattern = format!(r"^model\.layers\.(\d+)\.self_attn\.{projection}\.");
            names.or_parts(&pattern, fused, heads, all)
        };
        let parts = [("q_proj", 0..queries), ("k_proj", queries..keys), ("v_proj", keys..all)];
        parts.into_iter().try_fold(names, rule)
    }

    fn hidden(&self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<Tensor<3>, Error> {
        let hidden = self.through(pass, cache)?;
        cache.keep_shared()?;
        Ok(hidden)
    }

    fn blocks(&self) -> Option<&dyn Blocks> {
        (!self.chooses_tokens).then_some(self)
    }

    fn head(&self) -> Head<'_> {
        Head::new(self.lm_head.as_ref(), self.model.table())
    }

    fn logit_softcap(&self) -> Option<f64> {
        self.logit_softcap
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let last = self.last_that_keeps();
        let layers = self.model.layers.iter().enumerate();
        let layers = layers.map(|(index, layer)| layer.activations(&pass.of_block(index, last)));
        let most = layers.fold(self.head().activations(pass), Activations::or);
        let left = self.model.layers.iter().map(|layer| layer.left_for_others(pass));
        let most = left.fold(most, Activations::and);
        // Alive throughout: the residual stream, and the rotations.
        let rotations: usize = self.ropes.iter().map(Rope::width).sum();
        let alive = self.model.streams() * self.model.table().width() + rotations;
        let head = self.model.hc_head.as_ref().map(|head| head.activations(pass));
        most.or(head.unwrap_or_default()).and(Activations::values(pass.rows() * alive as u64))
    }
}

impl<B: RmsBlock> Blocks for RmsForCausalLm<B> {
    fn count(&self) -> usize {
        self.model.layers.len()
    }

    fn last_that_keeps(&self) -> usize {
        self.cache.last_that_keeps() / B::ATTENTIONS
    }

    fn inputs(&self, pass: &Pass<'_>) -> Result<BlockInputs, Error> {
        let mut x = pass.embed(self.model.table());
        if let Some(scale) = self.embed_scale {
            x = x * scale;
        }
        if let Some(epsilon) = self.embed_norm {
            x = unit_rms_norm(x, epsilon);
        }
        let x = pass.embed_images(x);
        // All streams begin alike.
        let x = match self.model.streams() {
            1 => x,
            streams => x.repeat_dim(2, streams),
        };
        let learned = self.model.rotary_emb.as_ref();
        let rotation = |rope| match learned {
            Some(learned) => pass.rotation(&learned.applied(rope), &x.device()),
            None => pass.rotation(rope, &x.device()),
        };
        let rotations = self.ropes.iter().map(rotation).collect();
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
        self.model.layers[index].forward(residual, rotations, pass, cache, index)
    }

    fn normed(&self, residual: Residual, pass: &Pass<'_>) -> Tensor<3> {
        let residual = residual.wanted(pass);
        let residual = match &self.model.hc_head {
            Some(head) => Residual::new(head.sum(residual.summed())),
            None => residual,
        };
        let Residual { stream, pending } = residual;
        let x = self.model.last_norm().after(stream, pending).1;
        // Of the head's input, which is narrower than the logits.
        match self.logit_scale {
            Some(scale) => x * scale,
            None => x,
        }
    }
}
