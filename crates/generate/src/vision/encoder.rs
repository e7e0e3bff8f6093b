//! A vision encoder that is opened when there are images, within a budget of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_checkpoint::{CONFIG_LIMIT, Checkpoint, GgufVision, read_optional_text};
use outsize_core::{
    Error as CoreError, Options, Planning, decide, many_parameters_bytes, memory_overhead,
};
use outsize_models::{ActivationDtype, ImageFeatures, Init, PatchLayout};
use outsize_plan::{Budget, Error as PlanError, Tier, Tree, Workload};

use super::tower::{VisionTower, read_tower, towers};
use super::{ImageInput, ImageProcessor};
use crate::error::Error;
use crate::pipeline::PipelineError;

/// An image as the language model takes it.
#[derive(Debug, Clone)]
pub struct EncodedImage {
    /// What it was made of.
    pub input: ImageInput,
    /// Rows and columns of its tokens, as [`ImageProcessor::token_grid`].
    pub tokens: [usize; 2],
    /// What stands for it in a text.
    pub features: ImageFeatures,
}

/// The vision encoder of a checkpoint: what it is, without its weights. These are read when there
/// are images to [encode](Self::encode), within the budget given then, and dropped afterwards.
#[derive(Debug)]
pub struct VisionEncoder {
    /// The checkpoint that has its weights.
    weights: PathBuf,
    tower: Box<dyn VisionTower>,
    layout: PatchLayout,
    processor: ImageProcessor,
    compute: ActivationDtype,
    stop: Option<Arc<AtomicBool>>,
}

impl VisionEncoder {
    /// That of the checkpoint at `model`, if it is one of a model whose images are built in; for
    /// images of at most so many tokens each. Of a model in a GGUF file it is in [another one
    /// beside it](GgufVision::beside).
    ///
    /// # Errors
    /// A configuration of it that is not built in, or that of its images.
    pub fn open(model: &Path, most_tokens: usize) -> Result<Option<Self>, PipelineError> {
        if !model.is_dir() {
            let found = GgufVision::beside(model).map_err(CoreError::from)?;
            return found.map(|found| Self::of_gguf(found, most_tokens)).transpose();
        }
        let path = model.join("config.json");
        let text = read_optional_text(&path, CONFIG_LIMIT).map_err(Error::from)?;
        let Some((read, text)) = text.and_then(|text| Some((read_tower(&text)?, text))) else {
            return Ok(None);
        };
        let tower = read(&text).map_err(|source| PipelineError::BadConfig { path, source })?;
        let processor = ImageProcessor::open(model, &tower.layout())?;
        Ok(Some(Self::new(model.to_owned(), tower, processor, most_tokens)))
    }

    /// The one in the GGUF file `encoder`, of the model in the GGUF file `model`.
    ///
    /// # Errors
    /// As [`open`](Self::open), and a file that is no vision encoder, or that of another model.
    pub fn open_gguf(
        model: &Path,
        encoder: &Path,
        most_tokens: usize,
    ) -> Result<Self, PipelineError> {
        Self::of_gguf(GgufVision::open(model, encoder).map_err(CoreError::from)?, most_tokens)
    }

    fn of_gguf(found: GgufVision, most_tokens: usize) -> Result<Self, PipelineError> {
        let GgufVision { path, config, processor } = found;
        let bad = |source| PipelineError::BadConfig { path: path.clone(), source };
        let read = read_tower(&config).ok_or(Error::NoImages {
            reason: "the model type of its vision encoder is not built in",
        })?;
        let tower = read(&config).map_err(bad)?;
        let processor = ImageProcessor::parse(&path, &processor, &tower.layout())?;
        Ok(Self::new(path, tower, processor, most_tokens))
    }

    fn new(
        weights: PathBuf,
        tower: Box<dyn VisionTower>,
        processor: ImageProcessor,
        most_tokens: usize,
    ) -> Self {
        let (layout, processor) = (tower.layout(), processor.with_most_tokens(most_tokens));
        Self { weights, tower, layout, processor, compute: ActivationDtype::F32, stop: None }
    }

    /// The values of `model_type` of models whose images are built in.
    pub fn model_types() -> impl Iterator<Item = &'static str> {
        towers().map(|(model_type, _)| model_type)
    }

    /// The same multiplying activations in another type, and ending once another thread or a signal
    /// sets the flag.
    pub fn with(self, compute: ActivationDtype, stop: Option<Arc<AtomicBool>>) -> Self {
        Self { compute, stop, ..self }
    }

    /// How it sees images.
    pub fn processor(&self) -> &ImageProcessor {
        &self.processor
    }

    /// How it takes images.
    pub fn layout(&self) -> &PatchLayout {
        &self.layout
    }

    /// Tokens that a pass has to run at once, and prompts are not cut
    /// [below](crate::GenerationWorkload::least_pass).
    pub fn least_pass(&self) -> usize {
        match self.processor.most_tokens() {
            Some(tokens) if self.layout.sees_itself => tokens,
            _ => 1,
        }
    }

    /// Tokens that images take together.
    ///
    /// # Errors
    /// An image that is too long for its width, or the other way round.
    pub fn tokens(&self, images: &[ImageInput]) -> Result<usize, Error> {
        images.iter().map(|image| self.processor.tokens(image.size())).sum()
    }

    /// Bytes that images of so many tokens take as long as they are part of a text, and what a pass
    /// over them takes more than over a text.
    pub fn held_bytes(&self, tokens: usize) -> u64 {
        let width = self.layout.features as u64;
        // Once more while a pass puts them in the place of embeddings.
        (2 * 4 * tokens as u64).saturating_mul(width)
    }

    /// The least budget in which an image of so many tokens can be encoded, of a photograph of 12
    /// megapixels, beside the process: for [`encode`](Self::encode) while the language model is in
    /// memory.
    ///
    /// # Errors
    /// A checkpoint that is not of this configuration.
    pub fn least_bytes(&self, tokens: usize) -> Result<u64, PipelineError> {
        let most = self.processor.most_tokens().unwrap_or(usize::MAX);
        let patches = tokens.min(most).saturating_mul(self.layout.merged());
        let load = ImageLoad { tokens, patches, files: 0, work: self.processor.photograph_bytes() };
        let checkpoint = self.checkpoint()?;
        let tree = self.tree(&checkpoint, load.patches)?;
        match decide(&tree, &self.options(&checkpoint, &tree, &load, (0, 0))) {
            Err(CoreError::Plan(PlanError::TooSmall(shortfall))) => Ok(shortfall.least),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(0),
        }
    }

    /// What the language model takes of these images, in order, with at most `budget` bytes of
    /// memory in use: of which `process` are the process by itself. `observe` is told of each image
    /// before it is encoded.
    ///
    /// # Errors
    /// A budget that is too small, with how many bytes would do; a file that is damaged; and what
    /// reading said.
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
        let tree = self.tree(&checkpoint, load.patches)?;
        let options = self.options(&checkpoint, &tree, &load, (budget, process));
        let map = decide(&tree, &options)?;
        let init = Init { device: Device::flex(), compute: self.compute };
        let model = self.tower.dispatch(&init, &checkpoint, &map, &options)?;
        let mut encoded = Vec::with_capacity(images.len());
        for input in images {
            observe(input);
            let picture = input.decode().map_err(Error::from)?;
            let size = [picture.width, picture.height];
            let grid = self.processor.grid(size)?;
            let patches = self.processor.patches(&picture)?;
            drop(picture);
            let shape = [grid[0] * grid[1], self.layout.patch_values()];
            let pixels = TensorData::new(patches, shape);
            let pixels = Tensor::from_data(pixels, (&init.device, DType::F32));
            let features = model.see(pixels, grid)?;
            let tokens = self.processor.token_grid(size)?;
            encoded.push(EncodedImage { input: input.clone(), tokens, features });
        }
        Ok(encoded)
    }

    fn checkpoint(&self) -> Result<Checkpoint, CoreError> {
        Ok(Checkpoint::open(&self.weights)?)
    }

    fn load(&self, images: &[ImageInput]) -> Result<ImageLoad, Error> {
        let mut load = ImageLoad::default();
        for image in images {
            let [rows, columns] = self.processor.grid(image.size())?;
            load.tokens += rows * columns / self.layout.merged();
            load.patches = load.patches.max(rows * columns);
            load.files = load.files.saturating_add(image.len());
            load.work = load.work.max(self.processor.work_bytes(image));
        }
        Ok(load)
    }

    fn tree(&self, checkpoint: &Checkpoint, patches: usize) -> Result<Tree, CoreError> {
        self.tower.tree(&self.weights.to_string_lossy(), checkpoint.tensors(), patches)
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
        let pass = self.tower.pass_bytes(self.compute, load.patches).max(load.work);
        Options {
            budget: max_memory,
            needs: memory_overhead(process, pass),
            planning: Planning { workload, ..Planning::default() },
            stop: self.stop.clone(),
            ..self.tower.options(checkpoint.tensors())
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
