//! What a run did: the object that `--json` prints, and the lines that a person reads.

use crate::interrupt;
use outsize::bench::{RepeatedRun, median};
use outsize::generate::{Outcome, Pipeline, TextOutcome};
use outsize::machine::Provenance;
use outsize::plan::{DeviceMap, Prediction};
use outsize::stream::Stats;
use serde::Serialize;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// Bytes that are read to find the disk's speed after a run.
const PROBE_BYTES: u64 = 512 << 20;

/// The most memory that these are read into: as with the ring, more than the processor's cache.
const PROBE_MEMORY: u64 = 64 << 20;

/// The result of `outsize run --json`. All times in seconds, all sizes in bytes.
#[derive(Serialize, Debug)]
pub struct RunOutput {
    /// The generated text, up to a stop string; the tokens' numbers if the prompt was given by ids and there is no tokenizer.
    pub text: String,
    /// Tokens of the prompt, special ones included.
    pub prompt_tokens: usize,
    /// The generated tokens: with the one that ended the text, or those that spell the stop string.
    pub tokens: Vec<u32>,
    /// Why generation ended: eos (a token that ends the text), stop_string, length (as many tokens as asked for), context (it is
    /// full) or stopped (an interrupt).
    pub finish: &'static str,
    /// The stop string that ended the text.
    pub stop_string: Option<String>,
    /// Tokens that the context holds.
    pub context: usize,
    /// The type of the KV cache: f32, bf16 or f16. Its bytes are in the placement's needs.
    pub kv_dtype: &'static str,
    /// From opening the checkpoint until the first pass could begin: every parameter has its handle, the KV cache exists,
    /// and the readers are started.
    pub load_seconds: f64,
    /// The pass over the prompt.
    pub prefill_seconds: f64,
    /// From the start of the process to the first token.
    pub first_token_seconds: f64,
    /// Median over the generated tokens but the first; none if there was one only.
    pub seconds_per_token: Option<f64>,
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
    /// That, as a share of the disk's speed measured right after the run; none if nothing was streamed.
    pub link_utilisation: Option<f64>,
    /// The disk's speed measured right after the run: direct, sequential reads.
    pub disk_bytes_per_second: Option<f64>,
    /// Time that computing waited for weights while decoding.
    pub waiting_for_data_seconds: f64,
    /// That, as a share of all the time of decoding: close to 1 where the disk is the limit and computing hides behind it.
    pub waiting_for_data_share: Option<f64>,
    /// Reads that were in flight on average while decoding.
    pub reads_in_flight: Option<f64>,
    /// Bytes of one read on average while decoding; none if nothing was read.
    pub bytes_per_read: Option<f64>,
    /// Time that reading waited for memory while decoding.
    pub waiting_for_buffers_seconds: f64,
    /// The largest resident set of the process.
    pub peak_rss_bytes: Option<u64>,
    /// Where everything lived.
    pub placement: DeviceMap,
    /// How fast it was predicted to be.
    pub prediction: Prediction,
    /// By how much the predicted seconds per token are more than the measured ones, as a share of these; negative if they are
    /// less. None if there was one token only.
    pub prediction_error: Option<f64>,
    /// Where the figures of the prediction came from; none if nobody looked for any, and defaults were taken.
    pub figures: Option<Provenance>,
    /// The prompt run again, as `outsize bench` asks for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompt_again: Vec<RepeatedRun>,
}

/// What is measured around a generation.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Opening the model.
    pub load: Duration,
    /// From the start of the process to the first token.
    pub first_token: Duration,
    /// The stream's counts after the first token.
    pub at_first_token: Stats,
    /// The stream's counts after the last token.
    pub at_end: Stats,
}

impl RunOutput {
    /// Collects what happened, and then measures the disk if somebody should: in the memory that the model gives back.
    pub fn new(
        pipeline: Pipeline,
        prompt_tokens: usize,
        generated: TextOutcome,
        timing: Timing,
        again: Option<Vec<RepeatedRun>>,
    ) -> Self {
        let outcome = generated.outcome;
        let cache = *pipeline.cache_options();
        let stats = timing.at_end;
        let decode: f64 = outcome.token_seconds.iter().sum();
        let after = stats.since(&timing.at_first_token);
        let link = if decode > 0.0 {
            after.bytes_read as f64 / decode
        } else {
            stats.bytes_read as f64 / outcome.prefill_seconds.max(1e-9)
        };
        let share = |time: Duration| (decode > 0.0).then(|| time.as_secs_f64() / decode);
        let placement = pipeline.device_map().clone();
        let prediction = pipeline.prediction().clone();
        let measured = median(&outcome.token_seconds).filter(|seconds| *seconds > 0.0);
        let predicted = prediction.decode.seconds;
        let streamed = pipeline.streamed_range();
        drop(pipeline);
        let ring = placement.ring_bytes();
        let disk = streamed
            .filter(|_| again.is_none() && !interrupt::asked())
            .and_then(|(path, range)| disk_speed(&path, range, ring));
        Self {
            text: generated.text,
            prompt_tokens,
            finish: finish(&outcome),
            tokens: outcome.tokens,
            stop_string: generated.stop_string,
            context: cache.context,
            kv_dtype: cache.dtype.name(),
            load_seconds: timing.load.as_secs_f64(),
            prefill_seconds: outcome.prefill_seconds,
            first_token_seconds: timing.first_token.as_secs_f64(),
            seconds_per_token: median(&outcome.token_seconds),
            decode_seconds: decode,
            bytes_read: stats.bytes_read,
            prefill_bytes_read: timing.at_first_token.bytes_read,
            decode_bytes_read: after.bytes_read,
            link_bytes_per_second: link,
            link_utilisation: disk.map(|disk| link / disk),
            disk_bytes_per_second: disk,
            waiting_for_data_seconds: after.waiting_for_data.as_secs_f64(),
            waiting_for_data_share: share(after.waiting_for_data),
            reads_in_flight: share(after.reading),
            bytes_per_read: (after.reads > 0).then(|| after.bytes_read as f64 / after.reads as f64),
            waiting_for_buffers_seconds: after.waiting_for_buffers.as_secs_f64(),
            peak_rss_bytes: outsize::machine::peak_rss(),
            placement,
            prediction,
            prediction_error: measured.map(|measured| predicted / measured - 1.0),
            figures: None,
            prompt_again: again.unwrap_or_default(),
        }
    }

    /// What a person wants to know, in a few lines.
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
        let peak = self
            .peak_rss_bytes
            .map_or_else(String::new, |peak| format!(" · peak memory {}", size(peak)));
        let outcome = match (self.seconds_per_token, self.prediction_error) {
            (Some(measured), Some(error)) => format!(
                "\n{} s per token, predicted {}: {:.0} % off",
                seconds(measured),
                seconds(self.prediction.decode.seconds),
                error.abs() * 100.0
            ),
            _ => String::new(),
        };
        format!(
            "{rate} · prompt {:.2} s · loaded in {:.2} s\nread {}{link}{peak}{outcome}",
            self.prefill_seconds,
            self.load_seconds,
            size(self.bytes_read),
        )
    }
}

fn finish(outcome: &Outcome) -> &'static str {
    use outsize::generate::Finish;
    match outcome.finish {
        Finish::Eos => "eos",
        Finish::Length => "length",
        Finish::Context => "context",
        Finish::StopString => "stop_string",
        Finish::Stopped => "stopped",
    }
}

/// The speed of direct reads where the streamed weights lie, in bytes per second.
fn disk_speed(path: &Path, range: Range<u64>, ring: u64) -> Option<f64> {
    let range = range.start..range.end.min(range.start + PROBE_BYTES);
    let speed = outsize::machine::direct_read_speed(path, range, ring.min(PROBE_MEMORY)).ok()?;
    // Through the page cache it would be the memory's speed, not the disk's.
    speed.direct.then_some(speed.bytes_per_second)
}

/// Seconds with two digits that matter: `1.3`, `0.41`, `0.0052`.
pub fn seconds(seconds: f64) -> String {
    let before = if seconds > 0.0 {
        seconds.log10().floor() as i32
    } else {
        0
    };
    format!("{seconds:.*}", (1 - before).clamp(0, 9) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_short() {
        for (value, shown) in [
            (0.0, "0.0"),
            (123.4, "123"),
            (12.34, "12"),
            (1.34, "1.3"),
            (0.4123, "0.41"),
            (0.005_23, "0.0052"),
        ] {
            assert_eq!(seconds(value), shown);
        }
    }
}
