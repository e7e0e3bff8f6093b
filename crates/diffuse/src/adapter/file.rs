//! The file of an adapter.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use outsize_checkpoint::{Checkpoint, Dtype, TensorInfo, parse_object, shown};
use outsize_lora::LoraConfig;
use serde_json::{Map, Value};

use super::tensor_name::{Role, other_kind, parsed};
use crate::error::Error;
use crate::pipeline_part::PipelinePart;

/// The files of an adapter that diffusers saves, of which it takes the first that is there.
pub const ADAPTER_FILES: [&str; 2] =
    ["pytorch_lora_weights.safetensors", "pytorch_lora_weights.bin"];

/// Which of the files of a folder or a repository holds an adapter of a model of pictures: one that
/// diffusers saved, or else the only one of safetensors.
pub fn adapter_file<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let names: Vec<_> = names.filter(|name| !name.contains('/')).collect();
    let saved = ADAPTER_FILES.iter().find_map(|saved| names.iter().find(|name| *name == saved));
    let mut others = names.iter().filter(|name| name.ends_with(".safetensors"));
    saved.or_else(|| others.next().filter(|_| others.next().is_none())).copied()
}

/// Where diffusers notes what PEFT knows of the adapter.
const NOTE: &str = "lora_adapter_metadata";

/// Longest name quoted in a message, in characters.
pub(super) const MAX_QUOTE: usize = 160;

/// An adapter's file, of which the header is read.
#[derive(Debug)]
pub(crate) struct AdapterFile {
    path: PathBuf,
    pub(super) checkpoint: Checkpoint,
    /// By the module, as the file calls it.
    pub(super) modules: BTreeMap<String, Matrices>,
    /// What PEFT noted, by the part's name.
    notes: Vec<(String, LoraConfig)>,
    /// What the user multiplies all of it by.
    pub(super) scale: f64,
}

/// The tensors of a module's adapter.
#[derive(Debug, Clone, Default)]
pub(super) struct Matrices {
    pub down: Option<TensorInfo>,
    pub up: Option<TensorInfo>,
    pub alpha: Option<f64>,
}

impl AdapterFile {
    /// Opens the adapter at `path`, a file or a folder of one; what it adds is multiplied by
    /// `scale`.
    pub fn open(path: &Path, scale: f64) -> Result<Self, Error> {
        let path = located(path)?;
        let checkpoint = Checkpoint::open(&path).map_err(outsize_core::Error::from)?;
        let mut file =
            Self { checkpoint, modules: BTreeMap::new(), notes: Vec::new(), scale, path };
        if !scale.is_finite() {
            return Err(file.fault(format!("a scale of {scale} is not possible: choose a number")));
        }
        let tensors = file.checkpoint.tensors().to_vec();
        for tensor in tensors {
            file.take(tensor)?;
        }
        file.notes = file.notes()?;
        Ok(file)
    }

    fn take(&mut self, tensor: TensorInfo) -> Result<(), Error> {
        let Some((module, role)) = parsed(&tensor.name) else {
            let reason = match other_kind(&tensor.name) {
                Some(kind) => format!(
                    "is of another kind than LoRA, {kind}, which is not built in: merge it into the model with \
                     other software"
                ),
                None => "is no matrix of a LoRA adapter: is this the file of one?".to_owned(),
            };
            return Err(self.tensor_fault(&tensor.name, reason));
        };
        let known = [Dtype::F32, Dtype::F16, Dtype::BF16].contains(&tensor.dtype);
        let counts = role == Role::Alpha && tensor.dtype == Dtype::I64;
        if !(known || counts) {
            let reason = format!("is of {:?}, and must be of F32, BF16 or F16", tensor.dtype);
            return Err(self.tensor_fault(&tensor.name, reason));
        }
        let alpha = match role {
            Role::Alpha => Some(self.number(&tensor)?),
            _ => None,
        };
        let name = tensor.name.clone();
        let matrices = self.modules.entry(module).or_default();
        let twice = match role {
            Role::Down => matrices.down.replace(tensor).is_some(),
            Role::Up => matrices.up.replace(tensor).is_some(),
            Role::Alpha => std::mem::replace(&mut matrices.alpha, alpha).is_some(),
        };
        match twice {
            true => Err(self.tensor_fault(&name, "is for the same as another one".to_owned())),
            false => Ok(()),
        }
    }

    /// The one number that a tensor holds.
    fn number(&self, tensor: &TensorInfo) -> Result<f64, Error> {
        let wrong = || self.tensor_fault(&tensor.name, "must hold one finite number".to_owned());
        if tensor.shape.iter().product::<usize>() != 1 {
            return Err(wrong());
        }
        let bytes = self.checkpoint.read(tensor).map_err(outsize_core::Error::from)?;
        let number = match (tensor.dtype, &bytes[..]) {
            (Dtype::F32, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
            (Dtype::F16, &[a, b]) => f64::from(half::f16::from_le_bytes([a, b])),
            (Dtype::BF16, &[a, b]) => f64::from(half::bf16::from_le_bytes([a, b])),
            (_, bytes) => bytes.try_into().map(i64::from_le_bytes).map_err(|_| wrong())? as f64,
        };
        if number.is_finite() { Ok(number) } else { Err(wrong()) }
    }

    /// What PEFT noted of each part, by the part's name.
    fn notes(&self) -> Result<Vec<(String, LoraConfig)>, Error> {
        let files = self.checkpoint.files();
        let Some(note) = files.first().and_then(|file| file.metadata().get(NOTE)) else {
            return Ok(Vec::new());
        };
        let fields = parse_object(&self.path, note.as_bytes())?;
        let mut parts: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
        for (name, value) in &fields {
            if let Some((part, field)) = name.split_once('.') {
                parts.entry(part).or_default().insert(field.to_owned(), value.clone());
            }
        }
        let read = |(part, fields): (&str, Map<String, Value>)| {
            let config = LoraConfig::from_json(&Value::Object(fields).to_string());
            let config =
                config.map_err(|error| self.fault(format!("`{NOTE}` of {part}: {error}")))?;
            Ok((part.to_owned(), config))
        };
        parts.into_iter().map(read).collect()
    }

    /// What PEFT noted that a product of such a rank is multiplied by, for each of a part's
    /// modules.
    pub(super) fn scales(
        &self,
        part: PipelinePart,
        modules: &[Vec<String>],
        ranks: &[usize],
    ) -> Result<Vec<Option<f64>>, Error> {
        let Some((_, config)) = self.notes.iter().find(|(name, _)| name == part.name()) else {
            return Ok(vec![None; modules.len()]);
        };
        let scales = config.scales(modules, ranks);
        let scales = scales.map_err(|error| self.fault(format!("`{NOTE}`: {error}")))?;
        Ok(scales.into_iter().map(Some).collect())
    }

    /// Refuses what is for none of the modules that were claimed.
    pub fn refuse_others(&self, claimed: &[String]) -> Result<(), Error> {
        let mut others = self.modules.keys().filter(|name| !claimed.contains(name));
        match others.next() {
            None => Ok(()),
            Some(module) => Err(self.fault(format!(
                "the model has no module {}, which the adapter is for: is it the adapter of another kind of model?",
                shown(module, MAX_QUOTE)
            ))),
        }
    }

    /// What is wrong with the file.
    pub(super) fn fault(&self, reason: String) -> Error {
        Error::Adapter { path: self.path.clone(), reason }
    }

    /// What is wrong with one of its tensors.
    pub(super) fn tensor_fault(&self, name: &str, reason: String) -> Error {
        self.fault(format!("the tensor {} {reason}", shown(name, MAX_QUOTE)))
    }
}

/// The file of an adapter: `path`, or the one that diffusers saves in that folder.
fn located(path: &Path) -> Result<PathBuf, Error> {
    let fault = |reason: String| Error::Adapter { path: path.to_owned(), reason };
    if !path.is_dir() {
        return match path.exists() {
            true => Ok(path.to_owned()),
            false => Err(fault("there is no such file".to_owned())),
        };
    }
    let entries = path.read_dir().map_err(|error| fault(error.to_string()))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let names: Vec<String> = names.collect();
    let found = adapter_file(names.iter().map(String::as_str));
    found.map(|name| path.join(name)).ok_or_else(|| {
        fault(format!("it has no {}: give the file of the adapter", ADAPTER_FILES.join(" or ")))
    })
}
