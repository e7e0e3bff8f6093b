//! The table of `outsize list`.

use super::human;
use super::table::Table;
use super::text::{plain, wrapped};
use outsize::plan::format_size;
use serde::Serialize;
use std::path::PathBuf;

/// The result of `outsize list --json`. All sizes in bytes.
#[derive(Debug, Serialize)]
pub struct ListOutput {
    /// The Hub's cache.
    pub cache: PathBuf,
    /// Tokens of the context that was planned for, or as many as the model can have.
    pub context: usize,
    /// Main memory that may be used now; none if it is not known.
    pub max_memory: Option<u64>,
    /// In the order of their names.
    pub models: Vec<ListedModel>,
}

/// A model in the cache.
#[derive(Debug, Serialize)]
pub struct ListedModel {
    /// Its name, with a revision other than `main`.
    pub model: String,
    /// The commit that is there.
    pub commit: String,
    /// Where it is.
    pub folder: PathBuf,
    /// Its files.
    pub bytes: u64,
    /// `model_type` in its config.json.
    pub architecture: Option<String>,
    /// What each token, or step of a picture, would read from the disk, zero if all stays in
    /// memory; none if it cannot run.
    pub streamed_bytes: Option<u64>,
    /// How long a token is predicted to take.
    pub seconds_per_token: Option<f64>,
    /// How long a picture of 50 steps is predicted to take.
    pub seconds_per_picture: Option<f64>,
    /// Why it cannot run.
    pub problem: Option<String>,
}

impl ListOutput {
    /// One line a model, and what the lines mean.
    pub fn text(&self, width: usize) -> String {
        let cache = self.cache.display().to_string();
        if self.models.is_empty() {
            return format!(
                "no models in {}: download one with `outsize fetch org/name`\n",
                plain(&cache)
            );
        }
        let mut table = Table::default();
        for model in &self.models {
            let speed = match (model.seconds_per_token, model.seconds_per_picture) {
                (Some(token), _) => {
                    Some(("token", format!("{} tokens/s", human::rate(1.0 / token))))
                }
                (_, Some(picture)) => {
                    Some(("step", format!("{} a picture", human::seconds(picture))))
                }
                (None, None) => None,
            };
            let runs = match (model.streamed_bytes, speed, &model.problem) {
                (Some(0), Some((_, speed)), _) => format!("fits in memory, {speed}"),
                (Some(bytes), Some((unit, speed)), _) => {
                    format!("streams {} a {unit}, {speed}", format_size(bytes))
                }
                (.., problem) => {
                    format!("does not run: {}", problem.as_deref().unwrap_or("interrupted"))
                }
            };
            let architecture = model.architecture.as_deref().unwrap_or("unknown");
            table.row([
                plain(&model.model),
                format_size(model.bytes),
                plain(architecture),
                plain(&runs),
            ]);
        }
        table.align_right(&[1]);
        let memory = self.max_memory.map_or_else(|| "the memory there is".to_owned(), format_size);
        let note = format!(
            "in {}; predicted for {} tokens of context within {memory}, what is available now",
            plain(&cache),
            self.context
        );
        table.text(width) + "\n" + &wrapped(note.split(' '), width, width).join("\n") + "\n"
    }
}
