//! From a checkpoint's folder and a budget to a model that generates.

use crate::Decoder;
use burn::tensor::{DType, Device, Tensor};
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_core::{Access, Dispatched, FloatType, Options};
use outsize_models::{
    CacheOptions, Error as ModelError, KvCache, LlamaForCausalLm, Logits, ModelConfig,
};
use outsize_plan::{Budget, DeviceMap, Needs, Residency};
use outsize_stream::Stats;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What a model is opened with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The most that may be held, in bytes. For `cpu` it counts the whole process: its peak resident set.
    pub max_memory: Budget,
    /// Tokens that prompt and answer together may have; at most what the model was made for.
    pub context: usize,
    /// Tokens of the longest prompt that is foreseen. A longer one is run in several passes.
    pub prompt: usize,
    /// Of which positions logits are wanted.
    pub logits: Logits,
}

/// What has been done, for those who want to watch.
#[derive(Debug)]
pub enum Step<'a> {
    /// The empty model exists: shapes and no storage.
    Empty {
        /// Values in all of its parameters.
        parameters: u64,
    },
    /// The checkpoint's headers are read.
    Opened {
        /// The checkpoint.
        checkpoint: &'a Checkpoint,
    },
    /// It is decided where each block lives.
    Planned {
        /// The decision.
        map: &'a DeviceMap,
    },
    /// Every parameter has its handle, and reading has begun.
    Dispatched,
}

/// What can go wrong with a pipeline.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// config.json is missing or unreadable.
    #[error("cannot read {path}: {source}; a model's folder holds config.json beside its weights", path = path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// config.json is larger than any configuration is.
    #[error("{path} is larger than {limit} bytes: that is no model's configuration", path = path.display())]
    ConfigSize {
        /// The file.
        path: PathBuf,
        /// What is allowed, in bytes.
        limit: u64,
    },
    /// config.json says something that cannot be run.
    #[error("{path}: {source}", path = path.display())]
    BadConfig {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ModelError,
    },
    /// The model refused the tokens.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The checkpoint, the plan or a read failed.
    #[error(transparent)]
    Core(#[from] outsize_core::Error),
    /// The logits could not be read back from the device.
    #[error("the logits could not be read back: {reason}")]
    Logits {
        /// Why.
        reason: String,
    },
    /// The context asked for is not the model's.
    #[error("--context {context} is more than the {most} tokens that this model was made for")]
    Context {
        /// What was asked for, in tokens.
        context: usize,
        /// What the model can do, in tokens.
        most: usize,
    },
}

/// A language model, dispatched within a budget, with its KV cache.
#[derive(Debug)]
pub struct Pipeline {
    config: ModelConfig,
    model: Dispatched<LlamaForCausalLm>,
    cache: KvCache,
    /// Tokens that one pass takes at most: what the budget's activations were counted for.
    chunk: usize,
    streamed: Option<(PathBuf, Range<u64>)>,
}

/// The largest `config.json` that is read, in bytes.
const CONFIG_LIMIT: u64 = 16 << 20;

/// Memory that the process itself will take beyond what it has when a model is opened: code that is
/// not yet touched, stacks of worker threads, small allocations and what the allocator keeps of them.
const PROCESS_SLACK: u64 = 20 << 20;

/// Tokens that one pass takes at most: beyond, activations cost memory and save little time.
const LARGEST_CHUNK: usize = 512;

/// The least ring that streams at the disk's speed, in bytes: what is read ahead while a tile is in use.
const MIN_RING: u64 = 16 << 20;

/// Tensors of checkpoints that carry no weight: buffers which older versions saved.
const BUFFERS: [&str; 1] = [".rotary_emb.inv_freq"];

/// Reads a model's configuration from its folder.
///
/// # Errors
/// A file that is missing, too large or asks for something that cannot be run.
pub fn read_config(folder: &Path) -> Result<ModelConfig, PipelineError> {
    let path = folder.join("config.json");
    let fail = |source| PipelineError::Config {
        path: path.clone(),
        source,
    };
    let mut text = String::new();
    let file = std::fs::File::open(&path).map_err(fail)?;
    let read = file
        .take(CONFIG_LIMIT + 1)
        .read_to_string(&mut text)
        .map_err(fail)?;
    if read as u64 > CONFIG_LIMIT {
        return Err(PipelineError::ConfigSize {
            path,
            limit: CONFIG_LIMIT,
        });
    }
    ModelConfig::from_json(&text).map_err(|source| PipelineError::BadConfig { path, source })
}

impl Pipeline {
    /// Opens the checkpoint in `folder`, which holds a model of configuration `config`, places it
    /// within the budget, and begins to read. `observe` is told of every step.
    ///
    /// # Errors
    /// What is wrong with the checkpoint, or how many bytes of budget would do.
    pub fn open(
        folder: &Path,
        config: ModelConfig,
        settings: &Settings,
        mut observe: impl FnMut(Step<'_>),
    ) -> Result<Self, PipelineError> {
        if settings.context > config.max_position_embeddings {
            return Err(PipelineError::Context {
                context: settings.context,
                most: config.max_position_embeddings,
            });
        }
        let device = Device::flex();
        let model = config.init(&device);
        observe(Step::Empty {
            parameters: config.parameters(),
        });
        let checkpoint = Checkpoint::open(folder).map_err(outsize_core::Error::from)?;
        observe(Step::Opened {
            checkpoint: &checkpoint,
        });
        let mut options = options(&config, &checkpoint, settings);
        let (map, chunk) = place(&model, &checkpoint, &config, settings, &mut options)?;
        observe(Step::Planned { map: &map });
        let streamed = streamed_range(&checkpoint, &map);
        let model = outsize_core::dispatch(model, &checkpoint, &map, &options)?;
        let cache = KvCache::new(&config, &CacheOptions::new(settings.context), &device)?;
        observe(Step::Dispatched);
        Ok(Self {
            config,
            model,
            cache,
            chunk,
            streamed,
        })
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where everything lives.
    pub fn device_map(&self) -> &DeviceMap {
        self.model.device_map()
    }

    /// What was read and waited for so far.
    pub fn stats(&self) -> Stats {
        self.model.stats()
    }

    /// The same, for asking while the pipeline is at work.
    pub fn watch(&self) -> impl Fn() -> Stats + 'static {
        self.model.watch()
    }

    /// The file of which most is streamed, and the range of its bytes that streamed weights lie in: what
    /// the disk's speed should be measured on.
    pub fn streamed_range(&self) -> Option<(PathBuf, Range<u64>)> {
        self.streamed.clone()
    }

    /// Whether the checkpoint is read past the page cache.
    pub fn reads_directly(&self) -> bool {
        self.model.reads_directly()
    }

    /// Forgets the text so far.
    pub fn clear(&mut self) {
        self.cache.clear();
    }

    /// Appends `ids` and gives the logits of each position to `take`, in order: slices of whole rows
    /// `[vocabulary]`, one after the other.
    ///
    /// # Errors
    /// What the model or a read said. The text is then as it was before the pass that failed.
    pub fn logits(
        &mut self,
        ids: &[u32],
        mut take: impl FnMut(&[f32]),
    ) -> Result<(), PipelineError> {
        for chunk in ids.chunks(self.chunk) {
            let logits = self.pass(chunk, Logits::All)?;
            take(&values(logits)?);
        }
        Ok(())
    }

    fn pass(&mut self, ids: &[u32], logits: Logits) -> Result<Tensor<3>, PipelineError> {
        let cache = &mut self.cache;
        Ok(self
            .model
            .run(|model| model.forward(ids, cache, logits))??)
    }
}

impl Decoder for Pipeline {
    type Error = PipelineError;

    fn forward(&mut self, ids: &[u32]) -> Result<Vec<f32>, PipelineError> {
        let mut last = Vec::new();
        for chunk in ids.chunks(self.chunk) {
            last = values(self.pass(chunk, Logits::Last)?)?;
        }
        Ok(last)
    }

    fn context(&self) -> Option<usize> {
        Some(self.cache.capacity())
    }

    fn position(&self) -> usize {
        self.cache.position()
    }
}

fn values(tensor: Tensor<3>) -> Result<Vec<f32>, PipelineError> {
    tensor
        .into_data()
        .try_to_vec()
        .map_err(|error| PipelineError::Logits {
            reason: format!("{error:?}"),
        })
}

fn streamed_range(checkpoint: &Checkpoint, map: &DeviceMap) -> Option<(PathBuf, Range<u64>)> {
    let file_ranges = (0..checkpoint.files().len()).filter_map(|file| {
        let streamed = || {
            checkpoint.tensors().iter().filter(move |tensor| {
                tensor.file == file && map.residency(&tensor.name) == Some(Residency::Streamed)
            })
        };
        let start = streamed().map(|tensor| tensor.offset).min()?;
        let end = streamed().map(|tensor| tensor.offset + tensor.len).max()?;
        let bytes: u64 = streamed().map(|tensor| tensor.len).sum();
        Some((bytes, file, start..end))
    });
    let (_, file, range) = file_ranges.max_by_key(|(bytes, ..)| *bytes)?;
    Some((checkpoint.files()[file].path().to_path_buf(), range))
}

fn options(config: &ModelConfig, checkpoint: &Checkpoint, settings: &Settings) -> Options {
    let blocks = config.blocks();
    let mut access = std::collections::HashMap::new();
    let mut order = Vec::new();
    for block in &blocks {
        for tensor in &block.tensors {
            access.insert(tensor.name.clone(), tensor.access);
            order.push(tensor.name.clone());
        }
        if let Some(name) = &block.tied_to {
            // Read by rows at the beginning of a pass and by tiles at its end: what streams is the
            // latter.
            access.insert(name.clone(), Access::Tiles);
            order.retain(|earlier| earlier != name);
            order.push(name.clone());
        }
    }
    let wide = checkpoint
        .tensors()
        .iter()
        .any(|tensor| tensor.dtype == Dtype::F64);
    Options {
        budget: settings.max_memory.clone(),
        // The products take weights as stored, but not in 64 bits.
        float_type: if wide {
            FloatType::Cast(DType::F32)
        } else {
            FloatType::AsStored
        },
        no_split: vec!["LlamaDecoderLayer".to_string()],
        access,
        order: Some(order),
        min_ring_bytes: MIN_RING,
        ignore: BUFFERS.map(String::from).to_vec(),
        ..Options::default()
    }
}

/// Places the model, with passes as long as the budget allows: each further pass over a long prompt
/// reads all that is streamed again.
fn place(
    model: &LlamaForCausalLm,
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    settings: &Settings,
    options: &mut Options,
) -> Result<(DeviceMap, usize), PipelineError> {
    let tree = outsize_core::tree(model, checkpoint, options)?;
    let process = outsize_machine::current_rss().unwrap_or(0) + PROCESS_SLACK;
    let cache = CacheOptions::new(settings.context);
    let mut chunk = settings
        .prompt
        .clamp(1, LARGEST_CHUNK)
        .min(settings.context);
    loop {
        options.needs = Needs {
            process,
            kv_cache: KvCache::bytes(config, &cache),
            activations: config.activation_bytes(chunk, &cache, settings.logits),
            ..Needs::default()
        };
        match outsize_plan::infer(&tree, &options.budget, &options.plan()) {
            Err(_) if chunk > 1 => chunk = chunk.div_ceil(2),
            map => return Ok((map.map_err(outsize_core::Error::from)?, chunk)),
        }
    }
}
