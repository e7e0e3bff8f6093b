//! Temporary names of unfinished output, and cleaning up after killed processes.
//!
//! Output `NAME` is written to `.NAME.partial-PID-…`, which is locked as long as its process lives.
//! The next write of `NAME` removes unlocked ones: their process is gone.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir, TempPath};

/// Attempts to lock a name before another process removes it.
const ATTEMPTS: usize = 10;

/// A folder for unfinished work; removed when dropped.
#[derive(Debug)]
pub(crate) struct PartialFolder {
    pub place: TempDir,
    /// Its lock; none where the file system has none.
    pub lock: Option<File>,
}

impl PartialFolder {
    /// A name beside `out` for the folder when the work is done: `.NAME.complete-PID-…`.
    pub fn complete_name(&self, out: &Path) -> PathBuf {
        let own = self.place.path().to_string_lossy();
        let random = own.rsplit('-').next().unwrap_or_default();
        let mut name = OsString::from(".");
        name.push(out.file_name().unwrap_or_default());
        name.push(format!(".complete-{}-{random}", std::process::id()));
        out.with_file_name(name)
    }
}

/// Makes a folder in `parent` for work on `name`, with the permissions of any new folder.
pub(crate) fn folder(parent: &Path, name: &OsStr) -> io::Result<PartialFolder> {
    make(parent, name, 0o777, |builder| {
        let place = builder.tempdir_in(parent)?;
        let lock = hold(place.path(), || File::open(place.path()))?;
        Ok(lock.map(|lock| PartialFolder { place, lock }))
    })
}

/// Makes a file in `parent` for work on `name`, with the permissions of any new file. It is its own
/// lock.
pub(crate) fn file(parent: &Path, name: &OsStr) -> io::Result<(File, TempPath)> {
    make(parent, name, 0o666, |builder| {
        let place = builder.tempfile_in(parent)?;
        let lock = hold(place.path(), || place.as_file().try_clone())?;
        Ok(lock.map(|_| place.into_parts()))
    })
}

fn make<T>(
    parent: &Path,
    name: &OsStr,
    mode: u32,
    attempt: impl Fn(&Builder<'_, '_>) -> io::Result<Option<T>>,
) -> io::Result<T> {
    let start = start(name);
    sweep(parent, &start);
    let mut prefix = start;
    prefix.push(format!("{}-", std::process::id()));
    let mut builder = Builder::new();
    builder.prefix(&prefix);
    // What is temporary is private by default, and this is to become the user's.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    #[cfg(not(unix))]
    let _ = mode;
    for _ in 0..ATTEMPTS {
        if let Some(made) = attempt(&builder).map_err(plain)? {
            return Ok(made);
        }
    }
    Err(io::Error::other("another program removes what is made there"))
}

/// An error without the name of the temporary file, which means nothing to a user.
fn plain(cause: io::Error) -> io::Error {
    match cause.kind() {
        io::ErrorKind::Other => cause,
        kind if cause.get_ref().is_some() => kind.into(),
        _ => cause,
    }
}

/// How the names of all work on `name` start.
fn start(name: &OsStr) -> OsString {
    let mut start = OsString::from(".");
    start.push(name);
    start.push(".partial-");
    start
}

/// Locks what was just made at `path`. None if another process was faster and removes it; no lock
/// if the file system supports none.
#[cfg(unix)]
fn hold(path: &Path, open: impl FnOnce() -> io::Result<File>) -> io::Result<Option<Option<File>>> {
    let file = match open() {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    Ok(match file.try_lock() {
        Ok(()) => is_at(&file, path).then_some(Some(file)),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(_)) => Some(None),
    })
}

/// Other systems lock against reading and writing too, and do not open folders.
#[cfg(not(unix))]
fn hold(_: &Path, _: impl FnOnce() -> io::Result<File>) -> io::Result<Option<Option<File>>> {
    Ok(Some(None))
}

/// Removes what killed processes left in `parent`. What cannot be removed stays.
#[cfg(unix)]
fn sweep(parent: &Path, start: &OsStr) {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::OpenOptionsExt;
    let Ok(entries) = parent.read_dir() else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_ours =
            name.as_bytes().strip_prefix(start.as_bytes()).is_some_and(is_number_and_letters);
        let Some(kind) = entry.file_type().ok().filter(|_| is_ours) else {
            continue;
        };
        let path = entry.path();
        let mut options = File::options();
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        let Ok(file) = options.read(true).open(&path) else {
            continue;
        };
        if file.try_lock().is_ok() && is_at(&file, &path) {
            let _ = match kind.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
        }
    }
}

/// Without locks it is unknown which writes are still running.
#[cfg(not(unix))]
fn sweep(_: &Path, _: &OsStr) {}

/// `PID-…`, the end of a name.
#[cfg(unix)]
fn is_number_and_letters(end: &[u8]) -> bool {
    let mut parts = end.splitn(2, |&byte| byte == b'-');
    let (pid, random) = (parts.next().unwrap_or(&[]), parts.next().unwrap_or(&[]));
    !pid.is_empty()
        && pid.iter().all(u8::is_ascii_digit)
        && random.len() == 6
        && random.iter().all(u8::is_ascii_alphanumeric)
}

/// Whether an open file or folder is what lies at `path`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |kind: fs::Metadata| (kind.dev(), kind.ino());
    match (file.metadata(), path.symlink_metadata()) {
        (Ok(file), Ok(path)) => place(file) == place(path),
        _ => false,
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn list(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string();
        let mut names: Vec<_> =
            folder.read_dir().unwrap().map(|entry| name(entry).unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn only_what_is_left_of_the_same_name_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let stays = [
            ".out.partial-12-abcdefg",
            ".out.partial-12-abc/ef",
            ".out.partial-x-abcdef",
            ".out.partial-12",
            ".out.partial-",
            ".out.complete-12-abcdef",
            ".out2.partial-12-abcdef",
            "out.partial-12-abcdef",
        ];
        for name in stays {
            fs::create_dir_all(place.path().join(name)).unwrap();
        }
        let before = list(place.path());
        fs::create_dir_all(place.path().join(".out.partial-12-abcdef/x")).unwrap();
        fs::write(place.path().join(".out.partial-13-ABC012"), "").unwrap();
        // A link is not followed, and stays.
        std::os::unix::fs::symlink(".out.partial-12", place.path().join(".out.partial-12-linked"))
            .unwrap();
        sweep(place.path(), &start(OsStr::new("out")));
        let mut after = list(place.path());
        after.retain(|name| name != ".out.partial-12-linked");
        assert_eq!(after, before);
        assert_eq!(list(&place.path().join(".out.partial-12-abc")), ["ef"]);
    }

    #[test]
    fn what_is_worked_on_is_not_removed() {
        let place = tempfile::tempdir().unwrap();
        let name = OsStr::new("out");
        let one = folder(place.path(), name).unwrap();
        let two = folder(place.path(), name).unwrap();
        let three = file(place.path(), name).unwrap();
        let _four = file(place.path(), name).unwrap();
        assert_eq!(list(place.path()).len(), 4);
        // As if their processes had been killed.
        let kept = one.place.keep();
        three.1.keep().unwrap();
        drop((two, three.0));
        assert_eq!(list(place.path()).len(), 3);
        let five = folder(place.path(), name).unwrap();
        assert!(kept.exists(), "its lock is still held");
        assert_eq!(list(place.path()).len(), 3);
        drop(one.lock);
        let _six = file(place.path(), name).unwrap();
        assert!(!kept.exists());
        drop(five);
        assert_eq!(list(place.path()).len(), 2);
    }
}
