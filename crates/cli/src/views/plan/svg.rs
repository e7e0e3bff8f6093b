//! A plan as a standalone SVG, without scripts, fonts or other external resources.

use super::bar::{FREE, WEIGHTS, apportioned, parts, segments};
use super::canvas::{COLUMN, Canvas, SMALL_COLUMN, escaped, small_width};
use super::palette::{class, style_sheet};
use super::report::{BlockReport, PlanReport, TierReport};
use super::rows::Row;
use crate::views::human;
use crate::views::text::{fit, plain};
use outsize::plan::format_size;
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
        for tier in self.drawn_tiers() {
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
        for tier in self.drawn_tiers() {
            let what: Vec<String> = parts(tier)
                .into_iter()
                .map(|(part, bytes)| format!("{} {}", part.name, format_size(bytes)))
                .collect();
            text.push_str(&format!("{}: {}. ", tier.held.tier, what.join(", ")));
        }
        let [load, prefill, decode] = self.times().map(|(_, seconds, _)| human::seconds(seconds));
        text + &format!("Predicted: {load} to load, {prefill} for the prompt, {decode} per token.")
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
        let columns = (ROOM / 12.0) as usize;
        self.canvas.text(MARGIN, 44.0, "h", &fit(&plain(&self.report.model.name), columns, "…"));
        let mut words = self.report.model_words();
        words.extend(self.report.workload_words());
        words.push(format!("placed by {}", plain(&self.report.strategy)));
        self.small(MARGIN, 66.0, &words.join(" · "), ROOM);
        self.y = 92.0;
    }

    /// A small text, cut to `room` pixels.
    fn small(&mut self, x: f64, y: f64, text: &str, room: f64) {
        let columns = (room / SMALL_COLUMN) as usize;
        self.canvas.text(x, y, "s", &fit(text, columns, "…"));
    }

    /// A small text on a line of its own.
    fn line(&mut self, text: &str) {
        self.small(MARGIN, self.y, &plain(text), ROOM);
        self.y += 18.0;
    }

    fn section(&mut self, title: &str) {
        self.y += 12.0;
        self.canvas.rule(MARGIN, self.y, ROOM);
        self.y += 26.0;
        self.canvas.text(MARGIN, self.y, "l", title);
        self.y += 14.0;
    }

    fn tier(&mut self, tier: &TierReport) {
        let own = class(tier.held.tier);
        let middle = self.y + 17.0;
        self.canvas.text(MARGIN, middle, "l", &tier.held.tier.to_string());
        self.canvas.text(BAR_X + BAR + 14.0, middle, "v", &tier.size());
        self.canvas.rect([BAR_X, self.y, BAR, BAR_HEIGHT], "free", "");
        let mut x = BAR_X;
        for segment in segments(tier, &self.report.blocks, (BAR * 2.0) as usize, 3) {
            let w = segment.length as f64 / 2.0;
            if segment.of != FREE {
                let name = segment.block.map_or_else(|| segment.of.name.to_string(), short);
                let class = match (segment.of == WEIGHTS, segment.odd) {
                    (true, true) => format!("{own} odd"),
                    (true, false) => own.clone(),
                    (false, _) => segment.of.class.to_string(),
                };
                let title = format!("{name}: {}", format_size(segment.bytes));
                self.canvas.rect([x, self.y, w, BAR_HEIGHT], &class, &title);
            }
            x += w;
        }
        self.y += BAR_HEIGHT + 17.0;
        let mut x = BAR_X;
        for (part, bytes) in parts(tier) {
            let text = format!("{} {}", part.name, format_size(bytes));
            if x > BAR_X && x + 15.0 + small_width(&text) > MARGIN + ROOM {
                x = BAR_X;
                self.y += 18.0;
            }
            let class = if part == WEIGHTS { &own } else { part.class };
            x += self.canvas.swatch(x, self.y, class, &text);
        }
        if tier.detected {
            self.canvas.text(BAR_X + BAR + 14.0, self.y, "s", "budget detected");
        }
        self.y += 22.0;
    }

    /// All blocks in the order of execution, each as wide as it is large and filled with the
    /// colours of its tiers.
    fn strip(&mut self) {
        let groups = groups(&self.report.blocks);
        if groups.iter().all(|group| group.bytes == 0) {
            return;
        }
        self.section("Blocks in the order of execution");
        let gap = if groups.len() <= 200 { 0.5 } else { 0.0 };
        let mut x = MARGIN;
        let mut tiers = BTreeSet::new();
        let sized = groups.iter().map(|group| (group, group.bytes)).collect();
        for ((group, _), halves) in apportioned(sized, (ROOM * 2.0) as usize) {
            let w = halves as f64 / 2.0;
            let mut bottom = self.y + STRIP_HEIGHT;
            let all: f64 = group.shares.values().map(|bytes| *bytes as f64).sum();
            tiers.extend(group.shares.keys().copied());
            for (tier, bytes) in group.shares.iter().filter(|(_, bytes)| **bytes > 0) {
                let h = STRIP_HEIGHT * (*bytes as f64 / all);
                bottom -= h;
                let title = format!("{}: {} on {tier}", short(&group.name), format_size(*bytes));
                self.canvas.rect([x, bottom, (w - gap).max(0.5), h], &class(*tier), &title);
            }
            x += w;
        }
        self.y += STRIP_HEIGHT + 18.0;
        let mut x = MARGIN;
        for tier in tiers {
            x += self.canvas.swatch(x, self.y, &class(tier), &tier.to_string());
        }
        self.y += 10.0;
    }

    fn list(&mut self) {
        let (rows, more) = self.report.listed_rows(MOST_ROWS);
        if rows.is_empty() {
            return;
        }
        self.section("Where they are");
        for row in &rows {
            self.y += 10.0;
            self.row(row);
            self.y += 12.0;
        }
        if let Some(more) = more {
            self.small(MARGIN, self.y + 10.0, &more, ROOM);
            self.y += 22.0;
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
        let step = ROOM / 3.0;
        let mut x = MARGIN;
        for (what, seconds, words) in self.report.times() {
            self.small(x, self.y + 14.0, what, step);
            self.canvas.text(x, self.y + 42.0, "b", &human::seconds(seconds));
            if let [first @ .., last] = &words[..] {
                self.small(x, self.y + 62.0, &first.join(", "), step - 12.0);
                self.small(x, self.y + 79.0, last, step - 12.0);
            }
            x += step;
        }
        self.y += 108.0;
        for (budget, effect) in self.report.other_budgets() {
            self.line(&format!("{budget} {effect}"));
        }
    }

    fn notes(&mut self) {
        self.y += 6.0;
        self.line(&self.report.source_words());
        for note in &self.report.notes {
            self.line(&format!("Note: {note}"));
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
    blocks.chunks(size).filter_map(Row::together).collect()
}
