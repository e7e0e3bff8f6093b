//! Each phase of a run beside the limits that bound it.

use outsize_kernels::ActivationDtype;
use serde::Serialize;

use crate::limits::LimitSample;
use crate::model_cost::ModelCost;
use crate::runs::{BenchTask, ModelRun, PlacedBytes, PredictedRun, RepeatedRun, RunReport};
use crate::samples::{Summary, median};
use outsize_plan::Gpu;
use std::collections::BTreeMap;

/// What a rate counts.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateUnit {
    /// Bytes per second.
    #[serde(rename = "B/s")]
    Bytes,
    /// Operations per second.
    #[serde(rename = "FLOP/s")]
    Operations,
    /// Times per second.
    #[serde(rename = "1/s")]
    Times,
}

/// A phase of all runs in one budget.
#[derive(Serialize, Debug, Clone)]
pub struct Phase {
    /// `opening`, `first pass`, `prompt again` or `token`.
    pub name: &'static str,
    /// How long it took, in seconds.
    pub seconds: Summary,
    /// How long it was predicted to take, in seconds; none for what is not predicted by itself.
    pub predicted_seconds: Option<f64>,
    /// What bounds it, the tightest bound first.
    pub bounds: Vec<PhaseBound>,
}

/// A resource that a phase needs, and of which the machine gives only so much in a second.
#[derive(Serialize, Debug, Clone)]
pub struct PhaseBound {
    /// What it is: `disk`.
    pub limit_of: &'static str,
    /// The unit of the rates.
    pub unit: RateUnit,
    /// What the phase got in a second.
    pub achieved: Summary,
    /// The machine's limit, the mean of right before and right after the run.
    pub limit: Summary,
    /// Achieved as a share of the limit, run by run: the share of the phase's time that would be
    /// left if only this bounded it.
    pub share: Summary,
}

/// One phase, with its time in each run.
struct Timed<'a> {
    runs: &'a [ModelRun],
    name: &'static str,
    seconds: Vec<f64>,
    predicted: Option<f64>,
    bounds: Vec<PhaseBound>,
}

impl<'a> Timed<'a> {
    fn new(runs: &'a [ModelRun], name: &'static str, seconds: impl Fn(&RunReport) -> f64) -> Self {
        Self {
            runs,
            name,
            seconds: runs.iter().map(|run| seconds(&run.report).max(1e-9)).collect(),
            predicted: None,
            bounds: Vec::new(),
        }
    }

    /// Adds what was predicted: nothing, if that is zero.
    fn predicted(self, seconds: impl Fn(&PredictedRun) -> f64) -> Self {
        let predicted = self.runs.iter().map(|run| seconds(&run.report.prediction));
        let predicted = median(&predicted.collect::<Vec<_>>());
        Self { predicted: predicted.filter(|seconds| *seconds > 0.0), ..self }
    }

    /// Adds a bound: the amount that a run needs, and the limit per second. What is not needed is
    /// no bound.
    fn bound(
        self,
        limit_of: &'static str,
        unit: RateUnit,
        amount: impl Fn(&RunReport) -> f64,
        limit: impl Fn(&LimitSample) -> f64,
    ) -> Self {
        self.bound_by(limit_of, unit, amount, |sample, _| limit(sample))
    }

    /// The same with a limit that depends on the amount.
    fn bound_by(
        mut self,
        limit_of: &'static str,
        unit: RateUnit,
        amount: impl Fn(&RunReport) -> f64,
        limit: impl Fn(&LimitSample, f64) -> f64,
    ) -> Self {
        let limit = |run: &ModelRun| {
            let amount = amount(&run.report);
            (limit(&run.before, amount) + limit(&run.after, amount)) / 2.0
        };
        let rates: Vec<_> = (self.runs.iter().zip(&self.seconds))
            .map(|(run, seconds)| (amount(&run.report) / seconds, limit(run).max(1e-9)))
            .collect();
        if rates.iter().any(|(achieved, _)| *achieved > 0.0) {
            self.bounds.push(PhaseBound {
                limit_of,
                unit,
                achieved: Summary::of(rates.iter().map(|(achieved, _)| *achieved)),
                limit: Summary::of(rates.iter().map(|(_, limit)| *limit)),
                share: Summary::of(rates.iter().map(|(achieved, limit)| achieved / limit)),
            });
        }
        self
    }

    fn done(mut self) -> Phase {
        self.bounds.sort_by(|a, b| b.share.median.total_cmp(&a.share.median));
        Phase {
            name: self.name,
            seconds: Summary::of(self.seconds),
            predicted_seconds: self.predicted,
            bounds: self.bounds,
        }
    }
}

const DISK: &str = "disk";
const MEMORY: &str = "memory read";
const FIRST_TOUCH: &str = "memory, first touch";
/// One after the other: both keep the processors busy.
const FIRST_TOUCH_AND_FLOPS: &str = "first touch, and then multiply-adds";

/// The link to a GPU.
const LINK: &str = "copies to the GPU";
const GPU_MEMORY: &str = "memory of the GPU";
const GPU_PRODUCTS: &str = "products on the GPU";

/// The phases of the runs in one budget, beside what bounds them. Limits of `gpus` are measured
/// once.
pub fn phases(
    runs: &[ModelRun],
    cost: &ModelCost,
    task: &BenchTask,
    batch: u32,
    gpus: &BTreeMap<usize, Gpu>,
) -> Vec<Phase> {
    // Of the GPU that computes, if one does. Runs in one budget are placed equally.
    let placement = runs.first().map(|run| &run.report.placement);
    let gpu = placement.and_then(PlacedBytes::gpu).and_then(|number| gpus.get(&number));
    let gpu = gpu.copied().unwrap_or_default();
    let [prefill_there, decode_there] = placement.map_or([0.0; 2], PlacedBytes::share_on_gpus);
    let [prefill_here, decode_here] = [1.0 - prefill_there, 1.0 - decode_there];
    let batch = f64::from(batch);
    let prompt = u64::from(task.prompt_tokens);
    let new = f64::from(task.new_tokens);
    let decoded = new - 1.0;
    let all_flops = batch * cost.prompt_flops(prompt);
    let flops = all_flops * prefill_here;
    let (products, peak): (_, fn(&LimitSample) -> f64) = match task.compute {
        ActivationDtype::F32 => ("multiply-adds of f32", |limit| limit.f32_flops),
        ActivationDtype::Bf16 => ("multiply-adds of bf16", |limit| limit.bf16_flops),
    };
    let disk = |limit: &LimitSample| limit.disk_bytes_per_second;
    let memory = |limit: &LimitSample| limit.memory_bytes_per_second;
    let opening = Timed::new(runs, "opening", |run| run.load_seconds).bound(
        "single pages, one a file",
        RateUnit::Times,
        |_| cost.files as f64,
        |limit| 1.0 / limit.disk_latency_seconds.max(1e-9),
    );
    let filled =
        |run: &RunReport| (run.placement.resident_footprint + run.placement.ring_bytes) as f64;
    let first = Timed::new(runs, "first pass", |run| run.prefill_seconds)
        .bound(DISK, RateUnit::Bytes, |run| run.prefill_bytes_read as f64, disk)
        .bound_by(FIRST_TOUCH, RateUnit::Bytes, filled, |limit, bytes| {
            bytes / limit.first_touch_seconds(bytes).max(1e-9)
        })
        .bound_by(FIRST_TOUCH_AND_FLOPS, RateUnit::Bytes, filled, |limit, bytes| {
            bytes / (limit.first_touch_seconds(bytes) + flops / peak(limit)).max(1e-9)
        })
        .bound(products, RateUnit::Operations, |_| flops, peak)
        .predicted(|run| run.first_pass_seconds);
    let of_again = |run: &RunReport, value: fn(&RepeatedRun) -> f64| {
        median(&run.prompt_again.iter().map(value).collect::<Vec<_>>()).unwrap_or(0.0)
    };
    let again = Timed::new(runs, "prompt again", |run| of_again(run, |again| again.seconds))
        .bound(DISK, RateUnit::Bytes, |run| of_again(run, |again| again.bytes_read as f64), disk)
        .bound(MEMORY, RateUnit::Bytes, |_| cost.product_bytes as f64 * prefill_here, memory)
        .bound(products, RateUnit::Operations, |_| flops, peak)
        .bound(
            LINK,
            RateUnit::Bytes,
            |run| run.prediction.prefill.upload_bytes as f64,
            |_| gpu.upload.bytes_per_second,
        )
        .bound(
            GPU_PRODUCTS,
            RateUnit::Operations,
            |_| all_flops * prefill_there,
            |_| gpu.processor.product_flops,
        )
        .predicted(|run| run.prefill.seconds);
    // A token of each text in the middle of its answer.
    let read = cost.token_bytes(batch * (prompt as f64 + new / 2.0));
    let mut token = Timed::new(runs, "token", |run| run.decode_seconds / decoded)
        .bound(DISK, RateUnit::Bytes, |run| run.decode_bytes_read as f64 / decoded, disk)
        .bound(MEMORY, RateUnit::Bytes, |_| read * decode_here, memory)
        .bound(
            LINK,
            RateUnit::Bytes,
            |run| run.prediction.decode.upload_bytes as f64,
            |_| gpu.upload.bytes_per_second,
        )
        .bound(
            GPU_MEMORY,
            RateUnit::Bytes,
            |_| read * decode_there,
            |_| gpu.processor.memory_bytes_per_second,
        )
        .predicted(|run| run.decode.seconds);
    if batch > 1.0 {
        let flops = batch * cost.prompt_flops(1) * decode_here;
        token = token.bound(products, RateUnit::Operations, |_| flops, peak);
    }
    [opening, first, again, token].map(Timed::done).into()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::runs::{ComputedBlock, PredictedPass};
    use outsize_plan::Tier;

    pub fn limits(disk: f64) -> LimitSample {
        LimitSample {
            disk_bytes_per_second: disk,
            disk_latency_seconds: 1e-4,
            memory_bytes_per_second: 1000.0,
            copy_bytes_per_second: 500.0,
            first_touch_bytes_per_second: 50.0,
            prefaulted_bytes: 0,
            prefaulted_bytes_per_second: 500.0,
            f32_flops: 1e4,
            bf16_flops: 4e4,
        }
    }

    /// A run of 4 tokens after one of 8, at a disk of 100 and then 300 bytes per second.
    pub fn run(decode_seconds: f64, decode_bytes_read: u64) -> ModelRun {
        ModelRun {
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
                gpu_memory_bytes: BTreeMap::new(),
                prompt_again: vec![RepeatedRun {
                    seconds: 5.0,
                    bytes_read: 0,
                    waiting_for_data_seconds: 0.0,
                }],
                placement: PlacedBytes {
                    resident_footprint: 450,
                    streamed_bytes: 500,
                    ring_bytes: 50,
                    blocks: Vec::new(),
                    tiers: Vec::new(),
                },
                prediction: PredictedRun::default(),
            },
            before: limits(100.0),
            after: limits(300.0),
            fetched_bytes: Some(1000 + decode_bytes_read),
        }
    }

    pub fn cost() -> ModelCost {
        ModelCost {
            folder: "model".into(),
            files: 5,
            weight_bytes: 1000,
            product_bytes: 800,
            layer_values: 300,
            head_values: 100,
            cache_bytes_per_position: 2,
        }
    }

    pub fn task(compute: ActivationDtype) -> BenchTask {
        BenchTask { prompt_tokens: 8, new_tokens: 5, rounds: 1, compute }
    }

    #[test]
    fn the_nearest_bound_comes_first() {
        let runs = [run(8.0, 1200), run(10.0, 1200), run(16.0, 1200)];
        let phases = phases(&runs, &cost(), &task(ActivationDtype::F32), 1, &BTreeMap::new());
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
        // Half a second of files' pages in a millisecond, 500 bytes touched in 10 s at 50 a second.
        assert_eq!(phases[0].bounds[0].share.median, 0.5);
        let touch = phases[1].bounds.iter().find(|bound| bound.limit_of == FIRST_TOUCH).unwrap();
        assert_eq!(touch.share.median, 1.0);
        // Products take more than half a second of their own.
        let both = &phases[1].bounds[0];
        assert_eq!(both.limit_of, FIRST_TOUCH_AND_FLOPS);
        assert!((both.share.median - 1.05).abs() < 1e-9, "{both:?}");
    }

    #[test]
    fn a_batch_multiplies_work_and_not_weights() {
        let runs = [run(8.0, 1200)];
        let phases = phases(&runs, &cost(), &task(ActivationDtype::F32), 10, &BTreeMap::new());
        let token = &phases[3];
        let achieved = |what: &str| {
            token.bounds.iter().find(|bound| bound.limit_of == what).unwrap().achieved.median
        };
        // 2 s for a token of each text: the same 300 bytes of the disk, matrices once, and ten
        // times keys, values and products.
        assert_eq!(achieved(DISK), 150.0);
        assert_eq!(achieved(MEMORY), (800.0 + 10.0 * 21.0) / 2.0);
        assert_eq!(achieved("multiply-adds of f32"), 10.0 * 2.0 * (300.0 + 100.0) / 2.0);
    }

    #[test]
    fn prefaulted_memory_takes_less_of_a_first_pass() {
        let mut run = run(8.0, 0);
        run.before.prefaulted_bytes = 250;
        run.after.prefaulted_bytes = 500;
        let phases = phases(&[run], &cost(), &task(ActivationDtype::F32), 1, &BTreeMap::new());
        let of = |what| phases[1].bounds.iter().find(|bound| bound.limit_of == what);
        // Half of the 500 bytes at 500 a second and half at 50: 5.5 s; all of them at 500: 1 s.
        let limit = of(FIRST_TOUCH).unwrap().limit.median;
        assert!((limit - (500.0 / 5.5 + 500.0) / 2.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_not_needed_is_no_bound() {
        let runs = [run(8.0, 0)];
        let phases = phases(&runs, &cost(), &task(ActivationDtype::Bf16), 1, &BTreeMap::new());
        assert!(
            phases[2..].iter().all(|phase| phase.bounds.iter().all(|bound| bound.limit_of != DISK))
        );
        let products =
            phases[2].bounds.iter().find(|bound| bound.unit == RateUnit::Operations).unwrap();
        // Eight tokens through the layers, one through the head.
        assert_eq!(products.achieved.median, 2.0 * (8.0 * 300.0 + 100.0) / 5.0);
        assert_eq!(products.limit.median, 4e4);
    }

    #[test]
    fn a_gpu_has_bounds_of_its_own() {
        let mut run = run(8.0, 1200);
        let on = |bytes, prefill_on, decode_on| ComputedBlock { bytes, prefill_on, decode_on };
        let gpu = Tier::Gpu(0);
        run.report.placement.blocks = vec![on(600, gpu, gpu), on(200, gpu, Tier::Cpu)];
        let decode = PredictedPass { seconds: 1.5, upload_bytes: 100 };
        let prefill = PredictedPass { seconds: 4.0, upload_bytes: 300 };
        run.report.prediction = PredictedRun { first_pass_seconds: 9.0, prefill, decode };
        let mut gpu = Gpu::default();
        (gpu.upload.bytes_per_second, gpu.processor.memory_bytes_per_second) = (100.0, 1000.0);
        gpu.processor.product_flops = 5000.0;
        let gpus = [(0, gpu)].into();
        let phases = phases(&[run], &cost(), &task(ActivationDtype::F32), 1, &gpus);
        let predicted = phases.iter().map(|phase| phase.predicted_seconds);
        assert_eq!(predicted.collect::<Vec<_>>(), [None, Some(9.0), Some(4.0), Some(1.5)]);
        let share = |phase: usize, what: &str| {
            let bound = phases[phase].bounds.iter().find(|bound| bound.limit_of == what);
            bound.map(|bound| bound.share.median)
        };
        // A token in 2 s, of which a quarter of 821 bytes is the processors'.
        assert_eq!(share(3, LINK), Some(0.5));
        assert_eq!(share(3, GPU_MEMORY), Some(821.0 * 0.75 / 2.0 / 1000.0));
        assert_eq!(share(3, MEMORY), Some(821.0 * 0.25 / 2.0 / 1000.0));
        // The prompt again in 5 s, all of it on the GPU.
        assert_eq!(share(2, LINK), Some(0.6));
        assert_eq!(share(2, GPU_PRODUCTS), Some(2.0 * (8.0 * 300.0 + 100.0) / 5.0 / 5000.0));
        assert_eq!(share(2, MEMORY), None);
    }
}
