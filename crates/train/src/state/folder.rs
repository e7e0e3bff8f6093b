//! The folder of a run's states: `checkpoint_0`, `checkpoint_1`, ….

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const PREFIX: &str = "checkpoint_";

/// The states in a folder with their numbers, oldest first; none if there is no such folder.
pub(crate) fn states(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match folder.read_dir() {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut states = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
        if let Some(number) = number.filter(|_| path.is_dir()) {
            states.push((number, path));
        }
    }
    states.sort();
    Ok(states)
}

/// Where the next state goes.
pub(crate) fn next(folder: &Path) -> io::Result<PathBuf> {
    let number = states(folder)?.last().map_or(0, |(last, _)| last + 1);
    Ok(folder.join(format!("{PREFIX}{number}")))
}

/// Removes the oldest states but `limit`, and those that a process which was killed has left amid
/// their removal.
///
/// A state gets another name first, so that none is ever there in part.
pub(crate) fn keep(folder: &Path, limit: usize) -> io::Result<()> {
    let states = states(folder)?;
    for (number, path) in &states[..states.len().saturating_sub(limit)] {
        fs::rename(path, folder.join(format!(".{PREFIX}{number}.removed")))?;
    }
    remove_hidden(folder, |rest| rest.ends_with(".removed"))
}

/// Removes what was complete but for its name when a process was killed, once there is a newer one.
pub(crate) fn remove_unnamed(folder: &Path) -> io::Result<()> {
    remove_hidden(folder, |rest| rest.contains(".complete-"))
}

/// Removes the hidden folders of states for whose names, behind `.checkpoint_`, something holds.
fn remove_hidden(folder: &Path, holds: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in folder.read_dir()? {
        let entry = entry?;
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix('.')?.strip_prefix(PREFIX));
        if rest.is_some_and(&holds) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_numbered_and_the_oldest_go() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("states");
        assert_eq!(next(&folder).unwrap(), folder.join("checkpoint_0"));
        for name in
            ["checkpoint_2", "checkpoint_10", "checkpoint_9", "other", ".checkpoint_1.removed"]
        {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::write(folder.join("checkpoint_11"), "no folder").unwrap();
        assert_eq!(next(&folder).unwrap(), folder.join("checkpoint_11"));
        keep(&folder, 2).unwrap();
        let left = |name: &str| folder.join(name).exists();
        assert!(left("checkpoint_9") && left("checkpoint_10") && left("other"));
        assert_eq!(folder.read_dir().unwrap().count(), 4);
        keep(&folder, 5).unwrap();
        assert_eq!(states(&folder).unwrap().len(), 2);
    }
}
