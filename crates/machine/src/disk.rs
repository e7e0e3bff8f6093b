use crate::{Error, Region};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Reads in flight.
const THREADS: usize = 4;

/// Bytes of one read.
const BLOCK: usize = 1 << 20;

/// Size of a large page in bytes. A read into scattered small pages is split into several requests,
/// and the disk would seem slower than it is.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// Alignment of offset, length and memory for direct reads, in bytes.
const ALIGN: usize = 4096;

/// The least memory that [`direct_read_speed`] allocates, in bytes.
pub const BUFFER_BYTES: u64 = (THREADS * LARGE_PAGE) as u64;

/// How fast a file was read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskSpeed {
    /// Bytes read per second.
    pub bytes_per_second: f64,
    /// Bytes read.
    pub bytes: u64,
    /// Time that it took, in seconds.
    pub seconds: f64,
    /// Whether the reads went past the page cache. If not, this may be the speed of memory.
    pub direct: bool,
    /// Reads in flight.
    pub threads: usize,
    /// Bytes of one read.
    pub block: usize,
}

/// Measures the speed of reading a range of a file, rounded to whole pages and cut at its end, with
/// several reads in flight. The reads bypass the page cache if the file system allows it (Linux,
/// `O_DIRECT`). They fill `memory` bytes, at least [`BUFFER_BYTES`], one after the other: memory
/// that stays in the processor's cache would be written unrealistically fast.
///
/// # Errors
/// [`Error::Open`], [`Error::Read`], or [`Error::TooSmall`] without a whole page to read.
pub fn direct_read_speed(path: &Path, range: Range<u64>, memory: u64) -> Result<DiskSpeed, Error> {
    let open = |source| Error::Open {
        path: path.to_path_buf(),
        source,
    };
    let plain = File::open(path).map_err(open)?;
    let len = plain.metadata().map_err(open)?.len();
    let (start, end) = (page_aligned(range.start), page_aligned(range.end.min(len)));
    let bytes = end.saturating_sub(start);
    if bytes == 0 {
        return Err(Error::TooSmall {
            path: path.to_path_buf(),
        });
    }
    // Some file systems refuse to open, others to read.
    let direct = open_direct(path).ok().filter(|file| {
        Aligned::new(0).is_ok_and(|mut page| read_at(file, &mut page, ALIGN, start).is_ok())
    });
    let memory = usize::try_from(memory).unwrap_or(usize::MAX);
    let measured = measure(direct.as_ref().unwrap_or(&plain), start..end, memory);
    let seconds = measured.map_err(|(offset, source)| Error::Read {
        path: path.to_path_buf(),
        offset,
        source,
    })?;
    Ok(DiskSpeed {
        bytes_per_second: bytes as f64 / seconds,
        bytes,
        seconds,
        direct: direct.is_some(),
        threads: THREADS,
        block: BLOCK,
    })
}

/// Measures the latency of `count` reads of one page, one after the other, spread over a range of
/// the file; in seconds each. The reads bypass the page cache if the file system allows it.
///
/// # Errors
/// As [`direct_read_speed`].
pub fn read_latency(path: &Path, range: Range<u64>, count: usize) -> Result<Vec<f64>, Error> {
    let plain = File::open(path).map_err(|source| Error::Open {
        path: path.to_path_buf(),
        source,
    })?;
    let file = open_direct(path).unwrap_or(plain);
    let pages = range.end.saturating_sub(range.start) / ALIGN as u64;
    if pages == 0 {
        return Err(Error::TooSmall {
            path: path.to_path_buf(),
        });
    }
    let failed = |offset| {
        move |source| Error::Read {
            path: path.to_path_buf(),
            offset,
            source,
        }
    };
    let start = range.start / ALIGN as u64 * ALIGN as u64;
    let mut buffer = Aligned::new(0).map_err(failed(start))?;
    // Scattered, so that nothing is read ahead: multiples of the golden ratio's share of all pages.
    let mut page = pages / 2;
    let stride = ((pages as f64 * 0.618_034) as u64).max(1);
    let mut seconds = Vec::with_capacity(count);
    for _ in 0..count {
        page = (page + stride) % pages;
        let offset = start + page * ALIGN as u64;
        let began = Instant::now();
        read_at(&file, &mut buffer, ALIGN, offset).map_err(failed(offset))?;
        seconds.push(began.elapsed().as_secs_f64());
    }
    Ok(seconds)
}

/// Rounded down to whole pages.
pub(crate) fn page_aligned(bytes: u64) -> u64 {
    bytes / ALIGN as u64 * ALIGN as u64
}

/// Reads the range of whole pages; returns the seconds it took, or the offset of the failure.
fn measure(file: &File, range: Range<u64>, memory: usize) -> Result<f64, (u64, io::Error)> {
    let next = AtomicU64::new(range.start);
    let failed = AtomicBool::new(false);
    let failure = Mutex::new(None);
    // Taken and touched before the clock starts.
    let mut buffers = (0..THREADS)
        .map(|_| Aligned::new(memory / THREADS))
        .collect::<io::Result<Vec<_>>>()
        .map_err(|source| (range.start, source))?;
    let began = Instant::now();
    std::thread::scope(|scope| {
        for buffer in &mut buffers {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let offset = next.fetch_add(BLOCK as u64, Ordering::Relaxed);
                    if offset >= range.end {
                        break;
                    }
                    let len = (range.end - offset).min(BLOCK as u64) as usize;
                    if let Err(error) = read_at(file, buffer, len, offset) {
                        failed.store(true, Ordering::Relaxed);
                        *failure.lock().unwrap_or_else(PoisonError::into_inner) =
                            Some((offset, error));
                    }
                }
            });
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failure) => Err(failure),
        // A clock that does not tick within a page's time must not make it infinite.
        None => Ok(began.elapsed().as_secs_f64().max(1e-9)),
    }
}

/// Memory for the reads of one thread: large pages if the system has them.
pub(crate) struct Aligned {
    memory: Region,
    start: usize,
    /// Large pages in it, one read each.
    pages: usize,
    next: usize,
}

impl Aligned {
    /// About `bytes` of memory, at least one large page.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let pages = (bytes / LARGE_PAGE).max(1);
        let memory = Region::new((pages + 1) * LARGE_PAGE)?;
        let start = memory.as_ref().as_ptr().align_offset(LARGE_PAGE);
        let start = start.min(LARGE_PAGE);
        let mut aligned = Self {
            memory,
            start,
            pages,
            next: 0,
        };
        // So that every page is there before the clock starts.
        for _ in 0..pages {
            aligned.slice(BLOCK).fill(1);
        }
        Ok(aligned)
    }

    /// The place of the next read.
    fn slice(&mut self, len: usize) -> &mut [u8] {
        let at = self.start + self.next * LARGE_PAGE;
        self.next = (self.next + 1) % self.pages;
        &mut self.memory.as_mut()[at..at + len]
    }
}

/// Reads exactly `len` bytes at `offset`.
pub(crate) fn read_at(
    file: &File,
    buffer: &mut Aligned,
    len: usize,
    offset: u64,
) -> io::Result<()> {
    let into = buffer.slice(len);
    #[cfg(unix)]
    {
        std::os::unix::fs::FileExt::read_exact_at(file, into, offset)
    }
    #[cfg(windows)]
    {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            match std::os::windows::fs::FileExt::seek_read(file, &mut into[done..], at)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }
    #[cfg(not(any(unix, windows)))]
    {
        let _ = (file, into, offset);
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(target_os = "linux")]
pub(crate) fn open_direct(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn open_direct(_path: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned() {
        let mut aligned = Aligned::new(0).unwrap();
        let slice = aligned.slice(BLOCK);
        assert_eq!(slice.len(), BLOCK);
        assert_eq!(slice.as_ptr() as usize % LARGE_PAGE, 0);
    }

    #[test]
    fn blocks_are_read_to_their_place() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..3 * ALIGN).map(|at| (at / ALIGN) as u8).collect();
        std::fs::write(file.path(), bytes).unwrap();
        let plain = File::open(file.path()).unwrap();
        let mut buffer = Aligned::new(0).unwrap();
        read_at(&plain, &mut buffer, 2 * ALIGN, ALIGN as u64).unwrap();
        assert_eq!(buffer.slice(2 * ALIGN)[..ALIGN], [1; ALIGN]);
        assert_eq!(buffer.slice(2 * ALIGN)[ALIGN..], [2; ALIGN]);
        assert!(read_at(&plain, &mut buffer, 2 * ALIGN, 2 * ALIGN as u64).is_err());
    }

    #[test]
    fn a_failed_read_says_where() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![0; BLOCK + 1]).unwrap();
        let plain = File::open(file.path()).unwrap();
        let (offset, error) = measure(&plain, 0..2 * BLOCK as u64, 0).unwrap_err();
        assert_eq!(offset, BLOCK as u64);
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
