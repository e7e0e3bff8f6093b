//! Which rows of a matrix are those of a module.

use std::ops::Range;

/// Rows of a matrix of a file that are a module's, in its order.
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

    /// One of several equal parts of a matrix, each of so many rows.
    pub fn part(index: usize, parts: usize, rows: usize) -> Self {
        Self::some(index * rows..(index + 1) * rows, parts.saturating_mul(rows))
    }

    /// The same with the halves of what they are in the other order.
    pub fn halves_turned(self) -> Self {
        let [first, second] = self.ranges;
        if !second.is_empty() {
            return Self { ranges: [second, first], of: self.of };
        }
        let middle = first.start + first.len() / 2;
        Self { ranges: [middle..first.end, first.start..middle], of: self.of }
    }
}
