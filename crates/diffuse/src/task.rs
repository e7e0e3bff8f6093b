//! Text to image as a task of [`pipeline`](outsize_generate::pipeline()).

use std::path::PathBuf;

use outsize_generate::{PipelineBuilder, PipelineTask};

use crate::error::Error;
use crate::pipeline::ImagePipeline;
use crate::published::SingleFile;
use crate::settings::ImageSettings;

/// Prompts become pictures: the task of an [`ImagePipeline`].
///
/// ```no_run
/// use outsize_diffuse::{ImageRequest, ImageTask};
/// use outsize_generate::pipeline;
/// use outsize_plan::Budget;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pipe = pipeline(ImageTask::new().variant("fp16"), "path/to/stable-diffusion")
///     .max_memory(Budget::parse("cpu=800MB")?)
///     .build()?;
/// for picture in pipe.generate(&ImageRequest::new("a horse on the moon"))? {
///     picture.write_png("horse.png", &[])?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImageTask {
    variant: Option<String>,
    adapters: Vec<(PathBuf, f64)>,
    base: Option<PathBuf>,
}

impl ImageTask {
    /// With plain weights, or those of `fp16` if there are no others.
    pub const fn new() -> Self {
        Self { variant: None, adapters: Vec::new(), base: None }
    }

    /// With weights of this variant.
    pub fn variant(self, name: impl Into<String>) -> Self {
        Self { variant: Some(name.into()), ..self }
    }

    /// With weights in one file, which is the model's path, and all else in this folder: see
    /// [`ImagePipeline::open_file`].
    pub fn base(self, folder: impl Into<PathBuf>) -> Self {
        Self { base: Some(folder.into()), ..self }
    }

    /// With a LoRA adapter, of which so much is added: see
    /// [`ImageModel::adapt`](crate::ImageModel::adapt).
    pub fn adapter(mut self, path: impl Into<PathBuf>, scale: f64) -> Self {
        self.adapters.push((path.into(), scale));
        self
    }
}

impl PipelineTask for ImageTask {
    type Options = ();
    type Pipeline = ImagePipeline;
    type Error = Error;

    fn build(builder: PipelineBuilder<Self>) -> Result<ImagePipeline, Error> {
        let max_memory = builder.budget();
        let PipelineBuilder { task, model, planning, compute, stop, .. } = builder;
        if planning.device_map.is_some() {
            return Err(Error::DeviceMap);
        }
        let settings = ImageSettings { compute, planning, stop, ..ImageSettings::new(max_memory) };
        let mut pipeline = match &task.base {
            Some(base) => ImagePipeline::open_file(&SingleFile::open(&model)?, base, settings)?,
            None => ImagePipeline::open(&model, task.variant.as_deref(), settings)?,
        };
        for (path, scale) in &task.adapters {
            pipeline.adapt(path, *scale)?;
        }
        Ok(pipeline)
    }
}
