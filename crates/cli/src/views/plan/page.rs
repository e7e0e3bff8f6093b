//! Lines of text within the width of a page.

use crate::views::style::Style;
use crate::views::text::{ascii, fit, head, plain, width, wrapped};
use std::fmt::Write;

/// The narrowest page, in columns.
const LEAST_WIDTH: usize = 20;

/// The widest page, in columns, however wide the terminal is: longer lines are hard to read.
const MOST_WIDTH: usize = 120;

/// A text with an optional colour, the number of one of the sixteen that every theme has.
pub struct Span {
    pub text: String,
    pub colour: Option<u8>,
}

pub fn said(text: impl Into<String>) -> Span {
    Span { text: text.into(), colour: None }
}

pub fn painted(text: impl Into<String>, colour: u8) -> Span {
    Span { text: text.into(), colour: Some(colour) }
}

pub struct Page {
    /// The ends of a bar.
    pub frame: [&'static str; 2],
    /// Weights of every other block.
    pub odd: char,
    pub arrow: &'static str,
    pub between: &'static str,
    pub ellipsis: &'static str,
    pub ascii: bool,
    colour: bool,
    pub width: usize,
    pub out: String,
}

impl Page {
    pub fn new(style: &Style) -> Self {
        let (frame, odd, arrow, between, ellipsis) = match style.ascii {
            true => (["[", "]"], '=', "->", " | ", "..."),
            false => (["▕", "▏"], '▓', "→", " · ", "…"),
        };
        let width = style.width.clamp(LEAST_WIDTH, MOST_WIDTH);
        let (ascii, colour, out) = (style.ascii, style.colour, String::new());
        Self { frame, odd, arrow, between, ellipsis, ascii, colour, width, out }
    }

    pub fn blank(&mut self) {
        self.out.push('\n');
    }

    /// A line, cut where the page ends.
    pub fn line(&mut self, spans: &[Span]) {
        let mut room = self.width;
        for like in spans.chunk_by(|a, b| a.colour == b.colour) {
            let text: String = like.iter().map(|span| self.spelled(&span.text)).collect();
            let mut shown = head(&text, room);
            room -= width(shown);
            if shown.len() < text.len() {
                shown = shown.trim_end();
            }
            match like[0].colour.filter(|_| self.colour && !shown.trim().is_empty()) {
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
        if self.ascii { ascii(text) } else { text.to_string() }
    }

    /// Texts on as many lines as they take, each line indented by `indent` columns.
    pub fn flow(&mut self, indent: usize, texts: impl Iterator<Item = Span>) {
        let indent = self.indent(indent);
        let room = self.width - indent;
        let mut line = vec![said(" ".repeat(indent))];
        let mut used = indent;
        for Span { text, colour } in texts {
            // Broken between words where it can be.
            for text in self.broken(&text, room, room) {
                let more = width(&text);
                if used > indent && used + width(self.between) + more > self.width {
                    self.line(&line);
                    line.truncate(1);
                    used = indent;
                }
                if used > indent {
                    line.push(said(self.between));
                    used += width(self.between);
                }
                used += more;
                line.push(Span { text, colour });
            }
        }
        if line.len() > 1 {
            self.line(&line);
        }
    }

    /// The indentation, less on narrow pages, and no more than half of any.
    fn indent(&self, indent: usize) -> usize {
        indent.min(if self.width < 32 { 2 } else { self.width / 2 })
    }

    /// A text in lines of at most `room` columns, `first` for the first, broken between words where
    /// it can be.
    fn broken(&self, text: &str, first: usize, room: usize) -> Vec<String> {
        let text = self.spelled(text);
        let words = text.split_whitespace().map(|word| fit(word, room, self.ellipsis));
        match width(&text) <= first {
            true => vec![text],
            false => wrapped(words, first, room),
        }
    }

    /// Text behind a heading, broken between words.
    pub fn prose(&mut self, heading: &str, text: &str, indent: usize) {
        let indent = self.indent(indent);
        let first = self.width.saturating_sub(width(heading));
        let lines = self.broken(&plain(text), first, self.width - indent);
        for (at, line) in lines.into_iter().enumerate() {
            let before = if at == 0 { heading.to_string() } else { " ".repeat(indent) };
            self.line(&[said(before + &line)]);
        }
    }
}
