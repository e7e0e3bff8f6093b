use std::collections::HashMap;
use std::path::Path;

use burn::tensor::{DType, Tensor};
use outsize_checkpoint::{Dtype, FileWriter, OutputFolder, TensorSpec, write_file};
use outsize_core::LowRank;
use outsize_models::ModelConfig;

use crate::row_order::in_halves;
use crate::targets::Selection;
use crate::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, Error, LoraConfig};

/// Writes an adapter that PEFT loads: `parts` are the matrices by the path of the parameter that
/// they are for, as [`LoraAdapter::parts`](crate::LoraAdapter::parts) gives them, in the type in
/// which they are held. Their scale is that of the configuration. The folder appears complete or
/// not at all; it must not exist, or be empty.
///
/// # Errors
/// [`Error::Part`]: a target of the configuration has no matrices, they have other shapes or types,
/// or there are matrices that are for no target. As [`LoraConfig::targets`]; and a folder that
/// cannot be written.
pub fn save(
    folder: impl AsRef<Path>,
    config: &LoraConfig,
    model: &ModelConfig,
    parts: &HashMap<String, LowRank>,
) -> Result<(), Error> {
    let tensors = tensors(&Selection::strict(config, model)?, parts)?;
    let output = OutputFolder::prepare(folder.as_ref())?;
    let specs = tensors
        .iter()
        .map(|(name, dtype, tensor)| TensorSpec::new(name.clone(), *dtype, tensor.dims()));
    let mut writer = FileWriter::create(output.folder().join(ADAPTER_WEIGHTS[0]), specs.collect())?;
    for (name, _, tensor) in tensors {
        writer.write(&name, tensor.into_data().as_bytes())?;
    }
    writer.finish()?;
    write_file(output.folder().join(ADAPTER_CONFIG), config.to_json().as_bytes())?;
    Ok(output.publish()?)
}

/// What is to be written, by name.
fn tensors(
    Selection { chosen, .. }: &Selection,
    parts: &HashMap<String, LowRank>,
) -> Result<Vec<(String, Dtype, Tensor<2>)>, Error> {
    let fault = |path: &str, reason: String| Error::Part { path: path.to_owned(), reason };
    let other = parts.keys().find(|path| chosen.iter().all(|it| it.target.path != **path));
    if let Some(path) = other {
        return Err(fault(path, "the configuration has no target of that path".to_owned()));
    }
    let mut tensors = Vec::with_capacity(2 * chosen.len());
    for chosen in chosen {
        let target = &chosen.target;
        let Some(part) = parts.get(&target.path) else {
            if chosen.is_optional {
                continue;
            }
            return Err(fault(&target.path, "it has no matrices".to_owned()));
        };
        let [out, inputs] = target.shape;
        let expected = [[target.rank, inputs], [out, target.rank]];
        let names = chosen.tensor_names();
        for (((tensor, head), expected), name) in
            [(&part.down, None), (&part.up, chosen.interleaved_head)]
                .into_iter()
                .zip(expected)
                .zip(names)
        {
            if tensor.dims() != expected {
                let reason = format!("a matrix is {:?}, and must be {expected:?}", tensor.dims());
                return Err(fault(&target.path, reason));
            }
            let dtype = match tensor.dtype() {
                DType::F32 => Dtype::F32,
                DType::BF16 => Dtype::BF16,
                DType::F16 => Dtype::F16,
                dtype => {
                    let reason =
                        format!("a matrix is of {dtype:?}, and must be of F32, BF16 or F16");
                    return Err(fault(&target.path, reason));
                }
            };
            tensors.push((name, dtype, in_halves(tensor.clone(), head)));
        }
    }
    Ok(tensors)
}
