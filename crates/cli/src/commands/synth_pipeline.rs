//! `outsize synth` of pipelines: a folder for each part, of random weights.

use super::random_values::write_values;
use crate::args::SynthDtype;
use crate::error::Failure;
use crate::views::progress;
use outsize::checkpoint::{Dtype, FileWriter, TensorSpec, write_file};
use outsize::diffuse::PipelinePreset;
use outsize::models::RandomWeights;
use std::fs;
use std::path::Path;

/// The pipeline of that name, if there is one.
pub fn preset(name: &str, dtype: SynthDtype) -> Result<Option<PipelinePreset>, Failure> {
    let preset = PipelinePreset::named(name, dtype.stored).transpose()?;
    match preset {
        Some(_) if dtype.blocks.is_some() => {
            Err(Failure::usage(format!("--dtype fp8: not for {name}: choose f32, f16 or bf16")))
        }
        preset => Ok(preset),
    }
}

/// Makes the pipeline in `out`; returns the bytes of its weights.
pub fn make(preset: PipelinePreset, out: &Path, dtype: Dtype, seed: u64) -> Result<u64, Failure> {
    if out.symlink_metadata().is_ok() {
        return Err(Failure::Failed(format!("{} exists: name a folder to make", out.display())));
    }
    let mut name = std::ffi::OsString::from(".");
    name.push(out.file_name().unwrap_or_default());
    name.push(format!(".partial-{}", std::process::id()));
    // Beside its place, so that it appears complete or not at all.
    let partial = out.with_file_name(name);
    let writing = |error| Failure::writing(out.display(), error);
    let made = fs::create_dir_all(&partial)
        .map_err(writing)
        .and_then(|()| fill(preset, &partial, dtype, seed))
        .and_then(|bytes| fs::rename(&partial, out).map(|()| bytes).map_err(writing));
    if made.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    made
}

fn fill(preset: PipelinePreset, folder: &Path, dtype: Dtype, seed: u64) -> Result<u64, Failure> {
    let size = |tensor: &TensorSpec| tensor.shape.iter().product::<usize>() * dtype.size();
    let total: usize = preset.parts.iter().flat_map(|part| &part.tensors).map(size).sum();
    let bar = progress::bytes(total as u64, "writing");
    let random = RandomWeights::new(seed);
    let made = |path: &Path| {
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent).map_err(|error| Failure::writing(parent.display(), error))
    };
    for part in preset.parts {
        let place = folder.join(part.folder);
        made(&place.join(part.file))?;
        write_file(place.join("config.json"), part.config.as_bytes())?;
        let mut writer = FileWriter::create(place.join(part.file), part.tensors)?;
        for weight in &part.weights {
            write_values(&random, weight, dtype, |bytes| {
                writer.write(&weight.name, bytes)?;
                bar.inc(bytes.len() as u64);
                Ok(())
            })?;
        }
        writer.finish()?;
    }
    for (name, text) in preset.files {
        made(&folder.join(&name))?;
        write_file(folder.join(name), text.as_bytes())?;
    }
    bar.finish_and_clear();
    Ok(total as u64)
}
