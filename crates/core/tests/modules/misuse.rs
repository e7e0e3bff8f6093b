//! What a dispatched module cannot do, and what happens instead.

use crate::common::{bits, fill, flat, folder, options, values, write};
use burn::module::Lora;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamGroup, QLora, Quantizer};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::quantization::{Calibration, QuantValue};
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_core::{Dispatched, Error, Options, dispatch, load_checkpoint_and_dispatch, tree};
use outsize_plan::{Budget, Tier, place};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use tempfile::TempDir;

const WIDTH: usize = 48;

#[derive(Module, Debug)]
struct Model {
    up: Linear,
    norm: BatchNorm,
    down: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        Self {
            up: LinearConfig::new(WIDTH, 2 * WIDTH).init(device),
            norm: BatchNormConfig::new(2 * WIDTH).init(device),
            down: LinearConfig::new(2 * WIDTH, WIDTH).init(device),
        }
    }

    fn forward(&self, seed: u64) -> Tensor<1> {
        let x: Tensor<2> = crate::common::Numbers(seed).tensor([3, WIDTH]);
        flat(self.down.forward(self.norm.forward(self.up.forward(x))))
    }
}

struct Stored {
    _dir: TempDir,
    checkpoint: Checkpoint,
    expected: Vec<u32>,
}

fn stored() -> Stored {
    let (dir, path) = folder();
    let module = fill(Model::new(&Device::flex()));
    write(&path, &values(&module), Dtype::F32);
    Stored {
        _dir: dir,
        checkpoint: Checkpoint::open(path).unwrap(),
        expected: bits(module.forward(1)),
    }
}

/// Resident or streamed: misuse must not depend on it.
fn dispatched(stored: &Stored, resident: bool) -> Dispatched<Model> {
    let module = Model::new(&Device::flex());
    let options = options(None);
    let tree = tree(&module, &stored.checkpoint, &options).unwrap();
    let map = place(&tree, &Budget::default(), &options.plan(), |_| resident).unwrap();
    dispatch(module, &stored.checkpoint, &map, &options).unwrap()
}

struct ReadAll(usize);

impl ModuleVisitor for ReadAll {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0 += param.val().into_data().num_elements();
    }
}

struct Keep;

impl ModuleMapper for Keep {}

struct Step;

impl ModuleMapper for Step {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.mul_scalar(0.9))
    }
}

/// Each ends in an error that says what was tried, and the next pass is right.
#[test]
fn misuse_is_an_error() {
    type Use = fn(Model);
    let uses: [(&str, Use); 11] = [
        ("reads its value", |m| drop(m.into_record())),
        ("reads its value", |m| {
            let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("never");
            let _ = m.save_file(path);
        }),
        ("reads its value", |m| m.visit(&mut ReadAll(0))),
        ("maps it", |m| drop(m.map(&mut Keep))),
        ("maps it", |m| drop(m.no_grad())),
        ("maps it", |m| drop(m.freeze())),
        ("maps it", |m| {
            let record = Model::new(&Device::flex()).into_record();
            drop(m.load_record(record));
        }),
        ("maps it", |m| {
            let scheme = Device::flex().settings().quantization.scheme;
            let mut quantizer =
                Quantizer::new(Calibration::MinMax, scheme.with_value(QuantValue::Q8S));
            drop(m.quantize_weights(&mut quantizer));
        }),
        ("maps it", |m| drop(m.apply_lora(Lora::new(2, 1.0)))),
        // As an optimizer does.
        ("maps it", |m| drop(m.map(&mut Step))),
        ("trains it", |m| drop(m.train())),
    ];
    let stored = stored();
    for resident in [false, true] {
        let model = dispatched(&stored, resident);
        for (at, (what, misuse)) in uses.iter().enumerate() {
            match model.run(|module| misuse(module.clone())) {
                Err(error @ Error::Misuse { .. }) => {
                    let message = error.to_string();
                    assert!(message.contains(what) && message.contains("`up.weight`"), "{message}");
                }
                other => panic!("use {at} ({what}): {other:?}"),
            }
            let output = model.run(|module| bits(module.forward(1))).unwrap();
            assert!(output == stored.expected, "after use {at}");
        }
    }
}

#[test]
fn harmless_uses_are_harmless() {
    let stored = stored();
    for resident in [false, true] {
        let model = dispatched(&stored, resident);
        let device = Device::flex();
        let plain = Model::new(&device);
        let output = model
            .run(|module| {
                assert_eq!(module.num_params(), plain.num_params());
                assert_eq!(module.devices(), std::slice::from_ref(&device));
                assert!(format!("{module}").contains("params: "));
                assert!(format!("{module:?}").contains("up"));
                // The same device: a module keeps the autodiff context that it was built with.
                let autodiff = device.clone().autodiff();
                let module = module.clone().to_device(&autodiff).fork(&device).valid();
                bits(module.forward(1))
            })
            .unwrap();
        assert!(output == stored.expected);
    }
    // With everything in memory, a module of its own can be made of it.
    let model = dispatched(&stored, true);
    let whole = model.run(|module| module.clone().materialize()).unwrap();
    assert!(bits(whole.forward(1)) == stored.expected);
    let (names, _): (Vec<_>, Vec<_>) = values(&whole).into_iter().unzip();
    assert_eq!(names.len(), 8);
}

/// The text of the panic that `run` ends in.
fn panic_of<R>(run: impl FnOnce() -> R) -> String {
    let payload = catch_unwind(AssertUnwindSafe(run)).err().expect("it did not panic");
    payload.downcast_ref::<String>().expect("no panic with a message").clone()
}

#[test]
fn a_clone_that_escapes_says_so() {
    let stored = stored();
    for resident in [false, true] {
        let model = dispatched(&stored, resident);
        model.run(|module| module.forward(1)).unwrap();
        let escaped = model.run(Model::clone).unwrap();
        for uses in [
            (|m| drop(m.forward(1))) as fn(&Model),
            |m| drop(m.clone().into_record()),
            |m| drop(m.clone().no_grad()),
        ] {
            let message = panic_of(|| uses(&escaped));
            assert!(message.contains("up.weight"), "{message}");
        }
        let message = panic_of(|| escaped.forward(1));
        assert!(message.contains("outside of `Dispatched::run`"), "{message}");
        drop(model);
        let message = panic_of(|| escaped.forward(1));
        assert!(message.contains("outside of `Dispatched::run`"), "{message}");
    }
}

#[test]
fn run_within_run_is_an_error() {
    let stored = stored();
    let (one, other) = (dispatched(&stored, false), dispatched(&stored, false));
    let inner = one.run(|_| one.run(|_| ())).unwrap();
    assert!(matches!(inner, Err(Error::Nested)), "{inner:?}");
    // Two modules do not mind each other.
    let output = one.run(|_| other.run(|module| bits(module.forward(1))));
    assert!(output.unwrap().unwrap() == stored.expected);
    assert_eq!(one.run(|module| bits(module.forward(1))).unwrap(), stored.expected);
}

#[test]
fn threads_take_turns() {
    let stored = stored();
    let model = Arc::new(dispatched(&stored, false));
    let expected: Vec<_> = {
        let whole = dispatched(&stored, true);
        (0..4).map(|seed| whole.run(|module| bits(module.forward(seed))).unwrap()).collect()
    };
    thread::scope(|scope| {
        for seed in 0..4 {
            let (model, expected) = (model.clone(), &expected);
            scope.spawn(move || {
                for _ in 0..8 {
                    let output = model.run(|module| bits(module.forward(seed))).unwrap();
                    assert!(output == expected[seed as usize]);
                }
            });
        }
    });
}

/// A panic of the module's own is nobody else's.
#[test]
fn other_panics_pass_through() {
    let stored = stored();
    let model = dispatched(&stored, false);
    let message = panic_of(|| model.run(|_| panic!("{}", "a bug of the module's")));
    assert_eq!(message, "a bug of the module's");
    assert_eq!(model.run(|module| bits(module.forward(1))).unwrap(), stored.expected);
}

#[test]
fn modules_that_cannot_be_dispatched_are_refused() {
    let stored = stored();
    let device = Device::flex();
    let scheme = device.settings().quantization.scheme.with_value(QuantValue::Q8S);
    let quantizer = || Quantizer::new(Calibration::MinMax, scheme);
    let up = || ParamGroup::from_predicate("up");
    let refused = |module: Model| {
        let folder = stored.checkpoint.folder();
        load_checkpoint_and_dispatch(module, folder, &options(None)).unwrap_err()
    };
    let lora = Model::new(&device).apply_lora(Lora::new(2, 1.0).set_param_group(up()));
    let error = refused(lora);
    assert!(matches!(&error, Error::Reparameterized { path } if path == "up.weight"), "{error}");
    let qlora = QLora::new(Lora::new(2, 1.0), quantizer());
    let error = refused(Model::new(&device).apply_qlora(qlora));
    assert!(matches!(&error, Error::Reparameterized { path } if path == "up.weight"), "{error}");
    let error = refused(Model::new(&device.clone().autodiff()));
    assert!(matches!(&error, Error::Autodiff { path } if path == "up.weight"), "{error}");
    assert!(error.to_string().contains("device.inner()"), "{error}");
    let quantized = Model::new(&device).quantize_weights(&mut quantizer());
    let error = refused(quantized);
    assert!(matches!(&error, Error::Quantized { path } if path == "up.weight"), "{error}");
    // And what was dispatched is not dispatched again.
    let model = dispatched(&stored, false);
    let error = refused(model.run(Model::clone).unwrap());
    assert!(matches!(error, Error::Reparameterized { .. }), "{error}");
}

#[test]
fn a_module_on_another_device_is_refused() {
    let budget = Budget::parse("gpu0=64MiB,cpu=64MiB").unwrap();
    let options = Options { budget, gpu: Some(0), ..Options::default() };
    let (_dir, path) = folder();
    let model = fill(Model::new(&Device::flex()));
    write(&path, &values(&model), Dtype::F32);
    let error = load_checkpoint_and_dispatch(Model::new(&Device::flex()), &path, &options);
    let error = error.unwrap_err();
    let told = error.to_string();
    match error {
        Error::OtherDevice { tier: Tier::Gpu(0), .. } => {
            assert!(told.contains("initialise"), "{told}")
        }
        Error::NotBuilt { .. } => assert!(told.contains("--features vulkan"), "{told}"),
        Error::NoGpu { .. } => assert!(told.contains("outsize env"), "{told}"),
        other => panic!("{other}"),
    }
}
