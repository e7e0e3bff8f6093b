//! Who holds which memory, and what is read next: the state machine between callers and readers.
//!
//! ```text
//!            start (memory found)         last piece read
//!   Absent ───────────────────> Loading ────────────────> Ready ──┐ lease / drop of lease
//!     ▲                            │ a piece failed          │ ▲───┘
//!     │ asked for again            ▼                         │
//!     ├───────────────────────── Failed                      │
//!     └──────────────────────────────────────────────────────┘ evicted (no lease, needed last)
//! ```
//!
//! Nothing can wait for ever: a reader needs no memory to finish what it began, so every `Loading`
//! ends; a caller waits only while something is `Loading`, may evict all that no lease holds, and is
//! then served from the overflow share or refused.
//!
//! One mutex guards it all. It is held for bookkeeping only, never while reading. The arena's own lock
//! is taken inside it and never the other way round; leases are never dropped under it.

use crate::arena::{Arena, Block};
use crate::buffer::Buffer;
use crate::schedule::Schedule;
use crate::{BLOCK, Error, Lease, Source, Stats, Unit, UnitId};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Everything that callers and readers share.
pub(crate) struct Pool {
    pub(crate) units: Vec<Unit>,
    pub(crate) sources: Vec<Source>,
    pub(crate) piece: usize,
    arena: Arc<Arena>,
    overflow: Overflow,
    readers: u32,
    state: Mutex<State>,
    /// Readers wait here for something to read or memory to read it into.
    work: Condvar,
    /// Callers wait here for data.
    ready: Condvar,
    /// Bytes read, counted outside of the lock.
    bytes_read: AtomicU64,
}

struct State {
    slots: Vec<Slot>,
    /// Units being loaded of which some pieces are not yet given to a reader.
    queue: VecDeque<UnitId>,
    schedule: Schedule,
    /// Callers that wait for memory: no read ahead is begun meanwhile.
    starving: usize,
    stats: Stats,
    waiting_for_buffers: Duration,
    closed: bool,
}

enum Slot {
    Absent,
    Loading {
        block: Arc<Block>,
        /// Pieces given to readers so far.
        issued: usize,
        /// Pieces read so far.
        done: usize,
        /// Callers that wait for it.
        wanted: usize,
        error: Option<Error>,
    },
    Ready {
        block: Arc<Block>,
        /// Callers that waited for it and have not taken it yet.
        wanted: usize,
    },
    /// Served from the overflow share: remembered for as long as somebody holds it.
    Lent(Weak<Block>),
    Failed(Error),
}

/// The share of memory for callers who hold more than the ring foresees.
struct Overflow {
    limit: u64,
    used: Arc<AtomicU64>,
}

/// One piece for a reader.
pub(crate) struct Job {
    pub(crate) unit: UnitId,
    pub(crate) piece: usize,
    pub(crate) block: Arc<Block>,
}

enum Started {
    /// Loading has begun (or there was nothing to load).
    Yes,
    /// There is no memory for it now.
    NoRoom,
}

impl Pool {
    pub(crate) fn new(
        sources: Vec<Source>,
        units: Vec<Unit>,
        order: Vec<UnitId>,
        options: &crate::Options,
    ) -> Result<Self, Error> {
        let schedule = Schedule::new(units.len(), order);
        Ok(Self {
            piece: options.piece_bytes.div_ceil(BLOCK).max(1) * BLOCK,
            arena: Arena::new(options.ring_bytes)?,
            overflow: Overflow {
                limit: options.overflow_bytes,
                used: Arc::new(AtomicU64::new(0)),
            },
            readers: options.readers.max(1) as u32,
            state: Mutex::new(State {
                slots: units.iter().map(|_| Slot::Absent).collect(),
                queue: VecDeque::new(),
                schedule,
                starving: 0,
                stats: Stats::default(),
                waiting_for_buffers: Duration::ZERO,
                closed: false,
            }),
            work: Condvar::new(),
            ready: Condvar::new(),
            bytes_read: AtomicU64::new(0),
            units,
            sources,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock leaves the state half-changed when it panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the unit's bytes lie inside of its block.
    fn payload(&self, unit: &Unit) -> Range<usize> {
        let start = if unit.is_staged() {
            0
        } else {
            (unit.offset % BLOCK as u64) as usize
        };
        start..start + unit.len_in_memory() as usize
    }

    /// Memory that the unit's block takes, in bytes.
    fn block_len(&self, unit: &Unit) -> usize {
        self.payload(unit).end.div_ceil(BLOCK) * BLOCK
    }

    /// In how many pieces the unit is read.
    fn pieces(&self, unit: &Unit) -> usize {
        if unit.len == 0 {
            0
        } else if unit.is_staged() {
            (unit.len as usize).div_ceil(self.piece)
        } else {
            self.block_len(unit).div_ceil(self.piece)
        }
    }

    /// Waits for the unit's bytes and hands them out.
    pub(crate) fn lease(self: &Arc<Self>, id: UnitId) -> Result<Lease, Error> {
        let Some(unit) = self.units.get(id) else {
            return Err(Error::UnknownUnit {
                id,
                count: self.units.len(),
            });
        };
        let began = Instant::now();
        let mut state = self.lock();
        state.schedule.asked(id);
        let mut waited = false; // for data: decides between hit, wait and miss
        let mut counted = false;
        let mut attempted = false; // a failure seen before this is an older read-ahead's: try again
        let block = loop {
            if state.closed {
                return Err(Error::Closed {
                    unit: unit.name.clone(),
                });
            }
            match &mut state.slots[id] {
                Slot::Ready { block, .. } => break block.clone(),
                Slot::Lent(block) => match block.upgrade() {
                    Some(block) => break block,
                    None => state.slots[id] = Slot::Absent,
                },
                Slot::Loading { wanted, .. } => {
                    *wanted += 1;
                    if !counted {
                        state.stats.waits += 1;
                        counted = true;
                    }
                    attempted = true;
                    waited = true;
                    state.hurry(id);
                    self.work.notify_all();
                    while matches!(state.slots[id], Slot::Loading { .. }) && !state.closed {
                        state = self
                            .ready
                            .wait(state)
                            .unwrap_or_else(PoisonError::into_inner);
                    }
                    if let Slot::Ready { wanted, .. } = &mut state.slots[id] {
                        *wanted -= 1;
                    }
                }
                Slot::Failed(error) => {
                    let error = error.clone();
                    state.slots[id] = Slot::Absent;
                    if attempted {
                        return Err(error);
                    }
                }
                Slot::Absent => {
                    if !counted {
                        state.stats.misses += 1;
                        counted = true;
                    }
                    attempted = true;
                    waited = true;
                    state = self.start_on_demand(state, id)?;
                }
            }
        };
        if !counted {
            state.stats.hits += 1;
        }
        if waited {
            state.stats.waiting_for_data += began.elapsed();
        }
        if matches!(*block, Block::Overflow { .. }) {
            state.slots[id] = Slot::Lent(Arc::downgrade(&block));
        }
        drop(state);
        // The schedule moved on: what was too early to read, or too soon to evict, may not be now.
        self.work.notify_one();
        Ok(Lease::new(block, self.payload(unit), self.clone()))
    }

    /// Begins to load what a caller waits for, whatever it takes.
    fn start_on_demand<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        id: UnitId,
    ) -> Result<MutexGuard<'a, State>, Error> {
        let unit = &self.units[id];
        if let Started::Yes = self.start(&mut state, id, 0)? {
            state.hurry(id);
            self.work.notify_all();
            return Ok(state);
        }
        if state.slots.iter().any(|slot| slot.is_loading_in_ring()) {
            // Reads under way will end and can then be evicted, or be claimed and given back.
            state.starving += 1;
            state = self
                .ready
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.starving -= 1;
            return Ok(state);
        }
        let need = self.block_len(unit) as u64;
        let used = self.overflow.used.load(Ordering::Relaxed);
        if used + need <= self.overflow.limit {
            let buffer = Buffer::new(need as usize, "the overflow share")?;
            self.overflow.used.fetch_add(need, Ordering::Relaxed);
            state.stats.overflows += 1;
            self.load_into(
                &mut state,
                id,
                Block::Overflow {
                    buffer,
                    used: self.overflow.used.clone(),
                },
            );
            state.hurry(id);
            self.work.notify_all();
            return Ok(state);
        }
        Err(Error::Exhausted {
            unit: unit.name.clone(),
            need,
            held: (self.arena.size() - self.arena.free_bytes()) as u64 + used,
            ring: self.arena.size() as u64,
            overflow: self.overflow.limit,
        })
    }

    /// Finds memory for a unit that is needed after `distance` other requests, evicting what is needed
    /// later than that, and queues its pieces.
    fn start(&self, state: &mut State, id: UnitId, distance: usize) -> Result<Started, Error> {
        let unit = &self.units[id];
        let len = self.block_len(unit);
        if unit.keep {
            let buffer = Buffer::new(len, &unit.name)?;
            self.load_into(state, id, Block::Own(buffer));
            return Ok(Started::Yes);
        }
        if let Some(block) = self.arena.cut(len) {
            self.load_into(state, id, block);
            return Ok(Started::Yes);
        }
        let mut evictable = state.evictable(distance);
        let room: usize = evictable.iter().map(|(_, _, len)| len).sum();
        if self.arena.free_bytes() + room < len {
            return Ok(Started::NoRoom);
        }
        // Needed last, evicted first.
        evictable.sort_by_key(|(distance, ..)| *distance);
        while let Some((_, victim, _)) = evictable.pop() {
            state.slots[victim] = Slot::Absent;
            if let Some(block) = self.arena.cut(len) {
                self.load_into(state, id, block);
                return Ok(Started::Yes);
            }
        }
        Ok(Started::NoRoom)
    }

    fn load_into(&self, state: &mut State, id: UnitId, block: Block) {
        let block = Arc::new(block);
        if self.pieces(&self.units[id]) == 0 {
            state.slots[id] = Slot::Ready { block, wanted: 0 };
            return;
        }
        state.slots[id] = Slot::Loading {
            block,
            issued: 0,
            done: 0,
            wanted: 0,
            error: None,
        };
        state.queue.push_back(id);
    }

    /// The next piece for a reader; waits for one. None when the stream is closed.
    pub(crate) fn next_job(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(job) = self.issue(&mut state) {
                return Some(job);
            }
            let blocked = match self.read_ahead(&mut state) {
                Some(Started::Yes) => {
                    self.work.notify_all();
                    continue;
                }
                Some(Started::NoRoom) => true,
                None => false,
            };
            let began = Instant::now();
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            if blocked {
                state.waiting_for_buffers += began.elapsed();
            }
        }
    }

    fn issue(&self, state: &mut State) -> Option<Job> {
        let id = *state.queue.front()?;
        let Slot::Loading { block, issued, .. } = &mut state.slots[id] else {
            unreachable!("only loading units are queued");
        };
        let job = Job {
            unit: id,
            piece: *issued,
            block: block.clone(),
        };
        *issued += 1;
        if *issued == self.pieces(&self.units[id]) {
            state.queue.pop_front();
        }
        Some(job)
    }

    /// Begins to load what comes next in the schedule, if anything is missing.
    fn read_ahead(&self, state: &mut State) -> Option<Started> {
        if state.starving > 0 {
            return None;
        }
        // A long schedule repeats itself; one look at each unit is enough.
        let horizon = self.units.len() * 2 + 16;
        let missing: Vec<_> = state
            .schedule
            .coming()
            .take(horizon)
            .filter(|(_, id)| matches!(state.slots[*id], Slot::Absent))
            .collect();
        let mut full = false;
        for (distance, id) in missing {
            if full && !self.units[id].keep {
                continue; // what is kept has memory of its own, the ring being full or not
            }
            match self.start(state, id, distance) {
                Ok(Started::Yes) => return Some(Started::Yes),
                Ok(Started::NoRoom) => full = true,
                Err(error) => state.slots[id] = Slot::Failed(error),
            }
        }
        full.then_some(Started::NoRoom)
    }

    /// A reader is done with a piece; `read` is the number of bytes taken from the file.
    pub(crate) fn finish(&self, unit: UnitId, result: Result<usize, Error>) {
        let pieces = self.pieces(&self.units[unit]);
        let mut state = self.lock();
        let Slot::Loading {
            block,
            issued,
            done,
            wanted,
            error,
        } = &mut state.slots[unit]
        else {
            unreachable!("a piece is only read of a loading unit");
        };
        *done += 1;
        match result {
            Ok(read) => {
                self.bytes_read.fetch_add(read as u64, Ordering::Relaxed);
            }
            Err(failure) => {
                error.get_or_insert(failure);
            }
        }
        if let Some(failure) = error {
            // Pieces that nobody began are not read; those under way are waited for.
            let ended = (done == issued).then(|| failure.clone());
            state.queue.retain(|queued| *queued != unit);
            if let Some(failure) = ended {
                state.slots[unit] = Slot::Failed(failure);
                self.ready.notify_all();
            }
        } else if *done == pieces {
            let (block, wanted) = (block.clone(), *wanted);
            state.slots[unit] = Slot::Ready { block, wanted };
            self.ready.notify_all();
        }
    }

    /// Counts bytes that a caller read by itself.
    pub(crate) fn count_direct_read(&self, bytes: usize, waited: Duration) {
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
        self.lock().stats.waiting_for_data += waited;
    }

    /// Memory came back: a reader may go on, and so may a caller that waits for room.
    pub(crate) fn lease_dropped(&self) {
        let starving = self.lock().starving > 0;
        self.work.notify_one();
        if starving {
            self.ready.notify_all();
        }
    }

    pub(crate) fn end_pass(&self) {
        self.lock().schedule.end_pass();
        self.work.notify_one();
    }

    pub(crate) fn abandon_pass(&self) {
        self.lock().schedule.abandon_pass();
        self.work.notify_one();
    }

    pub(crate) fn stats(&self) -> Stats {
        let state = self.lock();
        Stats {
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            waiting_for_buffers: state.waiting_for_buffers / self.readers,
            ..state.stats
        }
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
        self.ready.notify_all();
    }
}

impl State {
    /// Moves a unit that a caller waits for to the front of the queue.
    fn hurry(&mut self, id: UnitId) {
        if let Some(at) = self.queue.iter().position(|queued| *queued == id) {
            self.queue.remove(at);
            self.queue.push_front(id);
        }
    }

    /// What may leave the ring for a unit needed after `distance` requests: no lease holds it, no
    /// caller waits for it, and it is needed later. With each: when it is needed, and its bytes.
    fn evictable(&self, distance: usize) -> Vec<(usize, UnitId, usize)> {
        let mut found = Vec::new();
        for (id, slot) in self.slots.iter().enumerate() {
            if let Slot::Ready { block, wanted: 0 } = slot
                && matches!(**block, Block::Ring { .. })
                && Arc::strong_count(block) == 1
            {
                let needed = self.schedule.distance(id).unwrap_or(usize::MAX);
                if needed > distance || distance == 0 {
                    found.push((needed, id, block.len()));
                }
            }
        }
        found
    }
}

impl Slot {
    fn is_loading_in_ring(&self) -> bool {
        matches!(self, Slot::Loading { block, .. } if matches!(**block, Block::Ring { .. }))
    }
}
