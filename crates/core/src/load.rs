//! Values that are loaded at once: of a module that is to be trained, and of parameters that have
//! no hook or drop it.

use crate::matching::{Matched, Stored, match_parameters};
use crate::running_state::{is_initialized, settle};
use crate::{Error, Kind, Options, convert, integers, parameters};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, Int, Tensor, TensorData};
use outsize_checkpoint::Checkpoint;
use std::collections::HashMap;

/// Bytes that are read at once: the memory that loading takes besides the values.
const READ: usize = 1 << 20;

/// Gives every parameter of `module` its value from the checkpoint, as plain tensors: for training,
/// where nothing is streamed. Of `options` only names, types and what may be missing count.
///
/// Parameters keep their [`ParamId`](burn::module::ParamId)s, devices and whether they require a
/// gradient.
///
/// # Errors
/// [`Error::Mismatch`] before anything is read; what reading said.
pub fn load<M: Module>(module: M, checkpoint: &Checkpoint, options: &Options) -> Result<M, Error> {
    let mut parameters = parameters(&module);
    for parameter in &mut parameters {
        (parameter.autodiff, parameter.streams) = (false, false);
    }
    let matched = match_parameters(&parameters, &checkpoint.into(), options)?;
    load_scales(checkpoint, &matched)?;
    if is_initialized(&module) {
        settle(&module);
    }
    let mut load = Load::new(checkpoint, &matched);
    let module = module.map(&mut load);
    load.finish()?;
    Ok(module)
}

/// Reads the scales of what is dequantized on its way in, and which columns make groups.
pub(crate) fn load_scales(checkpoint: &Checkpoint, matched: &[Matched]) -> Result<(), Error> {
    for entry in matched {
        let stored = entry.stored.as_ref();
        let weight = stored.map(|stored| &stored.weight);
        if let (Some(scales), Some(weight)) = (&entry.scales, weight) {
            let values = integers::load_scales(checkpoint, weight)?;
            scales.get_or_init(|| values);
        }
        if let Some(weight) = weight {
            integers::check_order(checkpoint, weight)?;
        }
    }
    Ok(())
}

/// Gives their values to the parameters that cannot be streamed.
pub(crate) struct Load<'a> {
    checkpoint: &'a Checkpoint,
    matched: HashMap<&'a str, (&'a Matched<'a>, &'a Stored)>,
    path: Vec<String>,
    error: Option<Error>,
}

impl<'a> Load<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, matched: &'a [Matched<'a>]) -> Self {
        Self {
            checkpoint,
            matched: matched
                .iter()
                .filter(|entry| !entry.parameter.streams)
                .filter_map(|entry| {
                    let stored = entry.stored.as_ref()?;
                    Some((entry.parameter.path.as_str(), (entry, stored)))
                })
                .collect(),
            path: Vec::new(),
            error: None,
        }
    }

    /// Whether there is nothing to load.
    pub(crate) fn is_empty(&self) -> bool {
        self.matched.is_empty()
    }

    /// What went wrong, if anything did.
    pub(crate) fn finish(self) -> Result<(), Error> {
        self.error.map_or(Ok(()), Err)
    }

    /// The value of the parameter that is being visited, if it is to be loaded, and whether it is
    /// stored with its axes the other way round.
    fn data(&mut self) -> Option<(TensorData, bool)> {
        if self.error.is_some() {
            return None;
        }
        let (entry, stored) = self.matched.get(self.path.join(".").as_str())?;
        let data = read(self.checkpoint, stored, entry);
        let data = data.map_err(|error| self.error = Some(error)).ok()?;
        Some((data, entry.transposed))
    }
}

/// Reads a value a part at a time, each being cast on its way, so that no second copy is made.
fn read(checkpoint: &Checkpoint, stored: &Stored, entry: &Matched) -> Result<TensorData, Error> {
    let info = stored.info();
    let wrong =
        |reason: &str| Error::Value { name: stored.name.clone(), reason: reason.to_string() };
    let no_memory = || outsize_checkpoint::Error::OutOfMemory {
        tensor: stored.name.clone(),
        len: entry.bytes(stored),
    };
    let len = usize::try_from(entry.bytes(stored)).map_err(|_| no_memory())?;
    let mut held = Vec::new();
    held.try_reserve_exact(len).map_err(|_| no_memory())?;
    // Whole blocks of elements at a time.
    let step = entry.convert.as_ref().map_or(1, |convert| convert.from);
    let mut buffer = vec![0; (READ / step * step).min(info.len as usize)];
    let mut start = 0;
    while start < info.len {
        let count = (info.len - start).min(buffer.len() as u64) as usize;
        let raw = &mut buffer[..count];
        checkpoint.read_at(info, start, raw)?;
        match (entry.parameter.kind, &entry.convert) {
            (Kind::Float, Some(convert)) if convert.is_scattered() => {
                held.resize(len, 0);
                convert.run(info.offset + start, raw, &mut held);
            }
            (Kind::Float, Some(convert)) => {
                let from = held.len();
                held.resize(from + count / convert.from * convert.to, 0);
                convert.run(info.offset + start, raw, &mut held[from..]);
            }
            (Kind::Float, None) => held.extend_from_slice(raw),
            (Kind::Int, _) => {
                for number in raw.chunks_exact(info.dtype.size()) {
                    convert::integer(info.dtype, number)
                        .and_then(|value| convert::push_integer(value, entry.dtype, &mut held))
                        .ok_or_else(|| wrong("an integer is too large for the device's type"))?;
                }
            }
            (Kind::Bool, _) => {
                // Burn would take any byte for a boolean; only 0 and 1 are.
                if raw.iter().any(|byte| *byte > 1) {
                    return Err(wrong("a boolean is neither 0 nor 1"));
                }
                held.extend_from_slice(raw);
            }
        }
        start += count as u64;
    }
    TensorData::try_from_bytes_vec(held, info.shape.clone(), entry.dtype)
        .map_err(|error| wrong(&error.to_string()))
}

impl ModuleMapper for Load<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.data() {
            Some((data, transposed)) => {
                let (id, device, dtype) = (param.id, param.lazy_device(), data.dtype());
                let tensor = Tensor::from_data(data, (&device, dtype));
                let tensor = if transposed { tensor.swap_dims(0, 1) } else { tensor };
                param.transform_for_load(tensor, id)
            }
            None => param,
        }
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        match self.data() {
            Some((data, _)) => {
                let (id, device, dtype) = (param.id, param.lazy_device(), data.dtype());
                param.transform_for_load(Tensor::from_data(data, (&device, dtype)), id)
            }
            None => param,
        }
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        match self.data() {
            Some((data, _)) => {
                let (id, device, dtype) = (param.id, param.lazy_device(), data.dtype());
                param.transform_for_load(Tensor::from_data(data, (&device, dtype)), id)
            }
            None => param,
        }
    }
}
