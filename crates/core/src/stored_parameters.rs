//! Where a module's parameters lie in a checkpoint.

use crate::matching::match_parameters;
use crate::{Error, Options, Parameter, TensorTable};
use outsize_checkpoint::StoredWeight;

/// Where a parameter lies in a checkpoint.
#[derive(Debug, Clone)]
pub struct StoredParameter {
    /// Its path in the module.
    pub path: String,
    /// The tensors that it is made of, or its part of them.
    pub weight: StoredWeight,
}

/// Where parameters lie that a checkpoint with these tensors has.
///
/// # Errors
/// [`Error::Mismatch`]: the tensors are not those of the parameters.
pub fn stored_parameters(
    parameters: &[Parameter],
    table: &TensorTable<'_>,
    options: &Options,
) -> Result<Vec<StoredParameter>, Error> {
    let matched = match_parameters(parameters, table, options)?.into_iter();
    let stored = matched.filter_map(|entry| {
        let weight = entry.stored?.weight;
        Some(StoredParameter { path: entry.parameter.path.clone(), weight })
    });
    Ok(stored.collect())
}
