//! `outsize shard` and `outsize merge`: a checkpoint written anew as safetensors.

use super::rewritten::{CONFIG, Output, failure, write_weights};
use crate::args::RewriteArgs;
use crate::error::Failure;
use crate::views::output::say;
use crate::views::progress;
use crate::{interrupt, model};
use outsize::checkpoint::{Checkpoint, Dtype, read_object};
use outsize::core::Rewrite;
use outsize::diffuse::PipelineFiles;
use outsize::generate::read_config;
use outsize::lora::LoraAdapter;
use outsize::models::{Rewriting, rewriting};
use std::path::Path;
use std::time::Instant;

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
    let output = Output { out: &args.out, limit, json: args.json, began };
    output.write(&found, &checkpoint, config.as_ref(), |writer, bar| {
        write_weights(&found, &checkpoint, writer, bar)?;
        Ok(None)
    })
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

/// How many files a checkpoint has of which this is one, by its name. Of GGUF's, all are opened.
fn files_of(model: &Path) -> Option<u32> {
    let is_gguf = model.extension().is_some_and(|end| end == "gguf");
    let (_, count) = model.file_stem()?.to_str()?.rsplit_once("-of-")?;
    count.parse().ok().filter(|count| *count > 1 && !is_gguf && model.is_file())
}
