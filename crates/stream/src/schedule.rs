//! What will be asked for next: the order last seen.

use crate::ChunkId;

/// A trace longer than this is cut: what comes later is then fetched on demand.
const LONGEST: usize = 1 << 20;

/// The cyclic order in which chunks are asked for, learned from the last pass.
pub(crate) struct Schedule {
    order: Vec<ChunkId>,
    /// The order of registration.
    registered: Vec<ChunkId>,
    /// For each chunk, its positions in `order`, ascending.
    positions: Vec<Vec<u32>>,
    /// Position in `order` of what is expected next.
    cursor: usize,
    /// What this pass asked for so far.
    trace: Vec<ChunkId>,
}

impl Schedule {
    pub(crate) fn new(chunks: usize, order: Vec<ChunkId>) -> Self {
        let mut schedule = Self {
            order: Vec::new(),
            registered: order.clone(),
            positions: vec![Vec::new(); chunks],
            cursor: 0,
            trace: Vec::new(),
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

    /// Notes that `chunk` was asked for now.
    pub(crate) fn asked(&mut self, chunk: ChunkId) {
        if self.trace.len() < LONGEST {
            self.trace.push(chunk);
        }
        if let Some(distance) = self.distance(chunk) {
            self.cursor = (self.cursor + distance + 1) % self.order.len();
        }
    }

    /// How many other requests are expected before `chunk` is asked for; none if it is not expected.
    pub(crate) fn distance(&self, chunk: ChunkId) -> Option<usize> {
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

    /// Ends a pass: what it asked for is what the next one is expected to ask for.
    pub(crate) fn end_pass(&mut self) {
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
        self.trace.clear();
        self.learn(self.registered.clone());
    }

    /// Ends such a pass: what comes behind it in that order is what the next ones are expected to ask for.
    pub(crate) fn end_once(&mut self) {
        self.trace.clear();
        let rest = self.order.split_off(self.cursor);
        self.learn(rest);
    }

    /// Gives a pass up (it failed half-way): the order stays, and it starts anew.
    pub(crate) fn abandon_pass(&mut self) {
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
        let mut schedule = Schedule::new(3, vec![0, 1, 2]);
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
    fn distance_wraps_round_and_counts_repeats() {
        let mut schedule = Schedule::new(2, vec![0, 1, 0, 1, 0]);
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
        let mut schedule = Schedule::new(4, vec![0, 1, 2, 3]);
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
    fn a_failed_pass_teaches_nothing() {
        let mut schedule = Schedule::new(2, vec![0, 1]);
        schedule.asked(1);
        schedule.abandon_pass();
        schedule.end_pass();
        assert_eq!(coming(&schedule), [(0, 0), (1, 1)]);
    }
}
