//! A module without parameters.

use burn::module::Module;

/// What holds a place in the names of tensors: a function, or what only training has.
#[derive(Module, Debug, Default)]
pub struct Parameterless {}
