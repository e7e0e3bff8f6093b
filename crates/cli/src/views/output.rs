//! What goes to standard output, and notes on standard error.

use crate::error::Failure;
use outsize::plan::DeviceMap;
use serde::Serialize;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;

/// Writes to standard output at once.
pub fn print(part: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(part.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::writing("the text", error))
}

/// Writes a line to standard error. What cannot be written there is dropped: it is no answer.
pub fn say(text: impl Display) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Writes a value as one line of JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&(serde_json::to_string(value)? + "\n"))
}

/// A bar of where the weights are, as wide as the terminal.
pub fn picture(map: &DeviceMap) -> String {
    map.picture(console::Term::stderr().size().1.into())
}

/// Refuses to replace a file unless `force` is given; called before any work is done.
pub fn refuse_to_replace(path: &Path, force: bool) -> Result<(), Failure> {
    match path.exists() && !force {
        true => {
            Err(Failure::usage(format!("{} exists; give --force to replace it", path.display())))
        }
        false => Ok(()),
    }
}
