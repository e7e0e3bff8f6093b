//! What makes results less reliable, as notes beside them.

use outsize_plan::format_size;

use crate::limits::LimitSample;
use crate::results::{BenchResults, BudgetResults};
use crate::runs::ModelRun;

/// The drift of a limit, from before a run to after it, that is worth no note.
const DRIFT: f64 = 0.1;

/// The share of the processors that other programs may use.
const OTHERS: f64 = 0.05;

/// The share of the processors that the host of a virtual machine may steal.
const STOLEN: f64 = 0.02;

/// The least share of what a model read that came from storage.
const FETCHED: f64 = 0.95;

/// A share of a limit above this means that the limit was measured too low.
const MORE: f64 = 1.05;

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// All notes on some results.
pub fn notes(results: &BenchResults) -> Vec<String> {
    let mut notes = Vec::new();
    if !results.disk.direct {
        notes.push(format!(
            "{} allows no reads past the page cache: its figures may be those of memory",
            results.disk.disk
        ));
    }
    if let Some(share) = results.others_share.filter(|share| *share > OTHERS) {
        notes.push(format!(
            "other programs, and the system's own threads, used {} of the processors meanwhile: all figures may be low",
            percent(share)
        ));
    }
    if let Some(share) = results.stolen_share.filter(|share| *share > STOLEN) {
        notes.push(format!(
            "this virtual machine's host gave {} of the processors to others meanwhile",
            percent(share)
        ));
    }
    let runs = || results.budgets.iter().flat_map(|budget| &budget.runs);
    notes.extend(drifts(runs()));
    let least = runs().filter_map(fetched).reduce(f64::min);
    if let Some(least) = least.filter(|least| *least < FETCHED) {
        notes.push(format!(
            "only {} of what a run read came from storage as the system counts it: the rest was in memory already",
            percent(least)
        ));
    }
    for budget in &results.budgets {
        notes.extend(of_budget(budget));
    }
    let mut texts = runs().map(|run| &run.report.tokens);
    if let Some(first) = texts.next()
        && texts.any(|tokens| tokens != first)
    {
        notes.push(
            "NOT ALL RUNS GENERATED THE SAME TOKENS: the placement of weights must not change them"
                .to_string(),
        );
    }
    notes
}

/// A field of a sample.
type Of = fn(&LimitSample) -> f64;

/// Limits that drifted during a run.
fn drifts<'a>(runs: impl Iterator<Item = &'a ModelRun> + Clone) -> Vec<String> {
    let limits: [(&str, Of); 5] = [
        ("the disk", |limit| limit.disk_bytes_per_second),
        ("memory read", |limit| limit.memory_bytes_per_second),
        ("first touch", |limit| limit.first_touch_bytes_per_second),
        ("multiply-adds of f32", |limit| limit.f32_flops),
        ("multiply-adds of bf16", |limit| limit.bf16_flops),
    ];
    let drift = |(name, of): (&str, Of)| {
        let drifts = runs.clone().map(|run| {
            let (before, after) = (of(&run.before), of(&run.after));
            2.0 * (before - after).abs() / (before + after).max(1e-9)
        });
        let drifts: Vec<f64> = drifts.collect();
        let many = drifts.iter().filter(|drift| **drift > DRIFT).count();
        let most = drifts.iter().copied().fold(0.0, f64::max);
        (many > 0).then(|| {
            format!(
                "{name} was up to {} faster or slower after a run than before it (more than {} in {many} of {}): shares of \
                 it are no more exact than that",
                percent(most),
                percent(DRIFT),
                drifts.len()
            )
        })
    };
    limits.into_iter().filter_map(drift).collect()
}

/// The share of a run's reads that came from storage.
fn fetched(run: &ModelRun) -> Option<f64> {
    // Zero means that the system does not count.
    let fetched = run.fetched_bytes.filter(|bytes| *bytes > 0)?;
    Some(fetched as f64 / run.report.bytes_read().max(1) as f64)
}

fn of_budget(budget: &BudgetResults) -> Vec<String> {
    let mut notes = Vec::new();
    let peaks = budget.runs.iter().filter_map(|run| run.report.peak_rss_bytes);
    if let (Some(peak), Some(bytes)) = (peaks.max(), budget.case.bytes)
        && peak > bytes
    {
        notes.push(format!(
            "{}: THE BUDGET WAS NOT KEPT: {} at the peak",
            budget.case.name,
            format_size(peak)
        ));
    }
    for phase in &budget.phases {
        if let Some(bound) = phase.bounds.iter().find(|bound| bound.share.median > MORE) {
            notes.push(format!(
                "{}, {}: more than the limit of {}: that was no limit, or was measured in a worse moment",
                budget.case.name, phase.name, bound.limit_of
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budgets::BudgetCase;
    use crate::limits::LimitDisk;
    use crate::phases::phases;
    use crate::phases::tests::{cost, limits, run, task};
    use outsize_kernels::ActivationDtype;

    /// Nothing worth a note.
    fn quiet() -> ModelRun {
        let mut run = run(8.0, 400);
        (run.before, run.after) = (limits(200.0), limits(200.0));
        run.report.tokens = vec![1, 2];
        run
    }

    fn results(runs: Vec<ModelRun>) -> BenchResults {
        BenchResults {
            version: 1,
            seconds: 1.0,
            processor: String::new(),
            threads: 2,
            memory_bytes: 1,
            instructions: [""; 2],
            disk: LimitDisk {
                folder: "model".into(),
                files: "files",
                disk: "/dev/vda (ext4)".to_string(),
                direct: true,
                in_flight: 4,
                block: 1,
            },
            limits: Vec::new(),
            products: Vec::new(),
            gpus: Default::default(),
            others_share: Some(0.01),
            stolen_share: Some(0.0),
            model: Some(cost()),
            task: None,
            budgets: vec![BudgetResults {
                case: BudgetCase {
                    name: "cpu=600B".to_string(),
                    max_memory: None,
                    bytes: Some(600),
                    batch: 1,
                },
                error: None,
                phases: phases(&runs, &cost(), &task(ActivationDtype::F32), 1, &Default::default()),
                runs,
            }],
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_quiet_machine_is_worth_no_note() {
        assert_eq!(notes(&results(vec![quiet(), quiet()])), Vec::<String>::new());
    }

    #[test]
    fn what_spoils_figures_is_said() {
        let said = |change: fn(&mut BenchResults)| {
            let mut results = results(vec![quiet(), quiet()]);
            change(&mut results);
            notes(&results).join("\n")
        };
        type Change = fn(&mut BenchResults);
        let cases: [(&str, Change); 7] = [
            ("/dev/vda (ext4) allows no reads", |r| r.disk.direct = false),
            ("other programs", |r| r.others_share = Some(0.2)),
            ("host gave 3 %", |r| r.stolen_share = Some(0.03)),
            ("the disk was up to 40 % faster", |r| {
                r.budgets[0].runs[1].after.disk_bytes_per_second = 300.0;
            }),
            ("only 50 % of what a run read", |r| {
                r.budgets[0].runs[0].fetched_bytes = Some(700);
            }),
            ("BUDGET WAS NOT KEPT", |r| {
                r.budgets[0].runs[1].report.peak_rss_bytes = Some(601);
            }),
            ("NOT ALL RUNS GENERATED THE SAME", |r| {
                r.budgets[0].runs[1].report.tokens = vec![1, 3];
            }),
        ];
        for (part, change) in cases {
            let said = said(change);
            assert!(said.contains(part) && said.lines().count() == 1, "{part}: {said}");
        }
        // 300 bytes a second from a disk that gives 200.
        let mut fast = quiet();
        fast.report.decode_bytes_read = 2400;
        fast.fetched_bytes = None;
        let said = notes(&results(vec![fast])).join("\n");
        assert!(said.contains("token: more than the limit of disk"), "{said}");
    }
}
