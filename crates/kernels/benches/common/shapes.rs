//! The shapes of the weights of llama-1b.

/// `[out, in]` of the weights of a layer, in order of execution.
pub const LAYER: [[usize; 2]; 7] = [
    [2048, 2048],
    [256, 2048],
    [256, 2048],
    [2048, 2048],
    [5632, 2048],
    [5632, 2048],
    [2048, 5632],
];

/// Number of layers.
pub const LAYERS: usize = 22;

/// `[out, in]` of the head.
pub const HEAD: [usize; 2] = [32000, 2048];
