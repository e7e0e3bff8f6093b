use crate::matching::{Matched, match_parameters};
use crate::placeholder::poison;
use crate::streamed::{Inner, Place, Streamed, Units};
use crate::{Access, Dispatched, Error, Kind, Options, convert, parameters, tree};
use burn::module::{Module, ModuleMapper, Param, Reparameterizer};
use burn::tensor::{Bool, Int, Tensor, TensorData};
use outsize_checkpoint::{Checkpoint, TensorInfo};
use outsize_plan::{DeviceMap, Residency};
use outsize_stream::{Source, Stream, Unit, UnitId};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::OnceLock;

/// Opens the checkpoint, decides what stays in memory, and attaches the rest: steps 2 to 4 of the
/// [crate]'s table.
///
/// # Errors
/// What is wrong with the checkpoint, how it does not fit the module, or how many bytes of budget would
/// do.
pub fn load_checkpoint_and_dispatch<M: Module>(
    module: M,
    path: impl AsRef<Path>,
    options: &Options,
) -> Result<Dispatched<M>, Error> {
    let checkpoint = Checkpoint::open(path)?;
    let tree = tree(&module, &checkpoint, options)?;
    let map = outsize_plan::infer(&tree, &options.budget, &options.plan())?;
    dispatch(module, &checkpoint, &map, options)
}

/// Attaches a handle to every float parameter of `module`, and starts to read in the order of use:
/// what the map keeps in memory stays there once it was read, the rest passes through the ring.
/// Integer and boolean parameters, and those that discard the handle, are loaded before this returns.
///
/// # Errors
/// As [`tree`]; and what reading said for the parameters that are loaded at once.
pub fn dispatch<M: Module>(
    module: M,
    checkpoint: &Checkpoint,
    map: &DeviceMap,
    options: &Options,
) -> Result<Dispatched<M>, Error> {
    let matched = match_parameters(&parameters(&module), checkpoint, options)?;
    let registry = Registry::new(&matched, checkpoint, map, options);
    let sources = checkpoint
        .files()
        .iter()
        .map(|file| Source::new(file.path(), file.file().clone()).since(file.opened()))
        .collect();
    let stream = Stream::start(
        sources,
        registry.units,
        registry.order,
        outsize_stream::Options {
            ring_bytes: map.ring_bytes(),
            overflow_bytes: options.needs.overflow,
            readers: options.readers,
            piece_bytes: options.piece_bytes,
        },
    )?;
    let module = module.apply_reparameterization(Attach {
        stream: &stream,
        checkpoint,
        matched: matched
            .iter()
            .map(|entry| (entry.parameter.path.as_str(), entry))
            .collect(),
        handles: registry.handles,
    });
    // Some parameters go through the mapper but lose the handle, such as BatchNorm's running state.
    let hooked: HashSet<String> = parameters(&module)
        .into_iter()
        .filter(|parameter| parameter.hooked)
        .map(|parameter| parameter.path)
        .collect();
    let mut load = LoadNow {
        checkpoint,
        matched: matched
            .iter()
            .filter(|entry| !hooked.contains(&entry.parameter.path))
            .map(|entry| (entry.parameter.path.as_str(), entry))
            .collect(),
        path: Vec::new(),
        error: None,
    };
    let module = if load.matched.is_empty() {
        module
    } else {
        module.map(&mut load)
    };
    match load.error {
        Some(error) => Err(error),
        None => Ok(Dispatched::new(module, map.clone(), stream)),
    }
}

/// The entries in the order in which a pass needs them: as the options say, then as declared.
pub(crate) fn in_order<'a>(matched: &'a [Matched], options: &Options) -> Vec<&'a Matched> {
    let Some(order) = &options.order else {
        return matched.iter().collect();
    };
    let turn: HashMap<&str, usize> = order.iter().map(String::as_str).zip(0..).collect();
    let mut sorted: Vec<_> = matched.iter().collect();
    sorted.sort_by_key(|entry| {
        turn.get(entry.parameter.path.as_str())
            .copied()
            .unwrap_or(usize::MAX)
    });
    sorted
}

/// The units of a stream, and which of them make up each parameter.
struct Registry {
    units: Vec<Unit>,
    order: Vec<UnitId>,
    /// By the parameter's path.
    handles: HashMap<String, (Units, bool)>,
}

impl Registry {
    fn new(
        matched: &[Matched],
        checkpoint: &Checkpoint,
        map: &DeviceMap,
        options: &Options,
    ) -> Self {
        let mut registry = Self {
            units: Vec::new(),
            order: Vec::new(),
            handles: HashMap::new(),
        };
        // Parameters that share a tensor share its units.
        let mut shared: HashMap<(usize, Access, bool), Units> = HashMap::new();
        for entry in in_order(matched, options) {
            let (Kind::Float, Some(at)) = (entry.parameter.kind, entry.tensor) else {
                continue;
            };
            let path = &entry.parameter.path;
            let resident = matches!(map.residency(path), Some(Residency::Resident(_)) | None);
            let access = match options.access.get(path) {
                Some(access) if !resident && entry.parameter.shape.len() == 2 => *access,
                _ => Access::Whole,
            };
            let stored = &checkpoint.tensors()[at];
            let units = shared
                .entry((at, access, resident))
                .or_insert_with(|| {
                    registry_units(
                        &mut registry.units,
                        entry,
                        stored,
                        access,
                        resident,
                        options,
                    )
                })
                .clone();
            match &units {
                Units::Whole(id) => registry.order.push(*id),
                Units::Tiles { ids, .. } => registry.order.extend(ids),
                Units::Rows => {}
            }
            registry.handles.insert(path.clone(), (units, resident));
        }
        registry
    }
}

/// Adds the units of one tensor.
fn registry_units(
    units: &mut Vec<Unit>,
    entry: &Matched,
    stored: &TensorInfo,
    access: Access,
    resident: bool,
    options: &Options,
) -> Units {
    let whole = Unit {
        name: stored.name.as_str().into(),
        source: stored.file,
        offset: stored.offset,
        len: stored.len,
        align: entry.dtype.size(),
        convert: entry.convert.clone(),
        keep: resident,
    };
    let first = units.len();
    match access {
        Access::Whole => {
            units.push(whole);
            Units::Whole(first)
        }
        Access::Rows => Units::Rows,
        Access::Tiles => {
            let row_bytes = row_bytes(stored);
            let held = entry.bytes(stored) / (stored.shape[0].max(1) as u64);
            let rows = (options.tile_bytes / held.max(1)).max(1) as usize;
            for start in (0..stored.shape[0]).step_by(rows) {
                let height = rows.min(stored.shape[0] - start);
                units.push(Unit {
                    offset: stored.offset + (start * row_bytes) as u64,
                    len: (height * row_bytes) as u64,
                    ..whole.clone()
                });
            }
            Units::Tiles {
                rows,
                ids: (first..units.len()).collect(),
            }
        }
    }
}

fn row_bytes(stored: &TensorInfo) -> usize {
    stored
        .shape
        .get(1..)
        .unwrap_or(&[])
        .iter()
        .product::<usize>()
        * stored.dtype.size()
}

/// Puts a handle on each float parameter that has one, and a placeholder under it.
struct Attach<'a> {
    stream: &'a Stream,
    checkpoint: &'a Checkpoint,
    matched: HashMap<&'a str, &'a Matched>,
    handles: HashMap<String, (Units, bool)>,
}

impl Reparameterizer for Attach<'_> {
    type Reparam = Streamed;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Streamed>) {
        let (Some((units, resident)), Some(entry)) =
            (self.handles.remove(path), self.matched.get(path))
        else {
            return (param, None);
        };
        let Some(at) = entry.tensor else {
            return (param, None);
        };
        let stored = &self.checkpoint.tensors()[at];
        let device = param.lazy_device();
        let param = poison(param, entry.dtype);
        let (_, _, mapper) = param.clone().consume();
        let handle = Streamed::new(Inner {
            path: path.into(),
            stream: self.stream.clone(),
            units,
            shape: stored.shape.clone(),
            dtype: entry.dtype,
            transposed: entry.transposed,
            device,
            mapper: Box::new(mapper),
            resident: resident.then(OnceLock::new),
            place: Place {
                source: stored.file,
                offset: stored.offset,
                row_bytes: row_bytes(stored),
                convert: entry.convert.clone(),
            },
        });
        (param, Some(handle))
    }
}

/// Loads what Burn has no hook for, or what dropped it.
struct LoadNow<'a> {
    checkpoint: &'a Checkpoint,
    matched: HashMap<&'a str, &'a Matched>,
    path: Vec<String>,
    error: Option<Error>,
}

impl LoadNow<'_> {
    /// The bytes of the parameter that is being visited, if they are to be loaded.
    fn data(&mut self) -> Option<TensorData> {
        let entry = self.matched.get(self.path.join(".").as_str())?;
        let stored = &self.checkpoint.tensors()[entry.tensor?];
        match read(self.checkpoint, stored, entry) {
            Ok(data) => Some(data),
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }
}

fn read(
    checkpoint: &Checkpoint,
    stored: &TensorInfo,
    entry: &Matched,
) -> Result<TensorData, Error> {
    let raw = checkpoint.read(stored)?;
    let (bytes, dtype) = match (&entry.convert, entry.parameter.kind) {
        (Some(convert), Kind::Float) => {
            let mut held = vec![0; raw.len() / convert.from * convert.to];
            (convert.run)(&raw, &mut held);
            (held, entry.dtype)
        }
        _ => (raw, convert::burn_type(stored.dtype)),
    };
    // Burn would take any byte for a boolean; only 0 and 1 are.
    if entry.parameter.kind == Kind::Bool && bytes.iter().any(|byte| *byte > 1) {
        return Err(Error::Value {
            name: stored.name.clone(),
            reason: "a boolean is neither 0 nor 1".to_string(),
        });
    }
    Ok(TensorData::from_bytes_vec(
        bytes,
        stored.shape.clone(),
        dtype,
    ))
}

impl ModuleMapper for LoadNow<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.data() {
            Some(data) => {
                let (id, device, dtype) = (param.id, param.lazy_device(), data.dtype());
                param.transform_for_load(Tensor::from_data(data, (&device, dtype)), id)
            }
            None => param,
        }
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        match self.data() {
            Some(data) => {
                let (id, device) = (param.id, param.lazy_device());
                param.transform_for_load(Tensor::from_data(data, &device), id)
            }
            None => param,
        }
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        match self.data() {
            Some(data) => {
                let (id, device) = (param.id, param.lazy_device());
                param.transform_for_load(Tensor::from_data(data, &device), id)
            }
            None => param,
        }
    }
}
