//! Runs a denoiser, that of Stable Diffusion (XL too) or of FLUX.1, or the decoder of an
//! autoencoder within a budget, and says how long passes take and what memory the process took at
//! most.
//!
//! ```text
//! cargo run --release -p outsize-models --example picture_passes -- FOLDER/unet 800MB 64 64
//! ```
//!
//! The folder has a `config.json` and one file of weights; the numbers are rows and columns of the
//! latents (packed ones of FLUX.1). Behind them may stand `f32` or `bf16`, what is computed in, and
//! then how many passes there are, or `-`: one for each line that comes in. With a budget as
//! `gpu0=800MB,cpu=2GB`, the GPU computes.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use burn::tensor::{DType, Device, Tensor};
use outsize_checkpoint::Checkpoint;
use outsize_core::{
    Dispatched, Options, PROCESS_BYTES, gpu, gpu_overhead, memory_overhead, upload_bytes,
};
use outsize_models::arch::{
    AddedConditions, AutoencoderKl, FluxTransformer2dModel, TIME_IDS, Unet2dConditionModel,
};
use outsize_models::{ActivationDtype, Component, ComponentConfig, Init, PictureSize};
use outsize_plan::{Budget, Tier};

/// Tokens of a text of FLUX.1.
const FLUX_TOKENS: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let _reuse = outsize_kernels::BufferReuse::begin();
    outsize_stream::return_freed_memory();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, memory, rows, columns, more @ ..] = &arguments[..] else {
        return Err("give a folder, a budget as 800MB, rows and columns".into());
    };
    let compute = match more.first().map_or("f32", String::as_str) {
        "f32" => ActivationDtype::F32,
        "bf16" => ActivationDtype::Bf16,
        other => return Err(format!("`{other}` is neither f32 nor bf16").into()),
    };
    let passes = match more.get(1).map(String::as_str) {
        None => Some(2),
        Some("-") => None,
        Some(count) => Some(count.parse()?),
    };
    let folder = Path::new(folder);
    let size = PictureSize { batch: 1, rows: rows.parse()?, columns: columns.parse()? };
    let text = std::fs::read_to_string(folder.join("config.json"))?;
    let budget = match memory.contains('=') {
        true => Budget::parse(memory)?,
        false => Budget::parse(&format!("cpu={memory}"))?,
    };
    let noise = |sides| Tensor::<4>::ones(sides, (&Device::flex(), DType::F32)) * 0.1;
    let threads = std::thread::available_parallelism()?.get();
    if text.contains("AutoencoderKL") {
        let config = ComponentConfig::<AutoencoderKl>::from_json(&text)?;
        let held = config.model().activation_bytes(size, threads);
        let on_gpu = config.model().band_activation_bytes(size);
        let model = load(&config, folder, (&budget, compute), [held, on_gpu], size.pixels())?;
        let latents = noise([1, size.rows, size.columns, config.config.latent_channels]);
        return time(passes, &budget, || {
            model.run(|model| model.decode(latents.clone(), drop))?;
            Ok(model.stats().bytes_read)
        });
    }
    if text.contains("FluxTransformer2DModel") {
        let config = ComponentConfig::<FluxTransformer2dModel>::from_json(&text)?;
        let held = config.model().activation_bytes(size, FLUX_TOKENS, threads);
        let rows = size.pixels() + FLUX_TOKENS as u64;
        let model = load(&config, folder, (&budget, compute), [held; 2], rows)?;
        let (sides, fields) = ([size.rows, size.columns], &config.config);
        let latents = noise([1, 1, sides[0] * sides[1], fields.in_channels]).squeeze_dim::<3>(0);
        let context = noise([1, 1, FLUX_TOKENS, fields.joint_attention_dim]).squeeze_dim::<3>(0);
        let pooled = noise([1, 1, 1, fields.pooled_projection_dim]).reshape([1, -1]);
        return time(passes, &budget, || {
            let inputs = (latents.clone(), pooled.clone(), context.clone());
            model.run(|model| {
                drop(model.forward(inputs.0, &[sides], 500.0, Some(3.5), inputs.1, inputs.2));
            })?;
            Ok(model.stats().bytes_read)
        });
    }
    let config = ComponentConfig::<Unet2dConditionModel>::from_json(&text)?;
    let size = PictureSize { batch: 2, ..size };
    let held = config.model().activation_bytes(size, 77, threads);
    let model = load(&config, folder, (&budget, compute), [held; 2], size.pixels())?;
    let latents = noise([2, size.rows, size.columns, config.config.in_channels]);
    let context = noise([2, 77, config.config.cross_attention_dim, 1]).squeeze_dim::<3>(3);
    let side = 8.0 * size.rows as f32;
    let added = config.config.addition.map(|addition| {
        let width = addition.inputs - TIME_IDS * addition.size_channels;
        let text_embeds = noise([2, width, 1, 1]).reshape([2, width]);
        AddedConditions { text_embeds, time_ids: [side, side, 0.0, 0.0, side, side] }
    });
    time(passes, &budget, || {
        let (latents, context) = (latents.clone(), context.clone());
        model
            .run(|model| drop(model.forward(latents, 500.0, Some(8.5), context, added.as_ref())))?;
        Ok(model.stats().bytes_read)
    })
}

fn load<C: Component>(
    config: &ComponentConfig<C>,
    folder: &Path,
    (budget, compute): (&Budget, ActivationDtype),
    [activations, on_gpu]: [u64; 2],
    rows: u64,
) -> Result<Dispatched<C>, Box<dyn Error>> {
    let mut files = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let file = files.find(|path| path.extension().is_some_and(|end| end == "safetensors"));
    let checkpoint = Checkpoint::open(file.ok_or("the folder has no weights")?)?;
    let packed = config.packed_bytes(compute, rows);
    let mut options = Options {
        budget: budget.clone(),
        gpu: gpu_of(budget),
        gpu_activations: Some(gpu_overhead(on_gpu)),
        needs: memory_overhead(PROCESS_BYTES, activations + packed),
        ..config.options(checkpoint.tensors())
    };
    options.needs.process += upload_bytes(budget, options.tile_bytes);
    let tree = config.tree("the checkpoint", checkpoint.tensors())?;
    let map = outsize_plan::infer(&tree, &options.budget, &options.plan())?;
    println!(
        "{} parameters, {} MB of activations, {} MB streamed",
        config.parameter_count(),
        (activations + packed) / 1_000_000,
        map.streamed_bytes() / 1_000_000
    );
    for held in map.tiers() {
        println!("{held:?}");
    }
    let init = Init { device: Device::flex(), compute };
    Ok(config.dispatch(&init, &checkpoint, &map, &options)?)
}

/// The GPU that is in the budget.
fn gpu_of(budget: &Budget) -> Option<usize> {
    budget.iter().find_map(|(tier, _)| match tier {
        Tier::Gpu(number) => Some(number),
        _ => None,
    })
}

/// Makes passes, which say how many bytes were read so far.
fn time(
    passes: Option<usize>,
    budget: &Budget,
    pass: impl Fn() -> Result<u64, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let (mut lines, mut before, mut done) = (std::io::stdin().lines(), 0, 0);
    while passes.map_or_else(|| lines.next().is_some(), |passes| done < passes) {
        let start = Instant::now();
        let read = pass()?;
        let seconds = start.elapsed().as_secs_f64();
        println!("{seconds:.3} s, {} MB read", (read - before) / 1_000_000);
        if let Some(number) = gpu_of(budget) {
            let held = gpu(number)?.device.memory_pool_usage().ok_or("its pools are not known")?;
            println!("{} MB in the GPU's pools", held.bytes_reserved.div_ceil(1_000_000));
        }
        (before, done) = (read, done + 1);
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    status.lines().filter(|line| line.starts_with("VmHWM")).for_each(|line| println!("{line}"));
    Ok(())
}
