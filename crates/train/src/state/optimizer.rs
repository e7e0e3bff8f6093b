//! The state of an optimizer in a file.
//!
//! The format is burnpack, that of Burn's own records: a CBOR header of bounded size and depth
//! that names tensors and numbers, and their bytes. There is nothing in it to execute.

use std::collections::HashMap;
use std::path::Path;

use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::Device;
use burn_pack::{Reader, Scalar, Writer};

use super::fault::StateFault;

/// A parameter's identity in this process, and its shape, by the identity in the state.
pub(super) type Identities = HashMap<u64, (u64, Vec<usize>)>;

/// The entry that has the number of dimensions of a parameter.
const RANK: &str = "__rank";

/// Writes the state of an optimizer; of what it holds on a device, one copy is made in memory.
pub(super) fn write(optimizer: &ModuleOptimizer, path: &Path) -> Result<(), StateFault> {
    let failed = |fault: burn::store::RecordError| StateFault::File {
        file: path.to_owned(),
        cause: std::io::Error::other(fault.to_string()),
    };
    optimizer.to_record().save(path).map_err(failed)
}

/// Reads the state of an optimizer of parameters that may have other identities now.
pub(super) fn read(
    optimizer: ModuleOptimizer,
    path: &Path,
    identities: &Identities,
) -> Result<ModuleOptimizer, StateFault> {
    let file = super::file_name(path);
    let damaged = |fault: &dyn ToString| StateFault::damaged(&file, fault.to_string());
    let mismatch = |what: String| StateFault::mismatch(&file, what);
    let unknown = |key: &str| {
        mismatch(format!(
            "`{key}` belongs to no parameter of the models: load the optimizer together with its models"
        ))
    };
    // `ID.rest` as it is called here, and the parameter's identity and shape.
    let renamed = |key: &str| {
        let (id, rest) = key.split_once('.').unwrap_or((key, ""));
        let (id, shape) = id.parse().ok().and_then(|id| identities.get(&id))?;
        let dot = if rest.is_empty() { "" } else { "." };
        Some((format!("{id}{dot}{rest}"), *id, shape))
    };
    let reader = Reader::from_file(path).map_err(|fault| damaged(&fault))?;
    let (scalars, paths) = (reader.scalars().clone(), reader.metadata().clone());

    let dtype = Device::default().settings().float_dtype.into();
    let mut tensors = Vec::new();
    for mut tensor in reader.into_tensors().map_err(|fault| damaged(&fault))? {
        let (name, id, shape) = renamed(&tensor.name).ok_or_else(|| unknown(&tensor.name))?;
        // Some optimizers keep a row and a column for a matrix.
        let found: Vec<usize> = tensor.shape.to_vec();
        let fits = |(&found, &whole): (&usize, &usize)| found == whole || found == 1;
        if found.len() != shape.len() || !found.iter().zip(shape).all(fits) {
            let what = format!("`{}` has shape {found:?}, its parameter {shape:?}", tensor.name);
            return Err(mismatch(what));
        }
        if tensor.dtype != dtype {
            let what = format!(
                "`{}` is of type {:?}, and Burn loads states of optimizers as {dtype:?} only",
                tensor.name, tensor.dtype
            );
            return Err(mismatch(what));
        }
        (tensor.name, tensor.param_id) = (name, Some(id));
        tensors.push(tensor);
    }
    let count = tensors.len();
    // Tensors are read from the file one at a time, into the buffer that the optimizer shares.
    let mut writer = Writer::new(tensors);
    for (key, value) in scalars {
        let (name, _, shape) = renamed(&key).ok_or_else(|| unknown(&key))?;
        if key.ends_with(RANK) && value != Scalar::from(shape.len()) {
            return Err(mismatch(format!("`{key}` is {value:?}, its parameter {shape:?}")));
        }
        writer = writer.with_scalar(&name, value);
    }
    for (key, path) in paths {
        let (name, ..) = renamed(&key).ok_or_else(|| unknown(&key))?;
        writer = writer.with_metadata(&name, &path);
    }
    let bytes = writer.into_bytes().map_err(|fault| damaged(&fault))?;
    let record = OptimizerRecord::from_bytes(bytes).map_err(|fault| damaged(&fault))?;
    let optimizer = optimizer.load_record(record);
    // Burn leaves out what it does not understand.
    let understood = optimizer.to_record().len();
    if understood != count {
        return Err(mismatch(format!(
            "of its {count} tensors this optimizer knows {understood}: load it into the kind of optimizer that \
             was saved, with the same settings"
        )));
    }
    Ok(optimizer)
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::nn::LinearConfig;
    use burn::optim::{AdamConfig, GradientsParams};
    use proptest::prelude::*;

    use super::*;

    /// Checksums aside: whatever is in the file, it is read or refused.
    #[test]
    fn damaged_files_do_not_panic() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("optimizer.bpk");
        let device = Device::default().autodiff();
        let model = LinearConfig::new(3, 2).init(&device);
        let mut optimizer: ModuleOptimizer = AdamConfig::new().init();
        let input = burn::tensor::Tensor::<2>::ones([1, 3], &device);
        let gradients = GradientsParams::from_grads(model.forward(input).sum().backward(), &model);
        let model = optimizer.step(0.1, model, gradients);
        write(&optimizer, &path).unwrap();
        let parameters = outsize_core::parameters(&model).into_iter();
        let identities = parameters.map(|parameter| {
            let id = parameter.id.val();
            (id, (id, parameter.shape))
        });
        let identities: Identities = identities.collect();
        let fresh: ModuleOptimizer = AdamConfig::new().init();
        assert!(read(fresh.clone(), &path, &identities).is_ok());
        assert_eq!(model.num_params(), 8);

        let whole = std::fs::read(&path).unwrap();
        let config = ProptestConfig::with_cases(2000);
        let mut runner = proptest::test_runner::TestRunner::new(config);
        let damages = (any::<prop::sample::Index>(), any::<u8>(), any::<bool>());
        runner
            .run(&damages, |(at, byte, truncates)| {
                let mut bytes = whole.clone();
                let at = at.index(bytes.len());
                if truncates {
                    bytes.truncate(at)
                } else {
                    bytes[at] = byte
                }
                std::fs::write(&path, bytes).unwrap();
                let _ = read(fresh.clone(), &path, &identities);
                Ok(())
            })
            .unwrap();
    }
}
