//! Where the time of a pass goes: products, attention, norms, rotary embedding, gates, and the
//! rest.
//!
//! ```text
//! cargo bench --workspace --bench step             # every case
//! cargo bench --workspace --bench step -- --quick  # fewer repetitions, no long texts side by side
//! ```
//!
//! The model is a Llama of 1.1 billion parameters in bf16, cut to a few layers and as large a part
//! of the vocabulary; its weights are many times larger than any cache, and so are those of the
//! whole. Random weights, keys and values.
//!
//! - `pass`: a whole forward pass, with logits of all its tokens, over a cache that holds
//!   `context` tokens at its end.
//! - each part: the same operations of the same sizes one after the other and nothing else, each
//!   layer with memory of its own, after all weights have gone through the caches. `rest` is what
//!   `pass` takes more than its parts: embedding, rotations, the cache's new rows, calls.
//! - `memory`: what all threads read per second of the same weights and do nothing with, right
//!   before and right after each pass; `products` reads weights at the speed beside it.
//! - `of memory`: the time of those reads as a share of the pass's: what a whole step gets of the
//!   memory's speed. Not shown for many tokens, which arithmetic limits.
//!
//! Parts take turns; medians are shown. The C library gives weights large pages, as outsize does,
//! if asked to:
//!
//! ```text
//! GLIBC_TUNABLES=glibc.malloc.hugetlb=1 cargo bench --workspace --bench step -- --quick
//! ```

use std::hint::black_box;
use std::time::Instant;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{AllocationProperty, Bytes, DType, Device, Tensor, TensorData};
use outsize_kernels::attention::{AttentionMask, RingLayout};
use outsize_kernels::{
    ActivationDtype, ActivationFunction, KvTensors, RotaryPairs, add_rms_norm, attend, gated,
    gated_linear, linear, linear_qkv, rms_norm, rotate,
};
use outsize_models::arch::LlamaForCausalLm;
use outsize_models::{Batch, CacheOptions, Decoder, Init, KvCache, Logits, ModelConfig};
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
const CASES: [(usize, usize, usize); 6] =
    [(1, 1, 32), (1, 1, 256), (1, 1, 2048), (8, 1, 256), (1, 512, 512), (8, 1, 2048)];

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let cases = if quick { &CASES[..5] } else { &CASES[..] };
    let (model, matrices, memory) = model();
    let bytes: usize = matrices.iter().map(|matrix| 2 * matrix.shape().num_elements()).sum();
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
        "batch tokens context |      pass  GB/s  memory  of memory | products |  GB/s | attention   norms  rotary    gate    rest | all but products"
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
        let (mut reads, mut shares) = (vec![], vec![]);
        for _ in 0..rounds {
            let before = memory.read();
            let pass = case.time(Part::Pass);
            let after = memory.read();
            reads.extend([before, after]);
            shares.push((before + after) / 2.0 / pass);
            times[0].push(pass);
            for (part, times) in PARTS.iter().zip(&mut times).skip(1) {
                case.products(1);
                times.push(case.time(*part));
            }
        }
        let times: Vec<f64> = times.into_iter().map(median).collect();
        let (pass, products) = (times[0], times[1]);
        let share = |time: f64| format!("{:>6.1}%", 100.0 * time / pass);
        let speed = |time: f64| format!("{:>5.1}", bytes as f64 / time / 1e9);
        let of_memory = match tokens {
            1 => format!("{:>8.1}%", 100.0 * median(shares)),
            _ => format!("{:>9}", ""),
        };
        let rest = pass - times[1..].iter().sum::<f64>();
        println!(
            "{batch:>5} {tokens:>6} {context:>7} | {:>6.2} ms {}   {}  {of_memory} |  {} | {} |   {} {} {} {} {} | {}",
            pass * 1e3,
            speed(pass),
            speed(median(reads)),
            share(products),
            speed(products),
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
    ActivationFunction,
}

const PARTS: [Part; 6] = [
    Part::Pass,
    Part::Products,
    Part::Attention,
    Part::Norms,
    Part::Rotary,
    Part::ActivationFunction,
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
        let options = CacheOptions { batch, ..CacheOptions::new(context) };
        let cache =
            KvCache::new(config().cache(), &options, &Device::flex()).expect("a valid cache");
        let mut case = Self { model, matrices, cache, batch, tokens, context, layers: vec![] };
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
        self.model.forward_batch(&batch, &mut self.cache, Logits::All).expect("a pass")
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
                        let held = KvTensors {
                            keys: keys.clone(),
                            values: values.clone(),
                            ring: RingLayout {
                                first: 0,
                                end: self.context,
                                capacity: self.context,
                                origin: 0,
                            },
                        };
                        let mask = AttentionMask {
                            start: self.context - tokens,
                            window: usize::MAX,
                            padding: vec![0; self.batch],
                            ..AttentionMask::default()
                        };
                        black_box(attend(
                            ActivationDtype::F32,
                            queries.clone(),
                            None,
                            held,
                            mask,
                            None,
                        ));
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
                        queries = rotate(queries, RotaryPairs::Halves, cos.clone(), sin.clone());
                        keys = rotate(keys, RotaryPairs::Halves, cos.clone(), sin.clone());
                    }
                    (queries, keys)
                })
            }
            Part::ActivationFunction => {
                let up = tensor([rows, INNER]);
                let gates: Vec<Tensor<2>> = (0..LAYERS[0]).map(|_| tensor([rows, INNER])).collect();
                seconds(|| {
                    for gate in gates {
                        black_box(gated(ActivationFunction::Silu, gate, up.clone()));
                    }
                })
            }
        }
    }

    /// All products of `rows` rows of activations, as the model makes them.
    fn products(&self, rows: usize) {
        let [hidden, inner] = [HIDDEN, INNER].map(|width| tensor([rows, width]));
        let (layers, head) = self.matrices.as_chunks::<7>();
        for [q, k, v, o, gate, up, down] in layers {
            let three = [q, k, v].map(Tensor::clone);
            black_box(linear_qkv(ActivationDtype::F32, hidden.clone(), three));
            black_box(linear(hidden.clone(), o.clone()));
            let (gate, up) = (gate.clone(), up.clone());
            // The gate itself is counted with the others: it is next to nothing here.
            let kind = ActivationFunction::Relu;
            black_box(gated_linear(ActivationDtype::F32, hidden.clone(), gate, up, kind));
            black_box(linear(inner.clone(), down.clone()));
        }
        for head in head {
            black_box(linear(hidden.clone(), head.clone()));
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

/// The model, its matrices in the order in which they are used, and their memory.
fn model() -> (LlamaForCausalLm, Vec<Tensor<2>>, Memory) {
    let mut fill = Fill { matrices: vec![], memory: vec![] };
    let init = Init::new(&Device::flex());
    let model = config().build::<LlamaForCausalLm>(&init).expect("a Llama");
    let model = model.map(&mut fill);
    // The table of embeddings comes first, and is read by rows.
    let matrices = fill.matrices.split_off(1);
    let memory = fill.memory.split_off(1);
    (model, matrices, Memory(memory))
}

/// Gives values to the parameters of an empty model.
struct Fill {
    matrices: Vec<Tensor<2>>,
    memory: Vec<bytes::Bytes>,
}

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = param.lazy_shape();
        let dims = <[usize; D]>::try_from(shape.to_vec()).expect("a shape of as many dimensions");
        let values = (tensor(dims) * 0.05).cast(DType::BF16).into_data();
        let memory = bytes::Bytes::from(values.as_bytes().to_vec());
        let shared = Bytes::from_shared(memory.clone(), AllocationProperty::Other);
        let data = TensorData::from_bytes(shared, dims, DType::BF16);
        let tensor = Tensor::from_data(data, (&Device::flex(), DType::BF16));
        if let [out, width] = dims[..] {
            self.matrices.push(tensor.clone().reshape([out, width]));
            self.memory.push(memory);
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

/// The weights that a pass reads, as bytes.
struct Memory(Vec<bytes::Bytes>);

impl Memory {
    /// For how long all threads read all of it, in seconds.
    fn read(&self) -> f64 {
        const CHUNK: usize = 1 << 20;
        let chunks: Vec<&[u8]> = self.0.iter().flat_map(|bytes| bytes.chunks(CHUNK)).collect();
        seconds(|| {
            let sums = chunks.par_iter().map(|chunk| sum(chunk));
            sums.reduce(|| 0, u64::wrapping_add)
        })
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 32];
    for line in bytes.as_chunks::<256>().0 {
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}
