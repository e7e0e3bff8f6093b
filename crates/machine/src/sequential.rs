//! Sequential read speed: the limit of any way of reading a model.

use crate::disk::{Aligned, LARGE_PAGE, ReadFile, page_aligned, read_blocks};
use crate::{DiskSpeed, Error};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How a file is read: up to 16 reads in flight, of up to 2 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadShape {
    /// Reads in flight.
    pub in_flight: usize,
    /// Bytes of one read.
    pub block: usize,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The shapes that are tried. The numbers in flight are powers of two up to
/// [`BUFFERS`].
const SHAPES: [ReadShape; 11] = [
    ReadShape::new(1, 2 * MIB),
    ReadShape::new(2, MIB),
    ReadShape::new(2, 2 * MIB),
    ReadShape::new(4, 512 * KIB),
    ReadShape::new(4, MIB),
    ReadShape::new(4, 2 * MIB),
    ReadShape::new(8, 256 * KIB),
    ReadShape::new(8, MIB),
    ReadShape::new(8, 2 * MIB),
    ReadShape::new(16, 256 * KIB),
    ReadShape::new(16, MIB),
];

/// Buffers that are read into, in turns.
const BUFFERS: usize = 16;

/// Bytes of all of these: more than stays in a processor's cache.
const MEMORY: usize = 64 * MIB;

impl ReadShape {
    const fn new(in_flight: usize, block: usize) -> Self {
        Self { in_flight, block }
    }
}

/// Reads files one after the other, again and again, each time on from the last position: repeated
/// measurements read other bytes, as a pass over the files does.
#[derive(Debug)]
pub struct SequentialReads {
    place: Mutex<Place>,
    buffers: Vec<Aligned>,
}

/// The position of the next read.
#[derive(Debug)]
struct Place {
    /// With their lengths in whole pages.
    files: Vec<(PathBuf, u64)>,
    file: usize,
    offset: u64,
    open: Option<Arc<ReadFile>>,
    /// Whether all reads so far bypassed the page cache.
    direct: bool,
}

impl Place {
    /// The next read: of which file, at which offset, and how much.
    fn next(&mut self, most: usize) -> Result<(Arc<ReadFile>, u64, usize), Error> {
        if self.offset >= self.files[self.file].1 {
            self.file = (self.file + 1) % self.files.len();
            (self.offset, self.open) = (0, None);
        }
        let (path, len) = &self.files[self.file];
        let file = match &self.open {
            Some(file) => file.clone(),
            None => {
                let file = Arc::new(ReadFile::open(path, 0)?);
                self.direct &= file.direct;
                self.open.insert(file).clone()
            }
        };
        let offset = self.offset;
        let len = (len - offset).min(most as u64);
        self.offset += len;
        Ok((file, offset, len as usize))
    }
}

impl SequentialReads {
    /// Opens the files and allocates the buffers. Files of less than a page are left out.
    ///
    /// # Errors
    /// [`Error::Open`]; [`Error::TooSmall`] if no file has a page; [`Error::NoMemory`].
    pub fn new(files: &[PathBuf]) -> Result<Self, Error> {
        let mut kept = Vec::new();
        for path in files {
            let len = page_aligned(path.metadata().map_err(Error::open(path))?.len());
            if len > 0 {
                kept.push((path.clone(), len));
            }
        }
        if kept.is_empty() {
            return Err(Error::TooSmall { path: files.first().cloned().unwrap_or_default() });
        }
        let buffers = (0..BUFFERS)
            .map(|_| Aligned::new(MEMORY / BUFFERS))
            .collect::<Result<_, _>>()
            .map_err(|source| Error::NoMemory { bytes: MEMORY as u64, source })?;
        Ok(Self {
            place: Mutex::new(Place { files: kept, file: 0, offset: 0, open: None, direct: true }),
            buffers,
        })
    }

    /// Tries several numbers of reads in flight and sizes, twice each, alternating, for `seconds`
    /// each time. Returns them by their best speed, the fastest first.
    ///
    /// # Errors
    /// As [`SequentialReads::read`].
    pub fn fastest(&mut self, seconds: f64) -> Result<Vec<ReadShape>, Error> {
        let mut speeds = [0.0f64; SHAPES.len()];
        for _ in 0..2 {
            for (shape, best) in SHAPES.into_iter().zip(&mut speeds) {
                *best = best.max(self.read(shape, seconds)?.bytes_per_second);
            }
        }
        let mut order: Vec<_> = (0..SHAPES.len()).collect();
        order.sort_by(|a, b| speeds[*b].total_cmp(&speeds[*a]));
        Ok(order.into_iter().map(|at| SHAPES[at]).collect())
    }

    /// Reads for about `seconds` and returns the speed.
    ///
    /// # Errors
    /// [`Error::Open`] or [`Error::Read`].
    pub fn read(&mut self, shape: ReadShape, seconds: f64) -> Result<DiskSpeed, Error> {
        let (in_flight, block) = (shape.in_flight.clamp(1, BUFFERS), shape.block.min(LARGE_PAGE));
        let place = &self.place;
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let speed = read_blocks(&mut self.buffers, in_flight, |at| {
            match at > 0 && Instant::now() >= end {
                true => Ok(None),
                false => lock(place).next(block).map(Some),
            }
        })?;
        Ok(DiskSpeed { direct: lock(place).direct, block, ..speed })
    }
}

fn lock(place: &Mutex<Place>) -> std::sync::MutexGuard<'_, Place> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

const _: () = assert!(MEMORY / BUFFERS >= LARGE_PAGE);

#[cfg(test)]
mod tests {
    use super::*;

    fn files(lengths: &[usize]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let paths = lengths.iter().enumerate().map(|(at, len)| {
            let path = folder.path().join(at.to_string());
            std::fs::write(&path, vec![at as u8; *len]).unwrap();
            path
        });
        let paths = paths.collect();
        (folder, paths)
    }

    #[test]
    fn every_page_is_read_in_turn_and_then_again() {
        let (_folder, paths) = files(&[3 * 4096 + 5, 100, 2 * MIB]);
        let reads = SequentialReads::new(&paths).unwrap();
        let mut place = lock(&reads.place);
        let mut seen = |_| {
            let (file, offset, len) = place.next(MIB).unwrap();
            let number = paths.iter().filter(|path| path.metadata().unwrap().len() >= 4096);
            let number = number.into_iter().position(|path| *path == file.path);
            (number.unwrap(), offset, len)
        };
        let first: Vec<_> = (0..3).map(&mut seen).collect();
        // The second file has no whole page.
        assert_eq!(first, [(0, 0, 3 * 4096), (1, 0, MIB), (1, MIB as u64, MIB)]);
        assert_eq!((0..3).map(&mut seen).collect::<Vec<_>>(), first);
    }

    #[test]
    fn speeds_are_of_what_was_read() {
        let (_folder, paths) = files(&[5 * MIB, 3 * MIB]);
        let mut reads = SequentialReads::new(&paths).unwrap();
        let shapes = reads.fastest(1e-3).unwrap();
        assert_eq!(shapes.len(), SHAPES.len());
        assert!(SHAPES.iter().all(|shape| shapes.contains(shape)));
        let shape = shapes[0];
        for seconds in [0.0, 0.02] {
            let speed = reads.read(shape, seconds).unwrap();
            assert!(speed.bytes > 0 && speed.seconds >= seconds);
            assert_eq!(speed.bytes_per_second, speed.bytes as f64 / speed.seconds);
            assert_eq!((speed.threads, speed.block), (shape.in_flight, shape.block));
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let (folder, paths) = files(&[4095, 0]);
        let error = SequentialReads::new(&paths).unwrap_err();
        assert!(matches!(&error, Error::TooSmall { path } if *path == paths[0]));
        let missing = folder.path().join("missing");
        let error = SequentialReads::new(std::slice::from_ref(&missing)).unwrap_err();
        assert!(matches!(&error, Error::Open { path, .. } if *path == missing));
        let (_other, paths) = files(&[8192]);
        let mut reads = SequentialReads::new(&paths).unwrap();
        std::fs::File::options().write(true).open(&paths[0]).unwrap().set_len(4096).unwrap();
        let error = reads.read(SHAPES[0], 0.05).unwrap_err();
        assert!(matches!(&error, Error::Read { path, .. } if *path == paths[0]), "{error}");
    }

    #[test]
    fn every_shape_divides_the_buffers() {
        for ReadShape { in_flight, block } in SHAPES {
            assert!(BUFFERS.is_multiple_of(in_flight) && block <= LARGE_PAGE);
        }
    }
}
