use std::collections::HashMap;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_checkpoint::{Checkpoint, Dtype, TensorInfo, parse_object, read_optional, shown};
use outsize_core::LowRank;
use outsize_models::{ModelConfig, ModuleSpec};

use crate::matrix::{LoraMatrix, lora_matrix};
use crate::targets::{PREFIX, Selection, refusal};
use crate::{ADAPTER_CONFIG, Error, LoraConfig, LoraTarget, row_order};

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
    down: TensorInfo,
    up: TensorInfo,
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
        for tensor in checkpoint.tensors() {
            reader.take(tensor)?;
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

    /// Bytes that [its matrices](Self::parts) take in memory.
    pub fn bytes(&self) -> u64 {
        let bytes = self.layers.iter().map(|layer| layer.down.len + layer.up.len);
        bytes.sum::<u64>() + 2 * PER_MATRIX * self.layers.len() as u64
    }

    /// Reads its matrices, in the type in which they are stored: by the path of the parameter that
    /// they are for, as [`set_low_rank`](outsize_models::DispatchedDecoder::set_low_rank) takes
    /// them.
    ///
    /// # Errors
    /// A file that cannot be read, or has changed since it was opened.
    pub fn parts(&self) -> Result<HashMap<String, LowRank>, Error> {
        let part = |Layer { target, down, up, rows, .. }: &Layer| {
            let low_rank = LowRank {
                down: self.matrix(down)?,
                up: row_order::interleaved(self.matrix(up)?, *rows),
                scale: target.scale,
                in_out: target.in_out,
            };
            Ok((target.path.clone(), low_rank))
        };
        self.layers.iter().map(part).collect()
    }

    fn matrix(&self, tensor: &TensorInfo) -> Result<Tensor<2>, Error> {
        let bytes = self.checkpoint.read(tensor)?;
        let dtype = dtype(tensor).unwrap_or(DType::F32);
        let data = TensorData::try_from_bytes_vec(bytes, tensor.shape.clone(), dtype);
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
    /// Targets by each of their names.
    by_name: HashMap<&'a str, usize>,
    model: &'a ModelConfig,
    found: Vec<[Option<&'a TensorInfo>; 2]>,
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
        let names = selection.names.iter().enumerate();
        let by_name = names.flat_map(|(at, names)| names.iter().map(move |name| (&name[..], at)));
        Self {
            selection,
            checkpoint,
            by_name: by_name.collect(),
            model,
            found: vec![[None; 2]; selection.targets.len()],
            passed_over: 0,
            whose: match &config.base_model {
                Some(base) => format!("the adapter is one of {}", shown(base, MAX_QUOTE)),
                None => "is it the adapter of another model?".to_owned(),
            },
        }
    }

    fn take(&mut self, tensor: &'a TensorInfo) -> Result<(), Error> {
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
        let Some(at) = self.by_name.get(module).copied() else {
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
        let LoraTarget { shape: [out, inputs], rank, .. } = self.selection.targets[at];
        let expected = if matrix == LoraMatrix::Down { [rank, inputs] } else { [out, rank] };
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
        let place = &mut self.found[at][matrix as usize];
        if let Some(other) = place {
            let reason = format!("is for the same as {}", shown(&other.name, MAX_QUOTE));
            return Err(fault(self.checkpoint, tensor, reason));
        }
        *place = Some(tensor);
        Ok(())
    }

    fn finish(self) -> Result<Vec<Layer>, Error> {
        let file = self.checkpoint.files().first().map(|file| file.path().to_owned());
        let file = file.unwrap_or_default();
        let Selection { targets, heads, .. } = self.selection;
        let layer =
            |((target, rows), found): ((&LoraTarget, &_), [Option<&TensorInfo>; 2])| match found {
                [Some(down), Some(up)] => Ok(Layer {
                    target: target.clone(),
                    is_head: self.selection.head.as_ref() == Some(&target.path),
                    rows: *rows,
                    down: down.clone(),
                    up: up.clone(),
                }),
                [down, _] => Err(Error::Tensor {
                    file: file.clone(),
                    tensor: if down.is_none() { target.down_name() } else { target.up_name() },
                    reason: format!(
                        "is missing, which adapter_config.json asks for: {}",
                        self.whose
                    ),
                }),
            };
        let layers = targets.iter().zip(heads).zip(self.found).map(layer);
        let layers: Vec<_> = layers.collect::<Result<_, _>>()?;
        match (layers.is_empty(), self.selection.refused.first()) {
            (true, Some((module, reason))) => {
                Err(Error::Target { module: module.names[0].clone(), reason })
            }
            _ => Ok(layers),
        }
    }
}
