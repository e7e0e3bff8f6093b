//! How fast [`linear`] is, beside what this machine can do and beside Flex's own two ways to the
//! same matmul.
//!
//! ```text
//! cargo bench -p outsize-kernels             # every shape
//! cargo bench -p outsize-kernels -- --quick  # fewer repetitions and shapes
//! ```
//!
//! Shapes are those of a Llama of 1.1 billion parameters, weights in bf16. Each matmul takes the
//! next of several copies of its weight, 256 MB together at least, so that weights come from memory
//! and not from a cache. The contenders take turns; medians are shown.
//!
//! - `memory`: what all threads read per second from a large buffer, measured beside each row;
//!   `GB/s` is the weight's bytes over the time of a matmul.
//! - `rounded`: the same matmul with activations rounded to bf16, [`ActivationDtype::Bf16`].
//! - `peak`: multiply-adds on registers on all threads, see [`peak::flops`].
//! - `cast`: `x.matmul(w.cast(f32).transpose())`; `bf16`: `x.cast(bf16).matmul(w.transpose())`,
//!   Flex's own matmul of bf16.
//!
//! Before that, a whole model: all its matmuls one after the other, 2 GB of weights in large
//! pages, as a pass of so many sequences side by side asks for them. Passes of all kinds take
//! turns, and with them a plain read of the same memory; `share` is the median of their quotients.

#[path = "../common/large.rs"]
mod large;
mod model;
#[path = "../common/shapes.rs"]
mod shapes;
#[path = "../common/timing.rs"]
mod timing;

use std::hint::black_box;

use burn::tensor::{DType, Device, Tensor, TensorData};
use half::bf16;
use outsize_kernels::{ActivationDtype, Isa, linear, linear_with, peak};

use large::Large;
use timing::{median, seconds, values};

/// `[out, in]` of the weights.
const SHAPES: [[usize; 2]; 5] =
    [[2048, 2048], [256, 2048], [5632, 2048], [2048, 5632], [32000, 2048]];

/// Rows of activations: tokens.
const TOKENS: [usize; 4] = [1, 8, 32, 128];

/// All copies of a weight together take at least this many bytes.
const WORKING_SET: usize = 256_000_000;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (repetitions, flex_repetitions) = if quick { (9, 1) } else { (41, 3) };
    let shapes = if quick { &SHAPES[..3] } else { &SHAPES[..] };
    let memory = Large::new(WORKING_SET, &values(1 << 20));

    let threads = rayon::current_num_threads();
    let look =
        |_| peak::flops(ActivationDtype::F32, 0.02).expect("the processor adds up right") / 1e9;
    let peak = median((0..9).map(look).collect());
    println!(
        "{:?}, {threads} threads, peak {peak:.0} GFLOP/s, memory {:.1} GB/s",
        Isa::detected(),
        speed(&memory, 9)
    );
    model::passes(quick, peak);
    println!();
    println!(
        "weight        tokens |      time    GB/s  memory  share | GFLOP/s  share |   rounded         |     cast          |     bf16"
    );

    for &[out, width] in shapes {
        let weights = copies(out, width);
        for tokens in TOKENS {
            let x = Tensor::<2>::from_data(
                TensorData::new(values(tokens * width), [tokens, width]),
                &Device::flex(),
            );
            let mut turn = weights.iter().cycle();
            let mut next = || turn.next().expect("a cycle goes on").clone();
            let (mut ours, mut rounded, mut cast, mut flex, mut reads) =
                (vec![], vec![], vec![], vec![], vec![]);
            black_box(linear(x.clone(), next()));
            for _ in 0..flex_repetitions {
                for _ in 0..repetitions / flex_repetitions {
                    ours.push(seconds(|| linear(x.clone(), next())));
                    rounded.push(seconds(|| linear_with(ActivationDtype::Bf16, x.clone(), next())));
                }
                reads.push(speed(&memory, 1));
                cast.push(seconds(|| x.clone().matmul(next().cast(DType::F32).transpose())));
                flex.push(seconds(|| x.clone().cast(DType::BF16).matmul(next().transpose())));
            }
            let (ours, rounded) = (median(ours), median(rounded));
            let (cast, flex, reads) = (median(cast), median(flex), median(reads));
            let bandwidth = (out * width * size_of::<bf16>()) as f64 / ours / 1e9;
            let operations = (2 * tokens * out * width) as f64 / ours / 1e9;
            println!(
                "{:<13} {tokens:>6} | {:>6.3} ms {bandwidth:>7.1} {reads:>7.1} {:>5.0}% | {operations:>7.0} {:>5.0}% | {:>8.3} ms {:>5.2}x | {:>8.2} ms {:>5.1}x | {:>8.2} ms {:>5.1}x",
                format!("[{out}, {width}]"),
                ours * 1e3,
                100.0 * bandwidth / reads,
                100.0 * operations / peak,
                rounded * 1e3,
                rounded / ours,
                cast * 1e3,
                cast / ours,
                flex * 1e3,
                flex / ours,
            );
        }
    }
}

/// Enough copies of one weight to fill the working set.
fn copies(out: usize, width: usize) -> Vec<Tensor<2>> {
    let weight: Vec<bf16> = values(out * width).into_iter().map(bf16::from_f32).collect();
    let number = WORKING_SET.div_ceil(out * width * size_of::<bf16>()).max(2);
    let copy = |_| {
        let data = TensorData::new(weight.clone(), [out, width]);
        Tensor::from_data(data, (&Device::flex(), DType::BF16))
    };
    (0..number).map(copy).collect()
}

/// What all threads read, GB/s: the median of a number of passes.
fn speed(memory: &Large, passes: usize) -> f64 {
    let pass = |_| seconds(|| peak::read(memory.bytes()));
    WORKING_SET as f64 / median((0..passes).map(pass).collect()) / 1e9
}
