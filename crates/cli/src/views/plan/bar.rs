//! The uses of a device's memory, in proportion.

use super::report::{BlockReport, TierReport};

/// A use of a device's memory, and how it is drawn.
#[derive(Debug, PartialEq, Eq)]
pub struct MemoryUse {
    pub name: &'static str,
    /// The CSS class; that of weights is their device's.
    pub class: &'static str,
    /// The number of an ANSI colour; that of weights is their device's.
    pub colour: Option<u8>,
    /// Its characters in Unicode and in ASCII.
    pub glyphs: [char; 2],
}

pub const WEIGHTS: MemoryUse = memory_use("weights", "", None, ['█', '#']);
pub const FREE: MemoryUse = memory_use("free", "free", Some(90), [' ', ' ']);

const fn memory_use(
    name: &'static str,
    class: &'static str,
    colour: Option<u8>,
    glyphs: [char; 2],
) -> MemoryUse {
    MemoryUse { name, class, colour, glyphs }
}

/// The uses of a device's memory in bytes, without empty ones.
pub fn parts(tier: &TierReport) -> Vec<(MemoryUse, u64)> {
    let held = &tier.held;
    let all = [
        (WEIGHTS, held.weights),
        (memory_use("ring", "ring", Some(36), ['▒', '~']), held.ring),
        (memory_use("KV cache", "kv", Some(35), ['▞', 'k']), held.kv_cache),
        (memory_use("activations", "act", Some(37), ['░', '-']), held.activations),
        (memory_use("process", "proc", Some(37), ['░', '-']), held.other),
        (FREE, tier.free.unwrap_or(0)),
    ];
    all.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
}

/// A part of a device's bar: a use of its memory, or one block of its weights.
pub struct BarSegment<'a> {
    pub of: MemoryUse,
    /// The block's path.
    pub block: Option<&'a str>,
    pub bytes: u64,
    pub length: usize,
    /// Whether it is every other block.
    pub odd: bool,
}

/// Divides a device's bar of `room` cells. Blocks have segments of their own, in the order of
/// execution, if they have `least` cells each on average.
pub fn segments<'a>(
    tier: &TierReport,
    blocks: &'a [BlockReport],
    room: usize,
    least: usize,
) -> Vec<BarSegment<'a>> {
    let share =
        |block: &'a BlockReport| (block, block.shares.get(&tier.held.tier).map_or(0, |n| *n));
    let blocks: Vec<_> = blocks.iter().map(share).filter(|(_, bytes)| *bytes > 0).collect();
    let mut segments = Vec::new();
    for ((of, bytes), length) in apportioned(parts(tier), room) {
        if of != WEIGHTS || blocks.is_empty() || blocks.len() * least > length {
            segments.push(BarSegment { of, block: None, bytes, length, odd: false });
            continue;
        }
        for (at, ((block, bytes), length)) in apportioned(blocks.clone(), length).enumerate() {
            let block = Some(&block.name[..]);
            segments.push(BarSegment { of: WEIGHTS, block, bytes, length, odd: at % 2 == 1 });
        }
    }
    segments
}

/// Things and their sizes, each with its share of `room`.
pub fn apportioned<T>(
    sized: Vec<(T, u64)>,
    room: usize,
) -> impl Iterator<Item = ((T, u64), usize)> {
    let sizes: Vec<u64> = sized.iter().map(|(_, size)| *size).collect();
    sized.into_iter().zip(apportion(&sizes, room))
}

/// Divides `room` in proportion to `weights`. Each weight but zero gets at least one while there is
/// room, the largest first.
fn apportion(weights: &[u64], room: usize) -> Vec<usize> {
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
