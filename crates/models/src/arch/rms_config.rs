//! The configuration of decoders of RMSNorm and rotary positions.

mod cache;
mod fields;

pub(super) use self::fields::{DEFAULTS, FIELDS, RmsDefaults, field_of};
pub use super::rms_parts::{
    BlockNormKind, BlockNorms, BranchScales, ConvolutionConfig, ExpertLayout, ExpertsConfig,
    LayerMixer, QueryKeyNorms, ResidualScales, SinkLayers,
};
use crate::architecture::Init;
use crate::config::RopeConfig;
use crate::layers::{
    Activation, Attention, AttentionConfig, AttentionGate, BlockIndexer, BlockIndexerConfig,
    CompressedAttentionConfig, DeltaAttentionConfig, Either, GatedDeltaNetConfig,
    HyperConnectionConfig, KeyValueSource, LatentAttention, LatentAttentionConfig, LatentChoice,
    LayerNorm, LightningAttentionConfig, Mamba2Config, Mamba2Mixer, MambaConfig, MambaMixer, Mlp,
    MlpClamp, Norm, QueryGrowth, RmsNorm, Rope, SeenBlocks,
};

/// The configuration of a decoder that has Llama's fields. Fields carry the names of
/// `transformers`.
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
    /// The same in norms of what attention and MLP give, if it is another there.
    pub post_norm_eps: Option<f64>,
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
    pub mamba2: Option<Mamba2Config>,
    /// The sizes of Mamba, if some layers have it.
    pub mamba: Option<MambaConfig>,
    /// What the branches of a block are multiplied by, in Falcon-H1.
    pub branch_scales: BranchScales,
    /// Of each layer, what makes its tokens know of each other.
    pub mixers: Vec<LayerMixer>,
    /// The sizes of attention over a compressed cache, if it is that.
    pub latent_attention: Option<LatentAttentionConfig>,
    /// The same of layers with a sliding window, if they have others.
    pub local_latent: Option<LatentAttentionConfig>,
    /// Of each layer, which tokens it sees, if an indexer chooses them.
    pub choices: Vec<LatentChoice>,
    /// Of each layer, whose keys and values it looks at, if these are compressed.
    pub latent_sources: Vec<KeyValueSource>,
    /// Whether exponents of rotary frequencies were learned; layers that rotate nothing have in
    /// each head of keys what others rotate for all heads.
    pub learned_frequencies: bool,
    /// The sizes of what chooses blocks of tokens, if some layers see such alone.
    pub block_indexer: Option<BlockIndexerConfig>,
    /// Of each layer, whether it is one of these.
    pub indexed_layers: Vec<bool>,
    /// The sizes of attention over the last tokens and entries that stand for blocks of all, if it
    /// is that.
    pub compressed_attention: Option<CompressedAttentionConfig>,
    /// Of each layer, which blocks it sees then.
    pub seen_blocks: Vec<SeenBlocks>,
    /// How many layers, the first ones, have experts that a table chooses.
    pub tabled_layers: usize,
    /// Whether the projections to queries, keys and values have a bias.
    pub attention_in_bias: bool,
    /// Whether the projection from attention has a bias.
    pub attention_out_bias: bool,
    /// What checkpoints call parts of blocks otherwise, patterns and what stands in their place, if
    /// it is not said with [experts](ExpertsConfig::renamed).
    pub renamed: &'static [(&'static str, &'static str)],
    /// What stands in checkpoints for `model.layers.$1.self_attn.q_proj.` and the like where the
    /// three are one, if they may be.
    pub fused_projections: Option<&'static str>,
    /// Which layers have a [sink](Attention::sinks) for each head of attention.
    pub attention_sinks: SinkLayers,
    /// Width of a head of values and what these are multiplied by, where that is not as of keys.
    pub values: Option<(usize, f64)>,
    /// Whether the MLP's projections have a bias.
    pub mlp_bias: bool,
    /// Of each layer, what gate and up are clamped to, if they are: in its experts, and in other
    /// MLPs.
    pub mlp_clamps: Vec<[Option<MlpClamp>; 2]>,
    /// Several residual streams, if there are.
    pub hyper_connections: Option<HyperConnectionConfig>,
    /// Experts in place of an MLP.
    pub experts: Option<ExpertsConfig>,
    /// Of each layer, whether it has experts, if any has.
    pub sparse_layers: Vec<bool>,
    /// Which norms a block has.
    pub norms: BlockNorms,
    /// Width between the two layers of the gates behind norms before attention and experts, if
    /// there are such.
    pub norm_gate_rank: Option<usize>,
    /// What kind of norms blocks have, and what comes behind them.
    pub norm_kind: BlockNormKind,
    /// Whether norms scale by one more than their weight.
    pub norm_plus_one: bool,
    /// Whether the norm behind all blocks scales by its weight alone, whatever others do.
    pub last_norm_plain: bool,
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
    /// Whether embeddings of tokens are normed, without weights.
    pub embed_norm: bool,
    /// What attention and MLP give is multiplied by before it is added to the residual stream.
    pub residual_scale: Option<f64>,
    /// What the residual stream and what is added to it are multiplied by in MiniMax-01: behind
    /// attention, linear attention and experts.
    pub residual_scales: [[f64; 2]; 3],
    /// What gates of residual stream and branches are divided by, in Muse Spark.
    pub residual_gate_temperature: Option<f64>,
    /// What logits are multiplied by.
    pub logit_scale: Option<f64>,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// The same of layers with a sliding window, if it is another.
    pub local_rope: Option<RopeConfig>,
    /// Whether neighbouring elements of a head are rotated together, as GGUF files of Llama have
    /// them.
    pub rope_interleaved: bool,
    /// Whether gates are weights of their own where others have them in one with what they let
    /// through, as in GGUF files.
    pub gates_apart: bool,
    /// Whether heads are rotated the other way.
    pub rope_reversed: bool,
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
    /// Whether windows are chunks that texts are cut into: a token sees none of those before its
    /// own.
    pub chunked: bool,
    /// Whether the output head has a bias.
    pub head_bias: bool,
    /// Whether the output head is the embedding table.
    pub tie_word_embeddings: bool,
    /// The longest context that the model was trained for, in tokens.
    pub max_position_embeddings: usize,
}

impl RmsConfig {
    /// All rotary embeddings of its layers.
    pub(super) fn ropes(&self) -> Vec<Rope> {
        let rope = |(rope, width)| {
            let rope = Rope::new(rope, width).growing(self.query_growth);
            let rope = if self.rope_reversed { rope.reversed() } else { rope };
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

    /// The norm of a block.
    pub(super) fn block_norm(&self, init: &Init) -> Norm {
        let hidden = self.hidden_size;
        let layer = LayerNorm::new(hidden, self.rms_norm_eps, init);
        let layer = if self.norm_plus_one { layer.plus_one(init) } else { layer };
        match self.norm_kind {
            BlockNormKind::Rms => Either::One(self.norm(hidden, init)),
            BlockNormKind::UnweightedRms => Either::One(self.norm(hidden, init).unweighted()),
            BlockNormKind::Layer { bias: true } => Either::Other(layer),
            BlockNormKind::Layer { bias: false } => Either::Other(layer.unbiased()),
            BlockNormKind::UnweightedLayer => Either::Other(layer.unweighted()),
        }
    }

    /// The norm of what attention or MLP of a block gives.
    pub(super) fn post_norm(&self, init: &Init) -> Norm {
        match (self.post_norm_eps, self.block_norm(init)) {
            (Some(epsilon), Either::One(norm)) => Either::One(norm.with_epsilon(epsilon)),
            (_, norm) => norm,
        }
    }

    /// The norm behind all blocks.
    pub(super) fn last_norm(&self, init: &Init) -> Norm {
        match self.last_norm_plain {
            true => Either::One(RmsNorm::new(self.hidden_size, self.rms_norm_eps, init)),
            false => self.block_norm(init),
        }
    }

    /// The sizes of attention over a compressed cache in the block of that number, if it is that.
    pub(super) fn latent(&self, index: usize) -> Option<LatentAttentionConfig> {
        let local = self.local_latent.filter(|_| self.windows[index].is_some());
        let latent = local.or(self.latent_attention)?;
        let latent = LatentAttentionConfig { source: self.latent_sources[index], ..latent };
        Some(match self.learned_frequencies && !self.rotated_layers[index] {
            true => LatentAttentionConfig { plain: latent.query(), rotated: 0, ..latent },
            false => latent,
        })
    }

    /// The attention of the block of that number.
    pub(super) fn attention(
        &self,
        index: usize,
        init: &Init,
    ) -> Either<Attention, LatentAttention> {
        match self.latent(index) {
            Some(latent) => {
                let (hidden, heads) = (self.hidden_size, self.heads(index));
                let attention =
                    LatentAttention::new(hidden, heads, latent, self.attention_in_bias, init);
                Either::Other(attention.choosing(hidden, self.choices[index], init))
            }
            None => Either::One(self.plain_attention(index, init)),
        }
    }

    /// The state space of the block of that number, if it has one.
    pub(super) fn mamba_mixer(
        &self,
        index: usize,
        init: &Init,
    ) -> Option<Either<Mamba2Mixer, MambaMixer>> {
        let hidden = self.hidden_size;
        let mamba2 = self.mamba2.map(|it| Either::One(Mamba2Mixer::new(hidden, &it, init)));
        let mamba = self.mamba.map(|it| Either::Other(MambaMixer::new(hidden, &it, init)));
        mamba2.or(mamba).filter(|_| self.mixers[index].has_linear())
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
            Some(QueryKeyNorms::UnitRotated) if !self.rotated_layers[index] => attention,
            Some(QueryKeyNorms::Unit | QueryKeyNorms::UnitRotated) => {
                attention.normed_to_unit(self.rms_norm_eps)
            }
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
}
