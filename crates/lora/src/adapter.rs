use std::collections::HashMap;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_checkpoint::{Checkpoint, Dtype, TensorInfo, parse_object, read_optional, shown};
use outsize_core::LowRank;
use outsize_models::{ExpertStack, ModelConfig, ModuleKind, ModuleSpec};

use crate::matrix::lora_matrix;
use crate::targets::{Chosen, PREFIX, Selection, refusal};
use crate::{ADAPTER_CONFIG, Error, LoraConfig, LoraTarget, row_order, stacked};

/// The file that an adapter's matrices are in: of safetensors, or else as `torch.save` writes it.
pub const ADAPTER_WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];
/// The most bytes of an `adapter_config.json`.
const CONFIG_LIMIT: u64 = 1 << 24;
/// Longest name quoted in a message, in characters.
const MAX_QUOTE: usize = 160;
/// What a matrix takes beside its values.
const PER_MATRIX: u64 = 512;

/// An adapter on disk, checked against the model that it is for. Its matrices are read when they
/// are asked for.
#[derive(Debug)]
pub struct LoraAdapter {
    config: LoraConfig,
    checkpoint: Checkpoint,
    layers: Vec<Layer>,
    passed_over: usize,
}

/// What an adapter takes in memory beside its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdapterMemory {
    /// Its matrices, in bytes.
    pub bytes: u64,
    /// Bytes of activations that it adds to a pass for each row, at most: what goes from the one
    /// matrix to the other, and what is added to a layer's outputs.
    pub row_bytes: u64,
    /// The same of the output head, for each row that logits are wanted of.
    pub logit_row_bytes: u64,
}

/// A target and its tensors.
#[derive(Debug)]
struct Layer {
    target: LoraTarget,
    is_head: bool,
    /// As [`ModuleSpec::interleaved_head`].
    rows: Option<usize>,
    /// Where its matrices are in those of all experts, if they are.
    stack: Option<ExpertStack>,
    /// Its tensors `[rank, in]` and `[out, rank]`, or those of all experts: their places among
    /// those of the checkpoint.
    tensors: [usize; 2],
}

impl LoraAdapter {
    /// Opens the adapter in `folder`: reads and checks its configuration and the header of its
    /// tensors.
    ///
    /// # Errors
    /// A folder that holds no adapter; a configuration that asks for what is not built in or that
    /// does not fit the model; a tensor that is missing, of another shape or type, or of no use.
    pub fn open(folder: impl AsRef<Path>, model: &ModelConfig) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let config = read_config(folder)?;
        let selection = Selection::new(&config, model)?;
        let checkpoint = Checkpoint::open(weights(folder)?)?;
        let mut reader = Reader::new(&config, &selection, model, &checkpoint);
        for at in 0..checkpoint.tensors().len() {
            reader.take(at)?;
        }
        let passed_over = reader.passed_over;
        let layers = reader.finish()?;
        Ok(Self { config, checkpoint, layers, passed_over })
    }

    /// What `adapter_config.json` says.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// The layers that it is for, in the order in which the model declares them.
    pub fn targets(&self) -> impl Iterator<Item = &LoraTarget> {
        self.layers.iter().map(|layer| &layer.target)
    }

    /// Tensors that are for other models of the checkpoint, which see or hear: they are passed
    /// over, as those models are.
    pub fn passed_over(&self) -> usize {
        self.passed_over
    }

    /// What it takes in memory.
    pub fn memory(&self) -> AdapterMemory {
        let values = |is_head: bool| {
            let layers = self.layers.iter().filter(move |layer| layer.is_head == is_head);
            let values = layers.map(|Layer { target, .. }| target.shape[0] + 2 * target.rank);
            // In f32.
            values.max().unwrap_or(0) as u64 * 4
        };
        let (row_bytes, logit_row_bytes) = (values(false), values(true));
        AdapterMemory { bytes: self.bytes(), row_bytes, logit_row_bytes }
    }

    /// Bytes that [its matrices](Self::parts) take in memory, and reading them.
    pub fn bytes(&self) -> u64 {
        let of_layer = |Layer { target, tensors, stack, .. }: &Layer| -> u64 {
            let values = [target.rank * target.shape[1], target.shape[0] * target.rank];
            let sources = stacked::sources(stack.as_ref()).map(|at| self.tensors(tensors)[at]);
            let bytes = values.into_iter().zip(sources);
            bytes.map(|(values, tensor)| (values * tensor.dtype.size()) as u64).sum()
        };
        let held: u64 = self.layers.iter().map(of_layer).sum();
        let of_all = |layer: &Layer| self.tensors(&layer.tensors).map(|it| it.len).iter().sum();
        let read = self.layers.iter().filter(|layer| layer.stack.is_some()).map(of_all).max();
        held + 2 * PER_MATRIX * self.layers.len() as u64 + read.unwrap_or(0)
    }

    fn tensors(&self, places: &[usize; 2]) -> [&TensorInfo; 2] {
        places.map(|at| &self.checkpoint.tensors()[at])
    }

    /// Reads its matrices, in the type in which they are stored: by the path of the parameter that
    /// they are for, as [`set_low_rank`](outsize_models::DispatchedDecoder::set_low_rank) takes
    /// them.
    ///
    /// # Errors
    /// A file that cannot be read, or has changed since it was opened.
    pub fn parts(&self) -> Result<HashMap<String, LowRank>, Error> {
        // Those of one stack after the other, which is read once.
        let mut layers: Vec<_> = self.layers.iter().collect();
        layers.sort_by_key(|layer| layer.tensors);
        let mut parts = HashMap::with_capacity(layers.len());
        for layers in layers.chunk_by(|one, other| one.tensors == other.tensors) {
            let tensors = self.tensors(&layers[0].tensors);
            let [first, second] = tensors.map(|tensor| self.checkpoint.read(tensor));
            let mut bytes = [first?, second?];
            for Layer { target, rows, stack, .. } in layers {
                let bytes = match stack {
                    Some(stack) => {
                        let size = |which: usize| tensors[which].dtype.size();
                        let all = [0, 1].map(|which| (&bytes[which][..], size(which)));
                        stacked::of_expert(target, stack, all)
                    }
                    None => std::mem::take(&mut bytes),
                };
                let [down, up] = bytes;
                let ([out, inputs], rank) = (target.shape, target.rank);
                let [of_down, of_up] = stacked::sources(stack.as_ref()).map(|at| tensors[at]);
                let up = self.matrix(of_up, up, [out, rank])?;
                let low_rank = LowRank {
                    down: self.matrix(of_down, down, [rank, inputs])?,
                    up: row_order::interleaved(up, *rows),
                    scale: target.scale,
                    in_out: target.in_out,
                };
                parts.insert(target.path.clone(), low_rank);
            }
        }
        Ok(parts)
    }

    fn matrix(
        &self,
        tensor: &TensorInfo,
        bytes: Vec<u8>,
        shape: [usize; 2],
    ) -> Result<Tensor<2>, Error> {
        let dtype = dtype(tensor).unwrap_or(DType::F32);
        let data = TensorData::try_from_bytes_vec(bytes, shape, dtype);
        let data = data.map_err(|error| fault(&self.checkpoint, tensor, format!("{error:?}")))?;
        Ok(Tensor::from_data(data, (&Device::flex(), dtype)))
    }
}

/// The type of an adapter's matrix, if it is one of those that are read.
fn dtype(tensor: &TensorInfo) -> Option<DType> {
    match tensor.dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::BF16 => Some(DType::BF16),
        Dtype::F16 => Some(DType::F16),
        _ => None,
    }
}

fn read_config(folder: &Path) -> Result<LoraConfig, Error> {
    let not =
        |reason: &str| Error::NotAnAdapter { folder: folder.to_owned(), reason: reason.to_owned() };
    if !folder.is_dir() {
        return Err(not(match folder.exists() {
            true => "it is a file; give the folder that adapter_config.json is in",
            false => "there is no such folder",
        }));
    }
    let path = folder.join(ADAPTER_CONFIG);
    let Some(bytes) = read_optional(&path, CONFIG_LIMIT)? else {
        return Err(not(match folder.join("config.json").exists() {
            true => "it holds a whole model (config.json), which is not added to another one",
            false => "it has no adapter_config.json",
        }));
    };
    LoraConfig::read(&parse_object(&path, &bytes)?)
}

fn weights(folder: &Path) -> Result<PathBuf, Error> {
    let found = ADAPTER_WEIGHTS.map(|name| folder.join(name)).into_iter();
    found.into_iter().find(|file: &PathBuf| file.exists()).ok_or_else(|| Error::NotAnAdapter {
        folder: folder.to_owned(),
        reason: format!("it has no {}", ADAPTER_WEIGHTS.join(" or ")),
    })
}

fn fault(checkpoint: &Checkpoint, tensor: &TensorInfo, reason: String) -> Error {
    let file = checkpoint.files().get(tensor.file).map(|file| file.path().to_owned());
    let tensor = shown(&tensor.name, MAX_QUOTE);
    Error::Tensor { file: file.unwrap_or_default(), tensor, reason }
}

/// Gives tensors to the targets that they are for.
struct Reader<'a> {
    selection: &'a Selection,
    checkpoint: &'a Checkpoint,
    /// What is chosen by each of the names of its tensors: of experts in one, all.
    by_name: HashMap<&'a str, Vec<usize>>,
    model: &'a ModelConfig,
    found: Vec<[Option<usize>; 2]>,
    passed_over: usize,
    /// Of which model the adapter is, for what does not fit.
    whose: String,
}

impl<'a> Reader<'a> {
    fn new(
        config: &LoraConfig,
        selection: &'a Selection,
        model: &'a ModelConfig,
        checkpoint: &'a Checkpoint,
    ) -> Self {
        let mut by_name = HashMap::<&str, Vec<usize>>::new();
        for (at, chosen) in selection.chosen.iter().enumerate() {
            for name in &chosen.names {
                by_name.entry(name).or_default().push(at);
            }
        }
        Self {
            selection,
            checkpoint,
            by_name,
            model,
            found: vec![[None; 2]; selection.chosen.len()],
            passed_over: 0,
            whose: match &config.base_model {
                Some(base) => format!("the adapter is one of {}", shown(base, MAX_QUOTE)),
                None => "is it the adapter of another model?".to_owned(),
            },
        }
    }

    fn take(&mut self, tensor_at: usize) -> Result<(), Error> {
        let tensor = &self.checkpoint.tensors()[tensor_at];
        let wrong = |reason: String| Err(fault(self.checkpoint, tensor, reason));
        let name = tensor.name.strip_prefix(PREFIX).unwrap_or(&tensor.name);
        if self.model.other_modules().iter().any(|other| name.starts_with(other)) {
            self.passed_over += 1;
            return Ok(());
        }
        let Some((module, matrix)) = lora_matrix(name) else {
            let reason = "is no part of a linear layer's adapter (`….lora_A.weight`, \
                          `….lora_B.weight`), and nothing else is built in: merge the adapter \
                          into the model with PEFT (merge_and_unload)";
            return wrong(reason.to_owned());
        };
        let Some(places) = self.by_name.get(module) else {
            let is_it = |it: &ModuleSpec| it.names.iter().any(|name| name == module);
            let known = self.model.modules().into_iter().find(is_it);
            let reason = match known.and_then(|module| refusal(module.kind)) {
                Some(reason) => format!("is for a module that {reason}"),
                None => format!(
                    "is for a module that the model does not have, or that adapter_config.json \
                     does not name: {}",
                    self.whose
                ),
            };
            return wrong(reason);
        };
        let Chosen { target, stack, .. } = &self.selection.chosen[places[0]];
        let ([out, inputs], rank) = (target.shape, target.rank);
        let shapes = match stack {
            Some(stack) => stacked::shapes(target, stack),
            None => [[rank, inputs], [out, rank]],
        };
        let expected = shapes[matrix as usize];
        if tensor.shape != expected {
            let reason = format!(
                "has the shape {:?}, and the model and adapter_config.json say {expected:?}: {}",
                tensor.shape, self.whose
            );
            return wrong(reason);
        }
        if dtype(tensor).is_none() {
            return wrong(format!("is of {:?}, and must be of F32, BF16 or F16", tensor.dtype));
        }
        for at in places {
            if let Some(other) = self.found[*at][matrix as usize].replace(tensor_at) {
                let other = &self.checkpoint.tensors()[other].name;
                return wrong(format!("is for the same as {}", shown(other, MAX_QUOTE)));
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<Layer>, Error> {
        let file = self.checkpoint.files().first().map(|file| file.path().to_owned());
        let file = file.unwrap_or_default();
        let missing = |chosen: &Chosen, found: [Option<usize>; 2]| {
            let [first, second] = chosen.tensor_names();
            Error::Tensor {
                file: file.clone(),
                tensor: if found[0].is_none() { first } else { second },
                reason: format!("is missing, which adapter_config.json asks for: {}", self.whose),
            }
        };
        let mut layers = Vec::with_capacity(self.found.len());
        for (chosen, found) in self.selection.chosen.iter().zip(&self.found) {
            match *found {
                [Some(down), Some(up)] => layers.push(Layer {
                    target: chosen.target.clone(),
                    is_head: chosen.kind == ModuleKind::Head,
                    rows: chosen.interleaved_head,
                    stack: chosen.stack.clone(),
                    tensors: [down, up],
                }),
                [None, None] if chosen.is_optional => {}
                found => return Err(missing(chosen, found)),
            }
        }
        match (&self.selection.refused[..], &self.selection.chosen[..]) {
            _ if !layers.is_empty() => Ok(layers),
            ([(module, reason), ..], _) => {
                Err(Error::Target { module: module.names[0].clone(), reason })
            }
            ([], [first, ..]) => Err(missing(first, [None; 2])),
            // Then there would have been an error before.
            ([], []) => Ok(layers),
        }
    }
}
