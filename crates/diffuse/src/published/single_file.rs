//! A checkpoint of a model of pictures in one file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use outsize_checkpoint::{Checkpoint, Dtype, TensorInfo};
use outsize_models::arch::{
    AutoencoderKl, AutoencoderKlEncoder, ClipTextModel, DecoderTextEncoder,
    Flux2Transformer2dModel, FluxTransformer2dModel, QwenImageTransformer2dModel, SHIFT_FIRST,
    T5EncoderModel, Unet2dConditionModel, ZImageTransformer2dModel,
};
use outsize_models::{Component, ComponentConfig};

use super::rows::Rows;
use super::unet_names::UnetNames;
use super::{clip_names, flux_names, vae_names, z_image_names};
use crate::error::Error;
use crate::kind::PipelineKind;
use crate::pipeline_part::PipelinePart;

/// What the names of a denoiser's tensors begin with; with nothing in files that have no other
/// part.
const DENOISERS: [&str; 2] = ["model.diffusion_model.", ""];

/// What those of an autoencoder's begin with.
const AUTOENCODERS: [&str; 2] = ["first_stage_model.", "vae."];

/// The same of the first text encoder: CLIP of version 1, of XL and of FLUX.1, and Qwen3 of Z-Image
/// and FLUX.2 klein.
const TEXT_ENCODERS: [&str; 5] = [
    "cond_stage_model.transformer.",
    "conditioner.embedders.0.transformer.",
    "text_encoders.clip_l.transformer.",
    "text_encoders.qwen3_4b.transformer.",
    "text_encoders.qwen3_8b.transformer.",
];

/// The same of T5, FLUX.1's second one.
const T5: &str = "text_encoders.t5xxl.transformer.";

/// The same of text encoders of OpenCLIP: of version 2, and of XL.
const OPEN_CLIPS: [&str; 2] = ["cond_stage_model.model.", "conditioner.embedders.1.model."];

/// A tensor that the denoisers of each family have, and those of no other.
const MARKS: [(Family, &str); 5] = [
    (Family::StableDiffusion, "input_blocks.0.0.weight"),
    (Family::Flux, "double_blocks.0.img_mod.lin.weight"),
    (Family::Flux2, "double_stream_modulation_img.lin.weight"),
    (Family::ZImage, "cap_pad_token"),
    (Family::QwenImage, "transformer_blocks.0.img_mod.1.weight"),
];

/// Values of a token of FLUX.1 Fill: latents, those of what is kept, and the mask.
const FILL_WIDTH: usize = 384;

/// What a module's scale of a weight of 8 bits may be called.
const SCALES: [&str; 2] = [".scale_weight", ".weight_scale"];

/// Models whose files have the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// All versions, and what is made of them.
    StableDiffusion,
    /// FLUX.1.
    Flux,
    /// FLUX.2.
    Flux2,
    ZImage,
    /// Whose names are those of diffusers.
    QwenImage,
}

/// A checkpoint in one file, of which headers are read: of Stable Diffusion 1, 2 or XL, of FLUX.1,
/// FLUX.2, Z-Image or Qwen-Image, as safetensors or GGUF. Parts that are not in it are those of its
/// base.
#[derive(Debug)]
pub struct SingleFile {
    path: PathBuf,
    whole: Checkpoint,
    family: Family,
    /// What the names of the denoiser's tensors begin with.
    denoiser: &'static str,
}

/// A parameter of a part.
struct Parameter<'a> {
    name: &'a str,
    module: &'a str,
    /// Its name in the module.
    field: &'a str,
    /// Of the module's weight, or of the parameter itself if there is none.
    shape: &'a [usize],
}

impl SingleFile {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// A file that cannot be read, or that is no such checkpoint.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let whole = Checkpoint::open(path).map_err(outsize_core::Error::from)?;
        let marks = MARKS.iter().flat_map(|mark| DENOISERS.map(|prefix| (mark, prefix)));
        let mut found =
            marks.filter(|((_, mark), prefix)| whole.get(&format!("{prefix}{mark}")).is_some());
        let path = path.to_owned();
        match found.next() {
            Some(((family, _), denoiser)) => Ok(Self { path, whole, family: *family, denoiser }),
            None => Err(Error::SingleFile {
                path,
                reason: "its tensors are not called as those of Stable Diffusion, FLUX, Z-Image or Qwen-Image in one file: of other \
                         models take the folder that diffusers saves"
                    .to_owned(),
            }),
        }
    }

    /// The repository on the Hub whose configurations, tokenizers and other parts are those of such
    /// a file.
    ///
    /// # Errors
    /// A file that does not tell.
    pub fn usual_base(&self) -> Result<&'static str, Error> {
        let has = |prefix: &str| self.has(prefix);
        if self.family == Family::Flux {
            let width = self.whole.get(&self.denoisers("img_in.weight"));
            if width.and_then(|width| width.shape.get(1)) == Some(&FILL_WIDTH) {
                return Ok("black-forest-labs/FLUX.1-Fill-dev");
            }
            return Ok(match self.whole.get(&self.denoisers("guidance_in.in_layer.weight")) {
                Some(_) => "black-forest-labs/FLUX.1-dev",
                None => "black-forest-labs/FLUX.1-schnell",
            });
        }
        if self.family == Family::Flux2
            && self.whole.get(&self.denoisers("guidance_in.in_layer.weight")).is_some()
        {
            return Ok("black-forest-labs/FLUX.2-dev");
        }
        let [version_1, xl] = [TEXT_ENCODERS[0], OPEN_CLIPS[1]].map(has);
        let first = self.whole.get(&self.denoisers("input_blocks.0.0.weight"));
        let channels = first.and_then(|first| first.shape.get(1).copied());
        Ok(match (channels, version_1, has(OPEN_CLIPS[0]), xl) {
            (Some(4), true, ..) => "stable-diffusion-v1-5/stable-diffusion-v1-5",
            (Some(9), true, ..) => "stable-diffusion-v1-5/stable-diffusion-inpainting",
            (Some(4), _, true, _) => "stabilityai/stable-diffusion-2-1",
            (Some(4), _, _, true) => "stabilityai/stable-diffusion-xl-base-1.0",
            _ => {
                let such = match self.family {
                    Family::ZImage => "Tongyi-MAI/Z-Image-Turbo, Tongyi-MAI/Z-Image or a folder",
                    Family::Flux2 => {
                        "black-forest-labs/FLUX.2-klein-4B, FLUX.2-klein-9B, one of klein-base or a folder"
                    }
                    Family::QwenImage => {
                        "Qwen/Qwen-Image, Qwen/Qwen-Image-Edit-2511, another of these or a folder"
                    }
                    _ => "a folder or a repository of diffusers",
                };
                return Err(self.fault(format!(
                    "it does not tell which model it is made of: say so with a base, {such}"
                )));
            }
        })
    }

    /// The parts whose weights it has.
    pub fn parts(&self) -> Vec<PipelinePart> {
        use PipelinePart::{TextEncoder, TextEncoder2, Transformer, Unet, Vae};
        let denoiser = if self.family == Family::StableDiffusion { Unet } else { Transformer };
        let others = [
            (TextEncoder, [&TEXT_ENCODERS[..], &OPEN_CLIPS[..1]]),
            (TextEncoder2, [&[T5][..], &OPEN_CLIPS[1..]]),
            (Vae, [&AUTOENCODERS[..], &[]]),
        ];
        // The autoencoder of FLUX.2 has other names there, and so have all other parts of
        // Qwen-Image.
        let is_known = |part| match self.family {
            Family::Flux2 => part != Vae,
            family => family != Family::QwenImage,
        };
        let has = |prefixes: &[&[&str]; 2]| prefixes.concat().iter().any(|prefix| self.has(prefix));
        let others = others.into_iter().filter(|(part, prefixes)| is_known(*part) && has(prefixes));
        let others = others.map(|(part, _)| part);
        others.chain([denoiser]).collect()
    }

    /// Says of weights that are missing in its base that it does not have them either.
    pub(crate) fn beside(&self, error: Error) -> Error {
        match error {
            Error::NoFile { folder, file } if file.ends_with(".safetensors") => {
                self.fault(format!(
                    "neither it nor its base {} has the weights {file}: is the base another model, or without weights?",
                    folder.display()
                ))
            }
            error => error,
        }
    }

    /// Refuses kinds of pipelines that are not its own.
    pub(crate) fn check(&self, kind: PipelineKind) -> Result<(), Error> {
        let family = match kind {
            // Its files are called otherwise.
            PipelineKind::StableDiffusion3 => None,
            kind if kind.is_flux1() => Some(Family::Flux),
            kind if kind.is_flux2() => Some(Family::Flux2),
            PipelineKind::ZImage => Some(Family::ZImage),
            kind if kind.is_qwen_image() => Some(Family::QwenImage),
            _ => Some(Family::StableDiffusion),
        };
        match family == Some(self.family) {
            true => Ok(()),
            false => Err(self.fault(format!(
                "its base is a {}, which it is not: give the model that it is made of",
                kind.class_name()
            ))),
        }
    }

    /// The weights of a part whose `config.json` at `place` has that text, under the names that
    /// diffusers gives them.
    pub(crate) fn part(
        &self,
        kind: PipelineKind,
        part: PipelinePart,
        place: &Path,
        config: &str,
    ) -> Result<Checkpoint, Error> {
        let fault = |error| Error::field(place, error);
        let tensors = match (part, kind) {
            (PipelinePart::Unet, _) => {
                let config = read::<Unet2dConditionModel>(config).map_err(fault)?;
                let names = UnetNames::new(&config.config);
                self.tensors(part, &config, |parameter| {
                    let module = names.published(parameter.module);
                    let name = module.map(|module| parameter.of(&module));
                    self.denoiser_names(parameter, name.map(|name| (name, parameter.rows())))
                })?
            }
            (PipelinePart::Transformer, PipelineKind::ZImage) => {
                let config = read::<ZImageTransformer2dModel>(config).map_err(fault)?;
                self.tensors(part, &config, |parameter| {
                    let (name, rows) =
                        z_image_names::published(parameter.module, parameter.outputs());
                    self.denoiser_names(parameter, Some((parameter.of(&name), rows)))
                })?
            }
            (PipelinePart::Transformer, kind) if kind.is_qwen_image() => {
                let config = read::<QwenImageTransformer2dModel>(config).map_err(fault)?;
                self.tensors(part, &config, |parameter| self.denoiser_names(parameter, None))?
            }
            (PipelinePart::Transformer, kind) if kind.is_flux2() => {
                let config = read::<Flux2Transformer2dModel>(config).map_err(fault)?;
                self.tensors(part, &config, |parameter| self.flux_names(parameter))?
            }
            (PipelinePart::Transformer, _) => {
                let config = read::<FluxTransformer2dModel>(config).map_err(fault)?;
                self.tensors(part, &config, |parameter| self.flux_names(parameter))?
            }
            (PipelinePart::TextEncoder2, kind) if kind.is_flux1() => {
                let config = read::<T5EncoderModel>(config).map_err(fault)?;
                let names =
                    |parameter: &Parameter<'_>| vec![(parameter.behind(T5), parameter.rows())];
                self.tensors(part, &config, names)?
            }
            (PipelinePart::TextEncoder, PipelineKind::ZImage | PipelineKind::Flux2Klein) => {
                let config = read::<DecoderTextEncoder>(config).map_err(fault)?;
                self.tensors(part, &config, |parameter| {
                    TEXT_ENCODERS.map(|prefix| (parameter.behind(prefix), parameter.rows())).into()
                })?
            }
            (
                PipelinePart::VisionEncoder
                | PipelinePart::TextEncoder
                | PipelinePart::TextEncoder2
                | PipelinePart::TextEncoder3,
                _,
            ) => {
                let config = read::<ClipTextModel>(config).map_err(fault)?;
                self.tensors(part, &config, |parameter| text_names(part, parameter))?
            }
            (PipelinePart::VaeEncoder | PipelinePart::Vae, _) => {
                let decoder = read::<AutoencoderKl>(config).map_err(fault)?;
                let levels = decoder.config.channels.len();
                let names = |parameter: &Parameter<'_>| {
                    let module = vae_names::published(parameter.module, levels);
                    let name = module.map(|module| parameter.of(&module));
                    let names = name.into_iter().flat_map(|name| {
                        AUTOENCODERS.map(|prefix| (format!("{prefix}{name}"), parameter.rows()))
                    });
                    names.collect()
                };
                let mut tensors = self.tensors(part, &decoder, names)?;
                let encoder = read::<AutoencoderKlEncoder>(config).map_err(fault)?;
                tensors.extend(self.tensors(part, &encoder, names)?);
                tensors
            }
        };
        Ok(self.whole.with_tensors(tensors).map_err(outsize_core::Error::from)?)
    }

    /// The tensors of all parameters of a part. `names` are those that one may have in the file,
    /// each with its rows there.
    fn tensors<C: Component>(
        &self,
        part: PipelinePart,
        config: &ComponentConfig<C>,
        names: impl Fn(&Parameter<'_>) -> Vec<(String, Rows)>,
    ) -> Result<Vec<TensorInfo>, Error> {
        let wanted = config.tensors(Dtype::F32);
        let weights = wanted
            .iter()
            .filter_map(|(name, _, shape)| Some((name.strip_suffix(".weight")?, &shape[..])));
        let shapes: HashMap<_, _> = weights.collect();
        let mut tensors = Vec::with_capacity(wanted.len());
        for (name, _, shape) in &wanted {
            let (module, field) = name.rsplit_once('.').unwrap_or((name, ""));
            let shape = shapes.get(module).copied().unwrap_or(shape);
            let names = names(&Parameter { name, module, field, shape });
            let mut found =
                names.iter().filter_map(|(name, rows)| Some((self.whole.get(name)?, rows)));
            let Some((tensor, rows)) = found.next() else {
                let mut names = names.into_iter().map(|(name, _)| name);
                return Err(self.fault(format!(
                    "it has no tensor {}, which the {} of its base has: is the base another model?",
                    names.next().unwrap_or_else(|| name.clone()),
                    part.name()
                )));
            };
            let name = match () {
                // What is stored in another order keeps its own name.
                () if tensor.name.ends_with(".text_projection") => "text_projection".to_owned(),
                () if !rows.ranges[1].is_empty() => format!("{SHIFT_FIRST}.{field}"),
                () => name.clone(),
            };
            tensors.extend(self.scale_of(tensor, &name));
            tensors.push(self.rows_of(tensor, rows, name)?);
        }
        Ok(tensors)
    }

    /// The scale of a matrix of 8 bits under the name that goes with `name`.
    fn scale_of(&self, tensor: &TensorInfo, name: &str) -> Option<TensorInfo> {
        let module = tensor.name.strip_suffix(".weight");
        let module = module.filter(|_| tensor.dtype == Dtype::F8E4M3)?;
        let scale = SCALES.iter().find_map(|end| self.whole.get(&format!("{module}{end}")));
        scale.map(|scale| TensorInfo { name: format!("{name}_scale"), ..scale.clone() })
    }

    /// Some rows of a tensor, under another name.
    fn rows_of(&self, tensor: &TensorInfo, rows: &Rows, name: String) -> Result<TensorInfo, Error> {
        let [range, _] = &rows.ranges;
        let mut part = TensorInfo { name, ..tensor.clone() };
        if rows.len() == rows.of {
            return Ok(part);
        }
        let count = part.shape.first_mut().filter(|count| **count == rows.of);
        let Some(count) = count else {
            return Err(self.fault(format!(
                "its tensor {} has the shape {:?}, and its base has {} rows there: is the base another model?",
                tensor.name, tensor.shape, rows.of
            )));
        };
        *count = range.len();
        let row = part.len / rows.of as u64;
        part.offset += row * range.start as u64;
        part.len = row * range.len() as u64;
        Ok(part)
    }

    /// The names that a parameter of the denoiser may have: a published one, and its own.
    fn denoiser_names(
        &self,
        parameter: &Parameter<'_>,
        published: Option<(String, Rows)>,
    ) -> Vec<(String, Rows)> {
        let own = (parameter.name.to_owned(), parameter.rows());
        let names = published.into_iter().chain([own]);
        names.map(|(name, rows)| (self.denoisers(&name), rows)).collect()
    }

    /// The same of a transformer of FLUX.
    fn flux_names(&self, parameter: &Parameter<'_>) -> Vec<(String, Rows)> {
        let norm = flux_names::norm(parameter.module).map(|name| (name, parameter.rows()));
        let found = norm.or_else(|| {
            let (name, rows) = flux_names::published(parameter.module, parameter.shape)?;
            Some((parameter.of(&name), rows))
        });
        self.denoiser_names(parameter, found)
    }

    /// The name of a tensor of the denoiser in the file.
    fn denoisers(&self, name: &str) -> String {
        format!("{}{name}", self.denoiser)
    }

    /// Whether it has a tensor whose name begins so.
    fn has(&self, prefix: &str) -> bool {
        self.whole.tensors().iter().any(|tensor| tensor.name.starts_with(prefix))
    }

    fn fault(&self, reason: String) -> Error {
        Error::SingleFile { path: self.path.clone(), reason }
    }
}

impl Parameter<'_> {
    /// The same of the module that is called so.
    fn of(&self, module: &str) -> String {
        if self.field.is_empty() { module.to_owned() } else { format!("{module}.{}", self.field) }
    }

    fn behind(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.name)
    }

    fn outputs(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// All of its rows.
    fn rows(&self) -> Rows {
        Rows::all(self.outputs())
    }
}

fn read<C: Component>(config: &str) -> Result<ComponentConfig<C>, outsize_models::Error> {
    ComponentConfig::from_json(config)
}

/// The names that a parameter of a text encoder of CLIP may have.
fn text_names(part: PipelinePart, parameter: &Parameter<'_>) -> Vec<(String, Rows)> {
    let short = parameter.name.strip_prefix("text_model.").unwrap_or(parameter.name);
    let mut names = Vec::new();
    if part == PipelinePart::TextEncoder {
        names.extend(
            TEXT_ENCODERS.map(|prefix| (format!("{prefix}text_model.{short}"), parameter.rows())),
        );
    }
    let open = OPEN_CLIPS[usize::from(part == PipelinePart::TextEncoder2)];
    if let Some((name, third)) = clip_names::published(parameter.name) {
        let rows = match third {
            Some(third) => Rows::part(third, 3, parameter.outputs()),
            None => parameter.rows(),
        };
        names.push((format!("{open}{name}"), rows));
    }
    names
}
