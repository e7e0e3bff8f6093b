//! A plan in a terminal.

use super::bar::{MemoryUse, apportion, on, parts};
use super::page::{Page, Span, painted, said};
use super::palette::{ansi, ansi_part};
use super::report::{PhaseReport, PlanReport, TierReport};
use super::rows::{Row, rows};
use super::what_if::WhatIf;
use crate::views::human;
use crate::views::style::Style;
use crate::views::text::{fit, plain, width};
use outsize::plan::{Bound, format_size};

/// The least width for a bar and its numbers in one line.
const ONE_LINE: usize = 64;

/// Rows of blocks that are shown at most.
const MOST_ROWS: usize = 40;

impl PlanReport {
    /// The plan as text: a bar for each device, the list of blocks, predicted times, and other
    /// budgets. Lines end in `\n`.
    pub fn text(&self, style: &Style) -> String {
        let mut page = Page::new(style);
        page.model(self);
        page.blank();
        for tier in self.tiers.iter().filter(|tier| is_drawn(tier)) {
            page.tier(self, tier);
        }
        page.blank();
        page.blocks(self);
        page.blank();
        page.prediction(self);
        page.notes(self);
        page.out
    }
}

impl Page {
    fn model(&mut self, report: &PlanReport) {
        let model = &report.model;
        let ellipsis = self.glyphs.ellipsis;
        let mut parts = vec![said(fit(&self.spelled(&plain(&model.name)), self.width, ellipsis))];
        parts.extend(model.architecture.iter().map(|name| said(plain(name))));
        parts
            .extend(model.parameters.map(|n| said(format!("{} parameters", human::parameters(n)))));
        parts.push(said(match model.dtype.as_ref().or(model.stored_dtype.as_ref()) {
            Some(dtype) => format!("{} in {}", format_size(model.bytes), plain(dtype)),
            None => format_size(model.bytes),
        }));
        self.flow(0, parts);
        let workload = &report.workload;
        let mut parts = vec![said(plain(&report.strategy))];
        if workload.batch != 1 {
            parts.push(said(human::count(workload.batch, "text")));
        }
        parts.push(said(format!("prompt {}", human::count(workload.prompt, "token"))));
        parts.push(said(format!("context {}", workload.position)));
        parts.extend(model.kv_dtype.iter().map(|dtype| said(format!("KV {}", plain(dtype)))));
        self.flow(0, parts);
    }

    fn tier(&mut self, report: &PlanReport, tier: &TierReport) {
        let held = &tier.held;
        let label = held.tier.to_string();
        let label_width = report.tiers.iter().map(|tier| width(&tier.held.tier.to_string())).max();
        let label_width = label_width.unwrap_or(0);
        let size = match held.budget {
            Some(budget) => format!("{} of {}", format_size(held.sum()), format_size(budget)),
            None => format_size(held.sum()),
        };
        let heading = painted(format!("{label:<label_width$} "), ansi(held.tier));
        let frame = width(self.glyphs.left) + width(self.glyphs.right);
        if self.width >= ONE_LINE {
            let cells = self.width - label_width - 1 - frame - 1 - 24;
            let mut line = vec![heading];
            line.extend(self.bar(report, tier, cells));
            line.push(said(format!(" {size}")));
            self.line(&line);
        } else {
            self.line(&[heading, said(size)]);
            let bar = self.bar(report, tier, self.width - frame);
            self.line(&bar);
        }
        let mut details: Vec<Span> = parts(tier)
            .into_iter()
            .map(|(part, bytes)| {
                let text =
                    format!("{} {} {}", self.glyphs.of(part), part.name(), format_size(bytes));
                match ansi_part(part) {
                    Some(colour) => painted(text.trim_start(), colour),
                    None => painted(text, ansi(held.tier)),
                }
            })
            .collect();
        if tier.detected {
            details.push(said("budget detected"));
        }
        self.flow(label_width + 2, details);
    }

    /// The bar of a device's memory; blocks alternate if they are wide enough.
    fn bar(&self, report: &PlanReport, tier: &TierReport, cells: usize) -> Vec<Span> {
        let held = parts(tier);
        let sizes: Vec<u64> = held.iter().map(|(_, bytes)| *bytes).collect();
        let mut spans = vec![said(self.glyphs.left)];
        let mut used = 0;
        for ((part, _), cells) in held.iter().zip(apportion(&sizes, cells)) {
            used += cells;
            let text = match part {
                MemoryUse::Weights => self.weights(report, tier, cells),
                part => self.glyphs.of(*part).to_string().repeat(cells),
            };
            spans.push(painted(text, ansi_part(*part).unwrap_or(ansi(tier.held.tier))));
        }
        spans.push(said(" ".repeat(cells - used)));
        spans.push(said(self.glyphs.right));
        spans
    }

    fn weights(&self, report: &PlanReport, tier: &TierReport, cells: usize) -> String {
        let [even, odd] = self.glyphs.weights;
        let blocks = on(tier.held.tier, &report.blocks);
        if blocks.len() * 2 > cells {
            return even.to_string().repeat(cells);
        }
        let bytes: Vec<u64> = blocks.iter().map(|(_, bytes)| *bytes).collect();
        let mut text = String::new();
        for (at, cells) in apportion(&bytes, cells).into_iter().enumerate() {
            let glyph = if at % 2 == 0 { even } else { odd };
            text.extend(std::iter::repeat_n(glyph, cells));
        }
        match bytes.is_empty() {
            true => even.to_string().repeat(cells),
            false => text,
        }
    }

    fn blocks(&mut self, report: &PlanReport) {
        let rows = rows(&report.blocks);
        let shown = if rows.len() > MOST_ROWS { MOST_ROWS - 1 } else { rows.len() };
        let names =
            rows[..shown].iter().map(|row| width(&self.spelled(&row.name))).max().unwrap_or(0);
        for row in &rows[..shown] {
            self.row(row, names.min(self.width / 2));
        }
        if shown < rows.len() {
            let more = rows.len() - shown;
            self.prose("", &format!("and {more} rows more: --json has all"), 0);
        }
    }

    fn row(&mut self, row: &Row, names: usize) {
        let size = format_size(row.bytes);
        let place = row.place(self.glyphs.between);
        let arrow = self.glyphs.arrow;
        let name = fit(&self.spelled(&row.name), self.width, self.glyphs.ellipsis);
        let colour = row.parts().first().map_or(37, |(tier, _)| ansi(*tier));
        let name_width = width(&name);
        let used = names.max(name_width) + 1 + width(arrow) + 1 + width(&place);
        if used + 2 + width(&size) <= self.width && name_width <= names {
            let pad = self.width - used - width(&size);
            let gap = " ".repeat(names - name_width + 1);
            self.line(&[
                said(name),
                said(format!("{gap}{arrow} ")),
                painted(place, colour),
                said(" ".repeat(pad)),
                said(size),
            ]);
            return;
        }
        // The name and the size, and the place below.
        let name =
            fit(&name, self.width.saturating_sub(width(&size) + 1).max(8), self.glyphs.ellipsis);
        let pad = self.width.saturating_sub(width(&name) + width(&size));
        self.line(&[said(name), said(" ".repeat(pad)), said(size)]);
        let mut parts: Vec<Span> =
            row.parts().into_iter().map(|(tier, text)| painted(text, ansi(tier))).collect();
        if let Some(first) = parts.first_mut() {
            first.text.insert_str(0, &format!("{arrow} "));
        }
        self.flow(2, parts);
    }

    fn prediction(&mut self, report: &PlanReport) {
        let prediction = &report.prediction;
        let resident = report.resident_bytes();
        let mut parts = vec![said(format!("{} that stay in memory", format_size(resident)))];
        let first = human::seconds(prediction.first_pass_seconds);
        parts.push(said(format!("first token after {first}")));
        self.timed("load", prediction.load_seconds, parts);
        let phase = |phase: &PhaseReport, what: &str| {
            let mut parts = vec![said(format!("{} {what}", human::rate(phase.tokens_per_second)))];
            parts.push(said(bounded(phase)));
            parts
        };
        let tokens = report.workload.prompt.saturating_mul(report.workload.batch);
        let mut parts = vec![said(human::count(tokens, "token"))];
        parts.extend(phase(&prediction.prefill, "tokens/s"));
        self.timed("prefill", prediction.prefill.time.seconds, parts);
        self.timed(
            "per token",
            prediction.decode.time.seconds,
            phase(&prediction.decode, "tokens/s"),
        );
        if !report.what_if.is_empty() {
            self.blank();
        }
        for what_if in &report.what_if {
            self.what_if(what_if, prediction.decode.time.seconds);
        }
    }

    fn timed(&mut self, what: &str, seconds: f64, parts: Vec<Span>) {
        let seconds = human::seconds(seconds);
        let line = format!("{what:<9} {seconds:>9}");
        if self.width >= ONE_LINE && !parts.is_empty() {
            let mut texts = parts.into_iter();
            let mut line = format!("{line}   ");
            if let Some(first) = texts.next() {
                line.push_str(&first.text);
            }
            let rest = texts.map(|span| span.text);
            for text in rest {
                line.push_str(self.glyphs.between);
                line.push_str(&text);
            }
            self.line(&[said(line)]);
        } else {
            self.line(&[said(line)]);
            self.flow(2, parts);
        }
    }

    fn what_if(&mut self, what_if: &WhatIf, now: f64) {
        let percent = ((what_if.memory - 1.0) * 100.0).round();
        let heading = format!("{percent:+} % memory:");
        self.prose(&format!("{heading} "), &outcome(what_if, now), width(&heading) + 1);
    }

    fn notes(&mut self, report: &PlanReport) {
        self.blank();
        self.prose("", &format!("Figures {}", figures(report)), 0);
        for note in &report.notes {
            self.prose("note: ", note, 6);
        }
    }
}

/// Whether a device is shown: it is used or has a budget.
pub fn is_drawn(tier: &TierReport) -> bool {
    tier.held.budget.is_some() || tier.held.sum() > 0
}

/// The source of the hardware profile.
pub fn figures(report: &PlanReport) -> &str {
    let source = report.figures_source.as_str();
    source.strip_prefix("figures ").unwrap_or(source)
}

/// What limits a pass, in words.
pub fn bounded(phase: &PhaseReport) -> String {
    let each = match phase.bound {
        Bound::Disk => phase.time.disk_bytes,
        Bound::Upload => phase.time.upload_bytes,
        Bound::Memory | Bound::Compute => {
            return format!("{} is the limit", phase.bound.name());
        }
    };
    format!("{} is the limit: {}", phase.bound.name(), format_size(each))
}

/// The effect of another budget, in words.
pub fn outcome(what_if: &WhatIf, now: f64) -> String {
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
