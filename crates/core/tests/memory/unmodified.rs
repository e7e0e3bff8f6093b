//! A stack of Burn's own layers, unmodified, four times larger than its budget.

use burn::module::Module;
use burn::nn::{
    Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::{Device, Int, Tensor, TensorData};
use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};
use outsize_core::{
    Dispatched, Error, Layout, Names, Options, load_checkpoint_and_dispatch, parameters,
};
use outsize_plan::{Budget, MemoryOverhead};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

#[derive(Module, Debug)]
struct Layer {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

#[derive(Module, Debug)]
struct Stack {
    embedding: Embedding,
    layers: Vec<Layer>,
    head: Linear,
}

const VOCABULARY: usize = 512;
const WIDTH: usize = 512;
const LAYERS: usize = 8;

impl Stack {
    fn new(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(VOCABULARY, WIDTH).init(device),
            layers: (0..LAYERS)
                .map(|_| Layer {
                    norm: LayerNormConfig::new(WIDTH).init(device),
                    up: LinearConfig::new(WIDTH, 4 * WIDTH).init(device),
                    down: LinearConfig::new(4 * WIDTH, WIDTH).init(device),
                })
                .collect(),
            head: LinearConfig::new(WIDTH, VOCABULARY).with_bias(false).init(device),
        }
    }

    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        let mut x = self.embedding.forward(ids);
        for layer in &self.layers {
            let hidden = Gelu::new().forward(layer.up.forward(layer.norm.forward(x.clone())));
            x = x + layer.down.forward(hidden);
        }
        self.head.forward(x)
    }
}

fn ids(device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i64> = (0..16).map(|i| (i * 37 + 11) % VOCABULARY as i64).collect();
    Tensor::from_data(TensorData::new(ids, [2, 8]), device)
}

/// Writes values for every parameter, named and laid out as `names` says. Returns their bytes.
fn write_checkpoint(out: &Path, names: &Names, dtype: Dtype) -> u64 {
    let model = Stack::new(&Device::flex());
    let specs: Vec<TensorSpec> = parameters(&model)
        .iter()
        .map(|parameter| {
            let mut shape = parameter.shape.clone();
            if names.is_transposed(parameter) {
                shape.reverse();
            }
            TensorSpec::new(names.tensor(parameter), dtype, shape)
        })
        .collect();
    let mut writer = ShardWriter::create(out, specs.clone(), 8 << 20).unwrap();
    let mut state = 1u64;
    for spec in &specs {
        let count: usize = spec.shape.iter().product();
        let mut bytes = Vec::with_capacity(count * dtype.size());
        for _ in 0..count {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let value = ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.1;
            match dtype {
                Dtype::BF16 => bytes.extend(half::bf16::from_f32(value).to_le_bytes()),
                _ => bytes.extend(value.to_le_bytes()),
            }
        }
        writer.write(&spec.name, &bytes).unwrap();
    }
    writer.finish().unwrap();
    Checkpoint::open(out).unwrap().total_bytes()
}

fn folder() -> (TempDir, PathBuf) {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let out = dir.path().join("checkpoint");
    (dir, out)
}

fn options(budget: Option<u64>, names: &Names) -> Options {
    Options {
        budget: match budget {
            Some(bytes) => Budget::parse(&format!("cpu={bytes}")).unwrap(),
            None => Budget::default(),
        },
        names: names.clone(),
        read_bytes: 256 << 10,
        ..Options::default()
    }
}

fn dispatched(path: &Path, budget: Option<u64>, names: &Names) -> Dispatched<Stack> {
    let model = Stack::new(&Device::flex());
    load_checkpoint_and_dispatch(model, path, &options(budget, names)).unwrap()
}

fn bits(model: &Dispatched<Stack>) -> Vec<u32> {
    let output = model.run(|stack| stack.forward(ids(&Device::flex()))).unwrap();
    let values: Vec<f32> = output.into_data().try_to_vec().unwrap();
    assert!(values.iter().all(|value| value.is_finite()));
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn streamed_is_resident_bit_for_bit() {
    for (layout, dtype) in
        [(Layout::Burn, Dtype::F32), (Layout::PyTorch, Dtype::F32), (Layout::PyTorch, Dtype::BF16)]
    {
        let names = Names::new(layout);
        let (_dir, path) = folder();
        let stored = write_checkpoint(&path, &names, dtype);
        let resident = dispatched(&path, None, &names);
        let expected = bits(&resident);
        assert_eq!(resident.device_map().streamed_bytes(), 0);

        // Held as f32, whatever is stored.
        let bytes = resident.device_map().resident_bytes();
        let streamed = dispatched(&path, Some(bytes / 4), &names);
        assert!(streamed.device_map().streamed_bytes() > stored / 2);
        for pass in 0..3 {
            assert_eq!(bits(&streamed), expected, "{layout:?} {dtype}, pass {pass}");
        }
        let stats = streamed.stats();
        assert!(stats.bytes_read > 0 && stats.overflows == 0, "{stats:?}");
    }
}

#[test]
fn planning_allocates_no_weight() {
    let (_dir, path) = folder();
    write_checkpoint(&path, &Names::default(), Dtype::F32);
    let model = Stack::new(&Device::flex());
    let checkpoint = Checkpoint::open(&path).unwrap();
    outsize_core::tree(&model, &checkpoint, &Options::default()).unwrap();
    assert!(!model.head.weight.is_initialized());
    assert!(!model.embedding.weight.is_initialized());
    for layer in &model.layers {
        assert!(!layer.up.weight.is_initialized() && !layer.norm.gamma.is_initialized());
    }
}

#[derive(Module, Debug)]
struct Tied {
    encoder: Linear,
    decoder: Linear,
}

/// Two parameters of one tensor: its memory is counted and taken once, resident or streamed.
#[test]
fn tied_parameters_share_storage() {
    let device = Device::flex();
    let model = || Tied {
        encoder: LinearConfig::new(512, 512).with_bias(false).init(&device),
        decoder: LinearConfig::new(512, 512).with_bias(false).init(&device),
    };
    let (_dir, path) = folder();
    let specs = vec![TensorSpec::new("shared.weight", Dtype::F32, [512, 512])];
    let mut writer = ShardWriter::create(&path, specs, 8 << 20).unwrap();
    let values: Vec<u8> = (0..512 * 512).flat_map(|at| (at as f32).to_le_bytes()).collect();
    writer.write("shared.weight", &values).unwrap();
    writer.finish().unwrap();
    let names = Names::default().rename("^(encoder|decoder)", "shared").unwrap();
    for budget in [None, Some(3 << 20)] {
        let model = load_checkpoint_and_dispatch(model(), &path, &options(budget, &names)).unwrap();
        let map = model.device_map();
        assert_eq!(map.resident_bytes(), 1 << 20);
        let places = model
            .run(|tied| {
                [tied.encoder.weight.val(), tied.decoder.weight.val()].map(|weight| {
                    let data = weight.into_data();
                    data.as_bytes().as_ptr() as usize
                })
            })
            .unwrap();
        assert_eq!(places[0], places[1]);
        assert!(model.stats().bytes_read <= (1 << 20) + 2 * 4096);
    }
}

#[test]
fn what_goes_round_the_hook_is_nan() {
    let (_dir, path) = folder();
    write_checkpoint(&path, &Names::default(), Dtype::F32);
    let model = dispatched(&path, None, &Names::default());
    let (value, base) =
        model.run(|stack| (stack.head.weight.val(), stack.head.weight.base())).unwrap();
    assert_eq!(base.dims(), value.dims());
    assert!(base.into_data().iter::<f32>().all(f32::is_nan));
    assert!(value.into_data().iter::<f32>().all(f32::is_finite));
}

#[test]
fn everything_that_does_not_fit_is_in_one_error() {
    let (_dir, path) = folder();
    let out = path.clone();
    let specs = vec![
        TensorSpec::new("head.weight", Dtype::F32, [3, 2]),
        TensorSpec::new("layers.0.norm.gamma", Dtype::I64, [WIDTH]),
        TensorSpec::new("stranger", Dtype::F32, [1]),
    ];
    let mut writer = ShardWriter::create(&out, specs, 1 << 20).unwrap();
    writer.write("head.weight", &[0; 24]).unwrap();
    writer.write("layers.0.norm.gamma", &[0; 8 * WIDTH]).unwrap();
    writer.write("stranger", &[0; 4]).unwrap();
    writer.finish().unwrap();
    let error = load_checkpoint_and_dispatch(
        Stack::new(&Device::flex()),
        &path,
        &options(None, &Names::default()),
    )
    .unwrap_err();
    let Error::Mismatch(misfit) = &error else { panic!("{error}") };
    assert_eq!(misfit.missing.len(), 1 + LAYERS * 6 - 1);
    assert_eq!(misfit.unexpected, ["stranger"]);
    assert_eq!(misfit.misshaped[0].0, "head.weight");
    assert_eq!(misfit.mistyped[0].0, "layers.0.norm.gamma");
    let message = error.to_string();
    for part in ["stranger", "embedding.weight", "[3, 2]", "I64", "more"] {
        assert!(message.contains(part), "{part} is not in:\n{message}");
    }
}

#[test]
fn too_small_a_budget_says_how_many_bytes_would_do() {
    let (_dir, path) = folder();
    write_checkpoint(&path, &Names::default(), Dtype::F32);
    let error = load_checkpoint_and_dispatch(
        Stack::new(&Device::flex()),
        &path,
        &options(Some(1 << 20), &Names::default()),
    )
    .unwrap_err();
    assert!(matches!(error, Error::Plan(_)), "{error}");
}

#[test]
fn a_file_cut_short_is_an_error_and_the_next_run_works() {
    let (_dir, path) = folder();
    write_checkpoint(&path, &Names::default(), Dtype::F32);
    let model = dispatched(&path, Some(12 << 20), &Names::default());
    let expected = bits(&model);
    let shard = std::fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
        .max()
        .unwrap();
    let whole = std::fs::read(&shard).unwrap();
    let file = std::fs::File::options().write(true).open(&shard).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.set_len(4096).unwrap();
    let error = (0..3)
        .find_map(|_| model.run(|stack| stack.forward(ids(&Device::flex()))).err())
        .expect("a pass over a missing shard succeeded three times");
    assert!(matches!(error, Error::Stream(_)), "{error}");
    assert!(error.to_string().contains(".safetensors"), "{error}");
    // Put back as it was, its time included: otherwise it might be another file.
    std::os::unix::fs::FileExt::write_all_at(&file, &whole, 0).unwrap();
    file.set_modified(modified).unwrap();
    assert_eq!(bits(&model), expected);
}

#[test]
fn a_file_written_over_since_it_was_opened_is_an_error() {
    let (_dir, path) = folder();
    write_checkpoint(&path, &Names::default(), Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = options(Some(12 << 20), &Names::default());
    let module = Stack::new(&Device::flex());
    let tree = outsize_core::tree(&module, &checkpoint, &options).unwrap();
    let map = outsize_plan::infer(&tree, &options.budget, &options.plan()).unwrap();
    // Between opening and dispatching: the header may no longer be true of the file.
    let shard = checkpoint.files()[0].path();
    let file = std::fs::File::options().write(true).open(shard).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
    file.set_modified(later).unwrap();
    let model = outsize_core::dispatch(module, &checkpoint, &map, &options).unwrap();
    let error = model.run(|stack| stack.forward(ids(&Device::flex()))).unwrap_err();
    assert!(matches!(error, Error::Stream(outsize_stream::Error::Changed { .. })), "{error}");
    assert!(error.to_string().contains(".safetensors"), "{error}");
}

/// What the child process of [`peak_memory_is_within_the_budget`] does: run passes under a budget,
/// or all but the passes, and print the peak of its resident set.
#[test]
fn child() {
    let Ok(path) = std::env::var("OUTSIZE_CHILD_CHECKPOINT") else {
        return; // an ordinary test run: this is no test of its own
    };
    outsize_stream::return_freed_memory();
    let budget: u64 = std::env::var("OUTSIZE_CHILD_BUDGET").unwrap().parse().unwrap();
    if budget == 0 {
        let model = Stack::new(&Device::flex());
        let checkpoint = Checkpoint::open(&path).unwrap();
        outsize_core::tree(&model, &checkpoint, &Options::default()).unwrap();
    } else {
        let mut options = options(Some(budget), &Names::default());
        options.needs = MemoryOverhead { activations: ACTIVATIONS, ..MemoryOverhead::default() };
        let model = Stack::new(&Device::flex());
        let model = load_checkpoint_and_dispatch(model, &path, &options).unwrap();
        for _ in 0..3 {
            bits(&model);
        }
    }
    println!("peak={}", outsize_machine::peak_rss().unwrap());
}

/// More than what 16 tokens take in [`Stack::forward`], stacks of the worker threads and code of
/// the layers that the baseline does not run included.
const ACTIVATIONS: u64 = 6 << 20;

#[test]
fn peak_memory_is_within_the_budget() {
    let (_dir, path) = folder();
    let total = write_checkpoint(&path, &Names::default(), Dtype::F32);
    let peak = |budget: u64| -> u64 {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "unmodified::child", "--nocapture", "--test-threads=1"])
            .env("OUTSIZE_CHILD_CHECKPOINT", &path)
            .env("OUTSIZE_CHILD_BUDGET", budget.to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        let line = text.lines().find_map(|line| line.split_once("peak="));
        line.unwrap().1.trim().parse().unwrap()
    };
    let baseline = peak(0);
    let budget = total / 4;
    let streamed = peak(budget);
    eprintln!("weights {total}, budget {budget}, baseline {baseline}, peak {streamed}");
    assert!(
        streamed <= baseline + budget,
        "peak {streamed} > baseline {baseline} + budget {budget}"
    );
    // The bound is no accident of a small model: without it the peak is far above.
    let resident = peak(2 * total);
    assert!(resident > baseline + total / 2 && resident > streamed, "{resident}");
}
