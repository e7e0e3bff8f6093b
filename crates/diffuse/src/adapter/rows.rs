//! Which rows of a matrix are those of a module.

use std::ops::Range;

/// Rows of a matrix of an adapter that are a module's, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rows {
    pub ranges: Vec<Range<usize>>,
    /// How many the matrix has.
    pub of: usize,
}

impl Rows {
    /// How many are the module's.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// All of `of`.
    pub fn all(of: usize) -> Self {
        Self { ranges: vec![Range { start: 0, end: of }], of }
    }
}
