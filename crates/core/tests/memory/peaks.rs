//! Peaks of memory, each measured in a process of its own.

use crate::common::{folder, options, write_zeros};
use burn::module::Module;
use burn::nn::conv::{Conv1d, Conv1dConfig};
use burn::nn::transformer::{
    TransformerDecoder, TransformerDecoderConfig, TransformerEncoder, TransformerEncoderConfig,
};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, Gru, GruConfig, LayerNorm,
    LayerNormConfig, Linear, LinearConfig, LinearLayout, Lstm, LstmConfig,
};
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::Checkpoint;
use outsize_core::{
    Options, dispatch, load_checkpoint_and_dispatch, memory_overhead, process_bytes, tree,
};
use outsize_plan::infer;
use std::path::Path;
use std::process::Command;

/// Of every kind something large: about 4 GB, none of it initialised.
#[derive(Module, Debug)]
struct Large {
    table: Embedding,
    column: Linear,
    encoder: TransformerEncoder,
    decoder: TransformerDecoder,
    lstm: Lstm,
    gru: Gru,
    conv: Conv1d,
    norm: LayerNorm,
}

impl Large {
    fn new(device: &Device) -> Self {
        let width = 1024;
        Self {
            table: EmbeddingConfig::new(1000, width).init(device),
            column: LinearConfig::new(width, 1000).with_layout(LinearLayout::Col).init(device),
            encoder: TransformerEncoderConfig::new(width, 2 * width, 8, 80).init(device),
            decoder: TransformerDecoderConfig::new(width, 2 * width, 8, 20).init(device),
            lstm: LstmConfig::new(width, width, true).init(device),
            gru: GruConfig::new(width, width, true).init(device),
            conv: Conv1dConfig::new(width, width / 2, 3).init(device),
            norm: LayerNormConfig::new(width).init(device),
        }
    }
}

/// Running state of 64 MB, stored in 16 bits.
#[derive(Module, Debug)]
struct Running {
    norm: BatchNorm,
}

const FEATURES: usize = 8 << 20;

impl Running {
    fn new(device: &Device) -> Self {
        Self { norm: BatchNormConfig::new(FEATURES).init(device) }
    }
}

/// More parameters than any model has today.
#[derive(Module, Debug)]
struct Many {
    layers: Vec<Linear>,
}

impl Many {
    fn new(device: &Device) -> Self {
        let layer = LinearConfig::new(128, 128).with_bias(false);
        Self { layers: (0..16_000).map(|_| layer.init(device)).collect() }
    }
}

fn run_within<M: Module>(module: M, path: &str, budget: u64, pass: fn(&M)) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let options = Options { read_bytes: 256 << 10, ..options(Some(budget)) };
    let tree = tree(&module, &checkpoint, &options).unwrap();
    let map = infer(&tree, &options.budget, &options.plan()).unwrap();
    let model = dispatch(module, &checkpoint, &map, &options).unwrap();
    model.run(pass).unwrap();
}

#[test]
fn child() {
    let Ok(task) = std::env::var("OUTSIZE_CHILD") else {
        return; // an ordinary test run: this is no test of its own
    };
    let path = std::env::var("OUTSIZE_CHILD_CHECKPOINT").unwrap();
    let budget: u64 = std::env::var("OUTSIZE_CHILD_BUDGET").unwrap().parse().unwrap();
    outsize_stream::return_freed_memory();
    let device = Device::flex();
    match task.as_str() {
        "large" => drop(Large::new(&device)),
        "large dispatched" => run_within(Large::new(&device), &path, budget, |_| {
            // Meanwhile reads ahead fill the ring.
            std::thread::sleep(std::time::Duration::from_millis(500));
        }),
        "running" => drop(Running::new(&device)),
        "running dispatched" => run_within(Running::new(&device), &path, budget, |running| {
            let mean: Tensor<1> = running.norm.running_mean.value();
            assert_eq!(mean.dims(), [FEATURES]);
        }),
        "many" => {
            let needs = memory_overhead(process_bytes(0), 1 << 20);
            let options = Options { needs, ..options(Some(budget)) };
            let model = load_checkpoint_and_dispatch(Many::new(&device), &path, &options).unwrap();
            let pass = |many: &Many| {
                let x = Tensor::<2>::ones([1, 128], &device);
                many.layers.iter().fold(x, |x, layer| layer.forward(x)).into_data()
            };
            model.run(pass).unwrap();
        }
        other => panic!("{other}"),
    }
    println!("peak={}", outsize_machine::peak_rss().unwrap());
}

fn peak(task: &str, path: &Path, budget: u64) -> u64 {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peaks::child", "--nocapture", "--test-threads=1"])
        .env("OUTSIZE_CHILD", task)
        .env("OUTSIZE_CHILD_CHECKPOINT", path)
        .env("OUTSIZE_CHILD_BUDGET", budget.to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find_map(|line| line.split_once("peak="));
    line.unwrap().1.trim().parse().unwrap()
}

/// What the threads' stacks, the code of planning and reading, and some 3 kB for each of 2000
/// parameters add; with a ring that is full, 8.5 to 10 MiB; some 4 MiB more where nothing is
/// optimised.
const SLACK: u64 = if cfg!(debug_assertions) { 16 << 20 } else { 11 << 20 };

/// Dispatching a module much larger than its budget takes the budget, and nothing of the module.
#[test]
fn dispatching_initialises_nothing() {
    let (_dir, path) = folder();
    let total = write_zeros(&Large::new(&Device::flex()), &path, "F32", 4);
    let budget = 32 << 20;
    assert!(total > 100 * budget, "{total}");
    let baseline = peak("large", &path, 0);
    let dispatched = peak("large dispatched", &path, budget);
    eprintln!("weights {total}, budget {budget}, baseline {baseline}, peak {dispatched}");
    assert!(dispatched <= baseline + budget + SLACK, "{dispatched} > {baseline} + {budget}");
}

/// Running state is cast as it is read: one copy beside the one that the module began with.
#[test]
fn running_state_is_loaded_in_bounded_memory() {
    let (_dir, path) = folder();
    write_zeros(&Running::new(&Device::flex()), &path, "BF16", 2);
    let state = 2 * 4 * FEATURES as u64;
    // It and the ring: gamma and beta are streamed through it.
    let ring = 3 * (4 * FEATURES as u64 + 8192);
    let budget = state + ring;
    let baseline = peak("running", &path, 0);
    let dispatched = peak("running dispatched", &path, budget);
    eprintln!("state {state}, budget {budget}, baseline {baseline}, peak {dispatched}");
    assert!(dispatched <= baseline + state + ring + SLACK, "{dispatched} > {baseline} + {state}");
}

/// What a process holds of very many parameters beside their values is counted.
#[test]
fn a_budget_counts_the_bookkeeping_of_many_parameters() {
    let (_dir, path) = folder();
    write_zeros(&Many::new(&Device::flex()), &path, "F32", 4);
    let budget = 120 << 20;
    let peak = peak("many", &path, budget);
    eprintln!("budget {budget}, peak {peak}");
    assert!(peak <= budget, "{peak} > {budget}");
}
