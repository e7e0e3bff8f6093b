//! The report of a run: the object that `--json` prints, and the summary.

use super::human::seconds;
use super::memory::MemoryHeld;
use super::output::{picture, say, say_wrapped};
use outsize::bench::RepeatedRun;
use outsize::generate::{DraftStats, Finish};
use outsize::machine::Provenance;
use outsize::plan::{DeviceMap, Prediction};
use serde::Serialize;

/// The result of `outsize run --json`. All times in seconds, all sizes in bytes.
#[derive(Serialize, Debug)]
pub struct RunOutput {
    /// The generated text, up to a stop string; the tokens' numbers if the prompt was given by ids
    /// and there is no tokenizer.
    pub text: String,
    /// Tokens of the prompt, special ones included.
    pub prompt_tokens: usize,
    /// The generated tokens: with the one that ended the text, or those that spell the stop string.
    pub tokens: Vec<u32>,
    /// Why generation ended: eos (a token that ends the text), stop_string, length (as many tokens
    /// as asked for), context (it is full) or stopped (an interrupt).
    pub finish: Finish,
    /// The stop string that ended the text.
    pub stop_string: Option<String>,
    /// Tokens that the context holds.
    pub context: usize,
    /// Whether the text could have gone on with its oldest tokens forgotten.
    #[serde(skip)]
    pub can_slide: bool,
    /// The type of the KV cache: f32, bf16 or f16. Its bytes are in the placement's needs.
    pub kv_dtype: &'static str,
    /// From opening the checkpoint until the first pass could begin: every parameter has its
    /// handle, the KV cache exists, and the readers are started.
    pub load_seconds: f64,
    /// The pass over the prompt.
    pub prefill_seconds: f64,
    /// From the start of the process to the first token.
    pub first_token_seconds: f64,
    /// Median over the generated tokens but the first, or their mean if tokens were drafted; none
    /// if there was one only.
    pub seconds_per_token: Option<f64>,
    /// How many drafts were right, if tokens were drafted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drafts: Option<DraftStats>,
    /// All generated tokens but the first together.
    pub decode_seconds: f64,
    /// Read from the checkpoint.
    pub bytes_read: u64,
    /// Of these, by the first token: weights that stay and what was read ahead included.
    pub prefill_bytes_read: u64,
    /// And after it.
    pub decode_bytes_read: u64,
    /// Read per second while decoding (over the prompt, if nothing was decoded).
    pub link_bytes_per_second: f64,
    /// That, as a share of the disk's speed measured right after the run; none if nothing was
    /// streamed.
    pub link_utilisation: Option<f64>,
    /// The disk's speed measured right after the run: direct, sequential reads.
    pub disk_bytes_per_second: Option<f64>,
    /// Time that computing waited for weights while decoding.
    pub waiting_for_data_seconds: f64,
    /// That, as a share of all the time of decoding: close to 1 where the disk is the limit and
    /// computing hides behind it.
    pub waiting_for_data_share: Option<f64>,
    /// Reads that were in flight on average while decoding.
    pub reads_in_flight: Option<f64>,
    /// Bytes of one read on average while decoding; none if nothing was read.
    pub bytes_per_read: Option<f64>,
    /// Time that reading waited for memory while decoding.
    pub waiting_for_buffers_seconds: f64,
    #[serde(flatten)]
    pub memory: MemoryHeld,
    /// Where everything lived.
    pub placement: DeviceMap,
    /// How fast it was predicted to be.
    pub prediction: Prediction,
    /// By how much the predicted seconds per token are more than the measured ones, as a share of
    /// these; negative if they are less. None if there was one token only.
    pub prediction_error: Option<f64>,
    /// Where the figures of the prediction came from.
    pub figures: Provenance,
    /// The prompt run again, as `outsize bench` asks for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompt_again: Vec<RepeatedRun>,
}

impl RunOutput {
    /// A summary in a few lines.
    pub fn summary(&self) -> String {
        let size = outsize::plan::format_size;
        let rate = match self.seconds_per_token {
            Some(seconds) => format!("{:.2} tokens/s ({seconds:.3} s each)", 1.0 / seconds),
            None if self.tokens.is_empty() => "no token".to_string(),
            None => "one token".to_string(),
        };
        let link = match (self.link_utilisation, self.disk_bytes_per_second) {
            (Some(share), Some(disk)) => format!(
                " at {}/s: {:.0} % of the disk's {}/s",
                size(self.link_bytes_per_second as u64),
                share * 100.0,
                size(disk as u64)
            ),
            _ => String::new(),
        };
        let outcome = match (self.seconds_per_token, self.prediction_error) {
            (Some(measured), Some(error)) => format!(
                "\n{} per token, predicted {}: {:.0} % off",
                seconds(measured),
                seconds(self.prediction.decode.seconds),
                error.abs() * 100.0
            ),
            _ => String::new(),
        };
        format!(
            "{rate} · prompt {:.2} s · loaded in {:.2} s{}\nread {}{link}{}{outcome}",
            self.prefill_seconds,
            self.load_seconds,
            self.drafts.map_or_else(String::new, |stats| format!("\n{}", drafted(stats))),
            size(self.bytes_read),
            self.memory,
        )
    }
}

/// How many drafts were right.
pub fn drafted(stats: DraftStats) -> String {
    let DraftStats { passes, drafted, accepted } = stats;
    let tokens = (passes + accepted) as f64 / passes.max(1) as f64;
    format!("{tokens:.1} tokens a pass: {accepted} of {drafted} guesses were right")
}

/// Says where everything lives, and how fast that is predicted to be.
pub fn say_planned(map: &DeviceMap, prediction: &Prediction, figures: &Provenance) {
    say(picture(map));
    say_wrapped(&predicted(prediction, figures));
}

/// One line on the predicted speed.
fn predicted(prediction: &Prediction, figures: &Provenance) -> String {
    format!(
        "predicted {} per token, prompt {} with loading ({figures})",
        seconds(prediction.decode.seconds),
        seconds(prediction.first_pass_seconds),
    )
}
