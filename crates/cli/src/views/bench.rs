//! Results of the bench as tables.

use super::human::{bandwidth, share, time};
use super::memory::GpuPools;
use super::table::Table;
use crate::args::values::{ACTIVATION_DTYPES, name_of};
use outsize::bench::RateUnit::{Bytes, Operations};
use outsize::bench::{
    BenchResults, BudgetResults, LIMIT_ROWS, LimitSample, ProductSample, Summary,
};
use outsize::plan::format_size;

/// The results, in lines of at most `width` columns.
pub fn text(results: &BenchResults, width: usize) -> String {
    let mut text = machine(results).text(width);
    if let (Some(model), Some(task)) = (&results.model, &results.task) {
        let mut table = Table::default();
        table.heading(&format!(
            "{}: {} of weights in {} files; prompt of {} tokens, {} new, activations in {}; rounds: {}, in turns \
             with the measurements above",
            model.folder.display(),
            format_size(model.weight_bytes),
            model.files,
            task.prompt_tokens,
            task.new_tokens,
            name_of(ACTIVATION_DTYPES, &task.compute),
            task.rounds,
        ));
        for results in &results.budgets {
            budget(&mut table, results);
        }
        text += &format!("\n{}", table.text(width));
    }
    if !results.notes.is_empty() {
        let mut notes = Table::default();
        for note in &results.notes {
            notes.row(["note:", note]);
        }
        text += &format!("\n{}", notes.text(width));
    }
    text
}

/// The limits, and this program's matmuls beside them.
fn machine(results: &BenchResults) -> Table {
    let of = |value: fn(&LimitSample) -> f64| Summary::of(results.limits.iter().map(value));
    let line = |name: &str, value: String, spread: f64, how: &str| {
        [name.to_string(), value, share(spread), how.to_string()]
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
    let mut table = Table::default();
    table.row(["the machine", "median", "spread", "how"]);
    for row in [
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
    ] {
        table.row(row);
    }
    for (number, gpu) in &results.gpus {
        let on = &gpu.processor;
        for (name, unit, value, how) in [
            ("upload", Bytes, gpu.upload.bytes_per_second, "tiles of weights"),
            ("download", Bytes, gpu.download().bytes_per_second, "activations"),
            ("memory", Bytes, on.memory_bytes_per_second, "read and written"),
            ("products, 1 row", Bytes, on.product_bytes_per_second, "of weights in bf16"),
            ("many rows", Operations, on.product_flops, "with weights in bf16"),
        ] {
            let value = bandwidth(unit, value);
            table.row([format!("gpu{number} {name}"), value, String::new(), how.to_string()]);
        }
    }
    table
}

/// A model in one budget.
fn budget(table: &mut Table, budget: &BudgetResults) {
    let Some(first) = budget.runs.first() else {
        let error = budget.error.as_deref().unwrap_or("it was not run");
        return table.heading(&format!("{}: {error}", budget.case.name));
    };
    let peaks = budget.runs.iter().filter_map(|run| run.report.peak_rss_bytes);
    let peak = peaks.max().map(|peak| match budget.case.bytes {
        Some(bytes) => format!(": peak {} of {}", format_size(peak), format_size(bytes)),
        None => format!(": peak {}", format_size(peak)),
    });
    let mut gpus = GpuPools::default();
    for (gpu, bytes) in budget.runs.iter().flat_map(|run| &run.report.gpu_memory_bytes) {
        let most = gpus.0.entry(*gpu).or_default();
        *most = (*most).max(*bytes);
    }
    let streamed = match first.report.placement.streamed_bytes {
        0 => "nothing".to_string(),
        bytes => format_size(bytes),
    };
    let error = budget.error.as_ref().map(|error| format!("; then: {error}"));
    let (peak, error) = (peak.unwrap_or_default(), error.unwrap_or_default());
    let rate =
        budget.tokens_per_second().map_or_else(String::new, |rate| format!(", {rate:.3} tokens/s"));
    table.heading(&format!("{}{peak}{gpus}, {streamed} streamed{rate}{error}", budget.case.name));
    table.row(["  phase", "median", "spread", "achieved", "share", "of the limit"]);
    for phase in &budget.phases {
        let (name, seconds) = (format!("  {}", phase.name), &phase.seconds);
        let measured = [name, time(seconds.median), share(seconds.spread())];
        let predicted = phase.predicted_seconds.map(|predicted| {
            let off = share(predicted / seconds.median.max(1e-9));
            ["    predicted".to_string(), time(predicted), off]
        });
        let mut starts = [Some(measured), predicted].into_iter().flatten();
        for bound in &phase.bounds {
            let achieved = bandwidth(bound.unit, bound.achieved.median);
            let limit =
                format!("{}, {}", bandwidth(bound.unit, bound.limit.median), bound.limit_of);
            let [name, median, spread] = starts.next().unwrap_or_default();
            table.row([name, median, spread, achieved, share(bound.share.median), limit]);
        }
        starts.for_each(|start| table.row(start));
    }
}
