use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::folder::folder_of;
use crate::partial::{self, PartialFolder};

/// A folder that is filled under a temporary name and appears complete or not at all. Dropped
/// before it is published, it leaves nothing; what a killed process left is removed by the next one
/// that prepares the same folder (on Unix, where the file system has locks).
#[derive(Debug)]
pub struct OutputFolder {
    out: PathBuf,
    /// Beside `out`.
    partial: PartialFolder,
}

impl OutputFolder {
    /// Checks that `out` does not exist or is an empty folder, and makes the partial folder beside
    /// it, with its parents.
    ///
    /// # Errors
    ///
    /// If `out` is not free, or no folder can be made there.
    pub fn prepare(out: &Path) -> Result<Self, Error> {
        let out = resolve(out)?;
        let failed = |cause| Error::Create { path: out.clone(), cause };
        let Some(name) = out.file_name() else {
            return Err(failed(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path does not end in a folder's name",
            )));
        };
        let parent = folder_of(&out);
        fs::create_dir_all(parent).map_err(failed)?;
        let partial = partial::folder(parent, name).map_err(failed)?;
        Ok(Self { out, partial })
    }

    /// The final name.
    pub fn out(&self) -> &Path {
        &self.out
    }

    /// The folder to write in.
    pub fn folder(&self) -> &Path {
        self.partial.place.path()
    }

    /// Renames the folder, once its files are on the disk. If only that fails, the complete folder
    /// stays under a name that cleaning up leaves alone.
    ///
    /// # Errors
    ///
    /// If it cannot be renamed; the message says where it is.
    pub fn publish(self) -> Result<(), Error> {
        let Self { out, partial } = self;
        let complete = partial.complete_name(&out);
        let PartialFolder { place, lock: _lock } = partial;
        sync_folder(place.path())
            .and_then(|()| fs::rename(place.path(), &complete))
            .map_err(|cause| Error::Create { path: out.clone(), cause })?;
        let _ = place.keep(); // of that name there is nothing to remove any more
        fs::rename(&complete, &out)
            .and_then(|()| sync_folder(folder_of(&out)))
            .map_err(|cause| Error::Rename { partial: complete, path: out, cause })
    }
}

/// Checks what is at `out`, and gives its absolute path.
fn resolve(out: &Path) -> Result<PathBuf, Error> {
    let exists = |what| Error::OutputExists { path: out.to_owned(), what };
    let read = |cause| Error::Read { path: out.to_owned(), cause };
    if out.symlink_metadata().is_err_and(|cause| cause.kind() == io::ErrorKind::NotFound) {
        // Absolute, so that the program may change its folder while the checkpoint is being
        // written.
        return std::path::absolute(out)
            .map_err(|cause| Error::Create { path: out.to_owned(), cause });
    }
    match out.metadata() {
        Ok(kind) if kind.is_dir() => {}
        Ok(_) => return Err(exists("is a file")),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            return Err(exists("is a link that leads nowhere"));
        }
        Err(cause) => return Err(read(cause)),
    }
    if out.read_dir().map_err(read)?.next().is_some() {
        return Err(exists("is a folder that is not empty"));
    }
    let path = out.canonicalize().map_err(read)?;
    let in_place = |what| Error::OutputInPlace { path: out.to_owned(), what };
    if std::env::current_dir().and_then(fs::canonicalize).is_ok_and(|here| here == path) {
        return Err(in_place("is the folder you are in"));
    }
    if is_mount_point(&path).map_err(read)? {
        return Err(in_place("is where a disk is mounted"));
    }
    Ok(path)
}

/// Whether a folder is on another disk than its parent, where no folder beside it could be renamed
/// to it.
#[cfg(unix)]
fn is_mount_point(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    Ok(path.metadata()?.dev() != folder_of(path).metadata()?.dev())
}

#[cfg(not(unix))]
fn is_mount_point(path: &Path) -> io::Result<bool> {
    Ok(path.parent().is_none())
}

/// Waits until a folder's entries are on the disk.
#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

/// Other systems do not let a folder be opened for that.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
