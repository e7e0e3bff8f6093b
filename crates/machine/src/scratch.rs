use crate::Error;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file to measure a disk with, which is gone when this is: on Linux it never has a name, so that
/// not even a killed process leaves it behind.
#[derive(Debug)]
pub struct Scratch {
    file: Arc<File>,
    path: PathBuf,
    #[cfg(not(target_os = "linux"))]
    _named: tempfile::TempPath,
}

impl Scratch {
    /// Makes an empty file on the file system of a folder.
    ///
    /// # Errors
    /// [`Error::Scratch`].
    pub fn new(folder: &Path) -> Result<Self, Error> {
        Self::make(folder).map_err(|source| Error::Scratch { folder: folder.to_path_buf(), source })
    }

    #[cfg(target_os = "linux")]
    fn make(folder: &Path) -> std::io::Result<Self> {
        use std::os::fd::AsRawFd;
        let file = tempfile::tempfile_in(folder)?;
        // The kernel's own name for what has none.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
        Ok(Self { file: Arc::new(file), path })
    }

    #[cfg(not(target_os = "linux"))]
    fn make(folder: &Path) -> std::io::Result<Self> {
        let (file, named) = tempfile::NamedTempFile::new_in(folder)?.into_parts();
        Ok(Self { file: Arc::new(file), path: named.to_path_buf(), _named: named })
    }

    /// Writes at the end.
    ///
    /// # Errors
    /// What the system says, such as that the disk is full.
    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let mut file = &*self.file;
        file.seek(std::io::SeekFrom::End(0))?;
        file.write_all(bytes)
    }

    /// Puts on the disk what was written, and forgets what of it is in memory, as far as the system
    /// does so.
    ///
    /// # Errors
    /// What the system says.
    pub fn settle(&self) -> std::io::Result<()> {
        self.file.sync_all()?;
        // Only advice.
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fadvise(&*self.file, 0, None, rustix::fs::Advice::DontNeed);
        Ok(())
    }

    /// The open file.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// A path to open it by, as long as this lives.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_can_be_opened_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut scratch = Scratch::new(folder.path()).unwrap();
        scratch.write(b"abc").unwrap();
        scratch.write(b"def").unwrap();
        scratch.settle().unwrap();
        assert_eq!(std::fs::read(scratch.path()).unwrap(), b"abcdef");
        if cfg!(target_os = "linux") {
            assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        }
        drop(scratch);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_named() {
        let error = Scratch::new(Path::new("/nowhere/at/all")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
