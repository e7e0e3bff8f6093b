//! Of which positions logits are wanted.

/// Of which positions logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Logits {
    /// The last one, which is what generating needs.
    Last,
    /// All of this pass.
    All,
}

impl Logits {
    /// How many positions of a pass of `tokens` tokens.
    pub fn positions(self, tokens: usize) -> usize {
        match self {
            Self::Last => tokens.min(1),
            Self::All => tokens,
        }
    }
}
