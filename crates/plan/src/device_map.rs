mod json;
mod residencies;

use self::residencies::Residencies;
use crate::cost::Placed;
use crate::groups::Groups;
use crate::placement::{CpuCapacity, GpuCapacity, Placement, PlanContext};
use crate::steps::DiskTraffic;
use crate::tree::Weights;
use crate::{Budget, ChosenBy, MemoryOverhead, ModuleMap, Tier};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The device map: where each tensor lives, and what that takes.
///
/// It can be written as JSON and read again; what is read is checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct DeviceMap {
    #[serde(rename = "strategy")]
    chosen_by: ChosenBy,
    tiers: Vec<TierUse>,
    budget: Budget,
    needs: MemoryOverhead,
    ring_bytes: u64,
    resident_bytes: u64,
    resident_stored_bytes: u64,
    resident_footprint: u64,
    total_bytes: u64,
    streamed_bytes: u64,
    blocks: Vec<PlacedBlock>,
    tensors: Residencies,
}

/// Where a tensor is between two uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Residency {
    /// Resident on this tier.
    Resident(Tier),
    /// Read from the checkpoint for each use.
    Streamed,
}

impl Serialize for Residency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Resident(tier) => tier.serialize(serializer),
            Self::Streamed => serializer.serialize_str("streamed"),
        }
    }
}

/// What is held on a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierUse {
    /// The device; the disk comes last.
    pub tier: Tier,
    /// Its budget; none if unbounded.
    pub budget: Option<u64>,
    /// Resident weights, in main memory in whole pages; on disk, those that are streamed.
    pub weights: u64,
    /// The ring through which others are streamed to it.
    pub ring: u64,
    /// Keys and values of the blocks that compute on it.
    pub kv_cache: u64,
    /// Activations.
    pub activations: u64,
    /// The process itself, its readers' memory and the overflow share.
    pub other: u64,
}

impl TierUse {
    /// Everything that is held on it, in bytes.
    pub fn sum(&self) -> u64 {
        [self.ring, self.kv_cache, self.activations, self.other]
            .into_iter()
            .fold(self.weights, u64::saturating_add)
    }

    /// What is left of its budget; none if unbounded.
    pub fn free(&self) -> Option<u64> {
        Some(self.budget?.saturating_sub(self.sum()))
    }
}

/// Where a block lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedBlock {
    /// Its path in the module.
    pub name: String,
    /// The class of the module.
    pub class: String,
    /// The slowest tier that any of its weights is on: [`Tier::Disk`] if any is streamed.
    pub tier: Tier,
    /// Bytes of its tensors as held on the device; those that it shares with other blocks included.
    pub bytes: u64,
    /// How many of these bytes are resident.
    pub resident_bytes: u64,
    /// Bytes of its KV cache, where decode computes.
    pub kv_bytes: u64,
    /// Where prefill computes.
    pub prefill_on: Tier,
    /// Where decode computes.
    pub decode_on: Tier,
    /// Bytes that each pass reads of it from disk if the ring keeps nothing.
    pub streamed_bytes: u64,
    /// How many of these no later pass reads, as predicted: the ring keeps them from one pass to
    /// the next, or only the first pass over a prompt uses them, as with an encoder.
    pub kept_bytes: u64,
    /// Bytes that each pass uploads to the GPU that it computes on; zero if it computes on no GPU.
    pub upload_bytes: u64,
    /// How many of the bytes that are streamed, kept and uploaded are of experts: a pass reads and
    /// uploads those that a router chooses.
    #[serde(default, skip_serializing_if = "RoutedBytes::is_zero")]
    pub routed: RoutedBytes,
}

/// Bytes of experts of which a router chooses some in each pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RoutedBytes {
    /// That a pass which uses all of them reads from disk if the ring keeps nothing.
    pub streamed: u64,
    /// How many of these the ring keeps, as predicted.
    pub kept: u64,
    /// That such a pass uploads to the GPU that it computes on.
    pub upload: u64,
}

impl RoutedBytes {
    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl DeviceMap {
    /// The map of `placement`. [`Groups`] has checked the sums for overflow.
    pub(crate) fn new(
        context: &PlanContext<'_>,
        placement: &Placement,
        budget: &Budget,
        chosen_by: ChosenBy,
    ) -> Self {
        let (tree, groups) = (context.tree, &context.groups);
        let mut map = Self {
            chosen_by,
            tiers: Vec::new(),
            budget: budget.clone(),
            needs: context.options.needs,
            ring_bytes: placement.ring,
            resident_bytes: 0,
            resident_stored_bytes: 0,
            resident_footprint: 0,
            total_bytes: 0,
            streamed_bytes: 0,
            blocks: Vec::with_capacity(tree.blocks.len()),
            tensors: Residencies::new(Arc::clone(&groups.names), residencies(groups, placement)),
        };
        let mut weights: BTreeMap<Tier, u64> = BTreeMap::new();
        let mut rest = groups.groups.iter();
        // Neighbours are mostly on one tier.
        for alike in placement.tiers.chunk_by(|one, next| one == next) {
            let tier = alike[0];
            let weights = weights.entry(tier).or_default();
            for group in rest.by_ref().take(alike.len()) {
                map.total_bytes += group.bytes;
                *weights += match tier {
                    Tier::Cpu => group.footprint,
                    Tier::Gpu(_) | Tier::Disk => group.bytes,
                };
                if tier != Tier::Disk {
                    map.resident_bytes += group.bytes;
                    map.resident_stored_bytes += group.stored;
                }
            }
        }
        map.resident_footprint = weights.get(&Tier::Cpu).copied().unwrap_or(0);
        let mut tiers = groups.of_tensor.iter().map(|at| placement.tiers[*at]);
        for (block, placed) in tree.blocks.iter().zip(&placement.blocks) {
            let mut written = PlacedBlock {
                name: block.name.clone(),
                class: block.class.clone(),
                tier: placed.gpu().unwrap_or(Tier::Cpu),
                bytes: 0,
                resident_bytes: 0,
                kv_bytes: block.work.kv_bytes,
                prefill_on: placed.prefill_on,
                decode_on: placed.decode_on,
                streamed_bytes: placed.traffic.streamed.all,
                kept_bytes: placed.traffic.kept.all,
                upload_bytes: placed.upload.all,
                routed: RoutedBytes {
                    streamed: placed.traffic.streamed.routed,
                    kept: placed.traffic.kept.routed,
                    upload: placed.upload.routed,
                },
            };
            let mut lives = None;
            for (tensor, tier) in block.tensors.iter().zip(&mut tiers) {
                written.bytes += tensor.bytes;
                match tier {
                    Tier::Disk => map.streamed_bytes += tensor.bytes_per_pass(),
                    Tier::Gpu(_) | Tier::Cpu => written.resident_bytes += tensor.bytes,
                }
                // The slowest tier that any of it is on.
                lives = lives.max(Some(tier));
            }
            written.tier = lives.unwrap_or(written.tier);
            map.blocks.push(written);
        }
        map.tiers = uses(context, placement, &weights, &mut map.needs, budget);
        map
    }

    /// What chose the placement.
    pub fn chosen_by(&self) -> ChosenBy {
        self.chosen_by
    }

    /// What is held on each device, the fastest first and the disk last.
    pub fn tiers(&self) -> &[TierUse] {
        &self.tiers
    }

    /// Where the tensor of this path lives; none if there is no such tensor.
    pub fn residency(&self, tensor: &str) -> Option<Residency> {
        self.tensors.get(tensor)
    }

    /// The blocks in the order of execution.
    pub fn blocks(&self) -> &[PlacedBlock] {
        &self.blocks
    }

    /// Bytes of the resident weights on all devices, shared ones counted once.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// The same as stored in the checkpoint.
    pub fn resident_stored_bytes(&self) -> u64 {
        self.resident_stored_bytes
    }

    /// Bytes of main memory that resident weights take, in whole pages for direct reads.
    pub fn resident_footprint(&self) -> u64 {
        self.resident_footprint
    }

    /// Bytes of all weights as held on devices, shared ones counted once.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes that a pass reads from the checkpoint if the ring keeps nothing, and if it uses all
    /// experts. A shared tensor counts at each of its uses; tensors read by rows do not count.
    pub fn streamed_bytes(&self) -> u64 {
        self.streamed_bytes
    }

    /// Bytes of the ring in main memory through which weights are streamed; zero if none are.
    pub fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// What main memory holds besides weights and ring.
    pub fn needs(&self) -> &MemoryOverhead {
        &self.needs
    }

    /// The budget that the map keeps.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The most bytes held in main memory: weights, ring and overhead.
    pub fn memory_bytes(&self) -> u64 {
        self.needs.sum().saturating_add(self.resident_footprint).saturating_add(self.ring_bytes)
    }

    /// The blocks as Accelerate's `hf_device_map` has them.
    pub fn modules(&self) -> ModuleMap {
        let blocks = self.blocks.iter();
        blocks.map(|block| (block.name.clone(), block.tier)).collect()
    }
}

impl PlacedBlock {
    pub(crate) fn placed(&self) -> Placed {
        Placed {
            decode_on: self.decode_on,
            prefill_on: self.prefill_on,
            traffic: DiskTraffic {
                streamed: Weights { all: self.streamed_bytes, routed: self.routed.streamed },
                kept: Weights { all: self.kept_bytes, routed: self.routed.kept },
            },
            upload: Weights { all: self.upload_bytes, routed: self.routed.upload },
        }
    }
}

/// Where each tensor is between two uses.
fn residencies(groups: &Groups, placement: &Placement) -> Vec<Residency> {
    let tiers = groups.of_tensor.iter().map(|at| placement.tiers[*at]);
    tiers
        .map(|tier| match tier {
            Tier::Disk => Residency::Streamed,
            tier => Residency::Resident(tier),
        })
        .collect()
}

/// What is held on each device. The KV cache of blocks that decode on the CPU is added to `needs`.
fn uses(
    context: &PlanContext<'_>,
    placement: &Placement,
    weights: &BTreeMap<Tier, u64>,
    needs: &mut MemoryOverhead,
    budget: &Budget,
) -> Vec<TierUse> {
    let capacities = &context.capacities;
    let kv_cache = |tier| -> u64 {
        let blocks = placement.blocks.iter().enumerate();
        let on_it = blocks.filter(|(_, block)| block.decode_on == tier);
        on_it.map(|(at, _)| context.kv(at)).sum()
    };
    let unused = |tier| TierUse {
        tier,
        budget: budget.get(tier),
        weights: weights.get(&tier).copied().unwrap_or(0),
        ring: 0,
        kv_cache: 0,
        activations: 0,
        other: 0,
    };
    let mut uses = Vec::with_capacity(capacities.gpus.len() + 2);
    for GpuCapacity { number, .. } in &capacities.gpus {
        let mut gpu = unused(Tier::Gpu(*number));
        if placement.streamed_to.contains(&gpu.tier) {
            gpu.ring = capacities.gpu_ring;
        }
        gpu.kv_cache = kv_cache(gpu.tier);
        let mut blocks = placement.blocks.iter();
        if blocks.any(|block| [block.decode_on, block.prefill_on].contains(&gpu.tier)) {
            gpu.activations = context.options.gpu_activations;
        }
        uses.push(gpu);
    }
    needs.kv_cache += kv_cache(Tier::Cpu);
    let unused_cpu = unused(Tier::Cpu);
    uses.push(TierUse {
        // The process itself is there even if nothing else may be.
        budget: unused_cpu.budget.filter(|_| capacities.cpu != CpuCapacity::Unused),
        ring: placement.ring,
        kv_cache: needs.kv_cache,
        activations: needs.activations,
        other: needs.process + needs.readers + needs.overflow,
        ..unused_cpu
    });
    uses.push(unused(Tier::Disk));
    uses
}

#[cfg(test)]
mod tests;
