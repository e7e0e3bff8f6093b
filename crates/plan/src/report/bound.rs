//! What a pass waits for.

use super::{BlockReport, values};
use crate::{Access, Options, PhaseTime, Tier, Tree};
use serde::Serialize;

/// What a pass waits for most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Reading from disk.
    Disk,
    /// Copying to a GPU.
    Upload,
    /// Reading weights, keys and values from the memory of what computes.
    Memory,
    /// Arithmetic.
    ActivationDtype,
}

impl Bound {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Upload => "upload",
            Self::Memory => "memory",
            Self::ActivationDtype => "compute",
        }
    }
}

/// What a pass of `tokens` tokens of each text waits for most.
pub(super) fn bound(
    tree: &Tree,
    blocks: &[BlockReport],
    options: &Options,
    time: &PhaseTime,
    tokens: u64,
) -> Bound {
    let figures = &options.figures;
    if time.transfer_seconds > time.compute_seconds {
        let disk = time.disk_bytes as f64 / figures.disk.bytes_per_second;
        let gpu = blocks
            .iter()
            .find_map(|block| match (block.prefill_on, block.decode_on) {
                (Tier::Gpu(number), _) | (_, Tier::Gpu(number)) => Some(number),
                _ => None,
            });
        let upload = gpu.map_or(0.0, |gpu| {
            time.upload_bytes as f64 / figures.gpu(gpu).upload.bytes_per_second
        });
        return if upload > disk {
            Bound::Upload
        } else {
            Bound::Disk
        };
    }
    let rows = options.workload.batch.saturating_mul(tokens) as f64;
    let (mut memory, mut compute) = (0.0, 0.0);
    for (block, placed) in tree.blocks.iter().zip(blocks) {
        let processor = figures.processor(if tokens == 1 {
            placed.decode_on
        } else {
            placed.prefill_on
        });
        let mut operations = 0.0;
        for tensor in block
            .tensors
            .iter()
            .filter(|tensor| tensor.access != Access::Rows)
        {
            memory += tensor.bytes as f64 / processor.product_bytes_per_second;
            if tensor.shape.len() > 1 {
                operations += 2.0 * values(&tensor.shape).unwrap_or(u64::MAX) as f64;
            }
        }
        let operations = block
            .work
            .flops_per_token
            .map_or(operations, |flops| flops as f64);
        compute += operations * rows / processor.product_flops;
        memory += block.work.kv_bytes as f64 / processor.cache_bytes_per_second;
    }
    if compute > memory {
        Bound::ActivationDtype
    } else {
        Bound::Memory
    }
}
