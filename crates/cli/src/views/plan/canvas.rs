//! Shapes and texts of an SVG.

use crate::views::text::{plain, width};
use std::fmt::Write;

/// Pixels of a column of text, in the normal and in the small size of a wide font.
pub const COLUMN: f64 = 7.3;
pub const SMALL_COLUMN: f64 = 6.8;

/// SVG elements as text. Sizes are in pixels.
pub struct Canvas {
    body: String,
}

/// `text` escaped for XML, in content and in attributes, without forbidden characters.
pub fn escaped(text: &str) -> String {
    plain(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

/// The width that a small text takes at most, in pixels.
pub fn small_width(text: &str) -> f64 {
    width(text) as f64 * SMALL_COLUMN
}

impl Canvas {
    pub fn new() -> Self {
        Self { body: String::new() }
    }

    /// A filled rectangle with a tooltip.
    pub fn rect(&mut self, [x, y, w, h]: [f64; 4], class: &str, title: &str) {
        let (x, y, w, h) = (number(x), number(y), number(w), number(h));
        // Writing to a string cannot fail.
        _ = write!(self.body, r#"<rect x="{x}" y="{y}" width="{w}" height="{h}" class="{class}""#);
        match title {
            "" => self.body.push_str("/>\n"),
            title => _ = writeln!(self.body, "><title>{}</title></rect>", escaped(title)),
        }
    }

    /// A text that begins, or ends, at a point.
    pub fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let (x, y) = (number(x), number(y));
        _ = writeln!(
            self.body,
            r#"<text x="{x}" y="{y}" class="{class}">{}</text>"#,
            escaped(text)
        );
    }

    /// A thin line from left to right.
    pub fn rule(&mut self, x: f64, y: f64, w: f64) {
        let (x, end, y) = (number(x), number(x + w), number(y));
        _ = writeln!(self.body, r#"<line x1="{x}" y1="{y}" x2="{end}" y2="{y}" class="line"/>"#);
    }

    /// A legend entry: a coloured square and a small text. Returns its width in pixels.
    pub fn swatch(&mut self, x: f64, y: f64, class: &str, text: &str) -> f64 {
        self.rect([x, y - 9.0, 10.0, 10.0], class, "");
        self.text(x + 15.0, y, "s", text);
        15.0 + small_width(text) + 16.0
    }

    /// All of it.
    pub fn finish(self) -> String {
        self.body
    }
}

/// A length to a tenth of a pixel.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_become_tags() {
        let mut canvas = Canvas::new();
        canvas.text(1.0, 2.25, "s", "</text><script>\"&'\u{0}\u{ffff}");
        canvas.rect([0.0, 0.0, 1.0, 1.0], "a", "<b>");
        assert_eq!(
            canvas.finish(),
            "<text x=\"1\" y=\"2.2\" class=\"s\">&lt;/text&gt;&lt;script&gt;&quot;&amp;&#39;\\0\\u{ffff}</text>\n\
             <rect x=\"0\" y=\"0\" width=\"1\" height=\"1\" class=\"a\"><title>&lt;b&gt;</title></rect>\n"
        );
    }
}
