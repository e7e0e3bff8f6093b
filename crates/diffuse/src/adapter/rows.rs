//! Which rows of a matrix are those of a module.

use std::ops::Range;

/// Rows of a matrix of an adapter that are a module's, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rows {
    pub ranges: [Range<usize>; 2],
    /// How many the matrix has.
    pub of: usize,
}

impl Rows {
    /// Those of one range.
    pub fn some(range: Range<usize>, of: usize) -> Self {
        Self { ranges: [range, 0..0], of }
    }

    /// How many are the module's.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// All of `of`.
    pub fn all(of: usize) -> Self {
        Self::some(0..of, of)
    }
}
