//! A checkpoint on its way to a new folder.

use crate::error::Failure;
use crate::interrupt;
use crate::views::output::{print_json, say};
use crate::views::progress;
use indicatif::ProgressBar;
use outsize::checkpoint::{Checkpoint, ShardWriter, SmallFiles};
use outsize::core::{Error, Rewrite};
use outsize::machine::{peak_rss, volume};
use outsize::models::Rewriting;
use outsize::plan::format_size;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::Instant;

pub const CONFIG: &str = "config.json";

/// Where a checkpoint is written.
pub struct Output<'a> {
    /// The folder to make.
    pub out: &'a Path,
    /// The most bytes of a file.
    pub limit: u64,
    pub json: bool,
    pub began: Instant,
}

/// What is to be said of the weights besides: a line, and fields of the JSON object.
pub struct Remark {
    pub line: String,
    pub fields: Map<String, Value>,
}

impl Output<'_> {
    /// Writes the checkpoint, whose `config.json` was that one: `weights` writes all of its
    /// weights.
    pub fn write(
        &self,
        found: &Rewriting,
        checkpoint: &Checkpoint,
        config: Option<&Map<String, Value>>,
        weights: impl FnOnce(&mut ShardWriter, &ProgressBar) -> Result<Option<Remark>, Failure>,
    ) -> Result<(), Failure> {
        let SmallFiles { mut files, left_out } = SmallFiles::read(checkpoint.folder())?;
        if config.is_some_and(|config| *config != found.config) {
            files.retain(|(name, _)| name != CONFIG);
            let config = Value::from(found.config.clone());
            files.push((CONFIG.into(), serde_json::to_vec_pretty(&config)?));
        }
        let specs: Vec<_> = found.weights.iter().flat_map(Rewrite::specs).collect();
        let tensors = specs.len();
        let mut writer = ShardWriter::create(self.out, specs, self.limit)?;
        let bytes = writer.total_bytes();
        self.require_room(bytes)?;
        for (name, bytes) in &files {
            writer.add_file(name, bytes)?;
        }
        let bar = progress::bytes(bytes, "writing");
        let remark = weights(&mut writer, &bar)?;
        let shards = writer.shards();
        writer.finish()?;
        bar.finish_and_clear();

        let seconds = self.began.elapsed().as_secs_f64();
        if !left_out.is_empty() {
            say(format!("note: not copied: {}", left_out.join(", ")));
        }
        if self.json {
            let mut object = json!({
                "path": self.out, "tensors": tensors, "bytes": bytes, "shards": shards, "not_copied": left_out,
                "peak_rss_bytes": peak_rss(), "seconds": seconds,
            });
            if let (Some(object), Some(remark)) = (object.as_object_mut(), remark) {
                object.extend(remark.fields);
            }
            return print_json(&object);
        }
        say(format!(
            "made {} ({tensors} tensors, {} in {shards} {} in {seconds:.1} s)",
            self.out.display(),
            format_size(bytes),
            if shards == 1 { "file" } else { "files" }
        ));
        if let Some(Remark { line, .. }) = remark {
            say(line);
        }
        Ok(())
    }

    /// Refuses what does not fit on the disk, before hours are spent on it.
    fn require_room(&self, bytes: u64) -> Result<(), Failure> {
        let out = std::path::absolute(self.out).unwrap_or_else(|_| self.out.to_owned());
        let free = out.parent().and_then(|parent| volume(parent).free);
        match free.filter(|free| free.value < bytes) {
            Some(free) => Err(Failure::Failed(format!(
                "{} needs {}, and {} are free there: make room, write to another disk, or take a smaller --dtype",
                self.out.display(),
                format_size(bytes),
                format_size(free.value)
            ))),
            None => Ok(()),
        }
    }
}

/// Writes weights as they become by themselves.
pub fn write_weights(
    found: &Rewriting,
    checkpoint: &Checkpoint,
    writer: &mut ShardWriter,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let mut weights = found.weights.iter();
    weights.try_for_each(|weight| {
        weight.write(checkpoint, writer, |writer| go_on(writer, bar)).map_err(failure)
    })
}

/// Shows what was written; false once the user wants the work to end.
pub fn go_on(writer: &ShardWriter, bar: &ProgressBar) -> bool {
    bar.set_position(writer.bytes_written());
    !interrupt::asked()
}

/// What a failed rewriting is for a user.
pub fn failure(error: Error) -> Failure {
    match error {
        Error::Stopped => Failure::Interrupted,
        error => error.into(),
    }
}
