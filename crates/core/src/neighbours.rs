//! Small tensors that stay are read in one go with a neighbour in the file.

use outsize_stream::Chunk;
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

/// A read of fewer bytes than this is joined to that of a neighbour: it takes a disk about as long to answer as to
/// deliver so many bytes.
const SMALL: u64 = 256 << 10;

/// A unit made of neighbours, and where in it one of them lies.
#[derive(Debug, Clone)]
pub(crate) struct Part<K> {
    /// The key of the neighbour that comes first in the file: the same for all parts of the unit.
    pub(crate) of: K,
    pub(crate) unit: Chunk,
    /// In bytes.
    pub(crate) range: Range<usize>,
}

/// Joins small units to a unit that lies right before or behind them in the same file, whichever is needed at a more
/// similar time. `units` come in the order of use, each with its key. Only what is read straight to its place is joined, and
/// only what is joined is in the result.
pub(crate) fn join<K: Copy + Eq + Hash>(units: &[(K, Chunk)]) -> HashMap<K, Part<K>> {
    let mut found: Vec<(usize, &K, &Chunk)> = units
        .iter()
        .enumerate()
        .filter(|(_, (_, unit))| unit.keep && unit.len > 0 && !unit.is_staged())
        .map(|(turn, (key, unit))| (turn, key, unit))
        .collect();
    found.sort_by_key(|(_, _, unit)| (unit.source, unit.offset));
    // Whether the one at `at` belongs with the one before.
    let adjoins = |at: usize| {
        let (Some((_, _, before)), Some((_, _, unit))) = (
            at.checked_sub(1).and_then(|at| found.get(at)),
            found.get(at),
        ) else {
            return false;
        };
        before.source == unit.source && before.offset.checked_add(before.len) == Some(unit.offset)
    };
    let far = |one: usize, other: usize| found[one].0.abs_diff(found[other].0);
    let is_small = |at: usize| found[at].2.len < SMALL;
    let mut with_before = vec![false; found.len()];
    for at in 0..found.len() {
        if !is_small(at) {
            continue;
        }
        let (before, behind) = (adjoins(at), adjoins(at + 1));
        if before && (!behind || far(at - 1, at) <= far(at, at + 1)) {
            with_before[at] = true;
        } else if behind {
            with_before[at + 1] = true;
        }
    }
    // Each small one makes one link, so that a chain of them never reaches from one large one to the next.
    let mut parts = HashMap::new();
    let mut first = 0;
    while first < found.len() {
        let mut end = first + 1;
        while end < found.len() && with_before[end] {
            end += 1;
        }
        if end - first > 1 {
            let members = &found[first..end];
            let (_, of, head) = members[0];
            let names: Vec<&str> = members.iter().map(|(_, _, unit)| &*unit.name).collect();
            let unit = Chunk {
                name: names.join(", ").into(),
                len: members.iter().map(|(_, _, unit)| unit.len).sum(),
                ..head.clone()
            };
            for (_, key, member) in members {
                let start = (member.offset - head.offset) as usize;
                let range = start..start + member.len as usize;
                let part = Part {
                    of: *of,
                    unit: unit.clone(),
                    range,
                };
                parts.insert(**key, part);
            }
        }
        first = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(offset: u64, len: u64) -> Chunk {
        Chunk {
            name: format!("at {offset}").into(),
            source: 0,
            offset,
            len,
            align: 2,
            convert: None,
            keep: true,
        }
    }

    const LARGE: u64 = SMALL;

    #[test]
    fn small_ones_go_with_the_neighbour_that_is_needed_next() {
        // In the file: large 0, small 1, large 2, small 3 at the end.
        let small = LARGE + 10;
        let units = [
            (2, unit(small, LARGE)),
            (1, unit(LARGE, 10)),
            (3, unit(small + LARGE, 4)),
            (0, unit(0, LARGE)),
        ];
        let parts = join(&units);
        assert!(!parts.contains_key(&0));
        for (key, range) in [
            (1, 0..10),
            (2, 10..10 + LARGE as usize),
            (3, 10 + LARGE as usize..14 + LARGE as usize),
        ] {
            let part = &parts[&key];
            assert_eq!((part.of, part.range.clone()), (1, range));
            assert_eq!((part.unit.offset, part.unit.len), (LARGE, LARGE + 14));
        }
        assert!(parts[&3].unit.name.contains(&format!("at {LARGE}")));
    }

    #[test]
    fn what_does_not_adjoin_or_is_moved_on_its_way_stays_alone() {
        let mut elsewhere = unit(10, 10);
        elsewhere.source = 1;
        let mut streamed = unit(100, 10);
        streamed.keep = false;
        let units = [
            (0, unit(0, 10)),
            (1, elsewhere),
            (2, unit(20, 11)),
            (3, unit(31, 9)),
            (4, streamed),
            (5, unit(110, 10)),
            (6, unit(LARGE * 4, LARGE)),
            (7, unit(LARGE * 5, LARGE)),
        ];
        assert!(join(&units).is_empty());
    }
}
