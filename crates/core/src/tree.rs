use crate::matching::match_parameters;
use crate::registry::in_order;
use crate::{Error, Options, parameters};
use burn::module::Module;
use outsize_checkpoint::Checkpoint;
use outsize_plan::{Block, Tensor, Tree};
use std::collections::HashMap;

/// What of `module` is to be placed, in the order in which it is used as far as that is known. Reads no
/// weight and allocates none.
///
/// # Errors
/// [`Error::Mismatch`] with all that does not fit between the module and the checkpoint;
/// [`Error::Reparameterized`] and [`Error::Autodiff`] for modules that cannot be dispatched.
pub fn tree<M: Module>(
    module: &M,
    checkpoint: &Checkpoint,
    options: &Options,
) -> Result<Tree, Error> {
    let matched = match_parameters(&parameters(module), checkpoint, options)?;
    let mut users: HashMap<_, usize> = HashMap::new();
    for entry in matched.iter().filter(|entry| entry.parameter.streams) {
        if let Some(stored) = &entry.stored {
            *users.entry(stored.key).or_default() += 1;
        }
    }
    let mut blocks: Vec<Block> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    for entry in in_order(&matched, options) {
        let Some(stored) = &entry.stored else {
            continue; // keeps its own initialisation, which is the module's affair
        };
        let name = entry.parameter.block(&options.no_split);
        let streams = entry.parameter.streams;
        let shared = streams && users[&stored.key] > 1;
        let tensor = Tensor {
            name: entry.parameter.path.clone(),
            bytes: entry.bytes(stored),
            stored_bytes: stored.info.len,
            row_bytes: entry.held(stored, stored.row_bytes()),
            access: entry.access(options),
            tied: shared.then(|| format!("{:?}", stored.key)),
            always_resident: !streams,
        };
        let block = *known.entry(name).or_insert_with(|| {
            blocks.push(Block {
                name: name.to_string(),
                class: entry.parameter.class().to_string(),
                tensors: Vec::new(),
            });
            blocks.len() - 1
        });
        blocks[block].tensors.push(tensor);
    }
    Ok(Tree { blocks })
}
