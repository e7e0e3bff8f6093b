//! Who holds which memory, and what is read next: the state machine between callers and readers.
//!
//! ```text
//!            start (memory found)         last read done
//!   Absent ───────────────────> Loading ────────────────> Ready ──┐ lease / drop of lease
//!     ▲                            │ a read failed          │ ▲───┘
//!     │ asked for again            ▼                         │
//!     ├───────────────────────── Failed                      │
//!     └──────────────────────────────────────────────────────┘ evicted (no lease, needed last)
//! ```
//!
//! Nothing can wait for ever: a reader needs no memory to finish what it began and gives its read
//! up if it dies, so every `Loading` ends; a caller waits only while something is `Loading`, may
//! evict all that no lease holds, and is then served from the overflow share or refused.
//!
//! One mutex guards it all. It is held for bookkeeping only, never while reading. The arena's own
//! lock is taken inside it and never the other way round; leases are never dropped under it.
//!
//! This file is the callers' side, `loading.rs` the readers'; `tests/model` runs both under every
//! kind of schedule.

use crate::arena::Arena;
use crate::block::Block;
use crate::overflow::{Overflow, Refusal};
use crate::resident_arena::ResidentArena;
use crate::schedule::Schedule;
use crate::state::{Slot, State};
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard};
use crate::{Chunk, ChunkId, Error, Options, Source, Stats};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Everything that callers and readers share.
pub(crate) struct Pool {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) sources: Vec<Source>,
    /// Size of one read in bytes.
    pub(crate) read_bytes: usize,
    pub(crate) arena: Arc<Arena>,
    pub(crate) residents: Arc<ResidentArena>,
    overflow: Overflow,
    /// How many readers there should be.
    pub(crate) readers: usize,
    state: Mutex<State>,
    /// Readers wait here for something to read or memory to read it into.
    pub(crate) work: Condvar,
    /// Callers wait here for data.
    pub(crate) ready: Condvar,
    /// Bytes read, counted outside of the lock.
    pub(crate) bytes_read: AtomicU64,
    /// Whether all readers are gone, for a look without the lock.
    pub(crate) deserted: AtomicBool,
}

/// Whether memory was found for a chunk.
pub(crate) enum Started {
    /// Loading has begun (or there was nothing to load).
    Yes,
    /// There is no memory for it now.
    NoRoom,
}

impl Pool {
    /// A pool without readers; chunks and order are checked already.
    pub(crate) fn new(
        sources: Vec<Source>,
        chunks: Vec<Chunk>,
        order: Vec<ChunkId>,
        options: &Options,
    ) -> Result<Self, Error> {
        let residents = ResidentArena::new(&chunks, &order)?;
        let occasional = chunks.iter().map(|chunk| chunk.occasional).collect();
        let schedule = Schedule::new(occasional, order);
        Ok(Self {
            read_bytes: options.read_bytes(),
            arena: Arena::new(options.ring_bytes)?,
            residents,
            overflow: Overflow::new(options.overflow_bytes),
            readers: options.threads(),
            state: Mutex::new(State::new(&chunks, schedule)),
            work: Condvar::new(),
            ready: Condvar::new(),
            bytes_read: AtomicU64::new(0),
            deserted: AtomicBool::new(true),
            chunks,
            sources,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock leaves the state half-changed when it panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the chunk's bytes and hands them out: until they are [given
    /// back](Self::give_back).
    pub(crate) fn lease(&self, id: ChunkId) -> Result<Arc<Block>, Error> {
        let Some(chunk) = self.chunks.get(id) else {
            return Err(Error::UnknownChunk { id, count: self.chunks.len() });
        };
        let began = Instant::now();
        let mut state = self.lock();
        state.schedule.asked(id);
        state.callers[id] += 1;
        let mut waited = false; // for data: decides between hit, wait and miss
        let mut counted = false;
        let mut attempted = false; // a failure seen before this is an older read's: try again
        let found = loop {
            if state.closed {
                break Err(Error::Closed { chunk: chunk.name.clone() });
            }
            match &state.slots[id] {
                Slot::Ready(block) => break Ok(block.clone()),
                Slot::Lent(block) => match block.upgrade() {
                    Some(block) => break Ok(block),
                    None => state.slots[id] = Slot::Absent,
                },
                Slot::Loading { demanded, .. } => {
                    // What was read ahead may be of an earlier pass, and what was wrong been put
                    // right since.
                    attempted |= *demanded;
                    if !counted {
                        state.stats.waits += 1;
                        counted = true;
                    }
                    waited = true;
                    state.hurry(id);
                    self.work.notify_all();
                    while matches!(state.slots[id], Slot::Loading { .. }) && !state.closed {
                        state = self.wait(state);
                    }
                }
                Slot::Failed(error) if attempted => break Err(error.clone()),
                Slot::Failed(_) => state.slots[id] = Slot::Absent,
                Slot::Absent => {
                    if !counted {
                        state.stats.misses += 1;
                        counted = true;
                    }
                    attempted = true;
                    waited = true;
                    match self.start_on_demand(&mut state, id) {
                        Ok(Started::Yes) => {}
                        Ok(Started::NoRoom) => {
                            state.starving += 1;
                            state = self.wait(state);
                            state.starving -= 1;
                        }
                        Err(error) => break Err(error),
                    }
                }
            }
        };
        state.callers[id] -= 1;
        if let Ok(block) = &found {
            if !counted {
                state.stats.hits += 1;
            }
            if matches!(**block, Block::Overflow(_)) {
                state.slots[id] = Slot::Lent(Arc::downgrade(block));
            }
        }
        if waited {
            state.stats.waiting_for_data += began.elapsed();
        }
        let starving = state.starving > 0;
        // What it waited for may have taken the place of what is expected.
        state.settled &= !waited;
        let settled = state.settled;
        drop(state);
        // The schedule moved on, and this caller starves no more: what was too early to read, or
        // too soon to evict, may not be now.
        if !settled {
            self.work.notify_one();
        }
        if starving && found.is_err() {
            self.ready.notify_all();
        }
        found
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.ready.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to load what a caller waits for, whatever it takes. Without room now, there will be a
    /// change to wait for.
    fn start_on_demand(&self, state: &mut State, id: ChunkId) -> Result<Started, Error> {
        let chunk = &self.chunks[id];
        if state.readers == 0 {
            return Err(Error::Reader {
                chunk: chunk.name.clone(),
                reason: "no reader thread is left".into(),
            });
        }
        if let Started::NoRoom = self.start(state, id, 0)? {
            let need = chunk.block_len();
            if need <= self.arena.size() && state.slots.iter().any(Slot::is_loading_in_ring) {
                // Reads under way will end and can then be evicted, or be claimed and given back.
                return Ok(Started::NoRoom);
            }
            let loan = match self.overflow.lend(need, &chunk.name) {
                Ok(loan) => loan,
                Err(Refusal::NoMemory(error)) => return Err(error),
                Err(Refusal::Spent { used }) => return Err(self.exhausted(state, chunk, used)),
            };
            state.stats.overflows += 1;
            self.load_into(state, id, Block::Overflow(loan));
        }
        if let Slot::Loading { demanded, .. } = &mut state.slots[id] {
            *demanded = true;
        }
        Ok(Started::Yes)
    }

    fn exhausted(&self, state: &State, chunk: &Chunk, overflow_used: u64) -> Error {
        let evictable: usize = state.evictable(0).iter().map(|(.., len)| len).sum();
        let in_ring = self.arena.size() - self.arena.free_bytes() - evictable;
        Error::Exhausted {
            chunk: chunk.name.clone(),
            need: chunk.block_len() as u64,
            held: in_ring as u64 + overflow_used,
            ring: self.arena.size() as u64,
            overflow: self.overflow.limit(),
        }
    }

    /// Counts bytes that a caller read by itself.
    pub(crate) fn count_direct_read(&self, bytes: usize) {
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_waiting(&self, waited: Duration) {
        self.lock().stats.waiting_for_data += waited;
    }

    /// A lease ended: a reader may go on, and so may a caller that waits for room.
    pub(crate) fn give_back(&self, block: Arc<Block>) {
        // A part of the ring comes back under the lock, so that nobody who looks for memory under
        // it finds it held one moment and free the next. Other memory may take the system a while.
        let block = if block.is_in_ring() {
            Some(block)
        } else {
            drop(block);
            None
        };
        let mut state = self.lock();
        // What was lent is there no more.
        state.settled &= block.is_some();
        let settled = state.settled;
        drop(block);
        let starving = state.starving > 0;
        drop(state);
        if !settled {
            self.work.notify_one();
        }
        if starving {
            self.ready.notify_all();
        }
    }

    pub(crate) fn announce(&self, mut chunks: Vec<ChunkId>) {
        chunks.retain(|id| *id < self.chunks.len());
        let mut state = self.lock();
        let missing = chunks.iter().any(|id| state.slots[*id].is_absent());
        state.settled &= !missing;
        state.schedule.announce(chunks);
        drop(state);
        if missing {
            self.work.notify_one();
        }
    }

    pub(crate) fn are_ready(&self, chunks: &[ChunkId]) -> bool {
        let state = self.lock();
        chunks.iter().all(|id| matches!(state.slots.get(*id), Some(Slot::Ready(_))))
    }

    pub(crate) fn order(&self) -> Vec<ChunkId> {
        self.lock().schedule.order().to_vec()
    }

    pub(crate) fn expect(&self, order: Vec<ChunkId>) {
        self.reschedule(|schedule| schedule.expect(order));
    }

    pub(crate) fn begin_pass(&self, is_partial: bool) {
        // Nearly all passes are of the kind of the last one: nothing to wake a reader for.
        if self.lock().schedule.is_partial() != is_partial {
            self.reschedule(|schedule| schedule.begin(is_partial));
        }
    }

    pub(crate) fn end_pass(&self) {
        self.reschedule(Schedule::end_pass);
    }

    pub(crate) fn begin_once(&self) {
        self.reschedule(Schedule::begin_once);
    }

    pub(crate) fn end_once(&self) {
        self.reschedule(Schedule::end_once);
    }

    pub(crate) fn abandon_pass(&self) {
        self.reschedule(Schedule::abandon_pass);
    }

    fn reschedule(&self, change: impl FnOnce(&mut Schedule)) {
        let mut state = self.lock();
        state.settled = false;
        change(&mut state.schedule);
        drop(state);
        self.work.notify_one();
    }

    pub(crate) fn stats(&self) -> Stats {
        let state = self.lock();
        Stats {
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            waiting_for_buffers: state.waiting_for_buffers / self.readers as u32,
            ..state.stats
        }
    }

    /// Reader threads that live.
    pub(crate) fn living(&self) -> usize {
        self.lock().readers
    }

    pub(crate) fn close(&self) {
        self.residents.close();
        self.lock().closed = true;
        self.work.notify_all();
        self.ready.notify_all();
    }
}
