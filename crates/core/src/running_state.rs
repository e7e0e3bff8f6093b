//! Running statistics, such as a BatchNorm's.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Int, Tensor};

/// Has running statistics take over their latest update. Burn keeps it aside until the next one:
/// visitors and mappers do not see it, and it would replace a value that is loaded.
pub(crate) fn settle<M: Module>(module: &M) {
    // What leaves training is settled first; the rest of it copies handles alone.
    drop(module.valid());
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
