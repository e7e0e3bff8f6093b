//! A plan in a terminal.

use super::bar::{parts, segments};
use super::page::{Page, Span, painted, said};
use super::palette::ansi;
use super::report::{PlanReport, TierReport};
use super::rows::Row;
use crate::views::human;
use crate::views::style::Style;
use crate::views::text::{fit, plain, width};
use outsize::plan::format_size;

/// The least width for a bar and its numbers in one line.
const ONE_LINE: usize = 64;

/// Rows of blocks that are shown at most.
const MOST_ROWS: usize = 40;

impl PlanReport {
    /// The plan as text: a bar for each device, the list of blocks, predicted times, and other
    /// budgets. Lines end in `\n`.
    pub fn text(&self, style: &Style) -> String {
        let mut page = Page::new(style);
        let name = fit(&page.spelled(&plain(&self.model.name)), page.width, page.ellipsis);
        page.flow(0, [name].into_iter().chain(self.model_words()).map(said));
        page.flow(0, [plain(&self.strategy)].into_iter().chain(self.workload_words()).map(said));
        page.blank();
        let label = self.tiers.iter().map(|tier| width(&tier.held.tier.to_string())).max();
        for tier in self.drawn_tiers() {
            page.tier(self, tier, label.unwrap_or(0));
        }
        page.blank();
        let (rows, more) = self.listed_rows(MOST_ROWS);
        let names = rows.iter().map(|row| width(&page.spelled(&row.name))).max().unwrap_or(0);
        for row in &rows {
            page.row(row, names.min(page.width / 2));
        }
        if let Some(more) = more {
            page.prose("", &more, 0);
        }
        page.blank();
        for (what, seconds, words) in self.times() {
            page.timed(what, seconds, words);
        }
        if !self.what_if.is_empty() {
            page.blank();
        }
        for (budget, effect) in self.other_budgets() {
            page.prose(&format!("{budget} "), &effect, width(&budget) + 1);
        }
        page.blank();
        page.prose("", &self.source_words(), 0);
        for note in &self.notes {
            page.prose("note: ", note, 6);
        }
        page.out
    }
}

impl Page {
    fn tier(&mut self, report: &PlanReport, tier: &TierReport, label_width: usize) {
        let own = ansi(tier.held.tier);
        let label = tier.held.tier.to_string();
        let heading = painted(format!("{label:<label_width$} "), own);
        let frame = width(self.frame[0]) + width(self.frame[1]);
        if self.width >= ONE_LINE {
            let cells = self.width - label_width - 1 - frame - 1 - 24;
            let mut line = vec![heading];
            line.extend(self.bar(report, tier, cells));
            line.push(said(format!(" {}", tier.size())));
            self.line(&line);
        } else {
            self.line(&[heading, said(tier.size())]);
            let bar = self.bar(report, tier, self.width - frame);
            self.line(&bar);
        }
        let ascii = usize::from(self.ascii);
        let details = parts(tier).into_iter().map(|(part, bytes)| {
            let text = format!("{} {} {}", part.glyphs[ascii], part.name, format_size(bytes));
            painted(text.trim_start(), part.colour.unwrap_or(own))
        });
        let detected = tier.detected.then(|| said("budget detected"));
        self.flow(label_width + 2, details.chain(detected));
    }

    /// The bar of a device's memory; blocks alternate if they are wide enough.
    fn bar(&self, report: &PlanReport, tier: &TierReport, cells: usize) -> Vec<Span> {
        let mut spans = vec![said(self.frame[0])];
        let mut used = 0;
        for segment in segments(tier, &report.blocks, cells, 2) {
            used += segment.length;
            let glyph =
                if segment.odd { self.odd } else { segment.of.glyphs[usize::from(self.ascii)] };
            let colour = segment.of.colour.unwrap_or(ansi(tier.held.tier));
            spans.push(painted(glyph.to_string().repeat(segment.length), colour));
        }
        spans.push(said(" ".repeat(cells - used)));
        spans.push(said(self.frame[1]));
        spans
    }

    fn row(&mut self, row: &Row, names: usize) {
        let size = format_size(row.bytes);
        let parts = row.parts();
        let arrow = format!("{} ", self.arrow);
        let name = fit(&self.spelled(&row.name), self.width, self.ellipsis);
        let place = row.place(self.between);
        let used = names.max(width(&name)) + 1 + width(&arrow) + width(&place);
        if used + 2 + width(&size) <= self.width && width(&name) <= names {
            let colour = parts.first().map_or(37, |(tier, _)| ansi(*tier));
            let gap = " ".repeat(names - width(&name) + 1);
            let pad = " ".repeat(self.width - used - width(&size));
            self.line(&[said(name + &gap + &arrow), painted(place, colour), said(pad + &size)]);
            return;
        }
        // The name and the size, and the place below.
        let name = fit(&name, self.width.saturating_sub(width(&size) + 1).max(8), self.ellipsis);
        let pad = self.width.saturating_sub(width(&name) + width(&size));
        self.line(&[said(name + &" ".repeat(pad) + &size)]);
        let before = std::iter::once(arrow).chain(std::iter::repeat(String::new()));
        let parts =
            before.zip(parts).map(|(arrow, (tier, text))| painted(arrow + &text, ansi(tier)));
        self.flow(2, parts);
    }

    fn timed(&mut self, what: &str, seconds: f64, words: Vec<String>) {
        let line = format!("{what:<9} {:>9}", human::seconds(seconds));
        if self.width >= ONE_LINE {
            self.line(&[said(format!("{line}   {}", words.join(self.between)))]);
        } else {
            self.line(&[said(line)]);
            self.flow(2, words.into_iter().map(said));
        }
    }
}
