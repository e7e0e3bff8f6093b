//! Tied tensors as groups, and what streaming each group takes.

use crate::tree::{Weights, holder, round_up};
use crate::{Error, Options, Tensor, Tree, unit_footprint};
use foldhash::fast::RandomState;
use indexmap::IndexSet;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The names of a model's tensors, in the tree's order. The hash is seeded, so that nobody can
/// choose names that collide.
pub(crate) type Names = IndexSet<Box<str>, RandomState>;

/// The tensors of a tree in groups that share memory; an untied tensor is a group of its own.
pub(crate) struct Groups {
    /// In the order of their first members.
    pub(crate) groups: Vec<Group>,
    /// For each tensor, in the tree's order, its group.
    pub(crate) of_tensor: Vec<usize>,
    /// For each block, the first that it shares memory with, directly or not; itself if none.
    pub(crate) anchors: Vec<usize>,
    /// How many modules hold parameters.
    pub(crate) holders: usize,
    /// The names of the tensors, in the tree's order.
    pub(crate) names: Arc<Names>,
}

/// Tensors that share their memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    /// Bytes as held.
    pub(crate) bytes: u64,
    /// Bytes as stored.
    pub(crate) stored: u64,
    /// Memory that it takes if it is resident, in whole pages.
    pub(crate) footprint: u64,
    /// Whether it is always resident: it cannot be streamed, or is too small.
    pub(crate) stays: bool,
    /// Whether it cannot be streamed.
    pub(crate) only_stays: bool,
    /// Its largest unit, if it is streamed.
    pub(crate) largest: u64,
    /// All its units, if it is streamed; zero if it is read by rows only.
    pub(crate) units: u64,
    first: Use,
    more: Vec<Use>,
}

/// A tensor of a group. There is one for each tensor of the model: it is kept small.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Use {
    /// Its number in the tree's order.
    tensor: u32,
    /// The number of its block.
    block: u32,
    /// The number of the module that holds it.
    holder: u32,
    /// The memory of its largest unit, zero if it is read by rows.
    pub(crate) unit: u64,
    /// Bytes that a pass reads of it from disk.
    pub(crate) stored: Weights,
    /// Bytes that a pass uses.
    pub(crate) bytes: Weights,
    /// Whether only the first pass over a prompt uses it.
    pub(crate) once: bool,
}

impl Use {
    /// Its number in the tree's order.
    pub(crate) fn tensor(&self) -> usize {
        self.tensor as usize
    }

    /// The number of its block.
    pub(crate) fn block(&self) -> usize {
        self.block as usize
    }
}

impl Group {
    /// Whether it is of experts that a router chooses.
    pub(crate) fn is_routed(&self) -> bool {
        self.uses().any(|one| one.bytes.routed > 0)
    }

    /// Its tensors in the order of execution.
    pub(crate) fn uses(&self) -> impl Iterator<Item = &Use> {
        std::iter::once(&self.first).chain(&self.more)
    }
}

impl Groups {
    /// Checks that no name is given twice and that no later sum overflows.
    ///
    /// # Errors
    /// [`Error::Duplicate`] and [`Error::TooLarge`].
    pub(crate) fn new(tree: &Tree, options: &Options) -> Result<Self, Error> {
        let duplicate = |what, name: &str| Error::Duplicate { what, name: name.to_string() };
        let count = tree.blocks.iter().map(|block| block.tensors.len()).sum();
        let mut names = Names::with_capacity_and_hasher(count, RandomState::default());
        let mut groups: Vec<Group> = Vec::with_capacity(count);
        let mut of_tensor = Vec::with_capacity(count);
        let mut by_key: HashMap<&str, usize> = HashMap::new();
        let mut holders = IndexSet::with_capacity_and_hasher(count, RandomState::default());
        let mut last_holder = 0;
        let mut blocks = HashSet::with_capacity(tree.blocks.len());
        // The least budget is at most everything, three times the largest unit, and the overhead.
        let (mut held, mut stored) = (u128::from(options.needs.sum()), 0u128);
        let mut ring = u128::from(round_up(options.min_ring));
        // One pass: a model of many tensors is larger than a processor's caches.
        for (at, block) in tree.blocks.iter().enumerate() {
            if !blocks.insert(block.name.as_str()) {
                return Err(duplicate("block", &block.name));
            }
            held += u128::from(block.work.kv_bytes);
            for tensor in &block.tensors {
                if !names.insert(tensor.name.as_str().into()) {
                    return Err(duplicate("tensor", &tensor.name));
                }
                held += u128::from(unit_footprint(tensor.bytes));
                stored += u128::from(tensor.stored_bytes);
                ring = ring.max(3 * u128::from(unit_footprint(tensor.bytes.max(tensor.row_bytes))));
                let holder = holder(&tensor.name);
                // Most tensors of one module come one after the other.
                if holders.get_index(last_holder) != Some(&holder) {
                    last_holder = holders.insert_full(holder).0;
                }
                let one = Use {
                    tensor: of_tensor.len() as u32,
                    block: at as u32,
                    holder: last_holder as u32,
                    unit: tensor.unit(options.tile_bytes),
                    stored: Weights::of(tensor, tensor.bytes_per_pass()),
                    bytes: Weights::of(tensor, tensor.bytes_per_use()),
                    once: tensor.once,
                };
                let new = groups.len();
                let group = match &tensor.tied {
                    Some(key) => *by_key.entry(key).or_insert(new),
                    None => new,
                };
                of_tensor.push(group);
                match groups.get_mut(group) {
                    Some(group) => group.more.push(one),
                    None => groups.push(Group { first: one, ..Group::default() }),
                }
                let group = &mut groups[group];
                group.bytes = group.bytes.max(tensor.bytes);
                group.stored = group.stored.max(tensor.stored_bytes);
                group.only_stays |= tensor.always_resident;
                group.largest = group.largest.max(one.unit);
                if one.unit > 0 {
                    let units = tensor.units(options.tile_bytes);
                    group.units = group.units.saturating_add(units);
                }
            }
            if stored.max(held + ring) > u64::MAX.into() {
                let name = block.tensors.last().map_or(&block.name, |tensor| &tensor.name);
                return Err(Error::TooLarge { name: name.clone() });
            }
        }
        for group in &mut groups {
            group.footprint = unit_footprint(group.bytes);
            group.stays = group.only_stays || group.bytes < options.small_tensor;
        }
        Ok(Self {
            anchors: anchors(tree.blocks.len(), &groups),
            groups,
            of_tensor,
            holders: holders.len(),
            names: Arc::new(names),
        })
    }

    /// The bytes of a ring that streams any of the groups well.
    pub(crate) fn ring_for_any(&self) -> u64 {
        let mut demand = Streamed::new(self, 0);
        for group in &self.groups {
            demand.add(group);
        }
        demand.ring()
    }
}

fn anchors(blocks: usize, groups: &[Group]) -> Vec<usize> {
    let mut first: Vec<usize> = (0..blocks).collect();
    fn find(first: &mut [usize], mut block: usize) -> usize {
        while first[block] != block {
            first[block] = first[first[block]];
            block = first[block];
        }
        block
    }
    for group in groups {
        for other in &group.more {
            let (a, b) = (find(&mut first, group.first.block()), find(&mut first, other.block()));
            first[a.max(b)] = a.min(b);
        }
    }
    (0..blocks).map(|block| find(&mut first, block)).collect()
}

/// The ring for some groups, added one by one.
#[derive(Debug, Clone)]
pub(crate) struct Streamed {
    holders: Vec<Holder>,
    min_ring: u64,
    largest: u64,
    held: u64,
    /// The bytes of a ring that holds all of them: a larger one is of no use.
    pub(crate) units: u64,
}

impl Streamed {
    pub(crate) fn new(groups: &Groups, min_ring: u64) -> Self {
        Self {
            holders: vec![Holder::default(); groups.holders],
            min_ring: round_up(min_ring),
            largest: 0,
            held: 0,
            units: 0,
        }
    }

    pub(crate) fn add(&mut self, group: &Group) {
        self.largest = self.largest.max(group.largest);
        self.units = self.units.saturating_add(group.units);
        for one in group.uses().filter(|one| one.unit > 0) {
            let holder = &mut self.holders[one.holder as usize];
            holder.add(one.unit);
            if holder.second > 0 {
                self.held = self.held.max(holder.ring());
            }
        }
    }

    /// The least ring that streams them well, in whole pages: twice the largest unit, and room for
    /// any two that one module holds.
    pub(crate) fn ring(&self) -> u64 {
        (2 * self.largest).max(self.held).max(self.min_ring).min(self.units)
    }
}

/// The two largest units that one module holds.
#[derive(Debug, Clone, Copy, Default)]
struct Holder {
    first: u64,
    second: u64,
}

impl Holder {
    fn add(&mut self, unit: u64) {
        self.second = self.second.max(unit.min(self.first));
        self.first = self.first.max(unit);
    }

    /// A ring for both: wherever one lies, it leaves two gaps; the larger must hold the other.
    fn ring(self) -> u64 {
        self.first.saturating_mul(2).saturating_add(self.second)
    }
}

impl Tensor {
    /// Bytes that a pass uses; none if it is read by rows.
    pub(crate) fn bytes_per_use(&self) -> u64 {
        match self.access {
            crate::Access::Rows => 0,
            _ => self.bytes,
        }
    }
}
