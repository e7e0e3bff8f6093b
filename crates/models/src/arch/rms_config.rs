//! The configuration of decoders of RMSNorm and rotary positions.

pub use super::rms_parts::{
    BlockNormKind, BlockNorms, BranchScales, ConvolutionConfig, ExpertLayout, ExpertsConfig,
    LayerMixer, QueryKeyNorms, ResidualScales, SinkLayers,
};
use crate::architecture::Init;
use crate::config::Effect::Read;
use crate::config::{
    self, Fields, KnownField, MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE,
    MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, RopeConfig, RopeContext, RopeScaling,
};
use crate::kv_cache::MAX_CONTEXT;
use crate::layers::{
    Activation, Attention, AttentionConfig, AttentionGate, BlockIndexer, BlockIndexerConfig,
    CompressedAttentionConfig, DeltaAttentionConfig, Either, GatedDeltaNetConfig,
    HyperConnectionConfig, LatentAttention, LatentAttentionConfig, LatentChoice, LayerNorm,
    LightningAttentionConfig, Mamba2Config, Mlp, MlpClamp, Norm, QueryGrowth, RmsNorm, Rope,
    Routing, SeenBlocks,
};
use crate::{AttentionCache, CacheLayer, CacheSpec, Error, RecurrentCache};

/// The configuration of a decoder that has Llama's fields. Fields carry the names of `transformers`.
#[derive(Debug, Clone, PartialEq)]
pub struct RmsConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP's inner layer.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Of each layer, query heads, if they are not as many in all.
    pub layer_heads: Option<Vec<usize>>,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// The same of layers with a sliding window, if they have others.
    pub local_key_value_heads: Option<usize>,
    /// Width of one head; even. Not always `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Token ids run from 0 to this, exclusive.
    pub vocab_size: usize,
    /// Added to the mean square in RMSNorm, to the variance in LayerNorm.
    pub rms_norm_eps: f64,
    /// The non-linear function of the MLP.
    pub activation: Activation,
    /// What multiplies what comes of each head of attention, if anything.
    pub attention_gate: Option<AttentionGate>,
    /// The sizes of linear attention, if some layers have it.
    pub linear_attention: Option<GatedDeltaNetConfig>,
    /// The same where its projections are apart.
    pub delta_attention: Option<DeltaAttentionConfig>,
    /// The sizes of lightning attention, if some layers have it.
    pub lightning_attention: Option<LightningAttentionConfig>,
    /// The short convolution of layers that have it in place of attention, if some have.
    pub convolution: Option<ConvolutionConfig>,
    /// The sizes of Mamba-2, if some layers have it.
    pub mamba: Option<Mamba2Config>,
    /// What the branches of a block are multiplied by, in Falcon-H1.
    pub branch_scales: BranchScales,
    /// Of each layer, what makes its tokens know of each other.
    pub mixers: Vec<LayerMixer>,
    /// The sizes of attention over a compressed cache, if it is that.
    pub latent_attention: Option<LatentAttentionConfig>,
    /// Of each layer, which tokens it sees, if an indexer chooses them.
    pub choices: Vec<LatentChoice>,
    /// The sizes of what chooses blocks of tokens, if some layers see such alone.
    pub block_indexer: Option<BlockIndexerConfig>,
    /// Of each layer, whether it is one of these.
    pub indexed_layers: Vec<bool>,
    /// The sizes of attention over the last tokens and entries that stand for blocks of all, if it is that.
    pub compressed_attention: Option<CompressedAttentionConfig>,
    /// Of each layer, which blocks it sees then.
    pub seen_blocks: Vec<SeenBlocks>,
    /// How many layers, the first ones, have experts that a table chooses.
    pub tabled_layers: usize,
    /// Whether the projections to queries, keys and values have a bias.
    pub attention_in_bias: bool,
    /// Whether the projection from attention has a bias.
    pub attention_out_bias: bool,
    /// What checkpoints call parts of blocks otherwise, patterns and what stands in their place, if it is not said with
    /// [experts](ExpertsConfig::renamed).
    pub renamed: &'static [(&'static str, &'static str)],
    /// What stands in checkpoints for `model.layers.$1.self_attn.q_proj.` and the like where the three are one, if they may be.
    pub fused_projections: Option<&'static str>,
    /// Which layers have a [sink](Attention::sinks) for each head of attention.
    pub attention_sinks: SinkLayers,
    /// Width of a head of values and what these are multiplied by, where that is not as of keys.
    pub values: Option<(usize, f64)>,
    /// Whether the MLP's projections have a bias.
    pub mlp_bias: bool,
    /// Of each layer, what gate and up are clamped to, if they are: in its experts, and in other MLPs.
    pub mlp_clamps: Vec<[Option<MlpClamp>; 2]>,
    /// Several residual streams, if there are.
    pub hyper_connections: Option<HyperConnectionConfig>,
    /// Experts in place of an MLP.
    pub experts: Option<ExpertsConfig>,
    /// Of each layer, whether it has experts, if any has.
    pub sparse_layers: Vec<bool>,
    /// Which norms a block has.
    pub norms: BlockNorms,
    /// What kind of norms blocks have, and what comes behind them.
    pub norm_kind: BlockNormKind,
    /// Whether norms scale by one more than their weight.
    pub norm_plus_one: bool,
    /// Norms of queries and keys.
    pub query_key_norms: Option<QueryKeyNorms>,
    /// Scores are divided by the root of this: by default the width of a head.
    pub query_pre_attn_scalar: Option<f64>,
    /// What scores of attention stay below in magnitude, if anything.
    pub attention_softcap: Option<f64>,
    /// What queries, keys and values are clipped to, if they are.
    pub attention_clip: Option<f64>,
    /// What logits stay below in magnitude, if anything.
    pub logit_softcap: Option<f64>,
    /// What embeddings are multiplied by.
    pub embed_scale: Option<f64>,
    /// What attention and MLP give is multiplied by before it is added to the residual stream.
    pub residual_scale: Option<f64>,
    /// What the residual stream and what is added to it are multiplied by in MiniMax-01: behind attention, linear attention and
    /// experts.
    pub residual_scales: [[f64; 2]; 3],
    /// What logits are multiplied by.
    pub logit_scale: Option<f64>,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// The same of layers with a sliding window, if it is another.
    pub local_rope: Option<RopeConfig>,
    /// Whether neighbouring elements of a head are rotated together, as GGUF files of Llama have them.
    pub rope_interleaved: bool,
    /// How queries grow with their position, if they do.
    pub query_growth: Option<QueryGrowth>,
    /// The same of layers that rotate nothing.
    pub unrotated_growth: Option<QueryGrowth>,
    /// Elements of a head that are rotated, the first ones; even.
    pub rotary_dim: usize,
    /// The same of layers with a sliding window, if it is another.
    pub local_rotary_dim: Option<usize>,
    /// Of each layer, whether it rotates queries and keys.
    pub rotated_layers: Vec<bool>,
    /// Of each layer, how many tokens a token sees, itself included; `None` is all before it.
    pub windows: Vec<Option<usize>>,
    /// Whether windows are chunks that texts are cut into: a token sees none of those before its own.
    pub chunked: bool,
    /// Whether the output head has a bias.
    pub head_bias: bool,
    /// Whether the output head is the embedding table.
    pub tie_word_embeddings: bool,
    /// The longest context that the model was trained for, in tokens.
    pub max_position_embeddings: usize,
}

/// What `transformers` takes where a field is absent.
pub(super) struct RmsDefaults<'a> {
    /// Of sizes that a file must have otherwise.
    pub sizes: &'a [(&'a str, usize)],
    /// `None`: as many as heads of queries.
    pub key_value_heads: Option<usize>,
    /// `None`: the residual stream's width over the heads.
    pub head_dim: Option<usize>,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    /// The name of the field that says it.
    pub epsilon: &'static str,
    pub rope_theta: f64,
    /// The name of the field, and what it says if absent.
    pub activation: (&'static str, Activation),
    pub tie_word_embeddings: bool,
}

impl RmsDefaults<'_> {
    /// A size that a file has, or that it has if it says none.
    fn size(&self, fields: &Fields<'_>, field: &str, max: usize) -> Result<usize, Error> {
        match self.sizes.iter().find(|(name, _)| *name == field) {
            Some((_, default)) => fields.size_or(field, *default, max),
            None => fields.size(field, max),
        }
    }
}

/// Those of Llama.
pub(super) const DEFAULTS: RmsDefaults<'static> = RmsDefaults {
    sizes: &[],
    key_value_heads: None,
    head_dim: None,
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-6,
    epsilon: "rms_norm_eps",
    rope_theta: 10_000.0,
    activation: ("hidden_act", Activation::Silu),
    tie_word_embeddings: false,
};

impl RmsConfig {
    /// Reads the fields that all have. What only some have is as in Llama, and the rotary embedding not yet read.
    pub(super) fn read(fields: &Fields<'_>, absent: &RmsDefaults<'_>) -> Result<Self, Error> {
        let inner = absent.size(fields, "intermediate_size", MAX_INTERMEDIATE)?;
        Self::read_with_inner(fields, absent, inner)
    }

    /// The same of a model whose layers have inner layers of several widths.
    pub(super) fn read_with_inner(
        fields: &Fields<'_>,
        absent: &RmsDefaults<'_>,
        intermediate_size: usize,
    ) -> Result<Self, Error> {
        let size = |field, max| absent.size(fields, field, max);
        let hidden_size = size("hidden_size", MAX_HIDDEN)?;
        let heads = size("num_attention_heads", MAX_HEADS)?;
        let num_hidden_layers = size("num_hidden_layers", MAX_LAYERS)?;
        // Absent and null are not the same here.
        let field = "num_key_value_heads";
        let key_value_heads = absent.key_value_heads.filter(|_| !fields.has(field));
        let key_value_heads = fields.size_or(field, key_value_heads.unwrap_or(heads), MAX_HEADS)?;
        if heads % key_value_heads != 0 {
            let default = if fields.has(field) { "" } else { ", as many as there are then," };
            let expected = format!(
                "{key_value_heads} key-value heads{default} must divide num_attention_heads, {heads}"
            );
            return Err(fields.refuse(field, expected));
        }
        let head_dim = match absent.head_dim.filter(|_| fields.get("head_dim").is_none()) {
            Some(width) => width,
            None => head_dim(fields, hidden_size, heads)?,
        };
        let (field, activation) = absent.activation;
        let positions = absent.max_position_embeddings;
        Ok(Self {
            hidden_size,
            intermediate_size,
            num_hidden_layers,
            num_attention_heads: heads,
            layer_heads: None,
            num_key_value_heads: key_value_heads,
            local_key_value_heads: None,
            head_dim,
            vocab_size: size("vocab_size", MAX_VOCAB)?,
            rms_norm_eps: config::epsilon(fields, absent.epsilon, absent.rms_norm_eps)?,
            activation: config::activation(fields, field, activation)?,
            attention_gate: None,
            linear_attention: None,
            delta_attention: None,
            lightning_attention: None,
            convolution: None,
            mamba: None,
            branch_scales: BranchScales::default(),
            mixers: vec![LayerMixer::Attention; num_hidden_layers],
            latent_attention: None,
            choices: vec![LatentChoice::Own; num_hidden_layers],
            block_indexer: None,
            indexed_layers: vec![false; num_hidden_layers],
            compressed_attention: None,
            seen_blocks: vec![SeenBlocks::None; num_hidden_layers],
            tabled_layers: 0,
            attention_in_bias: false,
            attention_out_bias: false,
            renamed: &[],
            fused_projections: None,
            attention_sinks: SinkLayers::None,
            values: None,
            mlp_bias: false,
            mlp_clamps: vec![[None; 2]; num_hidden_layers],
            hyper_connections: None,
            experts: None,
            sparse_layers: vec![true; num_hidden_layers],
            norms: BlockNorms::Before,
            norm_kind: BlockNormKind::Rms,
            norm_plus_one: false,
            query_key_norms: None,
            query_pre_attn_scalar: None,
            attention_softcap: None,
            attention_clip: None,
            logit_softcap: None,
            embed_scale: None,
            residual_scale: None,
            residual_scales: [[1.0; 2]; 3],
            logit_scale: None,
            rope: RopeConfig { theta: absent.rope_theta, scaling: RopeScaling::Default },
            local_rope: None,
            rope_interleaved: false,
            query_growth: None,
            unrotated_growth: None,
            rotary_dim: head_dim,
            local_rotary_dim: None,
            rotated_layers: vec![true; num_hidden_layers],
            windows: vec![None; num_hidden_layers],
            chunked: false,
            head_bias: false,
            tie_word_embeddings: fields
                .flag_or("tie_word_embeddings", absent.tie_word_embeddings)?,
            max_position_embeddings: fields.size_or(
                "max_position_embeddings",
                positions,
                MAX_POSITIONS,
            )?,
        })
    }

    /// The same with the rotary embedding that the file has for all layers.
    pub(super) fn with_rope(self, fields: &Fields<'_>) -> Result<Self, Error> {
        Ok(Self { rope: RopeConfig::read(&self.rope_context(fields))?, ..self })
    }

    /// The same with or without biases in attention, as the file says.
    pub(super) fn with_attention_bias(self, fields: &Fields<'_>) -> Result<Self, Error> {
        let bias = fields.flag_or("attention_bias", false)?;
        Ok(Self { attention_in_bias: bias, attention_out_bias: bias, ..self })
    }

    /// What a rotary embedding is read with.
    pub(super) fn rope_context<'a>(&self, fields: &'a Fields<'a>) -> RopeContext<'a> {
        let Self { head_dim, max_position_embeddings, .. } = *self;
        RopeContext { fields, head_dim, max_position_embeddings, theta: self.rope.theta }
    }

    /// All rotary embeddings of its layers.
    pub(super) fn ropes(&self) -> Vec<Rope> {
        let rope = |(rope, width)| {
            let rope = Rope::new(rope, width).growing(self.query_growth);
            if self.rope_interleaved { rope.interleaved() } else { rope }
        };
        let rotates = self.rotated_layers.contains(&true) || self.unrotated_growth.is_some();
        let local = self.local_rotary_dim.unwrap_or(self.rotary_dim);
        let local = self.local_rope.as_ref().map(|rope| (rope, local));
        let all = [Some((&self.rope, self.rotary_dim)), local].into_iter().flatten();
        let all = all.filter(|_| rotates).map(rope);
        all.chain(self.unrotated_growth.map(Rope::still)).collect()
    }

    /// Which of them the layer of that number takes, if any.
    pub(super) fn rotation(&self, index: usize) -> Option<usize> {
        let is_local = self.local_rope.is_some();
        match self.rotated_layers[index] {
            true => Some(usize::from(is_local && self.windows[index].is_some())),
            false => self.unrotated_growth.map(|_| 1 + usize::from(is_local)),
        }
    }

    /// A norm of so many values.
    pub(super) fn norm(&self, width: usize, init: &Init) -> RmsNorm {
        match self.norm_plus_one {
            true => RmsNorm::plus_one(width, self.rms_norm_eps, init),
            false => RmsNorm::new(width, self.rms_norm_eps, init),
        }
    }

    /// The norm of a block, or of what comes behind all of them.
    pub(super) fn block_norm(&self, init: &Init) -> Norm {
        let hidden = self.hidden_size;
        let layer = LayerNorm::new(hidden, self.rms_norm_eps, init);
        let layer = if self.norm_plus_one { layer.plus_one(init) } else { layer };
        match self.norm_kind {
            BlockNormKind::Rms => Either::One(self.norm(hidden, init)),
            BlockNormKind::Layer { bias: true } => Either::Other(layer),
            BlockNormKind::Layer { bias: false } => Either::Other(layer.unbiased()),
            BlockNormKind::Unweighted => Either::Other(layer.unweighted()),
        }
    }

    /// The attention of the block of that number.
    pub(super) fn attention(
        &self,
        index: usize,
        init: &Init,
    ) -> Either<Attention, LatentAttention> {
        match self.latent_attention {
            Some(latent) => {
                let (hidden, heads) = (self.hidden_size, self.num_attention_heads);
                let attention =
                    LatentAttention::new(hidden, heads, latent, self.attention_in_bias, init);
                Either::Other(attention.choosing(hidden, self.choices[index], init))
            }
            None => Either::One(self.plain_attention(index, init)),
        }
    }

    /// Query heads of the layer of that number.
    fn heads(&self, index: usize) -> usize {
        self.layer_heads.as_ref().map_or(self.num_attention_heads, |heads| heads[index])
    }

    /// Key and value heads of the layer of that number.
    fn key_value_heads(&self, index: usize) -> usize {
        let local = self.local_key_value_heads.filter(|_| self.windows[index].is_some());
        local.unwrap_or(self.num_key_value_heads)
    }

    /// What chooses the blocks of tokens that the layer of that number sees, if anything.
    fn block_indexer(&self, index: usize) -> Option<BlockIndexerConfig> {
        self.block_indexer.filter(|_| self.indexed_layers[index])
    }

    /// The same of a model whose cache is not compressed.
    pub(super) fn plain_attention(&self, index: usize, init: &Init) -> Attention {
        let (hidden, heads) = (self.hidden_size, self.heads(index));
        let shape = AttentionConfig {
            hidden,
            heads,
            key_value_heads: self.key_value_heads(index),
            head_dim: self.head_dim,
            in_bias: self.attention_in_bias,
            out_bias: self.attention_out_bias,
        };
        let mut attention = Attention::new(&shape, init)
            .capped(self.attention_softcap)
            .clipped(self.attention_clip);
        let norms = |widths: [usize; 2]| widths.map(|n| self.norm(n * self.head_dim, init));
        attention = match self.query_key_norms {
            None => attention,
            Some(QueryKeyNorms::EachHead) => attention.normed(norms([1, 1])),
            Some(QueryKeyNorms::EachHeadLfm2) => attention.normed_as_lfm2(norms([1, 1])),
            Some(QueryKeyNorms::EachHeadRotated) => attention.normed_behind(norms([1, 1])),
            Some(QueryKeyNorms::AllHeads) => {
                attention.normed(norms([heads, shape.key_value_heads]))
            }
            Some(QueryKeyNorms::UnitRotated) if self.rotated_layers[index] => {
                attention.normed_to_unit(self.rms_norm_eps)
            }
            Some(QueryKeyNorms::UnitRotated) => attention,
        };
        if let Some((width, scale)) = self.values {
            let scale = (scale != 1.0).then_some(scale);
            attention = attention.with_values(width, scale, &shape, init);
        }
        let has_sinks = match self.attention_sinks {
            SinkLayers::None => false,
            SinkLayers::All => true,
            SinkLayers::Sliding => self.windows[index].is_some(),
        };
        if has_sinks {
            attention = attention.with_sinks(init);
        }
        if let Some(indexer) = self.block_indexer(index) {
            let norms = [(); 2].map(|()| self.norm(indexer.head_dim, init));
            attention = attention.choosing(BlockIndexer::new(hidden, indexer, norms, init));
        }
        if let Some(gate) = self.attention_gate {
            attention = attention.gated(gate, &shape, init);
        }
        match self.query_pre_attn_scalar {
            Some(scalar) => attention.scaled(scalar.sqrt().recip()),
            None => attention,
        }
    }

    /// An MLP of a block, with so many values in its inner layer.
    pub(super) fn mlp(&self, inner: usize, init: &Init) -> Mlp {
        Mlp::new(self.hidden_size, inner, self.mlp_bias, self.activation, init)
    }

    /// The same with experts: so many as `count` says, unless the file says otherwise, of which each token goes to
    /// `per_token`; and the names of these fields.
    pub(super) fn with_experts<const N: usize>(
        self,
        fields: &Fields<'_>,
        names: [&str; N],
        absent: (usize, usize),
        normalized: bool,
    ) -> Result<Self, Error> {
        let field = field_of(fields, names)?;
        let count = (field, fields.size_or(field, absent.0, MAX_EXPERTS)?);
        let field = field_of(fields, ["num_experts_per_tok", "num_experts_per_token"])?;
        let per_token = (field, fields.size_or(field, absent.1, MAX_EXPERTS)?);
        self.with_experts_of(fields, count, per_token, normalized)
    }

    /// The same with so many experts, of which each token goes to `per_token`; and the fields that say so.
    pub(super) fn with_experts_of(
        self,
        fields: &Fields<'_>,
        (field, count): (&str, usize),
        (of_token, per_token): (&str, usize),
        normalized: bool,
    ) -> Result<Self, Error> {
        if count * self.num_hidden_layers > MAX_EXPERTS {
            let expected = format!("all layers may have {MAX_EXPERTS} experts together");
            return Err(fields.refuse(field, expected));
        }
        if per_token > count {
            return Err(fields.refuse(of_token, format!("there are {count} experts")));
        }
        let experts = ExpertsConfig {
            count,
            routing: Routing::softmax(per_token, normalized),
            intermediate_size: self.intermediate_size,
            shared_intermediate_size: None,
            is_mean: false,
            latent_size: None,
            identities: 0,
            is_corrected: false,
            renamed: &[],
            swiglu_limit: None,
            layout: ExpertLayout::Apart,
        };
        Ok(Self { experts: Some(experts), ..self })
    }

    pub(super) fn cache(&self) -> CacheSpec {
        let attention = |[heads, key_value_heads]: [usize; 2], window, choice, indexer| {
            let indexer: Option<BlockIndexerConfig> = indexer;
            match &self.latent_attention {
                None => AttentionCache {
                    heads,
                    // One more is the indexer's.
                    key_value_heads: key_value_heads + usize::from(indexer.is_some()),
                    head_dim: self.head_dim,
                    window,
                    is_chunked: self.chunked,
                    keys_are_values: false,
                    chosen: indexer.map(|indexer| indexer.block.saturating_mul(indexer.top_k)),
                    entries: None,
                },
                Some(latent) => AttentionCache {
                    heads,
                    key_value_heads: 1,
                    head_dim: latent.cached(choice),
                    window,
                    is_chunked: self.chunked,
                    keys_are_values: true,
                    chosen: latent.indexer.map(|indexer| indexer.top_k),
                    entries: None,
                },
            }
        };
        let convolution = self.convolution.map(|convolution| RecurrentCache {
            heads: None,
            channels: self.hidden_size,
            taps: convolution.taps,
        });
        let state = self.linear_attention.map(|linear| linear.state()).or(convolution);
        let state = state.or(self.delta_attention.map(|delta| delta.state()));
        let state = state.or(self.lightning_attention.map(|lightning| lightning.state()));
        let state = state.or(self.mamba.map(|mamba| mamba.state()));
        let layer = |(index, mixer): (usize, &LayerMixer)| {
            let attention = || {
                let heads = [self.heads(index), self.key_value_heads(index)];
                let indexer = self.block_indexer(index);
                let cache = attention(heads, self.windows[index], self.choices[index], indexer);
                match &self.compressed_attention {
                    None => cache,
                    Some(compressed) => AttentionCache {
                        keys_are_values: true,
                        entries: compressed.entries(self.seen_blocks[index]),
                        ..cache
                    },
                }
            };
            let state = state.filter(|_| mixer.has_linear());
            match (state, mixer.has_attention()) {
                (Some(state), true) => CacheLayer::Both(attention(), state),
                (Some(state), false) => CacheLayer::Recurrent(state),
                (None, true) => CacheLayer::Attention(attention()),
                (None, false) => CacheLayer::Nothing,
            }
        };
        let has_linear = self.mixers.iter().any(|mixer| mixer.has_linear());
        let cannot_forget = has_linear.then_some(match self.convolution {
            None => {
                "its linear attention has all tokens in one state, and cannot forget the oldest ones"
            }
            Some(_) => "its convolutions keep what they saw of the oldest tokens",
        });
        let has_entries = self.compressed_attention.is_some();
        let cannot_forget = cannot_forget
            .or(has_entries.then_some("it keeps what stands for blocks of all tokens"));
        let local = self.local_rope.as_ref();
        CacheSpec {
            layers: self.mixers.iter().enumerate().map(layer).collect(),
            cross: Vec::new(),
            trained_context: self.max_position_embeddings,
            longest_context: match self.rope.scaling {
                RopeScaling::Dynamic { .. } => MAX_CONTEXT,
                _ => self.max_position_embeddings,
            },
            cannot_slide: (self.rope.cannot_slide())
                .or(local.and_then(RopeConfig::cannot_slide))
                .or(cannot_forget),
            rescaled_beyond: [Some(&self.rope), local]
                .into_iter()
                .flatten()
                .filter_map(RopeConfig::rescaled_beyond)
                .min(),
            recomputes_keys: false,
        }
    }
}

/// The field that is there of some that mean the same, else the first.
pub(super) fn field_of<'a, const N: usize>(
    fields: &Fields<'_>,
    names: [&'a str; N],
) -> Result<&'a str, Error> {
    let mut there = names.into_iter().filter(|name| fields.get(name).is_some());
    let first = there.next().unwrap_or(names[0]);
    match there.find(|name| fields.get(name) != fields.get(first)) {
        Some(other) => Err(fields.refuse(other, format!("it must be what `{first}` is"))),
        None => Ok(first),
    }
}

/// Width of one head.
fn head_dim(fields: &Fields<'_>, hidden_size: usize, heads: usize) -> Result<usize, Error> {
    let field = match fields.get("head_dim") {
        Some(_) => "head_dim",
        None if hidden_size.is_multiple_of(heads) => "hidden_size",
        None => {
            let expected = format!(
                "without a `head_dim` it must be a multiple of num_attention_heads, {heads}"
            );
            return Err(fields.refuse("hidden_size", expected));
        }
    };
    let width = fields.size_or("head_dim", hidden_size / heads, MAX_HEAD_DIM)?;
    if width == 0 || width % 2 != 0 {
        let expected = format!("the width of a head, {width}, must be even and not 0");
        return Err(fields.refuse(field, expected));
    }
    Ok(width)
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
