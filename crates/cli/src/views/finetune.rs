//! The report of a training.

use super::human::seconds;
use outsize::finetune::FinetuneStep;
use outsize::plan::{DeviceMap, format_size};
use serde::Serialize;
use std::path::PathBuf;

/// The result of `outsize finetune --json`. All times in seconds, all sizes in bytes.
#[derive(Serialize, Debug)]
pub struct FinetuneOutput {
    /// The folder of the adapter, or of the checkpoint.
    pub output: PathBuf,
    /// Steps that were made.
    pub steps: usize,
    /// The step from which an interrupted training went on.
    pub resumed: Option<usize>,
    /// The mean cross-entropy of the targets of the last step, before it.
    pub loss: f64,
    /// That of the examples held back, before anything was learned.
    pub eval_loss_before: Option<f64>,
    /// And at the end.
    pub eval_loss: Option<f64>,
    /// Examples that were learned from.
    pub examples: usize,
    /// Values that learned.
    pub parameters: u64,
    /// Tokens of all passes of this process, padding included.
    pub tokens: usize,
    /// From the start of the process.
    pub seconds: f64,
    /// Read from the checkpoint.
    pub bytes_read: u64,
    /// The largest resident set of the process.
    pub peak_rss_bytes: Option<u64>,
    /// Where the model's weights lived.
    pub placement: DeviceMap,
}

impl FinetuneOutput {
    /// A summary in a few lines.
    pub fn summary(&self) -> String {
        let eval = match (self.eval_loss_before, self.eval_loss) {
            (Some(before), Some(after)) => format!(" · eval loss {before:.4} to {after:.4}"),
            (None, Some(after)) => format!(" · eval loss {after:.4}"),
            (_, None) => String::new(),
        };
        let peak = match self.peak_rss_bytes {
            Some(peak) => format!(" · peak memory {}", format_size(peak)),
            None => String::new(),
        };
        format!(
            "wrote {}: {} steps, loss {:.4}{eval}\n{} · read {}{peak}",
            self.output.display(),
            self.steps,
            self.loss,
            seconds(self.seconds),
            format_size(self.bytes_read),
        )
    }
}

/// One line on a step.
pub fn step_line(step: &FinetuneStep) -> String {
    format!(
        "step {} of {} · loss {:.4} · gradients {:.3} · rate {:.2e} · {:.1} tokens/s",
        step.step,
        step.steps,
        step.loss,
        step.grad_norm,
        step.learning_rate,
        step.tokens as f64 / step.seconds.max(1e-9),
    )
}
