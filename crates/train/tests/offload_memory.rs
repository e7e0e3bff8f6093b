//! What a module holds at most whose weights learn on the disk, measured in a process of its own.

use std::path::Path;
use std::process::Command;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use outsize_core::{
    Layout, Names, Options, activation_checkpoint, learning_device, memory_overhead, process_bytes,
    save,
};
use outsize_plan::Budget;
use outsize_train::Error;
use outsize_train::offload::{OffloadedTraining, offloaded};

const WIDTH: usize = 1024;
const LAYERS: usize = 48;
const WIDE: usize = 8 * WIDTH;
const IDS: usize = 1024;

/// What a pass over so many ids keeps: of each layer what goes into its norm and its product, and
/// what comes of these, or what went into it and all of one; the same of what is wide; and the
/// table, which Burn's embedding keeps.
fn activations(ids: usize, recomputed: bool) -> u64 {
    let kept = if recomputed { LAYERS + 12 } else { 6 * LAYERS };
    (4 * (ids * (kept * WIDTH + 4 * WIDE) + IDS * WIDTH)) as u64
}

/// How a child trains.
struct Variant {
    name: &'static str,
    layout: Layout,
    ids: usize,
    /// Whether activations of layers are computed once more.
    recomputed: bool,
}

const VARIANTS: [Variant; 3] = [
    Variant { name: "few ids", layout: Layout::Burn, ids: 32, recomputed: false },
    Variant { name: "as PyTorch stores it", layout: Layout::PyTorch, ids: 32, recomputed: false },
    // All activations would take 675 MB, counted likewise.
    Variant { name: "many ids", layout: Layout::Burn, ids: 512, recomputed: true },
];

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

    fn loss(&self, variant: &Variant) -> Tensor<1> {
        let ids: Vec<i64> = (0..variant.ids).map(|at| (at * 37 % IDS) as i64).collect();
        let ids = TensorData::new(ids, [variant.ids / 8, 8]);
        let ids = Tensor::<2, Int>::from_data(ids, &learning_device());
        let x = self.layers.iter().fold(self.table.forward(ids), |x, layer| {
            let layer = layer.clone();
            let block = move |x: Tensor<3>| {
                x.clone() + activation::relu(layer.linear.forward(layer.norm.forward(x)))
            };
            if variant.recomputed { activation_checkpoint(x, block) } else { block(x) }
        });
        (self.down.forward(activation::relu(self.up.forward(x))) - 1.0).square().mean()
    }
}

fn training(
    place: &Path,
    variant: &Variant,
    budget: &str,
) -> Result<OffloadedTraining<Deep>, Error> {
    let activations = activations(variant.ids, variant.recomputed);
    let options = Options {
        budget: Budget::parse(budget).unwrap(),
        needs: memory_overhead(process_bytes(0), activations),
        names: Names::new(variant.layout),
        ..Options::default()
    };
    offloaded(place.join("model"), place.join("states")).options(options).open(Deep::new)
}

#[test]
fn child() {
    let Ok(place) = std::env::var("OUTSIZE_CHILD") else {
        return; // an ordinary test run: this is no test of its own
    };
    let [budget, name] =
        ["BUDGET", "VARIANT"].map(|name| std::env::var(format!("OUTSIZE_CHILD_{name}")).unwrap());
    let variant = VARIANTS.iter().find(|variant| variant.name == name).unwrap();
    outsize_stream::return_freed_memory();
    let mut training = training(Path::new(&place), variant, &budget).unwrap();
    let mut losses = Vec::new();
    for _ in 0..2 {
        losses.push(training.backward(|deep| deep.loss(variant)).unwrap());
        training.step(1e-5).unwrap();
    }
    assert!(losses[1] < losses[0], "{losses:?}");
    println!("peak={}", outsize_machine::peak_rss().unwrap());
}

#[test]
fn a_module_learns_within_the_least_budget() {
    for variant in &VARIANTS {
        let name = variant.name;
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let model = place.path().join("model");
        save(&Deep::new(&Device::flex()), model, &Names::new(variant.layout), 1 << 30).unwrap();
        let least = match training(place.path(), variant, "cpu=1").unwrap_err() {
            Error::Core(outsize_core::Error::Plan(outsize_plan::Error::TooSmall(shortfall))) => {
                shortfall.least
            }
            other => panic!("{other}"),
        };
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture"])
            .env("OUTSIZE_CHILD", place.path())
            .env("OUTSIZE_CHILD_BUDGET", format!("cpu={least}"))
            .env("OUTSIZE_CHILD_VARIANT", name)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
        let peak = said.lines().find_map(|line| line.split_once("peak=")?.1.parse::<u64>().ok());
        let peak = peak.unwrap_or_else(|| panic!("{said}"));
        println!("{name}: {peak} of {least}");
        assert!(peak <= least, "{name}: {peak} bytes for a budget of {least}");
        // Honest also means not far above.
        assert!(peak >= least / 2, "{name}: {peak} bytes for a budget of {least}");
    }
}
