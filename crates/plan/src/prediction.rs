//! The predicted speed of a placement.

use crate::cost::{Costs, Time, seconds, times};
use crate::steps::DiskTraffic;
use crate::{DeviceMap, HardwareProfile, PlacedBlock, Tier, Tree, Workload};
use serde::Serialize;

/// Predicted times, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// Reading all resident weights, or first-touching their memory if that takes longer. It is a
    /// part of the first pass.
    pub load_seconds: f64,
    /// The first pass over the prompt, which also reads the resident weights: the larger of all
    /// reads, and of computing plus first-touch page faults, which both take processor time.
    pub first_pass_seconds: f64,
    /// Prefill, once the resident weights are loaded.
    pub prefill: PhaseTime,
    /// Decode: one more token of each sequence.
    pub decode: PhaseTime,
    /// Each block, in the order of execution.
    pub blocks: Vec<BlockTime>,
}

/// A pass over all blocks.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct PhaseTime {
    /// Wall time.
    pub seconds: f64,
    /// The sum of compute times.
    pub compute_seconds: f64,
    /// The sum of transfer times, whether compute hides them or not.
    pub transfer_seconds: f64,
    /// Bytes read from disk.
    pub disk_bytes: u64,
    /// Bytes copied to GPUs.
    pub upload_bytes: u64,
    /// Copies of activations between devices, which nothing hides.
    pub hop_seconds: f64,
    /// What the pass waits for most.
    #[serde(skip)]
    pub bound: Bound,
}

/// What a pass waits for most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Reads from disk.
    Disk,
    /// Copies to a GPU.
    Upload,
    /// Reads of weights, keys and values from the memory of the processor.
    #[default]
    Memory,
    /// Arithmetic.
    Compute,
}

impl Bound {
    /// The name as written in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Upload => "upload",
            Self::Memory => "memory",
            Self::Compute => "compute",
        }
    }
}

/// A block in both kinds of pass.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockTime {
    /// Its path in the module.
    pub name: String,
    /// Where prefill computes.
    pub prefill_on: Tier,
    /// Seconds of prefill: the larger of transfer and compute, and the copy of activations from the
    /// device of the block before.
    pub prefill_seconds: f64,
    /// Where decode computes.
    pub decode_on: Tier,
    /// Seconds of decode.
    pub decode_seconds: f64,
}

/// Predicts how long passes over `tree` take with `map`, which must be of this tree.
///
/// Each block takes the larger of its transfer and its compute time, since the next block is
/// fetched while this one computes; a transfer is the slower of disk read and upload, which
/// overlap. A token takes the longer of reading the weights from memory and of the operations; then
/// reading the keys and values so far; and a fixed time for each block. A prompt takes one pass for
/// each chunk, each of which reads what streams, less what the ring keeps. Embeddings read by rows
/// cost nothing. Activations that move from one device to another take the link's latency and their
/// bytes, which nothing hides; between two GPUs they pass through main memory.
pub fn predict(
    tree: &Tree,
    map: &DeviceMap,
    profile: &HardwareProfile,
    workload: &Workload,
) -> Prediction {
    let costs = Costs::new(tree, workload);
    let mut decode = PhaseTime::default();
    let mut prefill = PhaseTime::default();
    // Seconds of memory reads and of arithmetic, in prefill and decode.
    let mut limits = [(0.0, 0.0); 2];
    let mut blocks = Vec::with_capacity(map.blocks().len());
    let placed = map.blocks().iter().take(tree.blocks.len());
    let times = times(&costs, profile, placed.clone().map(PlacedBlock::placed));
    for (at, (block, (one, all))) in placed.zip(times).enumerate() {
        let placed = block.placed();
        let DiskTraffic { streamed, kept } = placed.traffic;
        let upload = |tier, share| match tier {
            Tier::Gpu(_) => placed.upload.used(share) as u64,
            Tier::Cpu | Tier::Disk => 0,
        };
        let phases = [(workload.prompt, block.prefill_on), (1, block.decode_on)];
        for ((memory, compute), (tokens, tier)) in limits.iter_mut().zip(phases) {
            let one = costs.limits(at, tokens, &profile.processor(tier));
            (*memory, *compute) = (*memory + one.0, *compute + one.1);
        }
        let share = costs.share(at, 1.0);
        let again = streamed.minus(kept);
        decode.add(&one, again.used(share) as u64, upload(placed.decode_on, share));
        let (mut read, mut uploaded) = (0u64, 0u64);
        for pass in costs.passes(at) {
            let (share, count) = (costs.share(at, pass.tokens), pass.count as u64);
            let bytes = if pass.first { streamed } else { again };
            read = read.saturating_add((bytes.used(share) as u64).saturating_mul(count));
            let bytes = upload(placed.prefill_on, share);
            uploaded = uploaded.saturating_add(bytes.saturating_mul(count));
        }
        prefill.add(&all, read, uploaded);
        blocks.push(BlockTime {
            name: block.name.clone(),
            prefill_on: block.prefill_on,
            prefill_seconds: all.seconds,
            decode_on: block.decode_on,
            decode_seconds: one.seconds,
        });
    }
    let resident = map.resident_bytes() as f64;
    let stored = map.resident_stored_bytes() as f64;
    let latency = profile.disk.latency_seconds.max(0.0) * f64::from(resident > 0.0);
    let reading = seconds(stored, profile.disk.bytes_per_second) + latency;
    let gpu = map.blocks().iter().find_map(|block| block.placed().gpu());
    let upload = match gpu {
        Some(Tier::Gpu(number)) => profile.gpu(number).upload.bytes_per_second,
        _ => f64::INFINITY,
    };
    let rates = [profile.disk.bytes_per_second, upload];
    prefill.bound = bound(&prefill, limits[0], rates);
    decode.bound = bound(&decode, limits[1], rates);
    let touching = |bytes| seconds(bytes, profile.first_touch_bytes_per_second);
    let load = touching(resident);
    let first_touch = touching(resident + map.ring_bytes() as f64);
    Prediction {
        load_seconds: reading.max(load),
        first_pass_seconds: (reading + prefill.transfer_seconds)
            .max(prefill.compute_seconds + first_touch)
            .max(prefill.seconds),
        prefill,
        decode,
        blocks,
    }
}

/// What a pass waits for most, by its seconds of memory reads and of arithmetic.
fn bound(time: &PhaseTime, (memory, compute): (f64, f64), [disk, upload]: [f64; 2]) -> Bound {
    if time.transfer_seconds > time.compute_seconds {
        let disk = seconds(time.disk_bytes as f64, disk);
        let upload = seconds(time.upload_bytes as f64, upload);
        if upload > disk { Bound::Upload } else { Bound::Disk }
    } else if compute > memory {
        Bound::Compute
    } else {
        Bound::Memory
    }
}

impl PhaseTime {
    fn add(&mut self, time: &Time, disk_bytes: u64, upload_bytes: u64) {
        self.seconds += time.seconds;
        self.compute_seconds += time.compute;
        self.transfer_seconds += time.transfer;
        self.hop_seconds += time.hop;
        self.disk_bytes = self.disk_bytes.saturating_add(disk_bytes);
        self.upload_bytes = self.upload_bytes.saturating_add(upload_bytes);
    }
}
