//! `outsize synth`: a checkpoint of random weights.

use super::random_values::write_values;
use super::synth_pipeline;
use crate::args::{SynthArgs, SynthBlocks, SynthDtype};
use crate::error::Failure;
use crate::interrupt;
use crate::views::output::{print_json, say};
use crate::views::progress;
use outsize::checkpoint::{IntegerWidth, ShardWriter, StorageFormat, TensorSpec, read_text};
use outsize::generate::{byte_level_tokenizer, byte_level_tokenizer_config};
use outsize::kernels::BlockWeight;
use outsize::models::{
    IntegerGroups, ModelConfig, RANDOM_BLOCK, RandomWeights, WeightKind, WeightSpec,
    compressed_integers, expert_table, presets,
};
use outsize::plan::format_size;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The most bytes of a config.json.
const CONFIG_LIMIT: u64 = 16 << 20;

/// Runs the command.
pub fn synth(args: &SynthArgs) -> Result<(), Failure> {
    let began = Instant::now();
    let bytes = match synth_pipeline::preset(&args.config, args.dtype)? {
        Some(preset) => synth_pipeline::make(preset, &args.out, args.dtype.stored, args.seed)?,
        None => {
            let text = config_text(&args.config)?;
            make(&text, &args.out, args.dtype, args.seed, args.max_shard_size)?
        }
    };
    let seconds = began.elapsed().as_secs_f64();
    if args.json {
        return print_json(&json!({ "path": args.out, "bytes": bytes, "seconds": seconds }));
    }
    say(format!("made {} ({} in {seconds:.1} s)", args.out.display(), format_size(bytes)));
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
    read_text(&path, CONFIG_LIMIT)
        .map_err(|error| Failure::Failed(format!("cannot read {}: {error}", path.display())))
}

/// Who speaks, what is said, and the end, so that a made model can be talked with and learn from
/// conversations.
const CHAT_TEMPLATE: &str = "\
{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/// Makes the checkpoint in `out`; returns the bytes of its weights.
pub fn make(
    config_text: &str,
    out: &Path,
    dtype: SynthDtype,
    seed: u64,
    limit: u64,
) -> Result<u64, Failure> {
    let config_text = with_dtype(config_text, dtype)?;
    let config = ModelConfig::from_json(&config_text)?;
    let stored = dtype.stored;
    let specs = (config.tensors(stored).into_iter())
        .map(|(name, dtype, shape)| TensorSpec::new(name, dtype, shape))
        .collect();
    let mut writer = ShardWriter::create(out, specs, limit)?;
    writer.set_total_parameters(config.parameter_count());
    writer.add_file("config.json", config_text.as_bytes())?;
    writer.add_file("tokenizer.json", byte_level_tokenizer(config.vocab_size())?.as_bytes())?;
    writer.add_file(
        "tokenizer_config.json",
        byte_level_tokenizer_config(config.vocab_size())?.as_bytes(),
    )?;
    writer.add_file("chat_template.jinja", CHAT_TEMPLATE.as_bytes())?;
    let bar = progress::bytes(writer.total_bytes(), "writing");
    let random = RandomWeights::new(seed);
    for (name, weights) in &config.stored_weights() {
        let quantization = config.quantization.as_ref();
        if let Some(mut format) = quantization.and_then(|config| config.format_of(&weights[0])) {
            if format.as_integers().is_some() {
                format = format.with_scales(stored);
            }
            let names = format.tensors(name, [0, 0]).into_iter().map(|(name, ..)| name);
            let names: Vec<_> = names.collect();
            let mut scales = Vec::new();
            for tensor in weights {
                write_blocks(&mut writer, &names[0], format, tensor, &random, &mut scales)?;
                bar.set_position(writer.bytes_written());
            }
            if let Some(name) = names.get(1) {
                writer.write(name, &scales)?;
            }
            if let Some(name) = format.shape_name(&names[0]) {
                let shape = weights[0].shape.iter().flat_map(|n| (*n as i64).to_le_bytes());
                writer.write(&name, &shape.collect::<Vec<_>>())?;
            }
            continue;
        }
        let routed = config.routed(".experts.");
        if let (WeightKind::ExpertTable, Some(routed)) = (weights[0].kind, routed) {
            for tensor in weights {
                let table = expert_table(tensor, routed.experts as usize);
                writer.write(name, &table.flat_map(i64::to_le_bytes).collect::<Vec<_>>())?;
            }
            continue;
        }
        for tensor in weights {
            write_values(&random, tensor, stored, |bytes| {
                writer.write(name, bytes)?;
                bar.set_position(writer.bytes_written());
                Ok(())
            })?;
        }
    }
    let total = writer.total_bytes();
    writer.finish()?;
    bar.finish_and_clear();
    Ok(total)
}

/// Rows of a weight in blocks that are made together, at least.
const ROWS: usize = 128;

/// Writes the elements of a weight in blocks, whole rows of blocks at a time, and adds their scales
/// to others.
fn write_blocks(
    writer: &mut ShardWriter,
    name: &str,
    format: StorageFormat,
    tensor: &WeightSpec,
    random: &RandomWeights,
    scales: &mut Vec<u8>,
) -> Result<(), Failure> {
    let unknown = || {
        let (name, width) = (&tensor.name, format.scales.map_or(1, |grid| grid.block[1]));
        let shape = &tensor.shape;
        Failure::Failed(format!(
            "{name}: a weight of shape {shape:?} cannot be stored in blocks of {width} columns"
        ))
    };
    let (Some(grid), &[rows, columns]) = (format.scales, &tensor.shape[..]) else {
        return Err(unknown());
    };
    let mut values = Vec::new();
    let together = ROWS.next_multiple_of(grid.block[0]);
    for start in (0..rows).step_by(together) {
        interrupt::check()?;
        let height = together.min(rows - start);
        // Random values are made from the beginning of a block on.
        let skipped = start * columns % RANDOM_BLOCK;
        values.resize(skipped + height * columns, 0.0);
        random.fill(tensor, (start * columns - skipped) as u64, &mut values);
        let some = BlockWeight::quantize(format, [height, columns], &values[skipped..]);
        let some = some.ok_or_else(unknown)?;
        writer.write(name, some.data())?;
        scales.extend_from_slice(some.scales());
    }
    Ok(())
}

/// How compressed-tensors says that linear layers are integers.
fn integers(width: IntegerWidth, group: usize) -> Value {
    compressed_integers(IntegerGroups { width, group }, vec!["lm_head".to_owned()])
}

/// The configuration with the dtype of the weights, for other software.
fn with_dtype(text: &str, dtype: SynthDtype) -> Result<String, Failure> {
    let mut config: Value = serde_json::from_str(text)?;
    if let Some(fields) = config.as_object_mut() {
        fields.remove("dtype");
        fields.remove("quantization_config");
        let is_gpt_oss = fields.get("model_type") == Some(&"gpt_oss".into());
        let blocks = match dtype.blocks {
            None => None,
            Some(SynthBlocks::Fp8 | SynthBlocks::Int4 | SynthBlocks::Int8) if is_gpt_oss => {
                let advice =
                    "--dtype: not for models of the type gpt_oss; choose mxfp4, bf16, f16 or f32";
                return Err(Failure::usage(advice));
            }
            Some(SynthBlocks::Int4) => Some(integers(IntegerWidth::U4, 128)),
            Some(SynthBlocks::Int8) => Some(integers(IntegerWidth::U8, 0)),
            Some(SynthBlocks::Fp8) => Some(json!({
                "activation_scheme": "dynamic",
                "fmt": "e4m3",
                "quant_method": "fp8",
                "weight_block_size": [128, 128],
            })),
            Some(SynthBlocks::Mxfp4) => {
                if !is_gpt_oss {
                    let advice = "--dtype mxfp4: only for models of the type gpt_oss; choose fp8, int4, int8, bf16, f16 or f32";
                    return Err(Failure::usage(advice));
                }
                Some(json!({
                    "modules_to_not_convert": [
                        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
                    ],
                    "quant_method": "mxfp4",
                }))
            }
        };
        if let Some(blocks) = blocks {
            fields.insert("quantization_config".to_string(), blocks);
        }
        fields.insert("torch_dtype".to_string(), dtype.torch_dtype.into());
    }
    Ok(serde_json::to_string_pretty(&config)?)
}
