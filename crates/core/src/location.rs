use std::fmt;

/// Where a parameter's value lies in a checkpoint: a tensor, or one or more of several equal parts
/// of it along its first axis, as PyTorch packs the gates of an LSTM or the three projections of an
/// attention.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    /// The tensor's name.
    pub tensor: String,
    /// Which of the parts, from 0 on.
    pub part: usize,
    /// How many parts there are: 1 for the whole tensor.
    pub parts: usize,
    /// How many of them it takes, one behind the other.
    pub count: usize,
}

impl Location {
    /// The whole tensor of this name.
    pub fn whole(tensor: impl Into<String>) -> Self {
        Self { tensor: tensor.into(), part: 0, parts: 1, count: 1 }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts {
            1 => f.write_str(&self.tensor),
            parts if self.count > 1 => {
                let last = self.part + self.count;
                write!(f, "{} (parts {} to {last} of {parts})", self.tensor, self.part + 1)
            }
            parts => write!(f, "{} (part {} of {parts})", self.tensor, self.part + 1),
        }
    }
}
