//! Which rows of a state a pass goes on with.

/// Which rows of a state are those of the texts of a pass, and where in the pass these begin. A
/// text that begins finds a state of zeros, whatever its row holds; before that there is nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StateRows {
    /// The row of the first text; the others follow.
    pub first: usize,
    /// Of each text, the column of the pass that it begins in; none if it did before.
    pub begins: Vec<Option<usize>>,
}
