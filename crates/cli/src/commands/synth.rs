//! `outsize synth`: a checkpoint of random weights.

use crate::args::{SynthArgs, SynthDtype};
use crate::error::Failure;
use crate::interrupt;
use crate::views::progress;
use outsize::checkpoint::{Dtype, ShardWriter, TensorSpec};
use outsize::generate::{byte_level_tokenizer, byte_level_tokenizer_config};
use outsize::kernels::cast;
use outsize::models::{ModelConfig, RandomWeights, presets};
use outsize::plan::{format_size, parse_size};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Values that are made and written at a time.
const CHUNK: usize = 1 << 22;

/// Runs the command.
pub fn synth(args: &SynthArgs) -> Result<(), Failure> {
    let limit = parse_size(&args.max_shard_size)
        .map_err(|error| Failure::usage(format!("--max-shard-size: {error}")))?;
    let text = config_text(&args.config)?;
    let began = Instant::now();
    let bytes = make(&text, &args.out, args.dtype, args.seed, limit)?;
    let seconds = began.elapsed().as_secs_f64();
    if args.json {
        println!(
            "{}",
            serde_json::json!({ "path": args.out, "bytes": bytes, "seconds": seconds })
        );
    } else {
        eprintln!(
            "made {} ({} in {seconds:.1} s)",
            args.out.display(),
            format_size(bytes)
        );
    }
    Ok(())
}

/// The text of a preset's, a file's or a folder's config.json.
fn config_text(name: &str) -> Result<String, Failure> {
    if let Ok(text) = presets::config(name) {
        return Ok(text.to_string());
    }
    let mut path = PathBuf::from(name);
    if path.is_dir() {
        path.push("config.json");
    }
    if !path.is_file() {
        let known: Vec<_> = presets::names().collect();
        return Err(Failure::usage(format!(
            "{name} is neither a preset ({}) nor a config.json",
            known.join(", ")
        )));
    }
    std::fs::read_to_string(&path)
        .map_err(|error| Failure::Failed(format!("cannot read {}: {error}", path.display())))
}

/// Makes the checkpoint in `out`; returns the bytes of its weights.
pub fn make(
    config_text: &str,
    out: &Path,
    dtype: SynthDtype,
    seed: u64,
    limit: u64,
) -> Result<u64, Failure> {
    let config = ModelConfig::from_json(config_text)?;
    let stored = match dtype {
        SynthDtype::F32 => Dtype::F32,
        SynthDtype::F16 => Dtype::F16,
        SynthDtype::Bf16 => Dtype::BF16,
    };
    let tensors = config.weights();
    let specs = tensors
        .iter()
        .map(|tensor| TensorSpec::new(&tensor.name, stored, tensor.shape.clone()))
        .collect();
    let mut writer = ShardWriter::create(out, specs, limit)?;
    writer.set_total_parameters(config.parameter_count());
    writer.add_file("config.json", with_dtype(config_text, dtype)?.as_bytes())?;
    writer.add_file(
        "tokenizer.json",
        byte_level_tokenizer(config.vocab_size())?.as_bytes(),
    )?;
    writer.add_file(
        "tokenizer_config.json",
        byte_level_tokenizer_config(config.vocab_size())?.as_bytes(),
    )?;
    let bar = progress::bytes(writer.total_bytes(), "writing");
    let random = RandomWeights::new(seed);
    let mut values = vec![0.0; CHUNK];
    let mut bytes = Vec::with_capacity(CHUNK * stored.size());
    for tensor in &tensors {
        let mut at = 0;
        while at < tensor.elements() {
            interrupt::check()?;
            let values = &mut values[..CHUNK.min((tensor.elements() - at) as usize)];
            random.fill(tensor, at, values);
            encode(values, dtype, &mut bytes);
            writer.write(&tensor.name, &bytes)?;
            at += values.len() as u64;
            bar.set_position(writer.bytes_written());
        }
    }
    let total = writer.total_bytes();
    writer.finish()?;
    bar.finish_and_clear();
    Ok(total)
}

/// The configuration with the type that the weights really have, so that other software reads them so.
fn with_dtype(text: &str, dtype: SynthDtype) -> Result<String, Failure> {
    let mut config: Value = serde_json::from_str(text)?;
    let name = match dtype {
        SynthDtype::F32 => "float32",
        SynthDtype::F16 => "float16",
        SynthDtype::Bf16 => "bfloat16",
    };
    if let Some(fields) = config.as_object_mut() {
        fields.remove("dtype");
        fields.insert("torch_dtype".to_string(), name.into());
    }
    Ok(serde_json::to_string_pretty(&config)?)
}

/// The values in the type of the file, little endian.
fn encode(values: &[f32], dtype: SynthDtype, bytes: &mut Vec<u8>) {
    bytes.clear();
    match dtype {
        SynthDtype::F32 => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        SynthDtype::F16 => {
            let mut half = vec![Default::default(); values.len()];
            cast::f32_to_f16(values, &mut half);
            bytes.extend(half.iter().flat_map(|value| value.to_le_bytes()));
        }
        SynthDtype::Bf16 => {
            let mut half = vec![Default::default(); values.len()];
            cast::f32_to_bf16(values, &mut half);
            bytes.extend(half.iter().flat_map(|value| value.to_le_bytes()));
        }
    }
}
