//! Running statistics, such as a BatchNorm's.

use crate::{Kind, parameters};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Int, Tensor};
use std::collections::HashSet;

/// Has running statistics take over their latest update. Burn keeps it aside until the next one:
/// visitors and mappers do not see it, and it would replace a value that is loaded.
pub(crate) fn settle<M: Module>(module: &M) {
    // What leaves training is settled first; the rest of it copies handles alone.
    drop(module.valid());
}

/// Running statistics of a dispatched module that are settled, by path, in f32.
pub(crate) fn values<M: Module>(module: &M) -> Vec<(String, Vec<f32>)> {
    // All floats else carry a handle. They are seen too, and hold no values.
    let floats = parameters(module).into_iter();
    let floats = floats.filter(|it| it.kind == Kind::Float && !it.hooked);
    let wanted = floats.map(|it| it.path).collect();
    let mut values = Values { wanted, path: Vec::new(), found: Vec::new() };
    module.visit(&mut values);
    values.found
}

struct Values {
    wanted: HashSet<String>,
    path: Vec<String>,
    found: Vec<(String, Vec<f32>)>,
}

impl ModuleVisitor for Values {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.join(".");
        if self.wanted.contains(&path) {
            let values = param.base().inner().into_data().iter().collect();
            self.found.push((path, values));
        }
    }
}

/// Whether all values are there. What `settle` does would make the others; and a module that lacks
/// some has not been trained.
pub(crate) fn is_initialized<M: Module>(module: &M) -> bool {
    let mut all = AllInitialized(true);
    module.visit(&mut all);
    all.0
}

struct AllInitialized(bool);

impl ModuleVisitor for AllInitialized {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0 &= param.is_initialized();
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.0 &= param.is_initialized();
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.0 &= param.is_initialized();
    }
}
