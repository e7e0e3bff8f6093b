//! Results of the bench as tables.

use super::human::{bandwidth, share, time};
use super::table;
use crate::args::values::{ACTIVATION_DTYPES, name_of};
use outsize::bench::{
    BenchResults, BudgetResults, LIMIT_ROWS, LimitSample, Phase, ProductSample, RateUnit, Summary,
};
use outsize::plan::format_size;

type Row = Vec<String>;

/// The results, in lines of at most `width` columns.
pub fn text(results: &BenchResults, width: usize) -> String {
    let mut text = table::lines(&machine(results), width).join("\n") + "\n";
    if let (Some(model), Some(task)) = (&results.model, &results.task) {
        let compute = name_of(ACTIVATION_DTYPES, &task.compute);
        let head = format!(
            "{}: {} of weights in {} files; prompt of {} tokens, {} new, activations in {}; rounds: {}, in turns \
             with the measurements above",
            model.folder.display(),
            format_size(model.weight_bytes),
            model.files,
            task.prompt_tokens,
            task.new_tokens,
            compute,
            task.rounds,
        );
        let rows = std::iter::once(vec![head]).chain(results.budgets.iter().flat_map(budget));
        let rows: Vec<_> = rows.collect();
        text += &format!("\n{}\n", table::lines(&rows, width).join("\n"));
    }
    if !results.notes.is_empty() {
        let notes: Vec<Row> =
            results.notes.iter().map(|note| vec!["note:".to_string(), note.clone()]).collect();
        text += &format!("\n{}\n", table::lines(&notes, width).join("\n"));
    }
    text
}

/// A row of cells.
fn row<const N: usize>(cells: [&str; N]) -> Row {
    cells.map(String::from).to_vec()
}

/// The limits, and this program's matmuls beside them.
fn machine(results: &BenchResults) -> Vec<Row> {
    use RateUnit::{Bytes, Operations};
    let of = |value: fn(&LimitSample) -> f64| Summary::of(results.limits.iter().map(value));
    let line = |name: &str, value: String, spread: f64, how: &str| -> Row {
        vec![name.to_string(), value, share(spread), how.to_string()]
    };
    let rate = |name, unit, figure: Summary, how: &str| {
        line(name, bandwidth(unit, figure.median), figure.spread(), how)
    };
    let disk = &results.disk;
    let (reads, size) = (disk.in_flight, format_size(disk.block as u64));
    let reads = format!("{reads} reads of {size} in flight, of {}", disk.files);
    let latency = of(|l| l.disk_latency_seconds);
    let memory = format_size(results.memory_bytes);
    let memory = format!("{memory}, {} threads", results.threads);
    let faults = match results.limits.iter().map(|l| l.prefaulted_bytes).max() {
        Some(prefaulted @ 1..) => {
            format!("page faults included, after up to {} prefaulted", format_size(prefaulted))
        }
        _ => "page faults included".to_string(),
    };
    let [f32, bf16] = results.instructions;
    let product = |name, unit, value: fn(&ProductSample) -> f64, limit: fn(&_) -> f64, what| {
        let samples = || results.products.iter();
        let ratio = Summary::of(samples().map(|of| value(of) / limit(of).max(1e-9)));
        let how = format!("{} of {what}", share(ratio.median));
        rate(name, unit, Summary::of(samples().map(value)), &how)
    };
    let gemm = format!("products, {LIMIT_ROWS} rows");
    vec![
        row(["the machine", "median", "spread", "how"]),
        rate("disk", Bytes, of(|l| l.disk_bytes_per_second), &reads),
        line("disk, one page", time(latency.median), latency.spread(), "nothing else in flight"),
        rate("memory read", Bytes, of(|l| l.memory_bytes_per_second), &memory),
        rate("memory copied", Bytes, of(|l| l.copy_bytes_per_second), &memory),
        rate("memory, first touch", Bytes, of(|l| l.first_touch_bytes_per_second), &faults),
        rate("multiply-adds", Operations, of(|l| l.f32_flops), f32),
        rate("", Operations, of(|l| l.bf16_flops), bf16),
        product(
            "products, 1 row",
            Bytes,
            |p| p.one_row_bytes_per_second,
            |p| p.memory_bytes_per_second,
            "memory read",
        ),
        product(&gemm, Operations, |p| p.f32_rows_flops, |p| p.f32_flops, "multiply-adds of f32"),
        product(
            "",
            Operations,
            |p| p.bf16_rows_flops,
            |p| p.bf16_flops,
            "those of bf16, rounded to it",
        ),
    ]
}

/// A model in one budget.
fn budget(budget: &BudgetResults) -> Vec<Row> {
    let mut rows = vec![Vec::new()];
    let Some(first) = budget.runs.first() else {
        let error = budget.error.as_deref().unwrap_or("it was not run");
        rows.push(vec![format!("{}: {error}", budget.name)]);
        return rows;
    };
    let peaks = budget.runs.iter().filter_map(|run| run.report.peak_rss_bytes);
    let peak = match (peaks.max(), budget.budget_bytes) {
        (Some(peak), Some(bytes)) => {
            format!(": peak {} of {}", format_size(peak), format_size(bytes))
        }
        (Some(peak), None) => format!(": peak {}", format_size(peak)),
        (None, _) => String::new(),
    };
    let placement = &first.report.placement;
    let streamed = match placement.streamed_bytes {
        0 => ", nothing streamed".to_string(),
        bytes => format!(", {} streamed", format_size(bytes)),
    };
    let error = match &budget.error {
        Some(error) => format!("; then: {error}"),
        None => String::new(),
    };
    rows.push(vec![format!("{}{peak}{streamed}{error}", budget.name)]);
    rows.push(row(["  phase", "median", "spread", "achieved", "share", "of the limit"]));
    rows.extend(budget.phases.iter().flat_map(phase));
    rows
}

/// A phase and its bounds.
fn phase(phase: &Phase) -> Vec<Row> {
    let mut start = vec![
        format!("  {}", phase.name),
        time(phase.seconds.median),
        share(phase.seconds.spread()),
    ];
    let mut rows = Vec::new();
    for bound in &phase.bounds {
        let mut row = std::mem::replace(&mut start, vec![String::new(); 3]);
        row.extend([
            bandwidth(bound.unit, bound.achieved.median),
            share(bound.share.median),
            format!("{}, {}", bandwidth(bound.unit, bound.limit.median), bound.limit_of),
        ]);
        rows.push(row);
    }
    rows
}
