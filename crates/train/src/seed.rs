//! Seeds from several numbers.

/// One seed of several numbers: they differ if any of the numbers does, for all that is likely.
pub(crate) fn mix<const N: usize>(numbers: [u64; N]) -> u64 {
    // SplitMix64 (Steele, Lea, Flood 2014) over a running sum.
    numbers.into_iter().fold(0, |seed, number| {
        let mut mixed = (seed ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}
