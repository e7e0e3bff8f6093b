//! A file that is written under a temporary name and renamed when it is complete.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use crate::buffered_file::BufferedFile;
use crate::error::Error;
use crate::folder::folder_of;
use crate::partial;

/// Bytes gathered before a write to disk.
const BUFFER: usize = 8 << 10;

/// Such a file: `.NAME.partial-…` until it is published, locked meanwhile; removed when dropped.
#[derive(Debug)]
pub(crate) struct Unnamed {
    // Before `partial`, so that on drop it is closed before it is removed.
    pub(crate) file: BufferedFile,
    partial: TempPath,
    path: PathBuf,
}

impl Unnamed {
    /// Begins the file `path`, whose folder must exist.
    ///
    /// # Errors
    ///
    /// If something else than a file is there, such as a folder or a device; if no file can be made
    /// there.
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        let path = resolve(path)?;
        let name = path.file_name().unwrap_or_default();
        match partial::file(folder_of(&path), name) {
            Ok((file, partial)) => {
                Ok(Self { file: BufferedFile::new(file, BUFFER), partial, path })
            }
            Err(cause) => Err(Error::Create { path, cause }),
        }
    }

    /// The name that it gets.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Syncs the file and renames it, replacing an existing one.
    pub(crate) fn publish(mut self) -> io::Result<()> {
        // Locked until it has its name.
        self.file.sync()?;
        self.partial.persist(&self.path).map_err(|error| error.error)
    }
}

/// Checks what is at `path`, and gives where the file will be: a link to a file stays a link.
fn resolve(path: &Path) -> Result<PathBuf, Error> {
    let wrong = |what| Error::OutputExists { path: path.to_owned(), what };
    let failed = |cause| Error::Create { path: path.to_owned(), cause };
    match path.metadata() {
        Ok(kind) if kind.is_file() => path.canonicalize().map_err(failed),
        Ok(kind) if kind.is_dir() => Err(wrong("is a folder")),
        Ok(_) => Err(wrong("is not a regular file")),
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(failed(cause)),
        Err(_) if path.is_symlink() => Err(wrong("is a link that leads nowhere")),
        Err(_) if path.file_name().is_none() => Err(failed(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path does not end in a file's name",
        ))),
        // Absolute, so that the program may change its folder while the file is being written.
        Err(_) => std::path::absolute(path).map_err(failed),
    }
}
