//! The report of a plan.

use super::what_if::WhatIf;
use outsize::plan::{
    Bound, Budget, DeviceMap, Error, HardwareProfile, ModuleMap, Options, PhaseTime, Residency,
    Routed, Tier, TierUse, Tree, WeightDtype, Workload, predict,
};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// The version of the JSON. It changes when a field is removed or changes its meaning, not when one
/// is added.
pub const REPORT_VERSION: u32 = 1;

/// Other budgets that are planned for, as shares of the requested one.
const OTHER_MEMORY: [f64; 2] = [1.25, 0.75];

/// The report of a plan: the JSON of `outsize plan --json`, and what is drawn.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanReport {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// The model.
    pub model: ModelReport,
    /// The strategy's name, or `manual`.
    pub strategy: String,
    /// The workload that the speed is predicted for.
    pub workload: Workload,
    /// The devices, the fastest first and the disk last.
    pub tiers: Vec<TierReport>,
    /// The blocks in the order of execution.
    pub blocks: Vec<BlockReport>,
    /// Predicted times.
    pub prediction: PredictionReport,
    /// The plan with other budgets.
    pub what_if: Vec<WhatIf>,
    /// The hardware profile of the prediction.
    pub figures: HardwareProfile,
    /// Where the profile comes from.
    pub figures_source: String,
    /// The map in Accelerate's own format.
    pub device_map: ModuleMap,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A model in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ModelReport {
    /// Its name.
    pub name: String,
    /// Its architecture, if it is known: `llama`.
    pub architecture: Option<String>,
    /// Number of values, tied ones counted once; none if shapes are unknown.
    pub parameters: Option<u64>,
    /// How a router chooses experts, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<Routed>,
    /// The type that most bytes of its weights are stored in.
    pub stored_dtype: Option<String>,
    /// The type that they are held in, if another was asked for.
    pub dtype: Option<String>,
    /// Bytes of its weights as held on devices, shared ones counted once.
    pub bytes: u64,
    /// The type of the KV cache, if it has one.
    pub kv_dtype: Option<String>,
}

/// A device and what is held on it. All in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TierReport {
    /// What is held.
    #[serde(flatten)]
    pub held: TierUse,
    /// What is left of its budget; none if unbounded.
    pub free: Option<u64>,
    /// Whether its budget was detected.
    pub detected: bool,
}

/// A block and where it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockReport {
    /// Its path in the checkpoint's names.
    pub name: String,
    /// The class of the module.
    pub class: String,
    /// Bytes of its weights as held on devices; weights tied to an earlier block are counted there.
    pub bytes: u64,
    /// These bytes by tier; streamed ones are on disk.
    pub shares: BTreeMap<Tier, u64>,
    /// Bytes of its KV cache.
    pub kv_bytes: u64,
    /// Bytes that each pass reads of it from disk if the ring keeps nothing.
    pub streamed_bytes: u64,
    /// How many of these the ring keeps from one pass to the next.
    pub kept_bytes: u64,
    /// Bytes that each pass uploads to its GPU.
    pub upload_bytes: u64,
    /// Where prefill computes.
    pub prefill_on: Tier,
    /// How long that takes, in seconds.
    pub prefill_seconds: f64,
    /// Where decode computes.
    pub decode_on: Tier,
    /// How long that takes, in seconds.
    pub decode_seconds: f64,
}

/// Predicted times, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PredictionReport {
    /// Loading all resident weights, a part of the first pass.
    pub load_seconds: f64,
    /// The first pass over the prompt, with loading.
    pub first_pass_seconds: f64,
    /// Prefill, once resident weights are loaded.
    pub prefill: PhaseReport,
    /// Decode: one more token of each sequence.
    pub decode: PhaseReport,
}

/// A pass over all blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PhaseReport {
    /// What it takes.
    #[serde(flatten)]
    pub time: PhaseTime,
    /// Tokens per second of all sequences.
    pub tokens_per_second: f64,
    /// What the pass waits for most.
    pub bound: Bound,
}

/// The inputs of a [`PlanReport`].
#[derive(Debug, Clone)]
pub struct Planned<'a> {
    /// What was placed.
    pub tree: &'a Tree,
    /// Where.
    pub map: &'a DeviceMap,
    /// With what options.
    pub options: &'a Options,
    /// The model's name, architecture and types; its numbers are counted here.
    pub model: ModelReport,
    /// Other names of tensors: that of a tied head's weight, and the tensor that it is.
    pub aliases: Vec<(String, String)>,
    /// Devices with a detected budget.
    pub detected: Vec<Tier>,
    /// Where the figures of the machine come from.
    pub figures_source: String,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl PlanReport {
    /// Makes the report; `replan` plans for another budget.
    pub fn new(
        planned: Planned<'_>,
        mut replan: impl FnMut(&Budget) -> Result<DeviceMap, Error>,
    ) -> Self {
        let Planned { tree, map, options, model, .. } = planned;
        let prediction = predict(tree, map, &options.figures, &options.workload);
        let shares = shares(tree, map);
        let mut blocks = Vec::with_capacity(tree.blocks.len());
        for ((placed, shares), time) in map.blocks().iter().zip(shares).zip(&prediction.blocks) {
            blocks.push(BlockReport {
                name: placed.name.clone(),
                class: placed.class.clone(),
                bytes: shares.values().fold(0, |sum, bytes| sum.saturating_add(*bytes)),
                shares,
                kv_bytes: placed.kv_bytes,
                streamed_bytes: placed.streamed_bytes,
                kept_bytes: placed.kept_bytes,
                upload_bytes: placed.upload_bytes,
                prefill_on: time.prefill_on,
                prefill_seconds: time.prefill_seconds,
                decode_on: time.decode_on,
                decode_seconds: time.decode_seconds,
            });
        }
        let tiers = map.tiers().iter().map(|held| TierReport {
            held: *held,
            free: held.free(),
            detected: planned.detected.contains(&held.tier),
        });
        let workload = options.workload;
        let phase = |time: PhaseTime, tokens: u64| PhaseReport {
            time,
            tokens_per_second: finite(workload.batch.saturating_mul(tokens) as f64 / time.seconds),
            bound: time.bound,
        };
        let what_if = OTHER_MEMORY
            .into_iter()
            .filter(|_| map.budget().iter().any(|(tier, _)| tier != Tier::Disk))
            .map(|memory| {
                let budget = scaled(map.budget(), memory);
                let outcome =
                    replan(&budget).map(|map| predict(tree, &map, &options.figures, &workload));
                WhatIf::new(memory, budget, outcome)
            })
            .collect();
        let most = stored_bytes(tree).into_iter().max_by_key(|(_, bytes)| *bytes);
        Self {
            version: REPORT_VERSION,
            model: ModelReport {
                parameters: parameters(tree),
                experts: tree.routed(),
                stored_dtype: most.map(|(dtype, _)| dtype.to_string()),
                bytes: map.total_bytes(),
                ..model
            },
            strategy: map.chosen_by().name().to_string(),
            workload,
            tiers: tiers.collect(),
            prediction: PredictionReport {
                load_seconds: prediction.load_seconds,
                first_pass_seconds: prediction.first_pass_seconds,
                prefill: phase(prediction.prefill, workload.prompt),
                decode: phase(prediction.decode, 1),
            },
            blocks,
            what_if,
            figures: options.figures.clone(),
            figures_source: planned.figures_source,
            device_map: device_map(tree, map, &planned.aliases),
            notes: planned.notes,
        }
    }

    /// Bytes of the resident weights.
    pub fn resident_bytes(&self) -> u64 {
        let stay = self.blocks.iter().flat_map(|block| &block.shares);
        stay.filter(|(tier, _)| **tier != Tier::Disk)
            .fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

/// `DeviceMap` by modules, with other names of its tensors.
pub fn device_map(tree: &Tree, map: &DeviceMap, aliases: &[(String, String)]) -> ModuleMap {
    let own = tree.tensors().map(|tensor| (tensor.name.as_str(), tier(map, &tensor.name)));
    let other = aliases.iter().map(|(alias, name)| (alias.as_str(), tier(map, name)));
    ModuleMap::new(own.chain(other))
}

/// The bytes of each block by tier; weights tied to an earlier block count there.
fn shares(tree: &Tree, map: &DeviceMap) -> Vec<BTreeMap<Tier, u64>> {
    let mut largest: HashMap<&str, u64> = HashMap::new();
    for tensor in tree.tensors() {
        if let Some(key) = &tensor.tied {
            let bytes = largest.entry(key).or_default();
            *bytes = tensor.bytes.max(*bytes);
        }
    }
    let mut of_blocks = Vec::with_capacity(tree.blocks.len());
    for block in &tree.blocks {
        let mut shares: BTreeMap<Tier, u64> = BTreeMap::new();
        for tensor in &block.tensors {
            let bytes = match &tensor.tied {
                None => tensor.bytes,
                Some(key) => largest.insert(key, 0).unwrap_or(0),
            };
            if bytes > 0 {
                let held = shares.entry(tier(map, &tensor.name)).or_default();
                *held = held.saturating_add(bytes);
            }
        }
        of_blocks.push(shares);
    }
    of_blocks
}

/// Where a tensor is between two uses.
fn tier(map: &DeviceMap, name: &str) -> Tier {
    match map.residency(name) {
        Some(Residency::Resident(tier)) => tier,
        Some(Residency::Streamed) | None => Tier::Disk,
    }
}

/// `budget` with every device but the disk scaled.
fn scaled(budget: &Budget, share: f64) -> Budget {
    let mut scaled = Budget::default();
    for (tier, bytes) in budget.iter() {
        let bytes = match tier {
            Tier::Disk => bytes,
            Tier::Gpu(_) | Tier::Cpu => (bytes as f64 * share) as u64,
        };
        scaled.set(tier, bytes);
    }
    scaled
}

/// Values in all tensors; none unless all shapes are known.
fn parameters(tree: &Tree) -> Option<u64> {
    let mut counted = std::collections::HashSet::new();
    let mut sum = 0u64;
    for tensor in tree.tensors() {
        if tensor.shape.is_empty() && tensor.bytes > 16 {
            return None;
        }
        if tensor.tied.as_ref().is_none_or(|key| counted.insert(key)) {
            let mut shape = tensor.shape.iter();
            sum = sum.checked_add(shape.try_fold(1u64, |product, n| product.checked_mul(*n))?)?;
        }
    }
    (sum > 0).then_some(sum)
}

/// Bytes of tensors by the type that they are stored in.
pub fn stored_bytes(tree: &Tree) -> BTreeMap<WeightDtype, u64> {
    let mut bytes: BTreeMap<WeightDtype, u64> = BTreeMap::new();
    for tensor in tree.tensors() {
        let sum = bytes.entry(tensor.dtype).or_default();
        *sum = sum.saturating_add(tensor.stored_bytes);
    }
    bytes
}

fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}
