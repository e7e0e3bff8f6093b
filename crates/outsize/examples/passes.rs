//! Times passes over prompts, and steps of batches, with a model that is all in memory and has run
//! once: through the library.
//!
//! ```text
//! cargo run --release -p outsize --example passes -- MODEL f32 8,32,128,512 1,2,4,8,16
//! ```
//!
//! prints one JSON object: median seconds by tokens of the prompt, and by rows of the batch.
//! `bench/side_by_side.py` runs it.

use outsize::checkpoint::Checkpoint;
use outsize::core::decide;
use outsize::generate::read_config;
use outsize::models::{
    ActivationDtype, Batch, CacheOptions, DispatchedDecoder, Init, KvCache, Logits,
};
use outsize::{Budget, Options};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

/// Tokens of each text of a batch before it is timed.
const BEFORE: usize = 8;

/// Times that each pass is timed, and one that is long.
const TIMES: usize = 3;
const LONG: usize = 256;

/// Steps of a batch that are timed.
const STEPS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, compute, prompts, batches] = &arguments[..] else {
        return Err(
            "give MODEL, f32 or bf16, lengths of prompts, and sizes of batches: 8,32 1,2,4".into(),
        );
    };
    let compute = match compute.as_str() {
        "f32" => ActivationDtype::F32,
        "bf16" => ActivationDtype::Bf16,
        other => return Err(format!("{other}: activations are multiplied in f32 or bf16").into()),
    };
    let (prompts, batches) = (numbers(prompts)?, numbers(batches)?);
    let folder = Path::new(folder);
    let config = read_config(folder)?;
    let device = burn::tensor::Device::flex();
    let checkpoint = Checkpoint::open(folder)?;
    let options =
        Options { budget: Budget::parse("cpu=1TB")?, ..config.options(checkpoint.tensors()) };
    let tree = config.tree(&folder.to_string_lossy(), checkpoint.tensors())?;
    let map = decide(&tree, &options)?;
    let init = Init { compute, ..Init::new(&device) };
    let _reuse = outsize::kernels::BufferReuse::begin();
    let model = config.dispatch(&init, &checkpoint, &map, &options)?;
    let vocabulary = config.vocab_size() as u32;
    let text = |row: usize, len: usize| -> Vec<u32> {
        (0..len).map(|at| (300 + 7 * (at + 5 * row) as u32) % vocabulary).collect()
    };

    let mut timed_prompts = Vec::new();
    for &tokens in &prompts {
        let mut cache = KvCache::new(config.cache(), &CacheOptions::new(tokens + 1), &device)?;
        let batch = Batch::left_padded(&[text(0, tokens)])?;
        pass(&model, &batch, &mut cache)?;
        let mut seconds = Vec::new();
        for _ in 0..if tokens > LONG { 1 } else { TIMES } {
            cache.clear();
            seconds.push(pass(&model, &batch, &mut cache)?);
        }
        timed_prompts.push((tokens, median(seconds)));
    }
    let mut timed_batches = Vec::new();
    for &rows in &batches {
        let options = CacheOptions { batch: rows, ..CacheOptions::new(BEFORE + STEPS) };
        let mut cache = KvCache::new(config.cache(), &options, &device)?;
        let texts: Vec<_> = (0..rows).map(|row| text(row, BEFORE)).collect();
        pass(&model, &Batch::left_padded(&texts)?, &mut cache)?;
        let step = Batch::left_padded(&(0..rows).map(|row| text(row, 1)).collect::<Vec<_>>())?;
        let mut seconds = Vec::new();
        for _ in 0..STEPS {
            seconds.push(pass(&model, &step, &mut cache)?);
        }
        timed_batches.push((rows, median(seconds)));
    }
    println!(
        "{{\"prefills\": {{{}}}, \"batches\": {{{}}}}}",
        object(&timed_prompts),
        object(&timed_batches)
    );
    Ok(())
}

/// Runs a batch behind what the cache holds, up to its logits, and gives the seconds that it took.
fn pass(
    model: &DispatchedDecoder,
    batch: &Batch,
    cache: &mut KvCache,
) -> Result<f64, Box<dyn Error>> {
    let began = Instant::now();
    let logits = model.forward_batch(batch, cache, Logits::Last)??;
    let logits: Vec<f32> = logits.into_data().try_to_vec().map_err(|error| format!("{error:?}"))?;
    match logits.iter().all(|value| value.is_finite()) {
        true => Ok(began.elapsed().as_secs_f64()),
        false => Err("the model gave logits that are no numbers".into()),
    }
}

/// Numbers with commas between them, or none.
fn numbers(text: &str) -> Result<Vec<usize>, Box<dyn Error>> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts
        .map(|part| match part.trim().parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{part}: write numbers above 0 with commas between them").into()),
        })
        .collect()
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn object(of: &[(usize, f64)]) -> String {
    let pairs = of.iter().map(|(key, value)| format!("\"{key}\": {value}"));
    pairs.collect::<Vec<_>>().join(", ")
}
