//! Where the tokens of a pass are.

use std::ops::Range;

use outsize_kernels::attention::Alibi;

/// Where the tokens of a pass are, which decides what they see, and how well.
#[derive(Debug)]
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
}
