//! A plan as a standalone SVG, without scripts, fonts or other external resources.

use super::bar::{MemoryUse, apportion, on, parts};
use super::canvas::{COLUMN, Canvas, SMALL_COLUMN, escaped, small_width};
use super::palette::{class, part_class, style_sheet};
use super::report::{BlockReport, PhaseReport, PlanReport, TierReport};
use super::rows::{Row, rows};
use super::terminal::{bounded, figures, is_drawn, outcome};
use crate::views::human;
use crate::views::text::{fit, plain};
use outsize::plan::{Tier, format_size};
use std::collections::BTreeSet;

/// The picture's width, its margin and what is between, in pixels.
const WIDTH: f64 = 960.0;
const MARGIN: f64 = 28.0;
const ROOM: f64 = WIDTH - 2.0 * MARGIN;

/// Where bars begin, how long they are and how high.
const BAR_X: f64 = 96.0;
const BAR: f64 = 640.0;
const BAR_HEIGHT: f64 = 24.0;

/// Height of the strip of all blocks.
const STRIP_HEIGHT: f64 = 56.0;

/// The most blocks of the strip; beyond, neighbours are drawn as one.
const MOST_BLOCKS: usize = 450;

/// Rows of blocks that are listed at most.
const MOST_ROWS: usize = 28;

impl PlanReport {
    /// The plan as a standalone SVG: a bar for each device, a strip of all blocks in the order of
    /// execution, the list of blocks, predicted times, and other budgets.
    ///
    /// The same report gives the same bytes.
    pub fn svg(&self) -> String {
        let mut drawing = Drawing { report: self, canvas: Canvas::new(), y: 0.0 };
        drawing.heading();
        for tier in self.tiers.iter().filter(|tier| is_drawn(tier)) {
            drawing.tier(tier);
        }
        drawing.strip();
        drawing.list();
        drawing.prediction();
        drawing.notes();
        let height = (drawing.y + MARGIN - 8.0).ceil();
        let body = drawing.canvas.finish();
        let title = escaped(&format!("Where {} lives", self.model.name));
        let summary = escaped(&self.summary());
        let style = style_sheet();
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
             role=\"img\" aria-labelledby=\"title summary\">\n\
             <title id=\"title\">{title}</title>\n<desc id=\"summary\">{summary}</desc>\n<style>{style}</style>\n\
             <rect x=\"0\" y=\"0\" width=\"{WIDTH}\" height=\"{height}\" class=\"bg\"/>\n{body}</svg>\n"
        )
    }

    /// The plan in a few sentences.
    fn summary(&self) -> String {
        let mut text = String::new();
        for tier in self.tiers.iter().filter(|tier| is_drawn(tier)) {
            let what: Vec<String> = parts(tier)
                .into_iter()
                .map(|(part, bytes)| format!("{} {}", part.name(), format_size(bytes)))
                .collect();
            text.push_str(&format!("{}: {}. ", tier.held.tier, what.join(", ")));
        }
        let prediction = &self.prediction;
        text.push_str(&format!(
            "Predicted: {} to load, {} for the prompt, {} per token.",
            human::seconds(prediction.load_seconds),
            human::seconds(prediction.prefill.time.seconds),
            human::seconds(prediction.decode.time.seconds),
        ));
        text
    }
}

struct Drawing<'a> {
    report: &'a PlanReport,
    canvas: Canvas,
    /// The top of the next element.
    y: f64,
}

impl Drawing<'_> {
    fn heading(&mut self) {
        let model = &self.report.model;
        let columns = (ROOM / 12.0) as usize;
        self.canvas.text(MARGIN, 44.0, "h", &fit(&plain(&model.name), columns, "…"));
        let mut parts: Vec<String> = model.architecture.iter().map(|name| plain(name)).collect();
        parts.extend(model.parameters.map(|n| format!("{} parameters", human::parameters(n))));
        parts.push(match model.dtype.as_ref().or(model.stored_dtype.as_ref()) {
            Some(dtype) => format!("{} in {}", format_size(model.bytes), plain(dtype)),
            None => format_size(model.bytes),
        });
        let workload = &self.report.workload;
        if workload.batch != 1 {
            parts.push(human::count(workload.batch, "text"));
        }
        parts.push(format!("prompt {}", human::count(workload.prompt, "token")));
        parts.push(format!("context {}", workload.position));
        parts.extend(model.kv_dtype.iter().map(|dtype| format!("KV {}", plain(dtype))));
        parts.push(format!("placed by {}", plain(&self.report.strategy)));
        self.small(MARGIN, 66.0, &parts.join(" · "), ROOM);
        self.y = 92.0;
    }

    /// A small text, cut to `room` pixels.
    fn small(&mut self, x: f64, y: f64, text: &str, room: f64) {
        let columns = (room / SMALL_COLUMN) as usize;
        self.canvas.text(x, y, "s", &fit(text, columns, "…"));
    }

    fn section(&mut self, title: &str) {
        self.y += 12.0;
        self.canvas.rule(MARGIN, self.y, ROOM);
        self.y += 26.0;
        self.canvas.text(MARGIN, self.y, "l", title);
        self.y += 14.0;
    }

    fn tier(&mut self, tier: &TierReport) {
        let held = &tier.held;
        let middle = self.y + 17.0;
        self.canvas.text(MARGIN, middle, "l", &held.tier.to_string());
        let size = match held.budget {
            Some(budget) => format!("{} of {}", format_size(held.sum()), format_size(budget)),
            None => format_size(held.sum()),
        };
        self.canvas.text(BAR_X + BAR + 14.0, middle, "v", &size);
        self.canvas.rect([BAR_X, self.y, BAR, BAR_HEIGHT], "free", "");
        let held_parts = parts(tier);
        let sizes: Vec<u64> = held_parts.iter().map(|(_, bytes)| *bytes).collect();
        let mut x = BAR_X;
        for ((part, bytes), halves) in
            held_parts.iter().zip(apportion(&sizes, (BAR * 2.0) as usize))
        {
            let w = halves as f64 / 2.0;
            match part {
                MemoryUse::Free => {}
                MemoryUse::Weights => self.weights(tier, x, halves),
                part => {
                    let title = format!("{}: {}", part.name(), format_size(*bytes));
                    self.canvas.rect([x, self.y, w, BAR_HEIGHT], part_class(*part), &title);
                }
            }
            x += w;
        }
        self.y += BAR_HEIGHT + 17.0;
        let mut x = BAR_X;
        for (part, bytes) in held_parts {
            let text = format!("{} {}", part.name(), format_size(bytes));
            if x > BAR_X && x + 15.0 + small_width(&text) > MARGIN + ROOM {
                x = BAR_X;
                self.y += 18.0;
            }
            let class = match part {
                MemoryUse::Weights => class(held.tier),
                part => part_class(part).to_string(),
            };
            x += self.canvas.swatch(x, self.y, &class, &text);
        }
        if tier.detected {
            self.canvas.text(BAR_X + BAR + 14.0, self.y, "s", "budget detected");
        }
        self.y += 22.0;
    }

    /// The blocks of a bar, in alternating shades if they are wide enough.
    fn weights(&mut self, tier: &TierReport, x: f64, halves: usize) {
        let colour = class(tier.held.tier);
        let blocks = on(tier.held.tier, &self.report.blocks);
        if blocks.len() * 3 > halves || blocks.is_empty() {
            let title = format!("weights: {}", format_size(tier.held.weights));
            self.canvas.rect([x, self.y, halves as f64 / 2.0, BAR_HEIGHT], &colour, &title);
            return;
        }
        let sizes: Vec<u64> = blocks.iter().map(|(_, bytes)| *bytes).collect();
        let mut x = x;
        for (at, ((block, bytes), halves)) in
            blocks.iter().zip(apportion(&sizes, halves)).enumerate()
        {
            let w = halves as f64 / 2.0;
            let class = if at % 2 == 0 { colour.clone() } else { format!("{colour} odd") };
            let title = format!("{}: {}", short(&block.name), format_size(*bytes));
            self.canvas.rect([x, self.y, w, BAR_HEIGHT], &class, &title);
            x += w;
        }
    }

    /// All blocks in the order of execution, each as wide as it is large and filled with the
    /// colours of its tiers.
    fn strip(&mut self) {
        let groups = groups(&self.report.blocks);
        let sizes: Vec<u64> = groups.iter().map(|group| group.bytes).collect();
        if sizes.iter().all(|bytes| *bytes == 0) {
            return;
        }
        self.section("Blocks in the order of execution");
        let gap = if groups.len() <= 200 { 0.5 } else { 0.0 };
        let mut x = MARGIN;
        for (group, halves) in groups.iter().zip(apportion(&sizes, (ROOM * 2.0) as usize)) {
            let w = halves as f64 / 2.0;
            let mut bottom = self.y + STRIP_HEIGHT;
            let all: f64 = group.shares.values().map(|bytes| *bytes as f64).sum();
            for (tier, bytes) in group.shares.iter().filter(|(_, bytes)| **bytes > 0) {
                let h = STRIP_HEIGHT * (*bytes as f64 / all);
                bottom -= h;
                let title = format!("{}: {} on {tier}", short(&group.name), format_size(*bytes));
                self.canvas.rect([x, bottom, (w - gap).max(0.5), h], &class(*tier), &title);
            }
            x += w;
        }
        self.y += STRIP_HEIGHT + 18.0;
        let tiers: BTreeSet<Tier> =
            groups.iter().flat_map(|group| group.shares.keys().copied()).collect();
        let mut x = MARGIN;
        for tier in tiers {
            x += self.canvas.swatch(x, self.y, &class(tier), &tier.to_string());
        }
        self.y += 10.0;
    }

    fn list(&mut self) {
        let rows = rows(&self.report.blocks);
        if rows.is_empty() {
            return;
        }
        self.section("Where they are");
        let shown = if rows.len() > MOST_ROWS { MOST_ROWS - 1 } else { rows.len() };
        for row in &rows[..shown] {
            self.y += 10.0;
            self.row(row);
            self.y += 12.0;
        }
        if shown < rows.len() {
            self.y += 10.0;
            let more = rows.len() - shown;
            self.small(MARGIN, self.y, &format!("and {more} rows more: --json has all"), ROOM);
            self.y += 12.0;
        }
    }

    fn row(&mut self, row: &Row) {
        const NAMES: f64 = 380.0;
        let columns = (NAMES / COLUMN) as usize;
        self.canvas.text(MARGIN, self.y, "v", &fit(&row.name, columns, "…"));
        let mut x = MARGIN + NAMES + 12.0;
        for (tier, text) in row.parts() {
            if x + 15.0 + small_width(&text) > MARGIN + ROOM - 80.0 {
                self.canvas.text(x, self.y, "s", "…");
                break;
            }
            x += self.canvas.swatch(x, self.y, &class(tier), &text);
        }
        self.canvas.text(MARGIN + ROOM, self.y, "s e", &format_size(row.bytes));
    }

    fn prediction(&mut self) {
        self.section("Predicted");
        let prediction = &self.report.prediction;
        let workload = &self.report.workload;
        let tokens = workload.prompt.saturating_mul(workload.batch);
        let rate =
            |phase: &PhaseReport| format!("{} tokens/s", human::rate(phase.tokens_per_second));
        let cards = [
            (
                "load",
                prediction.load_seconds,
                [
                    format!("{} that stay in memory", format_size(self.report.resident_bytes())),
                    format!("first token after {}", human::seconds(prediction.first_pass_seconds)),
                ],
            ),
            (
                "prompt",
                prediction.prefill.time.seconds,
                [
                    format!("{}, {}", human::count(tokens, "token"), rate(&prediction.prefill)),
                    bounded(&prediction.prefill),
                ],
            ),
            (
                "per token",
                prediction.decode.time.seconds,
                [rate(&prediction.decode), bounded(&prediction.decode)],
            ),
        ];
        let step = ROOM / cards.len() as f64;
        for (at, (what, seconds, lines)) in cards.into_iter().enumerate() {
            let x = MARGIN + step * at as f64;
            self.small(x, self.y + 14.0, what, step);
            self.canvas.text(x, self.y + 42.0, "b", &human::seconds(seconds));
            for (line, text) in lines.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
                self.small(x, self.y + 62.0 + 17.0 * line as f64, text, step - 12.0);
            }
        }
        self.y += 108.0;
        for what_if in &self.report.what_if {
            let percent = ((what_if.memory - 1.0) * 100.0).round();
            let text = format!(
                "{percent:+} % memory: {}",
                outcome(what_if, prediction.decode.time.seconds)
            );
            self.small(MARGIN, self.y, &plain(&text), ROOM);
            self.y += 18.0;
        }
    }

    fn notes(&mut self) {
        self.y += 6.0;
        self.small(MARGIN, self.y, &plain(&format!("Figures {}", figures(self.report))), ROOM);
        self.y += 18.0;
        for note in &self.report.notes {
            self.small(MARGIN, self.y, &plain(&format!("Note: {note}")), ROOM);
            self.y += 18.0;
        }
    }
}

/// A name, short enough for a tooltip.
fn short(name: &str) -> String {
    fit(&plain(name), 100, "…")
}

/// The blocks of the strip, with neighbours merged if there are too many.
fn groups(blocks: &[BlockReport]) -> Vec<Row> {
    let size = blocks.len().div_ceil(MOST_BLOCKS).max(1);
    blocks.chunks(size).map(Row::together).collect()
}
