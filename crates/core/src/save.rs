//! A module's values written as a checkpoint.

use crate::convert::burn_type;
use crate::running_state::settle;
use crate::{Error, Location, Names, Parameter, parameters};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};
use outsize_checkpoint::{Dtype, ShardWriter, TensorSpec};
use std::collections::HashMap;
use std::path::Path;

/// Writes the values of `module` to the folder `out`, as safetensors in shards of at most
/// `max_shard_size` bytes, under the names and in the shapes of `names`. The folder appears
/// complete or not at all.
///
/// One value at a time is copied to memory; of a module that PyTorch packs into one tensor, all of
/// its parts. A parameter that occurs at several places is written for each.
///
/// # Errors
/// A parameter is quantised or carries a reparameterization; `out` exists and is not an empty
/// folder; writing failed.
pub fn save<M: Module>(
    module: &M,
    out: impl AsRef<Path>,
    names: &Names,
    max_shard_size: u64,
) -> Result<(), Error> {
    let mut types = Types::default();
    module.visit(&mut types);
    let mut tensors = Tensors::default();
    for parameter in parameters(module) {
        let dtype = types.found.get(&parameter.path).copied();
        tensors.add(parameter, dtype.unwrap_or(DType::F32), names)?;
    }
    settle(module);
    // A tensor's turn comes with the last of its parts.
    let mut order: Vec<_> = tensors.specs.into_values().collect();
    order.sort_by_key(|(last, _)| *last);
    let specs = order.into_iter().map(|(_, spec)| spec).collect();
    let mut writer = ShardWriter::create(out, specs, max_shard_size)?;
    writer.set_total_parameters(tensors.count);
    let mut write = Write {
        path: Vec::new(),
        places: tensors.places,
        waiting: HashMap::new(),
        writer,
        error: None,
    };
    module.visit(&mut write);
    match write.error {
        Some(error) => Err(error),
        None => Ok(write.writer.finish()?),
    }
}

/// What is to be written.
#[derive(Default)]
struct Tensors {
    /// By name, with the number of the last parameter that is in it.
    specs: HashMap<String, (usize, TensorSpec)>,
    /// Where each parameter goes, by path, and whether it is transposed.
    places: HashMap<String, (Location, bool)>,
    /// Elements.
    count: u64,
}

impl Tensors {
    fn add(&mut self, parameter: Parameter, dtype: DType, names: &Names) -> Result<(), Error> {
        if parameter.hooked {
            return Err(Error::Reparameterized { path: parameter.path });
        }
        let stored = Dtype::ALL.into_iter().find(|stored| burn_type(*stored) == dtype);
        let Some(stored) = stored.filter(|_| !parameter.quantized) else {
            return Err(Error::Quantized { path: parameter.path });
        };
        let place = names.destination(&parameter)?;
        let is_transposed = names.is_transposed(&parameter);
        let mut shape = parameter.shape.clone();
        if is_transposed {
            shape.reverse();
        }
        self.count += shape.iter().product::<usize>() as u64;
        if let Some(rows) = shape.first_mut() {
            *rows *= place.parts;
        }
        let number = self.places.len();
        let spec = TensorSpec::new(&place.tensor, stored, shape);
        self.specs.insert(place.tensor.clone(), (number, spec));
        self.places.insert(parameter.path, (place, is_transposed));
        Ok(())
    }
}

/// The types that values have, by path.
#[derive(Default)]
struct Types {
    path: Vec<String>,
    found: HashMap<String, DType>,
}

impl ModuleVisitor for Types {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.insert(self.path.join("."), param.base().dtype());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.found.insert(self.path.join("."), param.val().dtype());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.found.insert(self.path.join("."), param.val().dtype());
    }
}

/// Writes values in the order of the module.
struct Write {
    path: Vec<String>,
    places: HashMap<String, (Location, bool)>,
    /// Parts of tensors of which other parts are to come.
    waiting: HashMap<String, Vec<Option<TensorData>>>,
    writer: ShardWriter,
    error: Option<Error>,
}

impl Write {
    fn value(&mut self, data: impl FnOnce(bool) -> TensorData) {
        let place = self.places.get(&self.path.join(".")).cloned();
        if let (Some((place, is_transposed)), None) = (place, &self.error) {
            self.error = self.write(place, data(is_transposed)).err();
        }
    }

    fn write(&mut self, place: Location, data: TensorData) -> Result<(), Error> {
        if place.parts == 1 {
            return Ok(self.writer.write(&place.tensor, data.as_bytes())?);
        }
        let parts = self.waiting.entry(place.tensor.clone()).or_default();
        parts.resize(place.parts, None);
        parts[place.part] = Some(data);
        if parts.iter().all(Option::is_some) {
            for part in self.waiting.remove(&place.tensor).into_iter().flatten().flatten() {
                self.writer.write(&place.tensor, part.as_bytes())?;
            }
        }
        Ok(())
    }
}

impl ModuleVisitor for Write {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.value(|is_transposed| {
            let tensor = param.transform_for_save().val();
            if is_transposed { tensor.swap_dims(0, 1) } else { tensor }.into_data()
        });
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.value(|_| param.transform_for_save().val().into_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.value(|_| param.transform_for_save().val().into_data());
    }
}
