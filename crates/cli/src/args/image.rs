//! `outsize image`.

use super::values::{ACTIVATION_DTYPES, one_of, some};
use crate::error::Failure;
use clap::Args;
use outsize::diffuse::{ImageRequest, InitialImage, Picture, PipelineKind, SchedulerChoice};
use outsize::models::ActivationDtype;
use outsize::plan::Budget;
use std::path::PathBuf;

/// `outsize image`.
#[derive(Args, Debug)]
pub struct ImageArgs {
    /// Folder of a text-to-image model as diffusers saves it, with a model_index.json; or a
    /// checkpoint of Stable Diffusion, FLUX, Z-Image or Qwen-Image in one file, .safetensors or
    /// .gguf; or either on the Hub, org/name, org/name:Q4_K_S or org/name/FILE, which is downloaded
    /// to the Hub's cache unless it is there
    pub model: PathBuf,
    /// Of a checkpoint in one file, where all is that it has not, configurations and tokenizers at
    /// least: a folder as diffusers saves it, or a model on the Hub [default: the one that the file
    /// is made of]
    #[arg(long, value_name = "MODEL", conflicts_with = "variant")]
    pub base: Option<PathBuf>,
    /// File to write, a PNG; of several pictures each has its seed in its name
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
    /// The most memory to hold, the process itself included: `cpu=800MB` (MB decimal, MiB binary)
    /// [default: nine tenths of what is available]
    #[arg(long, value_name = "DEVICE=SIZE", value_parser = Budget::parse)]
    pub max_memory: Option<Budget>,
    /// Dtype of activations in matmuls: f32 is exact, bf16 is faster and rounds them, as PyTorch
    /// does
    #[arg(long, value_parser = one_of(ACTIVATION_DTYPES), default_value = "f32", value_name = "TYPE")]
    pub compute: ActivationDtype,
    /// Take weights of this variant, such as fp16 [default: plain files, or fp16 if there are no
    /// others]
    #[arg(long, value_name = "NAME")]
    pub variant: Option<String>,
    /// Add a LoRA adapter: its .safetensors file, a folder as diffusers saves it, or one on the
    /// Hub, org/name or org/name/FILE; several, if given more than once
    #[arg(long, value_name = "FILE")]
    pub adapter: Vec<PathBuf>,
    /// How much of each --adapter is added, once for each of them [default: 1]
    #[arg(long, value_name = "S", requires = "adapter", allow_negative_numbers = true)]
    pub adapter_scale: Vec<f64>,
    /// Write a small picture of the latents beside the output, every K steps
    #[arg(long, value_name = "K", value_parser = some())]
    pub preview: Option<usize>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// What the picture shows.
    #[command(flatten)]
    pub picture: PictureArgs,
}

/// What the picture shows.
#[derive(Args, Debug)]
#[command(next_help_heading = "Picture")]
pub struct PictureArgs {
    /// What is to be seen
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: String,
    /// What is not to be seen
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub negative_prompt: String,
    /// How much more the prompt counts than the negative one; up to 1 there is no guidance, for
    /// Z-Image at 0, for Qwen-Image without --negative-prompt [default: as in diffusers, 7.5 for
    /// Stable Diffusion, 7 for its version 3, 5 for XL and Z-Image, 8.5 for latent consistency
    /// models, 3.5 for FLUX.1 and 30 for its Fill, 4 for Qwen-Image and FLUX.2, of which distilled
    /// klein has none]
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub guidance_scale: Option<f32>,
    /// Steps of the scheduler [default: 50 for Stable Diffusion, Z-Image, Qwen-Image and FLUX.2, 28
    /// for Stable Diffusion 3 and FLUX.1 and 50 for its Fill, 4 for its schnell, for distilled
    /// models of FLUX.2 and for latent consistency models]
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// Pixels of a row, a multiple of 8, for Stable Diffusion 3, FLUX, Z-Image and Qwen-Image of 16
    /// [default: what the model was trained with]
    #[arg(long, value_name = "PIXELS")]
    pub width: Option<usize>,
    /// Rows, by the same rule [default: what the model was trained with]
    #[arg(long, value_name = "PIXELS")]
    pub height: Option<usize>,
    /// The same seed gives the same picture; the noise is that of PyTorch's CPU generator
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub seed: u64,
    /// Pictures to make, of this seed and those after it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub count: u32,
    /// A picture to begin with, as PNG, JPEG or WebP, instead of noise alone; for FLUX.1 Kontext,
    /// FLUX.2 and Qwen-Image-Edit, which needs one, a picture to go by, or several, if given more
    /// than once. Without --width and --height the first one says how large the picture is, for
    /// Qwen-Image-Edit 2509 and later the last one
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,
    /// What of --image is made anew: white in this picture, while black is kept
    #[arg(long, value_name = "FILE", requires = "image")]
    pub mask: Option<PathBuf>,
    /// How much of --image is lost in noise, from 0 to 1, and how large a part of the steps is made
    /// [default: as in diffusers, 0.8 for Stable Diffusion and 1 with --mask; 0.3 for XL and 0.9999
    /// with it; 0.6 for Stable Diffusion 3, FLUX.1, Qwen-Image and Z-Image, whose is 1 with --mask;
    /// 1 for FLUX.1 Fill]
    #[arg(long, value_name = "S", requires = "image")]
    pub strength: Option<f32>,
    /// Scheduler: ddim, pndm, euler, euler-a, dpm++, lcm, tcd or flow-euler; -karras or -trailing
    /// may be behind some, as in dpm++-karras [default: the model's own]
    #[arg(long, value_name = "NAME")]
    pub scheduler: Option<SchedulerChoice>,
}

impl PictureArgs {
    /// The seed of each picture.
    pub fn seeds(&self) -> Vec<u64> {
        (0..u64::from(self.count)).map(|n| self.seed.wrapping_add(n)).collect()
    }

    /// What is asked of the library.
    pub fn request(&self, kind: PipelineKind) -> Result<ImageRequest, Failure> {
        let mut image = None;
        let mut references = Vec::new();
        if kind.takes_references() {
            let given = [("--mask", self.mask.is_some()), ("--strength", self.strength.is_some())];
            if let Some((flag, _)) = given.into_iter().find(|(_, given)| *given) {
                return Err(Failure::usage(format!(
                    "{flag}: not for this model, which goes by pictures and begins with none: leave it out"
                )));
            }
            references = self.image.iter().map(Picture::read).collect::<Result<_, _>>()?;
        } else if let Some(path) = self.image.first() {
            if self.image.len() > 1 {
                let what = "--image: this model begins with one picture: give one";
                return Err(Failure::usage(what.to_owned()));
            }
            let mask = self.mask.as_ref().map(Picture::read).transpose()?;
            let picture = Picture::read(path)?;
            image = Some(InitialImage { picture, mask, strength: self.strength });
        }
        Ok(ImageRequest {
            image,
            references,
            prompt: self.prompt.clone(),
            negative_prompt: self.negative_prompt.clone(),
            guidance_scale: self.guidance_scale,
            steps: self.steps,
            width: self.width,
            height: self.height,
            seeds: self.seeds(),
            scheduler: self.scheduler,
        })
    }
}
