//! What a plan says in words, in a terminal and in an SVG.

use super::report::{PhaseReport, PlanReport, TierReport};
use super::rows::{Row, rows};
use super::what_if::WhatIf;
use crate::views::human;
use crate::views::text::plain;
use outsize::plan::{Bound, format_size};

impl PlanReport {
    /// The model's architecture, parameters and size.
    pub fn model_words(&self) -> Vec<String> {
        let model = &self.model;
        let mut words: Vec<String> = model.architecture.iter().map(|name| plain(name)).collect();
        words.extend(model.parameters.map(|n| format!("{} parameters", human::parameters(n))));
        words.extend(model.experts.map(human::experts));
        words.push(match model.dtype.as_ref().or(model.stored_dtype.as_ref()) {
            Some(dtype) => {
                // What takes less than two bytes for each is packed.
                let is_packed = dtype == "bf16"
                    && model
                        .parameters
                        .is_some_and(|n| model.bytes / 19 < n.saturating_mul(2) / 20);
                let packed = if is_packed { "packed " } else { "" };
                format!("{} in {packed}{}", format_size(model.bytes), plain(dtype))
            }
            None => format_size(model.bytes),
        });
        words
    }

    /// What the model is used for.
    pub fn workload_words(&self) -> Vec<String> {
        let workload = &self.workload;
        let mut words = Vec::new();
        if workload.batch != 1 {
            words.push(human::count(workload.batch, "text"));
        }
        words.push(format!("prompt {}", human::count(workload.prompt, "token")));
        words.push(format!("context {}", workload.position));
        words.extend(self.model.kv_dtype.iter().map(|dtype| format!("KV {}", plain(dtype))));
        words
    }

    /// The devices to draw: those that are used or have a budget.
    pub fn drawn_tiers(&self) -> impl Iterator<Item = &TierReport> {
        self.tiers.iter().filter(|tier| tier.held.budget.is_some() || tier.held.sum() > 0)
    }

    /// The list of blocks in at most `most` lines, and what is said of the rest.
    pub fn listed_rows(&self, most: usize) -> (Vec<Row>, Option<String>) {
        let mut rows = rows(&self.blocks);
        if rows.len() <= most {
            return (rows, None);
        }
        let more = rows.len() - (most - 1);
        rows.truncate(most - 1);
        (rows, Some(format!("and {more} rows more: --json has all")))
    }

    /// Each predicted time in seconds, and what is said of it.
    pub fn times(&self) -> [(&'static str, f64, Vec<String>); 3] {
        let prediction = &self.prediction;
        let load = vec![
            format!("{} that stay in memory", format_size(self.resident_bytes())),
            format!("first token after {}", human::seconds(prediction.first_pass_seconds)),
        ];
        let tokens = self.workload.prompt.saturating_mul(self.workload.batch);
        let mut prefill = vec![human::count(tokens, "token")];
        prefill.extend(speed(&prediction.prefill));
        [
            ("load", prediction.load_seconds, load),
            ("prefill", prediction.prefill.time.seconds, prefill),
            ("per token", prediction.decode.time.seconds, speed(&prediction.decode).to_vec()),
        ]
    }

    /// Other budgets, and their effect.
    pub fn other_budgets(&self) -> impl Iterator<Item = (String, String)> {
        let now = self.prediction.decode.time.seconds;
        self.what_if.iter().map(move |what_if| {
            let percent = ((what_if.memory - 1.0) * 100.0).round();
            (format!("{percent:+} % memory:"), effect(what_if, now))
        })
    }

    /// The source of the hardware profile.
    pub fn source_words(&self) -> String {
        let source = self.figures_source.as_str();
        format!("Figures {}", source.strip_prefix("figures ").unwrap_or(source))
    }
}

impl TierReport {
    /// What is held of the budget: `4.7 GB of 5 GB`.
    pub fn size(&self) -> String {
        let held = format_size(self.held.sum());
        match self.held.budget {
            Some(budget) => format!("{held} of {}", format_size(budget)),
            None => held,
        }
    }
}

/// How fast a pass is, and what limits it.
fn speed(phase: &PhaseReport) -> [String; 2] {
    let limit = format!("{} is the limit", phase.bound.name());
    let limit = match phase.bound {
        Bound::Disk => format!("{limit}: {}", format_size(phase.time.disk_bytes)),
        Bound::Upload => format!("{limit}: {}", format_size(phase.time.upload_bytes)),
        Bound::Memory | Bound::Compute => limit,
    };
    [format!("{} tokens/s", human::rate(phase.tokens_per_second)), limit]
}

/// The effect of another budget.
fn effect(what_if: &WhatIf, now: f64) -> String {
    match (what_if.decode_seconds, what_if.least, &what_if.reason) {
        (Some(seconds), ..) => {
            let text = format!("{} per token", human::seconds(seconds));
            match human::change(now, seconds) {
                Some(change) => format!("{text} ({change})"),
                None => text,
            }
        }
        (None, Some(least), _) => format!(
            "does not fit: least is {}={} ({})",
            least.tier,
            least.bytes,
            format_size(least.bytes)
        ),
        (None, None, Some(reason)) => reason.clone(),
        (None, None, None) => "does not fit".to_string(),
    }
}
