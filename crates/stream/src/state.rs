//! What the pool's lock guards.

use crate::block::Block;
use crate::schedule::Schedule;
use crate::{Chunk, ChunkId, Error, Stats};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How many chunks are found to leave the ring at a time, at most.
const VICTIMS: usize = 256;

/// Where every chunk is, and who waits.
pub(crate) struct State {
    pub(crate) slots: Vec<Slot>,
    /// For each chunk, the callers that are asking for it now: what is ready is not evicted under
    /// them.
    pub(crate) callers: Vec<u32>,
    /// Chunks being loaded of which some reads are not yet given to a reader.
    pub(crate) queue: VecDeque<ChunkId>,
    pub(crate) schedule: Schedule,
    /// Whether all that is expected is there or being read, as the last look found: readers need
    /// not be woken to look again.
    pub(crate) settled: bool,
    /// Chunks that are, or were not long ago, in the ring.
    pub(crate) in_ring: BTreeSet<ChunkId>,
    /// Occasional chunks that were needed last of all when somebody looked, those needed last at
    /// the end; and how far off the first of them was then.
    victims: (Vec<ChunkId>, usize),
    /// Chunks that stay and that no schedule has: they are read when there is nothing else to read.
    pub(crate) at_leisure: VecDeque<ChunkId>,
    /// Callers that wait for memory: no read ahead is begun meanwhile.
    pub(crate) starving: usize,
    /// Reader threads that live.
    pub(crate) readers: usize,
    pub(crate) stats: Stats,
    pub(crate) waiting_for_buffers: Duration,
    pub(crate) closed: bool,
}

/// Where a chunk is.
pub(crate) enum Slot {
    Absent,
    Loading {
        block: Arc<Block>,
        /// Reads given to readers so far.
        issued: usize,
        /// Reads that readers are done with.
        done: usize,
        /// What went wrong first.
        error: Option<Error>,
        /// Whether a caller asked for it rather than a read ahead began it.
        demanded: bool,
    },
    Ready(Arc<Block>),
    /// Served from the overflow share: remembered for as long as somebody holds it.
    Lent(Weak<Block>),
    /// The last read failed. Everyone who waited for it is told; who asks afterwards tries again.
    Failed(Error),
}

impl State {
    pub(crate) fn new(chunks: &[Chunk], schedule: Schedule) -> Self {
        let at_leisure = chunks.iter().enumerate();
        let at_leisure = at_leisure.filter(|(_, chunk)| chunk.keep && chunk.occasional);
        let at_leisure = at_leisure.map(|(id, _)| id).collect();
        let chunks = chunks.len();
        Self {
            slots: (0..chunks).map(|_| Slot::Absent).collect(),
            callers: vec![0; chunks],
            queue: VecDeque::new(),
            schedule,
            settled: false,
            in_ring: BTreeSet::new(),
            victims: (Vec::new(), 0),
            at_leisure,
            starving: 0,
            readers: 0,
            stats: Stats::default(),
            waiting_for_buffers: Duration::ZERO,
            closed: false,
        }
    }

    /// Moves a chunk that a caller waits for to the front of the queue.
    pub(crate) fn hurry(&mut self, id: ChunkId) {
        if let Some(at) = self.queue.iter().position(|queued| *queued == id) {
            self.queue.remove(at);
            self.queue.push_front(id);
        }
    }

    /// Takes a chunk out of the ring for one that is needed after `distance` requests: an
    /// occasional one, as these are needed later than all others. A look at all of them, which
    /// takes longer than some reads, is good for many.
    pub(crate) fn evict_occasional(&mut self, distance: usize) -> bool {
        for look in [false, true] {
            if look {
                self.look_for_victims();
            }
            while let Some(id) = self.victims.0.pop() {
                let far = self.schedule.distance(id).unwrap_or(usize::MAX);
                // What was used since is needed sooner.
                let as_far = far.saturating_add(self.slots.len()) >= self.victims.1;
                if self.idle_bytes(id).is_some() && as_far && (far > distance || distance == 0) {
                    self.evict(id);
                    return true;
                }
            }
        }
        false
    }

    fn look_for_victims(&mut self) {
        let schedule = &self.schedule;
        let occasional = self.in_ring.iter().copied().filter(|id| schedule.is_occasional(*id));
        let idle = occasional.filter(|id| self.idle_bytes(*id).is_some());
        let mut found: Vec<(usize, ChunkId)> =
            idle.filter_map(|id| Some((schedule.distance(id)?, id))).collect();
        // Few of them: what comes into the ring meanwhile may be needed later than the rest.
        let victims = VICTIMS.min(found.len().div_ceil(8));
        if let Some(rest) = found.len().checked_sub(victims).filter(|rest| *rest > 0) {
            found.select_nth_unstable(rest);
            found.drain(..rest);
        }
        found.sort_unstable();
        let least = found.first().map_or(0, |(distance, _)| *distance);
        self.victims = (found.into_iter().map(|(_, id)| id).collect(), least);
    }

    /// The bytes of a chunk in the ring that nobody holds or asks for.
    fn idle_bytes(&self, id: ChunkId) -> Option<usize> {
        match &self.slots[id] {
            Slot::Ready(block)
                if self.callers[id] == 0 && block.is_in_ring() && Arc::strong_count(block) == 1 =>
            {
                Some(block.len())
            }
            _ => None,
        }
    }

    /// Takes an idle chunk out of the ring.
    pub(crate) fn evict(&mut self, id: ChunkId) {
        self.slots[id] = Slot::Absent;
        self.settled = false;
        self.in_ring.remove(&id);
    }

    /// What may leave the ring for a chunk needed after `distance` requests: no lease holds it, no
    /// caller asks for it, and it is needed later. With each: when it is needed, and its bytes.
    pub(crate) fn evictable(&self, distance: usize) -> Vec<(usize, ChunkId, usize)> {
        let mut found = Vec::new();
        for &id in &self.in_ring {
            if let Some(len) = self.idle_bytes(id) {
                let needed = self.schedule.distance(id).unwrap_or(usize::MAX);
                if needed > distance || distance == 0 {
                    found.push((needed, id, len));
                }
            }
        }
        found
    }
}

impl Slot {
    /// Whether nothing holds it and nothing is known against reading it.
    pub(crate) fn is_absent(&self) -> bool {
        match self {
            Slot::Absent => true,
            Slot::Lent(block) => block.strong_count() == 0,
            _ => false,
        }
    }

    pub(crate) fn is_loading_in_ring(&self) -> bool {
        matches!(self, Slot::Loading { block, .. } if block.is_in_ring())
    }
}
