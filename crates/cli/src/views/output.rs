//! What goes to standard output, and notes on standard error.

use super::style::style;
use super::text::{ascii, plain, wrapped};
use crate::error::Failure;
use outsize::checkpoint::Checkpoint;
use outsize::plan::DeviceMap;
use serde::Serialize;
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes to standard output at once.
pub fn print(part: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(part.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::writing("the text", error))
}

/// Writes a line to standard error, as the terminal understands it: nothing in it is obeyed. What
/// cannot be written there is dropped: it is no answer.
pub fn say(text: impl Display) {
    // The lines of a list are indented; the end of another line is of somebody's name.
    let lines: Vec<String> = text.to_string().split("\n  ").map(plain).collect();
    let text = lines.join("\n  ");
    let text = if style().ascii { ascii(&text) } else { text };
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Says something in lines that are no wider than the terminal of standard error.
pub fn say_wrapped(text: &str) {
    let width = console::Term::stderr().size().1.into();
    wrapped(text.split(' '), width, width).iter().for_each(say);
}

/// Mentions fields that are not known: they may have meant something.
pub fn note_unknown(file: &str, fields: &[String]) {
    if !fields.is_empty() {
        let fields = fields.join(", ");
        say(format!("note: {file} has unknown fields, which are ignored: {fields}"));
    }
}

/// Writes a value as one line of JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&(serde_json::to_string(value)? + "\n"))
}

/// A bar of where the weights are, as wide as the terminal.
pub fn picture(map: &DeviceMap) -> String {
    map.picture(console::Term::stderr().size().1.into())
}

/// Whether two paths lead to one file.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

/// Refuses to write over a file that a model is read from, whatever it is called.
pub fn refuse_to_overwrite(model: &Path, output: &Path) -> Result<(), Failure> {
    let Ok(target) = output.canonicalize() else {
        return Ok(());
    };
    let small = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    let folder = model.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let mut read: Vec<PathBuf> = folder.filter(small).collect();
    read.push(model.to_owned());
    if let Ok(checkpoint) = Checkpoint::open(model) {
        read.extend(checkpoint.files().iter().map(|file| file.path().to_owned()));
    }
    match read.iter().any(|path| path.canonicalize().is_ok_and(|path| path == target)) {
        true => Err(Failure::usage(format!("{} is a file of the model itself", output.display()))),
        false => Ok(()),
    }
}

/// Refuses a file in a folder that is not there; called before any work is done.
pub fn refuse_missing_folder(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => Err(Failure::usage(format!(
            "there is no folder {} for {}",
            folder.display(),
            path.display()
        ))),
        None => Ok(()),
    }
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
