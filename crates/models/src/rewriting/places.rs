//! Where the parameters of a model are among weights that are written.

use std::collections::HashMap;
use std::iter::once;

use outsize_checkpoint::TensorInfo;
use outsize_core::{Location, Names, Rewrite};

use crate::ModelConfig;

/// The weights of a checkpoint with these tensors by name, and what parameters may be called.
pub(super) struct Places<'a> {
    by_name: HashMap<String, usize>,
    names: Names,
    model: &'a ModelConfig,
    tensors: &'a [TensorInfo],
}

impl<'a> Places<'a> {
    pub(super) fn new(
        weights: &[Rewrite],
        model: &'a ModelConfig,
        tensors: &'a [TensorInfo],
    ) -> Self {
        let names = weights.iter().enumerate().map(|(at, weight)| (weight.spec().name, at));
        Self { by_name: names.collect(), names: model.names(), model, tensors }
    }

    /// The number of the weight that holds a parameter, under its own name or another, and what
    /// part of it that is.
    pub(super) fn of(&self, path: &str) -> Option<(usize, Location)> {
        let mut places = once(Location::whole(path.to_owned())).chain(self.names.otherwise(path));
        places.find_map(|location| {
            let names = self.model.stored_names(&location.tensor, self.tensors);
            Some((*names.iter().find_map(|name| self.by_name.get(name))?, location))
        })
    }
}
