//! A file to read from, past the page cache where that is possible.

use crate::{BLOCK, Error};
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// A file opened for positioned reads by several threads at once, which is to stay as it is.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    plain: Arc<File>,
    direct: Option<File>,
    /// Set when the file system takes the flag but refuses the reads.
    refused: AtomicBool,
    /// None if the system did not tell: then nothing that is read can be trusted.
    stamp: Option<Stamp>,
}

/// What tells whether a file was written to: its length and the time of its last change.
///
/// A change that keeps the length is not seen within the tick of the file system's clock in which
/// the file was opened (some milliseconds; two seconds on FAT; on a network, until the client asks
/// again), through a mapping that was written to before, or if it puts the old time back. Names do
/// not matter: a file that was renamed or replaced under its name is still the one that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self { len: metadata.len(), modified: metadata.modified().ok() }
    }
}

impl Source {
    /// Opens `path` for direct reads beside the handle `plain` on the same file. Where the file
    /// system does not allow it, reads go through the page cache and what was read is dropped from
    /// it.
    ///
    /// The file is taken as it is now; see [`Source::since`] for one that was looked at before.
    pub fn new(path: impl Into<PathBuf>, plain: Arc<File>) -> Self {
        let path = path.into();
        let direct = open_direct(&path, &plain);
        let stamp = plain.metadata().ok().as_ref().map(Stamp::of);
        Self { path, plain, direct, refused: AtomicBool::new(false), stamp }
    }

    /// Opens a file by its path alone.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let plain = File::open(&path)
            .map_err(|source| Error::Open { path: path.clone(), source: Arc::new(source) })?;
        Ok(Self::new(path, Arc::new(plain)))
    }

    /// Refuses ([`Error::Changed`]) what is read of the file if it is no longer what `then` tells
    /// of it: the system's word from before the file was first looked into.
    pub fn since(mut self, then: &Metadata) -> Self {
        self.stamp = Some(Stamp::of(then));
        self
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether reads bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some() && !self.refused.load(Ordering::Relaxed)
    }

    /// Reads for the chunk of this name at `offset` into `target`, of which at least the first
    /// `need` bytes must exist in the file. `offset`, `target.len()` and the memory of `target` are
    /// multiples of [`BLOCK`]. Returns the number of bytes read.
    pub(crate) fn read(
        &self,
        chunk: &str,
        offset: u64,
        target: &mut [u8],
        need: usize,
    ) -> Result<usize, Error> {
        let failed = |error| Error::Read {
            chunk: chunk.into(),
            path: self.path.clone(),
            source: Arc::new(error),
        };
        let read = self.fill(offset, target, need).map_err(failed)?;
        if read < need {
            return Err(Error::Truncated {
                chunk: chunk.into(),
                path: self.path.clone(),
                end: offset + need as u64,
            });
        }
        // After the read: a file's time changes before its bytes do.
        let now = Stamp::of(&self.plain.metadata().map_err(failed)?);
        if self.stamp != Some(now) {
            return Err(Error::Changed { chunk: chunk.into(), path: self.path.clone() });
        }
        Ok(read)
    }

    fn fill(&self, offset: u64, target: &mut [u8], need: usize) -> io::Result<usize> {
        debug_assert!(offset.is_multiple_of(BLOCK as u64) && target.len().is_multiple_of(BLOCK));
        if let Some(direct) = &self.direct
            && !self.refused.load(Ordering::Relaxed)
        {
            match fill(direct, offset, target, need) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    tracing::debug!(path = %self.path.display(), "direct reads refused");
                    self.refused.store(true, Ordering::Relaxed);
                }
                done => return done,
            }
        }
        let read = fill(&self.plain, offset, target, need)?;
        drop_behind(&self.plain, offset, read);
        Ok(read)
    }
}

/// Reads until `target` is full or the file ends; an end before `need` bytes is the caller's to see
/// from the count.
fn fill(file: &File, offset: u64, target: &mut [u8], need: usize) -> io::Result<usize> {
    let mut done = 0;
    while done < target.len() {
        match read_at(file, &mut target[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // A direct read that ends inside a block has met the end of the file: going on from an
        // unaligned offset would be refused.
        if !done.is_multiple_of(BLOCK) && done >= need {
            break;
        }
    }
    Ok(done)
}

#[cfg(unix)]
fn read_at(file: &File, target: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, target, offset)
}

#[cfg(windows)]
fn read_at(file: &File, target: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, target, offset)
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Path, plain: &File) -> Option<File> {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    let direct = std::fs::OpenOptions::new()
        .read(true)
        // Should the path be a pipe by now, it is not waited for.
        .custom_flags(libc::O_DIRECT | libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    // The path may name another file by now: the handle decides.
    let (a, b) = (direct.metadata().ok()?, plain.metadata().ok()?);
    (a.dev() == b.dev() && a.ino() == b.ino()).then_some(direct)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_path: &Path, _plain: &File) -> Option<File> {
    None
}

/// Tells the system that these pages are not wanted again, so that streaming does not fill the
/// page cache.
#[cfg(target_os = "linux")]
fn drop_behind(file: &File, offset: u64, len: usize) {
    use std::os::fd::AsRawFd;
    // SAFETY: advice on an open descriptor; it touches no memory of ours and its result is ignored.
    unsafe {
        libc::posix_fadvise(
            file.as_raw_fd(),
            offset as libc::off_t,
            len as libc::off_t,
            libc::POSIX_FADV_DONTNEED,
        );
    }
}

#[cfg(not(target_os = "linux"))]
fn drop_behind(_file: &File, _offset: u64, _len: usize) {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use std::io::Write;

    /// A file of three blocks and a bit, every byte telling its block.
    fn file() -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let bytes: Vec<u8> = (0..3 * BLOCK + 77).map(|at| (at / BLOCK) as u8 + 1).collect();
        file.write_all(&bytes).unwrap();
        file
    }

    fn check(source: &Source) {
        let buffer = Buffer::new(4 * BLOCK, "a test").unwrap();
        // SAFETY: nobody else has access.
        let target = unsafe { buffer.bytes_mut(0..4 * BLOCK) };
        let read = source.fill(BLOCK as u64, &mut target[..2 * BLOCK], 2 * BLOCK).unwrap();
        assert_eq!(read, 2 * BLOCK);
        assert!(target[..BLOCK].iter().all(|byte| *byte == 2));
        assert!(target[BLOCK..2 * BLOCK].iter().all(|byte| *byte == 3));
        // Over the end of the file: what there is, whether it is enough or not.
        for need in [BLOCK + 77, 2 * BLOCK] {
            let read = source.fill(2 * BLOCK as u64, &mut target[..3 * BLOCK], need).unwrap();
            assert_eq!(read, BLOCK + 77);
            assert!(target[BLOCK..BLOCK + 77].iter().all(|byte| *byte == 4));
        }
        assert_eq!(source.fill(8 * BLOCK as u64, &mut target[..BLOCK], 1).unwrap(), 0);
    }

    #[test]
    fn reads_directly_or_through_the_page_cache() {
        let file = file();
        let mut source = Source::open(file.path()).unwrap();
        check(&source);
        // As on a file system that takes the flag and refuses the reads.
        source.refused = AtomicBool::new(true);
        assert!(!source.is_direct());
        check(&source);
        // As on one that does not take the flag.
        source.direct = None;
        check(&source);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn another_file_under_the_same_name_is_not_read() {
        let (old, new) = (file(), file());
        let plain = Arc::new(File::open(old.path()).unwrap());
        let source = Source::new(new.path(), plain);
        assert!(!source.is_direct());
        check(&source);
    }
}
