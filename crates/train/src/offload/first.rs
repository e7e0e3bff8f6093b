//! What a training begins with: the weights of a checkpoint, and moments that are zero.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use outsize_checkpoint::{Checkpoint, Dtype, FileWriter, write_file};
use serde_json::json;

use super::gradient_file::failed;
use super::layout::{
    FIRST_MOMENT, LearningRole, LearningTensor, OffloadLayout, SECOND_MOMENT, file_name, step_name,
};
use crate::Error;

/// The file that says in which file each tensor is.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Bytes of a tensor that are copied at once.
const PIECE: usize = 1 << 20;

/// Writes the states before the first step to the folder `weights`, in place of what is in it.
/// `go_on` is asked now and then.
pub(super) fn write_first(
    weights: &Path,
    layout: &OffloadLayout,
    model: &Checkpoint,
    go_on: impl Fn() -> bool,
) -> Result<(), Error> {
    // What a process left that did not come to its end.
    if weights.exists() {
        fs::remove_dir_all(weights).map_err(|cause| failed(weights, cause))?;
    }
    fs::create_dir(weights).map_err(|cause| failed(weights, cause))?;
    let mut places = BTreeMap::new();
    for (group, tensors) in layout.groups.iter().enumerate() {
        let specs = layout.specs(group);
        places.extend(specs.iter().map(|spec| (spec.name.clone(), file_name(group))));
        let writer = FileWriter::create(weights.join(file_name(group)), specs);
        let mut writer = writer.map_err(outsize_core::Error::from)?;
        for tensor in &layout.tensors[tensors.clone()] {
            if !go_on() {
                return Err(Error::Stopped);
            }
            write_tensor(model, tensor, &mut writer)?;
        }
        let step = writer.write(&step_name(group), &0u64.to_le_bytes());
        step.and_then(|()| writer.finish()).map_err(outsize_core::Error::from)?;
    }
    let index = json!({ "metadata": {}, "weight_map": places }).to_string();
    let written = write_file(weights.join(INDEX), index.as_bytes());
    Ok(written.map_err(outsize_core::Error::from)?)
}

/// Writes a tensor's weights, and moments that are zero.
fn write_tensor(
    model: &Checkpoint,
    tensor: &LearningTensor,
    writer: &mut FileWriter,
) -> Result<(), Error> {
    let mut write = |name: &str, widened: bool| -> Result<(), outsize_checkpoint::Error> {
        for start in (0..tensor.info.len).step_by(PIECE) {
            let mut bytes = vec![0; PIECE.min((tensor.info.len - start) as usize)];
            model.read_at(&tensor.info, start, &mut bytes)?;
            match widened {
                true => writer.write(name, &in_f32(&bytes, tensor.info.dtype))?,
                false => writer.write(name, &bytes)?,
            }
        }
        Ok(())
    };
    let copied = write(&tensor.info.name, false);
    copied.map_err(outsize_core::Error::from)?;
    if tensor.role != LearningRole::Learns {
        return Ok(());
    }
    if tensor.info.dtype != Dtype::F32 {
        write(&tensor.master(), true).map_err(outsize_core::Error::from)?;
    }
    let zeros = vec![0; PIECE];
    for end in [FIRST_MOMENT, SECOND_MOMENT] {
        let (name, len) = (tensor.named(end), tensor.values() * 4);
        for start in (0..len).step_by(PIECE) {
            let piece = &zeros[..PIECE.min((len - start) as usize)];
            writer.write(&name, piece).map_err(outsize_core::Error::from)?;
        }
    }
    Ok(())
}

/// Values of 16 bits, exactly.
fn in_f32(bytes: &[u8], dtype: Dtype) -> Vec<u8> {
    let values = bytes.as_chunks::<2>().0.iter();
    let widened = values.map(|bytes| match dtype {
        Dtype::F16 => f16::from_le_bytes(*bytes).to_f32(),
        _ => bf16::from_le_bytes(*bytes).to_f32(),
    });
    widened.flat_map(f32::to_le_bytes).collect()
}
