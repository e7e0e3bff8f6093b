//! In which order tensors of main memory become resident, and how many fit.
//!
//! What is resident after a step of an [`Order`] is so after the next: that is why a larger budget never streams more. What
//! the ring keeps from one pass to the next is taken for what would become resident next: that is why a larger budget is
//! never predicted slower either.

use crate::groups::{Group, Groups, Streamed};
use crate::tree::PAGE;
use std::cmp::Reverse;

/// An order in which groups become resident; those that always stay are not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order(Vec<usize>);

impl Order {
    /// In the order of execution; tables that are read by single rows come last, since streaming those costs nothing.
    pub(crate) fn sequential(groups: &Groups) -> Self {
        let mut order: Vec<_> = movable(groups).collect();
        // A group's turn is at its first member that streams.
        order.sort_by_key(|at| {
            let group = &groups.groups[*at];
            let first = group.uses().find(|one| one.unit > 0);
            first.map_or((true, *at), |one| (false, one.tensor))
        });
        Self(order)
    }

    /// Evenly over the blocks: the largest tensor of each block, then the next of each, the blocks in such an order
    /// that those first chosen lie far apart. What streams is then spread too, so that the disk reads on while
    /// resident weights compute. Tables that are read by single rows come last.
    pub(crate) fn spread(groups: &Groups) -> Self {
        let mut by_block: Vec<_> = movable(groups)
            .map(|at| {
                let group = &groups.groups[at];
                let first = group.uses().find(|one| one.unit > 0);
                (first.map(|one| one.block), Reverse(group.footprint), at)
            })
            .collect();
        by_block.sort_unstable();
        let mut turn = (None, 0u32);
        let mut turns: Vec<_> = by_block
            .into_iter()
            .map(|(block, _, at)| {
                turn = match turn {
                    (last, turn) if last == block => (last, turn + 1),
                    _ => (block, 0),
                };
                match block {
                    Some(block) => (false, turn.1, block.reverse_bits(), at),
                    None => (true, 0, 0, at),
                }
            })
            .collect();
        turns.sort_unstable();
        Self(turns.into_iter().map(|(.., at)| at).collect())
    }

    /// How many groups it has.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The groups, the first to stay first.
    pub(crate) fn groups(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// What fits of the groups for which `inside` is true: as many as can be resident beside the ring that the others need.
    /// All the rest of the memory enlarges the ring.
    ///
    /// # Errors
    /// What the cheapest choice takes, if nothing fits.
    pub(crate) fn fit(
        &self,
        groups: &Groups,
        room: &Room,
        inside: impl Fn(usize) -> bool,
    ) -> Result<Fit, Demand> {
        let all = groups.groups.iter().enumerate();
        let resident = all.filter(|(at, _)| inside(*at));
        let mut demand = Demand {
            resident: resident.map(|(_, group)| group.footprint).sum(),
            ring: 0,
        };
        let Some(memory) = room.memory else {
            return Ok(Fit::default());
        };
        let mut cheapest = demand;
        let mut streaming = Streamed::new(groups, room.min_ring);
        let mut on_disk = 0u64;
        let mut streamed = Vec::new();
        let mut rest = self.0.iter().rev().filter(|at| inside(**at));
        while demand.sum() > memory {
            if demand.sum() < cheapest.sum() {
                cheapest = demand;
            }
            let Some(at) = rest.next() else {
                return Err(cheapest);
            };
            let group = &groups.groups[*at];
            on_disk += group.bytes;
            if room.disk.is_some_and(|most| on_disk > most) {
                return Err(cheapest);
            }
            streamed.push(*at);
            streaming.add(group);
            demand.resident -= group.footprint;
            demand.ring = streaming.ring();
        }
        streamed.reverse();
        let left = (memory - demand.resident) / PAGE * PAGE;
        Ok(Fit::new(
            groups,
            streamed,
            left.max(demand.ring),
            &streaming,
        ))
    }
}

/// Groups that need not stay.
fn movable(groups: &Groups) -> impl Iterator<Item = usize> + '_ {
    let all = groups.groups.iter().enumerate();
    all.filter(|(_, group)| !group.stays).map(|(at, _)| at)
}

/// What a choice of steps takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Demand {
    /// Memory of resident tensors.
    pub(crate) resident: u64,
    /// The least ring that streams the rest well, in whole pages.
    pub(crate) ring: u64,
}

impl Demand {
    pub(crate) fn sum(self) -> u64 {
        self.resident.saturating_add(self.ring)
    }
}

/// What there is room for, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Main memory for weights and ring; nothing if it is not bounded.
    pub(crate) memory: Option<u64>,
    /// Weights that may be on disk alone; nothing if that is not bounded.
    pub(crate) disk: Option<u64>,
    /// The least ring.
    pub(crate) min_ring: u64,
}

/// What fits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Fit {
    /// Groups that do not stay, those that would next do so first.
    pub(crate) streamed: Vec<usize>,
    /// The size of the ring.
    pub(crate) ring: u64,
    /// What of the ring holds weights from one pass to the next.
    keeps: u64,
}

impl Fit {
    /// With a ring of `memory` bytes at most.
    pub(crate) fn new(
        groups: &Groups,
        streamed: Vec<usize>,
        memory: u64,
        streaming: &Streamed,
    ) -> Self {
        debug_assert!(streamed.iter().all(|at| *at < groups.groups.len()));
        let ring = memory.min(streaming.useful_ring());
        Self {
            streamed,
            ring,
            keeps: match ring == streaming.useful_ring() {
                true => u64::MAX,
                // The least ring is what passes through; beyond that, Belady's rule keeps a part of the cycle.
                false => ring - streaming.ring(),
            },
        }
    }

    /// For each of `blocks` blocks what it reads from disk in each pass, and what of that the ring keeps. In bytes
    /// as stored.
    pub(crate) fn reads(&self, groups: &Groups, blocks: usize) -> Vec<Reads> {
        let mut reads = vec![Reads::default(); blocks];
        let mut keeps = self.keeps;
        for group in self.streamed.iter().map(|at| &groups.groups[*at]) {
            let kept = match group.streams() {
                true => group.footprint.min(keeps),
                false => 0,
            };
            if keeps != u64::MAX {
                keeps -= kept;
            }
            for one in group.uses() {
                reads[one.block].streamed += one.stored;
                reads[one.block].kept += share(group, one.stored, kept);
            }
        }
        reads
    }
}

/// `bytes` of which as large a part is meant as `kept` is of the group.
fn share(group: &Group, bytes: u64, kept: u64) -> u64 {
    let part = u128::from(bytes) * u128::from(kept) / u128::from(group.footprint.max(1));
    u64::try_from(part).unwrap_or(u64::MAX).min(bytes)
}

/// What a block reads from disk in a pass, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reads {
    /// If the ring held nothing of it.
    pub(crate) streamed: u64,
    /// What of that the ring keeps from one pass to the next.
    pub(crate) kept: u64,
}
