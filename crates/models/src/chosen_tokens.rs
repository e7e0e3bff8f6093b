//! Which tokens attention sees, where it does not see all.

/// Which columns each token of a pass sees.
#[derive(Debug, Clone)]
pub(crate) struct ChosenTokens {
    /// Of each sequence's tokens, in ascending order; none sees all that it may.
    columns: Vec<Option<Box<[u32]>>>,
    tokens: usize,
}

impl ChosenTokens {
    /// All that they may.
    pub fn all(batch: usize, tokens: usize) -> Self {
        Self { columns: vec![None; batch * tokens], tokens }
    }

    /// Has a token see these alone.
    pub fn set(&mut self, row: usize, token: usize, columns: Box<[u32]>) {
        self.columns[row * self.tokens + token] = Some(columns);
    }

    /// Of `count` tokens of a sequence from `first` on, what each sees; none sees all that it may.
    pub fn of(&self, row: usize, first: usize, count: usize) -> &[Option<Box<[u32]>>] {
        &self.columns[row * self.tokens + first..][..count]
    }
}
