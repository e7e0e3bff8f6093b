//! Results of the bench as tables.

use super::human::{bandwidth, share, time};
use super::table;
use outsize::bench::{
    BenchResults, BudgetResults, LIMIT_ROWS, LimitSample, Phase, ProductSample, RateUnit, Summary,
};
use outsize::kernels::ActivationDtype;
use outsize::plan::format_size;

type Row = Vec<String>;

/// The results, in lines of at most `width` columns.
pub fn text(results: &BenchResults, width: usize) -> String {
    let mut text = table::lines(&machine(results), width).join("\n") + "\n";
    if let (Some(model), Some(task)) = (&results.model, &results.task) {
        let compute = match task.compute {
            ActivationDtype::F32 => "f32",
            ActivationDtype::Bf16 => "bf16",
        };
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
        let notes: Vec<Row> = results
            .notes
            .iter()
            .map(|note| vec!["note:".to_string(), note.clone()])
            .collect();
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
    let of = |value: fn(&LimitSample) -> f64| Summary::of(results.limits.iter().map(value));
    let disk = &results.disk;
    let memory = format!(
        "{}, {} threads",
        format_size(results.memory_bytes),
        results.threads
    );
    let [f32, bf16] = results.instructions;
    let limits = [
        (
            "disk",
            RateUnit::Bytes,
            of(|l| l.disk_bytes_per_second),
            format!(
                "{} reads of {} in flight, of {}",
                disk.in_flight,
                format_size(disk.block as u64),
                disk.files
            ),
        ),
        (
            "memory read",
            RateUnit::Bytes,
            of(|l| l.memory_bytes_per_second),
            memory.clone(),
        ),
        (
            "memory copied",
            RateUnit::Bytes,
            of(|l| l.copy_bytes_per_second),
            memory,
        ),
        (
            "memory, first touch",
            RateUnit::Bytes,
            of(|l| l.first_touch_bytes_per_second),
            match results.limits.iter().map(|l| l.prefaulted_bytes).max() {
                Some(prefaulted @ 1..) => format!(
                    "page faults included, after up to {} prefaulted",
                    format_size(prefaulted)
                ),
                _ => "page faults included".to_string(),
            },
        ),
        (
            "multiply-adds",
            RateUnit::Operations,
            of(|l| l.f32_flops),
            f32.to_string(),
        ),
        (
            "",
            RateUnit::Operations,
            of(|l| l.bf16_flops),
            bf16.to_string(),
        ),
    ];
    let mut rows = vec![row(["the machine", "median", "spread", "how"])];
    for (name, unit, figure, how) in limits {
        rows.push(row([
            name,
            &bandwidth(unit, figure.median),
            &share(figure.spread()),
            &how,
        ]));
    }
    let latency = of(|l| l.disk_latency_seconds);
    rows.insert(
        2,
        row([
            "disk, one page",
            &time(latency.median),
            &share(latency.spread()),
            "nothing else in flight",
        ]),
    );
    rows.extend(products(&results.products));
    rows
}

/// This program's matmuls.
fn products(samples: &[ProductSample]) -> Vec<Row> {
    type Of = fn(&ProductSample) -> f64;
    let rows = format!("products, {LIMIT_ROWS} rows");
    let measured: [(&str, RateUnit, Of, Of, &str); 3] = [
        (
            "products, 1 row",
            RateUnit::Bytes,
            |p| p.one_row_bytes_per_second,
            |p| p.memory_bytes_per_second,
            "memory read",
        ),
        (
            &rows,
            RateUnit::Operations,
            |p| p.f32_rows_flops,
            |p| p.f32_flops,
            "multiply-adds of f32",
        ),
        (
            "",
            RateUnit::Operations,
            |p| p.bf16_rows_flops,
            |p| p.bf16_flops,
            "those of bf16, rounded to it",
        ),
    ];
    let line = |(name, unit, of, limit, what): (&str, RateUnit, Of, Of, &str)| {
        let figure = Summary::of(samples.iter().map(of));
        let ratio = Summary::of(
            samples
                .iter()
                .map(|sample| of(sample) / limit(sample).max(1e-9)),
        );
        row([
            name,
            &bandwidth(unit, figure.median),
            &share(figure.spread()),
            &format!("{} of {what}", share(ratio.median)),
        ])
    };
    measured.into_iter().map(line).collect()
}

/// A model in one budget.
fn budget(budget: &BudgetResults) -> Vec<Row> {
    let mut rows = vec![Vec::new()];
    let Some(first) = budget.runs.first() else {
        let error = budget.error.as_deref().unwrap_or("it was not run");
        rows.push(vec![format!("{}: {error}", budget.name)]);
        return rows;
    };
    let peaks = budget
        .runs
        .iter()
        .filter_map(|run| run.report.peak_rss_bytes);
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
    rows.push(row([
        "  phase",
        "median",
        "spread",
        "achieved",
        "share",
        "of the limit",
    ]));
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
            format!(
                "{}, {}",
                bandwidth(bound.unit, bound.limit.median),
                bound.limit_of
            ),
        ]);
        rows.push(row);
    }
    rows
}
