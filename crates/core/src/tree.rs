use crate::account::upload_bytes;
use crate::matching::{Matched, Stored, match_parameters};
use crate::planning::decide_with;
use crate::registry::{in_order, recurrent_layer};
use crate::{Access, Error, Options, Parameter, TensorTable, parameters};
use burn::module::Module;
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_plan::{Block, DeviceMap, Tensor, TensorKind, Tree, unit_footprint};
use std::collections::{BTreeMap, HashMap};

/// What of `module` is to be placed, in the order in which it is used as far as that is known.
/// Reads no weight and allocates none.
///
/// # Errors
/// [`Error::Mismatch`] with all that does not fit between the module and the checkpoint;
/// [`Error::Reparameterized`] and [`Error::Autodiff`] for modules that cannot be dispatched.
pub fn tree<M: Module>(
    module: &M,
    checkpoint: &Checkpoint,
    options: &Options,
) -> Result<Tree, Error> {
    tree_of(&parameters(module), &checkpoint.into(), options)
}

/// [`tree()`] of a module that is known by its parameters, and tensors that are known by their
/// headers.
///
/// # Errors
/// As there.
pub fn tree_of(
    parameters: &[Parameter],
    tensors: &TensorTable<'_>,
    options: &Options,
) -> Result<Tree, Error> {
    Ok(build(&match_parameters(parameters, tensors, options)?, options))
}

/// Where each weight of `module` lives: [`tree`] and [`decide`](crate::decide), with a ring that
/// holds all of a recurrent layer if the budget allows it, since such a layer asks for its weights
/// at every step.
///
/// # Errors
/// As these two.
pub fn plan<M: Module>(
    module: &M,
    checkpoint: &Checkpoint,
    options: &Options,
) -> Result<DeviceMap, Error> {
    let parameters = parameters(module);
    let matched = match_parameters(&parameters, &checkpoint.into(), options)?;
    let tree = build(&matched, options);
    let mut least = options.plan();
    if options.gpu.is_some() {
        let stored = matched.iter().filter_map(|entry| Some(entry.bytes(entry.stored.as_ref()?)));
        let passing = upload_bytes(&options.budget, stored.max().unwrap_or(0));
        least.needs.process = least.needs.process.saturating_add(passing);
    }
    let roomy = outsize_plan::Options {
        min_ring: least.min_ring.max(recurrent_bytes(&matched)),
        ..least.clone()
    };
    decide_with(&tree, options, &roomy).or_else(|_| decide_with(&tree, options, &least))
}

/// The ring in which all of the largest recurrent layer has room, in bytes; zero if there is none.
fn recurrent_bytes(matched: &[Matched]) -> u64 {
    let mut layers: HashMap<&str, u64> = HashMap::new();
    for entry in matched {
        if let (Some(stored), Some(layer)) = (&entry.stored, recurrent_layer(entry)) {
            let bytes = layers.entry(layer).or_default();
            *bytes = bytes.saturating_add(unit_footprint(entry.bytes(stored)));
        }
    }
    // What lies in the ring from before leaves gaps: half as much again.
    layers.into_values().map(|bytes| bytes.saturating_add(bytes / 2)).max().unwrap_or(0)
}

fn build(matched: &[Matched], options: &Options) -> Tree {
    let mut users: HashMap<_, usize> = HashMap::new();
    for entry in matched.iter().filter(|entry| entry.parameter.streams) {
        if let Some(stored) = &entry.stored {
            *users.entry(stored.key).or_default() += 1;
        }
    }
    let mut blocks: Vec<Block> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    for entry in in_order(matched, options) {
        let Some(stored) = &entry.stored else {
            continue; // keeps its own initialisation, which is the module's affair
        };
        let name = entry.parameter.block(&options.no_split);
        let streams = entry.parameter.streams;
        let shared = streams && users[&stored.key] > 1;
        let tensor = Tensor {
            name: entry.parameter.path.clone(),
            kind: match streams {
                true => TensorKind::Parameter,
                false => TensorKind::Buffer,
            },
            shape: stored.info().shape.iter().map(|n| *n as u64).collect(),
            dtype: planned_dtype(stored.info().dtype),
            bytes: entry.bytes(stored),
            stored_bytes: match entry.in_blocks {
                true => stored.weight.bytes(),
                false => stored.info().len,
            },
            row_bytes: entry.row_bytes(stored),
            access: entry.access(options),
            tied: shared.then(|| format!("{:?}", stored.key)),
            always_resident: !streams,
            once: false,
            routed: entry.routed,
        };
        let block = *known.entry(name).or_insert_with(|| {
            let depth = match name {
                "" => 0,
                _ => name.matches('.').count() + 1,
            };
            blocks.push(Block {
                name: name.to_string(),
                class: entry.parameter.class_at(depth).to_string(),
                ..Block::default()
            });
            blocks.len() - 1
        });
        blocks[block].tensors.push(tensor);
        blocks[block].tensors.extend(loaded_scales(entry, stored));
    }
    let staged = matched.iter().any(|entry| {
        let stored = entry.stored.as_ref().filter(|_| entry.parameter.streams);
        stored.is_some_and(|stored| entry.chunk(stored, &stored.weight).is_staged())
    });
    Tree {
        blocks,
        classes: classes(matched),
        staging_bytes: match staged {
            true => options.stream().staging_bytes(),
            false => 0,
        },
    }
}

/// The scales that stay in memory for a weight that is dequantized on the way in.
fn loaded_scales(entry: &Matched, stored: &Stored) -> Option<Tensor> {
    let scales = stored.weight.scales().filter(|_| !entry.in_blocks)?;
    let rows = scales.shape.first().map_or(1, |rows| *rows as u64).max(1);
    let [_, bytes, zeros] = stored.weight.bytes_in_memory();
    let bytes = bytes.saturating_add(zeros);
    Some(Tensor {
        name: stored.weight.format().scales_name(&entry.parameter.path)?,
        kind: TensorKind::Buffer,
        shape: scales.shape.iter().map(|n| *n as u64).collect(),
        dtype: planned_dtype(scales.dtype),
        bytes,
        stored_bytes: bytes,
        row_bytes: bytes / rows,
        access: Access::Whole,
        tied: None,
        always_resident: true,
        once: false,
        routed: None,
    })
}

/// The class of each module on the way to a parameter.
fn classes(matched: &[Matched]) -> BTreeMap<String, String> {
    let mut classes = BTreeMap::new();
    for entry in matched {
        let path = &entry.parameter.path;
        let ends = path.match_indices('.').map(|(end, _)| end);
        for (depth, end) in std::iter::once(0).chain(ends).enumerate() {
            let module = &path[..end];
            if !classes.contains_key(module) {
                let class = entry.parameter.class_at(depth).to_string();
                classes.insert(module.to_string(), class);
            }
        }
    }
    classes
}

/// The planner's word for a stored type.
pub fn planned_dtype(stored: Dtype) -> outsize_plan::WeightDtype {
    match stored {
        Dtype::F64 => outsize_plan::WeightDtype::F64,
        Dtype::F32 => outsize_plan::WeightDtype::F32,
        Dtype::F16 => outsize_plan::WeightDtype::F16,
        Dtype::BF16 | Dtype::PackedBf16(_) => outsize_plan::WeightDtype::Bf16,
        Dtype::I64 | Dtype::U64 => outsize_plan::WeightDtype::Int64,
        Dtype::I32 | Dtype::U32 => outsize_plan::WeightDtype::Int32,
        Dtype::I16 | Dtype::U16 => outsize_plan::WeightDtype::Int16,
        Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::F8E8M0 => outsize_plan::WeightDtype::F8,
        Dtype::F4 => outsize_plan::WeightDtype::F4,
        Dtype::I8 | Dtype::U8 | Dtype::Q8_0 => outsize_plan::WeightDtype::Int8,
        Dtype::Q6K => outsize_plan::WeightDtype::Int6,
        Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q5K => outsize_plan::WeightDtype::Int5,
        Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q4K => outsize_plan::WeightDtype::Int4,
        Dtype::U4 | Dtype::Iq4Nl | Dtype::Iq4Xs | Dtype::Mxfp4 => outsize_plan::WeightDtype::Int4,
        Dtype::Q3K | Dtype::Iq3Xxs | Dtype::Iq3S => outsize_plan::WeightDtype::Int3,
        Dtype::Q2K | Dtype::Iq2Xxs | Dtype::Iq2Xs | Dtype::Iq2S => outsize_plan::WeightDtype::Int2,
        // There is none of fewer bits.
        Dtype::Iq1S | Dtype::Iq1M | Dtype::Tq1_0 | Dtype::Tq2_0 => outsize_plan::WeightDtype::Int2,
        Dtype::Bool => outsize_plan::WeightDtype::Bool,
    }
}
