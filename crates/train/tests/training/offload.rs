//! Modules whose weights learn on the disk, beside the same with all in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::conv::{Conv1d, Conv1dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig,
    Linear, LinearConfig, Lstm, LstmConfig, PaddingConfig1d,
};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};
use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};
use outsize_core::{Layout, Names, Options, learning_device, load, save};
use outsize_plan::Budget;
use outsize_train::Error;
use outsize_train::offload::{OffloadedAdamW, OffloadedTraining, offloaded};
use tempfile::TempDir;

const WIDTH: usize = 128;
const RATE: f64 = 1e-3;

/// Something of each kind, with a layer that is used twice.
#[derive(Module, Debug)]
struct Mixed {
    table: Embedding,
    conv: Conv1d,
    lstm: Lstm,
    norm: LayerNorm,
    twice: Linear,
    head: Linear,
}

impl Mixed {
    fn new(device: &Device) -> Self {
        Self {
            table: EmbeddingConfig::new(64, WIDTH).init(device),
            conv: Conv1dConfig::new(WIDTH, WIDTH, 3)
                .with_padding(PaddingConfig1d::Same)
                .init(device),
            lstm: LstmConfig::new(WIDTH, WIDTH, true).init(device),
            norm: LayerNormConfig::new(WIDTH).init(device),
            twice: LinearConfig::new(WIDTH, WIDTH).init(device),
            head: LinearConfig::new(WIDTH, 4).init(device),
        }
    }

    /// The loss of a batch that a number decides.
    fn loss(&self, seed: usize) -> Tensor<1> {
        let ids: Vec<i64> = (0..12).map(|at| ((at * 7 + seed * 11) % 64) as i64).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [2, 6]), &learning_device());
        let x = self.conv.forward(self.table.forward(ids).swap_dims(1, 2)).swap_dims(1, 2);
        let x = self.norm.forward(self.lstm.forward(x, None).0);
        let x = self.twice.forward(Gelu::new().forward(self.twice.forward(x)));
        (self.head.forward(x) - seed as f32 / 4.0).square().mean()
    }
}

/// A folder with a checkpoint of a module, and room beside it.
struct Place(TempDir);

impl Place {
    fn new(names: &Names) -> Self {
        let place = Self(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let module = Mixed::new(&Device::flex()).map(&mut Drawn(0));
        save(&module, place.at("model"), names, 1 << 30).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn training(&self, states: &str, budget: &str) -> Result<OffloadedTraining<Mixed>, Error> {
        offloaded(self.at("model"), self.at(states))
            .options(options(budget, &Names::default()))
            .adamw(adamw())
            .open(Mixed::new)
    }

    fn least(&self) -> String {
        least(self.training("none", "cpu=1").unwrap_err())
    }
}

/// The least budget that will do, as the refusal of less says.
fn least(refusal: Error) -> String {
    match refusal {
        Error::Core(outsize_core::Error::Plan(outsize_plan::Error::TooSmall(shortfall))) => {
            format!("cpu={}", shortfall.least)
        }
        other => panic!("{other}"),
    }
}

fn options(budget: &str, names: &Names) -> Options {
    Options {
        budget: Budget::parse(budget).unwrap(),
        names: names.clone(),
        small_tensor_bytes: 0,
        ..Options::default()
    }
}

fn adamw() -> OffloadedAdamW {
    OffloadedAdamW { weight_decay: 0.1, ..OffloadedAdamW::default() }
}

/// Steps of two batches each.
fn learn(training: &mut OffloadedTraining<Mixed>, steps: usize) {
    for _ in 0..steps {
        let step = training.steps();
        training.backward(|module| module.loss(2 * step)).unwrap();
        training.backward(|module| module.loss(2 * step + 1)).unwrap();
        let made = training.step(RATE).unwrap();
        assert_eq!(made.step, step + 1);
        assert!(made.loss > 0.0 && made.grad_norm > 0.0);
    }
}

/// What a checkpoint holds, tensor by tensor.
fn tensors(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let tensors = checkpoint.tensors().iter();
    tensors.map(|it| (it.name.clone(), checkpoint.read(it).unwrap())).collect()
}

/// Gives parameters the same values in every run, by how many had some before: from -0.1 to 0.1.
struct Drawn(u64);

impl ModuleMapper for Drawn {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            let (shape, device) = (tensor.shape(), tensor.device());
            let value = |_| {
                // Knuth's linear congruential generator, of which the upper bits count.
                self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0) / 10.0
            };
            let values: Vec<f32> = (0..shape.num_elements()).map(value).collect();
            Tensor::from_data(TensorData::new(values, shape), &device)
        })
    }
}

#[derive(Default)]
struct Values(Vec<Vec<f32>>);

impl ModuleVisitor for Values {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.val().into_data().try_to_vec().unwrap());
    }
}

fn values(folder: &Path, names: &Names) -> Vec<Vec<f32>> {
    let options = Options { names: names.clone(), ..Options::default() };
    let checkpoint = Checkpoint::open(folder).unwrap();
    let module = load(Mixed::new(&Device::flex()), &checkpoint, &options).unwrap();
    let mut values = Values::default();
    module.visit(&mut values);
    values.0
}

/// What Burn's own loop makes of it.
fn learned_by_burn(place: &Place, names: &Names, steps: usize) -> Vec<Vec<f32>> {
    let options = Options { names: names.clone(), ..Options::default() };
    let checkpoint = Checkpoint::open(place.at("model")).unwrap();
    let device = learning_device();
    let mut module = load(Mixed::new(&device), &checkpoint, &options).unwrap();
    let mut optimizer =
        AdamWConfig::new().with_beta_2(0.999).with_epsilon(1e-8).with_weight_decay(0.1).init();
    for step in 0..steps {
        let loss = (module.loss(2 * step) + module.loss(2 * step + 1)) / 2.0;
        let gradients = GradientsParams::from_grads(loss.backward(), &module);
        module = optimizer.step(RATE, module, gradients);
    }
    let mut values = Values::default();
    module.visit(&mut values);
    values.0
}

#[test]
fn weights_learn_what_they_do_in_memory_in_any_budget_with_the_same_bits() {
    for layout in [Layout::Burn, Layout::PyTorch] {
        let names = Names::new(layout);
        let place = Place::new(&names);
        let opened = |states: &str, budget: &str| {
            offloaded(place.at("model"), place.at(states))
                .options(options(budget, &names))
                .adamw(adamw())
                .open(Mixed::new)
        };
        let least = least(opened("none", "cpu=1").unwrap_err());
        let mut small = opened("small", &least).unwrap();
        assert!(small.device_map().streamed_bytes() > 0);
        learn(&mut small, 4);
        small.save(place.at("of-small")).unwrap();
        let mut large = opened("large", "cpu=1GB").unwrap();
        assert_eq!(large.device_map().streamed_bytes(), 0);
        learn(&mut large, 4);
        large.save(place.at("of-large")).unwrap();
        assert!(tensors(&place.at("of-small")) == tensors(&place.at("of-large")));

        let learned = values(&place.at("of-small"), &names);
        let wanted = learned_by_burn(&place, &names, 4);
        let before = values(&place.at("model"), &names);
        for ((found, want), before) in learned.iter().zip(&wanted).zip(&before) {
            let far = |one: &[f32], other: &[f32]| {
                let squares = one.iter().zip(other).map(|(one, other)| (one - other).powi(2));
                squares.sum::<f32>().sqrt()
            };
            // Not of each weight by itself: where a gradient is nearly 0, AdamW makes a step of
            // what its rounding leaves.
            let (off, moved) = (far(found, want), far(want, before));
            assert!(off < 5e-5 * moved, "off by {off} of {moved}");
            assert!(moved > 1e-3 * (found.len() as f32).sqrt(), "it did not learn");
        }
        small.remove_states();
        assert!(!place.at("small").exists());
    }
}

#[test]
fn a_training_goes_on_where_it_ended() {
    let place = Place::new(&Names::default());
    let least = place.least();
    let mut whole = place.training("whole", &least).unwrap();
    learn(&mut whole, 3);
    whole.save(place.at("of-whole")).unwrap();
    let mut first = place.training("parts", &least).unwrap();
    learn(&mut first, 1);
    // In the middle of a step.
    let second = place.training("parts", &least).unwrap_err().to_string();
    assert!(second.contains("another process learns in it"), "{second}");
    first.backward(|module| module.loss(7)).unwrap();
    drop(first);
    let mut second = place.training("parts", "cpu=1GB").unwrap();
    assert_eq!(second.steps(), 1);
    learn(&mut second, 2);
    second.save(place.at("of-parts")).unwrap();
    assert!(tensors(&place.at("of-whole")) == tensors(&place.at("of-parts")));
    drop(second);
    let other = offloaded(place.at("model"), place.at("parts")).open(Mixed::new).unwrap_err();
    assert!(matches!(other, Error::OtherTraining { .. }), "{other}");
}

#[test]
fn parameters_that_do_not_learn_keep_their_bits() {
    let place = Place::new(&Names::default());
    let mut training = offloaded(place.at("model"), place.at("states"))
        .options(options(&place.least(), &Names::default()))
        .learns(|path| path.starts_with("head."))
        .open(Mixed::new)
        .unwrap();
    assert_eq!(training.parameter_count(), (4 * WIDTH + 4) as u64);
    learn(&mut training, 1);
    training.save(place.at("out")).unwrap();
    let (before, after) = (tensors(&place.at("model")), tensors(&place.at("out")));
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        assert_eq!(before == after, !name.starts_with("head."), "{name}");
    }
}

#[test]
fn weights_in_bf16_learn_what_they_would_in_f32() {
    let place = Place::new(&Names::default());
    let model = Checkpoint::open(place.at("model")).unwrap();
    let specs = model.tensors().iter();
    let specs = specs.map(|it| TensorSpec::new(&it.name, Dtype::BF16, it.shape.clone()));
    let mut writer = ShardWriter::create(place.at("bf16"), specs.collect(), 1 << 30).unwrap();
    for tensor in model.tensors() {
        let bytes = model.read(tensor).unwrap();
        let values = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let narrow = values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes());
        writer.write(&tensor.name, &narrow.collect::<Vec<u8>>()).unwrap();
    }
    writer.finish().unwrap();
    let mut training = offloaded(place.at("bf16"), place.at("states"))
        .options(options("cpu=10MB", &Names::default()))
        .open(Mixed::new)
        .unwrap();
    let first = training.run(|module| module.loss(1).into_scalar::<f32>()).unwrap();
    for _ in 0..20 {
        // Less than bf16 can hold of most weights.
        training.backward(|module| module.loss(1)).unwrap();
        training.step(1e-4).unwrap();
    }
    let last = training.run(|module| module.loss(1).into_scalar::<f32>()).unwrap();
    assert!(last < 0.9 * first, "{first} to {last}");
    training.save(place.at("out")).unwrap();
    let learned = Checkpoint::open(place.at("out")).unwrap();
    assert!(learned.tensors().iter().all(|tensor| tensor.dtype == Dtype::BF16));
}

#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
}

impl Normed {
    fn new(device: &Device) -> Self {
        Self {
            // The norm would leave a bias no gradient.
            linear: LinearConfig::new(8, 8).with_bias(false).init(device),
            norm: BatchNormConfig::new(8).init(device),
        }
    }

    fn loss(&self, seed: usize) -> Tensor<1> {
        let x: Vec<f32> = (0..64).map(|at| ((at * 7 + seed * 11) % 13) as f32 - 4.0).collect();
        let x = Tensor::<2>::from_data(TensorData::new(x, [8, 8]), &learning_device());
        (self.norm.forward(self.linear.forward(x.clone())) - x).square().mean()
    }
}

#[test]
fn running_statistics_are_those_of_the_passes_that_learned() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| place.path().join(name);
    save(&Normed::new(&Device::flex()), at("model"), &Names::default(), 1 << 30).unwrap();
    let checkpoint = |name: &str| Checkpoint::open(at(name)).unwrap();
    let loaded = |name: &str, device: &Device| {
        load(Normed::new(device), &checkpoint(name), &Options::default()).unwrap()
    };
    let values = |module: &Normed| {
        let mut values = Values::default();
        module.visit(&mut values);
        values.0
    };

    let mut burn = loaded("model", &learning_device());
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.1).with_epsilon(1e-8).init();
    for step in 0..3 {
        let loss = (burn.loss(2 * step) + burn.loss(2 * step + 1)) / 2.0;
        let gradients = GradientsParams::from_grads(loss.backward(), &burn);
        burn = optimizer.step(RATE, burn, gradients);
    }
    let wanted = values(&burn.valid());

    let opened = || offloaded(at("model"), at("states")).adamw(adamw()).open(Normed::new).unwrap();
    let mut training = opened();
    for step in 0..3 {
        training.backward(|module| module.loss(2 * step)).unwrap();
        training.backward(|module| module.loss(2 * step + 1)).unwrap();
        training.step(RATE).unwrap();
        // Every step is in the states.
        drop(training);
        training = opened();
    }
    training.save(at("out")).unwrap();
    let learned = values(&loaded("out", &Device::flex()));
    for (found, want) in learned.iter().zip(&wanted) {
        let off = found.iter().zip(want).map(|(found, want)| (found - want).abs());
        assert!(off.fold(0.0, f32::max) < 1e-5, "{found:?} for {want:?}");
    }
    let mean = |name: &str| {
        let checkpoint = checkpoint(name);
        checkpoint.read(checkpoint.get("norm.running_mean").unwrap()).unwrap()
    };
    assert_ne!(mean("model"), mean("out"));
    drop(training);

    // Statistics of what does not learn stay.
    let fixed = offloaded(at("model"), at("fixed")).learns(|path| path.starts_with("linear."));
    let mut fixed = fixed.open(Normed::new).unwrap();
    fixed.backward(|module| module.loss(1)).unwrap();
    fixed.step(RATE).unwrap();
    fixed.save(at("of-fixed")).unwrap();
    assert_eq!(mean("model"), mean("of-fixed"));
}

#[test]
fn what_cannot_learn_is_refused_and_failed_passes_leave_no_gradients() {
    let place = Place::new(&Names::default());
    let mut training = place.training("states", "cpu=1GB").unwrap();
    let error = training.step(RATE).unwrap_err();
    assert!(matches!(error, Error::NoGradients { step: 1 }), "{error}");
    let error = training.backward(|_| Tensor::ones([1], &Device::flex())).unwrap_err();
    assert!(error.to_string().contains("does not depend on any parameter"), "{error}");
    training.backward(|module| module.loss(1)).unwrap();
    let error = training.backward(|module| module.loss(1) * f32::NAN).unwrap_err();
    assert!(matches!(error, Error::Loss { step: 1, .. }), "{error}");
    let error = training.step(RATE).unwrap_err();
    assert!(matches!(error, Error::NoGradients { step: 1 }), "{error}");
    // Gradients that are no numbers change nothing.
    training.backward(|module| (module.loss(1) * 0.0).sqrt()).unwrap();
    let error = training.step(RATE).unwrap_err();
    assert!(matches!(error, Error::Gradients { step: 1 }), "{error}");
    training.save(place.at("same")).unwrap();
    assert!(tensors(&place.at("same")) == tensors(&place.at("model")));
    learn(&mut training, 1);

    let adamw = OffloadedAdamW { betas: [0.9, 1.0], ..OffloadedAdamW::default() };
    let refused = offloaded(place.at("model"), place.at("of-beta")).adamw(adamw).open(Mixed::new);
    let error = refused.unwrap_err().to_string();
    assert_eq!(error, "the second beta is 1, but it must be from 0 to below 1");
    assert!(!place.at("of-beta").exists());

    let stop = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let options = Options { stop: Some(stop), ..options("cpu=1GB", &Names::default()) };
    let stopped = offloaded(place.at("model"), place.at("stopped")).options(options);
    assert!(matches!(stopped.open(Mixed::new).unwrap_err(), Error::Stopped));
}
