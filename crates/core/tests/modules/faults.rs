//! Reads that fail in the middle of a pass: the caller gets the error, the screen nothing, and the
//! next pass is right.

use crate::common::{self, bits, fill, flat, folder, options, values, write};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_core::{Dispatched, Error, dispatch, tree};
use outsize_plan::{Budget, MemoryOverhead, Options as Plan, place};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use tempfile::TempDir;

const WIDTH: usize = 96;
const LAYERS: usize = 8;

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Linear>,
}

impl Stack {
    fn new() -> Self {
        let config = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
        Self { layers: (0..LAYERS).map(|_| config.init(&Device::flex())).collect() }
    }

    fn input(&self) -> Tensor<2> {
        common::Numbers(1).tensor([2, WIDTH])
    }

    fn forward(&self) -> Tensor<1> {
        let layers = self.layers.iter();
        flat(layers.fold(self.input(), |x, layer| layer.forward(x)))
    }

    /// All layers on the same input, each on a thread of the pool.
    fn on_rayon(&self) -> Tensor<1> {
        use rayon::prelude::*;
        let outputs: Vec<_> =
            self.layers.par_iter().map(|layer| layer.forward(self.input())).collect();
        flat(Tensor::cat(outputs, 0))
    }

    /// The same on threads of a scope that nobody asks for their results.
    fn on_scope(&self) -> Tensor<1> {
        let outputs = std::sync::Mutex::new(vec![None; LAYERS]);
        thread::scope(|scope| {
            for (at, layer) in self.layers.iter().enumerate() {
                let outputs = &outputs;
                scope.spawn(move || {
                    let output = layer.forward(self.input());
                    outputs.lock().unwrap()[at] = Some(output);
                });
            }
        });
        let outputs = outputs.into_inner().unwrap().into_iter().flatten().collect();
        flat(Tensor::cat(outputs, 0))
    }

    /// The same, by a module that goes on without the layers that fail.
    fn on_join(&self) -> Tensor<1> {
        let results: Vec<_> = self
            .layers
            .iter()
            .map(|layer| {
                let (layer, input) = (layer.clone(), self.input());
                thread::spawn(move || layer.forward(input)).join()
            })
            .collect();
        flat(Tensor::cat(results.into_iter().flatten().collect(), 0))
    }
}

struct Case {
    _dir: TempDir,
    model: Dispatched<Stack>,
    shard: PathBuf,
    content: Vec<u8>,
    expected: Vec<u32>,
}

fn shard(folder: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.extension().is_some_and(|end| end == "safetensors")).unwrap()
}

/// The first layers stay, the others are streamed: with room for all threads at once.
fn case() -> Case {
    let (dir, path) = folder();
    let module = fill(Stack::new());
    write(&path, &values(&module), Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut options = options(None);
    options.needs = MemoryOverhead { overflow: 1 << 20, ..MemoryOverhead::default() };
    let tree = tree(&Stack::new(), &checkpoint, &options).unwrap();
    let plan: Plan = options.plan();
    let map = place(&tree, &Budget::default(), &plan, |tensor| *tensor.name < *"layers.3").unwrap();
    let shard = shard(&path);
    Case {
        _dir: dir,
        model: dispatch(Stack::new(), &checkpoint, &map, &options).unwrap(),
        content: std::fs::read(&shard).unwrap(),
        shard,
        expected: bits(module.forward()),
    }
}

impl Case {
    /// Cuts the file so that the last layers are missing, runs, restores, and runs again.
    fn check(&self, pass: fn(&Stack) -> Tensor<1>) {
        let file = File::options().write(true).open(&self.shard).unwrap();
        let opened = file.metadata().unwrap().modified().unwrap();
        let half = self.content.len() as u64 / 2;
        file.set_len(half).unwrap();
        // What was read ahead before the cut still serves.
        let error = (0..4)
            .find_map(|_| self.model.run(pass).err())
            .expect("passes over half of a file succeeded");
        let message = error.to_string();
        assert!(matches!(error, Error::Stream(_)), "{message}");
        assert!(message.contains("`layers.") && message.contains(".safetensors"), "{message}");
        // Put back as it was, its time included: otherwise it might be another file.
        file.write_all_at(&self.content, 0).unwrap();
        file.set_modified(opened).unwrap();
        let output = self.model.run(|stack| bits(stack.forward())).unwrap();
        assert!(output == self.expected);
    }
}

#[test]
fn a_failure_in_the_first_pass() {
    case().check(Stack::forward);
}

#[test]
fn a_failure_in_a_later_pass() {
    let case = case();
    for _ in 0..3 {
        let output = case.model.run(|stack| bits(stack.forward())).unwrap();
        assert!(output == case.expected);
    }
    case.check(Stack::forward);
    case.check(Stack::forward);
}

#[test]
fn a_failure_on_a_thread_of_a_pool() {
    let case = case();
    let expected = case.model.run(|stack| bits(stack.on_rayon())).unwrap();
    case.check(Stack::on_rayon);
    let output = case.model.run(|stack| bits(stack.on_rayon())).unwrap();
    assert!(output == expected);
}

/// The scope replaces the panic by one of its own, which says nothing of the cause.
#[test]
fn a_failure_on_a_thread_of_a_scope() {
    case().check(Stack::on_scope);
}

/// A result without some of the layers is no result.
#[test]
fn a_failure_that_the_module_swallows() {
    case().check(Stack::on_join);
}

/// A module that holds more weights at once than was declared is refused, and what is declared is
/// enough.
#[test]
fn holding_too_much_is_an_error() {
    let (_dir, path) = folder();
    write(&path, &values(&fill(Stack::new())), Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let hold = |stack: &Stack| {
        let held: Vec<_> = stack.layers.iter().map(|layer| layer.weight.val()).collect();
        held.len()
    };
    for (overflow, enough) in [(0, false), (1 << 20, true)] {
        let mut options = options(None);
        options.needs.overflow = overflow;
        let tree = tree(&Stack::new(), &checkpoint, &options).unwrap();
        let map = place(&tree, &Budget::default(), &options.plan(), |_| false).unwrap();
        assert_eq!(map.needs().overflow, overflow);
        let model = dispatch(Stack::new(), &checkpoint, &map, &options).unwrap();
        match model.run(hold) {
            Ok(count) => assert!(enough && count == LAYERS),
            Err(error) => assert!(!enough && error.to_string().contains("overflow"), "{error}"),
        }
        model.run(|stack| bits(stack.forward())).unwrap();
    }
}

/// What the child process does whose standard error is looked at.
#[test]
fn child() {
    if std::env::var_os("OUTSIZE_CHILD").is_some() {
        case().check(Stack::forward);
        case().check(Stack::on_rayon);
    }
}

#[test]
fn nothing_is_printed() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::child", "--nocapture", "--test-threads=1"])
        .env("OUTSIZE_CHILD", "1")
        .env("RUST_BACKTRACE", "1")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert_eq!(error, "");
}
