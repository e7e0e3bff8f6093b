//! What a forward pass needs besides weights and the KV cache.

use crate::attention::chunk_tokens;
use crate::kv_cache::MAX_CONTEXT;
use crate::{CacheOptions, Logits, ModelConfig, SCORE_BYTES};

/// Bytes of one f32.
const VALUE_BYTES: u64 = 4;

/// What Burn's matrix product keeps for each thread, once and for good: a buffer of the size of its second-level cache.
const PRODUCT_BYTES_PER_THREAD: u64 = 2 << 20;

impl ModelConfig {
    /// An upper bound on the bytes of f32 activations alive at once on a CPU, in a forward pass of `tokens` new tokens that
    /// ends at most at the end of such a cache. Counted with it are the logits asked for, the scratch space of matrix products,
    /// and the copy that is made when a product's weight comes in tiles.
    ///
    /// Grows with `tokens`: a long prompt run in several passes needs less.
    pub fn activation_bytes(&self, tokens: usize, cache: &CacheOptions, logits: Logits) -> u64 {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        self.activation_bytes_on(tokens, cache.context, logits, threads)
    }

    fn activation_bytes_on(
        &self,
        tokens: usize,
        context: usize,
        logits: Logits,
        threads: u64,
    ) -> u64 {
        let context = context.min(MAX_CONTEXT);
        let tokens = tokens.min(context);
        let rows = tokens as u64;
        let (hidden, inner) = (self.hidden_size as u64, self.intermediate_size as u64);
        let (queries, keys) = (self.query_size() as u64, self.key_value_size() as u64);
        let positions = logits.positions(tokens) as u64;

        // Alive throughout a layer: the residual stream, and the rotations.
        let base = rows * (hidden + self.head_dim as u64);
        // The norm's output, queries while they are rotated (half as much again, then twice), then keys and values, of
        // which one is twice there.
        let project = rows * (hidden + queries + (2 * queries).max(3 * keys));
        let attend = rows * 2 * queries + self.attend_chunk_values(tokens, context, threads);
        // The gate and its sigmoid, or the gate and a tiled product with its copy; then the result beside the product.
        let mlp = rows * (hidden + 3 * inner);
        // The last norm's input squared and its output; a tiled product and its copy.
        let head = positions * (2 * hidden + 2 * self.vocab_size as u64);
        let values = base + project.max(attend).max(mlp).max(head);
        values * VALUE_BYTES + threads * PRODUCT_BYTES_PER_THREAD
    }

    /// Values alive while a chunk of queries attends, beside queries and result of the whole pass.
    fn attend_chunk_values(&self, tokens: usize, context: usize, threads: u64) -> u64 {
        let heads = self.num_attention_heads as u64;
        // Chunks are longest at the start, when there are fewest keys; scores are largest wherever they reach the bound.
        let rows = tokens.min(chunk_tokens(self.num_attention_heads, tokens.max(1))) as u64;
        let row = heads * context as u64;
        let scores = (row * tokens as u64)
            .min(SCORE_BYTES as u64 / VALUE_BYTES)
            .max(row);
        // Scores and their softmax; the mask, of one head; queries in groups or the result, each before and after a
        // transposition.
        let chunk = 2 * scores + scores / heads + 2 * rows * self.query_size() as u64;
        // Products pack one head's keys or values for each thread at work, and their queries.
        let packed =
            threads.min(self.num_key_value_heads as u64) * context as u64 * self.head_dim as u64;
        chunk + packed
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
        let bytes =
            |tokens, context, logits| config.activation_bytes_on(tokens, context, logits, 2);
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
        config.activation_bytes_on(usize::MAX, usize::MAX, Logits::All, 1024);
        // The largest that a configuration may ask for.
        config.hidden_size = 1 << 20;
        config.intermediate_size = 1 << 22;
        config.num_attention_heads = 1 << 12;
        config.num_key_value_heads = 1 << 12;
        config.head_dim = 1 << 12;
        config.vocab_size = 1 << 24;
        config.num_hidden_layers = 1 << 12;
        assert!(config.activation_bytes_on(usize::MAX, usize::MAX, Logits::All, 1024) > 1 << 50);
        assert_eq!(
            config.activation_bytes_on(0, 0, Logits::All, 1),
            PRODUCT_BYTES_PER_THREAD
        );
    }
}
