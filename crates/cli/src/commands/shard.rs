//! `outsize shard` and `outsize merge`: a checkpoint written anew as safetensors.

use crate::args::RewriteArgs;
use crate::error::Failure;
use crate::views::output::{print_json, say};
use crate::views::progress;
use crate::{interrupt, model};
use outsize::checkpoint::{Checkpoint, Dtype, ShardWriter, SmallFiles, read_object};
use outsize::core::{Error, Rewrite};
use outsize::diffuse::PipelineFiles;
use outsize::generate::read_config;
use outsize::lora::LoraAdapter;
use outsize::machine::{peak_rss, volume};
use outsize::models::{Rewriting, rewriting};
use outsize::plan::format_size;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

const CONFIG: &str = "config.json";

/// Runs the command: files of at most `limit` bytes.
pub fn shard(args: &RewriteArgs, limit: u64) -> Result<(), Failure> {
    let began = Instant::now();
    let model = &args.model;
    if PipelineFiles::is_at(model) && !model.join(CONFIG).exists() {
        return Err(Failure::usage(format!(
            "{} holds several models, which make pictures together: name the file of weights of one of them",
            model.display()
        )));
    }
    if let Some(count) = files_of(model) {
        say(format!(
            "note: {} is one of {count} files of a checkpoint, and only its tensors are written: give the folder for all",
            model.display()
        ));
    }
    let checkpoint = Checkpoint::open(model)?;
    let folder = checkpoint.folder();
    let config = read_object(&folder.join(CONFIG))?;
    let mut found = rewriting(&checkpoint, config.clone().unwrap_or_default(), args.dtype)?;
    if let Some(adapter) = &args.adapter {
        let model = read_config(folder)?;
        let adapter = LoraAdapter::open(model::adapter_folder(adapter)?, &model)?;
        if adapter.passed_over() > 0 {
            return Err(Failure::usage(format!(
                "--adapter: {} tensors of the adapter are for what sees or hears, which is not \
                 built in: merge it with PEFT",
                adapter.passed_over()
            )));
        }
        found.merge(&model, checkpoint.tensors(), adapter.parts()?)?;
    }
    if args.pack {
        pack(args, &mut found, &checkpoint)?;
    }
    let SmallFiles { mut files, left_out } = SmallFiles::read(folder)?;
    if Some(&found.config) != config.as_ref() && !found.config.is_empty() {
        files.retain(|(name, _)| name != CONFIG);
        files.push((CONFIG.into(), serde_json::to_vec_pretty(&Value::from(found.config))?));
    }

    let specs = found.weights.iter().map(Rewrite::spec).collect();
    let mut writer = ShardWriter::create(&args.out, specs, limit)?;
    let bytes = writer.total_bytes();
    require_room(args, bytes)?;
    for (name, bytes) in &files {
        writer.add_file(name, bytes)?;
    }
    let bar = progress::bytes(bytes, "writing");
    for weight in &found.weights {
        let go_on = |writer: &ShardWriter| {
            bar.set_position(writer.bytes_written());
            !interrupt::asked()
        };
        weight.write(&checkpoint, &mut writer, go_on).map_err(failure)?;
    }
    let shards = writer.shards();
    writer.finish()?;
    bar.finish_and_clear();

    let (seconds, tensors) = (began.elapsed().as_secs_f64(), found.weights.len());
    if !left_out.is_empty() {
        say(format!("note: not copied: {}", left_out.join(", ")));
    }
    if args.json {
        return print_json(&json!({
            "path": args.out, "tensors": tensors, "bytes": bytes, "shards": shards, "not_copied": left_out,
            "peak_rss_bytes": peak_rss(), "seconds": seconds,
        }));
    }
    say(format!(
        "made {} ({tensors} tensors, {} in {shards} {} in {seconds:.1} s)",
        args.out.display(),
        format_size(bytes),
        if shards == 1 { "file" } else { "files" }
    ));
    Ok(())
}

/// Has matrices of bf16 packed.
fn pack(args: &RewriteArgs, found: &mut Rewriting, checkpoint: &Checkpoint) -> Result<(), Failure> {
    if let Some(dtype) = args.dtype.filter(|dtype| *dtype != Dtype::BF16) {
        return Err(Failure::usage(format!(
            "--pack is for bf16, and --dtype says {}: leave one of them out",
            dtype.name().to_lowercase()
        )));
    }
    let bytes = found.weights.iter().map(Rewrite::bytes_to_pack).fold(0, u64::saturating_add);
    let bar = progress::bytes(bytes, "looking at exponents");
    let packed = found.pack(checkpoint, |more| {
        bar.inc(more);
        !interrupt::asked()
    });
    bar.finish_and_clear();
    match packed.map_err(failure)? {
        0 => Err(Failure::usage(format!(
            "--pack: {} has no matrix that becomes bf16 and takes less packed: \
             with --dtype bf16 other floats are rounded to it first",
            args.model.display()
        ))),
        _ => Ok(()),
    }
}

/// What a failed rewriting is for a user.
fn failure(error: Error) -> Failure {
    match error {
        Error::Stopped => Failure::Interrupted,
        error => error.into(),
    }
}

/// How many files a checkpoint has of which this is one, by its name. Of GGUF's, all are opened.
fn files_of(model: &Path) -> Option<u32> {
    let is_gguf = model.extension().is_some_and(|end| end == "gguf");
    let (_, count) = model.file_stem()?.to_str()?.rsplit_once("-of-")?;
    count.parse().ok().filter(|count| *count > 1 && !is_gguf && model.is_file())
}

/// Refuses what does not fit on the disk, before hours are spent on it.
fn require_room(args: &RewriteArgs, bytes: u64) -> Result<(), Failure> {
    let out = std::path::absolute(&args.out).unwrap_or_else(|_| args.out.clone());
    let free = out.parent().and_then(|parent| volume(parent).free);
    match free.filter(|free| free.value < bytes) {
        Some(free) => Err(Failure::Failed(format!(
            "{} needs {}, and {} are free there: make room, write to another disk, or take a smaller --dtype",
            args.out.display(),
            format_size(bytes),
            format_size(free.value)
        ))),
        None => Ok(()),
    }
}
