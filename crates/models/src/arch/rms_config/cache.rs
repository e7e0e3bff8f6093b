//! What the cache keeps of its layers.

use super::{LayerMixer, RmsConfig};
use crate::config::{RopeConfig, RopeScaling};
use crate::kv_cache::MAX_CONTEXT;
use crate::layers::KeyValueSource;
use crate::{AttentionCache, CacheLayer, CacheSpec, RecurrentCache};

impl RmsConfig {
    pub(in crate::arch) fn cache(&self) -> CacheSpec {
        let cache_of = |index: usize| {
            let [heads, key_value_heads] = [self.heads(index), self.key_value_heads(index)];
            let (window, indexer) = (self.windows[index], self.block_indexer(index));
            match self.latent(index) {
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
                    head_dim: latent.cached(self.choices[index]),
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
        let state = state.or(self.mamba2.map(|mamba| mamba.state()));
        let state = state.or(self.mamba.map(|mamba| mamba.state()));
        let layer = |(index, mixer): (usize, &LayerMixer)| {
            let attention = || {
                let cache = cache_of(index);
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
                (None, true) => match (self.latent_sources[index], attention()) {
                    // Which keeps nothing, not even for an indexer.
                    (KeyValueSource::Layer(source), AttentionCache { head_dim: 0, .. }) => {
                        CacheLayer::Shared(cache_of(source))
                    }
                    (_, attention) => CacheLayer::Attention(attention),
                },
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
