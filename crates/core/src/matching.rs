//! Which tensor of the checkpoint belongs to which parameter.

use crate::convert;
use crate::{Error, FloatType, Kind, Misfit, Options, Parameter};
use burn::tensor::DType;
use outsize_checkpoint::{Checkpoint, Dtype, TensorInfo};
use outsize_stream::Convert;
use std::collections::HashSet;

/// A parameter and the tensor that holds its value.
#[derive(Debug, Clone)]
pub(crate) struct Matched {
    pub(crate) parameter: Parameter,
    /// The tensor's number in [`Checkpoint::tensors`]; none for a parameter that keeps its own
    /// initialisation.
    pub(crate) tensor: Option<usize>,
    /// Whether the tensor is stored with its axes the other way round.
    pub(crate) transposed: bool,
    /// The type in which a float parameter is held.
    pub(crate) dtype: DType,
    /// The conversion to that type.
    pub(crate) convert: Option<Convert>,
}

impl Matched {
    /// Bytes of the value as held on the device.
    pub(crate) fn bytes(&self, stored: &TensorInfo) -> u64 {
        match &self.convert {
            Some(convert) => stored.len / convert.from as u64 * convert.to as u64,
            None => stored.len,
        }
    }
}

/// Finds every parameter's tensor, or says in one error all that is wrong.
pub(crate) fn match_parameters(
    parameters: &[Parameter],
    checkpoint: &Checkpoint,
    options: &Options,
) -> Result<Vec<Matched>, Error> {
    let mut misfit = Misfit {
        checkpoint: checkpoint.folder().display().to_string(),
        ..Misfit::default()
    };
    let mut used = HashSet::new();
    let mut matched = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        if parameter.hooked {
            return Err(Error::Reparameterized {
                path: parameter.path.clone(),
            });
        }
        if parameter.autodiff {
            return Err(Error::Autodiff {
                path: parameter.path.clone(),
            });
        }
        let name = options.names.tensor(parameter);
        let transposed = options.names.is_transposed(parameter);
        let mut entry = Matched {
            parameter: parameter.clone(),
            tensor: None,
            transposed,
            dtype: DType::F32,
            convert: None,
        };
        match checkpoint.position(&name) {
            Some(at) => {
                used.insert(at);
                entry.tensor = Some(at);
                fit(&mut entry, &checkpoint.tensors()[at], options, &mut misfit);
            }
            None if options.allow_missing => {}
            None => misfit.missing.push((parameter.path.clone(), name)),
        }
        matched.push(entry);
    }
    if !options.allow_extra {
        misfit.unexpected = checkpoint
            .tensors()
            .iter()
            .enumerate()
            .filter(|(at, _)| !used.contains(at))
            .map(|(_, tensor)| tensor.name.clone())
            .filter(|name| !options.ignore.iter().any(|end| name.ends_with(end)))
            .collect();
    }
    if misfit.is_empty() {
        Ok(matched)
    } else {
        Err(Error::Mismatch(Box::new(misfit)))
    }
}

/// Checks shape and type of one pair, and notes how the value is held.
fn fit(entry: &mut Matched, tensor: &TensorInfo, options: &Options, misfit: &mut Misfit) {
    let mut wanted = entry.parameter.shape.clone();
    if entry.transposed {
        wanted.reverse();
    }
    if tensor.shape != wanted {
        misfit
            .misshaped
            .push((tensor.name.clone(), tensor.shape.clone(), wanted));
    }
    let mistyped = match entry.parameter.kind {
        Kind::Float => {
            entry.dtype = match options.float_type {
                FloatType::AsStored => convert::burn_type(tensor.dtype),
                FloatType::Cast(dtype) => dtype,
            };
            match convert::float(tensor.dtype, entry.dtype) {
                Ok(convert) => {
                    entry.convert = convert;
                    None
                }
                Err(convert::NoConversion) => Some("floating point"),
            }
        }
        Kind::Int => match tensor.dtype {
            Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 | Dtype::U8 => None,
            _ => Some("integers"),
        },
        Kind::Bool => match tensor.dtype {
            Dtype::Bool => None,
            _ => Some("booleans"),
        },
    };
    if let Some(wanted) = mistyped {
        misfit
            .mistyped
            .push((tensor.name.clone(), tensor.dtype.to_string(), wanted));
    }
}
