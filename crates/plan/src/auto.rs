//! The placement with the least predicted time.
//!
//! It is chosen from a family that does not depend on the budget, so that a larger budget only adds
//! to it: each GPU computes one run of consecutive blocks, with all of their weights, and what
//! comes after (or before) these runs lies in main memory and on disk, tensor by tensor
//! ([`ResidencyOrder`]); it is computed there or streamed to one of the GPUs. [`runs`] finds the
//! runs for each number of blocks that they can cover; what remains is tried in the order of its
//! lower bound, until nothing better can come.

mod crossings;
mod insufficient_memory;
mod runs;

use self::insufficient_memory::InsufficientMemory;
use self::runs::{Item, Runs, Speeds};
use crate::cost::{Placed, seconds};
use crate::placement::{CpuCapacity, Placement, PlanContext, Score, Streaming};
use crate::steps::{Capacity, DiskTraffic, MemoryDemand, ResidencyOrder, StreamingSet};
use crate::tree::Weights;
use crate::{Error, MemoryOverhead, Tier};
use std::collections::HashMap;
use std::rc::Rc;

/// Budgets for which two orders are compared, times the number of steps.
const COMPARISONS: usize = 1 << 16;

/// Chooses the placement with the least predicted time that fits.
///
/// # Errors
/// [`Error::TooSmall`] or [`Error::MustFit`] if nothing fits.
pub(crate) fn choose(context: &PlanContext<'_>) -> Result<Placement, Error> {
    let (groups, blocks) = (&context.groups, context.tree.blocks.len());
    let (spread, together) = (ResidencyOrder::spread(groups), ResidencyOrder::together(groups));
    if !context.capacities.gpus.is_empty() {
        return Search::new(context, &[spread, together]).run();
    }
    let better = |order: &ResidencyOrder| is_better(context, order, &together);
    let order = Some(spread).filter(better);
    let order = order.or_else(|| Some(ResidencyOrder::sequential(groups)).filter(better));
    let kv_cache = (0..blocks).map(|block| context.kv(block)).sum();
    let set = stays(context, order.as_ref().unwrap_or(&together), kv_cache, |_| true)
        .map_err(|insufficient| insufficient.error(context))?;
    let mut tiers = vec![Tier::Cpu; groups.groups.len()];
    for at in &set.streamed {
        tiers[*at] = Tier::Disk;
    }
    Ok(context.placement(tiers, &vec![None; blocks], &set, Streaming::None))
}

/// Whether filling memory in an order is never predicted slower than in another, whatever the
/// budget: the choice must not depend on the budget, or a larger one could stream more.
fn is_better(context: &PlanContext<'_>, order: &ResidencyOrder, than: &ResidencyOrder) -> bool {
    if order == than {
        return true;
    }
    let groups = &context.groups;
    let all: u64 = groups.groups.iter().map(|group| group.footprint).sum();
    let most = all.saturating_add(3 * groups.groups.iter().map(|g| g.largest).max().unwrap_or(0));
    let samples = (COMPARISONS / order.len().max(1)).clamp(8, 512) as u64;
    let memories: Vec<u64> = (0..=samples)
        .rev()
        .map(|sample| (u128::from(most) * u128::from(sample) / u128::from(samples)) as u64)
        .collect();
    let mut both = seconds_in(context, order, &memories).zip(seconds_in(context, than, &memories));
    both.all(|pair| match pair {
        (Some(one), Some(other)) => one <= other * (1.0 + 1e-9),
        (None, Some(_)) => false,
        _ => true,
    })
}

/// Seconds per token without GPUs for each of `memories`, descending; none where nothing fits.
fn seconds_in<'a>(
    context: &'a PlanContext<'_>,
    order: &'a ResidencyOrder,
    memories: &'a [u64],
) -> impl Iterator<Item = Option<f64>> + 'a {
    let min_ring = context.options.min_ring;
    let traffic = order.traffic(&context.groups, min_ring, memories.iter().copied());
    let on_cpu = |traffic| Placed {
        decode_on: Tier::Cpu,
        prefill_on: Tier::Cpu,
        traffic,
        upload: Weights::default(),
    };
    traffic.map(move |traffic| {
        let blocks: Vec<Placed> = traffic?.into_iter().map(on_cpu).collect();
        Some(context.score(&blocks).decode)
    })
}

/// Picks the groups that stay in main memory beside a KV cache of `kv_cache` bytes, of those for
/// which `inside` is true.
fn stays(
    context: &PlanContext<'_>,
    order: &ResidencyOrder,
    kv_cache: u64,
    inside: impl Fn(usize) -> bool + Copy,
) -> Result<StreamingSet, InsufficientMemory> {
    let (groups, options) = (&context.groups, context.options);
    let needs = MemoryOverhead {
        kv_cache: options.needs.kv_cache.saturating_add(kv_cache),
        ..options.needs
    };
    let insufficient = |demand| InsufficientMemory { needs, demand };
    let needs = needs.sum();
    let cpu = context.capacities.cpu;
    let capacity =
        |memory| Capacity { memory, disk: context.capacities.disk, min_ring: options.min_ring };
    let memory = match cpu {
        CpuCapacity::Unbounded => None,
        CpuCapacity::Bytes(bytes) => Some(bytes.saturating_sub(needs)),
        CpuCapacity::Unused => Some(0),
    };
    let set = order.fit(groups, &capacity(memory), inside);
    match (cpu, set) {
        (CpuCapacity::Bytes(bytes), Ok(_)) if needs > bytes => {
            // Not even the overhead fits: find out how much would.
            let demand = order.fit(groups, &capacity(Some(0)), inside).err();
            Err(insufficient(demand.unwrap_or_default()))
        }
        (CpuCapacity::Unused, _) if kv_cache > 0 => Err(insufficient(MemoryDemand::default())),
        (_, set) => set.map_err(insufficient),
    }
}

/// The search over runs and remainders.
struct Search<'a> {
    context: &'a PlanContext<'a>,
    orders: &'a [ResidencyOrder; 2],
    items: Vec<Item>,
    /// For each group, its item.
    item_of: Vec<usize>,
    /// Bytes that a pass reads of each item if all of it is on disk.
    stored: Vec<f64>,
    /// The largest saving of disk reads per pass by a byte of memory.
    saving: f64,
    /// Weight bytes that a pass uses of each block.
    uses: Vec<Weights>,
    /// Results by shape, number of items covered and KV cache in main memory.
    sets: HashMap<(Shape, usize, u64), Fits>,
}

/// What fits, for each residency order.
type Fits = Vec<Result<Rc<StreamingSet>, InsufficientMemory>>;

/// How blocks are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    /// Whether tables read by rows stay out of the GPUs.
    rows_out: bool,
    /// Whether the runs begin at the last block.
    reversed: bool,
}

/// A way to lay out blocks on GPUs, solved for each number of items covered.
struct Layout {
    shape: Shape,
    sequence: Vec<usize>,
    streaming: Streaming,
    /// Where each block computes that is on no GPU.
    executors: Rc<Vec<(Tier, Tier)>>,
    runs: Runs,
}

impl<'a> Search<'a> {
    fn new(context: &'a PlanContext<'a>, orders: &'a [ResidencyOrder; 2]) -> Self {
        let (items, item_of) = runs::items(context);
        let mut stored = vec![0.0; items.len()];
        let mut saving = 0.0f64;
        let mut uses = vec![Weights::default(); context.tree.blocks.len()];
        for (group, item) in context.groups.groups.iter().zip(&item_of) {
            let share = |block| context.costs.share(block, 1.0);
            let bytes: f64 = group.uses().map(|one| one.stored.used(share(one.block()))).sum();
            for one in group.uses() {
                uses[one.block()] = uses[one.block()].plus(one.bytes);
            }
            if !group.stays {
                stored[*item] += bytes;
                saving = saving.max(bytes / group.footprint as f64);
            }
        }
        Self { context, orders, items, item_of, stored, saving, uses, sets: HashMap::new() }
    }

    fn run(mut self) -> Result<Placement, Error> {
        let layouts = self.layouts();
        let mut candidates = Vec::new();
        for (at, layout) in layouts.iter().enumerate() {
            for covered in 0..=layout.sequence.len() {
                if let Some(least) = self.at_least(layout, covered) {
                    candidates.push((least, at, covered));
                }
            }
        }
        candidates.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(b.2.cmp(&a.2)));
        let mut best: Option<(Score, usize, usize, Rc<StreamingSet>)> = None;
        let mut insufficient: Option<InsufficientMemory> = None;
        for (least, at, covered) in candidates {
            if let Some((score, ..)) = &best
                && least > score.decode * (1.0 + 1e-9)
            {
                break;
            }
            for set in self.fits(&layouts[at], covered) {
                match set {
                    Ok(set) => {
                        let blocks = self.blocks(&layouts[at], covered, &set.traffic);
                        let score = self.context.score(&blocks);
                        if best.as_ref().is_none_or(|(best, ..)| score.beats(best)) {
                            best = Some((score, at, covered, set));
                        }
                    }
                    Err(new) => {
                        let less = |old: &InsufficientMemory| new.least() < old.least();
                        if insufficient.as_ref().is_none_or(less) {
                            insufficient = Some(new);
                        }
                    }
                }
            }
        }
        match best {
            Some((_, at, covered, set)) => Ok(self.placement(&layouts[at], covered, &set)),
            // Covering nothing is always one of the candidates.
            None => Err(insufficient.unwrap_or_default().error(self.context)),
        }
    }

    fn layouts(&self) -> Vec<Layout> {
        let gpus = &self.context.capacities.gpus;
        let by_number: Vec<usize> = (0..gpus.len()).collect();
        let mut fastest_first = by_number.clone();
        fastest_first.sort_by(|a, b| {
            let speed = |at: &usize| gpus[*at].hardware.processor.product_bytes_per_second;
            speed(b).total_cmp(&speed(a)).then(a.cmp(b))
        });
        // Equal GPUs need not be tried twice.
        let mut orders = vec![by_number.clone(), fastest_first];
        orders.dedup();
        let speeds = Speeds::new(self.context);
        let mut executors: HashMap<Streaming, Rc<Vec<(Tier, Tier)>>> = HashMap::new();
        let mut layouts = Vec::new();
        for (rows_out, reversed) in [(true, false), (false, false), (true, true), (false, true)] {
            let shape = Shape { rows_out, reversed };
            let items = 0..self.items.len();
            let mut sequence: Vec<usize> =
                items.filter(|item| !(rows_out && self.items[*item].only_rows)).collect();
            if reversed {
                sequence.reverse();
            }
            let mut add = |order: &[usize], streaming| {
                let blocks = 0..self.context.tree.blocks.len();
                let executors = executors.entry(streaming).or_insert_with(|| {
                    Rc::new(blocks.map(|at| self.context.executors(at, streaming)).collect())
                });
                let executors = Rc::clone(executors);
                let (items, on) = (&self.items, (streaming, executors.as_slice()));
                let runs = Runs::new(self.context, &speeds, items, &sequence, order, on);
                let sequence = sequence.clone();
                layouts.push(Layout { shape, sequence, streaming, executors, runs });
            };
            for order in &orders {
                if self.context.options.execute_on.is_some() {
                    add(order, Streaming::Both(0));
                    continue;
                }
                add(order, Streaming::None);
                // Any GPU can be the last and compute what follows.
                for last in &by_number {
                    let others = order.iter().filter(|gpu| *gpu != last);
                    let order: Vec<usize> = others.chain([last]).copied().collect();
                    add(&order, Streaming::Prefill(*last));
                    add(&order, Streaming::Both(*last));
                }
            }
        }
        layouts
    }

    /// The least time with `covered` items on GPUs; none if they do not fit there.
    fn at_least(&self, layout: &Layout, covered: usize) -> Option<f64> {
        let runs = layout.runs.seconds(covered)?;
        let computing = layout.runs.rest_seconds(covered);
        let figures = self.context.hardware();
        let stored: f64 = layout.sequence[covered..].iter().map(|item| self.stored[*item]).sum();
        let reading = match self.context.capacities.cpu {
            CpuCapacity::Bytes(bytes) => {
                let stored = stored - bytes as f64 * self.saving;
                seconds(stored, figures.disk.bytes_per_second)
            }
            CpuCapacity::Unbounded | CpuCapacity::Unused => 0.0,
        };
        // Rounding must not make the bound exceed the time itself.
        Some((runs + computing.max(reading)) * (1.0 - 1e-9))
    }

    /// What fits in main memory of the items that are not covered, for each residency order.
    fn fits(&mut self, layout: &Layout, covered: usize) -> Fits {
        let mut outside = vec![false; self.items.len()];
        for item in &layout.sequence[..covered] {
            outside[*item] = true;
        }
        let mut kv_cache = 0u64;
        for (item, _) in self.items.iter().zip(&outside).filter(|(_, outside)| !**outside) {
            for block in &item.blocks {
                if layout.executors[*block].0 == Tier::Cpu {
                    kv_cache = kv_cache.saturating_add(self.context.kv(*block));
                }
            }
        }
        let key = (layout.shape, covered, kv_cache);
        let (context, orders, item_of) = (self.context, self.orders, &self.item_of);
        let sets = self.sets.entry(key).or_insert_with(|| {
            let inside: Vec<bool> = item_of.iter().map(|item| !outside[*item]).collect();
            let inside = |at: usize| inside[at];
            let sets = orders.iter().map(|order| stays(context, order, kv_cache, inside));
            sets.map(|set| set.map(Rc::new)).collect()
        });
        sets.clone()
    }

    /// The blocks as [`Self::placement`] has them, without a look at each group: what lies on a GPU
    /// computes there, and the others upload all of their weights.
    fn blocks(&self, layout: &Layout, covered: usize, traffic: &[DiskTraffic]) -> Vec<Placed> {
        let executors = layout.executors.iter();
        let mut placed: Vec<Placed> = (executors.zip(traffic).zip(&self.uses))
            .map(|(((decode_on, prefill_on), traffic), bytes)| {
                let mut placed = Placed {
                    decode_on: *decode_on,
                    prefill_on: *prefill_on,
                    traffic: *traffic,
                    upload: Weights::default(),
                };
                if placed.gpu().is_some() {
                    placed.upload = *bytes;
                }
                placed
            })
            .collect();
        for (gpu, run) in layout.runs.of(covered) {
            let gpu = Tier::Gpu(self.context.capacities.gpus[gpu].number);
            for item in &layout.sequence[run] {
                for block in &self.items[*item].blocks {
                    let placed = &mut placed[*block];
                    (placed.decode_on, placed.prefill_on) = (gpu, gpu);
                    placed.upload = Weights::default();
                }
            }
        }
        placed
    }

    fn placement(&self, layout: &Layout, covered: usize, set: &StreamingSet) -> Placement {
        let mut on: Vec<Tier> = vec![Tier::Cpu; self.items.len()];
        let mut holding = vec![None; self.context.tree.blocks.len()];
        for (gpu, run) in layout.runs.of(covered) {
            let number = self.context.capacities.gpus[gpu].number;
            for item in &layout.sequence[run] {
                on[*item] = Tier::Gpu(number);
                for block in &self.items[*item].blocks {
                    holding[*block] = Some(number);
                }
            }
        }
        let mut tiers: Vec<Tier> = self.item_of.iter().map(|item| on[*item]).collect();
        for at in &set.streamed {
            tiers[*at] = Tier::Disk;
        }
        self.context.placement(tiers, &holding, set, layout.streaming)
    }
}
