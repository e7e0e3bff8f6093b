//! What a KV cache is made for.

use std::fmt;

use burn::tensor::DType;

/// The type in which keys and values are kept. They are rounded to it when they are stored; all
/// arithmetic is f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KvDtype {
    /// As they were computed.
    #[default]
    F32,
    /// Half the memory; 8 significant bits.
    Bf16,
    /// Half the memory; 11 significant bits, magnitudes up to 65,504.
    F16,
}

impl KvDtype {
    /// All of them.
    pub const ALL: &[Self] = &[Self::F32, Self::Bf16, Self::F16];

    /// Bytes of one value.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// Its short name: `f32`, `bf16` or `f16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What happens to a text that is longer than the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WhenFull {
    /// It is an error.
    #[default]
    Refuse,
    /// The oldest tokens are forgotten: every token sees itself and the `context - 1` tokens before
    /// it, which is what a model with a sliding window of `context` tokens does.
    Slide,
    /// It is an error; and a text that ends makes room for another one, which begins while those
    /// beside it go on: see [`KvCache::begin_beside`](crate::KvCache::begin_beside).
    Replace,
}

/// What a KV cache is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheOptions {
    /// Tokens that each text may have; with [`WhenFull::Slide`] tokens that are remembered of it.
    pub context: usize,
    /// Tokens of each prompt that an encoder reads. Their keys and values are not part of the
    /// context; models without an encoder have none.
    pub prompt: usize,
    /// Texts that begin side by side, at most.
    pub batch: usize,
    /// Sequences that each text is continued by at once, as in beam search; 1 without. A prompt is
    /// run once for all of them.
    pub beams: usize,
    /// How keys and values are kept.
    pub dtype: KvDtype,
    /// What happens to a text that is longer than the context.
    pub when_full: WhenFull,
    /// Whether there is memory for a [snapshot](crate::KvCache::snapshot_at): as much again as the
    /// states take, and as the layers take that forget the oldest tokens.
    pub snapshot: bool,
    /// Tokens that can be forgotten again, beside a last one, wherever the text is: so many more
    /// are held of a sliding window.
    pub draft_tokens: usize,
}

impl CacheOptions {
    /// One text of up to `context` tokens, kept in f32; a longer one is refused.
    pub fn new(context: usize) -> Self {
        Self {
            context,
            prompt: 0,
            batch: 1,
            beams: 1,
            dtype: KvDtype::default(),
            when_full: WhenFull::default(),
            snapshot: false,
            draft_tokens: 0,
        }
    }

    /// Sequences that run side by side at most: of each text all beams.
    pub fn sequences(&self) -> usize {
        self.batch.saturating_mul(self.beams)
    }
}

/// How many columns a token of a layer sees, its own included, and how many the layer holds.
pub(crate) fn window_and_capacity(window: Option<usize>, options: &CacheOptions) -> (usize, usize) {
    let (context, most) = match options.when_full {
        WhenFull::Refuse => (usize::MAX, options.context),
        WhenFull::Slide | WhenFull::Replace => (options.context, usize::MAX),
    };
    let window = window.unwrap_or(usize::MAX).min(context);
    (window, window.saturating_add(options.draft_tokens).min(most))
}
