use crate::{Error, Region};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
/// `O_DIRECT`). They fill `memory` bytes, at least 8 MiB, one after the other: memory
/// that stays in the processor's cache would be written unrealistically fast.
///
/// # Errors
/// [`Error::Open`], [`Error::Read`], or [`Error::TooSmall`] without a whole page to read.
pub fn direct_read_speed(path: &Path, range: Range<u64>, memory: u64) -> Result<DiskSpeed, Error> {
    let len = path.metadata().map_err(Error::open(path))?;
    let (start, end) = (page_aligned(range.start), page_aligned(range.end.min(len.len())));
    if start >= end {
        return Err(Error::TooSmall { path: path.to_path_buf() });
    }
    let file = Arc::new(ReadFile::open(path, start)?);
    let memory = usize::try_from(memory).unwrap_or(usize::MAX);
    read_range(&file, start..end, memory)
}

/// Reads the range of whole pages.
fn read_range(file: &Arc<ReadFile>, range: Range<u64>, memory: usize) -> Result<DiskSpeed, Error> {
    // Allocated and touched before the clock starts.
    let mut buffers = (0..THREADS)
        .map(|_| Aligned::new(memory / THREADS))
        .collect::<io::Result<Vec<_>>>()
        .map_err(|source| file.failed(range.start, source))?;
    let next = AtomicU64::new(range.start);
    let speed = read_blocks(&mut buffers, THREADS, |_| {
        let offset = next.fetch_add(BLOCK as u64, Ordering::Relaxed);
        let len = range.end.saturating_sub(offset).min(BLOCK as u64) as usize;
        Ok((len > 0).then(|| (file.clone(), offset, len)))
    })?;
    Ok(DiskSpeed { direct: file.direct, block: BLOCK, ..speed })
}

/// A file to read, past the page cache if the file system allows it.
#[derive(Debug)]
pub(crate) struct ReadFile {
    pub(crate) path: PathBuf,
    pub(crate) direct: bool,
    file: File,
}

impl ReadFile {
    /// Opens it, and tries a direct read of the page at `offset`.
    pub(crate) fn open(path: &Path, offset: u64) -> Result<Self, Error> {
        // Some file systems refuse to open, others to read.
        let direct = open_direct(path).ok().filter(|file| {
            Aligned::new(0).is_ok_and(|mut page| read_at(file, &mut page, ALIGN, offset).is_ok())
        });
        let is_direct = direct.is_some();
        let file = direct.map_or_else(|| File::open(path), Ok).map_err(Error::open(path))?;
        Ok(Self { path: path.to_path_buf(), direct: is_direct, file })
    }

    fn failed(&self, offset: u64, source: io::Error) -> Error {
        Error::Read { path: self.path.clone(), offset, source }
    }
}

/// Reads what `next` names (a file, an offset and a length) with `in_flight` threads, each into its
/// share of the buffers, until there is no more. `next` gets the number of reads of its thread.
pub(crate) fn read_blocks(
    buffers: &mut [Aligned],
    in_flight: usize,
    next: impl Fn(usize) -> Result<Option<(Arc<ReadFile>, u64, usize)>, Error> + Sync,
) -> Result<DiskSpeed, Error> {
    let each = buffers.len() / in_flight;
    let failed = AtomicBool::new(false);
    let work = |buffers: &mut [Aligned]| {
        let mut bytes = 0;
        for at in 0.. {
            let Some((file, offset, len)) = next(at)? else {
                break;
            };
            read_at(&file.file, &mut buffers[at % each], len, offset)
                .map_err(|source| file.failed(offset, source))?;
            bytes += len as u64;
            if failed.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(bytes)
    };
    let began = Instant::now();
    let read: Vec<Result<u64, Error>> = std::thread::scope(|scope| {
        let parts = buffers.chunks_exact_mut(each).take(in_flight);
        let workers: Vec<_> = parts
            .map(|buffers| {
                scope.spawn(|| {
                    let read = work(buffers);
                    failed.fetch_or(read.is_err(), Ordering::Relaxed);
                    read
                })
            })
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        // A thread that panicked read nothing.
        joined.map(|bytes| bytes.unwrap_or(Ok(0))).collect()
    });
    // Never zero: a clock may not tick.
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    let bytes = read.into_iter().sum::<Result<u64, Error>>()?;
    let bytes_per_second = bytes as f64 / seconds;
    Ok(DiskSpeed { bytes_per_second, bytes, seconds, direct: false, threads: in_flight, block: 0 })
}

/// Measures the latency of `count` reads of one page, one after the other, spread over a range of
/// the file; in seconds each. The reads bypass the page cache if the file system allows it.
///
/// # Errors
/// As [`direct_read_speed`].
pub fn read_latency(path: &Path, range: Range<u64>, count: usize) -> Result<Vec<f64>, Error> {
    let start = page_aligned(range.start);
    let file = ReadFile::open(path, start)?;
    let pages = range.end.saturating_sub(range.start) / ALIGN as u64;
    if pages == 0 {
        return Err(Error::TooSmall { path: path.to_path_buf() });
    }
    let mut buffer = Aligned::new(0).map_err(|source| file.failed(start, source))?;
    // Scattered, so that nothing is read ahead: multiples of the golden ratio's share of all pages.
    let mut page = pages / 2;
    let stride = ((pages as f64 * 0.618_034) as u64).max(1);
    let mut seconds = Vec::with_capacity(count);
    for _ in 0..count {
        page = (page + stride) % pages;
        let offset = start + page * ALIGN as u64;
        let began = Instant::now();
        read_at(&file.file, &mut buffer, ALIGN, offset)
            .map_err(|source| file.failed(offset, source))?;
        seconds.push(began.elapsed().as_secs_f64());
    }
    Ok(seconds)
}

/// Rounded down to whole pages.
pub(crate) fn page_aligned(bytes: u64) -> u64 {
    bytes / ALIGN as u64 * ALIGN as u64
}

/// Memory for the reads of one thread: large pages if the system has them.
#[derive(Debug)]
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
        let mut aligned = Self { memory, start, pages, next: 0 };
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
fn read_at(file: &File, buffer: &mut Aligned, len: usize, offset: u64) -> io::Result<()> {
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
fn open_direct(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).custom_flags(libc::O_DIRECT).open(path)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_path: &Path) -> io::Result<File> {
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
        let file = Arc::new(ReadFile::open(file.path(), 0).unwrap());
        let error = read_range(&file, 0..2 * BLOCK as u64, 0).err().unwrap();
        assert!(matches!(&error, Error::Read { offset, .. } if *offset == BLOCK as u64), "{error}");
    }
}
