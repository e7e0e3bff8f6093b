//! The order in which tensors become resident in main memory, and how many fit.
//!
//! What is resident after a step of a [`ResidencyOrder`] is still resident after the next, so a
//! larger budget never streams more. The ring keeps what would become resident next, so a larger
//! budget is never predicted slower either.

use crate::groups::{Group, Groups, Streamed};
use crate::tree::{PAGE, Weights};
use std::cmp::Reverse;
use std::iter::Peekable;

/// The order in which groups become resident, without those that always are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResidencyOrder(Vec<usize>);

impl ResidencyOrder {
    /// The order of execution, with blocks that share memory at the first of them. Experts that a
    /// router chooses come behind what all tokens need, and tables read by single rows last, since
    /// streaming them costs nothing. None of Accelerate's strategies
    /// fills memory in a way that is predicted to be faster.
    pub(crate) fn together(groups: &Groups) -> Self {
        Self::by_first_use(groups, |block| groups.anchors[block])
    }

    /// The order of execution, tensor by tensor.
    pub(crate) fn sequential(groups: &Groups) -> Self {
        Self::by_first_use(groups, |_| 0)
    }

    fn by_first_use(groups: &Groups, turn: impl Fn(usize) -> usize) -> Self {
        let mut order: Vec<_> = movable(groups).collect();
        // A group comes at its first tensor that streams.
        order.sort_by_key(|at| {
            let group = &groups.groups[*at];
            let first = group.uses().find(|one| one.unit > 0);
            let (routed, turn, tensor) = match first {
                Some(one) => (group.is_routed(), turn(one.block()), one.tensor()),
                None => (false, 0, *at),
            };
            (first.is_none(), routed, turn, tensor)
        });
        Self(order)
    }

    /// Spread over all blocks, so that the disk keeps reading while resident weights compute: the
    /// largest tensor of each block, then the next of each, in an order in which the first blocks
    /// lie far apart. What only the first pass over a prompt uses comes behind them, then experts
    /// that a router chooses, and tables read by single rows come last.
    pub(crate) fn spread(groups: &Groups) -> Self {
        let (mut tables, mut once) = (Vec::new(), Vec::new());
        let (mut for_all, mut routed) = (Vec::new(), Vec::new());
        for at in movable(groups) {
            let group = &groups.groups[at];
            match group.uses().find(|one| one.unit > 0) {
                // What is read once a prompt is the cheapest to stream.
                Some(_) if group.uses().all(|one| one.once) => once.push(at),
                Some(first) => {
                    let by_block = if group.is_routed() { &mut routed } else { &mut for_all };
                    by_block.push((first.block(), Reverse(group.footprint), at));
                }
                None => tables.push(at),
            }
        }
        let mut order = Vec::with_capacity(groups.groups.len());
        order.extend(far_apart(for_all));
        order.extend(once);
        order.extend(far_apart(routed));
        order.extend(tables);
        Self(order)
    }

    /// How many groups it has.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The groups, the first to become resident first.
    pub(crate) fn groups(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// Makes as many of the groups for which `inside` is true resident as fit beside the ring that
    /// the others need. The remaining memory enlarges the ring.
    ///
    /// # Errors
    /// The least memory that suffices, if nothing fits.
    pub(crate) fn fit(
        &self,
        groups: &Groups,
        capacity: &Capacity,
        inside: impl Fn(usize) -> bool,
    ) -> Result<StreamingSet, MemoryDemand> {
        let mut walk = Walk::new(self, groups, capacity, inside);
        match capacity.memory {
            None => Ok(walk.left.set(0)),
            Some(memory) => {
                walk.to(memory)?;
                let ring = walk.left.ring_in(memory);
                Ok(walk.left.set(ring))
            }
        }
    }

    /// The disk traffic of each block for each of `memories`, the largest first; none where nothing
    /// fits. One walk finds them all.
    pub(crate) fn traffic<'a>(
        &'a self,
        groups: &'a Groups,
        min_ring: u64,
        memories: impl Iterator<Item = u64> + 'a,
    ) -> impl Iterator<Item = Option<Vec<DiskTraffic>>> + 'a {
        let capacity = Capacity { memory: None, disk: None, min_ring };
        let mut walk = Walk::new(self, groups, &capacity, |_| true);
        memories.map(move |memory| {
            walk.to(memory).ok()?;
            Some(walk.left.traffic(walk.left.ring_in(memory)))
        })
    }
}

/// Groups with their block and size: the largest of each block, then the next of each, in an order
/// in which the first blocks lie far apart.
fn far_apart(mut by_block: Vec<(usize, Reverse<u64>, usize)>) -> Vec<usize> {
    // Mostly sorted already.
    by_block.sort();
    let mut blocks: Vec<&[_]> = by_block.chunk_by(|a, b| a.0 == b.0).collect();
    blocks.sort_by_key(|block| block[0].0.reverse_bits());
    let mut order = Vec::with_capacity(by_block.len());
    for turn in 0.. {
        blocks.retain(|block| block.len() > turn);
        if blocks.is_empty() {
            break;
        }
        order.extend(blocks.iter().map(|block| block[turn].2));
    }
    order
}

/// The walk from everything resident to what fits: groups leave in reverse order, but experts that
/// a router chooses all at once, since the ring keeps those that are chosen most.
struct Walk<'a, I: Iterator<Item = usize>> {
    /// Groups that are still resident, the next to leave first.
    rest: Peekable<I>,
    disk: Option<u64>,
    cheapest: MemoryDemand,
    left: StreamedGroups<'a>,
}

impl<'a> Walk<'a, std::iter::Empty<usize>> {
    fn new<F: Fn(usize) -> bool>(
        order: &'a ResidencyOrder,
        groups: &'a Groups,
        capacity: &Capacity,
        inside: F,
    ) -> Walk<'a, impl Iterator<Item = usize> + use<'a, F>> {
        let mut left = StreamedGroups::new(groups, capacity.min_ring);
        let all = groups.groups.iter().enumerate();
        let resident = all.filter(|(at, _)| inside(*at));
        left.demand.resident = resident.map(|(_, group)| group.footprint).sum();
        Walk {
            rest: order.0.iter().rev().copied().filter(move |at| inside(*at)).peekable(),
            disk: capacity.disk,
            cheapest: left.demand,
            left,
        }
    }
}

impl<I: Iterator<Item = usize>> Walk<'_, I> {
    /// Streams more groups until the resident ones and the ring fit into `memory`.
    fn to(&mut self, memory: u64) -> Result<(), MemoryDemand> {
        while self.left.demand.sum() > memory {
            if self.left.demand.sum() < self.cheapest.sum() {
                self.cheapest = self.left.demand;
            }
            let groups = &self.left.groups.groups;
            let Some(at) = self.rest.next() else {
                return Err(self.cheapest);
            };
            self.stream(at)?;
            let with_it = |other: &usize| groups[at].is_routed() && groups[*other].is_routed();
            while let Some(other) = self.rest.next_if(with_it) {
                self.stream(other)?;
            }
        }
        Ok(())
    }

    /// Streams a group, if the disk may hold it.
    fn stream(&mut self, at: usize) -> Result<(), MemoryDemand> {
        let bytes = self.left.groups.groups[at].bytes;
        if self.disk.is_some_and(|most| self.left.on_disk + bytes > most) {
            return Err(self.cheapest);
        }
        self.left.add(at);
        Ok(())
    }
}

/// Streamed groups, added one by one; the last would be the next to become resident.
#[derive(Clone)]
pub(crate) struct StreamedGroups<'a> {
    groups: &'a Groups,
    /// Of the resident groups and the least ring.
    demand: MemoryDemand,
    ring: Streamed,
    on_disk: u64,
    streamed: Vec<usize>,
    /// The traffic of each block if the ring keeps nothing.
    traffic: Vec<DiskTraffic>,
}

impl<'a> StreamedGroups<'a> {
    pub(crate) fn new(groups: &'a Groups, min_ring: u64) -> Self {
        Self {
            groups,
            demand: MemoryDemand::default(),
            ring: Streamed::new(groups, min_ring),
            on_disk: 0,
            streamed: Vec::new(),
            traffic: vec![DiskTraffic::default(); groups.anchors.len()],
        }
    }

    pub(crate) fn add(&mut self, at: usize) {
        let group = &self.groups.groups[at];
        self.on_disk += group.bytes;
        self.streamed.push(at);
        self.ring.add(group);
        for one in group.uses() {
            let traffic = &mut self.traffic[one.block()];
            traffic.streamed = traffic.streamed.plus(one.stored);
            if one.once {
                traffic.kept = traffic.kept.plus(one.stored);
            }
        }
        self.demand.resident = self.demand.resident.saturating_sub(group.footprint);
        self.demand.ring = self.ring.ring();
    }

    /// The ring if weights and ring may take `memory` bytes together.
    fn ring_in(&self, memory: u64) -> u64 {
        let left = (memory - self.demand.resident) / PAGE * PAGE;
        left.max(self.demand.ring)
    }

    /// The traffic of each block with a ring of so many bytes.
    fn traffic(&self, ring: u64) -> Vec<DiskTraffic> {
        let (_, keeps) = useful(ring, &self.ring);
        let mut traffic = self.traffic.clone();
        keep(self.groups, self.streamed.iter().rev(), keeps, &mut traffic);
        traffic
    }

    /// With the least ring that streams them well, and `more` bytes.
    pub(crate) fn with_ring(&self, more: u64) -> StreamingSet {
        let ring = self.demand.ring.saturating_add(more) / PAGE * PAGE;
        self.clone().set(ring)
    }

    fn set(mut self, ring: u64) -> StreamingSet {
        let traffic = self.traffic(ring);
        self.streamed.reverse();
        StreamingSet { streamed: self.streamed, ring: useful(ring, &self.ring).0, traffic }
    }
}

/// The useful bytes of a ring, and how many of them keep weights from one pass to the next: the
/// least ring only passes weights through; Belady's eviction keeps weights in what is beyond.
fn useful(ring: u64, streaming: &Streamed) -> (u64, u64) {
    match streaming.units {
        all if ring >= all => (all, u64::MAX),
        _ => (ring, ring - streaming.ring()),
    }
}

/// Groups that need not stay.
fn movable(groups: &Groups) -> impl Iterator<Item = usize> + '_ {
    let all = groups.groups.iter().enumerate();
    all.filter(|(_, group)| !group.stays).map(|(at, _)| at)
}

/// The memory that a choice takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MemoryDemand {
    /// Memory of resident tensors.
    pub(crate) resident: u64,
    /// The least ring that streams the rest well, in whole pages.
    pub(crate) ring: u64,
}

impl MemoryDemand {
    pub(crate) fn sum(self) -> u64 {
        self.resident.saturating_add(self.ring)
    }
}

/// The memory that may be used, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    /// Main memory for weights and ring; none if unbounded.
    pub(crate) memory: Option<u64>,
    /// Weights that may be on disk only; none if unbounded.
    pub(crate) disk: Option<u64>,
    /// The least ring.
    pub(crate) min_ring: u64,
}

/// The groups that are streamed, and through what.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StreamingSet {
    /// Streamed groups, the next to become resident first.
    pub(crate) streamed: Vec<usize>,
    /// The size of the ring.
    pub(crate) ring: u64,
    /// The disk traffic of each block.
    pub(crate) traffic: Vec<DiskTraffic>,
}

/// Adds what a ring keeps if it has `keeps` bytes for that.
fn keep<'a>(
    groups: &Groups,
    mut streamed: impl Iterator<Item = &'a usize>,
    mut keeps: u64,
    reads: &mut [DiskTraffic],
) {
    while keeps > 0
        && let Some(at) = streamed.next()
    {
        let group = &groups.groups[*at];
        // What is read by rows takes nothing of a ring.
        let kept = group.footprint.min(keeps) * u64::from(group.units > 0);
        if keeps != u64::MAX {
            keeps -= kept;
        }
        for one in group.uses().filter(|one| !one.once) {
            let Weights { all, routed } = one.stored;
            let more = Weights { all: share(group, all, kept), routed: share(group, routed, kept) };
            let block = &mut reads[one.block()];
            block.kept = block.kept.plus(more);
        }
    }
}

/// The share of `bytes` that `kept` is of the group.
fn share(group: &Group, bytes: u64, kept: u64) -> u64 {
    let part = u128::from(bytes) * u128::from(kept) / u128::from(group.footprint.max(1));
    u64::try_from(part).unwrap_or(u64::MAX).min(bytes)
}

/// What a block reads from disk in a pass, in bytes as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DiskTraffic {
    /// If the ring keeps nothing of it.
    pub(crate) streamed: Weights,
    /// How much of that no later pass reads: the ring keeps it, or only the first pass over a
    /// prompt uses it.
    pub(crate) kept: Weights,
}
