//! Lines of mpirun: which rank wrote them, or what mpirun itself says.

use std::collections::BTreeMap;

/// Puts together the lines of each rank, which mpirun marks with `[JOB,RANK]<stream>:` before
/// whatever came at once: a line that is not ended may have another rank's mark behind it.
#[derive(Debug, Default)]
pub(crate) struct RankLines {
    /// What has come of lines that are not ended, by rank.
    open: BTreeMap<usize, Vec<u8>>,
}

impl RankLines {
    /// Takes a line of mpirun without its end, and hands on the lines that it completes: of a rank,
    /// or of mpirun.
    pub fn take(&mut self, line: &[u8], mut complete: impl FnMut(Option<usize>, &[u8])) {
        let Some((mut rank, mut start)) = mark(line) else {
            return complete(None, line);
        };
        while let Some((at, (next, length))) =
            (start..line.len()).find_map(|at| Some((at, mark(&line[at..])?)))
        {
            self.open.entry(rank).or_default().extend(&line[start..at]);
            (rank, start) = (next, at + length);
        }
        let mut text = self.open.remove(&rank).unwrap_or_default();
        text.extend(&line[start..]);
        complete(Some(rank), &text);
    }

    /// Hands on what was never ended.
    pub fn end(self, mut complete: impl FnMut(Option<usize>, &[u8])) {
        self.open.iter().for_each(|(rank, text)| complete(Some(*rank), text));
    }
}

/// The rank of a mark at the start, and the mark's length.
fn mark(text: &[u8]) -> Option<(usize, usize)> {
    let rest = text.strip_prefix(b"[")?;
    let close = rest.iter().take(32).position(|byte| *byte == b']')?;
    let (job, rank) = std::str::from_utf8(&rest[..close]).ok()?.split_once(',')?;
    let stream = &rest[close + 1..];
    let marked = stream.starts_with(b"<stdout>:") || stream.starts_with(b"<stderr>:");
    (marked && job.parse::<u64>().is_ok())
        .then(|| Some((rank.parse().ok()?, close + 2 + b"<stdout>:".len())))?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(input: &[&[u8]]) -> Vec<(Option<usize>, String)> {
        let mut found = Vec::new();
        let mut add =
            |rank, text: &[u8]| found.push((rank, String::from_utf8_lossy(text).into_owned()));
        let mut lines = RankLines::default();
        input.iter().for_each(|line| lines.take(line, &mut add));
        lines.end(add);
        found
    }

    #[test]
    fn marks_are_read() {
        let of = |rank, text: &str| (rank, text.to_string());
        assert_eq!(
            lines(&[b"[1,12]<stdout>:a:b", b"[1,0]<stderr>:"]),
            [of(Some(12), "a:b"), of(Some(0), "")]
        );
        for own in ["mpirun noticed", "[x", "[1,0]", "[1]<stdout>:", "[1,a]<stdout>:x", ""] {
            assert_eq!(lines(&[own.as_bytes()]), [of(None, own)]);
        }
        // Lines of two ranks that came in parts.
        let mixed: [&[u8]; 2] = [b"[1,1]<stdout>:one [1,0]<stdout>:zero", b"[1,1]<stdout>:more"];
        assert_eq!(lines(&mixed), [of(Some(0), "zero"), of(Some(1), "one more")]);
        assert_eq!(
            lines(&[b"[1,1]<stdout>:x[1,0]<stdout>:y"]),
            [of(Some(0), "y"), of(Some(1), "x")]
        );
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(line in prop::collection::vec(any::<u8>(), 0..40)) {
            lines(&[&line]);
        }
    }
}
