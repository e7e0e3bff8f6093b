//! Scales that stay in memory for weights that are dequantized on the way in.

use std::sync::{Arc, OnceLock};

/// The scales of a weight, once they were read: all of the rows that it needs.
pub(crate) type Scales = Arc<OnceLock<LoadedScales>>;

/// Scales, and zero points of integers.
#[derive(Debug, Default)]
pub(crate) struct LoadedScales {
    pub(crate) scales: Vec<u8>,
    pub(crate) zeros: Vec<u8>,
}
