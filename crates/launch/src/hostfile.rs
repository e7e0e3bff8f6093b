//! Files of machines, as Open MPI reads them: a line each, `NAME slots=RANKS`.

use std::path::Path;

use outsize_checkpoint::read_text;

use crate::error::Error;

/// The largest hostfile, in bytes.
const LARGEST: u64 = 1 << 20;

/// The ranks of all machines in a hostfile; a machine without `slots` has one.
pub(crate) fn slots(path: &Path) -> Result<usize, Error> {
    let wrong = |reason: String| Error::File { path: path.to_owned(), reason };
    let text = read_text(path, LARGEST).map_err(|error| wrong(error.to_string()))?;
    let mut ranks = 0_usize;
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(_machine) = words.next() else { continue };
        let given = words.find_map(|option| option.strip_prefix("slots="));
        let own = given.map_or(Ok(1), str::parse::<usize>);
        let own = own.ok().filter(|own| *own > 0).ok_or_else(|| {
            wrong(format!("line {number}: slots has to be a whole number, as in `node1 slots=2`"))
        })?;
        ranks = ranks.saturating_add(own);
    }
    match ranks {
        0 => Err(wrong("it names no machine; a line is as `node1 slots=2`".to_string())),
        ranks => Ok(ranks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_added_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        let of = |text: &str| {
            std::fs::write(&path, text).unwrap();
            slots(&path).map_err(|error| error.to_string())
        };
        assert_eq!(of("a slots=2\n# b\n\nb max-slots=4 slots=3 # c\nc\n"), Ok(6));
        assert!(of("a slots=two").unwrap_err().contains("line 1: slots"));
        assert!(of("# nothing\n").unwrap_err().contains("names no machine"));
        assert!(slots(folder.path()).is_err());
    }
}
