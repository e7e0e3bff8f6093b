//! The table of `outsize estimate`.

use super::human;
use super::style::WIDTH;
use super::table::Table;
use super::text::wrapped;
use outsize::checkpoint::{plain, shown};
use outsize::plan::{Estimate, Routed, WeightDtype, format_size};
use serde::Serialize;
use std::collections::BTreeMap;

/// The result of `outsize estimate --json`. All sizes in bytes.
#[derive(Debug, Serialize)]
pub struct EstimateOutput {
    /// The model as it was named.
    pub model: String,
    /// `model_type` in its config.json.
    pub architecture: Option<String>,
    /// What the sizes come from: config, config and headers, or headers.
    pub source: &'static str,
    /// Values of all weights, as far as they are floating point numbers or integers of their own.
    pub parameters: u64,
    /// How a router chooses experts, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<Routed>,
    /// Tensors.
    pub tensors: usize,
    /// Bytes of weights and buffers by the type that they are stored in.
    pub stored: BTreeMap<WeightDtype, u64>,
    /// Tokens of each sequence; none if the KV cache is unknown.
    pub context: Option<usize>,
    /// Batch size.
    pub batch: usize,
    /// The type of the KV cache.
    pub kv_dtype: &'static str,
    /// Tokens of each text in the longest pass.
    pub pass: Option<usize>,
    /// One for each type asked for, in that order.
    pub estimates: Vec<Estimate>,
    /// What should be known of them.
    pub notes: Vec<String>,
}

/// Shown for unknown values.
const UNKNOWN: &str = "unknown";

/// Titles of the columns.
const TITLES: [&str; 8] = [
    "weights in",
    "weights",
    "largest block",
    "KV cache",
    "activations",
    "to run",
    "at least",
    "to train",
];

/// The report as text: a table, or a list if the table is wider than the terminal.
pub fn text(report: &EstimateOutput, terminal: Option<usize>) -> String {
    let width = terminal.unwrap_or(WIDTH);
    let rows: Vec<[String; 8]> = report.estimates.iter().map(|row| cells(row, report)).collect();
    let table = wide(&rows);
    let fits = |width| table.lines().all(|line| line.chars().count() <= width);
    let figures = if terminal.is_none_or(fits) { table } else { list(&rows) };
    let mut text = String::new();
    for line in head(report).lines() {
        text += &(wrapped(line.split(' '), width, width).join("\n") + "\n");
    }
    text += &format!("\n{figures}\n");
    let notes = report.notes.iter().map(|note| format!("note: {note}"));
    for line in legend(report).into_iter().chain(notes) {
        text += &(wrapped(line.split(' '), width, width).join("\n") + "\n");
    }
    text
}

fn head(report: &EstimateOutput) -> String {
    let architecture = report.architecture.as_deref().unwrap_or("architecture unknown");
    let mut text = format!(
        "{}: {architecture}, {} parameters in {} tensors, by its {}\n",
        plain(&report.model),
        human::parameters(report.parameters),
        report.tensors,
        report.source
    );
    if let Some(routed) = report.experts {
        text.push_str(&format!("{}, of which all are counted\n", human::experts(routed)));
    }
    if let Some(context) = report.context {
        text.push_str(&format!(
            "{context} tokens of context, {}, KV cache in {}\n",
            match report.batch {
                1 => "one text".to_owned(),
                batch => format!("{batch} texts"),
            },
            report.kv_dtype
        ));
    }
    text
}

/// What the columns mean, those that are there.
fn legend(report: &EstimateOutput) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(pass) = report.pass {
        lines.push(format!(
            "to run: weights, KV cache, activations of passes of {pass} tokens and the process itself, all in memory"
        ));
        lines.push(
            "at least: the least --max-memory cpu= of `outsize run`; the rest is streamed from disk".to_owned(),
        );
    }
    lines.push(
        "to train: with Adam, without activations. f32: weights, gradients and two moments; 16 bits: these in f32, and a copy of \
         the weights"
            .to_owned(),
    );
    lines
}

fn cells(row: &Estimate, report: &EstimateOutput) -> [String; 8] {
    let size = |bytes: Option<u64>| bytes.map_or_else(|| UNKNOWN.to_owned(), format_size);
    let largest = match &row.largest_block {
        Some(largest) => format!("{} {}", format_size(largest.bytes), block(&largest.name)),
        None => "none".to_owned(),
    };
    [
        match row.dtype {
            Some(dtype) => dtype.to_string(),
            None => format!("as stored{}", stored(report)),
        },
        format_size(row.weights),
        largest,
        size(row.kv_cache),
        size(row.activations),
        size(row.resident),
        size(row.least),
        row.training.map_or_else(|| "-".to_owned(), |training| format_size(training.total)),
    ]
}

/// The type that all, or most, of the weights are stored in.
fn stored(report: &EstimateOutput) -> String {
    let most = report.stored.iter().max_by_key(|(_, bytes)| **bytes);
    match (most, report.stored.len()) {
        (None, _) => String::new(),
        (Some((dtype, _)), 1) => format!(" ({dtype})"),
        (Some((dtype, _)), _) => format!(" (mostly {dtype})"),
    }
}

/// A block's name, fit for a column.
fn block(name: &str) -> String {
    match name {
        "" => "(the model itself)".to_owned(),
        name => shown(name, 40),
    }
}

/// One line for each type: sizes to the right, words to the left.
fn wide(rows: &[[String; 8]]) -> String {
    let mut table = Table::default();
    table.row(TITLES);
    rows.iter().for_each(|row| table.row(row.clone()));
    table.align_right(&[1, 3, 4, 5, 6, 7]);
    table.text(usize::MAX)
}

/// One line for each figure: for narrow terminals.
fn list(rows: &[[String; 8]]) -> String {
    let list = |row: &[String; 8]| {
        let mut table = Table::default();
        TITLES.iter().zip(row).for_each(|(title, cell)| table.row([*title, cell]));
        table.text(usize::MAX)
    };
    rows.iter().map(list).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use outsize::plan::{LargestBlock, Training};

    fn row(dtype: Option<WeightDtype>, name: &str) -> Estimate {
        Estimate {
            dtype,
            parameters: 1_234_567,
            weights: 2_469_134,
            largest_block: Some(LargestBlock { name: name.to_owned(), bytes: 2_000_000 }),
            kv_cache: Some(1_000_000),
            activations: Some(3_000_000),
            resident: Some(30_000_000),
            least: None,
            training: Some(Training {
                weights: 1,
                copy: 1,
                gradients: 1,
                moments: 2,
                total: 22_222_206,
            }),
        }
    }

    fn report(name: &str) -> EstimateOutput {
        EstimateOutput {
            model: "org/name".to_owned(),
            architecture: Some("llama".to_owned()),
            source: "headers",
            parameters: 1_234_567,
            experts: None,
            tensors: 12,
            stored: [(WeightDtype::F32, 1000), (WeightDtype::Bf16, 2_468_134)].into(),
            context: Some(64),
            batch: 2,
            kv_dtype: "f32",
            pass: Some(64),
            estimates: vec![row(None, name), row(Some(WeightDtype::Int4), name)],
            notes: vec!["blocks are guessed".to_owned()],
        }
    }

    #[test]
    fn a_table_stands_in_columns() {
        let text = text(&report("model.layers.0"), None);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "org/name: llama, 1.23 million parameters in 12 tensors, by its headers"
        );
        assert_eq!(lines[1], "64 tokens of context, 2 texts, KV cache in f32");
        assert!(
            lines[4].starts_with("as stored (mostly bf16)  2.47 MB  2 MB model.layers.0"),
            "{text}"
        );
        assert!(lines[4].ends_with("30 MB   unknown   22.2 MB"), "{text}");
        assert_eq!(lines[5].find("2 MB"), lines[4].find("2 MB"));
        assert_eq!(*lines.last().unwrap(), "note: blocks are guessed");
        // The widest terminal that is too narrow, and the narrowest that is not.
        let width = lines[3..6].iter().map(|line| line.len()).max().unwrap();
        let fitting = super::text(&report("model.layers.0"), Some(width));
        assert!(fitting.contains(&lines[3..6].join("\n")), "{fitting}");
        let narrow = super::text(&report("model.layers.0"), Some(width - 1));
        assert!(narrow.contains("\nKV cache       1 MB\n"), "{narrow}");
        let figures = narrow.lines().skip(3).take(17);
        assert!(figures.map(str::len).all(|len| len <= 40), "{narrow}");
    }

    #[test]
    fn names_of_strangers_are_short_and_harmless() {
        let name = format!("\u{1b}[2J{}", "x".repeat(4000));
        let text = text(&report(&name), None);
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(text.lines().all(|line| line.chars().count() < 200), "{text}");
        assert!(super::text(&report(""), None).contains("2 MB (the model itself)"));
    }
}
