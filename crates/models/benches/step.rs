//! Where the time of a pass goes: products, attention, norms, rotary embedding, gates, and the rest.
//!
//! ```text
//! cargo bench --workspace --bench step             # every case
//! cargo bench --workspace --bench step -- --quick  # fewer repetitions, no long texts side by side
//! ```
//!
//! The model is a Llama of 1.1 billion parameters in bf16, cut to a few layers and as large a part of the vocabulary; its weights
//! are many times larger than any cache, and so are those of the whole. Random weights, keys and values.
//!
//! - `pass`: a whole forward pass over a cache that holds `context` tokens at its end.
//! - each part: the same operations of the same sizes one after the other and nothing else, each layer with memory of its own, after all weights have
//!   gone through the caches. `rest` is what `pass` takes more than its parts: embedding, rotations, the cache's new rows, calls.
//! - `memory`: what all threads read per second from a large buffer, measured in every round; `products` reads weights at the speed beside it.
//!
//! Parts take turns; medians are shown.

use std::hint::black_box;
use std::time::Instant;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_kernels::attention::{Places, Sight};
use outsize_kernels::{Cached, Gate, add_rms_norm, attend, gated, linear, rms_norm, rotate};
use outsize_models::{Batch, CacheOptions, KvCache, LlamaForCausalLm, Logits, ModelConfig};
use rayon::prelude::*;

/// Layers that are run, and those of the whole model.
const LAYERS: [usize; 2] = [3, 22];

/// The part of the vocabulary that goes with them.
const VOCABULARY: usize = 32_000 * LAYERS[0] / LAYERS[1];

const HIDDEN: usize = 2048;
const INNER: usize = 5632;
const HEADS: usize = 32;
const KEY_HEADS: usize = 4;
const WIDTH: usize = 64;

/// Texts, new tokens of each, and tokens at the end.
const CASES: [(usize, usize, usize); 6] = [
    (1, 1, 32),
    (1, 1, 256),
    (1, 1, 2048),
    (8, 1, 256),
    (1, 512, 512),
    (8, 1, 2048),
];

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let cases = if quick { &CASES[..5] } else { &CASES[..] };
    let (model, matrices) = model();
    let bytes: usize = matrices
        .iter()
        .map(|matrix| 2 * matrix.shape().num_elements())
        .sum();
    let memory = Memory::new();
    println!(
        "{:?}, {} threads; {} of {} layers, {} MB of weights",
        outsize_kernels::Isa::detected(),
        rayon::current_num_threads(),
        LAYERS[0],
        LAYERS[1],
        bytes / 1_000_000
    );
    println!();
    println!(
        "batch tokens context |      pass | products |  GB/s  memory | attention   norms  rotary    gate    rest | all but products"
    );
    for &(batch, tokens, context) in cases {
        let mut case = Case::new(&model, &matrices, batch, tokens, context);
        let rounds = match (quick, tokens) {
            (true, 1) => 9,
            (true, _) => 3,
            (false, 1) => 31,
            (false, _) => 7,
        };
        let mut times = vec![vec![]; PARTS.len()];
        let mut speeds = vec![];
        for _ in 0..rounds {
            for (part, times) in PARTS.iter().zip(&mut times) {
                case.products(1);
                times.push(case.time(*part));
            }
            speeds.push(memory.speed());
        }
        let times: Vec<f64> = times.into_iter().map(median).collect();
        let (pass, products) = (times[0], times[1]);
        let share = |time: f64| format!("{:>6.1}%", 100.0 * time / pass);
        let rest = pass - times[1..].iter().sum::<f64>();
        println!(
            "{batch:>5} {tokens:>6} {context:>7} | {:>6.2} ms |  {} | {:>5.1}  {:>6.1} |   {} {} {} {} {} | {}",
            pass * 1e3,
            share(products),
            bytes as f64 / products / 1e9,
            median(speeds),
            share(times[2]),
            share(times[3]),
            share(times[4]),
            share(times[5]),
            share(rest),
            share(pass - products),
        );
    }
}

/// What is timed.
#[derive(Clone, Copy)]
enum Part {
    Pass,
    Products,
    Attention,
    Norms,
    Rotary,
    Gate,
}

const PARTS: [Part; 6] = [
    Part::Pass,
    Part::Products,
    Part::Attention,
    Part::Norms,
    Part::Rotary,
    Part::Gate,
];

/// One row of the table.
struct Case<'a> {
    model: &'a LlamaForCausalLm,
    matrices: &'a [Tensor<2>],
    cache: KvCache,
    batch: usize,
    tokens: usize,
    context: usize,
    /// Keys and values of each layer.
    layers: Vec<[Tensor<4>; 2]>,
}

impl<'a> Case<'a> {
    fn new(
        model: &'a LlamaForCausalLm,
        matrices: &'a [Tensor<2>],
        batch: usize,
        tokens: usize,
        context: usize,
    ) -> Self {
        let options = CacheOptions {
            batch,
            ..CacheOptions::new(context)
        };
        let cache = KvCache::new(&config(), &options, &Device::flex()).expect("a valid cache");
        let mut case = Self {
            model,
            matrices,
            cache,
            batch,
            tokens,
            context,
            layers: vec![],
        };
        let mut left = context - tokens;
        while left > 0 {
            let chunk = left.min(256);
            case.run(chunk);
            left -= chunk;
        }
        let rows = || tensor([batch, KEY_HEADS, context, WIDTH]);
        case.layers = (0..LAYERS[0]).map(|_| [rows(), rows()]).collect();
        case
    }

    fn run(&mut self, tokens: usize) -> Tensor<3> {
        let ids: Vec<u32> = (0..tokens as u32).collect();
        let batch = Batch::left_padded(&vec![ids; self.batch]).expect("a valid batch");
        self.model
            .forward_batch(&batch, &mut self.cache, Logits::Last)
            .expect("a pass")
    }

    fn time(&mut self, part: Part) -> f64 {
        let (rows, tokens) = (self.batch * self.tokens, self.tokens);
        match part {
            Part::Pass => {
                let time = seconds(|| self.run(tokens));
                let position = self.context - tokens;
                self.cache.truncate(position).expect("no window");
                time
            }
            Part::Products => seconds(|| self.products(rows)),
            Part::Attention => {
                let queries = tensor([self.batch, tokens, HEADS, WIDTH]);
                seconds(|| {
                    for [keys, values] in &self.layers {
                        let held = Cached {
                            keys: keys.clone(),
                            values: values.clone(),
                            places: Places {
                                first: 0,
                                end: self.context,
                                capacity: self.context,
                                origin: 0,
                            },
                        };
                        let sight = Sight {
                            start: self.context - tokens,
                            window: usize::MAX,
                            padding: vec![0; self.batch],
                        };
                        black_box(attend(queries.clone(), None, held, sight));
                    }
                })
            }
            Part::Norms => {
                let (mut x, add) = (tensor([rows, HIDDEN]), tensor([rows, HIDDEN]));
                let weight = tensor([HIDDEN]).cast(DType::BF16);
                seconds(|| {
                    black_box(rms_norm(x.clone(), weight.clone(), 1e-5));
                    for _ in 0..2 * LAYERS[0] {
                        let (sum, norm) = add_rms_norm(x, add.clone(), weight.clone(), 1e-5);
                        x = sum;
                        black_box(norm);
                    }
                    x
                })
            }
            Part::Rotary => {
                let (mut queries, mut keys) = (
                    tensor([self.batch, tokens, HEADS, WIDTH]),
                    tensor([self.batch, tokens, KEY_HEADS, WIDTH]),
                );
                let [cos, sin] = [0, 1].map(|_| tensor([1, tokens, 1, WIDTH / 2]));
                seconds(|| {
                    for _ in 0..LAYERS[0] {
                        queries = rotate(queries, cos.clone(), sin.clone());
                        keys = rotate(keys, cos.clone(), sin.clone());
                    }
                    (queries, keys)
                })
            }
            Part::Gate => {
                let up = tensor([rows, INNER]);
                let gates: Vec<Tensor<2>> = (0..LAYERS[0]).map(|_| tensor([rows, INNER])).collect();
                seconds(|| {
                    for gate in gates {
                        black_box(gated(Gate::Silu, gate, up.clone()));
                    }
                })
            }
        }
    }

    /// All products of `rows` rows of activations; the head's is of the last token of each text.
    fn products(&self, rows: usize) {
        let inputs = [HIDDEN, INNER].map(|width| tensor([rows, width]));
        for matrix in self.matrices {
            let [out, width] = matrix.dims();
            let x = inputs[usize::from(width == INNER)].clone();
            let x = match out == VOCABULARY {
                true => x.narrow(0, 0, rows.min(self.batch)),
                false => x,
            };
            black_box(linear(x, matrix.clone()));
        }
    }
}

fn config() -> ModelConfig {
    ModelConfig::from_json(&format!(
        r#"{{"model_type": "llama", "hidden_size": {HIDDEN}, "intermediate_size": {INNER}, "num_hidden_layers": {},
            "num_attention_heads": {HEADS}, "num_key_value_heads": {KEY_HEADS}, "head_dim": {WIDTH}, "vocab_size": {VOCABULARY}}}"#,
        LAYERS[0]
    ))
    .expect("a valid configuration")
}

/// The model, and its matrices in the order in which they are used.
fn model() -> (LlamaForCausalLm, Vec<Tensor<2>>) {
    let mut fill = Fill(vec![]);
    let model = config().init(&Device::flex()).map(&mut fill);
    // The table of embeddings comes first, and is read by rows.
    let matrices = fill.0.split_off(1);
    (model, matrices)
}

/// Gives values to the parameters of an empty model.
struct Fill(Vec<Tensor<2>>);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = param.lazy_shape();
        let dims = <[usize; D]>::try_from(shape.to_vec()).expect("a shape of as many dimensions");
        let tensor = (tensor(dims) * 0.05).cast(DType::BF16);
        if let [out, width] = dims[..] {
            self.0.push(tensor.clone().reshape([out, width]));
        }
        Param::initialized(ParamId::new(), tensor)
    }
}

/// Numbers between -1 and 1.
fn tensor<const D: usize>(dims: [usize; D]) -> Tensor<D> {
    let mut state = 1u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..dims.iter().product()).map(next).collect();
    Tensor::from_data(TensorData::new(values, dims), (&Device::flex(), DType::F32))
}

fn seconds<T>(work: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    black_box(work());
    start.elapsed().as_secs_f64()
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// A buffer to read.
struct Memory(Vec<u64>);

impl Memory {
    fn new() -> Memory {
        Memory((0..32_000_000).collect())
    }

    /// What all threads read, GB/s.
    fn speed(&self) -> f64 {
        let sum = |of: &[u64]| of.iter().copied().fold(0, u64::wrapping_add);
        let time = seconds(|| {
            let sums = self.0.par_chunks(1 << 17).map(sum);
            sums.reduce(|| 0, u64::wrapping_add)
        });
        (self.0.len() * size_of::<u64>()) as f64 / time / 1e9
    }
}
