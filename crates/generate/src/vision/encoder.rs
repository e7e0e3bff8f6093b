//! A vision encoder that is opened when there are images, within a budget of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_checkpoint::{CONFIG_LIMIT, Checkpoint, read_optional_text};
use outsize_core::{Options, Planning, decide, many_parameters_bytes, memory_overhead};
use outsize_models::arch::{QwenVisionConfig, QwenVisionModel};
use outsize_models::{
    ActivationDtype, Architecture, ComponentConfig, ImageFeatures, Init, PicturePass, PictureSize,
};
use outsize_plan::{Budget, Error as PlanError, Tier, Tree, Workload};

use super::{ImageInput, ImageProcessor};
use crate::error::Error;
use crate::pipeline::PipelineError;

/// An image as the language model takes it.
#[derive(Debug, Clone)]
pub struct EncodedImage {
    /// What it was made of.
    pub input: ImageInput,
    /// What stands for it in a text.
    pub features: ImageFeatures,
}

/// The vision encoder of a checkpoint: what it is, without its weights. These are read when there are images to
/// [encode](Self::encode), within the budget given then, and dropped afterwards.
#[derive(Debug)]
pub struct VisionEncoder {
    folder: PathBuf,
    config: ComponentConfig<QwenVisionModel>,
    processor: ImageProcessor,
    compute: ActivationDtype,
    stop: Option<Arc<AtomicBool>>,
}

impl VisionEncoder {
    /// That of the checkpoint in `folder`, if it is one of a model whose images are built in; for images of at most so many tokens
    /// each.
    ///
    /// # Errors
    /// A configuration of it that is not built in, or that of its images.
    pub fn open(folder: &Path, most_tokens: usize) -> Result<Option<Self>, PipelineError> {
        let path = folder.join("config.json");
        let text = match folder.is_dir() {
            true => read_optional_text(&path, CONFIG_LIMIT).map_err(Error::from)?,
            // A file brings no images.
            false => None,
        };
        let Some(text) = text else { return Ok(None) };
        let fields: Result<serde_json::Value, _> = serde_json::from_str(&text);
        let is_known = |model_type: &serde_json::Value| {
            QwenVisionModel::MODEL_TYPES.iter().any(|(known, _)| model_type == known)
        };
        if !fields.is_ok_and(|fields| fields.get("model_type").is_some_and(is_known)) {
            return Ok(None);
        }
        let config = ComponentConfig::<QwenVisionModel>::from_json(&text)?;
        let processor = ImageProcessor::open(folder, &config.config)?;
        Ok(Some(Self {
            folder: folder.to_owned(),
            config,
            processor: processor.with_most_tokens(most_tokens),
            compute: ActivationDtype::F32,
            stop: None,
        }))
    }

    /// The values of `model_type` of models whose images are built in.
    pub fn model_types() -> impl Iterator<Item = &'static str> {
        QwenVisionModel::MODEL_TYPES.iter().map(|(model_type, _)| *model_type)
    }

    /// The same multiplying activations in another type, and ending once another thread or a signal sets the flag.
    pub fn with(self, compute: ActivationDtype, stop: Option<Arc<AtomicBool>>) -> Self {
        Self { compute, stop, ..self }
    }

    /// How it sees images.
    pub fn processor(&self) -> &ImageProcessor {
        &self.processor
    }

    /// The token that stands for an image in a prompt.
    pub fn image_token(&self) -> u32 {
        self.config().image_token
    }

    /// The tokens of an image where a prompt has no place for it: that which stands for it, between marks.
    pub fn marked_image(&self) -> [u32; 3] {
        let [begin, end] = self.config().image_marks;
        [begin, self.image_token(), end]
    }

    fn config(&self) -> &QwenVisionConfig {
        &self.config.config
    }

    /// Tokens that images take together.
    ///
    /// # Errors
    /// An image that is too long for its width, or the other way round.
    pub fn tokens(&self, images: &[ImageInput]) -> Result<usize, Error> {
        images.iter().map(|image| self.processor.tokens(image.size())).sum()
    }

    /// Bytes that images of so many tokens take as long as they are part of a text, and what a pass over them takes more than over a
    /// text.
    pub fn held_bytes(&self, tokens: usize) -> u64 {
        let QwenVisionConfig { deepstack, out_hidden_size, .. } = self.config();
        // Once more while a pass puts them in the place of embeddings.
        let copies = 2 + deepstack.len() as u64;
        (4 * tokens as u64).saturating_mul(*out_hidden_size as u64).saturating_mul(copies)
    }

    /// The least budget in which an image of so many tokens can be encoded, beside the process: for [`encode`](Self::encode) while
    /// the language model is in memory.
    ///
    /// # Errors
    /// A checkpoint that is not of this configuration.
    pub fn least_bytes(&self, tokens: usize) -> Result<u64, PipelineError> {
        let patches = tokens.saturating_mul(self.config().merged());
        let load = ImageLoad { tokens, patches, files: 0, work: 0 };
        let checkpoint = self.checkpoint()?;
        let tree = self.tree(&checkpoint, &load)?;
        match decide(&tree, &self.options(&checkpoint, &tree, &load, (0, 0))) {
            Err(outsize_core::Error::Plan(PlanError::TooSmall(shortfall))) => Ok(shortfall.least),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(0),
        }
    }

    /// What the language model takes of these images, in order, with at most `budget` bytes of memory in use: of which `process` are
    /// the process by itself. `observe` is told of each image before it is encoded.
    ///
    /// # Errors
    /// A budget that is too small, with how many bytes would do; a file that is damaged; and what reading said.
    pub fn encode(
        &self,
        images: &[ImageInput],
        (budget, process): (u64, u64),
        mut observe: impl FnMut(&ImageInput),
    ) -> Result<Vec<EncodedImage>, PipelineError> {
        if images.is_empty() {
            return Ok(Vec::new());
        }
        let (checkpoint, load) = (self.checkpoint()?, self.load(images)?);
        let tree = self.tree(&checkpoint, &load)?;
        let options = self.options(&checkpoint, &tree, &load, (budget, process));
        let map = decide(&tree, &options)?;
        let init = Init { device: Device::flex(), compute: self.compute };
        let model = self.config.dispatch(&init, &checkpoint, &map, &options)?;
        let mut encoded = Vec::with_capacity(images.len());
        for input in images {
            observe(input);
            let picture = input.decode().map_err(Error::from)?;
            let grid = self.processor.grid([picture.width, picture.height])?;
            let patches = self.processor.patches(&picture)?;
            drop(picture);
            let shape = [grid[0] * grid[1], self.config().patch_values()];
            let pixels = TensorData::new(patches, shape);
            let pixels = Tensor::from_data(pixels, (&init.device, DType::F32));
            let features = model.run(|model| model.forward(pixels, grid))?;
            encoded.push(EncodedImage { input: input.clone(), features });
        }
        Ok(encoded)
    }

    fn checkpoint(&self) -> Result<Checkpoint, outsize_core::Error> {
        Ok(Checkpoint::open(&self.folder)?)
    }

    fn load(&self, images: &[ImageInput]) -> Result<ImageLoad, Error> {
        let mut load = ImageLoad::default();
        for image in images {
            let [rows, columns] = self.processor.grid(image.size())?;
            load.tokens += rows * columns / self.config().merged();
            load.patches = load.patches.max(rows * columns);
            load.files = load.files.saturating_add(image.len());
            load.work = load.work.max(self.processor.work_bytes(image));
        }
        Ok(load)
    }

    /// What there is to place, and what a pass does with it.
    fn tree(&self, checkpoint: &Checkpoint, load: &ImageLoad) -> Result<Tree, outsize_core::Error> {
        let mut tree = self.config.tree(&self.folder.to_string_lossy(), checkpoint.tensors())?;
        let latents = PictureSize { batch: 1, rows: load.patches, columns: 1 };
        self.config.add_work(&mut tree, &PicturePass { latents, tokens: 0 });
        Ok(tree)
    }

    fn options(
        &self,
        checkpoint: &Checkpoint,
        tree: &Tree,
        load: &ImageLoad,
        (budget, process): (u64, u64),
    ) -> Options {
        let mut max_memory = Budget::default();
        max_memory.set(Tier::Cpu, budget);
        let workload = Workload {
            prompt: 1,
            bf16: self.compute == ActivationDtype::Bf16,
            ..Workload::default()
        };
        let process = [load.files, many_parameters_bytes(tree), self.held_bytes(load.tokens)]
            .into_iter()
            .fold(process, u64::saturating_add);
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let pass = self.config.model().activation_bytes(load.patches, threads).max(load.work);
        let packed = self.config.packed_bytes(self.compute, load.patches as u64);
        Options {
            budget: max_memory,
            needs: memory_overhead(process, pass.saturating_add(packed)),
            planning: Planning { workload, ..Planning::default() },
            stop: self.stop.clone(),
            ..self.config.options(checkpoint.tensors())
        }
    }
}

/// What images ask for.
#[derive(Debug, Clone, Copy, Default)]
struct ImageLoad {
    /// Tokens of all.
    tokens: usize,
    /// Patches of the largest.
    patches: usize,
    /// Bytes of all files.
    files: u64,
    /// What making patches of an image takes at most, in bytes.
    work: u64,
}
