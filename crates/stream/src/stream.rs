use crate::buffer::Buffer;
use crate::pool::Pool;
use crate::reader::{self, Scratch};
use crate::{BLOCK, Error, Lease, Source, Stats, Unit, UnitId};
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// How a stream works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Size of the ring in bytes. Every unit that is not kept must fit, see [`crate::footprint`].
    pub ring_bytes: u64,
    /// Bytes beyond the ring for callers who hold more at once than it can give.
    pub overflow_bytes: u64,
    /// Number of reader threads: reads in flight.
    pub readers: usize,
    /// Size of one read in bytes, rounded up to whole blocks.
    pub piece_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ring_bytes: 64 << 20,
            overflow_bytes: 0,
            readers: 4,
            piece_bytes: 1 << 20,
        }
    }
}

impl Options {
    /// Memory that the reader threads take besides the ring, in bytes, if some unit is converted or
    /// moved to alignment on its way.
    pub fn staging_bytes(&self) -> u64 {
        let piece = self.piece_bytes.div_ceil(BLOCK).max(1) * BLOCK;
        (self.readers.max(1) * Scratch::bytes(piece)) as u64
    }
}

/// Units of bytes from files, read ahead of need into a ring of fixed size. Clones share it.
#[derive(Clone)]
pub struct Stream {
    pool: Arc<Pool>,
    _readers: Arc<Readers>,
}

impl Stream {
    /// Starts the reader threads, which begin at once to read `units` in the given `order` (numbers of
    /// units; units that it leaves out are only read on demand).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the ring or a thread's memory cannot be had.
    ///
    /// # Panics
    /// If a unit names a source, or the order a unit, that does not exist.
    pub fn start(
        sources: Vec<Source>,
        units: Vec<Unit>,
        order: Vec<UnitId>,
        options: Options,
    ) -> Result<Self, Error> {
        assert!(units.iter().all(|unit| unit.source < sources.len()));
        assert!(order.iter().all(|unit| *unit < units.len()));
        let staged = units.iter().any(Unit::is_staged);
        let pool = Arc::new(Pool::new(sources, units, order, &options)?);
        let mut readers = Readers {
            pool: pool.clone(),
            threads: Vec::new(),
        };
        for number in 0..options.readers.max(1) {
            let scratch = Scratch::new(pool.piece, staged)?;
            let pool = pool.clone();
            let thread = std::thread::Builder::new()
                .name(format!("outsize-reader-{number}"))
                .stack_size(256 << 10)
                .spawn(move || reader::run(&pool, scratch))
                .map_err(|_| Error::OutOfMemory {
                    bytes: 256 << 10,
                    purpose: "a reader thread".into(),
                })?;
            readers.threads.push(thread);
        }
        Ok(Self {
            pool,
            _readers: Arc::new(readers),
        })
    }

    /// The bytes of a unit, waited for if they are not in memory.
    ///
    /// # Errors
    /// What the read said, naming the unit and its file; [`Error::Exhausted`] if leases hold so much of
    /// the ring that neither it nor the overflow share has room. After an error the next call tries
    /// again.
    pub fn lease(&self, unit: UnitId) -> Result<Lease, Error> {
        self.pool.lease(unit)
    }

    /// Reads a few bytes that are no unit, such as one row of a table, on the calling thread.
    ///
    /// # Errors
    /// What the read said; `name` is used in the message.
    pub fn read(
        &self,
        name: &str,
        source: usize,
        offset: u64,
        target: &mut [u8],
    ) -> Result<(), Error> {
        let began = Instant::now();
        let source = &self.pool.sources[source];
        let first = offset / BLOCK as u64 * BLOCK as u64;
        let skip = (offset - first) as usize;
        let need = skip + target.len();
        let buffer = Buffer::new(need, name)?;
        // SAFETY: the buffer is local to this call.
        let staging = unsafe { buffer.bytes_mut(0..buffer.len()) };
        let count = source
            .read(first, staging, need)
            .map_err(|error| Error::Read {
                unit: name.into(),
                path: source.path().to_path_buf(),
                source: Arc::new(error),
            })?;
        if count < need {
            return Err(Error::Truncated {
                unit: name.into(),
                path: source.path().to_path_buf(),
                end: offset + target.len() as u64,
            });
        }
        target.copy_from_slice(&staging[skip..need]);
        self.pool.count_direct_read(count, began.elapsed());
        Ok(())
    }

    /// Ends a pass: the order in which units were asked for since the last one becomes the schedule.
    pub fn end_pass(&self) {
        self.pool.end_pass();
    }

    /// Gives up a pass that failed half-way; the schedule stays as it was.
    pub fn abandon_pass(&self) {
        self.pool.abandon_pass();
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        self.pool.stats()
    }

    /// Whether all files are read past the page cache.
    pub fn is_direct(&self) -> bool {
        self.pool.sources.iter().all(Source::is_direct)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} units)", self.pool.units.len())
    }
}

/// The threads; ends them when the last handle is dropped. Leases outlive it.
struct Readers {
    pool: Arc<Pool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.pool.close();
        for thread in self.threads.drain(..) {
            // A reader catches its panics; there is nothing to learn from the result.
            let _ = thread.join();
        }
    }
}
