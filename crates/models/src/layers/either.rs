//! One of two modules in the same place.

use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::tensor::Device;

/// One of two modules. Paths and classes are those of the one that it is: a derived `Module` would
/// put the variant's name between, which no checkpoint has.
#[derive(Clone, Debug)]
pub enum Either<A, B> {
    /// The one.
    One(A),
    /// The other.
    Other(B),
}

/// The same of both.
macro_rules! either {
    ($either:expr, $module:ident => $result:expr) => {
        match $either {
            Either::One($module) => $result,
            Either::Other($module) => $result,
        }
    };
}
pub(crate) use either;

/// The same of both, which stays what it was.
macro_rules! same {
    ($either:expr, $module:ident => $result:expr) => {
        match $either {
            Self::One($module) => Self::One($result),
            Self::Other($module) => Self::Other($result),
        }
    };
}

impl<A: Module, B: Module> Module for Either<A, B> {
    fn collect_devices(&self, devices: Devices) -> Devices {
        either!(self, module => module.collect_devices(devices))
    }

    fn fork(self, device: &Device) -> Self {
        same!(self, module => module.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        same!(self, module => module.to_device(device))
    }

    fn train(self) -> Self {
        same!(self, module => module.train())
    }

    fn valid(&self) -> Self {
        same!(self, module => module.valid())
    }

    fn materialize(self) -> Self {
        same!(self, module => module.materialize())
    }

    fn num_params(&self) -> usize {
        either!(self, module => module.num_params())
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        either!(self, module => module.visit(visitor));
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        same!(self, module => module.map(mapper))
    }
}

impl<A: ModuleDisplay, B: ModuleDisplay> ModuleDisplayDefault for Either<A, B> {
    fn content(&self, content: Content) -> Option<Content> {
        either!(self, module => content.add_single(module)).optional()
    }
}

impl<A: ModuleDisplay, B: ModuleDisplay> ModuleDisplay for Either<A, B> {}
