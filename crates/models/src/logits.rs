//! Of which positions logits are wanted.

use outsize_kernels::HEAD_TOKENS;

/// The most tokens that a score has beside its own.
pub const MOST_TOP_TOKENS: usize = 20;

/// Positions that have logits of the whole vocabulary at once, where they are scored and the head
/// is not gone through part by part.
pub(crate) const SCORED_AT_ONCE: usize = 4;

/// Values that scoring a position takes besides what logits of few positions take: hidden states of
/// those that have labels, and where they go; logits of some tokens, and their copy; the likeliest
/// tokens.
pub(crate) fn score_values(vocabulary: u64, hidden: u64) -> u64 {
    2 * hidden + 2 * vocabulary.min(HEAD_TOKENS as u64) + 4 * MOST_TOP_TOKENS as u64
}

/// Of which positions logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Logits {
    /// The last one, which is what generating needs.
    Last,
    /// All of this pass.
    All,
    /// All of this pass, of which nothing stays but how likely the next tokens are.
    Scored,
    /// None: hidden states of all positions of this pass.
    Hidden,
}

impl Logits {
    /// How many positions of a pass of `tokens` tokens.
    pub fn positions(self, tokens: usize) -> usize {
        match self {
            Self::Last => tokens.min(1),
            Self::All | Self::Scored | Self::Hidden => tokens,
        }
    }
}
