//! Guessing from the text itself.

/// The longest ending of a text that is looked for earlier in it, in tokens.
const LONGEST: usize = 8;

/// The shortest.
const SHORTEST: usize = 2;

/// Guesses what comes after `text`, at most `count` tokens: what came after its ending the last
/// time, of the longest ending that was there before ([prompt lookup
/// decoding](https://github.com/apoorvumang/prompt-lookup-decoding)). Often nothing.
pub(crate) fn look_up(text: &[u32], count: usize) -> Vec<u32> {
    let end = text.len();
    let same_before = |at: usize| {
        let (before, ending) = (text[..at].iter().rev(), text.iter().rev());
        before.zip(ending).take(LONGEST).take_while(|(a, b)| a == b).count()
    };
    // The last one of those that are as long.
    let best = (SHORTEST..end).map(|at| (same_before(at), at)).max();
    match best {
        Some((length, at)) if length >= SHORTEST => {
            // Beyond the end, a text that repeats goes on repeating.
            (0..count).map(|ahead| text[at + ahead % (end - at)]).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_ending_decides_and_then_the_latest() {
        assert_eq!(look_up(&[], 3).len(), 0);
        assert_eq!(look_up(&[1], 3).len(), 0);
        assert_eq!(look_up(&[1, 2, 3, 4, 5], 3).len(), 0);
        // One token alone says too little.
        assert_eq!(look_up(&[1, 2, 3, 1], 3).len(), 0);
        assert_eq!(look_up(&[1, 2, 3, 9, 1, 2], 2), [3, 9]);
        // 1, 2 was there twice, 7, 1, 2 once.
        assert_eq!(look_up(&[7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 2), [3, 8]);
        assert_eq!(look_up(&[6, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 2), [4, 7]);
        assert_eq!(look_up(&[1, 2, 3, 1, 2], 0).len(), 0);
    }

    #[test]
    fn what_repeats_goes_on_repeating() {
        assert_eq!(look_up(&[5, 5, 5], 4), [5, 5, 5, 5]);
        assert_eq!(look_up(&[3, 1, 2, 3, 1, 2], 7), [3, 1, 2, 3, 1, 2, 3]);
    }
}
