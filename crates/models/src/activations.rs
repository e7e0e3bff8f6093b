//! What a forward pass needs besides weights and the KV cache.

use outsize_kernels::attention::AttentionShape;

use crate::kv_cache::{MAX_BATCH, MAX_CONTEXT};
use crate::{ActivationDtype, CacheOptions, Logits, ModelConfig, WhenFull};

/// Bytes of one f32.
const VALUE_BYTES: u64 = 4;

/// Shapes, ids, lists of tasks and the like.
const SMALL_BYTES: u64 = 256 << 10;

impl ModelConfig {
    /// An upper bound on the bytes of f32 activations alive at once on a CPU, in a forward pass of `tokens` new tokens of
    /// each text, wherever in such a cache it ends. Counted with it are the logits asked for, the scratch space of attention, and
    /// the copy that is made when a product's weight comes in tiles.
    ///
    /// Grows with `tokens`: a long prompt run in several passes needs less.
    pub fn activation_bytes(&self, tokens: usize, cache: &CacheOptions, logits: Logits) -> u64 {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        self.activation_bytes_on(tokens, cache, logits, threads)
    }

    /// What products take besides, in bytes, for passes of `tokens` new tokens of each of `batch` texts: the activations of the widest one as
    /// [`ActivationDtype`] and this processor want them.
    pub fn packed_bytes(&self, compute: ActivationDtype, tokens: usize, batch: usize) -> u64 {
        let rows = tokens.min(MAX_CONTEXT) as u64 * batch.min(MAX_BATCH) as u64;
        let widest = self
            .hidden_size
            .max(self.intermediate_size)
            .max(self.query_size());
        outsize_kernels::matmul::packed_bytes(compute, rows, widest as u64)
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
        // which one is twice there. What a bias makes of them is no more; nor are the three made together, which are rotated in place
        // when the norm's output is gone.
        let project = rows * (hidden + queries + (2 * queries).max(3 * keys));
        // A pass that goes past a window's end keeps its keys and values beside the cache.
        let held_back = match self.slides(&cache) {
            true => rows * 2 * keys,
            false => 0,
        };
        let attend = rows * 2 * queries + held_back;
        // Attention's result, its projection and the copy of a tiled product or of a biased one.
        let output = rows * (queries + 2 * hidden);
        // The gate and its sigmoid, or the gate and a tiled or biased product with its copy; then the result beside the
        // product.
        let mlp = rows * (hidden + 3 * inner);
        // The last norm's input squared and its output; a tiled product and its copy.
        let head = positions * (2 * hidden + 2 * self.vocab_size as u64);
        let values = base + project.max(attend).max(output).max(mlp).max(head);
        let heads = AttentionShape {
            batch: cache.batch,
            tokens,
            heads: self.num_attention_heads,
            key_heads: self.num_key_value_heads,
            width: self.head_dim,
        };
        let sight = self.longest_sight(tokens, &cache);
        values
            .saturating_mul(VALUE_BYTES)
            .saturating_add(heads.scratch_bytes(sight, threads as usize))
            .saturating_add(SMALL_BYTES)
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KvDtype, presets};

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
            config.activation_bytes_on(0, &CacheOptions::new(0), Logits::All, 0),
            SMALL_BYTES
        );
    }
}
