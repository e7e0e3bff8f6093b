//! What a module holds at most whose weights learn on the disk, measured in a process of its own.

use std::path::Path;
use std::process::Command;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use outsize_core::{Layout, Names, Options, learning_device, memory_overhead, process_bytes, save};
use outsize_plan::Budget;
use outsize_train::Error;
use outsize_train::offload::{OffloadedTraining, offloaded};

const WIDTH: usize = 1024;
const LAYERS: usize = 48;
const WIDE: usize = 8 * WIDTH;
const IDS: usize = 1024;

/// What a pass over 32 ids keeps of each layer: what goes into its norm and its product, and what
/// comes of these; the same of what is wide; and the table, which Burn's embedding keeps.
const ACTIVATIONS: u64 = (4 * (32 * (6 * WIDTH * LAYERS + 4 * WIDE) + IDS * WIDTH)) as u64;

#[derive(Module, Debug)]
struct Layer {
    norm: LayerNorm,
    linear: Linear,
}

/// 270 MB of weights: 1,080 with their gradients and moments.
#[derive(Module, Debug)]
struct Deep {
    table: Embedding,
    layers: Vec<Layer>,
    up: Linear,
    down: Linear,
}

impl Deep {
    fn new(device: &Device) -> Self {
        let layer = |_| Layer {
            norm: LayerNormConfig::new(WIDTH).init(device),
            linear: LinearConfig::new(WIDTH, WIDTH).init(device),
        };
        Self {
            table: EmbeddingConfig::new(IDS, WIDTH).init(device),
            layers: (0..LAYERS).map(layer).collect(),
            up: LinearConfig::new(WIDTH, WIDE).init(device),
            down: LinearConfig::new(WIDE, WIDTH).init(device),
        }
    }

    fn loss(&self) -> Tensor<1> {
        let ids: Vec<i64> = (0..32).map(|at| at * 37 % IDS as i64).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [4, 8]), &learning_device());
        let x = self.layers.iter().fold(self.table.forward(ids), |x, layer| {
            x.clone() + activation::relu(layer.linear.forward(layer.norm.forward(x)))
        });
        (self.down.forward(activation::relu(self.up.forward(x))) - 1.0).square().mean()
    }
}

fn names(layout: &str) -> Names {
    Names::new(if layout == "pytorch" { Layout::PyTorch } else { Layout::Burn })
}

fn training(place: &Path, layout: &str, budget: &str) -> Result<OffloadedTraining<Deep>, Error> {
    let options = Options {
        budget: Budget::parse(budget).unwrap(),
        needs: memory_overhead(process_bytes(0), ACTIVATIONS),
        names: names(layout),
        ..Options::default()
    };
    offloaded(place.join("model"), place.join("states")).options(options).open(Deep::new)
}

#[test]
fn child() {
    let Ok(place) = std::env::var("OUTSIZE_CHILD") else {
        return; // an ordinary test run: this is no test of its own
    };
    let [budget, layout] =
        ["BUDGET", "LAYOUT"].map(|name| std::env::var(format!("OUTSIZE_CHILD_{name}")).unwrap());
    outsize_stream::return_freed_memory();
    let mut training = training(Path::new(&place), &layout, &budget).unwrap();
    let mut losses = Vec::new();
    for _ in 0..2 {
        losses.push(training.backward(Deep::loss).unwrap());
        training.step(1e-5).unwrap();
    }
    assert!(losses[1] < losses[0], "{losses:?}");
    println!("peak={}", outsize_machine::peak_rss().unwrap());
}

#[test]
fn a_module_learns_within_the_least_budget() {
    for layout in ["burn", "pytorch"] {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let model = place.path().join("model");
        save(&Deep::new(&Device::flex()), model, &names(layout), 1 << 30).unwrap();
        let least = match training(place.path(), layout, "cpu=1").unwrap_err() {
            Error::Core(outsize_core::Error::Plan(outsize_plan::Error::TooSmall(shortfall))) => {
                shortfall.least
            }
            other => panic!("{other}"),
        };
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture"])
            .env("OUTSIZE_CHILD", place.path())
            .env("OUTSIZE_CHILD_BUDGET", format!("cpu={least}"))
            .env("OUTSIZE_CHILD_LAYOUT", layout)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
        let peak = said.lines().find_map(|line| line.split_once("peak=")?.1.parse::<u64>().ok());
        let peak = peak.unwrap_or_else(|| panic!("{said}"));
        println!("{layout}: {peak} of {least}");
        assert!(peak <= least, "{layout}: {peak} bytes for a budget of {least}");
        // Honest also means not far above.
        assert!(peak >= least / 2, "{layout}: {peak} bytes for a budget of {least}");
    }
}
