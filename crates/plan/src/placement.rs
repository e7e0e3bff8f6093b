//! A candidate: where everything lies and computes, before a device map is made of it.

use crate::cost::{Costs, Placed, times};
use crate::groups::Groups;
use crate::steps::StreamingSet;
use crate::tree::Weights;
use crate::{Budget, Error, Gpu, HardwareProfile, MemoryOverhead, Options, Shortfall, Tier, Tree};
use std::collections::HashSet;

/// A model, its budget and the machine, before anything is placed.
pub(crate) struct PlanContext<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) options: &'a Options,
    pub(crate) groups: Groups,
    pub(crate) costs: Costs,
    pub(crate) capacities: Capacities,
}

/// What each device can hold besides its fixed overhead, in bytes.
pub(crate) struct Capacities {
    /// GPUs that may be used, by number.
    pub(crate) gpus: Vec<GpuCapacity>,
    /// Main memory.
    pub(crate) cpu: CpuCapacity,
    /// The budget of main memory as it was given, in bytes; zero if none was.
    pub(crate) given_cpu: u64,
    /// Weights that may be on disk only; none if unbounded.
    pub(crate) disk: Option<u64>,
    /// The ring on a GPU that weights are streamed to.
    pub(crate) gpu_ring: u64,
}

/// A GPU with a budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GpuCapacity {
    pub(crate) number: usize,
    /// For weights, KV cache and ring.
    pub(crate) bytes: u64,
    pub(crate) hardware: Gpu,
}

/// The capacity of main memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CpuCapacity {
    /// It is not used: neither for weights nor for a ring.
    Unused,
    /// Anything.
    Unbounded,
    /// So many bytes for everything, overhead included.
    Bytes(u64),
}

/// Which phases compute on a GPU what lies in main memory or on disk, where that is faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Streaming {
    /// None: the CPU computes it.
    None,
    /// Prefill, on the GPU of this index in [`Capacities::gpus`].
    Prefill(usize),
    /// Prefill and decode.
    Both(usize),
}

impl Streaming {
    pub(crate) fn gpu(self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Prefill(gpu) | Self::Both(gpu) => Some(gpu),
        }
    }
}

/// Where everything lies and computes.
#[derive(Debug, Clone)]
pub(crate) struct Placement {
    /// For each group its tier.
    pub(crate) tiers: Vec<Tier>,
    /// For each block its devices and transfers.
    pub(crate) blocks: Vec<Placed>,
    /// The ring in main memory.
    pub(crate) ring: u64,
    /// GPUs that weights are streamed to.
    pub(crate) streamed_to: HashSet<Tier>,
}

impl<'a> PlanContext<'a> {
    /// # Errors
    /// As [`Groups::new`].
    pub(crate) fn new(
        tree: &'a Tree,
        budget: &Budget,
        options: &'a Options,
    ) -> Result<Self, Error> {
        let groups = Groups::new(tree, options)?;
        let costs = Costs::new(tree, &options.workload);
        let gpu_ring = groups.ring_for_any();
        let capacities = Capacities::new(budget, options, gpu_ring);
        if let Some(number) = options.execute_on
            && capacities.gpus.iter().all(|gpu| gpu.bytes < gpu_ring)
        {
            let tier = Tier::Gpu(number);
            let (taken, reserve) = (options.taken_of(tier), options.reserve);
            return Err(Error::TooSmall(Shortfall {
                tier,
                budget: budget.get(tier).unwrap_or(0),
                least: taken.saturating_add(gpu_ring),
                needs: MemoryOverhead {
                    activations: options.gpu_activations,
                    ..MemoryOverhead::default()
                },
                ring: gpu_ring,
                resident: 0,
                reserve,
            }));
        }
        Ok(Self { tree, options, groups, costs, capacities })
    }

    pub(crate) fn hardware(&self) -> &HardwareProfile {
        &self.options.figures
    }

    /// Keys and values of the block, in bytes.
    pub(crate) fn kv(&self, block: usize) -> u64 {
        self.tree.blocks[block].work.kv_bytes
    }

    /// Where a block that is on no GPU computes: in decode and in prefill.
    pub(crate) fn executors(&self, block: usize, streaming: Streaming) -> (Tier, Tier) {
        if let Some(number) = self.options.execute_on {
            return (Tier::Gpu(number), Tier::Gpu(number));
        }
        if self.costs.is_light(block) && self.costs.weights(block, 1.0) > 0.0 {
            // A norm between two blocks is not worth a hop.
            let heavy = |other: &usize| !self.costs.is_light(*other);
            let mut around = (0..block).rev().chain(block + 1..self.tree.blocks.len());
            if let Some(neighbour) = around.find(heavy) {
                return self.executors(neighbour, streaming);
            }
        }
        let Some(at) = streaming.gpu().filter(|_| self.costs.weights(block, 1.0) > 0.0) else {
            return (Tier::Cpu, Tier::Cpu);
        };
        let gpu = &self.capacities.gpus[at];
        let cpu = &self.hardware().cpu;
        let both = matches!(streaming, Streaming::Both(_));
        let decodes = both && self.costs.decodes_faster_on(block, &gpu.hardware, cpu);
        let prefills = self.costs.prefills_faster_on(block, &gpu.hardware, cpu, decodes);
        let tier = |there| {
            if there { Tier::Gpu(gpu.number) } else { Tier::Cpu }
        };
        (tier(decodes), tier(prefills))
    }

    /// The placement with groups on `tiers`, blocks computed on the GPUs in `holding`, and all
    /// others as `streaming` says.
    pub(crate) fn placement(
        &self,
        tiers: Vec<Tier>,
        holding: &[Option<usize>],
        set: &StreamingSet,
        streaming: Streaming,
    ) -> Placement {
        let mut placed: Vec<Placed> = (holding.iter().zip(&set.traffic).enumerate())
            .map(|(block, (holding, reads))| {
                let (decode_on, prefill_on) = match self.options.execute_on.or(*holding) {
                    Some(gpu) => (Tier::Gpu(gpu), Tier::Gpu(gpu)),
                    None => self.executors(block, streaming),
                };
                Placed { decode_on, prefill_on, traffic: *reads, upload: Weights::default() }
            })
            .collect();
        for (group, tier) in self.groups.groups.iter().zip(&tiers) {
            for one in group.uses() {
                let block = &mut placed[one.block()];
                let gpu = block.gpu();
                if gpu.is_some() && gpu != Some(*tier) {
                    block.upload = block.upload.plus(one.bytes);
                }
            }
        }
        let streamed = placed.iter().filter(|block| block.upload.all > 0);
        let streamed_to = streamed.filter_map(Placed::gpu).collect();
        Placement { tiers, blocks: placed, ring: set.ring, streamed_to }
    }

    /// For each block the GPU that holds most of its weights; of equals the first.
    pub(crate) fn gpus_of_blocks(&self, tiers: &[Tier]) -> Vec<Option<usize>> {
        let mut held: Vec<Vec<(usize, u64)>> = vec![Vec::new(); self.tree.blocks.len()];
        for (group, tier) in self.groups.groups.iter().zip(tiers) {
            let Tier::Gpu(number) = *tier else { continue };
            for one in group.uses() {
                let held = &mut held[one.block()];
                match held.iter_mut().find(|(gpu, _)| *gpu == number) {
                    Some((_, bytes)) => *bytes = bytes.saturating_add(group.bytes),
                    None => held.push((number, group.bytes)),
                }
            }
        }
        held.into_iter()
            .map(|mut held| {
                held.sort_by_key(|(gpu, bytes)| (std::cmp::Reverse(*bytes), *gpu));
                held.first().map(|(gpu, _)| *gpu)
            })
            .collect()
    }

    /// The predicted time with blocks placed like this.
    pub(crate) fn score(&self, blocks: &[Placed]) -> Score {
        let mut score = Score::default();
        let mut devices: Vec<Tier> = Vec::new();
        let times = times(&self.costs, self.hardware(), blocks.iter().copied());
        for (block, (decode, prefill)) in blocks.iter().zip(times) {
            score.decode += decode.seconds;
            score.prefill += prefill.seconds;
            for tier in [block.decode_on, block.prefill_on] {
                if !devices.contains(&tier) {
                    devices.push(tier);
                }
            }
        }
        score.devices = devices.len();
        score
    }
}

/// What placements are compared by, in this order.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Score {
    /// Seconds for each token.
    pub(crate) decode: f64,
    /// Seconds for the prompt.
    pub(crate) prefill: f64,
    /// Number of devices that compute.
    pub(crate) devices: usize,
}

/// Relative difference below which times are equal: rounding depends on the order of sums.
const EQUAL: f64 = 1e-12;

impl Score {
    /// Whether it is better than `other`.
    pub(crate) fn beats(&self, other: &Self) -> bool {
        let less = |a: f64, b: f64| a < b && (b - a) > EQUAL * b;
        if less(self.decode, other.decode) || less(other.decode, self.decode) {
            return self.decode < other.decode;
        }
        if less(self.prefill, other.prefill) || less(other.prefill, self.prefill) {
            return self.prefill < other.prefill;
        }
        self.devices < other.devices
    }
}

impl Capacities {
    fn new(budget: &Budget, options: &Options, gpu_ring: u64) -> Self {
        let mut gpus = Vec::new();
        for (tier, bytes) in budget.iter() {
            let bytes = bytes.checked_sub(options.taken_of(tier));
            if let (Tier::Gpu(number), Some(bytes @ 1..)) = (tier, bytes)
                && options.execute_on.is_none_or(|only| only == number)
            {
                gpus.push(GpuCapacity { number, bytes, hardware: options.figures.gpu(number) });
            }
        }
        let cpu = match budget.get(Tier::Cpu) {
            None => CpuCapacity::Unbounded,
            Some(0) if !gpus.is_empty() => CpuCapacity::Unused,
            Some(bytes) => CpuCapacity::Bytes(bytes.saturating_sub(options.reserve)),
        };
        Self {
            gpus,
            cpu,
            given_cpu: budget.get(Tier::Cpu).unwrap_or(0),
            disk: if options.must_fit { Some(0) } else { budget.get(Tier::Disk) },
            gpu_ring,
        }
    }

    /// Adds a GPU with so many bytes, if it is not there yet.
    pub(crate) fn add_gpu(&mut self, number: usize, bytes: u64, profile: &HardwareProfile) {
        if self.gpus.iter().all(|gpu| gpu.number != number) {
            self.gpus.push(GpuCapacity { number, bytes, hardware: profile.gpu(number) });
            self.gpus.sort_by_key(|gpu| gpu.number);
        }
    }
}
