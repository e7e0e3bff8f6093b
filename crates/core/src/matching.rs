//! Which tensor of the checkpoint belongs to which parameter.

use crate::convert;
use crate::names::Names;
use crate::{
    Access, Error, FloatType, KeyMismatch, Kind, Location, Options, Parameter, TensorTable,
};
use burn::tensor::DType;
use outsize_checkpoint::{Dtype, TensorInfo};
use outsize_stream::{Chunk, Convert, Segment};
use std::collections::{HashMap, HashSet};

/// A parameter and the tensor that holds its value.
#[derive(Debug, Clone)]
pub(crate) struct Matched {
    pub(crate) parameter: Parameter,
    /// What holds its value; none for a parameter that keeps its own initialisation.
    pub(crate) stored: Option<Stored>,
    /// Whether the tensor is stored with its axes the other way round.
    pub(crate) transposed: bool,
    /// The type in which it is held.
    pub(crate) dtype: DType,
    /// The conversion of a float parameter to that type.
    pub(crate) convert: Option<Convert>,
}

/// A tensor of the checkpoint, or a part of one.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    /// Its number in [`Checkpoint::tensors`], and which part of how many. The same for parameters that
    /// share their value.
    pub(crate) key: (usize, usize, usize),
    /// Where the part lies, and its shape.
    pub(crate) info: TensorInfo,
}

impl Stored {
    /// The part of the tensor that `location` names; nothing if its rows cannot be divided so.
    fn new(at: usize, tensor: &TensorInfo, location: &Location) -> Option<Self> {
        let mut info = tensor.clone();
        if location.parts > 1 {
            let rows = tensor.shape.first()?;
            if !rows.is_multiple_of(location.parts) {
                return None;
            }
            info.name = location.to_string();
            info.shape[0] /= location.parts;
            info.len /= location.parts as u64;
            info.offset += info.len * location.part as u64;
        }
        Some(Self {
            key: (at, location.part, location.parts),
            info,
        })
    }

    /// Bytes of one row as stored.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.info.len
            / self
                .info
                .shape
                .first()
                .map_or(1, |rows| *rows as u64)
                .max(1)
    }
}

impl Matched {
    /// Bytes of the value as held on the device.
    pub(crate) fn bytes(&self, stored: &Stored) -> u64 {
        self.held(stored, stored.info.len)
    }

    /// The whole value as one unit of streaming.
    pub(crate) fn unit(&self, stored: &Stored) -> Chunk {
        Chunk {
            name: stored.info.name.as_str().into(),
            segments: vec![Segment {
                source: stored.info.file,
                offset: stored.info.offset,
                len: stored.info.len,
                align: self.dtype.size(),
                convert: self.convert.clone(),
            }],
            keep: false,
        }
    }

    /// What `bytes` of the file become in memory.
    pub(crate) fn held(&self, stored: &Stored, bytes: u64) -> u64 {
        let elements = bytes / stored.info.dtype.size() as u64;
        elements.saturating_mul(self.dtype.size() as u64)
    }

    /// How the value is read if it is streamed.
    pub(crate) fn access(&self, options: &Options) -> Access {
        match options.access.get(&self.parameter.path) {
            Some(access) if self.parameter.shape.len() == 2 => *access,
            _ => Access::Whole,
        }
    }
}

/// Finds every parameter's tensor, or says in one error all that is wrong.
pub(crate) fn match_parameters(
    parameters: &[Parameter],
    table: &TensorTable<'_>,
    options: &Options,
) -> Result<Vec<Matched>, Error> {
    for parameter in parameters {
        refuse(parameter)?;
    }
    let mut misfit = KeyMismatch {
        checkpoint: table.place().to_string(),
        ..KeyMismatch::default()
    };
    let mut used = Used::default();
    let mut matched = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        let mut entry = Matched {
            parameter: parameter.clone(),
            stored: None,
            transposed: options.names.is_transposed(parameter),
            dtype: parameter.dtype,
            convert: None,
        };
        match find(parameter, table, options)? {
            Ok((at, location)) => {
                used.add(at, &location);
                let tensor = &table.tensors()[at];
                entry.stored = Stored::new(at, tensor, &location);
                match entry.stored.clone() {
                    Some(stored) => fit(&mut entry, &stored.info, options, &mut misfit),
                    None => {
                        let mut wanted = wanted_shape(&entry);
                        if let Some(rows) = wanted.first_mut() {
                            *rows = rows.saturating_mul(location.parts);
                        }
                        misfit
                            .misshaped
                            .push((tensor.name.clone(), tensor.shape.clone(), wanted));
                    }
                }
            }
            Err(_) if options.allow_missing => {}
            Err(names) => misfit.missing.push((parameter.path.clone(), names)),
        }
        matched.push(entry);
    }
    if !options.allow_extra {
        misfit.unexpected = used.unexpected(table, options);
    }
    if misfit.is_empty() {
        return Ok(matched);
    }
    misfit.unused_rules = options.names.unused(parameters);
    Err(Error::Mismatch(Box::new(misfit)))
}

/// What cannot be dispatched, whatever the checkpoint.
fn refuse(parameter: &Parameter) -> Result<(), Error> {
    let path = parameter.path.clone();
    if parameter.hooked {
        return Err(Error::Reparameterized { path });
    }
    if parameter.autodiff {
        return Err(Error::Autodiff { path });
    }
    if parameter.quantized {
        return Err(Error::Quantized { path });
    }
    Ok(())
}

/// The number of the tensor that holds `parameter`, and which part of it; or the names looked for.
fn find(
    parameter: &Parameter,
    table: &TensorTable<'_>,
    options: &Options,
) -> Result<Result<(usize, Location), String>, Error> {
    let (plain, packed) = options.names.locations(parameter);
    if let Some(at) = table.position(&plain.tensor) {
        return Ok(Ok((at, plain)));
    }
    if let Some(tensor) = options.names.without_prefix(&plain.tensor)
        && let Some(at) = table.position(tensor)
    {
        let tensor = tensor.to_string();
        return Ok(Ok((at, Location { tensor, ..plain })));
    }
    match packed {
        Ok(None) => Ok(Err(plain.to_string())),
        Ok(Some(packed)) => Ok(match table.position(&packed.tensor) {
            Some(at) => Ok((at, packed)),
            None => Err(format!("{plain} or {packed}")),
        }),
        Err(_) if knows_norms(parameter, table, &options.names) => Err(Error::NormOrder {
            path: parameter.path.clone(),
        }),
        Err(_) => Ok(Err(plain.to_string())),
    }
}

/// Whether the checkpoint has the norm under one of PyTorch's names.
fn knows_norms(parameter: &Parameter, table: &TensorTable<'_>, names: &Names) -> bool {
    [false, true].iter().any(|norm_first| {
        let (_, packed) = names.clone().norm_first(*norm_first).locations(parameter);
        matches!(packed, Ok(Some(packed)) if table.position(&packed.tensor).is_some())
    })
}

fn wanted_shape(entry: &Matched) -> Vec<usize> {
    let mut wanted = entry.parameter.shape.clone();
    if entry.transposed {
        wanted.reverse();
    }
    wanted
}

/// Checks shape and type of one pair, and notes how the value is held.
fn fit(entry: &mut Matched, tensor: &TensorInfo, options: &Options, misfit: &mut KeyMismatch) {
    let wanted = wanted_shape(entry);
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
            Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 => None,
            Dtype::U64 | Dtype::U32 | Dtype::U16 | Dtype::U8 => None,
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

/// Which tensors parameters were found for, and which parts of those that are divided.
#[derive(Default)]
struct Used(HashMap<usize, HashSet<(usize, usize)>>);

impl Used {
    fn add(&mut self, at: usize, location: &Location) {
        let parts = self.0.entry(at).or_default();
        parts.insert((location.part, location.parts));
    }

    /// What belongs to no parameter.
    fn unexpected(&self, table: &TensorTable<'_>, options: &Options) -> Vec<String> {
        let has = |name: &str| {
            let at = table.position(name);
            at.is_some_and(|at| self.0.contains_key(&at))
        };
        let mut unexpected = Vec::new();
        for (at, tensor) in table.tensors().iter().enumerate() {
            let name = &tensor.name;
            if options.ignore.iter().any(|end| name.ends_with(end)) {
                continue;
            }
            match self.0.get(&at) {
                None if options.names.is_bookkeeping(name, has) => {}
                None => unexpected.push(name.clone()),
                Some(used) => unexpected.extend(unused_parts(name, used)),
            }
        }
        unexpected
    }
}

/// The parts of a divided tensor that no parameter takes.
fn unused_parts<'a>(
    name: &'a str,
    used: &'a HashSet<(usize, usize)>,
) -> impl Iterator<Item = String> + 'a {
    // If it is also used otherwise, as a whole say, there is nothing left of it.
    let mut counts: Vec<usize> = used.iter().map(|(_, parts)| *parts).collect();
    counts.dedup();
    let parts = if let [parts] = counts[..] { parts } else { 0 };
    (0..parts)
        .filter(move |part| !used.contains(&(*part, parts)))
        .map(move |part| {
            let tensor = name.to_string();
            Location {
                tensor,
                part,
                parts,
            }
            .to_string()
        })
}
