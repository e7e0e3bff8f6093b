//! In which order tensors become resident, and what each step of it costs.
//!
//! Step 0 are the tensors that are too small to be worth streaming. Each further step is a tensor (with those
//! that share its memory), in the order of execution; tables that are read by single rows come last, since
//! streaming those costs nothing. What is resident after step `k` is so after step `k + 1`: that is why a larger
//! budget never streams more.

use crate::tree::round_up;
use crate::{Error, Options, Tensor, Tree, unit_footprint};
use std::collections::{HashMap, HashSet};

/// The steps of a tree.
pub(crate) struct Steps {
    /// What is added at each step.
    costs: Vec<Cost>,
    /// For each tensor, in the tree's order, the step at which it becomes resident.
    of_tensor: Vec<usize>,
}

/// Bytes of memory that the tensors of one step take.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    /// If they are resident.
    resident: u64,
    /// The largest unit, if they are streamed.
    largest: u64,
    /// All units, if they are streamed.
    units: u64,
}

/// What a choice of steps takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Memory of resident tensors.
    pub(crate) resident: u64,
    /// The least ring that streams the rest well, in whole pages.
    pub(crate) ring: u64,
    /// The ring that would hold all of the rest: a larger one has no use.
    pub(crate) useful_ring: u64,
}

/// Tensors that share their memory.
struct Group<'a> {
    members: Vec<&'a Tensor>,
    step: Option<usize>,
}

impl Group<'_> {
    fn bytes(&self) -> u64 {
        self.members
            .iter()
            .map(|tensor| tensor.bytes)
            .max()
            .unwrap_or(0)
    }
}

impl Steps {
    /// # Errors
    /// [`Error::Duplicate`] and [`Error::TooLarge`]: what makes a tree impossible to plan.
    pub(crate) fn new(tree: &Tree, options: &Options) -> Result<Self, Error> {
        check(tree, options)?;
        let (mut groups, of_tensor) = group(tree);
        let mut costs = vec![Cost::default()];
        for group in &mut groups {
            if group.bytes() < options.small_tensor {
                group.step = Some(0);
                costs[0].add(group, options);
            }
        }
        // First what streams, at its first use that does; then what is only read by rows.
        for streaming in [true, false] {
            for (tensor, at) in tree.tensors().zip(&of_tensor) {
                let group = &mut groups[*at];
                let streams = tensor.unit(options.tile_bytes) > 0;
                if group.step.is_none() && (streams || !streaming) {
                    let mut cost = Cost::default();
                    cost.add(group, options);
                    group.step = Some(costs.len());
                    costs.push(cost);
                }
            }
        }
        Ok(Self {
            costs,
            // Every group got a step above.
            of_tensor: of_tensor
                .iter()
                .map(|at| groups[*at].step.unwrap_or(0))
                .collect(),
        })
    }

    /// What each number of steps takes: none but step 0 first, all of them last.
    pub(crate) fn demands(&self, options: &Options) -> Vec<Demand> {
        let mut resident: u64 = self.costs.iter().map(|cost| cost.resident).sum();
        let (mut largest, mut units) = (0u64, 0u64);
        let mut demands: Vec<_> = self
            .costs
            .iter()
            .rev()
            .map(|cost| {
                let demand = Demand {
                    resident,
                    ring: (2 * largest).max(round_up(options.min_ring)).min(units),
                    useful_ring: units,
                };
                resident -= cost.resident;
                largest = largest.max(cost.largest);
                units = units.saturating_add(cost.units);
                demand
            })
            .collect();
        demands.reverse();
        demands
    }

    /// For each tensor, in the tree's order, whether it is resident after `step`.
    pub(crate) fn resident_after(&self, step: usize) -> impl Iterator<Item = bool> + '_ {
        self.of_tensor.iter().map(move |own| *own <= step)
    }
}

impl Cost {
    fn add(&mut self, group: &Group<'_>, options: &Options) {
        self.resident += unit_footprint(group.bytes());
        for tensor in &group.members {
            self.largest = self.largest.max(tensor.unit(options.tile_bytes));
            self.units = self.units.saturating_add(tensor.units(options.tile_bytes));
        }
    }
}

/// Groups of tensors that share their memory; and for each tensor, in the tree's order, its group.
fn group(tree: &Tree) -> (Vec<Group<'_>>, Vec<usize>) {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut by_key: HashMap<&str, usize> = HashMap::new();
    let of_tensor = tree
        .tensors()
        .map(|tensor| {
            let new = groups.len();
            let at = match &tensor.tied {
                Some(key) => *by_key.entry(key).or_insert(new),
                None => new,
            };
            if at == new {
                groups.push(Group {
                    members: Vec::new(),
                    step: None,
                });
            }
            groups[at].members.push(tensor);
            at
        })
        .collect();
    (groups, of_tensor)
}

/// Names are given once, and no sum that is taken later overflows.
fn check(tree: &Tree, options: &Options) -> Result<(), Error> {
    let duplicate = |what, name: &str| Error::Duplicate {
        what,
        name: name.to_string(),
    };
    let mut names = HashSet::new();
    for block in &tree.blocks {
        if !names.insert(block.name.as_str()) {
            return Err(duplicate("block", &block.name));
        }
    }
    names.clear();
    // The budget that would do is at most: everything, twice the largest unit, and the needs.
    let too_large = |name: &str| Error::TooLarge {
        name: name.to_string(),
    };
    let mut largest = 0;
    let mut sum = options.needs.sum();
    let (mut held, mut stored) = (0u64, 0u64);
    for tensor in tree.tensors() {
        if !names.insert(tensor.name.as_str()) {
            return Err(duplicate("tensor", &tensor.name));
        }
        largest = largest.max(unit_footprint(tensor.bytes));
        let sums = (
            sum.checked_add(unit_footprint(tensor.bytes)),
            held.checked_add(tensor.bytes),
            stored.checked_add(tensor.stored_bytes),
        );
        let (Some(next), Some(next_held), Some(next_stored)) = sums else {
            return Err(too_large(&tensor.name));
        };
        (sum, held, stored) = (next, next_held, next_stored);
        let with_ring = largest
            .checked_mul(2)
            .map(|twice| twice.max(round_up(options.min_ring)))
            .and_then(|ring| ring.checked_add(sum));
        if with_ring.is_none() {
            return Err(too_large(&tensor.name));
        }
    }
    Ok(())
}
