use crate::{Budget, Needs, Strategy, Tier, Tree, unit_footprint};
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, HashSet};

/// Where each tensor lives, and what that takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceMap {
    strategy: Strategy,
    tiers: Vec<TierUse>,
    budget: Budget,
    needs: Needs,
    ring_bytes: u64,
    resident_bytes: u64,
    resident_footprint: u64,
    total_bytes: u64,
    streamed_bytes: u64,
    blocks: Vec<PlacedBlock>,
    tensors: BTreeMap<String, Residency>,
}

/// Where a tensor's bytes are between two uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Residency {
    /// They stay on this tier.
    Resident(Tier),
    /// They are read from the checkpoint for each use.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TierUse {
    /// The device; the disk comes last.
    pub tier: Tier,
    /// What may be held on it; nothing if that is not bounded.
    pub budget: Option<u64>,
    /// Weights that stay, whole pages included; on disk, those that are streamed.
    pub weights: u64,
    /// The ring through which others are streamed to it.
    pub ring: u64,
    /// Keys and values of the blocks that compute on it.
    pub kv_cache: u64,
    /// Intermediate results.
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

    /// What is left of its budget; nothing if it is not bounded.
    pub fn free(&self) -> Option<u64> {
        Some(self.budget?.saturating_sub(self.sum()))
    }
}

/// Where a block lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlacedBlock {
    /// Its path in the module.
    pub name: String,
    /// The class of the module.
    pub class: String,
    /// Where its weights are between two uses: [`Tier::Disk`] if any but the small ones are streamed.
    pub tier: Tier,
    /// Bytes of its tensors as held on the device; those that it shares with other blocks included.
    pub bytes: u64,
    /// How many of these bytes stay in memory.
    pub resident_bytes: u64,
    /// Keys and values that it keeps where it computes, in bytes.
    pub kv_bytes: u64,
    /// Where it computes in a pass over a prompt.
    pub prefill_on: Tier,
    /// Where it computes when a token is made.
    pub decode_on: Tier,
}

impl DeviceMap {
    /// The map in which those tensors stay in main memory for which `resident`, in the tree's order, is
    /// true. The sums must have been checked for overflow, and tied tensors be of one mind.
    pub(crate) fn new(
        tree: &Tree,
        resident: &[bool],
        ring_bytes: u64,
        needs: Needs,
        budget: Budget,
    ) -> Self {
        let mut map = Self {
            strategy: Strategy::Auto,
            tiers: Vec::new(),
            budget,
            needs,
            ring_bytes,
            resident_bytes: 0,
            resident_footprint: 0,
            total_bytes: 0,
            streamed_bytes: 0,
            blocks: Vec::with_capacity(tree.blocks.len()),
            tensors: BTreeMap::new(),
        };
        let shared = shared_bytes(tree);
        let mut counted = HashSet::new();
        let mut resident = resident.iter().copied();
        for block in &tree.blocks {
            let mut placed = PlacedBlock {
                name: block.name.clone(),
                class: block.class.clone(),
                tier: Tier::Cpu,
                bytes: 0,
                resident_bytes: 0,
                kv_bytes: block.work.kv_bytes,
                prefill_on: Tier::Cpu,
                decode_on: Tier::Cpu,
            };
            for (tensor, stays) in block.tensors.iter().zip(&mut resident) {
                // The memory of a tied group is counted at its first tensor.
                let held = match &tensor.tied {
                    None => Some(tensor.bytes),
                    Some(key) => counted
                        .insert(key.as_str())
                        .then(|| shared.get(key.as_str()).copied().unwrap_or(0)),
                };
                map.total_bytes += held.unwrap_or(0);
                placed.bytes += tensor.bytes;
                let residency = if stays {
                    placed.resident_bytes += tensor.bytes;
                    map.resident_bytes += held.unwrap_or(0);
                    map.resident_footprint += held.map_or(0, unit_footprint);
                    Residency::Resident(Tier::Cpu)
                } else {
                    placed.tier = Tier::Disk;
                    map.streamed_bytes += tensor.bytes_per_pass();
                    Residency::Streamed
                };
                map.tensors.insert(tensor.name.clone(), residency);
            }
            map.blocks.push(placed);
        }
        map.tiers = map.uses();
        map
    }

    /// What is held on each device.
    fn uses(&self) -> Vec<TierUse> {
        let needs = &self.needs;
        let memory = TierUse {
            tier: Tier::Cpu,
            budget: self.budget.get(Tier::Cpu),
            weights: self.resident_footprint,
            ring: self.ring_bytes,
            kv_cache: needs.kv_cache,
            activations: needs.activations,
            other: needs.process + needs.readers + needs.overflow,
        };
        let disk = TierUse {
            tier: Tier::Disk,
            budget: None,
            weights: self.total_bytes - self.resident_bytes,
            ring: 0,
            kv_cache: 0,
            activations: 0,
            other: 0,
        };
        vec![memory, disk]
    }

    /// How places were chosen.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// What is held on each device that has a budget or holds anything, the fastest first and the disk last.
    pub fn tiers(&self) -> &[TierUse] {
        &self.tiers
    }

    /// Where the tensor of this path lives; nothing if there is none.
    pub fn residency(&self, tensor: &str) -> Option<Residency> {
        self.tensors.get(tensor).copied()
    }

    /// The blocks in the order of execution.
    pub fn blocks(&self) -> &[PlacedBlock] {
        &self.blocks
    }

    /// Bytes of the weights that stay in memory, shared ones counted once.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// The memory that these take, whole pages for direct reads included. In bytes.
    pub fn resident_footprint(&self) -> u64 {
        self.resident_footprint
    }

    /// Bytes of all weights as held on the device, shared ones counted once.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes that a pass reads from the checkpoint if nothing is left in the ring from the pass before. A
    /// shared tensor counts at each of its uses; what is read by rows does not count.
    pub fn streamed_bytes(&self) -> u64 {
        self.streamed_bytes
    }

    /// The size of the ring through which weights are streamed, in bytes; zero if none are.
    pub fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// What must fit besides weights and ring.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// The budget that the map keeps.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Everything that is held in main memory at most, in bytes: weights, ring and needs.
    pub fn memory_bytes(&self) -> u64 {
        self.needs
            .sum()
            .saturating_add(self.resident_footprint)
            .saturating_add(self.ring_bytes)
    }

    /// The map as Accelerate writes `hf_device_map`: blocks by name, each with `cpu`, `disk` or the number
    /// of a GPU.
    pub fn accelerate_json(&self) -> serde_json::Value {
        self.blocks
            .iter()
            .map(|block| {
                let tier = match block.tier {
                    Tier::Gpu(number) => number.into(),
                    tier => tier.to_string().into(),
                };
                (block.name.clone(), tier)
            })
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

/// The bytes of each tied group: those of its largest tensor.
fn shared_bytes(tree: &Tree) -> BTreeMap<&str, u64> {
    let mut shared: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in tree.tensors() {
        if let Some(key) = &tensor.tied {
            let bytes = shared.entry(key).or_default();
            *bytes = tensor.bytes.max(*bytes);
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, Tensor};

    fn tensor(name: &str, bytes: u64, tied: Option<&str>) -> Tensor {
        Tensor {
            name: name.to_string(),
            bytes,
            stored_bytes: bytes / 2,
            tied: tied.map(String::from),
            ..Tensor::default()
        }
    }

    fn map() -> DeviceMap {
        let block = |name: &str, tensors| Block {
            name: name.to_string(),
            class: "Linear".to_string(),
            tensors,
            ..Block::default()
        };
        let tree = Tree {
            blocks: vec![
                block(
                    "a",
                    vec![tensor("a.w", 10_000, Some("x")), tensor("a.n", 10, None)],
                ),
                block(
                    "b",
                    vec![tensor("b.w", 20_000, None), tensor("b.n", 20, None)],
                ),
                block("c", vec![tensor("c.w", 10_000, Some("x"))]),
            ],
            ..Tree::default()
        };
        let mut budget = Budget::default();
        budget.set(Tier::Cpu, 100_000);
        let needs = Needs {
            kv_cache: 7,
            ..Needs::default()
        };
        DeviceMap::new(
            &tree,
            &[true, true, false, true, true],
            40_960,
            needs,
            budget,
        )
    }

    #[test]
    fn sums_count_shared_memory_once() {
        let map = map();
        assert_eq!(map.resident_bytes(), 10_030);
        assert_eq!(map.total_bytes(), 30_030);
        assert_eq!(map.streamed_bytes(), 10_000);
        assert_eq!(map.resident_footprint(), 3 * 4096 + 4096 + 2 * 8192);
        assert_eq!(map.memory_bytes(), 7 + 8 * 4096 + 40_960);
        assert_eq!(map.blocks()[1].resident_bytes, 20);
        assert_eq!(map.blocks()[1].bytes, 20_020);
    }

    #[test]
    fn is_written_as_accelerate_does() {
        assert_eq!(
            map().accelerate_json(),
            serde_json::json!({ "a": "cpu", "b": "disk", "c": "cpu" })
        );
    }

    #[test]
    fn all_of_it_is_written_as_json() {
        let json = serde_json::to_value(map()).unwrap();
        assert_eq!(json["budget"]["cpu"], 100_000);
        assert_eq!(json["needs"]["kv_cache"], 7);
        assert_eq!(json["ring_bytes"], 40_960);
        assert_eq!(json["blocks"][1]["tier"], "disk");
        assert_eq!(json["tensors"]["b.w"], "streamed");
        assert_eq!(json["tensors"]["b.n"], "cpu");
    }
}
