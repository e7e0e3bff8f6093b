//! A plan in a terminal.

use super::bar::{Part, apportion, on, parts};
use super::palette::{Ansi, ansi, ansi_part};
use super::rows::{Row, rows};
use super::text::{fit, head, plain, width};
use super::words;
use crate::{Bound, PhaseReport, Report, TierReport, WhatIf, format_size};
use std::fmt::Write;

/// No narrower than this is anything drawn, in columns.
const LEAST_WIDTH: usize = 20;

/// Lines are no longer than this, however wide the terminal is: an eye loses its way back.
const MOST_WIDTH: usize = 120;

/// From here on a bar and its figures are in one line.
const ONE_LINE: usize = 64;

/// Rows of blocks that are shown at most.
const MOST_ROWS: usize = 40;

/// How a plan is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Columns that a line may have; at least 20 are used.
    pub width: usize,
    /// Whether escape sequences for colours are understood.
    pub colour: bool,
    /// Whether only ASCII is.
    pub ascii: bool,
}

impl Default for Style {
    /// For a file: 80 columns without colours.
    fn default() -> Self {
        Self {
            width: 80,
            colour: false,
            ascii: false,
        }
    }
}

/// The characters of a drawing.
struct Glyphs {
    left: &'static str,
    right: &'static str,
    weights: [char; 2],
    ring: char,
    kv_cache: char,
    other: char,
    arrow: &'static str,
    between: &'static str,
    ellipsis: &'static str,
}

const UNICODE: Glyphs = Glyphs {
    left: "▕",
    right: "▏",
    weights: ['█', '▓'],
    ring: '▒',
    kv_cache: '▞',
    other: '░',
    arrow: "→",
    between: " · ",
    ellipsis: "…",
};

const ASCII: Glyphs = Glyphs {
    left: "[",
    right: "]",
    weights: ['#', '='],
    ring: '~',
    kv_cache: 'k',
    other: '-',
    arrow: "->",
    between: " | ",
    ellipsis: "...",
};

impl Glyphs {
    fn of(&self, part: Part) -> char {
        match part {
            Part::Weights => self.weights[0],
            Part::Ring => self.ring,
            Part::KvCache => self.kv_cache,
            Part::Activations | Part::Other => self.other,
            Part::Free => ' ',
        }
    }
}

impl Report {
    /// The plan as text, for a terminal or a file: a bar for each device, the blocks with their places, how long things will take, and
    /// what another budget would change. Lines end in `\n`.
    pub fn text(&self, style: &Style) -> String {
        let mut page = Page::new(style);
        page.model(self);
        page.blank();
        for tier in &self.tiers {
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

/// Text with an optional colour.
struct Span {
    text: String,
    colour: Option<Ansi>,
}

fn said(text: impl Into<String>) -> Span {
    Span {
        text: text.into(),
        colour: None,
    }
}

fn painted(text: impl Into<String>, colour: Ansi) -> Span {
    Span {
        text: text.into(),
        colour: Some(colour),
    }
}

struct Page {
    glyphs: &'static Glyphs,
    colour: bool,
    ascii: bool,
    width: usize,
    out: String,
}

impl Page {
    fn new(style: &Style) -> Self {
        Self {
            glyphs: if style.ascii { &ASCII } else { &UNICODE },
            colour: style.colour,
            ascii: style.ascii,
            width: style.width.clamp(LEAST_WIDTH, MOST_WIDTH),
            out: String::new(),
        }
    }

    fn blank(&mut self) {
        self.out.push('\n');
    }

    /// A line, cut where the page ends.
    fn line(&mut self, spans: &[Span]) {
        let mut room = self.width;
        for span in spans {
            let text = self.spelled(&span.text);
            let mut shown = head(&text, room);
            room -= width(shown);
            if shown.len() < text.len() {
                shown = shown.trim_end();
            }
            match span
                .colour
                .filter(|_| self.colour && !shown.trim().is_empty())
            {
                // Writing to a string cannot fail.
                Some(colour) => _ = write!(self.out, "\x1b[{colour}m{shown}\x1b[0m"),
                None => self.out.push_str(shown),
            }
        }
        let kept = self.out.trim_end_matches(' ').len();
        self.out.truncate(kept);
        self.out.push('\n');
    }

    /// `text` in ASCII, if nothing else is understood.
    fn spelled(&self, text: &str) -> String {
        if !self.ascii || text.is_ascii() {
            return text.to_string();
        }
        let mut spelled = String::new();
        for c in text.chars() {
            match c {
                c if c.is_ascii() => spelled.push(c),
                '·' => spelled.push('|'),
                '…' => spelled.push_str("..."),
                c => spelled.extend(c.escape_unicode()),
            }
        }
        spelled
    }

    /// Texts one after the other, on as many lines as they take; each line begins with `indent` columns.
    fn flow(&mut self, indent: usize, texts: Vec<Span>) {
        let between = self.glyphs.between;
        let indent = self.indent(indent);
        let mut line = vec![said(" ".repeat(indent))];
        let mut used = indent;
        let texts = texts
            .into_iter()
            .flat_map(|span| self.broken(span, self.width - indent));
        for span in texts.collect::<Vec<_>>() {
            let more = width(&self.spelled(&span.text));
            if used > indent && used + width(between) + more > self.width {
                self.line(&line);
                line.truncate(1);
                used = indent;
            }
            if used > indent {
                line.push(said(between));
                used += width(between);
            }
            used += more;
            line.push(span);
        }
        if line.len() > 1 {
            self.line(&line);
        }
    }

    /// An indentation, less where there is little room.
    fn indent(&self, indent: usize) -> usize {
        if self.width < 32 {
            indent.min(2)
        } else {
            indent
        }
    }

    /// A text in parts of at most `room` columns, broken between words where it can be.
    fn broken(&self, span: Span, room: usize) -> Vec<Span> {
        let Span { text, colour } = span;
        if width(&self.spelled(&text)) <= room {
            return vec![Span { text, colour }];
        }
        let mut lines: Vec<String> = vec![String::new()];
        for word in text.split_whitespace() {
            let word = fit(&self.spelled(word), room, self.glyphs.ellipsis);
            match lines.last_mut() {
                Some(line) if line.is_empty() => line.push_str(&word),
                Some(line) if width(line) + 1 + width(&word) <= room => {
                    line.push(' ');
                    line.push_str(&word);
                }
                _ => lines.push(word),
            }
        }
        lines
            .into_iter()
            .map(|text| Span { text, colour })
            .collect()
    }

    /// Running text behind a heading, broken between words.
    fn prose(&mut self, heading: &str, text: &str, indent: usize) {
        let indent = self.indent(indent);
        let mut line = heading.to_string();
        let mut fresh = true;
        for word in plain(text).split_whitespace() {
            let word = fit(
                &self.spelled(word),
                self.width - indent,
                self.glyphs.ellipsis,
            );
            let gap = usize::from(!fresh);
            if width(&line) > indent && width(&line) + gap + width(&word) > self.width {
                self.line(&[said(line)]);
                line = " ".repeat(indent);
                fresh = true;
            }
            if !fresh {
                line.push(' ');
            }
            line.push_str(&word);
            fresh = false;
        }
        self.line(&[said(line)]);
    }

    fn model(&mut self, report: &Report) {
        let model = &report.model;
        let ellipsis = self.glyphs.ellipsis;
        let mut parts = vec![said(fit(
            &self.spelled(&plain(&model.name)),
            self.width,
            ellipsis,
        ))];
        parts.extend(model.architecture.iter().map(|name| said(plain(name))));
        parts.extend(
            model
                .parameters
                .map(|n| said(format!("{} parameters", words::parameters(n)))),
        );
        parts.push(said(
            match model.dtype.as_ref().or(model.stored_dtype.as_ref()) {
                Some(dtype) => format!("{} in {}", format_size(model.bytes), plain(dtype)),
                None => format_size(model.bytes),
            },
        ));
        self.flow(0, parts);
        let workload = &report.workload;
        let mut parts = vec![said(plain(&report.strategy))];
        if workload.batch != 1 {
            parts.push(said(words::count(workload.batch, "text")));
        }
        parts.push(said(format!(
            "prompt {}",
            words::count(workload.prompt, "token")
        )));
        parts.push(said(format!("context {}", workload.position)));
        parts.extend(
            model
                .kv_dtype
                .iter()
                .map(|dtype| said(format!("KV {}", plain(dtype)))),
        );
        self.flow(0, parts);
    }

    fn tier(&mut self, report: &Report, tier: &TierReport) {
        let held = &tier.held;
        let label = held.tier.to_string();
        let label_width = report
            .tiers
            .iter()
            .map(|tier| width(&tier.held.tier.to_string()))
            .max();
        let label_width = label_width.unwrap_or(0);
        let size = match held.budget {
            Some(budget) => format!("{} of {}", format_size(held.sum()), format_size(budget)),
            None => format_size(held.sum()),
        };
        let size = if tier.detected {
            format!("{size} detected")
        } else {
            size
        };
        let heading = painted(format!("{label:<label_width$} "), ansi(held.tier));
        let frame = width(self.glyphs.left) + width(self.glyphs.right);
        if self.width >= ONE_LINE {
            let cells = self.width - label_width - 1 - frame - 1 - 26;
            let mut line = vec![heading];
            line.extend(self.bar(report, tier, cells));
            line.push(said(format!(" {size}")));
            self.line(&line);
        } else {
            self.line(&[heading, said(size)]);
            let bar = self.bar(report, tier, self.width - frame);
            self.line(&bar);
        }
        let details = parts(tier)
            .into_iter()
            .map(|(part, bytes)| {
                let text = format!(
                    "{} {} {}",
                    self.glyphs.of(part),
                    part.name(),
                    format_size(bytes)
                );
                match ansi_part(part) {
                    Some(colour) => painted(text.trim_start(), colour),
                    None => painted(text, ansi(held.tier)),
                }
            })
            .collect();
        self.flow(label_width + 2, details);
    }

    /// What is held on a device, as wide as it is large; blocks alternate where they can be told apart.
    fn bar(&self, report: &Report, tier: &TierReport, cells: usize) -> Vec<Span> {
        let held = parts(tier);
        let sizes: Vec<u64> = held.iter().map(|(_, bytes)| *bytes).collect();
        let mut spans = vec![said(self.glyphs.left)];
        let mut used = 0;
        for ((part, _), cells) in held.iter().zip(apportion(&sizes, cells)) {
            used += cells;
            let text = match part {
                Part::Weights => self.weights(report, tier, cells),
                part => self.glyphs.of(*part).to_string().repeat(cells),
            };
            spans.push(painted(
                text,
                ansi_part(*part).unwrap_or(ansi(tier.held.tier)),
            ));
        }
        spans.push(said(" ".repeat(cells - used)));
        spans.push(said(self.glyphs.right));
        spans
    }

    fn weights(&self, report: &Report, tier: &TierReport, cells: usize) -> String {
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

    fn blocks(&mut self, report: &Report) {
        let rows = rows(&report.blocks);
        let shown = if rows.len() > MOST_ROWS {
            MOST_ROWS - 1
        } else {
            rows.len()
        };
        let names = rows[..shown]
            .iter()
            .map(|row| width(&self.spelled(&row.name)))
            .max()
            .unwrap_or(0);
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
            let pad = self.width.min(MOST_WIDTH) - used - width(&size);
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
        let name = fit(
            &name,
            self.width.saturating_sub(width(&size) + 1).max(8),
            self.glyphs.ellipsis,
        );
        let pad = self.width.saturating_sub(width(&name) + width(&size));
        self.line(&[said(name), said(" ".repeat(pad)), said(size)]);
        let mut parts: Vec<Span> = row
            .parts()
            .into_iter()
            .map(|(tier, text)| painted(text, ansi(tier)))
            .collect();
        if let Some(first) = parts.first_mut() {
            first.text.insert_str(0, &format!("{arrow} "));
        }
        self.flow(2, parts);
    }

    fn prediction(&mut self, report: &Report) {
        let prediction = &report.prediction;
        self.timed("load", prediction.load_seconds, Vec::new());
        let phase = |phase: &PhaseReport, what: &str| {
            let mut parts = vec![said(format!(
                "{} {what}",
                words::rate(phase.tokens_per_second)
            ))];
            parts.push(said(bounded(phase)));
            parts
        };
        let tokens = report.workload.prompt.saturating_mul(report.workload.batch);
        let mut parts = vec![said(words::count(tokens, "token"))];
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
        let seconds = words::seconds(seconds);
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
        self.prose(
            &format!("{heading} "),
            &outcome(what_if, now),
            width(&heading) + 1,
        );
    }

    fn notes(&mut self, report: &Report) {
        self.blank();
        self.prose("", &format!("Figures: {}", report.figures_source), 0);
        for note in &report.notes {
            self.prose("note: ", note, 6);
        }
    }
}

/// What limits a pass, in words.
pub(super) fn bounded(phase: &PhaseReport) -> String {
    let each = match phase.bound {
        Bound::Disk => phase.time.disk_bytes,
        Bound::Upload => phase.time.upload_bytes,
        Bound::Memory | Bound::Compute => return format!("{} is the limit", phase.bound.name()),
    };
    format!("{} is the limit: {}", phase.bound.name(), format_size(each))
}

/// What another budget would change, in words.
pub(super) fn outcome(what_if: &WhatIf, now: f64) -> String {
    match (what_if.decode_seconds, what_if.least, &what_if.reason) {
        (Some(seconds), ..) => {
            let text = format!("{} per token", words::seconds(seconds));
            match words::change(now, seconds) {
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
