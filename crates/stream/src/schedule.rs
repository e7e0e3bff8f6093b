//! What will be asked for next: what was announced, then the order last seen.
//!
//! Of [occasional](crate::Chunk::occasional) chunks a pass asks for some, and which is known when
//! it announces them, or asks. The order has none of them; how long each is likely not to be needed
//! is estimated from how often it was.

use crate::ChunkId;

/// A trace longer than this is cut: what comes later is then fetched on demand.
const LONGEST: usize = 1 << 20;

/// What of an occasional chunk's frequency of use remains after each pass.
const MEMORY: f64 = 0.95;

/// The least frequency of use that is told from never.
const RARE: f64 = 1e-3;

/// The cyclic order in which chunks are asked for, learned from the last pass.
pub(crate) struct Schedule {
    order: Vec<ChunkId>,
    /// That of passes of the other kind.
    other: Vec<ChunkId>,
    /// Whether passes leave something out that the others ask for.
    is_partial: bool,
    /// The order of registration.
    registered: Vec<ChunkId>,
    /// For each chunk, its positions in `order`, ascending.
    positions: Vec<Vec<u32>>,
    /// Position in `order` of what is expected next.
    cursor: usize,
    /// What this pass asked for so far, without occasional chunks.
    trace: Vec<ChunkId>,
    /// What was announced last, in order.
    announced: Vec<ChunkId>,
    /// How many of these are past.
    past: usize,
    /// For each chunk, its position in `announced`.
    turns: Vec<Option<u32>>,
    /// For each chunk, how often it was used, if it is occasional.
    uses: Vec<Option<Uses>>,
    /// Behind the occasional chunk that this pass asked for last.
    next: ChunkId,
    /// Passes that ended.
    passes: u32,
}

/// How often a chunk was used: in each pass or never, as a number from 1 to 0, with less weight on
/// passes long ago.
#[derive(Clone, Copy, Default)]
struct Uses {
    frequency: f64,
    /// As of the end of this pass.
    pass: u32,
}

impl Uses {
    /// The frequency after so many passes that did not ask for it.
    fn after(self, passes: u32) -> f64 {
        self.frequency * MEMORY.powi(passes.min(1 << 20) as i32)
    }
}

impl Schedule {
    pub(crate) fn new(occasional: Vec<bool>, mut order: Vec<ChunkId>) -> Self {
        let chunks = occasional.len();
        order.retain(|chunk| !occasional[*chunk]);
        let uses = occasional.into_iter().map(|it| it.then(Uses::default)).collect();
        let mut schedule = Self {
            order: Vec::new(),
            other: order.clone(),
            is_partial: false,
            registered: order.clone(),
            positions: vec![Vec::new(); chunks],
            cursor: 0,
            trace: Vec::new(),
            announced: Vec::new(),
            past: 0,
            turns: vec![None; chunks],
            uses,
            next: 0,
            passes: 0,
        };
        schedule.learn(order);
        schedule
    }

    fn learn(&mut self, mut order: Vec<ChunkId>) {
        order.truncate(LONGEST);
        for positions in &mut self.positions {
            positions.clear();
        }
        for (at, chunk) in order.iter().enumerate() {
            self.positions[*chunk].push(at as u32);
        }
        self.order = order;
        self.cursor = 0;
    }

    /// Whether `chunk` is in no schedule.
    pub(crate) fn is_occasional(&self, chunk: ChunkId) -> bool {
        self.uses[chunk].is_some()
    }

    /// Expects `chunks` next, in this order, and no more what was announced before.
    pub(crate) fn announce(&mut self, chunks: Vec<ChunkId>) {
        for chunk in self.announced.drain(..) {
            self.turns[chunk] = None;
        }
        self.past = 0;
        for chunk in chunks {
            // Twice would be two distances, and each could be read in place of what the other
            // keeps.
            if self.turns[chunk].is_none() {
                self.turns[chunk] = Some(self.announced.len() as u32);
                self.announced.push(chunk);
            }
        }
    }

    /// How many announced requests are expected before the one for `chunk`, if that is announced
    /// too.
    fn turn(&self, chunk: ChunkId) -> Option<usize> {
        (self.turns[chunk]? as usize).checked_sub(self.past)
    }

    /// Notes that `chunk` was asked for now.
    pub(crate) fn asked(&mut self, chunk: ChunkId) {
        if let Some(turn) = self.turn(chunk) {
            self.past += turn + 1;
        }
        if let Some(uses) = &mut self.uses[chunk] {
            let frequency = uses.after(self.passes - uses.pass) + (1.0 - MEMORY);
            *uses = Uses { frequency: frequency.min(1.0), pass: self.passes };
            self.next = chunk + 1;
            return;
        }
        if self.trace.len() < LONGEST {
            self.trace.push(chunk);
        }
        if let Some(distance) = self.distance_in_order(chunk) {
            self.cursor = (self.cursor + distance + 1) % self.order.len();
        }
    }

    /// How many other requests are expected before `chunk` is asked for; none if it is not
    /// expected.
    pub(crate) fn distance(&self, chunk: ChunkId) -> Option<usize> {
        let announced = self.announced.len() - self.past;
        if let Some(turn) = self.turn(chunk) {
            return Some(turn);
        }
        let distance = match self.uses[chunk] {
            None => self.distance_in_order(chunk)?,
            Some(uses) => {
                // Passes go through the chunks in the order of their numbers, more or less; of
                // those that are as frequent, what was just used is needed last.
                let chunks = self.uses.len();
                let rest = (chunk + chunks - self.next) % chunks;
                // This pass may still come to it.
                let missed =
                    (self.passes - uses.pass).saturating_sub(u32::from(chunk >= self.next));
                let passes = 1.0 / uses.after(missed).max(RARE);
                self.order.len() + rest + (chunks as f64 * (passes - 1.0)) as usize
            }
        };
        Some(announced + distance)
    }

    fn distance_in_order(&self, chunk: ChunkId) -> Option<usize> {
        let positions = &self.positions[chunk];
        let first = *positions.first()? as usize;
        let at = positions.partition_point(|at| (*at as usize) < self.cursor);
        Some(match positions.get(at) {
            Some(at) => *at as usize - self.cursor,
            None => first + self.order.len() - self.cursor,
        })
    }

    /// What is expected after `distance` other requests; none beyond one cycle.
    pub(crate) fn ahead(&self, distance: usize) -> Option<ChunkId> {
        let announced = &self.announced[self.past..];
        if let Some(chunk) = announced.get(distance) {
            return Some(*chunk);
        }
        let distance = distance - announced.len();
        if distance >= self.order.len() {
            return None;
        }
        let behind = self.order.len() - self.cursor;
        let at = match distance < behind {
            true => self.cursor + distance,
            false => distance - behind,
        };
        Some(self.order[at])
    }

    /// What a pass is expected to ask for, in order.
    pub(crate) fn order(&self) -> &[ChunkId] {
        &self.order
    }

    /// Expects the next pass to ask for these, in this order.
    pub(crate) fn expect(&mut self, mut order: Vec<ChunkId>) {
        order.retain(|chunk| self.uses.get(*chunk).is_some_and(Option::is_none));
        self.learn(order);
    }

    /// Begins a pass that leaves something out, or one that does not: it is expected to ask for
    /// what the last such pass asked for.
    pub(crate) fn begin(&mut self, is_partial: bool) {
        if self.is_partial != is_partial {
            self.is_partial = is_partial;
            let order = std::mem::take(&mut self.other);
            self.other = std::mem::take(&mut self.order);
            self.learn(order);
        }
    }

    /// Whether what is expected is that of a pass that leaves something out.
    pub(crate) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Ends a pass: what it asked for is what the next one is expected to ask for.
    pub(crate) fn end_pass(&mut self) {
        self.announce(Vec::new());
        self.passes = self.passes.saturating_add(1);
        self.next = 0;
        if self.trace.is_empty() {
            return;
        }
        let trace = std::mem::take(&mut self.trace);
        if trace == self.order {
            self.cursor = 0;
        } else {
            self.learn(trace);
        }
    }

    /// Begins a pass that is not repeated: what is expected is the order of registration.
    pub(crate) fn begin_once(&mut self) {
        self.announce(Vec::new());
        self.trace.clear();
        self.learn(self.registered.clone());
    }

    /// Ends such a pass: what comes behind it in that order is what the next ones are expected to
    /// ask for.
    pub(crate) fn end_once(&mut self) {
        self.announce(Vec::new());
        self.trace.clear();
        let rest = self.order.split_off(self.cursor);
        self.learn(rest);
    }

    /// Gives a pass up (it failed half-way): the order stays, and it starts anew.
    pub(crate) fn abandon_pass(&mut self) {
        self.next = 0;
        self.announce(Vec::new());
        self.trace.clear();
        self.cursor = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One cycle of what comes, with distances.
    fn coming(schedule: &Schedule) -> Vec<(usize, ChunkId)> {
        (0..).map_while(|distance| Some((distance, schedule.ahead(distance)?))).collect()
    }

    #[test]
    fn follows_registration_then_what_was_seen() {
        let mut schedule = Schedule::new(vec![false; 3], vec![0, 1, 2]);
        assert_eq!(coming(&schedule), [(0, 0), (1, 1), (2, 2)]);
        schedule.asked(0);
        assert_eq!(coming(&schedule), [(0, 1), (1, 2), (2, 0)]);
        schedule.abandon_pass();
        for chunk in [2, 0] {
            schedule.asked(chunk);
        }
        assert_eq!(schedule.distance(1), Some(0));
        schedule.end_pass();
        assert_eq!(coming(&schedule), [(0, 2), (1, 0)]);
        assert_eq!(schedule.distance(1), None);
    }

    #[test]
    fn expects_what_another_schedule_has_seen() {
        let new = || Schedule::new(vec![false, false, true], vec![0, 1, 2]);
        let mut seen = new();
        [0, 1, 2, 1, 0].into_iter().for_each(|chunk| seen.asked(chunk));
        seen.end_pass();
        let mut schedule = new();
        schedule.expect(seen.order().to_vec());
        assert_eq!(coming(&schedule), [(0, 0), (1, 1), (2, 1), (3, 0)]);
        // What it has not, and what is not scheduled, is left out.
        schedule.expect(vec![1, 2, 7]);
        assert_eq!(coming(&schedule), [(0, 1)]);
    }

    #[test]
    fn distance_wraps_round_and_counts_repeats() {
        let mut schedule = Schedule::new(vec![false; 2], vec![0, 1, 0, 1, 0]);
        assert_eq!(schedule.distance(0), Some(0));
        schedule.asked(0);
        assert_eq!(schedule.distance(0), Some(1));
        for chunk in [1, 0, 1, 0] {
            schedule.asked(chunk);
        }
        assert_eq!(schedule.distance(1), Some(1));
        assert_eq!(schedule.distance(0), Some(0));
    }

    #[test]
    fn a_pass_that_is_not_repeated_leaves_what_comes_behind_it() {
        let mut schedule = Schedule::new(vec![false; 4], vec![0, 1, 2, 3]);
        for _ in 0..2 {
            schedule.begin_once();
            assert_eq!(coming(&schedule), [(0, 0), (1, 1), (2, 2), (3, 3)]);
            for chunk in [0, 1] {
                schedule.asked(chunk);
            }
            assert_eq!(schedule.distance(2), Some(0));
            schedule.end_once();
            assert_eq!(coming(&schedule), [(0, 2), (1, 3)]);
            for chunk in [3, 2] {
                schedule.asked(chunk);
            }
            schedule.end_pass();
            assert_eq!(coming(&schedule), [(0, 3), (1, 2)]);
            assert_eq!(schedule.distance(0), None);
        }
    }

    #[test]
    fn what_is_announced_comes_before_the_order() {
        let mut schedule = Schedule::new(vec![false, true, false, true, true], vec![0, 1, 2, 3, 4]);
        assert_eq!(coming(&schedule), [(0, 0), (1, 2)]);
        schedule.announce(vec![4, 1]);
        assert_eq!(coming(&schedule), [(0, 4), (1, 1), (2, 0), (3, 2)]);
        assert_eq!([4, 1, 0, 2].map(|chunk| schedule.distance(chunk)), [0, 1, 2, 3].map(Some));
        // What is passed over is not expected any more.
        schedule.asked(1);
        assert_eq!(coming(&schedule), [(0, 0), (1, 2)]);
        schedule.announce(vec![3]);
        schedule.asked(0);
        assert_eq!(coming(&schedule), [(0, 3), (1, 2), (2, 0)]);
        schedule.announce(vec![]);
        schedule.asked(2);
        schedule.asked(4);
        schedule.end_pass();
        assert_eq!(coming(&schedule), [(0, 0), (1, 2)]);
    }

    #[test]
    fn occasional_chunks_are_expected_the_later_the_rarer_they_are() {
        let mut schedule = Schedule::new(vec![true; 4], vec![]);
        for pass in 0..20 {
            for chunk in [0, 2, 3] {
                if chunk != 2 || pass % 4 == 0 {
                    schedule.asked(chunk);
                }
            }
            schedule.end_pass();
        }
        let distance = |schedule: &Schedule, chunk| schedule.distance(chunk).unwrap();
        let by_distance = |schedule: &Schedule| {
            let mut chunks = [0, 1, 2, 3];
            chunks.sort_by_key(|chunk| distance(schedule, *chunk));
            chunks
        };
        // Of two that all passes ask for, what comes next in a pass comes first.
        assert_eq!(by_distance(&schedule), [0, 3, 2, 1]);
        schedule.asked(0);
        assert_eq!(by_distance(&schedule), [3, 0, 2, 1]);
        // What was always asked for is forgotten in time.
        for _ in 0..30 {
            schedule.asked(1);
            schedule.asked(2);
            schedule.end_pass();
        }
        assert!(distance(&schedule, 0) > distance(&schedule, 1));
    }

    #[test]
    fn passes_that_leave_something_out_have_an_order_of_their_own() {
        let mut schedule = Schedule::new(vec![false; 3], vec![0, 1, 2]);
        let partial = [(0, 0), (1, 1)];
        for (is_partial, asked) in [(true, &[0, 1][..]), (true, &[0, 1]), (false, &[0, 2, 1])] {
            schedule.begin(is_partial);
            asked.iter().for_each(|chunk| schedule.asked(*chunk));
            schedule.end_pass();
        }
        assert_eq!(coming(&schedule), [(0, 0), (1, 2), (2, 1)]);
        schedule.begin(true);
        assert_eq!(coming(&schedule), partial);
        // Nothing was asked for: both remain.
        schedule.end_pass();
        assert_eq!(coming(&schedule), partial);
        schedule.begin(false);
        assert_eq!(coming(&schedule), [(0, 0), (1, 2), (2, 1)]);
        // The first that leaves nothing out is expected to ask for all.
        let mut schedule = Schedule::new(vec![false; 3], vec![0, 1, 2]);
        schedule.begin(true);
        schedule.asked(0);
        schedule.end_pass();
        schedule.begin(false);
        assert_eq!(coming(&schedule), [(0, 0), (1, 1), (2, 2)]);
    }

    #[test]
    fn a_failed_pass_teaches_nothing() {
        let mut schedule = Schedule::new(vec![false; 2], vec![0, 1]);
        schedule.asked(1);
        schedule.abandon_pass();
        schedule.end_pass();
        assert_eq!(coming(&schedule), [(0, 0), (1, 1)]);
    }
}
