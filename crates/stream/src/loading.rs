//! The readers' side of the pool: what is loaded into which memory, read by read.

use crate::block::Block;
use crate::pool::{Pool, Started};
use crate::state::{Slot, State};
use crate::{ChunkId, Error};
use std::cell::Cell;
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// A reader's place among the readers, for as long as its thread lives.
pub(crate) struct Seat {
    pub(crate) pool: Arc<Pool>,
    left: Cell<bool>,
}

impl Seat {
    pub(crate) fn take(pool: &Arc<Pool>) -> Self {
        let mut state = pool.lock();
        state.readers += 1;
        pool.deserted.store(false, Ordering::Relaxed);
        drop(state);
        Self { pool: pool.clone(), left: Cell::new(false) }
    }

    /// The next read to make; waits for one. None when the stream is closed.
    pub(crate) fn next_job(&self) -> Option<Job<'_>> {
        let (chunk, read, block) = self.pool.next_read()?;
        tracing::trace!(chunk, read, "read begins");
        Some(Job { seat: self, chunk, read, block: Some(block), began: Instant::now() })
    }

    fn leave(&self, state: &mut State) {
        if !self.left.replace(true) {
            self.pool.reader_left(state);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave(&mut self.pool.lock());
    }
}

/// One read for a reader to make. Dropped without [`Job::finish`], by a reader that dies, it fails:
/// nobody waits for it in vain.
pub(crate) struct Job<'a> {
    seat: &'a Seat,
    pub(crate) chunk: ChunkId,
    /// Its number among the chunk's reads.
    pub(crate) read: usize,
    /// Until it is finished.
    block: Option<Arc<Block>>,
    began: Instant,
}

impl Job<'_> {
    /// Where the bytes go.
    pub(crate) fn block(&self) -> Option<&Block> {
        self.block.as_deref()
    }

    /// Ends the read; a success is the number of bytes taken from the file.
    pub(crate) fn finish(mut self, result: Result<usize, Error>) {
        // Before the chunk is ready, or its block would seem to be held.
        self.block = None;
        let pool = &self.seat.pool;
        let took = self.began.elapsed();
        let mut state = pool.lock();
        state.stats.reads += 1;
        state.stats.reading += took;
        pool.finish(&mut state, self.chunk, result);
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if self.block.take().is_some() {
            let pool = &self.seat.pool;
            let chunk = pool.chunks[self.chunk].name.clone();
            let reason = "its thread ended".into();
            // At once: who is told of the failure and asks again must find the reader gone.
            let mut state = pool.lock();
            pool.finish(&mut state, self.chunk, Err(Error::Reader { chunk, reason }));
            self.seat.leave(&mut state);
        }
    }
}

impl Pool {
    /// Finds memory for a chunk that is needed after `distance` other requests, evicting what is
    /// needed later than that, and queues its reads.
    pub(crate) fn start(
        &self,
        state: &mut State,
        id: ChunkId,
        distance: usize,
    ) -> Result<Started, Error> {
        let chunk = &self.chunks[id];
        let len = chunk.block_len();
        if chunk.keep {
            let block =
                Block::Resident { arena: self.residents.clone(), range: self.residents.place(id) };
            self.load_into(state, id, block);
            return Ok(Started::Yes);
        }
        if let Some(block) = Block::cut(&self.arena, len) {
            self.load_into(state, id, block);
            return Ok(Started::Yes);
        }
        while state.evict_occasional(distance) {
            if let Some(block) = Block::cut(&self.arena, len) {
                self.load_into(state, id, block);
                return Ok(Started::Yes);
            }
        }
        let evictable = state.evictable(distance);
        let room: usize = evictable.iter().map(|(_, _, len)| len).sum();
        if self.arena.free_bytes() + room < len {
            return Ok(Started::NoRoom);
        }
        // Needed last, evicted first. Most often one is enough.
        let mut evictable = BinaryHeap::from(evictable);
        while let Some((_, victim, _)) = evictable.pop() {
            state.evict(victim);
            if let Some(block) = Block::cut(&self.arena, len) {
                self.load_into(state, id, block);
                return Ok(Started::Yes);
            }
        }
        Ok(Started::NoRoom)
    }

    pub(crate) fn load_into(&self, state: &mut State, id: ChunkId, block: Block) {
        if block.is_in_ring() {
            state.in_ring.insert(id);
        }
        let block = Arc::new(block);
        if self.chunks[id].reads(self.read_bytes) == 0 {
            state.slots[id] = Slot::Ready(block);
            return;
        }
        state.slots[id] = Slot::Loading { block, issued: 0, done: 0, error: None, demanded: false };
        state.queue.push_back(id);
    }

    /// The next read for a reader, and where its bytes go; waits for one. None when the stream is
    /// closed.
    fn next_read(&self) -> Option<(ChunkId, usize, Arc<Block>)> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(issued) = self.issue(&mut state) {
                return Some(issued);
            }
            let blocked = match self.read_ahead(&mut state) {
                Some(Started::Yes) => {
                    self.work.notify_all();
                    continue;
                }
                Some(Started::NoRoom) => true,
                None => {
                    state.settled = state.starving == 0;
                    false
                }
            };
            let began = Instant::now();
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            if blocked {
                state.waiting_for_buffers += began.elapsed();
            }
        }
    }

    fn issue(&self, state: &mut State) -> Option<(ChunkId, usize, Arc<Block>)> {
        let id = *state.queue.front()?;
        let Slot::Loading { block, issued, .. } = &mut state.slots[id] else {
            unreachable!("only loading chunks are queued");
        };
        let (read, block) = (*issued, block.clone());
        *issued += 1;
        if *issued == self.chunks[id].reads(self.read_bytes) {
            state.queue.pop_front();
        }
        Some((id, read, block))
    }

    /// Begins to load what comes next in the schedule, if anything is missing.
    fn read_ahead(&self, state: &mut State) -> Option<Started> {
        if state.starving > 0 {
            return None;
        }
        // A long schedule repeats itself; one look at each chunk is enough.
        let horizon = self.chunks.len() * 2 + 16;
        let mut full = false;
        for distance in 0..horizon {
            let Some(id) = state.schedule.ahead(distance) else {
                break;
            };
            if !state.slots[id].is_absent() {
                continue;
            }
            let chunk = &self.chunks[id];
            // What stays has memory of its own, the ring being full or not; what is larger than the
            // ring is only ever served from the overflow share.
            if !chunk.keep && (full || chunk.block_len() > self.arena.size()) {
                continue;
            }
            match self.start(state, id, distance) {
                Ok(Started::Yes) => return Some(Started::Yes),
                Ok(Started::NoRoom) => full = true,
                Err(error) => state.slots[id] = Slot::Failed(error),
            }
        }
        while let Some(&id) = state.at_leisure.front() {
            if state.slots[id].is_absent() {
                match self.start(state, id, horizon) {
                    Ok(started) => return Some(started),
                    Err(error) => state.slots[id] = Slot::Failed(error),
                }
            }
            state.at_leisure.pop_front();
        }
        full.then_some(Started::NoRoom)
    }

    /// A reader is done with a read.
    fn finish(&self, state: &mut State, chunk: ChunkId, result: Result<usize, Error>) {
        let reads = self.chunks[chunk].reads(self.read_bytes);
        let Slot::Loading { block, issued, done, error, .. } = &mut state.slots[chunk] else {
            unreachable!("only a loading chunk is read");
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
            // Reads that nobody began are not made; those under way are waited for.
            let ended = (done == issued).then(|| failure.clone());
            state.queue.retain(|queued| *queued != chunk);
            if let Some(failure) = ended {
                state.slots[chunk] = Slot::Failed(failure);
                self.ready.notify_all();
            }
        } else if *done == reads {
            let block = block.clone();
            state.slots[chunk] = Slot::Ready(block);
            self.ready.notify_all();
        }
    }

    /// A reader thread ended. When it was the last, nobody is left to read what is queued: whoever
    /// waits for it is told.
    fn reader_left(&self, state: &mut State) {
        state.readers -= 1;
        if state.readers > 0 {
            // The memory of its read, for one who waits for some.
            self.work.notify_one();
            return;
        }
        self.deserted.store(true, Ordering::Relaxed);
        while let Some(id) = state.queue.pop_front() {
            // Readers give up their reads before they leave: none is under way.
            state.slots[id] = Slot::Failed(Error::Reader {
                chunk: self.chunks[id].name.clone(),
                reason: "no reader thread is left".into(),
            });
        }
        self.ready.notify_all();
    }
}
