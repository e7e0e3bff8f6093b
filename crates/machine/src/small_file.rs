//! Files of a person's that are read whole.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The text of a file of at most `most` bytes; `too_large` is what is said of a larger one.
pub(crate) fn read_small(path: &Path, most: u64, too_large: &str) -> io::Result<String> {
    // A pipe would be waited for, and a device never end.
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = String::new();
    File::open(path)?.take(most + 1).read_to_string(&mut text)?;
    match text.len() as u64 > most {
        true => Err(io::Error::other(too_large)),
        false => Ok(text),
    }
}
