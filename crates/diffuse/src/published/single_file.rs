//! A checkpoint of Stable Diffusion in one file.

use std::path::{Path, PathBuf};

use outsize_checkpoint::{Checkpoint, TensorInfo};
use outsize_models::arch::{
    AutoencoderKl, AutoencoderKlEncoder, ClipTextModel, Unet2dConditionModel,
};
use outsize_models::{Component, ComponentConfig};

use super::unet_names::UnetNames;
use super::{clip_names, vae_names};
use crate::error::Error;
use crate::kind::PipelineKind;
use crate::pipeline_part::PipelinePart;

/// What the names of the denoiser's tensors begin with, and of the autoencoder's.
const DENOISER: &str = "model.diffusion_model.";
const AUTOENCODER: &str = "first_stage_model.";

/// The same of text encoders of CLIP: of version 1, and of XL.
const CLIPS: [&str; 2] = ["cond_stage_model.transformer.", "conditioner.embedders.0.transformer."];

/// The same of those of OpenCLIP: of version 2, and of XL.
const OPEN_CLIPS: [&str; 2] = ["cond_stage_model.model.", "conditioner.embedders.1.model."];

/// The layer that says how many channels go into a denoiser.
const FIRST: &str = "model.diffusion_model.input_blocks.0.0.weight";

/// A checkpoint of Stable Diffusion in one file, of which headers are read.
#[derive(Debug)]
pub(crate) struct SingleFile {
    path: PathBuf,
    whole: Checkpoint,
}

impl SingleFile {
    pub fn open(path: &Path) -> Result<Self, Error> {
        let whole = Checkpoint::open(path).map_err(outsize_core::Error::from)?;
        let file = Self { path: path.to_owned(), whole };
        match file.whole.get(FIRST) {
            Some(_) => Ok(file),
            None => Err(file.fault(format!(
                "it has no tensor {FIRST}, as checkpoints of Stable Diffusion in one file have: of other models take the \
                 folder that diffusers saves"
            ))),
        }
    }

    /// The repository on the Hub whose configurations and tokenizers are those of such a file, as far as the file tells.
    fn usual_base(&self) -> Result<&'static str, Error> {
        let channels = self.whole.get(FIRST).and_then(|first| first.shape.get(1).copied());
        let has = |prefix: &str| {
            self.whole.tensors().iter().any(|tensor| tensor.name.starts_with(prefix))
        };
        let [version_1, _] = CLIPS.map(has);
        let [version_2, xl] = OPEN_CLIPS.map(has);
        Ok(match (channels, version_1, version_2, xl) {
            (Some(4), true, ..) => "stable-diffusion-v1-5/stable-diffusion-v1-5",
            (Some(9), true, ..) => "stable-diffusion-v1-5/stable-diffusion-inpainting",
            (Some(4), _, true, _) => "stabilityai/stable-diffusion-2-1",
            (Some(4), _, _, true) => "stabilityai/stable-diffusion-xl-base-1.0",
            _ => {
                return Err(self.fault(
                    "it does not tell which model it is made of: say so with a base, a folder or a repository of diffusers"
                        .to_owned(),
                ));
            }
        })
    }

    /// Refuses kinds of pipelines of which files are not built in.
    pub fn check(&self, kind: PipelineKind) -> Result<(), Error> {
        match kind.parts().contains(&PipelinePart::Unet) {
            true => Ok(()),
            false => Err(self.fault(format!(
                "its base is a {}, of which checkpoints in one file are not built in: take the folder that diffusers saves",
                kind.class_name()
            ))),
        }
    }

    /// The weights of a part whose `config.json` at `place` has that text, under the names that diffusers gives them.
    pub fn part(
        &self,
        part: PipelinePart,
        place: &Path,
        config: &str,
    ) -> Result<Checkpoint, Error> {
        let fault = |error| Error::field(place, error);
        let tensors = match part {
            PipelinePart::Unet => {
                let config = read::<Unet2dConditionModel>(config).map_err(fault)?;
                let names = UnetNames::new(&config.config);
                self.tensors(part, &config, |parameter| {
                    let name = of_module(parameter, |module| names.published(module));
                    vec![(name.map(|name| format!("{DENOISER}{name}")), None)]
                })?
            }
            PipelinePart::TextEncoder | PipelinePart::TextEncoder2 => {
                let config = read::<ClipTextModel>(config).map_err(fault)?;
                self.tensors(part, &config, |parameter| text_names(part, parameter))?
            }
            PipelinePart::VaeEncoder | PipelinePart::Vae => {
                let decoder = read::<AutoencoderKl>(config).map_err(fault)?;
                let levels = decoder.config.channels.len();
                let names = |parameter: &str| {
                    let name = of_module(parameter, |module| vae_names::published(module, levels));
                    vec![(name.map(|name| format!("{AUTOENCODER}{name}")), None)]
                };
                let mut tensors = self.tensors(part, &decoder, names)?;
                let encoder = read::<AutoencoderKlEncoder>(config).map_err(fault)?;
                tensors.extend(self.tensors(part, &encoder, names)?);
                tensors
            }
            PipelinePart::Transformer => unreachable!("refused by its kind"),
        };
        Ok(self.whole.with_tensors(tensors).map_err(outsize_core::Error::from)?)
    }

    /// The tensors of all parameters of a part. `names` are those that one may have in the file, each with the third that it is,
    /// if it is one.
    fn tensors<C: Component>(
        &self,
        part: PipelinePart,
        config: &ComponentConfig<C>,
        names: impl Fn(&str) -> Vec<(Option<String>, Option<usize>)>,
    ) -> Result<Vec<TensorInfo>, Error> {
        let tensor = |parameter: String| {
            let names = names(&parameter);
            let mut found = names
                .iter()
                .filter_map(|(name, third)| Some((self.whole.get(name.as_deref()?)?, *third)));
            let Some((tensor, third)) = found.next() else {
                let mut names = names.into_iter().filter_map(|(name, _)| name);
                return Err(self.fault(format!(
                    "it has no tensor {}, which the {} of its base has: is the base another model?",
                    names.next().unwrap_or(parameter),
                    part.name()
                )));
            };
            // The one that transformers has the other way round keeps its own name.
            let is_projection = tensor.name.ends_with(".text_projection");
            let name = if is_projection { "text_projection".to_owned() } else { parameter };
            third_of(tensor, third, name).ok_or_else(|| {
                self.fault(format!("its tensor {} cannot be divided by three", tensor.name))
            })
        };
        config.weights().into_iter().map(|weight| tensor(weight.name)).collect()
    }

    fn fault(&self, reason: String) -> Error {
        Error::SingleFile { path: self.path.clone(), reason }
    }
}

/// The repository on the Hub whose configurations and tokenizers are those of a checkpoint of Stable Diffusion in one `file`.
///
/// # Errors
/// A file that cannot be read, that is no such checkpoint, or that does not tell.
pub fn usual_base(file: &Path) -> Result<&'static str, Error> {
    SingleFile::open(file)?.usual_base()
}

fn read<C: Component>(config: &str) -> Result<ComponentConfig<C>, outsize_models::Error> {
    ComponentConfig::from_json(config)
}

/// The name of a parameter of the module that is called so.
fn of_module(parameter: &str, published: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (module, field) = parameter.rsplit_once('.')?;
    Some(format!("{}.{field}", published(module)?))
}

/// The names that a parameter of a text encoder may have.
fn text_names(part: PipelinePart, parameter: &str) -> Vec<(Option<String>, Option<usize>)> {
    let short = parameter.strip_prefix("text_model.").unwrap_or(parameter);
    let mut names = Vec::new();
    if part == PipelinePart::TextEncoder {
        for prefix in CLIPS {
            names.push((Some(format!("{prefix}text_model.{short}")), None));
        }
    }
    let open = OPEN_CLIPS[usize::from(part == PipelinePart::TextEncoder2)];
    if let Some((name, third)) = clip_names::published(parameter) {
        names.push((Some(format!("{open}{name}")), third));
    }
    names
}

/// A tensor, or a third of its rows, under another name.
fn third_of(tensor: &TensorInfo, third: Option<usize>, name: String) -> Option<TensorInfo> {
    let mut part = TensorInfo { name, ..tensor.clone() };
    if let Some(third) = third {
        let rows = part.shape.first_mut().filter(|rows| rows.is_multiple_of(3))?;
        *rows /= 3;
        part.len /= 3;
        part.offset += third as u64 * part.len;
    }
    Some(part)
}
