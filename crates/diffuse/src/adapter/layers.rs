//! The layers of a part that adapters are for.

use std::collections::HashMap;

use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_checkpoint::{Checkpoint, Dtype, TensorInfo, shown};
use outsize_core::LowRank;
use outsize_models::{WeightKind, WeightSpec};

use super::file::{AdapterFile, MAX_QUOTE, Matrices};
use super::module_names::ModuleNames;
use crate::error::Error;
use crate::pipeline_part::PipelinePart;
use crate::published::Rows;

/// What a matrix takes beside its values, what is known of it in its file included, in bytes.
const PER_MATRIX: u64 = 1024;

/// What adapters add to the layers of a part.
#[derive(Debug, Default)]
pub(crate) struct AdaptedLayers {
    /// By the path of the weight, in each case of one adapter after the other.
    layers: HashMap<String, Vec<Layer>>,
}

/// What one adapter adds to one weight.
#[derive(Debug)]
struct Layer {
    checkpoint: Checkpoint,
    down: TensorInfo,
    up: TensorInfo,
    /// Rows of `up` that are the weight's.
    rows: Rows,
    /// Values of a row of the weight.
    inputs: usize,
    rank: usize,
    scale: f64,
    /// Whether the weight is stored as `[in, out]`.
    in_out: bool,
}

/// What a file has for a weight.
struct Found<'a> {
    /// The path of the weight.
    path: &'a str,
    /// Its module, as diffusers calls it, and as the file does.
    module: &'a str,
    name: String,
    rows: Rows,
    matrices: &'a Matrices,
    in_out: bool,
}

impl Found<'_> {
    /// Values between the matrices; none if there is no first one.
    fn rank(&self) -> usize {
        self.matrices.down.as_ref().and_then(|down| down.shape.first().copied()).unwrap_or(0)
    }
}

/// What all adapters add to one weight, for the account of memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdaptedLayer<'a> {
    /// The path of the weight.
    pub path: &'a str,
    /// Values that come out.
    pub outputs: u64,
    /// Values between the matrices.
    pub rank: u64,
    /// What the matrices take, in bytes.
    pub bytes: u64,
}

impl AdaptedLayers {
    /// Adds what the file has for the weights of a part. Gives the modules of the file that it was
    /// for.
    pub fn add(
        &mut self,
        file: &AdapterFile,
        part: PipelinePart,
        names: &ModuleNames,
        weights: &[WeightSpec],
    ) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        for weight in weights.iter().filter(|weight| weight.kind == WeightKind::Linear) {
            let Some(module) = weight.name.strip_suffix(".weight") else { continue };
            let in_out = names.is_in_out(module);
            let mut shape = weight.shape.clone();
            if in_out {
                shape.reverse();
            }
            let mut candidates =
                names.of(part, module, &shape).into_iter().filter_map(|(name, rows)| {
                    let matrices = file.modules.get(&name)?;
                    Some(Found { path: &weight.name, module, name, rows, matrices, in_out })
                });
            let Some(first) = candidates.next() else { continue };
            if let Some(other) = candidates.next() {
                let name = shown(&other.name, MAX_QUOTE);
                return Err(
                    file.fault(format!("the module {name} is there under another name too"))
                );
            }
            found.push((first, shape[1..].iter().product()));
        }
        let modules: Vec<_> =
            found.iter().map(|(found, _)| vec![found.module.to_owned()]).collect();
        let ranks: Vec<_> = found.iter().map(|(found, _)| found.rank()).collect();
        let scales = file.scales(part, &modules, &ranks)?;
        let mut claimed = Vec::with_capacity(found.len());
        for ((found, inputs), noted) in found.into_iter().zip(scales) {
            let layer = Layer::new(file, &found, inputs, noted)?;
            self.layers.entry(found.path.to_owned()).or_default().push(layer);
            claimed.push(found.name);
        }
        Ok(claimed)
    }

    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// What is added to each weight.
    pub fn iter(&self) -> impl Iterator<Item = AdaptedLayer<'_>> {
        self.layers.iter().map(|(path, layers)| {
            let outputs: usize = layers[0].rows.len();
            let rank: usize = layers.iter().map(|layer| layer.rank).sum();
            let bytes = match &layers[..] {
                [layer] => layer.down.len + layer.up.len / layer.rows.of as u64 * outputs as u64,
                // In f32.
                _ => 4 * (rank * (outputs + layers[0].inputs)) as u64,
            };
            let (outputs, rank) = (outputs as u64, rank as u64);
            AdaptedLayer { path, outputs, rank, bytes: bytes + 2 * PER_MATRIX }
        })
    }

    /// Reads what is added to each weight, by its path: in the types in which it is stored, of more
    /// than one adapter in f32.
    pub fn read(&self) -> Result<HashMap<String, LowRank>, outsize_core::Error> {
        let read = |(path, layers): (&String, &Vec<Layer>)| {
            let mut parts = layers.iter().map(Layer::read).collect::<Result<Vec<_>, _>>()?;
            if let [_, _, ..] = &parts[..] {
                parts = vec![joined(parts)];
            }
            Ok((path.clone(), parts.remove(0)))
        };
        self.layers.iter().map(read).collect()
    }
}

/// The sum of several, as one.
fn joined(parts: Vec<LowRank>) -> LowRank {
    let (mut downs, mut ups) = (Vec::new(), Vec::new());
    let in_out = parts.iter().any(|part| part.in_out);
    for LowRank { down, up, scale, .. } in parts {
        downs.push(down.cast(DType::F32));
        ups.push(up.cast(DType::F32) * scale);
    }
    LowRank { down: Tensor::cat(downs, 0), up: Tensor::cat(ups, 1), scale: 1.0, in_out }
}

impl Layer {
    /// Checks what the file has for a weight, whose rows hold so many values, with the scale that
    /// PEFT noted.
    fn new(
        file: &AdapterFile,
        found: &Found<'_>,
        inputs: usize,
        noted: Option<f64>,
    ) -> Result<Self, Error> {
        let Found { matrices, rows, in_out, .. } = found;
        let (Some(down), Some(up)) = (&matrices.down, &matrices.up) else {
            let name = shown(&found.name, MAX_QUOTE);
            return Err(
                file.fault(format!("the module {name} has not two matrices, but one or none"))
            );
        };
        let rank = found.rank();
        let values = |tensor: &TensorInfo| tensor.shape.get(1..).map(|rest| rest.iter().product());
        for (tensor, expected) in [(down, [rank, inputs]), (up, [rows.of, rank])] {
            let found = [tensor.shape.first().copied(), values(tensor)];
            if rank == 0 || found != expected.map(Some) {
                let reason = format!(
                    "has the shape {:?}, and the model has {expected:?} there: is it the adapter of another model?",
                    tensor.shape
                );
                return Err(file.tensor_fault(&tensor.name, reason));
            }
        }
        let scale = match (matrices.alpha, noted) {
            (Some(alpha), _) => alpha / rank as f64,
            (None, Some(noted)) => noted,
            (None, None) => 1.0,
        };
        Ok(Self {
            checkpoint: file.checkpoint.clone(),
            down: down.clone(),
            up: up.clone(),
            rows: rows.clone(),
            inputs,
            rank,
            scale: scale * file.scale,
            in_out: *in_out,
        })
    }

    fn read(&self) -> Result<LowRank, outsize_core::Error> {
        Ok(LowRank {
            down: self.matrix(&self.down, &Rows::all(self.rank))?,
            up: self.matrix(&self.up, &self.rows)?,
            scale: self.scale,
            in_out: self.in_out,
        })
    }

    /// Some rows of a tensor, as a matrix.
    fn matrix(&self, tensor: &TensorInfo, rows: &Rows) -> Result<Tensor<2>, outsize_core::Error> {
        let row = tensor.len as usize / rows.of;
        let mut bytes = vec![0; row * rows.len()];
        let mut rest = &mut bytes[..];
        for range in &rows.ranges {
            let (some, behind) = rest.split_at_mut(row * range.len());
            self.checkpoint.read_at(tensor, (row * range.start) as u64, some)?;
            rest = behind;
        }
        let dtype = match tensor.dtype {
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            _ => DType::F32,
        };
        let values = tensor.shape[1..].iter().product();
        let data = TensorData::from_bytes_vec(bytes, [rows.len(), values], dtype);
        Ok(Tensor::from_data(data, (&Device::flex(), dtype)))
    }
}
