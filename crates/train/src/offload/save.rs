//! The weights as they are now, as a checkpoint.

use std::path::Path;

use outsize_checkpoint::{Checkpoint, ShardWriter, SmallFiles, TensorInfo, TensorSpec};

use super::states::OffloadedStates;
use super::step::info;
use crate::Error;

/// The largest file, in bytes, as transformers divides checkpoints.
const SHARD: u64 = 5_000_000_000;

/// Bytes of a tensor that are copied at once.
const PIECE: u64 = 1 << 20;

impl OffloadedStates {
    /// Writes the weights as they are now as a checkpoint like `model`, from which they began:
    /// under the names and in the types that they had, other tensors as they were, and the files
    /// beside them. What is `tied` to a tensor of another name is written as that is. The folder
    /// appears complete or not at all; it must not exist, or be empty. Gives the names of files
    /// that were not copied, as they are too large or lead out of the folder.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn save<'a>(
        &self,
        model: &Checkpoint,
        folder: impl AsRef<Path>,
        tied: impl Fn(&TensorInfo) -> Option<&'a TensorInfo>,
    ) -> Result<Vec<String>, Error> {
        let weights = self.weights()?;
        let SmallFiles { files, left_out } = SmallFiles::read(model.folder())?;
        let specs = model.tensors().iter();
        let specs = specs.map(|it| TensorSpec::new(&it.name, it.dtype, it.shape.clone()));
        let writer = ShardWriter::create(folder, specs.collect(), SHARD);
        let mut writer = writer.map_err(outsize_core::Error::from)?;
        for (name, bytes) in &files {
            writer.add_file(name, bytes).map_err(outsize_core::Error::from)?;
        }
        for tensor in model.tensors() {
            let name = &tied(tensor).unwrap_or(tensor).name;
            let learned = self.layout.tensors.iter().any(|it| it.info.name == *name);
            match learned {
                true => copy(&weights, info(&weights, name)?, &tensor.name, &mut writer),
                false => copy(model, tensor, &tensor.name, &mut writer),
            }
            .map_err(outsize_core::Error::from)?;
        }
        writer.finish().map_err(outsize_core::Error::from)?;
        Ok(left_out)
    }
}

/// Writes a tensor's bytes under a name.
fn copy(
    from: &Checkpoint,
    tensor: &TensorInfo,
    name: &str,
    writer: &mut ShardWriter,
) -> Result<(), outsize_checkpoint::Error> {
    for start in (0..tensor.len).step_by(PIECE as usize) {
        let mut bytes = vec![0; PIECE.min(tensor.len - start) as usize];
        from.read_at(tensor, start, &mut bytes)?;
        writer.write(name, &bytes)?;
    }
    Ok(())
}
