//! The weights of a model in a folder.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::{Module, ParamId};
use outsize_checkpoint::Checkpoint;
use outsize_core::{FloatType, Names, Options, load, parameters, save};

use super::fault::StateFault;

/// A change that cannot fail.
pub(super) type Commit<'a> = Box<dyn FnOnce() + 'a>;

/// Path, identity and shape of each parameter.
pub(super) type LoadedParameters = Vec<(String, ParamId, Vec<usize>)>;

/// A model of any type.
pub(super) trait ModelPart<'a> {
    /// The identity of each parameter.
    fn identities(&self) -> BTreeMap<String, ParamId>;

    fn write(&self, folder: &Path) -> Result<(), StateFault>;

    /// Reads the weights; gives the parameters' paths, identities and shapes.
    fn read(self: Box<Self>, folder: &Path) -> Result<(LoadedParameters, Commit<'a>), StateFault>;
}

impl<'a, M: Module> ModelPart<'a> for &'a mut M {
    fn identities(&self) -> BTreeMap<String, ParamId> {
        let identity = |parameter: outsize_core::Parameter| (parameter.path, parameter.id);
        parameters(&**self).into_iter().map(identity).collect()
    }

    fn write(&self, folder: &Path) -> Result<(), StateFault> {
        Ok(save(&**self, folder, &Names::default(), u64::MAX)?)
    }

    fn read(self: Box<Self>, folder: &Path) -> Result<(LoadedParameters, Commit<'a>), StateFault> {
        let checkpoint = Checkpoint::open(folder)?;
        let options = Options { float_type: FloatType::AsStored, ..Options::default() };
        let loaded = load((**self).clone(), &checkpoint, &options)?;
        let live = |parameter: outsize_core::Parameter| {
            let mut shape = parameter.shape;
            if parameter.flips {
                shape.reverse();
            }
            (parameter.path, parameter.id, shape)
        };
        let live = parameters(&loaded).into_iter().map(live).collect();
        let model = *self;
        Ok((live, Box::new(move || *model = loaded)))
    }
}
