//! Causal self-attention over the last tokens, and over entries that are made of blocks of all of
//! them.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use outsize_kernels::ActivationDtype;

use super::attention::query_positions::QueryPositions;
use super::attention::scores::Scores;
use super::attention::seen::attend_seen;
use super::chosen_attention::gathered;
use super::compressor::{Compressor, CompressorConfig};
use super::indexer::{best_columns, best_columns_activations};
use super::linear::zeros;
use super::{Linear, RmsNorm, Rope, Rotation, entered, unit_rms_norm};
use crate::chosen_tokens::ChosenTokens;
use crate::kv_cache::{Part, Seen, SeenEntries};
use crate::{Activations, EntryCache, Error, Init, KvCache, PassShape};

/// The sizes of a [`CompressedAttention`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompressedAttentionConfig {
    /// Query heads; all share one of keys, which serve as values.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Elements of a head that are rotated: the last ones.
    pub rotated: usize,
    /// Width of what queries are compressed to.
    pub query_rank: usize,
    /// Groups of heads, each of which is projected by itself …
    pub groups: usize,
    /// … to so many values.
    pub output_rank: usize,
    /// What norms add.
    pub epsilon: f64,
    /// Tokens of an entry where an indexer chooses among them, and where all are seen.
    pub blocks: [usize; 2],
    /// The sizes of that indexer.
    pub indexer: EntryIndexerConfig,
}

/// The sizes of an [`EntryIndexer`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EntryIndexerConfig {
    /// Heads of queries; all share one of keys.
    pub heads: usize,
    /// Width of a head, of which as much is rotated as of attention's.
    pub head_dim: usize,
    /// Entries that a token sees at most.
    pub top_k: usize,
}

/// What a layer of [`CompressedAttention`] sees beside the last tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenBlocks {
    /// Nothing.
    None,
    /// Entries that an indexer chooses.
    Chosen,
    /// All entries, of longer blocks.
    All,
}

impl CompressedAttentionConfig {
    fn compressor(&self, kind: SeenBlocks) -> Option<CompressorConfig> {
        let [chosen, all] = self.blocks;
        let (block, overlaps) = match kind {
            SeenBlocks::None => return None,
            SeenBlocks::Chosen => (chosen, true),
            SeenBlocks::All => (all, false),
        };
        let Self { head_dim: width, rotated, epsilon, .. } = *self;
        Some(CompressorConfig { block, overlaps, width, rotated, epsilon })
    }

    /// The compressor of the indexer's keys, of the same blocks.
    fn indexer_compressor(&self, kind: SeenBlocks) -> Option<CompressorConfig> {
        let compressor = self.compressor(kind).filter(|_| kind == SeenBlocks::Chosen);
        compressor.map(|one| CompressorConfig { width: self.indexer.head_dim, ..one })
    }

    /// The entries that the cache has of a layer.
    pub fn entries(&self, kind: SeenBlocks) -> Option<EntryCache> {
        let own = self.compressor(kind)?.cache();
        let indexer = self.indexer_compressor(kind).map(|one| one.cache());
        let [width, inputs] = indexer.map_or([0; 2], |indexer| [indexer.width, indexer.inputs]);
        Some(EntryCache { width: own.width + width, inputs: own.inputs + inputs, ..own })
    }
}

/// Scores entries, of which attention sees the best: as an [`Indexer`](super::Indexer) does tokens.
#[derive(Module, Debug)]
pub struct EntryIndexer {
    /// Makes keys of the blocks that entries are of.
    pub compressor: Compressor,
    /// `[heads · head_dim, query_rank]`.
    pub q_b_proj: Linear,
    /// `[heads, hidden]`: how much a head counts.
    pub weights_proj: Linear,
    #[module(skip)]
    config: EntryIndexerConfig,
    rotated: usize,
}

impl EntryIndexer {
    fn new(
        hidden: usize,
        compressor: CompressorConfig,
        config: &CompressedAttentionConfig,
        init: &Init,
    ) -> Self {
        let EntryIndexerConfig { heads, head_dim, .. } = config.indexer;
        // Near a tie, rounding would choose another entry.
        let init = &Init { compute: ActivationDtype::F32, ..init.clone() };
        Self {
            compressor: Compressor::new(hidden, compressor, init),
            q_b_proj: Linear::new(config.query_rank, heads * head_dim, false, init),
            weights_proj: Linear::new(hidden, heads, false, init),
            config: config.indexer,
            rotated: config.rotated,
        }
    }

    /// Which entries tokens see, if any of them sees fewer than it may: `[batch, tokens, hidden]`
    /// f32 and compressed queries.
    fn choose(
        &self,
        x: Tensor<3>,
        compressed: Tensor<3>,
        rotation: &Rotation,
        entries: &SeenEntries,
        first: usize,
    ) -> Option<ChosenTokens> {
        let EntryIndexerConfig { heads, head_dim, top_k } = self.config;
        let [batch, tokens, _] = x.dims();
        let sees = |row, token| entries.columns(row, token);
        if (0..batch).all(|row| sees(row, tokens - 1).len() <= top_k) {
            return None;
        }
        let weights = self.weights_proj.forward(x);
        let queries = self.q_b_proj.forward(compressed).reshape([batch, tokens, heads, head_dim]);
        let queries = rotation.apply_behind(head_dim - self.rotated, queries);
        Some(best_columns(queries, weights, &entries.seen, first, top_k, sees))
    }
}

/// Attention whose keys serve as values, over the last tokens and over entries that stand for
/// blocks of tokens ([DeepSeek-AI, 2026](https://huggingface.co/deepseek-ai/DeepSeek-V4-Pro)).
#[derive(Module, Debug)]
pub struct CompressedAttention {
    /// `[query_rank, hidden]`.
    pub q_a_proj: Linear,
    /// `[query_rank]`.
    pub q_a_norm: RmsNorm,
    /// `[heads · head_dim, query_rank]`.
    pub q_b_proj: Linear,
    /// `[head_dim, hidden]`.
    pub kv_proj: Linear,
    /// `[head_dim]`.
    pub kv_norm: RmsNorm,
    /// Of each group of heads, `[output_rank, heads · head_dim / groups]`.
    pub o_a_proj: Vec<Linear>,
    /// `[hidden, groups · output_rank]`.
    pub o_b_proj: Linear,
    /// `[heads]`: scores that take a share of each softmax and give no value.
    pub sinks: Param<Tensor<1>>,
    /// Makes entries, if it sees such.
    pub compressor: Option<Compressor>,
    /// What chooses entries, if not all are seen.
    pub indexer: Option<EntryIndexer>,
    #[module(skip)]
    config: CompressedAttentionConfig,
    #[module(skip)]
    rope: Rope,
}

impl CompressedAttention {
    /// A block without storage, whose queries, keys and entries are rotated by `rope`.
    pub fn new(
        hidden: usize,
        config: CompressedAttentionConfig,
        kind: SeenBlocks,
        rope: Rope,
        init: &Init,
    ) -> Self {
        let CompressedAttentionConfig {
            heads,
            head_dim,
            query_rank,
            groups,
            output_rank,
            epsilon,
            ..
        } = config;
        let linear = |inputs, outputs| Linear::new(inputs, outputs, false, init);
        let compressor = config.compressor(kind);
        let indexer = config.indexer_compressor(kind);
        Self {
            q_a_proj: linear(hidden, query_rank),
            q_a_norm: RmsNorm::new(query_rank, epsilon, init),
            q_b_proj: linear(query_rank, heads * head_dim),
            kv_proj: linear(hidden, head_dim),
            kv_norm: RmsNorm::new(head_dim, epsilon, init),
            o_a_proj: (0..groups).map(|_| linear(heads * head_dim / groups, output_rank)).collect(),
            o_b_proj: linear(groups * output_rank, hidden),
            sinks: zeros(heads, &init.device),
            compressor: compressor.map(|config| Compressor::new(hidden, config, init)),
            indexer: indexer.map(|indexer| EntryIndexer::new(hidden, indexer, &config, init)),
            config,
            rope,
        }
    }

    /// `[batch, tokens, hidden]` f32 to the same. What is kept of the tokens is appended to layer
    /// `layer` of the cache.
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        rotation: &Rotation,
        positions: &QueryPositions<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let CompressedAttentionConfig { heads, head_dim, rotated, groups, epsilon, .. } =
            self.config;
        let plain = head_dim - rotated;
        let x = entered(x, &self.kv_proj.weight);
        let [batch, tokens, _] = x.dims();
        let compressed = self.q_a_norm.forward(self.q_a_proj.forward(x.clone()));
        let queries = self.q_b_proj.forward(compressed.clone());
        let queries = unit_rms_norm(queries.reshape([batch, tokens, heads, head_dim]), epsilon);
        let queries = rotation.apply_behind(plain, queries);
        let kept = self.kv_norm.forward(self.kv_proj.forward(x.clone()));
        let kept = rotation.apply_behind(plain, kept.reshape([batch, tokens, 1, head_dim]));
        let kept = kept.swap_dims(1, 2);
        let seen = cache.see(layer, kept.clone(), kept)?;
        let sinks = self.sinks.val().cast(DType::F32);
        let scores = Scores {
            compute: self.o_b_proj.compute,
            scale: None,
            softcap: None,
            bias: None,
            sinks: Some(&sinks),
        };
        let sums = match &self.compressor {
            None => attend_seen(queries, &seen, positions, scores),
            Some(compressor) => {
                let entries = self.entries(compressor, x.clone(), positions, cache, layer)?;
                let indexer = self.indexer.as_ref();
                let chosen = indexer.and_then(|indexer| {
                    indexer.choose(x.clone(), compressed, rotation, &entries, head_dim)
                });
                attend_beside(queries, &seen, (&entries, chosen), positions, scores)
            }
        };
        cache.keep(layer, seen)?;
        // Values were rotated as keys are: what comes of them is rotated back.
        let sums = sums.to_device(&x.device()).reshape([batch, tokens, heads, head_dim]);
        let sums = rotation.inverse().apply_behind(plain, sums);
        let width = heads * head_dim / groups;
        let sums = sums.reshape([batch, tokens, groups * width]);
        let parts = self.o_a_proj.iter().enumerate();
        let parts =
            parts.map(|(group, layer)| layer.forward(sums.clone().narrow(2, group * width, width)));
        Ok(self.o_b_proj.forward(Tensor::cat(parts.collect(), 2)))
    }

    /// The entries of the cache, with those that a pass of `[batch, tokens, hidden]` f32 makes.
    fn entries(
        &self,
        compressor: &Compressor,
        x: Tensor<3>,
        positions: &QueryPositions<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<SeenEntries, Error> {
        let keys = self.indexer.as_ref().map(|indexer| &indexer.compressor);
        let own = compressor.inputs(x.clone());
        let own_inputs = own.dims()[2];
        let inputs = match keys {
            Some(keys) => Tensor::cat(vec![own, keys.inputs(x)], 2),
            None => own,
        };
        cache.see_entries(layer, positions, inputs, |inputs| {
            let entries = compressor.entries(&inputs, 0, &self.rope);
            match keys {
                Some(keys) => {
                    let keys = keys.entries(&inputs, own_inputs, &self.rope);
                    Tensor::cat(vec![entries, keys], 1)
                }
                None => entries,
            }
        })
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let CompressedAttentionConfig { heads, head_dim, query_rank, groups, output_rank, .. } =
            self.config;
        let hidden = self.kv_proj.widths()[1];
        let queries = heads * head_dim;
        let scratch = pass.attention_scratch(heads, 1, head_dim);
        let of_compressors =
            [self.compressor.as_ref(), self.indexer.as_ref().map(|it| &it.compressor)];
        let inputs: usize =
            of_compressors.into_iter().flatten().map(|one| 2 * one.kv_proj.widths()[0]).sum();
        let indexer = self.indexer.as_ref().filter(|it| pass.visible() > it.config.top_k);
        let indexed = indexer.map_or(Activations::default(), |it| {
            best_columns_activations(pass, it.config.heads, it.config.head_dim)
        });
        // The norm's output; compressed queries with their norm's; queries, their norm's output,
        // their parts and these rotated; keys; what entries are made of, with the parts that it is
        // joined of, its copies in the cache and in blocks.
        let project = 2 * hidden + 2 * query_rank + 4 * queries + 4 * head_dim;
        let waits = hidden + queries + 4 * head_dim;
        let makes = waits + query_rank + hidden + 8 * inputs;
        // What comes of the tokens one by one, with its copy, its parts and these rotated, then of
        // groups.
        let attends = 2 * hidden + 5 * queries + 2 * groups * output_rank;
        let most = pass.rows() * project.max(makes).max(attends) as u64;
        // Of a token what it sees, with the parts.
        let of_token = (3 * pass.visible() * head_dim) as u64;
        let waits = Activations::values(pass.rows() * (waits + query_rank) as u64);
        Activations::values(most + of_token).or(waits.and(indexed)).with_scratch(scratch)
    }
}

/// Attention of queries `[batch, tokens, heads, head_dim]` over tokens in a window and over
/// entries, all or those chosen; gives `[batch, tokens, heads · head_dim]`.
fn attend_beside(
    queries: Tensor<4>,
    seen: &Seen,
    (entries, chosen): (&SeenEntries, Option<ChosenTokens>),
    positions: &QueryPositions<'_>,
    scores: Scores<'_>,
) -> Tensor<3> {
    let [batch, tokens, _, width] = queries.dims();
    let rows = (0..batch).map(|row| {
        let mixed = (0..tokens).map(|token| {
            let keys = |seen: &Seen, columns: &[u32]| {
                gathered(seen, [row, 0], |part| &part.keys, columns).narrow(3, 0, width)
            };
            let all = |columns: std::ops::Range<usize>| -> Box<[u32]> {
                columns.map(|column| column as u32).collect()
            };
            let near = all(positions.columns(row, token, seen.window));
            if near.is_empty() {
                // Of padding.
                let [_, _, heads, width] = queries.dims();
                return Tensor::zeros([1, 1, heads * width], (&queries.device(), DType::F32));
            }
            let far = chosen.as_ref().and_then(|chosen| chosen.of(row, token, 1)[0].clone());
            let far = far.unwrap_or_else(|| all(entries.columns(row, token)));
            let near = keys(seen, &near);
            let kept = match far.is_empty() {
                true => near,
                false => Tensor::cat(vec![near, keys(&entries.seen, &far)], 2),
            };
            let query = queries.clone().narrow(0, row, 1).narrow(1, token, 1);
            let at_once = QueryPositions { padding: &[0], ..Default::default() };
            attend_seen(query, &Seen::whole(Part::of(kept.clone(), kept)), &at_once, scores)
        });
        Tensor::cat(mixed.collect(), 1)
    });
    Tensor::cat(rows.collect(), 0)
}
