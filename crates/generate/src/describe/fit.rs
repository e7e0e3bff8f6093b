//! A configuration and the tensors of its checkpoint, brought together.

use std::collections::HashMap;

use outsize_checkpoint::{Dtype, TensorInfo};
use outsize_core::planned_dtype;
use outsize_models::ModelConfig;
use outsize_plan::Tree;

use crate::pipeline::BUFFERS;

/// The tree of `config`, each tensor of the type and size that the checkpoint stores it in: what [`outsize_core::tree`] makes of the
/// module and the checkpoint.
///
/// # Errors
/// A sentence that says which tensors are not those of the configuration.
pub(super) fn tree(config: &ModelConfig, tensors: &[TensorInfo]) -> Result<Tree, String> {
    let mut by_name: HashMap<&str, &TensorInfo> = tensors
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor))
        .collect();
    let mut tree = config.tree();
    // The products take weights as stored, but not in 64 bits.
    let wide = tensors.iter().any(|tensor| tensor.dtype == Dtype::F64);
    let mut staged = false;
    let (mut missing, mut misshaped, mut mistyped) = (Vec::new(), Vec::new(), Vec::new());
    for tensor in tree.blocks.iter_mut().flat_map(|block| &mut block.tensors) {
        let Some(stored) = by_name.remove(tensor.name.as_str()) else {
            missing.push(tensor.name.clone());
            continue;
        };
        if !stored
            .shape
            .iter()
            .map(|n| *n as u64)
            .eq(tensor.shape.iter().copied())
        {
            misshaped.push(tensor.name.clone());
        }
        let held = match stored.dtype {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 if !wide => stored.dtype,
            Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 => Dtype::F32,
            _ => {
                mistyped.push(tensor.name.clone());
                continue;
            }
        };
        let bytes = |stored_bytes: u64| {
            (stored_bytes / stored.dtype.size() as u64).saturating_mul(held.size() as u64)
        };
        let rows = stored.shape.first().map_or(1, |rows| *rows as u64).max(1);
        tensor.dtype = planned_dtype(stored.dtype);
        tensor.stored_bytes = stored.len;
        tensor.bytes = bytes(stored.len);
        tensor.row_bytes = bytes(stored.len / rows);
        staged |= held != stored.dtype || !stored.offset.is_multiple_of(held.size() as u64);
    }
    let mut unexpected: Vec<String> = by_name
        .into_keys()
        .filter(|name| !BUFFERS.iter().any(|end| name.ends_with(end)))
        .map(str::to_owned)
        .collect();
    unexpected.sort_unstable();
    if staged {
        tree.staging_bytes = outsize_stream::Options::default().staging_bytes();
    }
    let faults: Vec<String> = [
        (missing, "missing"),
        (misshaped, "of another shape"),
        (mistyped, "of a type that is not built in"),
        (unexpected, "not the model's"),
    ]
    .into_iter()
    .filter_map(|(names, fault)| {
        let first = names.first()?;
        Some(match names.len() {
            1 => format!("{first:?} is {fault}"),
            n => format!("{n} tensors are {fault}, {first:?} first"),
        })
    })
    .collect();
    match faults[..] {
        [] => Ok(tree),
        _ => Err(format!(
            "the weights are not those of config.json, so the model cannot be run as it is: {}",
            faults.join("; ")
        )),
    }
}
