use crate::buffer::Buffer;
use crate::chunk::scratch_bytes;
use crate::loading::Seat;
use crate::pool::Pool;
use crate::reader::{self, Scratch};
use crate::sync::{self, JoinHandle, Mutex};
use crate::{BLOCK, Chunk, ChunkId, Error, Lease, Options, Source, Stats};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// Threads that touch memory ahead of the readers. Each clears 10 GB/s on plain hardware, which one
/// would do for; where a host must find each page, it is a twentieth of that, and two processors do
/// twice as much.
pub const MEMORY_THREADS: usize = 2;

/// Chunks of bytes from files, read ahead of need into a ring of fixed size. Clones share it.
#[derive(Clone)]
pub struct Stream {
    pool: Arc<Pool>,
    readers: Arc<Readers>,
}

impl Stream {
    /// [`Stream::new`] and [`Stream::begin`] in one.
    ///
    /// # Errors
    /// As these two.
    pub fn start(
        sources: Vec<Source>,
        chunks: Vec<Chunk>,
        order: Vec<ChunkId>,
        options: Options,
    ) -> Result<Self, Error> {
        let stream = Self::new(sources, chunks, order, options)?;
        stream.begin()?;
        Ok(stream)
    }

    /// A stream of `chunks`, to be read in the given `order` (numbers of chunks; chunks that it
    /// leaves out are only read on demand). Nothing is read before [`Stream::begin`] or the first
    /// lease: reading, and finding the memory for it, takes the processors and the lock of the
    /// process's memory from whoever still has something to set up.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the ring cannot be had; [`Error::Chunk`] and
    /// [`Error::UnknownChunk`] for chunks and an order that make no sense.
    pub fn new(
        sources: Vec<Source>,
        chunks: Vec<Chunk>,
        order: Vec<ChunkId>,
        options: Options,
    ) -> Result<Self, Error> {
        for chunk in &chunks {
            chunk.check(sources.len())?;
        }
        let count = chunks.len();
        if let Some(id) = order.iter().copied().find(|id| *id >= count) {
            return Err(Error::UnknownChunk { id, count });
        }
        let pool = Arc::new(Pool::new(sources, chunks, order, &options)?);
        let readers = Readers {
            pool: pool.clone(),
            threads: Mutex::new(Vec::new()),
            touchers: Mutex::new(None),
        };
        Ok(Self { pool, readers: Arc::new(readers) })
    }

    /// Starts the threads that read ahead of need, unless they run already.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if not one of them can be had.
    pub fn begin(&self) -> Result<(), Error> {
        self.readers.fill().map_err(|reason| Error::OutOfMemory {
            bytes: scratch_bytes(self.pool.read_bytes) as u64,
            purpose: format!("a reader thread ({reason})").into(),
        })
    }

    /// The bytes of a chunk, waited for if they are not in memory.
    ///
    /// What leases hold counts whoever holds them: with several callers, ring and overflow share
    /// must have room for what all of them hold at once.
    ///
    /// # Errors
    /// What the read said, naming the chunk and its file; [`Error::Exhausted`] if leases hold so
    /// much of the ring that neither it nor the overflow share has room. After an error the next
    /// call tries again.
    pub fn lease(&self, chunk: ChunkId) -> Result<Lease, Error> {
        let readers =
            if self.pool.deserted.load(Ordering::Relaxed) { self.readers.fill() } else { Ok(()) };
        match (Lease::of(&self.pool, chunk), readers) {
            (Err(Error::Reader { chunk, .. }), Err(reason)) => Err(Error::Reader { chunk, reason }),
            (result, _) => result,
        }
    }

    /// Does what waits for data, which counts as such: [reads](Self::read) of a few bytes, maybe
    /// several at once.
    pub fn waiting<T>(&self, read: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = read();
        self.pool.count_waiting(began.elapsed());
        done
    }

    /// Reads a few bytes that are no chunk, such as one row of a table, on the calling thread.
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
        let wrong = |reason| Error::Chunk { chunk: name.into(), reason };
        let source = self
            .pool
            .sources
            .get(source)
            .ok_or_else(|| wrong("its file is not among the sources"))?;
        let end = offset.checked_add(target.len() as u64);
        if end.is_none_or(|end| end > i64::MAX as u64) {
            return Err(wrong("it ends beyond the end of any file"));
        }
        let first = offset / BLOCK as u64 * BLOCK as u64;
        let skip = (offset - first) as usize;
        let need = skip + target.len();
        let buffer = Buffer::new(need, &format!("`{name}`"))?;
        // SAFETY: the buffer is local to this call.
        let staging = unsafe { buffer.bytes_mut(0..buffer.len()) };
        let count = source.read(name, first, staging, need)?;
        target.copy_from_slice(&staging[skip..need]);
        self.pool.count_direct_read(count);
        Ok(())
    }

    /// Says which chunks will be asked for next, in this order, before what the schedule expects.
    /// What was said before and not asked for yet does not count any more.
    pub fn announce(&self, chunks: Vec<ChunkId>) {
        self.pool.announce(chunks);
    }

    /// Whether these chunks are in memory.
    pub fn are_ready(&self, chunks: &[ChunkId]) -> bool {
        self.pool.are_ready(chunks)
    }

    /// The order in which the next pass is expected to ask for chunks.
    pub fn order(&self) -> Vec<ChunkId> {
        self.pool.order()
    }

    /// Expects the next pass to ask for chunks in this order, which another stream of the same
    /// chunks has [seen](Self::order).
    pub fn expect(&self, order: Vec<ChunkId>) {
        self.pool.expect(order);
    }

    /// Begins a pass, which leaves something out that others ask for, or does not. Each of these
    /// kinds has a schedule of its own.
    pub fn begin_pass(&self, is_partial: bool) {
        self.pool.begin_pass(is_partial);
    }

    /// Ends a pass: the order in which chunks were asked for since the last one becomes the
    /// schedule.
    pub fn end_pass(&self) {
        self.pool.end_pass();
        self.replace_readers();
    }

    /// Begins a pass that is not repeated, such as the first of several kinds: what it is expected
    /// to ask for is what comes first in the order of registration.
    pub fn begin_once(&self) {
        self.pool.begin_once();
    }

    /// Ends such a pass: what comes behind it in that order becomes the schedule.
    pub fn end_once(&self) {
        self.pool.end_once();
        self.replace_readers();
    }

    /// Gives up a pass that failed half-way; the schedule stays as it was.
    pub fn abandon_pass(&self) {
        self.pool.abandon_pass();
        self.replace_readers();
    }

    /// Makes up for readers that died, if some did. Without success the next lease will tell.
    fn replace_readers(&self) {
        if self.pool.living() < self.pool.readers {
            let _ = self.readers.fill();
        }
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        self.pool.stats()
    }

    /// The same, for asking while others are at work; nothing once the stream is gone: this holds
    /// none of its memory.
    pub fn watch(&self) -> impl Fn() -> Stats + Send + use<> {
        let pool = Arc::downgrade(&self.pool);
        move || pool.upgrade().map_or_else(Stats::default, |pool| pool.stats())
    }

    /// Whether all files are read past the page cache.
    pub fn is_direct(&self) -> bool {
        self.pool.sources.iter().all(Source::is_direct)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} chunks)", self.pool.chunks.len())
    }
}

/// The threads; ends them when the last handle is dropped. Leases outlive it.
struct Readers {
    pool: Arc<Pool>,
    threads: Mutex<Vec<JoinHandle>>,
    /// Threads that touch the memory of what stays, once they were started; they end by themselves.
    touchers: Mutex<Option<Vec<JoinHandle>>>,
}

impl Readers {
    /// Starts the threads that touch the memory of what stays. Without them readers touch what they
    /// read into.
    fn touch_ahead(&self) {
        if !self.pool.residents.is_large() {
            return;
        }
        let mut touchers = self.touchers.lock().unwrap_or_else(PoisonError::into_inner);
        touchers.get_or_insert_with(|| {
            let threads = (0..MEMORY_THREADS).map(|number| {
                let residents = self.pool.residents.clone();
                let name = format!("outsize-memory-{number}");
                sync::spawn(name, move || {
                    sync::lower_priority();
                    residents.touch_all();
                })
            });
            threads.filter_map(Result::ok).collect()
        });
    }

    /// Starts the threads that are missing: all of them at first, later those that died. One is
    /// enough to go on; without any, the reason is the error.
    fn fill(&self) -> Result<(), Arc<str>> {
        self.touch_ahead();
        let staged = self.pool.chunks.iter().any(Chunk::is_staged);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = self.pool.readers.saturating_sub(self.pool.living());
        for _ in 0..missing {
            let seat = Seat::take(&self.pool);
            let started = Scratch::new(self.pool.read_bytes, staged)
                .map_err(|error| error.to_string())
                .and_then(|scratch| {
                    let name = format!("outsize-reader-{}", threads.len());
                    sync::spawn(name, move || reader::run(seat, scratch))
                        .map_err(|error| error.to_string())
                });
            match started {
                Ok(thread) => threads.push(thread),
                Err(reason) if self.pool.living() == 0 => return Err(reason.into()),
                Err(reason) => {
                    tracing::warn!(reason, "fewer reader threads than asked for");
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.pool.close();
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        let touchers = self.touchers.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..).chain(touchers.take().unwrap_or_default()) {
            // A reader that died has told whoever waited for it; its panic is of no more use.
            if let Err(panic) = thread.join() {
                std::mem::forget(panic);
            }
        }
    }
}
