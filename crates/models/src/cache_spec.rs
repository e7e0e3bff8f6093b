//! What a model asks of a KV cache.

use outsize_kernels::LinearAttentionHeads;

use crate::cache_options::window_and_capacity;
use crate::{CacheOptions, WhenFull};

/// What a model asks of a KV cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSpec {
    /// In the order of the blocks that they belong to.
    pub layers: Vec<CacheLayer>,
    /// Of the same blocks, keys and values of the prompt, if an encoder reads it: what
    /// cross-attention looks at.
    pub cross: Vec<AttentionCache>,
    /// The longest context that the model was trained for, in tokens.
    pub trained_context: usize,
    /// The longest context that it can run, in tokens.
    pub longest_context: usize,
    /// Why a sequence cannot go on beyond its context with the oldest tokens forgotten, if so: "its
    /// rotary embedding …".
    pub cannot_slide: Option<&'static str>,
    /// The longest text, in tokens, of which the keys do not depend on how long it is; none if they
    /// never do.
    pub rescaled_beyond: Option<usize>,
    /// Whether transformers computes the keys of a text anew when it grows beyond that length while
    /// it is generated, rather than keep those that it has.
    pub recomputes_keys: bool,
}

impl CacheSpec {
    /// The last layer that keeps anything; the first one if none does.
    pub(crate) fn last_that_keeps(&self) -> usize {
        let keeps =
            |layer: &CacheLayer| !matches!(layer, CacheLayer::Shared(_) | CacheLayer::Nothing);
        self.layers.iter().rposition(keeps).unwrap_or(0)
    }
}

/// What one layer keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheLayer {
    /// Keys and values of all tokens in sight.
    Attention(AttentionCache),
    /// Nothing: it looks at keys and values that an earlier layer keeps, which are such.
    Shared(AttentionCache),
    /// As much for a text of any length.
    Recurrent(RecurrentCache),
    /// Both, of attention and a state side by side.
    Both(AttentionCache, RecurrentCache),
    /// Nothing: its tokens do not know of each other.
    Nothing,
}

/// What a layer of attention keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionCache {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub key_value_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// How many tokens a token sees, itself included; `None` is all before it.
    pub window: Option<usize>,
    /// Whether it cuts a text into chunks as long as the window: a token sees none of those before
    /// its own.
    pub is_chunked: bool,
    /// Whether keys serve as values too, which are not kept beside them then.
    pub keys_are_values: bool,
    /// Of how many tokens that a token may see an indexer has it look at, if one chooses.
    pub chosen: Option<usize>,
    /// What it keeps of all tokens beside those in sight, if anything.
    pub entries: Option<EntryCache>,
}

/// What a layer keeps of blocks of consecutive tokens, counted from the first one of a text: of
/// each an entry that is made of all its tokens, and serves as keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryCache {
    /// Tokens of a block.
    pub block: usize,
    /// Tokens that an entry is made of: those of its block, the last ones, and perhaps some before.
    pub span: usize,
    /// Values of an entry.
    pub width: usize,
    /// Values of a token that entries are made of. Those of the last tokens are kept, in f32.
    pub inputs: usize,
}

/// What a layer of linear attention or a convolution keeps of a text, in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecurrentCache {
    /// Heads, of each of which there is a matrix, if there are such.
    pub heads: Option<LinearAttentionHeads>,
    /// Values of an input of the convolution.
    pub channels: usize,
    /// Taps of the convolution: one input less is kept.
    pub taps: usize,
}

impl AttentionCache {
    /// Tokens of a chunk, if texts are cut into chunks.
    pub(crate) fn chunk(&self) -> Option<usize> {
        self.window.filter(|_| self.is_chunked)
    }

    /// Keys and values of one position of one sequence.
    pub fn values(&self) -> u64 {
        let kept = if self.keys_are_values { 1 } else { 2 };
        kept * self.key_value_heads as u64 * self.head_dim as u64
    }

    /// Bytes that one position of all sequences takes.
    pub(crate) fn position_bytes(&self, options: &CacheOptions) -> u64 {
        (self.values() * options.dtype.bytes()).saturating_mul(options.sequences() as u64)
    }

    /// Bytes of all positions and sequences, without a snapshot and entries.
    pub(crate) fn bytes(&self, options: &CacheOptions) -> u64 {
        let (_, capacity) = window_and_capacity(self.window, options);
        self.position_bytes(options).saturating_mul(capacity as u64)
    }

    /// Whether it cannot go back to any token of a text, so that a snapshot is of it too.
    pub(crate) fn forgets(&self, options: &CacheOptions) -> bool {
        forgets(self.window, options)
    }

    /// Floating point operations for one token and one position that it sees: scores and their
    /// products with values.
    pub fn flops(&self) -> u64 {
        4 * self.heads as u64 * self.head_dim as u64
    }
}

/// Whether tokens of a window are overwritten that a text may go back to.
fn forgets(window: Option<usize>, options: &CacheOptions) -> bool {
    let (_, capacity) = window_and_capacity(window, options);
    options.when_full != WhenFull::Refuse || capacity < options.context
}

impl EntryCache {
    /// Entries that there is room for of each sequence.
    pub(crate) fn capacity(&self, options: &CacheOptions) -> usize {
        // Texts that run side by side need not end a block at once.
        options.context / self.block + 1
    }

    /// Bytes of all entries and sequences.
    pub(crate) fn entry_bytes(&self, options: &CacheOptions) -> u64 {
        let entry =
            (self.width as u64 * options.dtype.bytes()).saturating_mul(options.sequences() as u64);
        entry.saturating_mul(self.capacity(options) as u64)
    }

    /// Bytes of what entries are made of, of all sequences, without a snapshot.
    pub(crate) fn input_bytes(&self, options: &CacheOptions) -> u64 {
        let (_, capacity) = window_and_capacity(Some(self.span), options);
        let token = (self.inputs * size_of::<f32>()) as u64;
        token.saturating_mul(options.sequences() as u64).saturating_mul(capacity as u64)
    }

    /// Whether what entries are made of cannot go back to any token of a text, so that a snapshot
    /// is of it too.
    pub(crate) fn forgets(&self, options: &CacheOptions) -> bool {
        forgets(Some(self.span), options)
    }
}

impl RecurrentCache {
    /// Values of one sequence.
    pub fn values(&self) -> u64 {
        let matrices =
            self.heads.map_or(0, |heads| heads.state().iter().map(|&n| n as u64).product());
        matrices + (self.taps as u64 - 1) * self.channels as u64
    }

    /// Bytes of all sequences.
    pub(crate) fn bytes(&self, options: &CacheOptions) -> u64 {
        (self.values() * size_of::<f32>() as u64).saturating_mul(options.sequences() as u64)
    }

    /// Floating point operations for one token.
    pub fn flops(&self) -> u64 {
        let Some(LinearAttentionHeads { value_heads, key_dim, value_dim, .. }) = self.heads else {
            return 2 * self.taps as u64 * self.channels as u64;
        };
        // A matrix is made less, asked twice, and changed.
        7 * value_heads as u64 * key_dim as u64 * value_dim as u64
    }
}

impl CacheLayer {
    /// The keys and values that it looks at.
    pub fn attention(&self) -> Option<&AttentionCache> {
        match self {
            Self::Attention(layer) | Self::Shared(layer) | Self::Both(layer, _) => Some(layer),
            Self::Recurrent(_) | Self::Nothing => None,
        }
    }

    /// Those that it keeps itself.
    pub fn kept_attention(&self) -> Option<&AttentionCache> {
        self.attention().filter(|_| !matches!(self, Self::Shared(_)))
    }

    /// The entries that it keeps.
    pub fn entries(&self) -> Option<&EntryCache> {
        self.kept_attention()?.entries.as_ref()
    }

    /// The state that it keeps.
    pub fn recurrent(&self) -> Option<&RecurrentCache> {
        match self {
            Self::Recurrent(layer) | Self::Both(_, layer) => Some(layer),
            Self::Attention(_) | Self::Shared(_) | Self::Nothing => None,
        }
    }

    /// How many tokens a token sees in keys and values, itself included; `None` is all before it.
    pub fn window(&self) -> Option<usize> {
        self.attention()?.window
    }

    /// Whether the text is cut into chunks of that length.
    fn is_chunked(&self) -> bool {
        self.attention().is_some_and(|layer| layer.chunk().is_some())
    }

    /// The columns that a token sees in keys and values, its own included, and those that are held.
    pub(crate) fn window_and_capacity(&self, options: &CacheOptions) -> (usize, usize) {
        match self.attention() {
            Some(layer) => window_and_capacity(layer.window, options),
            // Its own are part of a state.
            None => (1, 0),
        }
    }

    /// Bytes of all positions and sequences, and of their snapshot.
    pub(crate) fn bytes(&self, options: &CacheOptions) -> u64 {
        let copies = |forgets| 1 + u64::from(options.snapshot && forgets);
        let keys = self
            .kept_attention()
            .map_or(0, |layer| layer.bytes(options).saturating_mul(copies(layer.forgets(options))));
        let state = self.recurrent();
        let state = state.map_or(0, |layer| layer.bytes(options).saturating_mul(copies(true)));
        let entries = self.entries().map_or(0, |entries| {
            let inputs =
                entries.input_bytes(options).saturating_mul(copies(entries.forgets(options)));
            entries.entry_bytes(options).saturating_add(inputs)
        });
        keys.saturating_add(state).saturating_add(entries)
    }

    /// Bytes that a token reads for each position that it sees; of a state alone, for itself.
    pub(crate) fn position_bytes(&self, options: &CacheOptions) -> u64 {
        match (self.attention(), self.recurrent()) {
            (Some(layer), _) => layer.position_bytes(options),
            (None, Some(layer)) => layer.bytes(options),
            (None, None) => 0,
        }
    }

    /// Floating point operations for one token and one position that it sees; of a state alone, for
    /// itself.
    pub fn flops(&self) -> u64 {
        match (self.attention(), self.recurrent()) {
            (Some(layer), _) => layer.flops(),
            (None, Some(layer)) => layer.flops(),
            (None, None) => 0,
        }
    }

    /// What it is, for messages.
    fn described(&self, index: usize) -> String {
        let keys = self.attention().map(|layer| {
            let (heads, width) = (layer.key_value_heads, layer.head_dim);
            let kind = match (self, layer.keys_are_values) {
                (Self::Shared(_), _) => "shared key-value",
                (_, true) => "latent",
                (_, false) => "key-value",
            };
            let entries = layer.entries.map(|EntryCache { block, span, width, inputs }| {
                format!(" with an entry of {width} values for each {block} tokens, of {span} with {inputs} values each")
            });
            let entries = entries.unwrap_or_default();
            format!("{heads} {kind} heads of width {width} in layer {index}{entries}")
        });
        let state = self.recurrent().map(|RecurrentCache { heads, channels, taps }| {
            let convolution =
                format!("a convolution of {taps} tokens of {channels} values in layer {index}");
            let Some(LinearAttentionHeads { key_heads, value_heads, key_dim, value_dim, .. }) =
                heads
            else {
                return convolution;
            };
            let of = format!("{value_heads} matrices of {key_dim} by {value_dim}");
            format!("{of}, {key_heads} heads of keys and {convolution}")
        });
        match (keys, state) {
            (Some(keys), Some(state)) => format!("{keys} beside {state}"),
            (keys, state) => keys.or(state).unwrap_or_else(|| format!("nothing in layer {index}")),
        }
    }
}

impl CacheSpec {
    /// The longest text, in tokens, that keeps its keys when it grows longer: one more token, and
    /// generation computes all of it anew. None if texts of any length keep them.
    pub fn recomputed_beyond(&self) -> Option<usize> {
        self.rescaled_beyond.filter(|_| self.recomputes_keys)
    }

    /// How many of the last tokens of a text its next one depends on, itself included, in a cache
    /// that is made for `options`: each layer sees as far back as its window, from what the layer
    /// before it made of tokens that saw as far.
    pub fn reach(&self, options: &CacheOptions) -> usize {
        let windows = self.layers.iter();
        let windows = windows.map(|layer| match (layer.recurrent(), layer.entries()) {
            (None, None) => layer.window_and_capacity(options).0,
            _ => usize::MAX,
        });
        windows.fold(1, |reach: usize, window| reach.saturating_add(window.saturating_sub(1)))
    }

    /// Whether a conversation is worth a [snapshot](crate::KvCache::snapshot_at) in a cache that is
    /// made for `options`: a state cannot go back without one, not even by a token; windows are
    /// copied if that makes the cache larger by an eighth at most.
    pub fn snapshot_pays(&self, options: &CacheOptions) -> bool {
        let is_recurrent = |layer: &CacheLayer| layer.recurrent().is_some();
        let bytes = |snapshot| {
            let options = CacheOptions { snapshot, ..*options };
            let layers = self.layers.iter().map(|layer| layer.bytes(&options));
            layers.fold(0, u64::saturating_add)
        };
        let more = bytes(true).saturating_sub(bytes(false));
        self.layers.iter().any(is_recurrent) || (1..=bytes(false) / 8).contains(&more)
    }

    /// How many of the last tokens of a prompt are run: as far back as the next token
    /// [depends](Self::reach) on them, and all of them if an encoder reads them.
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
        let all = |spec: &Self| -> Vec<CacheLayer> {
            let cross = spec.cross.iter().copied().map(CacheLayer::Attention);
            spec.layers.iter().copied().chain(cross).collect()
        };
        let (own, others) = (all(self), all(other));
        let mut pairs = own.iter().zip(&others).enumerate();
        pairs.find_map(|(index, (one, other))| {
            let (of_one, of_other) = (one.described(index), other.described(index));
            if of_one != of_other {
                return Some((of_one, of_other));
            }
            let window = |layer: &CacheLayer| match (layer.window(), layer.is_chunked()) {
                (Some(window), true) => format!("chunks of {window} tokens in layer {index}"),
                (Some(window), _) => {
                    format!("a sliding window of {window} tokens in layer {index}")
                }
                (None, _) => format!("no sliding window in layer {index}"),
            };
            let (one, other) = (window(one), window(other));
            (one != other).then_some((one, other))
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
        let layer = AttentionCache {
            heads,
            key_value_heads,
            head_dim,
            window: None,
            is_chunked: false,
            keys_are_values: false,
            chosen: None,
            entries: None,
        };
        Self {
            layers: vec![CacheLayer::Attention(layer); layers],
            cross: Vec::new(),
            trained_context,
            longest_context: trained_context,
            cannot_slide: None,
            rescaled_beyond: None,
            recomputes_keys: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_other_sizes_are_told_apart() {
        let heads = LinearAttentionHeads {
            key_heads: 2,
            value_heads: 4,
            key_dim: 6,
            value_dim: 5,
            in_turns: false,
        };
        let spec = |heads, taps| CacheSpec {
            layers: vec![CacheLayer::Recurrent(RecurrentCache {
                heads: Some(heads),
                channels: heads.channels(),
                taps,
            })],
            ..CacheSpec::uniform(0, 1, 1, 2, 8)
        };
        let one = spec(heads, 4);
        assert_eq!(one.difference(&spec(heads, 4)), None);
        for other in [
            spec(heads, 3),
            spec(LinearAttentionHeads { key_heads: 4, ..heads }, 4),
            spec(LinearAttentionHeads { value_heads: 8, ..heads }, 4),
            spec(LinearAttentionHeads { key_dim: 7, ..heads }, 4),
            spec(LinearAttentionHeads { value_dim: 6, ..heads }, 4),
        ] {
            assert!(one.difference(&other).is_some(), "{other:?}");
        }
    }
}
