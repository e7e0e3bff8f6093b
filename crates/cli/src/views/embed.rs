//! The report of embedding: the object that `--json` prints, and how similar texts are.

use super::human::count;
use super::memory::MemoryHeld;
use super::style::style;
use super::table::Table;
use super::text::{ascii, fit, plain};
use outsize::generate::{Pipeline, TextEmbedding, cosine_similarity};
use outsize::plan::{DeviceMap, format_size};
use serde::Serialize;
use std::time::Instant;

/// Texts whose similarities are all shown, at most.
const SQUARE: usize = 12;

/// Columns of a bar.
const BAR: usize = 20;

/// The result of `outsize embed --json`. All times in seconds, all sizes in bytes.
#[derive(Serialize, Debug)]
pub struct EmbedOutput {
    /// The vector of `--query`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<Vec<f32>>,
    /// The vectors of `--text`, in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embeddings: Option<Vec<Vec<f32>>>,
    /// Values of a vector.
    pub dimensions: usize,
    /// Texts that were embedded.
    pub texts: usize,
    /// Tokens that were run.
    pub tokens: usize,
    /// Texts of which something was cut off.
    pub cut: usize,
    /// From the first pass to the last, what is read first included.
    pub seconds: f64,
    /// Read from the checkpoint.
    pub bytes_read: u64,
    #[serde(flatten)]
    pub memory: MemoryHeld,
    /// Where everything lived.
    pub placement: DeviceMap,
}

impl EmbedOutput {
    /// One line of figures.
    pub fn summary(&self) -> String {
        let cut = match self.cut {
            0 => String::new(),
            cut => format!(" · {cut} of them cut off: they are longer than the context"),
        };
        format!(
            "{} in {} dimensions{cut} · {} tokens in {:.1} s: {:.0} tokens/s · read {}{}",
            count(self.texts as u64, "text"),
            self.dimensions,
            self.tokens,
            self.seconds,
            self.tokens as f64 / self.seconds.max(1e-9),
            format_size(self.bytes_read),
            self.memory,
        )
    }
}

/// What is counted while texts are embedded.
pub struct EmbedRun {
    began: Instant,
    dimensions: usize,
    texts: usize,
    tokens: usize,
    cut: usize,
}

impl EmbedRun {
    /// From now on.
    pub fn begin() -> Self {
        Self { began: Instant::now(), dimensions: 0, texts: 0, tokens: 0, cut: 0 }
    }

    /// Counts more texts.
    pub fn add(&mut self, vectors: &[TextEmbedding]) {
        self.dimensions = vectors.first().map_or(self.dimensions, |vector| vector.values.len());
        self.texts += vectors.len();
        self.tokens += vectors.iter().map(|vector| vector.tokens).sum::<usize>();
        self.cut += vectors.iter().filter(|vector| vector.cut > 0).count();
    }

    /// The figures, without vectors.
    pub fn end(self, pipeline: &Pipeline) -> EmbedOutput {
        let placement = pipeline.device_map().clone();
        EmbedOutput {
            query: None,
            embeddings: None,
            dimensions: self.dimensions,
            texts: self.texts,
            tokens: self.tokens,
            cut: self.cut,
            seconds: self.began.elapsed().as_secs_f64(),
            bytes_read: pipeline.stats().bytes_read,
            memory: MemoryHeld::now(&placement),
            placement,
        }
    }
}

/// Texts in the order of their similarity to a query, the most similar one first.
pub fn ranking(query: &TextEmbedding, vectors: &[TextEmbedding], texts: &[String]) -> String {
    let similarity = |vector: &TextEmbedding| cosine_similarity(&query.values, &vector.values);
    let mut ranked: Vec<_> = vectors.iter().map(similarity).zip(texts).collect();
    ranked.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let mut table = Table::default();
    for (similarity, text) in ranked {
        let filled = (similarity.clamp(0.0, 1.0) * BAR as f64).round() as usize;
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled));
        table.row([drawn(&bar), format!("{similarity:.3}"), line(text, BAR + 10)]);
    }
    table.align_right(&[1]);
    table.text(style().width)
}

/// How similar each text is to each other one.
pub fn similarities(vectors: &[TextEmbedding], texts: &[String]) -> String {
    let mut table = Table::default();
    if let [one] = vectors {
        let values: Vec<_> = one.values.iter().take(8).map(|value| format!("{value:.4}")).collect();
        let more = if one.values.len() > 8 { ", … (all of them: --json)" } else { "" };
        return drawn(&format!("{}{more}\n", values.join(", ")));
    }
    let shown = vectors.len().min(SQUARE);
    let numbers = (1..=shown).map(|number| number.to_string());
    table.0.push(std::iter::once(String::new()).chain(numbers).collect());
    for (number, (vector, text)) in vectors.iter().zip(texts).enumerate() {
        let to = |other: &TextEmbedding| cosine_similarity(&vector.values, &other.values);
        let cells = vectors[..shown].iter().map(|other| format!("{:.2}", to(other)));
        let begin = std::iter::once((number + 1).to_string());
        let end = std::iter::once(line(text, 4 + shown * 7));
        table.0.push(begin.chain(cells).chain(end).collect());
    }
    table.align_right(&(0..=shown).collect::<Vec<_>>());
    table.text(style().width)
}

/// A text in what is left of a line.
fn line(text: &str, before: usize) -> String {
    let room = style().width.saturating_sub(before).max(20);
    drawn(&fit(&plain(&text.split_whitespace().collect::<Vec<_>>().join(" ")), room, "…"))
}

fn drawn(text: &str) -> String {
    if style().ascii { ascii(text) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors() -> (Vec<TextEmbedding>, Vec<String>) {
        let vectors = [[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]];
        let vector = |values: [f32; 2]| TextEmbedding { values: values.into(), tokens: 1, cut: 0 };
        let texts = ["one", "an\nother", "opposite"].map(str::to_owned);
        (vectors.map(vector).into(), texts.into())
    }

    #[test]
    fn similar_texts_come_first() {
        let (vectors, texts) = vectors();
        let shown = ranking(&vectors[1], &vectors, &texts);
        let lines: Vec<_> = shown.lines().collect();
        assert!(lines[0].ends_with("1.000  an other"), "{shown}");
        assert!(lines[1].ends_with("0.600  one"), "{shown}");
        assert!(lines[2].ends_with("-0.600  opposite"), "{shown}");
        assert_eq!(lines[1].matches(['█', '#']).count(), 12);
    }

    #[test]
    fn each_text_is_compared_with_each() {
        let (vectors, texts) = vectors();
        let shown = similarities(&vectors, &texts);
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines.len(), 4);
        let words: Vec<_> = lines[2].split_whitespace().collect();
        assert_eq!(words, ["2", "0.60", "1.00", "-0.60", "an", "other"]);
        assert!(similarities(&vectors[..1], &texts[..1]).starts_with("1.0000, 0.0000\n"));
    }
}
