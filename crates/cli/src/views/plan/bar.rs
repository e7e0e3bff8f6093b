//! The uses of a device's memory, in proportion.

use super::report::{BlockReport, TierReport};
use outsize::plan::Tier;

/// A use of a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryUse {
    Weights,
    Ring,
    KvCache,
    Activations,
    Other,
    Free,
}

impl MemoryUse {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Ring => "ring",
            Self::KvCache => "KV cache",
            Self::Activations => "activations",
            Self::Other => "process",
            Self::Free => "free",
        }
    }
}

/// The uses of a device's memory in bytes, without empty ones.
pub fn parts(tier: &TierReport) -> Vec<(MemoryUse, u64)> {
    let held = &tier.held;
    [
        (MemoryUse::Weights, held.weights),
        (MemoryUse::Ring, held.ring),
        (MemoryUse::KvCache, held.kv_cache),
        (MemoryUse::Activations, held.activations),
        (MemoryUse::Other, held.other),
        (MemoryUse::Free, tier.free.unwrap_or(0)),
    ]
    .into_iter()
    .filter(|(_, bytes)| *bytes > 0)
    .collect()
}

/// The blocks that have weights on a device, with their bytes there, in the order of execution.
pub fn on(tier: Tier, blocks: &[BlockReport]) -> Vec<(&BlockReport, u64)> {
    blocks
        .iter()
        .filter_map(|block| {
            let bytes = *block.shares.get(&tier)?;
            (bytes > 0).then_some((block, bytes))
        })
        .collect()
}

/// Divides `room` in proportion to `weights`. Each weight but zero gets at least one while there is
/// room, the largest first.
pub fn apportion(weights: &[u64], room: usize) -> Vec<usize> {
    let mut sorted: Vec<usize> = (0..weights.len()).filter(|at| weights[*at] > 0).collect();
    sorted.sort_by_key(|at| std::cmp::Reverse(weights[*at]));
    sorted.truncate(room);
    let mut shares = vec![0; weights.len()];
    let mut total: u128 = sorted.iter().map(|at| u128::from(weights[*at])).sum();
    let mut left = room;
    // The smallest first, so that what they get beyond their due comes from the larger ones.
    for at in sorted.into_iter().rev() {
        let weight = u128::from(weights[at]);
        let due = (2 * weight * left as u128 + total) / (2 * total);
        shares[at] = usize::try_from(due).unwrap_or(left).clamp(1, left.max(1));
        left -= shares[at].min(left);
        total -= weight;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn room_is_shared_in_proportion() {
        assert_eq!(apportion(&[300, 100], 8), [6, 2]);
        assert_eq!(apportion(&[1, 0, 1_000_000], 10), [1, 0, 9]);
        assert_eq!(apportion(&[5, 6, 7], 2), [0, 1, 1]);
        assert_eq!(apportion(&[0, 0], 9), [0, 0]);
        assert_eq!(apportion(&[u64::MAX, u64::MAX], 4), [2, 2]);
        assert_eq!(apportion(&[], 4), [0; 0]);
    }

    proptest! {
        #[test]
        fn all_of_the_room_is_used(weights in prop::collection::vec(0u64..1_000, 0..20), room in 0usize..200) {
            let shares = apportion(&weights, room);
            let some = weights.iter().filter(|weight| **weight > 0).count();
            prop_assert_eq!(shares.iter().sum::<usize>(), if some > 0 { room } else { 0 });
            for (share, weight) in shares.iter().zip(&weights) {
                prop_assert!(*weight > 0 || *share == 0);
                prop_assert!(*weight == 0 || *share > 0 || some > room);
            }
        }
    }
}
