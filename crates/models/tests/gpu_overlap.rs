//! When weights on their way to a GPU are read, copied and used, by the host's clock. One test: it
//! listens to the whole process.

mod common;

use std::sync::Mutex;
use std::time::Instant;

use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;
use common::dispatched::config;
use common::gpu::{load_on, there_is_a_gpu, written};
use common::reference::values;
use outsize_checkpoint::Dtype;
use outsize_core::{Dispatched, Options, dispatch, gpu, tree};
use outsize_models::{Batch, CacheOptions, Logits};
use outsize_plan::{Budget, ManualMap, from_assignment};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// The first read of a chunk begins.
    Read,
    /// A tile's copy to a slot begins.
    Upload { slot: u64 },
    /// What used the slot's tile is done, and the slot is to be filled again.
    Done { slot: u64 },
}

static STEPS: Mutex<Vec<(Instant, Step)>> = Mutex::new(Vec::new());

struct Log;

#[derive(Default)]
struct Fields {
    message: String,
    slot: u64,
    read: u64,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "slot" => self.slot = value,
            "read" => self.read = value,
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("outsize")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let step = match fields.message.as_str() {
            "read begins" if fields.read == 0 => Step::Read,
            "upload begins" => Step::Upload { slot: fields.slot },
            "products done" => Step::Done { slot: fields.slot },
            _ => return,
        };
        let mut steps = STEPS.lock().unwrap();
        steps.push((Instant::now(), step));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn the_next_tile_is_read_and_copied_before_the_last_one_is_done() {
    if !there_is_a_gpu() {
        return;
    }
    tracing::subscriber::set_global_default(Log).unwrap();
    let vocabulary = config("gqa-bf16").vocab_size() as u32;
    let (_, model, mut cache) = load_on("gqa-bf16", r#"{"": "disk"}"#, 700, &CacheOptions::new(40));
    let ids: Vec<u32> = (0..20).map(|id| id % vocabulary).collect();
    let mut pass = |ids: &[u32]| {
        let batch = Batch::left_padded(&[ids]).unwrap();
        values(model.forward_batch(&batch, &mut cache, Logits::Last).unwrap().unwrap());
        steps()
    };
    check("tiles", [pass(&ids), pass(&[1])]);
    drop(model);

    // A module of Burn, whose weights are copied as a whole.
    let tensors = (0..24).map(|at| (format!("{at}.weight"), Dtype::BF16, vec![512, 1024]));
    let biases = (0..24).map(|at| (format!("{at}.bias"), Dtype::BF16, vec![1024]));
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let checkpoint = written(&dir.path().join("stack"), tensors.chain(biases).collect());
    let budget = Budget::parse("gpu0=400MiB,cpu=64MiB").unwrap();
    let options = Options { budget, gpu: Some(0), ..Options::default() };
    let device = &gpu(0).unwrap().device;
    let load = |map: &str| {
        let module: Vec<Linear> =
            (0..24).map(|_| LinearConfig::new(512, 1024).init(device)).collect();
        let (tree, plan) = (tree(&module, &checkpoint, &options).unwrap(), options.plan());
        let map = ManualMap::parse(map).unwrap();
        let assignment = map.assign(&tree, &options.budget, &plan).unwrap();
        let map = from_assignment(&tree, &assignment, &options.budget, &plan).unwrap();
        dispatch(module, &checkpoint, &map, &options).unwrap()
    };
    let pass = |model: &Dispatched<Vec<Linear>>| {
        let x = Tensor::<2>::ones([3, 512], device);
        let made = model.run(|layers| {
            let made = layers.iter().map(|layer| layer.forward(x.clone())).collect();
            Tensor::cat(made, 0).into_data().try_to_vec::<f32>().unwrap()
        });
        made.unwrap()
    };
    let model = load(r#"{"": "disk"}"#);
    steps();
    let first = (pass(&model), steps());
    let second = (pass(&model), steps());
    check("values", [first.1, second.1]);
    let resident = load(r#"{"": "gpu0"}"#);
    assert!(first.0 == second.0 && first.0 == pass(&resident), "values depend on where they are");
}

/// The steps since this was asked last.
fn steps() -> Vec<(Instant, Step)> {
    std::mem::take(&mut *STEPS.lock().unwrap())
}

/// Steps of two passes, of which the first reads each chunk once.
fn check(what: &str, [first, second]: [Vec<(Instant, Step)>; 2]) {
    let (mut reads, mut uploads) = (0, 0);
    // By slot: the number of the tile in it.
    let mut held: Vec<Option<usize>> = Vec::new();
    let mut done = 0;
    for (_, step) in &first {
        match *step {
            Step::Read => reads += 1,
            Step::Upload { slot } => {
                held.resize(held.len().max(slot as usize + 1), None);
                assert_eq!(held[slot as usize].replace(uploads), None, "slot {slot} was in use");
                uploads += 1;
            }
            Step::Done { slot } => {
                let tile = held[slot as usize].take().unwrap();
                assert!(uploads > tile + 1, "tile {tile} was done before the next was copied");
                assert!(reads > tile + 1, "tile {tile} was done before the next was read");
                done += 1;
            }
        }
    }
    println!("{uploads} {what} in {} slots, {reads} reads, {done} waited for", held.len());
    assert!((2..=3).contains(&held.len()), "{} slots", held.len());
    assert!(uploads > 20 && done + held.len() >= uploads, "{uploads} {what}, {done} done");
    // The other takes the same slots.
    let slots = second.iter().filter_map(|(_, step)| match step {
        Step::Upload { slot } => Some(*slot),
        Step::Read | Step::Done { .. } => None,
    });
    assert!(slots.clone().count() > 20 && slots.max() < Some(held.len() as u64));
    assert!(first.is_sorted_by_key(|(at, _)| *at) && first.last().unwrap().0 <= second[0].0);
}
