//! What a forward pass needs besides weights and the KV cache.

use outsize_kernels::attention::{AttentionShape, PixelAttentionShape};

use crate::kv_cache::{MAX_BATCH, MAX_CONTEXT};
use crate::logits::SCORED_AT_ONCE;
use crate::{CacheLayer, CacheOptions, CacheSpec, Logits, WhenFull};

/// Bytes of one f32.
const VALUE_BYTES: u64 = 4;

/// Shapes, ids, lists of tasks and the like.
const SMALL_BYTES: u64 = 256 << 10;

/// The shape of a pass, as far as what it holds in activations depends on it.
#[derive(Debug, Clone, Copy)]
pub struct PassShape {
    tokens: usize,
    /// Tokens that an encoder reads of each sequence.
    prompt: usize,
    /// Sequences of the pass.
    batch: usize,
    /// Sequences of a pass over prompts, which are fewer in beam search.
    texts: usize,
    positions: usize,
    /// Of which positions logits are wanted, and for what.
    logits: Logits,
    threads: usize,
    /// The most columns that it looks at in any layer: what is held and the pass itself.
    visible: usize,
    /// Whether activations are kept for gradients.
    learns: bool,
    /// Whether any layer may have to overwrite what the pass still looks at.
    slides: bool,
}

impl PassShape {
    /// A pass of `tokens` new tokens of each text, or of one of each of its beams, wherever in such
    /// a cache it ends.
    pub(crate) fn new(
        tokens: usize,
        spec: &CacheSpec,
        cache: &CacheOptions,
        logits: Logits,
        threads: usize,
    ) -> Self {
        let context = cache.context.min(MAX_CONTEXT);
        let refuse = cache.when_full == WhenFull::Refuse;
        let tokens = tokens.min(if refuse { context } else { MAX_CONTEXT });
        let options = CacheOptions { context, ..*cache };
        let layers = spec.layers.iter();
        let held = layers.map(|layer| {
            let entries = layer.entries().map_or(0, |entries| entries.capacity(&options));
            layer.window_and_capacity(&options).1.saturating_add(entries)
        });
        let held = held.max().unwrap_or(0);
        let windows = spec.layers.iter().filter_map(CacheLayer::window);
        Self {
            tokens,
            prompt: if spec.cross.is_empty() { 0 } else { cache.prompt.min(MAX_CONTEXT) },
            batch: if tokens > 1 { cache.batch } else { cache.sequences() }.min(MAX_BATCH),
            texts: cache.batch.min(MAX_BATCH),
            positions: logits.positions(tokens),
            logits,
            threads,
            learns: false,
            visible: held.saturating_add(tokens).min(if refuse { context } else { usize::MAX }),
            slides: !refuse || windows.into_iter().any(|window| window < context),
        }
    }

    /// A pass of an encoder alone over `rows` texts of `tokens` tokens each.
    pub(crate) fn of_texts(rows: usize, tokens: usize, threads: usize) -> Self {
        let (batch, tokens) = (rows.min(MAX_BATCH), tokens.min(MAX_CONTEXT));
        Self {
            tokens,
            prompt: tokens,
            batch,
            texts: batch,
            positions: 0,
            logits: Logits::Hidden,
            threads,
            visible: tokens,
            learns: false,
            slides: false,
        }
    }

    /// The same pass, keeping what gradients are made of.
    pub(crate) fn learning(self) -> Self {
        Self { learns: true, ..self }
    }

    /// Values that attention of Burn's own operations holds where it is part of a backward pass, in
    /// f32: scores and what is made of them.
    pub(crate) fn score_values(&self, heads: usize) -> u64 {
        /// Tensors of the size of all scores.
        const TENSORS: u64 = 10;
        let scores = self.rows().saturating_mul(heads as u64).saturating_mul(self.visible as u64);
        if self.learns { scores.saturating_mul(TENSORS) } else { 0 }
    }

    /// The same of linear attention, which has a state of so many values after each token.
    pub(crate) fn state_values(&self, values: u64) -> u64 {
        /// Tensors of the size of all states.
        const TENSORS: u64 = 8;
        if self.learns { self.rows().saturating_mul(values).saturating_mul(TENSORS) } else { 0 }
    }

    /// The same pass for a block of a model whose last one that keeps anything is `last`: those
    /// behind it are run for what logits are made of.
    pub(crate) fn of_block(&self, index: usize, last: usize) -> Self {
        match self.logits {
            Logits::Last if index > last => Self { tokens: self.positions, ..*self },
            _ => *self,
        }
    }

    /// The pass of an encoder over the prompt.
    pub fn of_prompt(&self) -> Self {
        let (tokens, batch) = (self.prompt, self.texts);
        Self { tokens, batch, positions: 0, visible: tokens, slides: false, ..*self }
    }

    /// The same pass, looking at the prompt alone.
    pub fn over_prompt(&self) -> Self {
        Self { visible: self.prompt, slides: false, ..*self }
    }

    /// Tokens of each sequence.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens as u64
    }

    /// The most columns that it looks at in any layer.
    pub(crate) fn visible(&self) -> usize {
        self.visible
    }

    /// Tokens of all sequences.
    pub fn rows(&self) -> u64 {
        self.tokens as u64 * self.batch as u64
    }

    /// Positions of all sequences that logits are wanted of.
    pub fn logit_rows(&self) -> u64 {
        self.positions as u64 * self.batch as u64
    }

    /// Of these, those that have logits of the whole vocabulary at once.
    pub(crate) fn whole_logit_rows(&self) -> u64 {
        let rows = self.logit_rows();
        let at_once = SCORED_AT_ONCE.max(self.batch) as u64;
        match self.logits {
            Logits::Last | Logits::All => rows,
            Logits::Scored => rows.min(at_once),
            Logits::Hidden => 0,
        }
    }

    /// Positions of all sequences of which only scores are wanted.
    pub(crate) fn scored_rows(&self) -> u64 {
        if self.logits == Logits::Scored { self.logit_rows() } else { 0 }
    }

    /// Whether the pass may keep its keys and values beside the cache until nothing looks at what
    /// they overwrite.
    pub fn holds_back(&self) -> bool {
        self.slides
    }

    /// The scratch memory of attention, in bytes.
    pub fn attention_scratch(&self, heads: usize, key_heads: usize, width: usize) -> u64 {
        let shape =
            AttentionShape { batch: self.batch, tokens: self.tokens, heads, key_heads, width };
        shape.scratch_bytes(self.visible, self.threads)
    }
}

/// The scratch memory of attention without a cache, in bytes: of `batch` sequences of `tokens`
/// queries over `keys` keys.
pub(crate) fn attention_scratch(
    [batch, tokens, keys]: [usize; 3],
    heads: usize,
    width: usize,
    threads: usize,
) -> u64 {
    let shape = AttentionShape { batch, tokens, heads, key_heads: heads, width };
    shape.scratch_bytes(keys, threads)
}

/// The same of attention of pixels, each of which sees all keys.
pub(crate) fn pixel_attention_scratch(
    [batch, tokens, seen]: [usize; 3],
    heads: usize,
    width: usize,
    threads: usize,
) -> u64 {
    PixelAttentionShape { batch, tokens, seen, heads, width }.scratch_bytes(threads)
}

/// What is alive at once in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activations {
    /// Values in f32.
    values: u64,
    /// Of these, the most that are at once in other memory than the kernels' buffers.
    unpooled: u64,
    /// Scratch memory of attention, which threads keep, in bytes.
    scratch: u64,
}

impl Activations {
    /// So many f32 values.
    pub fn values(values: u64) -> Self {
        Self { values, unpooled: values, scratch: 0 }
    }

    /// Of which no more than so many are at once results of Burn's own operations. The others are
    /// in buffers of the kernels, which can be [used again](outsize_kernels::BufferReuse).
    pub fn with_unpooled(self, unpooled: u64) -> Self {
        Self { unpooled: unpooled.min(self.values), ..self }
    }

    /// With so many bytes of scratch memory that outlive the layer.
    pub fn with_scratch(self, scratch: u64) -> Self {
        Self { scratch, ..self }
    }

    /// What one or the other takes, which are not alive at the same time.
    pub fn or(self, other: Self) -> Self {
        Self {
            values: self.values.max(other.values),
            unpooled: self.unpooled.max(other.unpooled),
            scratch: self.scratch.max(other.scratch),
        }
    }

    /// What it takes more than another one, as values elsewhere than in the kernels' buffers.
    pub(crate) fn beyond(self, other: Self) -> Self {
        Self::values(self.values.saturating_sub(other.values))
    }

    /// What both together take.
    pub fn and(self, other: Self) -> Self {
        Self {
            values: self.values.saturating_add(other.values),
            unpooled: self.unpooled.saturating_add(other.unpooled),
            scratch: self.scratch.saturating_add(other.scratch),
        }
    }

    /// All of it, in bytes.
    pub(crate) fn bytes(self) -> u64 {
        (self.values.saturating_mul(VALUE_BYTES))
            .saturating_add(self.scratch)
            .saturating_add(SMALL_BYTES)
    }

    /// All of it but the kernels' buffers, in bytes.
    pub(crate) fn unpooled_bytes(self) -> u64 {
        Self { values: self.unpooled, ..self }.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KvDtype, ModelConfig, presets};

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
        let config = config("llama-7b");
        let most = CacheOptions {
            context: usize::MAX,
            prompt: usize::MAX,
            batch: usize::MAX,
            beams: usize::MAX,
            dtype: KvDtype::F16,
            when_full: WhenFull::Slide,
            snapshot: true,
            draft_tokens: usize::MAX,
        };
        config.activation_bytes_on(usize::MAX, &most, Logits::All, 1024);
        // The largest that a configuration may ask for.
        let largest = ModelConfig::from_json(
            r#"{"model_type": "llama", "hidden_size": 1048576, "intermediate_size": 4194304, "head_dim": 4096,
                "num_attention_heads": 4096, "num_hidden_layers": 4096, "vocab_size": 16777216}"#,
        );
        let largest = largest.unwrap();
        assert!(largest.activation_bytes_on(usize::MAX, &most, Logits::All, 1024) > 1 << 50);
        assert_eq!(
            config.activation_bytes_on(0, &CacheOptions::new(0), Logits::All, 0),
            SMALL_BYTES
        );
    }
}
