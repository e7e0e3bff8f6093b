//! Each phase of a run beside what bounds it.

use super::child::{RunReport, Task};
use super::figures::{Figure, RateUnit};
use super::subject::Subject;
use crate::args::ComputeType;
use crate::report::median;
use outsize::generate::LimitSample;
use serde::Serialize;

/// A run of the model, and what the machine could do right before and right after it.
#[derive(Serialize, Debug, Clone)]
pub struct Run {
    /// What the run came to.
    pub report: RunReport,
    /// The limits before it.
    pub before: LimitSample,
    /// The limits after it.
    pub after: LimitSample,
    /// Bytes that were fetched from storage meanwhile, as the system counts; nothing where it does not.
    pub fetched_bytes: Option<u64>,
}

/// A phase of all runs in one budget.
#[derive(Serialize, Debug, Clone)]
pub struct Phase {
    /// `opening`, `first pass`, `prompt again` or `token`.
    pub name: &'static str,
    /// How long it took, in seconds.
    pub seconds: Figure,
    /// What bounds it, the nearest bound first.
    pub bounds: Vec<Bound>,
}

/// Something that a phase needs, and has only so much of in a second.
#[derive(Serialize, Debug, Clone)]
pub struct Bound {
    /// What it is: `disk`.
    pub limit_of: &'static str,
    /// Of the rates.
    pub unit: RateUnit,
    /// What the phase got in a second.
    pub achieved: Figure,
    /// What can be had in a second, the mean of right before and right after.
    pub limit: Figure,
    /// The first as a share of the second, run by run: the share of the phase that would be left if nothing but this
    /// bounded it.
    pub share: Figure,
}

/// Of one phase: name, and how long it took in a run.
struct Timed<'a> {
    runs: &'a [Run],
    name: &'static str,
    seconds: Vec<f64>,
    bounds: Vec<Bound>,
}

impl<'a> Timed<'a> {
    fn new(runs: &'a [Run], name: &'static str, seconds: impl Fn(&RunReport) -> f64) -> Self {
        Self {
            runs,
            name,
            seconds: runs
                .iter()
                .map(|run| seconds(&run.report).max(1e-9))
                .collect(),
            bounds: Vec::new(),
        }
    }

    /// Adds a bound: how much a run needs of something, and what there is of it in a second. What is not needed is no bound.
    fn bound(
        self,
        limit_of: &'static str,
        unit: RateUnit,
        amount: impl Fn(&RunReport) -> f64,
        limit: impl Fn(&LimitSample) -> f64,
    ) -> Self {
        self.bound_by(limit_of, unit, amount, |sample, _| limit(sample))
    }

    /// The same of a limit that depends on how much is needed.
    fn bound_by(
        mut self,
        limit_of: &'static str,
        unit: RateUnit,
        amount: impl Fn(&RunReport) -> f64,
        limit: impl Fn(&LimitSample, f64) -> f64,
    ) -> Self {
        let limit = |run: &Run| {
            let amount = amount(&run.report);
            (limit(&run.before, amount) + limit(&run.after, amount)) / 2.0
        };
        let rates: Vec<_> = (self.runs.iter().zip(&self.seconds))
            .map(|(run, seconds)| (amount(&run.report) / seconds, limit(run).max(1e-9)))
            .collect();
        if rates.iter().any(|(achieved, _)| *achieved > 0.0) {
            self.bounds.push(Bound {
                limit_of,
                unit,
                achieved: Figure::of(rates.iter().map(|(achieved, _)| *achieved)),
                limit: Figure::of(rates.iter().map(|(_, limit)| *limit)),
                share: Figure::of(rates.iter().map(|(achieved, limit)| achieved / limit)),
            });
        }
        self
    }

    fn done(mut self) -> Phase {
        self.bounds
            .sort_by(|a, b| b.share.median.total_cmp(&a.share.median));
        Phase {
            name: self.name,
            seconds: Figure::of(self.seconds),
            bounds: self.bounds,
        }
    }
}

const DISK: &str = "disk";
const MEMORY: &str = "memory read";
const FRESH: &str = "fresh memory";
/// Both keep the processors busy, so that neither can go on beside the other.
const FRESH_AND_PRODUCTS: &str = "fresh memory, and then multiply-adds";

/// What the phases of the runs in one budget came to.
pub fn phases(runs: &[Run], subject: &Subject, task: &Task, compute: ComputeType) -> Vec<Phase> {
    let prompt = u64::from(task.prompt_tokens);
    let new = f64::from(task.new_tokens);
    let decoded = new - 1.0;
    let flops = subject.prompt_flops(prompt);
    let (products, peak): (_, fn(&LimitSample) -> f64) = match compute {
        ComputeType::F32 => ("multiply-adds of f32", |limit| limit.f32_flops),
        ComputeType::Bf16 => ("multiply-adds of bf16", |limit| limit.bf16_flops),
    };
    let disk = |limit: &LimitSample| limit.disk_bytes_per_second;
    let memory = |limit: &LimitSample| limit.memory_bytes_per_second;
    let opening = Timed::new(runs, "opening", |run| run.load_seconds).bound(
        "single pages, one a file",
        RateUnit::Times,
        |_| subject.files as f64,
        |limit| 1.0 / limit.disk_latency_seconds.max(1e-9),
    );
    let filled =
        |run: &RunReport| (run.placement.resident_footprint + run.placement.ring_bytes) as f64;
    let first = Timed::new(runs, "first pass", |run| run.prefill_seconds)
        .bound(
            DISK,
            RateUnit::Bytes,
            |run| run.prefill_bytes_read as f64,
            disk,
        )
        .bound_by(FRESH, RateUnit::Bytes, filled, |limit, bytes| {
            bytes / limit.fresh_seconds(bytes).max(1e-9)
        })
        .bound_by(
            FRESH_AND_PRODUCTS,
            RateUnit::Bytes,
            filled,
            |limit, bytes| bytes / (limit.fresh_seconds(bytes) + flops / peak(limit)).max(1e-9),
        )
        .bound(products, RateUnit::Operations, |_| flops, peak);
    let of_again = |run: &RunReport, value: fn(&super::child::Again) -> f64| {
        median(&run.prompt_again.iter().map(value).collect::<Vec<_>>()).unwrap_or(0.0)
    };
    let again = Timed::new(runs, "prompt again", |run| {
        of_again(run, |again| again.seconds)
    })
    .bound(
        DISK,
        RateUnit::Bytes,
        |run| of_again(run, |again| again.bytes_read as f64),
        disk,
    )
    .bound(
        MEMORY,
        RateUnit::Bytes,
        |_| subject.product_bytes as f64,
        memory,
    )
    .bound(products, RateUnit::Operations, |_| flops, peak);
    // A token in the middle of the answer.
    let read = subject.token_bytes(prompt as f64 + new / 2.0);
    let token = Timed::new(runs, "token", |run| run.decode_seconds / decoded)
        .bound(
            DISK,
            RateUnit::Bytes,
            |run| run.decode_bytes_read as f64 / decoded,
            disk,
        )
        .bound(MEMORY, RateUnit::Bytes, |_| read, memory);
    [opening, first, again, token].map(Timed::done).into()
}

#[cfg(test)]
pub mod tests {
    use super::super::child::{Again, Placement};
    use super::*;

    pub fn limits(disk: f64) -> LimitSample {
        LimitSample {
            disk_bytes_per_second: disk,
            disk_latency_seconds: 1e-4,
            memory_bytes_per_second: 1000.0,
            copy_bytes_per_second: 500.0,
            fresh_bytes_per_second: 50.0,
            at_hand_bytes: 0,
            at_hand_bytes_per_second: 500.0,
            f32_flops: 1e4,
            bf16_flops: 4e4,
        }
    }

    /// A run of 4 tokens after one of 8, at a disk of 100 and then 300 bytes per second.
    pub fn run(decode_seconds: f64, decode_bytes_read: u64) -> Run {
        Run {
            report: RunReport {
                tokens: vec![1; 5],
                load_seconds: 1e-3,
                prefill_seconds: 10.0,
                prefill_bytes_read: 1000,
                first_token_seconds: 11.0,
                decode_seconds,
                decode_bytes_read,
                waiting_for_data_seconds: 0.0,
                peak_rss_bytes: Some(600),
                prompt_again: vec![Again {
                    seconds: 5.0,
                    bytes_read: 0,
                }],
                placement: Placement {
                    resident_footprint: 450,
                    streamed_bytes: 500,
                    ring_bytes: 50,
                },
            },
            before: limits(100.0),
            after: limits(300.0),
            fetched_bytes: Some(1000 + decode_bytes_read),
        }
    }

    pub fn subject() -> Subject {
        Subject {
            folder: "model".into(),
            files: 5,
            weight_bytes: 1000,
            product_bytes: 800,
            layer_values: 300,
            head_values: 100,
            cache_bytes_per_position: 2,
        }
    }

    pub fn task() -> Task {
        Task {
            ids: String::new(),
            prompt_tokens: 8,
            new_tokens: 5,
            context: None,
            compute: "f32".to_string(),
            again: 1,
        }
    }

    #[test]
    fn the_nearest_bound_comes_first() {
        let runs = [run(8.0, 1200), run(10.0, 1200), run(16.0, 1200)];
        let phases = phases(&runs, &subject(), &task(), ComputeType::F32);
        let names: Vec<_> = phases.iter().map(|phase| phase.name).collect();
        assert_eq!(names, ["opening", "first pass", "prompt again", "token"]);
        let token = &phases[3];
        assert_eq!(token.seconds.median, 2.5);
        let bounds: Vec<_> = token.bounds.iter().map(|bound| bound.limit_of).collect();
        assert_eq!(bounds, [DISK, MEMORY]);
        // 300 bytes a token in 2.5 s, at 200 bytes a second.
        let disk = &token.bounds[0];
        assert_eq!((disk.achieved.median, disk.limit.median), (120.0, 200.0));
        assert_eq!((disk.share.median, disk.share.most), (0.6, 0.75));
        // Matrices, and two bytes for each of 10.5 positions.
        assert_eq!(token.bounds[1].achieved.median, 821.0 / 2.5);
        // Half a second of files' pages in a millisecond, 500 bytes of fresh memory in 10 s of 50 a second.
        assert_eq!(phases[0].bounds[0].share.median, 0.5);
        let fresh = phases[1]
            .bounds
            .iter()
            .find(|bound| bound.limit_of == FRESH)
            .unwrap();
        assert_eq!(fresh.share.median, 1.0);
        // Products take more than half a second of their own.
        let both = &phases[1].bounds[0];
        assert_eq!(both.limit_of, FRESH_AND_PRODUCTS);
        assert!((both.share.median - 1.05).abs() < 1e-9, "{both:?}");
    }

    #[test]
    fn memory_at_hand_takes_less_of_a_first_pass() {
        let mut run = run(8.0, 0);
        run.before.at_hand_bytes = 250;
        run.after.at_hand_bytes = 500;
        let phases = phases(&[run], &subject(), &task(), ComputeType::F32);
        let of = |what| phases[1].bounds.iter().find(|bound| bound.limit_of == what);
        // Half of the 500 bytes at 500 a second and half at 50: 5.5 s; all of them at 500: 1 s.
        let limit = of(FRESH).unwrap().limit.median;
        assert!((limit - (500.0 / 5.5 + 500.0) / 2.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_not_needed_is_no_bound() {
        let runs = [run(8.0, 0)];
        let phases = phases(&runs, &subject(), &task(), ComputeType::Bf16);
        assert!(
            phases[2..]
                .iter()
                .all(|phase| phase.bounds.iter().all(|bound| bound.limit_of != DISK))
        );
        let products = phases[2]
            .bounds
            .iter()
            .find(|bound| bound.unit == RateUnit::Operations)
            .unwrap();
        // Eight tokens through the layers, one through the head.
        assert_eq!(products.achieved.median, 2.0 * (8.0 * 300.0 + 100.0) / 5.0);
        assert_eq!(products.limit.median, 4e4);
    }
}
