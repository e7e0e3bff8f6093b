use serde::{Serialize, Serializer};
use std::fmt;

/// A memory tier, the fastest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Memory of the GPU of this number.
    Gpu(usize),
    /// Main memory.
    Cpu,
    /// The checkpoint's own files.
    Disk,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(number) => write!(f, "gpu{number}"),
            Self::Cpu => f.write_str("cpu"),
            Self::Disk => f.write_str("disk"),
        }
    }
}

impl Serialize for Tier {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
