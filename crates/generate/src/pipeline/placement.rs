//! Where the parts of a pipeline live.

use std::ops::Range;
use std::path::PathBuf;

use burn::tensor::DType;
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_core::{Access, FloatType, Options};
use outsize_models::{LlamaForCausalLm, ModelConfig};
use outsize_plan::{DeviceMap, MemoryOverhead, Prediction, Residency, Workload, predict};

use super::{PipelineError, PipelineSettings};

/// Memory that the process itself will take beyond what it has when a model is opened: code that is
/// not yet touched, stacks of worker threads, small allocations and what the allocator keeps of them.
pub(crate) const PROCESS_SLACK: u64 = 20 << 20;

/// What the resident set of the process differs by from one run to the next, in bytes: which pages of
/// code the system maps around those that are touched.
pub(crate) const RESIDENT_SET_VARIES: u64 = 1 << 20;

/// Tokens that one pass takes at most: beyond, activations cost memory and save little time.
pub(crate) const LARGEST_CHUNK: usize = 512;

/// The least ring that streams at the disk's speed, in bytes: what is read ahead while a tile is in use.
pub(crate) const MIN_RING: u64 = 16 << 20;

/// Tensors of checkpoints that carry no weight: buffers which older versions saved.
pub(crate) const BUFFERS: [&str; 1] = [".rotary_emb.inv_freq"];

/// The file of which most is streamed, and where in it.
pub(super) fn streamed_range(
    checkpoint: &Checkpoint,
    map: &DeviceMap,
) -> Option<(PathBuf, Range<u64>)> {
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

/// How the checkpoint is dispatched.
pub(crate) fn options(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    settings: &PipelineSettings,
) -> Options {
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
        planning: settings.planning.clone(),
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
        stop: settings.stop.clone(),
        ..Options::default()
    }
}

/// What `place` makes of passes of so many tokens: of the longest that it can, each further pass over a long prompt reading all that is
/// streamed again. The error is that of passes of one token.
pub(crate) fn with_longest_passes<T, E>(
    prompt: usize,
    context: usize,
    mut place: impl FnMut(usize) -> Result<T, E>,
) -> Result<T, E> {
    let mut chunk = prompt.clamp(1, LARGEST_CHUNK).min(context.max(1));
    loop {
        match place(chunk) {
            Err(_) if chunk > 1 => chunk = chunk.div_ceil(2),
            placed => return placed,
        }
    }
}

/// Where a model is placed, and what follows from it.
pub(super) struct Placed {
    pub(super) map: DeviceMap,
    pub(super) prediction: Prediction,
    /// Tokens that one pass takes at most.
    pub(super) chunk: usize,
}

/// What the process takes besides the model, in bytes.
pub(crate) fn process_bytes() -> u64 {
    outsize_machine::current_rss().unwrap_or(0) + PROCESS_SLACK
}

/// Places the model, with passes as long as the budget allows: each further pass over a long prompt
/// reads all that is streamed again.
pub(super) fn place(
    model: &LlamaForCausalLm,
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    settings: &PipelineSettings,
    options: &mut Options,
) -> Result<Placed, PipelineError> {
    let mut tree = outsize_core::tree(model, checkpoint, options)?;
    let process = process_bytes();
    let cache = settings.cache();
    config.add_work(&mut tree, &cache);
    with_longest_passes(settings.prompt, settings.context, |chunk| {
        // Blocks say what their part of the KV cache takes.
        options.needs = MemoryOverhead {
            process,
            activations: config
                .activation_bytes(chunk, &cache, settings.logits)
                .saturating_add(config.packed_bytes(settings.compute, chunk, cache.batch)),
            ..MemoryOverhead::default()
        };
        options.planning.workload = Workload {
            batch: cache.batch as u64,
            prompt: settings.prompt as u64,
            position: settings.planning.workload.position,
            chunk: chunk as u64,
        };
        let map = outsize_core::decide(&tree, options)?;
        let planning = &options.planning;
        let prediction = predict(&tree, &map, &planning.figures, &planning.workload);
        Ok(Placed {
            map,
            prediction,
            chunk,
        })
    })
    .map_err(|error| match error {
        outsize_core::Error::Plan(error) => outsize_core::Error::from(steady(error)).into(),
        error => error.into(),
    })
}

/// The refusal, asking for a budget that will still do in the next run.
pub(crate) fn steady(error: outsize_plan::Error) -> outsize_plan::Error {
    match error {
        outsize_plan::Error::TooSmall(mut shortfall) => {
            shortfall.least = shortfall.least.saturating_add(RESIDENT_SET_VARIES);
            shortfall.needs.process = shortfall.needs.process.saturating_add(RESIDENT_SET_VARIES);
            outsize_plan::Error::TooSmall(shortfall)
        }
        outsize_plan::Error::MustFit { lacking, least } => outsize_plan::Error::MustFit {
            lacking: lacking.saturating_add(RESIDENT_SET_VARIES),
            least: least.saturating_add(RESIDENT_SET_VARIES),
        },
        other => other,
    }
}
