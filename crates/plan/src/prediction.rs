//! How fast a placement will be.

use crate::{DeviceMap, Figures, Tier, Tree, Workload};
use serde::Serialize;

/// How long things will take, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// Reading all weights that stay: a part of the first pass, which does it as it goes.
    pub load_seconds: f64,
    /// The pass over the prompt, once what stays is there.
    pub prefill: PhaseTime,
    /// The pass that makes one more token of each text.
    pub decode: PhaseTime,
    /// Each block, in the order of execution.
    pub blocks: Vec<BlockTime>,
}

/// A pass over all blocks.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct PhaseTime {
    /// From its begin to its end.
    pub seconds: f64,
    /// What of it is computing.
    pub compute_seconds: f64,
    /// What the transfers take, hidden behind computing or not.
    pub transfer_seconds: f64,
    /// Bytes read from disk.
    pub disk_bytes: u64,
    /// Bytes copied to GPUs.
    pub upload_bytes: u64,
}

/// A block in both kinds of pass.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockTime {
    /// Its path in the module.
    pub name: String,
    /// Where it computes in the pass over the prompt.
    pub prefill_on: Tier,
    /// How long that takes, in seconds: the larger of its transfer and its computing.
    pub prefill_seconds: f64,
    /// Where it computes when a token is made.
    pub decode_on: Tier,
    /// How long that takes.
    pub decode_seconds: f64,
}

/// How long passes over `tree` will take, placed as `map` says, on a machine of such figures.
pub fn predict(tree: &Tree, map: &DeviceMap, figures: &Figures, workload: &Workload) -> Prediction {
    let _ = workload;
    let mut decode = PhaseTime::default();
    let mut blocks = Vec::new();
    for (block, placed) in tree.blocks.iter().zip(map.blocks()) {
        let streamed = placed.bytes - placed.resident_bytes;
        let transfer = streamed as f64 / figures.disk.bytes_per_second;
        let compute = placed.bytes as f64 / figures.cpu.product_bytes_per_second;
        let seconds = transfer.max(compute);
        decode.seconds += seconds;
        decode.compute_seconds += compute;
        decode.transfer_seconds += transfer;
        decode.disk_bytes += streamed;
        blocks.push(BlockTime {
            name: block.name.clone(),
            prefill_on: placed.prefill_on,
            prefill_seconds: seconds,
            decode_on: placed.decode_on,
            decode_seconds: seconds,
        });
    }
    Prediction {
        load_seconds: map.resident_bytes() as f64 / figures.disk.bytes_per_second,
        prefill: decode,
        decode,
        blocks,
    }
}
