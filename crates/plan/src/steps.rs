//! In which order tensors of main memory become resident, and how many fit.
//!
//! What is resident after a step of an [`ResidencyOrder`] is so after the next: that is why a
//! larger budget never streams more. What the ring keeps from one pass to the next is taken for
//! what would become resident next: that is why a larger budget is never predicted slower either.

use crate::groups::{Group, Groups, Streamed};
use crate::tree::PAGE;
use std::cmp::Reverse;

/// An order in which groups become resident; those that always stay are not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResidencyOrder(Vec<usize>);

impl ResidencyOrder {
    /// In the order of execution, blocks that share memory together, where the first of them is;
    /// tables that are read by single rows come last, since streaming those costs nothing. No
    /// strategy of Accelerate's can fill memory in a way that is predicted to be faster than this.
    pub(crate) fn together(groups: &Groups) -> Self {
        Self::by_first_use(groups, |block| groups.anchors[block])
    }

    /// In the order of execution, each tensor for itself.
    pub(crate) fn sequential(groups: &Groups) -> Self {
        Self::by_first_use(groups, |_| 0)
    }

    fn by_first_use(groups: &Groups, turn: impl Fn(usize) -> usize) -> Self {
        let mut order: Vec<_> = movable(groups).collect();
        // A group's turn is at its first member that streams.
        order.sort_by_key(|at| {
            let group = &groups.groups[*at];
            let first = group.uses().find(|one| one.unit > 0);
            first.map_or((true, 0, *at), |one| {
                (false, turn(one.block()), one.tensor())
            })
        });
        Self(order)
    }

    /// Evenly over the blocks: the largest tensor of each block, then the next of each, the blocks
    /// in such an order that those first chosen lie far apart. What streams is then spread too, so
    /// that the disk reads on while resident weights compute. Tables that are read by single rows
    /// come last.
    pub(crate) fn spread(groups: &Groups) -> Self {
        let mut tables = Vec::new();
        let mut by_block: Vec<(usize, Reverse<u64>, usize)> = Vec::new();
        for at in movable(groups) {
            let group = &groups.groups[at];
            match group.uses().find(|one| one.unit > 0) {
                Some(first) => by_block.push((first.block(), Reverse(group.footprint), at)),
                None => tables.push(at),
            }
        }
        // Groups come by block already, but for those that are shared; and most of a block are
        // equal.
        by_block.sort();
        let mut blocks: Vec<&[_]> = by_block.chunk_by(|a, b| a.0 == b.0).collect();
        blocks.sort_by_key(|block| block[0].0.reverse_bits());
        let mut order = Vec::with_capacity(by_block.len() + tables.len());
        for turn in 0.. {
            blocks.retain(|block| block.len() > turn);
            if blocks.is_empty() {
                break;
            }
            order.extend(blocks.iter().map(|block| block[turn].2));
        }
        order.extend(tables);
        Self(order)
    }

    /// How many groups it has.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The groups, the first to stay first.
    pub(crate) fn groups(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// What fits of the groups for which `inside` is true: as many as can be resident beside the
    /// ring that the others need. All the rest of the memory enlarges the ring.
    ///
    /// # Errors
    /// What the cheapest choice takes, if nothing fits.
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
                Ok(walk.left.set(walk.left.ring_in(memory)))
            }
        }
    }

    /// What each block reads with so much memory, from the largest memory to the least; nothing
    /// where nothing fits. It is found in one go.
    pub(crate) fn traffic<'a>(
        &'a self,
        groups: &'a Groups,
        min_ring: u64,
        memories: impl Iterator<Item = u64> + 'a,
    ) -> impl Iterator<Item = Option<Vec<DiskTraffic>>> + 'a {
        let capacity = Capacity {
            memory: None,
            disk: None,
            min_ring,
        };
        let mut walk = Walk::new(self, groups, &capacity, |_| true);
        memories.map(move |memory| {
            walk.to(memory).ok()?;
            Some(walk.left.traffic(walk.left.ring_in(memory)))
        })
    }
}

/// The way from all that is resident to what fits: groups leave in an order's reverse.
struct Walk<'a, I> {
    /// What has not left.
    rest: I,
    disk: Option<u64>,
    cheapest: MemoryDemand,
    left: Departed<'a>,
}

impl<'a> Walk<'a, ()> {
    fn new<F: Fn(usize) -> bool>(
        order: &'a ResidencyOrder,
        groups: &'a Groups,
        capacity: &Capacity,
        inside: F,
    ) -> Walk<'a, impl Iterator<Item = usize> + use<'a, F>> {
        let mut left = Departed::new(groups, capacity.min_ring);
        let all = groups.groups.iter().enumerate();
        let resident = all.filter(|(at, _)| inside(*at));
        left.demand.resident = resident.map(|(_, group)| group.footprint).sum();
        Walk {
            rest: order.0.iter().rev().copied().filter(move |at| inside(*at)),
            disk: capacity.disk,
            cheapest: left.demand,
            left,
        }
    }
}

impl<I: Iterator<Item = usize>> Walk<'_, I> {
    /// Goes on until what has not left fits into so much memory, together with the ring of the
    /// others.
    fn to(&mut self, memory: u64) -> Result<(), MemoryDemand> {
        while self.left.demand.sum() > memory {
            if self.left.demand.sum() < self.cheapest.sum() {
                self.cheapest = self.left.demand;
            }
            let Some(at) = self.rest.next() else {
                return Err(self.cheapest);
            };
            let bytes = self.left.groups.groups[at].bytes;
            if self
                .disk
                .is_some_and(|most| self.left.on_disk + bytes > most)
            {
                return Err(self.cheapest);
            }
            self.left.add(at);
        }
        Ok(())
    }
}

/// Groups that are streamed, added one by one: what would become resident next comes last.
pub(crate) struct Departed<'a> {
    groups: &'a Groups,
    /// Of what is resident, and of the least ring for the others.
    demand: MemoryDemand,
    ring: Streamed,
    on_disk: u64,
    streamed: Vec<usize>,
    /// What each block reads if the ring keeps nothing.
    traffic: Vec<DiskTraffic>,
}

impl<'a> Departed<'a> {
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
            self.traffic[one.block()].streamed += one.stored;
        }
        self.demand.resident = self.demand.resident.saturating_sub(group.footprint);
        self.demand.ring = self.ring.ring();
    }

    /// The ring where weights and ring may take so much memory together.
    fn ring_in(&self, memory: u64) -> u64 {
        let left = (memory - self.demand.resident) / PAGE * PAGE;
        left.max(self.demand.ring)
    }

    /// What blocks read with a ring of so many bytes.
    fn traffic(&self, ring: u64) -> Vec<DiskTraffic> {
        let (_, keeps) = useful(ring, &self.ring);
        let mut traffic = self.traffic.clone();
        keep(self.groups, self.streamed.iter().rev(), keeps, &mut traffic);
        traffic
    }

    /// The least ring that streams them well, and `more` bytes.
    pub(crate) fn set_with(&self, more: u64) -> StreamingSet {
        self.set(self.demand.ring.saturating_add(more) / PAGE * PAGE)
    }

    fn set(&self, ring: u64) -> StreamingSet {
        StreamingSet {
            streamed: self.streamed.iter().rev().copied().collect(),
            ring: useful(ring, &self.ring).0,
            traffic: self.traffic(ring),
        }
    }
}

/// The part of a ring that is of use, and what of it holds weights from one pass to the next.
fn useful(ring: u64, streaming: &Streamed) -> (u64, u64) {
    let ring = ring.min(streaming.useful_ring());
    // The least ring is what passes through; beyond that, Belady's rule keeps a part of the cycle.
    let all = ring == streaming.useful_ring();
    let keeps = if all {
        u64::MAX
    } else {
        ring - streaming.ring()
    };
    (ring, keeps)
}

/// Groups that need not stay.
fn movable(groups: &Groups) -> impl Iterator<Item = usize> + '_ {
    let all = groups.groups.iter().enumerate();
    all.filter(|(_, group)| !group.stays).map(|(at, _)| at)
}

/// What a choice of steps takes, in bytes.
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

/// What there is room for, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    /// Main memory for weights and ring; nothing if it is not bounded.
    pub(crate) memory: Option<u64>,
    /// Weights that may be on disk alone; nothing if that is not bounded.
    pub(crate) disk: Option<u64>,
    /// The least ring.
    pub(crate) min_ring: u64,
}

/// What fits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StreamingSet {
    /// Groups that do not stay, those that would next do so first.
    pub(crate) streamed: Vec<usize>,
    /// The size of the ring.
    pub(crate) ring: u64,
    /// For each block what it reads from disk in each pass, and what of that the ring keeps. In
    /// bytes as stored.
    pub(crate) traffic: Vec<DiskTraffic>,
}

/// Adds to what blocks read what a ring keeps of it that has room for `keeps` bytes.
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
        for one in group.uses() {
            reads[one.block()].kept += share(group, one.stored, kept);
        }
    }
}

/// `bytes` of which as large a part is meant as `kept` is of the group.
fn share(group: &Group, bytes: u64, kept: u64) -> u64 {
    let part = u128::from(bytes) * u128::from(kept) / u128::from(group.footprint.max(1));
    u64::try_from(part).unwrap_or(u64::MAX).min(bytes)
}

/// What a block reads from disk in a pass, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DiskTraffic {
    /// If the ring held nothing of it.
    pub(crate) streamed: u64,
    /// What of that the ring keeps from one pass to the next.
    pub(crate) kept: u64,
}
