//! In which order tensors become resident, and what each step of it costs.
//!
//! Step 0 are the tensors that can only stay, and those too small to be worth streaming. Each further step is a tensor (with those
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
    /// How many modules hold parameters.
    holders: usize,
    /// For each tensor, in the tree's order, the step at which it becomes resident.
    of_tensor: Vec<usize>,
}

/// Bytes of memory that the tensors of one step take.
#[derive(Debug, Clone, Default)]
struct Cost {
    /// If they are resident.
    resident: u64,
    /// Their units that are held whole, if they are streamed: the number of the module that holds each
    /// in [`Steps::holders`], and its bytes.
    held: Vec<(usize, u64)>,
    /// The largest unit, if they are streamed.
    largest: u64,
    /// All units, if they are streamed.
    units: u64,
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

    /// The ring in which both have room at once. Wherever the one lies, it leaves two gaps, and the larger
    /// one must do for the other.
    fn ring(self) -> u64 {
        self.first.saturating_mul(2).saturating_add(self.second)
    }
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
    fn always_resident(&self) -> bool {
        self.members.iter().any(|tensor| tensor.always_resident)
    }

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
        let mut last = 0;
        for group in &mut groups {
            if group.always_resident() || group.bytes() < options.small_tensor {
                group.step = Some(0);
            }
        }
        // First what streams, at its first use that does; then what is only read by rows.
        for streaming in [true, false] {
            for (tensor, at) in tree.tensors().zip(&of_tensor) {
                let group = &mut groups[*at];
                let streams = tensor.unit(options.tile_bytes) > 0;
                if group.step.is_none() && (streams || !streaming) {
                    last += 1;
                    group.step = Some(last);
                }
            }
        }
        Ok(Self::add_up(&groups, &of_tensor, last, options))
    }

    /// Two steps: what stays, by somebody's choice or because it can only stay; and the rest.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn chosen(
        tree: &Tree,
        options: &Options,
        mut stays: impl FnMut(&Tensor) -> bool,
    ) -> Result<Self, Error> {
        check(tree, options)?;
        let (mut groups, of_tensor) = group(tree);
        for group in &mut groups {
            let chosen = group.members.iter().filter(|tensor| stays(tensor)).count() > 0;
            group.step = Some(usize::from(!(chosen || group.always_resident())));
        }
        Ok(Self::add_up(&groups, &of_tensor, 1, options))
    }

    /// What steps up to `last` cost, every group having been given one.
    fn add_up(groups: &[Group<'_>], of_tensor: &[usize], last: usize, options: &Options) -> Self {
        let mut costs = vec![Cost::default(); last + 1];
        let mut holders = HashMap::new();
        for group in groups {
            costs[group.step.unwrap_or(0)].add(group, &mut holders, options);
        }
        Self {
            costs,
            holders: holders.len(),
            of_tensor: of_tensor
                .iter()
                .map(|at| groups[*at].step.unwrap_or(0))
                .collect(),
        }
    }

    /// What each number of steps takes: none but step 0 first, all of them last.
    pub(crate) fn demands(&self, options: &Options) -> Vec<Demand> {
        let mut resident: u64 = self.costs.iter().map(|cost| cost.resident).sum();
        let (mut largest, mut units, mut held) = (0u64, 0u64, 0u64);
        let mut holders = vec![Holder::default(); self.holders];
        let mut demands: Vec<_> = self
            .costs
            .iter()
            .rev()
            .map(|cost| {
                let demand = Demand {
                    resident,
                    ring: (2 * largest)
                        .max(held)
                        .max(round_up(options.min_ring))
                        .min(units),
                    useful_ring: units,
                };
                resident -= cost.resident;
                largest = largest.max(cost.largest);
                units = units.saturating_add(cost.units);
                for (holder, unit) in &cost.held {
                    holders[*holder].add(*unit);
                    if holders[*holder].second > 0 {
                        held = held.max(holders[*holder].ring());
                    }
                }
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
    fn add<'a>(
        &mut self,
        group: &Group<'a>,
        holders: &mut HashMap<&'a str, usize>,
        options: &Options,
    ) {
        self.resident += unit_footprint(group.bytes());
        for tensor in &group.members {
            let unit = tensor.unit(options.tile_bytes);
            self.largest = self.largest.max(unit);
            self.units = self.units.saturating_add(tensor.units(options.tile_bytes));
            if unit > 0 {
                let new = holders.len();
                let holder = *holders.entry(tensor.holder()).or_insert(new);
                self.held.push((holder, unit));
            }
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
    // The budget that would do is at most: everything, three times the largest unit, and the needs.
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
        largest = largest.max(unit_footprint(tensor.bytes.max(tensor.row_bytes)));
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
            .checked_mul(3)
            .map(|ring| ring.max(round_up(options.min_ring)))
            .and_then(|ring| ring.checked_add(sum));
        if with_ring.is_none() {
            return Err(too_large(&tensor.name));
        }
    }
    Ok(())
}
