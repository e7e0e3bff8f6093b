//! What a forward pass needs besides weights and the KV cache.

use crate::attention::{WIDEN_BYTES, chunk_tokens};
use crate::kv_cache::{MAX_BATCH, MAX_CONTEXT};
use crate::{CacheOptions, KvDtype, Logits, ModelConfig, SCORE_BYTES, WhenFull};

/// Bytes of one f32.
const VALUE_BYTES: u64 = 4;

/// What Burn's matrix product keeps for each thread, once and for good: a buffer of the size of its second-level cache.
const PRODUCT_BYTES_PER_THREAD: u64 = 2 << 20;

/// Products of up to so many rows of activations pack them: see `outsize_kernels::product`.
const SKINNY_ROWS: u64 = 15;

impl ModelConfig {
    /// An upper bound on the bytes of f32 activations alive at once on a CPU, in a forward pass of `tokens` new tokens of
    /// each text, wherever in such a cache it ends. Counted with it are the logits asked for, the scratch space of matrix
    /// products, and the copy that is made when a product's weight comes in tiles.
    ///
    /// Grows with `tokens`: a long prompt run in several passes needs less.
    pub fn activation_bytes(&self, tokens: usize, cache: &CacheOptions, logits: Logits) -> u64 {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        self.activation_bytes_on(tokens, cache, logits, threads)
    }

    /// What [`Compute::Bf16`](crate::Compute::Bf16) takes besides, in bytes, for passes of `tokens` new tokens of each of `batch` texts: rounded activations
    /// of the widest product.
    pub fn rounded_bytes(&self, tokens: usize, batch: usize) -> u64 {
        let rows = tokens.min(MAX_CONTEXT) as u64 * batch.min(MAX_BATCH) as u64;
        let widest = self
            .hidden_size
            .max(self.intermediate_size)
            .max(self.query_size());
        (rows * widest as u64).saturating_mul(VALUE_BYTES)
    }

    fn activation_bytes_on(
        &self,
        tokens: usize,
        cache: &CacheOptions,
        logits: Logits,
        threads: u64,
    ) -> u64 {
        let cache = CacheOptions {
            context: cache.context.min(MAX_CONTEXT),
            batch: cache.batch.min(MAX_BATCH),
            ..*cache
        };
        let tokens = tokens.min(match cache.when_full {
            WhenFull::Refuse => cache.context,
            WhenFull::Slide => MAX_CONTEXT,
        });
        let rows = tokens as u64 * cache.batch as u64;
        let (hidden, inner) = (self.hidden_size as u64, self.intermediate_size as u64);
        let (queries, keys) = (self.query_size() as u64, self.key_value_size() as u64);
        let positions = logits.positions(tokens) as u64 * cache.batch as u64;

        // Alive throughout a layer: the residual stream, and the rotations.
        let base = rows * (hidden + self.head_dim as u64);
        // The norm's output, queries while they are rotated (half as much again, then twice), then keys and values, of
        // which one is twice there. What a bias makes of them is no more.
        let project = rows * (hidden + queries + (2 * queries).max(3 * keys));
        // A pass that goes past a window's end keeps its keys and values beside the cache.
        let held_back = match self.slides(&cache) {
            true => rows * 2 * keys,
            false => 0,
        };
        let attend =
            rows * 2 * queries + held_back + self.attend_chunk_values(tokens, &cache, threads);
        // Attention's result, its projection and the copy of a tiled product or of a biased one.
        let output = rows * (queries + 2 * hidden);
        // The gate and its sigmoid, or the gate and a tiled or biased product with its copy; then the result beside the
        // product.
        let mlp = rows * (hidden + 3 * inner);
        // The last norm's input squared and its output; a tiled product and its copy.
        let head = positions * (2 * hidden + 2 * self.vocab_size as u64);
        // Products of few rows keep them packed: the widest, padded to vectors.
        let widest = hidden.max(inner).max(queries);
        let packed = rows.min(SKINNY_ROWS) * widest.next_multiple_of(16);
        let values = base + project.max(attend).max(output).max(mlp).max(head) + packed;
        values
            .saturating_mul(VALUE_BYTES)
            .saturating_add(threads * PRODUCT_BYTES_PER_THREAD)
    }

    /// Whether any layer may have to overwrite what a pass still looks at.
    fn slides(&self, cache: &CacheOptions) -> bool {
        cache.when_full == WhenFull::Slide
            || (0..self.num_hidden_layers)
                .filter_map(|layer| self.window(layer))
                .any(|window| window < cache.context)
    }

    /// The most columns that a pass of `tokens` tokens looks at in any layer: what is held and the pass itself.
    fn longest_sight(&self, tokens: usize, cache: &CacheOptions) -> usize {
        let held = |window: Option<usize>| window.unwrap_or(usize::MAX).min(cache.context);
        let held = (0..self.num_hidden_layers)
            .map(|layer| held(self.window(layer)))
            .max()
            .unwrap_or(0);
        match cache.when_full {
            WhenFull::Refuse => (held + tokens).min(cache.context),
            WhenFull::Slide => held + tokens,
        }
    }

    /// Values alive while a chunk of queries attends, beside queries and result of the whole pass.
    fn attend_chunk_values(&self, tokens: usize, cache: &CacheOptions, threads: u64) -> u64 {
        let heads = self.num_attention_heads as u64;
        let (batch, width) = (cache.batch as u64, self.head_dim as u64);
        let sight = self.longest_sight(tokens, cache);
        let all_heads = self.num_attention_heads * cache.batch;
        // Chunks are longest at the start, when there are fewest keys; scores are largest wherever they reach the bound.
        let rows = tokens.min(chunk_tokens(all_heads, tokens.max(1))) as u64 * batch;
        let row = all_heads as u64 * sight as u64;
        let scores = row
            .saturating_mul(tokens as u64)
            .min(SCORE_BYTES as u64 / VALUE_BYTES)
            .max(row);
        // Scores and their softmax; the mask, of one head; queries in groups or the result, each before and after a
        // transposition; the column of each key, in 64 bits.
        let chunk =
            2 * scores + scores / heads + 2 * rows * self.query_size() as u64 + 2 * sight as u64;
        // Products pack one head's keys or values for each thread at work, and their queries.
        let packed = threads.min(self.num_key_value_heads as u64 * batch) * sight as u64 * width;
        // Keys or values in f32, and where they are; one column at least.
        let widened = match cache.dtype {
            KvDtype::F32 => 0,
            KvDtype::Bf16 | KvDtype::F16 => {
                2 * (WIDEN_BYTES as u64 / VALUE_BYTES).max(self.key_value_size() as u64 * batch)
            }
        };
        chunk + packed + widened
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;

    fn config(name: &str) -> ModelConfig {
        ModelConfig::from_json(presets::config(name).unwrap()).unwrap()
    }

    #[test]
    fn grows_with_everything_it_is_given() {
        let config = config("llama-1b");
        let bytes = |tokens, context, logits| {
            config.activation_bytes_on(tokens, &CacheOptions::new(context), logits, 2)
        };
        for tokens in [1, 2, 64, 500, 2047] {
            assert!(
                bytes(tokens, 2048, Logits::Last) < bytes(tokens + 1, 2048, Logits::Last),
                "{tokens}"
            );
            assert!(
                bytes(tokens, 2048, Logits::Last) <= bytes(tokens, 4096, Logits::Last),
                "{tokens}"
            );
            assert!(
                bytes(tokens, 2048, Logits::Last) <= bytes(tokens, 2048, Logits::All),
                "{tokens}"
            );
        }
        // Logits alone.
        assert!(bytes(2048, 2048, Logits::All) > 2048 * 32_000 * 4);
        assert!(bytes(1, 2048, Logits::Last) < 8 << 20);
    }

    #[test]
    fn absurd_arguments_do_not_overflow() {
        let mut config = config("llama-7b");
        let most = CacheOptions {
            context: usize::MAX,
            batch: usize::MAX,
            dtype: KvDtype::F16,
            when_full: WhenFull::Slide,
        };
        config.activation_bytes_on(usize::MAX, &most, Logits::All, 1024);
        // The largest that a configuration may ask for.
        config.hidden_size = 1 << 20;
        config.intermediate_size = 1 << 22;
        config.num_attention_heads = 1 << 12;
        config.num_key_value_heads = 1 << 12;
        config.head_dim = 1 << 12;
        config.vocab_size = 1 << 24;
        config.num_hidden_layers = 1 << 12;
        assert!(config.activation_bytes_on(usize::MAX, &most, Logits::All, 1024) > 1 << 50);
        assert_eq!(
            config.activation_bytes_on(0, &CacheOptions::new(0), Logits::All, 1),
            PRODUCT_BYTES_PER_THREAD
        );
    }
}
