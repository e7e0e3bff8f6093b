//! Where the tokens of a pass are.

use std::ops::Range;

use burn::tensor::Tensor;
use outsize_kernels::attention::Alibi;

/// Where the tokens of a pass are, which decides what they see, and how well.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueryPositions<'a> {
    /// The column of the first.
    pub start: usize,
    /// Of each sequence, how many columns at the start have no token.
    pub padding: &'a [usize],
    /// Of each sequence, one past the last column that is seen, by those behind it too; if there is
    /// none, a token sees all before it.
    pub lengths: &'a [usize],
    /// Columns that see each other, later ones too: the tokens of an image.
    pub groups: &'a [Range<usize>],
    /// What is added to scores, if anything.
    pub alibi: Option<&'a Alibi>,
    /// The first token that a query is wanted of, and of how many, if not of all.
    pub queries: Option<[usize; 2]>,
    /// Whether nothing is to be made of them but what the cache keeps; what attention gives is of
    /// no use then.
    pub only_kept: bool,
}

impl QueryPositions<'_> {
    /// Of `[batch, tokens, …]` what is of tokens that queries are wanted of; does nothing a second
    /// time.
    pub(crate) fn needed<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match self.queries {
            Some([first, count]) if count < x.dims()[1] => x.narrow(1, first, count),
            _ => x,
        }
    }

    /// The same with queries of all tokens.
    pub(crate) fn of_all(&self) -> Self {
        Self { queries: None, ..*self }
    }

    /// The same of the tokens that queries are wanted of alone.
    pub(crate) fn of_queries(&self) -> Self {
        let skipped = self.queries.map_or(0, |[first, _]| first);
        Self { start: self.start + skipped, queries: None, ..*self }
    }
}
