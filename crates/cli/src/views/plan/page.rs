//! Lines of text within the width of a page.

use super::glyphs::{ASCII, Glyphs, UNICODE};
use super::palette::Ansi;
use crate::views::style::Style;
use crate::views::text::{fit, head, plain, width};
use std::fmt::Write;

/// The narrowest page, in columns.
const LEAST_WIDTH: usize = 20;

/// The widest page, in columns, however wide the terminal is: longer lines are hard to read.
const MOST_WIDTH: usize = 120;

/// A text with an optional colour.
pub struct Span {
    pub text: String,
    pub colour: Option<Ansi>,
}

pub fn said(text: impl Into<String>) -> Span {
    Span { text: text.into(), colour: None }
}

pub fn painted(text: impl Into<String>, colour: Ansi) -> Span {
    Span { text: text.into(), colour: Some(colour) }
}

pub struct Page {
    pub glyphs: &'static Glyphs,
    colour: bool,
    ascii: bool,
    pub width: usize,
    pub out: String,
}

impl Page {
    pub fn new(style: &Style) -> Self {
        Self {
            glyphs: if style.ascii { &ASCII } else { &UNICODE },
            colour: style.colour,
            ascii: style.ascii,
            width: style.width.clamp(LEAST_WIDTH, MOST_WIDTH),
            out: String::new(),
        }
    }

    pub fn blank(&mut self) {
        self.out.push('\n');
    }

    /// A line, cut where the page ends.
    pub fn line(&mut self, spans: &[Span]) {
        let mut room = self.width;
        for span in spans {
            let text = self.spelled(&span.text);
            let mut shown = head(&text, room);
            room -= width(shown);
            if shown.len() < text.len() {
                shown = shown.trim_end();
            }
            match span.colour.filter(|_| self.colour && !shown.trim().is_empty()) {
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
    pub fn spelled(&self, text: &str) -> String {
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

    /// Texts on as many lines as they take, each line indented by `indent` columns.
    pub fn flow(&mut self, indent: usize, texts: Vec<Span>) {
        let between = self.glyphs.between;
        let indent = self.indent(indent);
        let mut line = vec![said(" ".repeat(indent))];
        let mut used = indent;
        let texts = texts.into_iter().flat_map(|span| self.broken(span, self.width - indent));
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

    /// The indentation, less on narrow pages.
    fn indent(&self, indent: usize) -> usize {
        if self.width < 32 { indent.min(2) } else { indent }
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
        lines.into_iter().map(|text| Span { text, colour }).collect()
    }

    /// Text behind a heading, broken between words.
    pub fn prose(&mut self, heading: &str, text: &str, indent: usize) {
        let indent = self.indent(indent);
        let mut line = heading.to_string();
        let mut fresh = true;
        for word in plain(text).split_whitespace() {
            let word = fit(&self.spelled(word), self.width - indent, self.glyphs.ellipsis);
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
}
