//! Gradients of all kinds, whatever streams, are those that Burn gives with all weights in memory.

use crate::common::{Numbers, flat, folder, options};
use crate::specimen::{DTYPES, Specimen, Stored, least};
use crate::{convolution, norm, recurrent, structure, transformer};
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear,
    LinearConfig, Lstm, LstmConfig,
};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Gradients, Tensor};
use outsize_checkpoint::TensorInfo;
use outsize_core::{
    GradientSink, Names, activation_checkpoint, dispatch, learning_device,
    load_checkpoint_and_dispatch, save, tree,
};
use outsize_plan::infer;
use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Sums of gradients, by tensor.
#[derive(Default)]
struct Sums(Mutex<HashMap<String, Vec<f32>>>);

impl GradientSink for Sums {
    fn add(&self, tensor: &TensorInfo, start: u64, gradient: &[f32]) -> io::Result<()> {
        let mut sums = self.0.lock().unwrap();
        let count = tensor.shape.iter().product();
        let sum = sums.entry(tensor.name.clone()).or_insert_with(|| vec![0.0; count]);
        let sum = &mut sum[start as usize..][..gradient.len()];
        sum.iter_mut().zip(gradient).for_each(|(sum, more)| *sum += more);
        Ok(())
    }
}

/// What Burn finds, by path, as it is saved.
struct Found {
    path: Vec<String>,
    gradients: Gradients,
    by_path: HashMap<String, Vec<f32>>,
}

impl ModuleVisitor for Found {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = param.val().grad(&self.gradients) else { return };
        let (_, _, mapper) = param.clone().consume();
        let gradient = mapper.on_save(gradient).into_data().try_to_vec().unwrap();
        self.by_path.insert(self.path.join("."), gradient);
    }
}

fn loss<M: Specimen>(module: &M, seed: u64) -> Tensor<1> {
    module.pass(seed).square().sum()
}

/// By how much gradients may be off, relative to the largest of a parameter.
fn check<M: Specimen>(tolerance: f32) {
    let stored = Stored::<M>::new();
    for dtype in DTYPES {
        let checkpoint = stored.checkpoint(dtype);
        let tree = tree(&M::new(&Device::flex()), &checkpoint, &options(None)).unwrap();
        let options = options(Some(least(&tree, &options(None))));
        let map = infer(&tree, &options.budget, &options.plan()).unwrap();
        let model = dispatch(M::new(&Device::flex()), &checkpoint, &map, &options).unwrap();
        for seed in [1, 2, 1] {
            let module = stored.module().clone().to_device(&learning_device()).train();
            let burn = loss(&module, seed);
            let value: f32 = burn.clone().into_scalar();
            let gradients = burn.backward();
            let mut found = Found { path: Vec::new(), gradients, by_path: HashMap::new() };
            module.visit(&mut found);
            assert!(!found.by_path.is_empty());

            let sums = Arc::new(Sums::default());
            let sink: Arc<dyn GradientSink> = sums.clone();
            let learned = model.backward(&sink, |module| loss(module, seed)).unwrap();
            assert_eq!(learned.to_bits(), value.to_bits(), "the loss of input {seed}");
            let sums = sums.0.lock().unwrap();
            for (path, want) in &found.by_path {
                let sum = sums.get(path).unwrap_or_else(|| panic!("no gradient of {path}"));
                let largest = want.iter().fold(0.0, |most: f32, one| most.max(one.abs()));
                let off = sum.iter().zip(want).map(|(sum, want)| (sum - want).abs());
                let off = off.fold(0.0, f32::max);
                assert!(
                    off <= tolerance * largest,
                    "{path}, input {seed}: off by {off} of {largest}"
                );
            }
        }
        assert_eq!(model.stats().overflows, 0);
    }
}

macro_rules! gradients {
    ($($name:ident: $specimen:ty, $tolerance:expr;)*) => {$(
        #[test]
        fn $name() {
            check::<$specimen>($tolerance);
        }
    )*};
}

/// Blocks whose activations are computed once more: of a table, of layers, within each other, and
/// one that what went before has no gradient through.
#[derive(Module, Debug)]
struct Recomputed {
    table: Embedding,
    layers: Vec<Linear>,
    lstm: Lstm,
    last: Linear,
}

impl Specimen for Recomputed {
    fn new(device: &Device) -> Self {
        Self {
            table: EmbeddingConfig::new(20, 32).init(device),
            layers: (0..4).map(|_| LinearConfig::new(32, 32).init(device)).collect(),
            lstm: LstmConfig::new(32, 32, true).init(device),
            last: LinearConfig::new(32, 32).init(device),
        }
    }

    fn pass(&self, seed: u64) -> Tensor<1> {
        let mut numbers = Numbers(seed);
        let table = self.table.clone();
        let ids = numbers.ids([2, 5], 20);
        let scale = numbers.tensor([2, 5, 1]);
        let mut x: Tensor<3> =
            activation_checkpoint(scale, move |scale| table.forward(ids.clone()) * scale);
        for layers in self.layers.chunks(2) {
            let layers = layers.to_vec();
            x = activation_checkpoint(x, move |x| {
                let [outer, inner] = [&layers[0], &layers[1]].map(Clone::clone);
                let y = activation_checkpoint(x.clone(), move |x| relu(inner.forward(x)));
                x + outer.forward(y)
            });
        }
        let lstm = self.lstm.clone();
        // Another rank comes of it.
        let x: Tensor<2> =
            activation_checkpoint(x, move |x| lstm.forward(x, None).0.sum_dim(1).squeeze_dim(1));
        flat(self.last.forward(x))
    }
}

/// What is left out at random is the same whenever a block is computed: in a process of its own,
/// for whoever makes a module draws from the same generator.
#[test]
fn a_block_draws_the_same_numbers_again() {
    const ALONE: &str = "OUTSIZE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "learning::a_block_draws_the_same_numbers_again"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    #[derive(Module, Debug)]
    struct Dropping {
        gain: LayerNorm,
        dropout: Dropout,
    }
    let new = || Dropping {
        gain: LayerNormConfig::new(256).init(&Device::flex()),
        dropout: DropoutConfig::new(0.5).init(),
    };
    let (_dir, path) = folder();
    save(&new(), &path, &Names::default(), 1 << 20).unwrap();
    let model = load_checkpoint_and_dispatch(new(), &path, &options(None)).unwrap();
    let mut losses = Vec::new();
    for _ in 0..3 {
        let sums = Arc::new(Sums::default());
        let sink: Arc<dyn GradientSink> = sums.clone();
        let loss = |module: &Dropping| {
            let module = module.clone();
            let x: Tensor<2> = Tensor::zeros([1, 256], &learning_device());
            // Beta's gradients are the factors that dropout multiplied by.
            let y = activation_checkpoint(x, move |x| {
                module.dropout.forward(module.gain.forward(x) + 1.0)
            });
            y.sum()
        };
        let loss = model.backward(&sink, loss).unwrap();
        let factors: f32 = sums.0.lock().unwrap()["gain.beta"].iter().sum();
        assert_eq!(factors, loss);
        losses.push(loss);
    }
    losses.dedup();
    assert!(losses.len() > 1, "the same numbers in all passes: {losses:?}");
}

/// Takes so many gradients, and fails then.
struct Failing(Mutex<usize>);

impl GradientSink for Failing {
    fn add(&self, _tensor: &TensorInfo, _start: u64, _gradient: &[f32]) -> io::Result<()> {
        let mut left = self.0.lock().unwrap();
        *left = left.checked_sub(1).ok_or_else(|| io::Error::other("the disk is full"))?;
        Ok(())
    }
}

/// A pass that ends in the middle of its backward pass, within a block too, leaves nothing.
#[test]
fn what_a_sink_says_is_returned_and_the_next_pass_is_as_ever() {
    let stored = Stored::<Recomputed>::new();
    let checkpoint = stored.checkpoint(DTYPES[0]);
    let new = || Recomputed::new(&Device::flex());
    let least = least(&tree(&new(), &checkpoint, &options(None)).unwrap(), &options(None));
    let path = checkpoint.files()[0].path();
    let model = load_checkpoint_and_dispatch(new(), path, &options(Some(least))).unwrap();
    let passes = |sink: &Arc<dyn GradientSink>| model.backward(sink, |module| loss(module, 1));
    let sums = || {
        let sums = Arc::new(Sums::default());
        let sink: Arc<dyn GradientSink> = sums.clone();
        passes(&sink).unwrap();
        sums.0.lock().unwrap().clone()
    };
    let wanted = sums();
    for taken in [0, 1, 3, 9, 40] {
        let failing: Arc<dyn GradientSink> = Arc::new(Failing(Mutex::new(taken)));
        let error = passes(&failing).unwrap_err();
        assert!(error.to_string().contains("the disk is full"), "{error}");
        assert!(sums() == wanted, "after {taken}");
    }
}

/// What comes of the order in which the gradients of many uses are summed.
const OTHER_ORDER: f32 = 1e-6;

gradients! {
    encoders: transformer::Encoders, 0.0;
    decoders: transformer::Decoders, 0.0;
    attentions: transformer::Attentions, 0.0;
    convolutions: convolution::Plain, 0.0;
    transposed_convolutions: convolution::Transposed, 0.0;
    norms: norm::Norms, 0.0;
    lstms: recurrent::Lstms, OTHER_ORDER;
    grus: recurrent::Grus, OTHER_ORDER;
    containers: structure::Containers, 0.0;
    sharing: structure::Sharing, 0.0;
    oddities: structure::Oddities, 0.0;
    recomputed: Recomputed, OTHER_ORDER;
}
