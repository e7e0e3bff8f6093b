//! What each rank has of its own: where its loaders are, and gradients between two steps.

use std::collections::HashMap;
use std::path::Path;

use burn::module::ParamId;
use burn::tensor::{Device, Tensor, TensorData};
use burn_pack::{Reader, Writer};
use serde::{Deserialize, Serialize};

use super::fault::StateFault;
use super::file_name;
use crate::data::LoaderState;

/// More than a rank's numbers take.
const MAX_BYTES: u64 = 1 << 20;

/// A rank between two micro-batches.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RankState {
    pub loaders: Vec<LoaderState>,
    pub batches_taken: u64,
    pub sync_gradients: bool,
    pub micro_batches: usize,
    pub was_skipped: bool,
    /// `tokens` by the parameter's name.
    pub named_tokens: Vec<(String, f64)>,
    /// Tokens of the step so far, by a parameter of the model.
    #[serde(skip)]
    pub tokens: HashMap<ParamId, f64>,
    /// Gradients of the step so far, flat.
    #[serde(skip)]
    pub gradients: HashMap<ParamId, Tensor<1>>,
}

/// The names of parameters; their identities differ from rank to rank.
pub(super) type ParameterNames = HashMap<ParamId, String>;

/// A parameter's identity and shape by its name.
pub(super) type NamedParameters = HashMap<String, (ParamId, Vec<usize>)>;

impl RankState {
    /// Writes `NAME.json` and, if there are gradients, `NAME.bpk`; gives the names of the files.
    pub(super) fn write(
        mut self,
        folder: &Path,
        name: &str,
        names: &ParameterNames,
    ) -> Result<Vec<String>, StateFault> {
        let json = format!("{name}.json");
        let name_of = |id: &ParamId| {
            let what = "gradients of an unfinished step belong to a model that is not saved";
            names.get(id).cloned().ok_or_else(|| StateFault::mismatch(&json, what))
        };
        let tokens = self.tokens.iter().map(|(id, count)| Ok((name_of(id)?, *count)));
        self.named_tokens = tokens.collect::<Result<_, StateFault>>()?;
        let text = serde_json::to_vec(&self).map_err(|fault| StateFault::mismatch(&json, fault))?;
        outsize_checkpoint::write_file(folder.join(&json), &text)?;
        let mut files = vec![json.clone()];
        if !self.gradients.is_empty() {
            let tensor = |(id, gradient): (ParamId, Tensor<1>)| {
                let (bytes, shape, dtype) = gradient.into_data().into_parts();
                Ok(burn_pack::Tensor::new(name_of(&id)?, dtype, shape, None, bytes))
            };
            let file = format!("{name}.bpk");
            let tensors = self.gradients.into_iter().map(tensor);
            let writer = Writer::new(tensors.collect::<Result<_, StateFault>>()?);
            writer.write_to_file(folder.join(&file)).map_err(|fault| StateFault::File {
                file: folder.join(&file),
                cause: std::io::Error::other(fault.to_string()),
            })?;
            files.push(file);
        }
        Ok(files)
    }

    /// Reads what was written; gradients go to `device`.
    pub(super) fn read(
        folder: &Path,
        name: &str,
        parameters: &NamedParameters,
        device: &Device,
    ) -> Result<Self, StateFault> {
        let path = folder.join(format!("{name}.json"));
        let damaged = |fault: String| StateFault::damaged(file_name(&path), fault);
        let text = outsize_checkpoint::read_file(&path, MAX_BYTES)
            .map_err(|cause| StateFault::File { file: path.clone(), cause })?;
        let mut state: Self =
            serde_json::from_slice(&text).map_err(|fault| damaged(fault.to_string()))?;
        let parameter = |name: &str| {
            let what = "gradients of an unfinished step belong to no model that is loaded";
            let found = parameters.get(name);
            found.ok_or_else(|| StateFault::mismatch(file_name(&path), what))
        };
        for (name, count) in std::mem::take(&mut state.named_tokens) {
            state.tokens.insert(parameter(&name)?.0, count);
        }
        let path = folder.join(format!("{name}.bpk"));
        if path.exists() {
            let damaged = |fault| StateFault::damaged(file_name(&path), fault);
            let tensors = Reader::from_file(&path).and_then(Reader::into_tensors);
            for tensor in tensors.map_err(damaged)? {
                let (name, dtype, shape, _, bytes) = tensor.into_parts().map_err(damaged)?;
                let (id, whole) = parameter(&name)?;
                if shape.to_vec() != [whole.iter().product::<usize>()] || !dtype.is_float() {
                    let what = format!("a gradient of {shape:?} {dtype:?} for {whole:?}");
                    return Err(StateFault::mismatch(file_name(&path), what));
                }
                // A copy: the file may go while the gradient is still in use.
                let data = TensorData::from_bytes_vec(bytes.to_vec(), shape, dtype);
                let gradient = Tensor::from_data(data, (device, dtype));
                state.gradients.insert(*id, gradient);
            }
        }
        Ok(state)
    }
}
