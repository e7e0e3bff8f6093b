//! Small tensors that stay are read in one go with a neighbour in the file.

use outsize_stream::{Chunk, Segment};
use std::ops::Range;

/// A read of fewer bytes than this is joined to that of a neighbour: it takes a disk about as long
/// to answer as to deliver so many bytes.
const SMALL: u64 = 256 << 10;

/// A chunk made of neighbours, with the key of each and its bytes in the chunk.
type Joined<K> = (Chunk, Vec<(K, Range<usize>)>);

/// A chunk that can be joined.
struct Member<'a, K> {
    /// When it is needed.
    turn: usize,
    key: K,
    chunk: &'a Chunk,
    /// All that it is made of.
    segment: &'a Segment,
}

/// Joins small chunks to a chunk that lies right before or behind them in the same file, whichever
/// is needed at a more similar time. `chunks` come in the order of use, each with its key. Only
/// what is of one segment and read straight to its place is joined, and only what is joined is in
/// the result.
pub(crate) fn join<K: Copy>(chunks: &[(K, Chunk)]) -> Vec<Joined<K>> {
    let mut found: Vec<Member<K>> = Vec::new();
    for (turn, (key, chunk)) in chunks.iter().enumerate() {
        if let [segment] = &chunk.segments[..]
            && chunk.keep
            && segment.len > 0
            && !chunk.is_staged()
        {
            found.push(Member { turn, key: *key, chunk, segment });
        }
    }
    found.sort_by_key(|member| (member.segment.source, member.segment.offset));
    // Whether the one at `at` belongs with the one before.
    let adjoins = |at: usize| {
        let before = at.checked_sub(1).and_then(|at| found.get(at));
        let (Some(before), Some(one)) = (before, found.get(at)) else {
            return false;
        };
        let (before, one) = (before.segment, one.segment);
        before.source == one.source && before.offset.checked_add(before.len) == Some(one.offset)
    };
    let far = |one: usize, other: usize| found[one].turn.abs_diff(found[other].turn);
    let mut with_before = vec![false; found.len()];
    for at in 0..found.len() {
        if found[at].segment.len >= SMALL {
            continue;
        }
        let (before, behind) = (adjoins(at), adjoins(at + 1));
        if before && (!behind || far(at - 1, at) <= far(at, at + 1)) {
            with_before[at] = true;
        } else if behind {
            with_before[at + 1] = true;
        }
    }
    // Each small one makes one link, so that a chain of them never reaches from one large one to
    // the next.
    let mut joined = Vec::new();
    let mut first = 0;
    while first < found.len() {
        let mut end = first + 1;
        while end < found.len() && with_before[end] {
            end += 1;
        }
        if end - first > 1 {
            let members = &found[first..end];
            let head = &members[0];
            let names: Vec<&str> = members.iter().map(|member| &*member.chunk.name).collect();
            let chunk = Chunk {
                name: names.join(", ").into(),
                segments: vec![Segment {
                    len: members.iter().map(|member| member.segment.len).sum(),
                    // Blocks ask for none, floats beside them do.
                    align: members.iter().map(|member| member.segment.align).max().unwrap_or(1),
                    ..head.segment.clone()
                }],
                keep: true,
                // One that all passes ask for is read for all of them.
                occasional: members.iter().all(|member| member.chunk.occasional),
            };
            let parts = members.iter().map(|Member { key, segment, .. }| {
                let start = (segment.offset - head.segment.offset) as usize;
                (*key, start..start + segment.len as usize)
            });
            joined.push((chunk, parts.collect()));
        }
        first = end;
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(offset: u64, len: u64) -> Chunk {
        Chunk {
            name: format!("at {offset}").into(),
            segments: vec![Segment { source: 0, offset, len, align: 2, convert: None }],
            keep: true,
            occasional: false,
        }
    }

    const LARGE: u64 = SMALL;

    #[test]
    fn small_ones_go_with_the_neighbour_that_is_needed_next() {
        // In the file: large 0, small 1, large 2, small 3 at the end.
        let small = LARGE + 10;
        let chunks = [
            (2, chunk(small, LARGE)),
            (1, chunk(LARGE, 10)),
            (3, chunk(small + LARGE, 4)),
            (0, chunk(0, LARGE)),
        ];
        let [(chunk, parts)] = &join(&chunks)[..] else { panic!("not one chunk") };
        let large = LARGE as usize;
        assert_eq!(parts[..], [(1, 0..10), (2, 10..10 + large), (3, 10 + large..14 + large)]);
        let segment = &chunk.segments[0];
        assert_eq!((segment.offset, segment.len), (LARGE, LARGE + 14));
        assert!(chunk.name.contains(&format!("at {LARGE}")));
    }

    #[test]
    fn what_does_not_adjoin_or_is_moved_on_its_way_stays_alone() {
        let mut elsewhere = chunk(10, 10);
        elsewhere.segments[0].source = 1;
        let mut streamed = chunk(100, 10);
        streamed.keep = false;
        let mut two = chunk(140, 10);
        two.segments.push(two.segments[0].clone());
        let chunks = [
            (0, chunk(0, 10)),
            (1, elsewhere),
            (2, chunk(20, 11)),
            (3, chunk(31, 9)),
            (4, streamed),
            (5, chunk(110, 10)),
            (8, two),
            (9, chunk(150, 10)),
            (6, chunk(LARGE * 4, LARGE)),
            (7, chunk(LARGE * 5, LARGE)),
        ];
        assert!(join(&chunks).is_empty());
    }
}
