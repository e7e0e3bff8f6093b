//! What a model asks of a KV cache.

use crate::CacheOptions;
use crate::cache_options::window_and_capacity;

/// What a model asks of a KV cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSpec {
    /// In the order of the blocks that they belong to.
    pub layers: Vec<CacheLayer>,
    /// Of the same blocks, keys and values of the prompt, if an encoder reads it: what cross-attention looks at.
    pub cross: Vec<CacheLayer>,
    /// The longest context that the model was trained for, in tokens.
    pub trained_context: usize,
    /// The longest context that it can run, in tokens.
    pub longest_context: usize,
    /// Why a sequence cannot go on beyond its context with the oldest tokens forgotten, if so: "its rotary embedding …".
    pub cannot_slide: Option<&'static str>,
    /// The longest text, in tokens, of which the keys do not depend on how long it is; none if they never do.
    pub rescaled_beyond: Option<usize>,
    /// Whether transformers computes the keys of a text anew when it grows beyond that length while it is generated, rather than
    /// keep those that it has.
    pub recomputes_keys: bool,
}

/// One layer of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLayer {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub key_value_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// How many tokens a token sees, itself included; `None` is all before it.
    pub window: Option<usize>,
    /// Whether keys serve as values too, which are not kept beside them then.
    pub keys_are_values: bool,
}

impl CacheLayer {
    /// Keys and values of one position of one sequence.
    pub fn values(&self) -> u64 {
        let kept = if self.keys_are_values { 1 } else { 2 };
        kept * self.key_value_heads as u64 * self.head_dim as u64
    }

    /// Floating point operations of attention for one token and one position that it sees: scores
    /// and their products with values.
    pub fn attention_flops(&self) -> u64 {
        4 * self.heads as u64 * self.head_dim as u64
    }
}

impl CacheSpec {
    /// The longest text, in tokens, that keeps its keys when it grows longer: one more token, and generation computes all of it
    /// anew. None if texts of any length keep them.
    pub fn recomputed_beyond(&self) -> Option<usize> {
        self.rescaled_beyond.filter(|_| self.recomputes_keys)
    }

    /// How many of the last tokens of a text its next one depends on, itself included, in a cache that is made for `options`:
    /// each layer sees as far back as its window, from what the layer before it made of tokens that saw as far.
    pub fn reach(&self, options: &CacheOptions) -> usize {
        let windows = self.layers.iter();
        let windows = windows.map(|layer| window_and_capacity(layer.window, options).0);
        windows.fold(1, |reach: usize, window| reach.saturating_add(window.saturating_sub(1)))
    }

    /// How many of the last tokens of a prompt are run: as far back as the next token [depends](Self::reach) on them, and all of
    /// them if an encoder reads them.
    pub fn tokens_to_run(&self, prompt: usize, options: &CacheOptions) -> usize {
        if self.cross.is_empty() { prompt.min(self.reach(options)) } else { prompt }
    }

    /// The first difference to what another model asks for, as both have it.
    pub(crate) fn difference(&self, other: &Self) -> Option<(String, String)> {
        let counts = |spec: &Self| (spec.layers.len(), spec.cross.len());
        if counts(self) != counts(other) {
            let count = |spec: &Self| match counts(spec) {
                (layers, 0) => format!("{layers} layers"),
                (layers, cross) => format!("{layers} layers and {cross} of cross-attention"),
            };
            return Some((count(self), count(other)));
        }
        let all = |spec: &Self| spec.layers.iter().chain(&spec.cross).copied().collect::<Vec<_>>();
        let (own, others) = (all(self), all(other));
        let mut pairs = own.iter().zip(&others).enumerate();
        pairs.find_map(|(index, (one, other))| {
            let heads = |layer: &CacheLayer| {
                let (heads, width) = (layer.key_value_heads, layer.head_dim);
                let kind = if layer.keys_are_values { "latent" } else { "key-value" };
                format!("{heads} {kind} heads of width {width} in layer {index}")
            };
            let window = |layer: &CacheLayer| match layer.window {
                Some(window) => format!("a sliding window of {window} tokens in layer {index}"),
                None => format!("no sliding window in layer {index}"),
            };
            let shape =
                |layer: &CacheLayer| (layer.key_value_heads, layer.head_dim, layer.keys_are_values);
            if shape(one) != shape(other) {
                return Some((heads(one), heads(other)));
            }
            (one.window != other.window).then(|| (window(one), window(other)))
        })
    }

    /// Layers that are all alike, without windows, of a model whose sequences can slide on.
    pub fn uniform(
        layers: usize,
        heads: usize,
        key_value_heads: usize,
        head_dim: usize,
        trained_context: usize,
    ) -> Self {
        let layer =
            CacheLayer { heads, key_value_heads, head_dim, window: None, keys_are_values: false };
        Self {
            layers: vec![layer; layers],
            cross: Vec::new(),
            trained_context,
            longest_context: trained_context,
            cannot_slide: None,
            rescaled_beyond: None,
            recomputes_keys: false,
        }
    }
}
