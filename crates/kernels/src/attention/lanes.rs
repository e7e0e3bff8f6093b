//! What attention asks of a vector besides what matmuls ask.

use crate::simd::{F32x4, Vector};
#[cfg(target_arch = "x86_64")]
use crate::simd::{F32x8, F32x16};

/// A vector of f32 lanes that queries or elements of values stand in.
///
/// # Safety
///
/// As for [`Vector`]: the processor has the instructions that the type is for.
pub(super) trait Lanes: Vector {
    /// A vector of half as many lanes, of which there are two in the time of one of these; or this
    /// one.
    type Half: Lanes;

    /// How many vectors of a row of values are summed side by side.
    const WIDE: usize;
}

/// The most lanes of a vector.
pub(super) const MOST_LANES: usize = 16;

impl Lanes for F32x4 {
    type Half = Self;

    const WIDE: usize = 2;
}

#[cfg(target_arch = "x86_64")]
impl Lanes for F32x8 {
    type Half = Self;

    const WIDE: usize = 2;
}

#[cfg(target_arch = "x86_64")]
impl Lanes for F32x16 {
    // Where processors take sixteen lanes at once, half of them would be idle either way.
    type Half = F32x8;

    const WIDE: usize = 4;
}
