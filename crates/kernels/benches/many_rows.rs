//! How near matmuls of several and of many rows come to what the cores compute on registers alone.
//!
//! ```text
//! cargo bench -p outsize-kernels --bench many_rows             # every shape
//! cargo bench -p outsize-kernels --bench many_rows -- --quick  # two of them
//! ```
//!
//! Shapes are those of a Llama of 1.1 billion parameters, weights in bf16, activations as they are
//! (`f32`) and rounded (`bf16`). Each matmul takes the next of several copies of its weight, so
//! that it comes from memory. Both take turns; medians are shown. Beside each row stands the limit,
//! measured in the same second (see [`peak`]); above all, what caches and memory give.

use std::hint::black_box;
use std::time::Instant;

use half::bf16;
use outsize_kernels::matmul::{Size, linear_into};
use outsize_kernels::{ActivationDtype, Isa, Weight, peak};

#[allow(dead_code, reason = "others read bytes")]
#[path = "common/large.rs"]
mod large;
#[path = "common/timing.rs"]
mod timing;

use large::Large;
use timing::{median, seconds, values};

/// `[out, in]` of the weights.
const SHAPES: [[usize; 2]; 4] = [[2048, 2048], [5632, 2048], [2048, 5632], [256, 2048]];

/// Rows of activations: tokens.
const TOKENS: [usize; 7] = [1, 8, 16, 32, 128, 512, 2048];

/// All copies of a weight together take at least this many bytes.
const WORKING_SET: usize = 128_000_000;

/// How long each row takes, in seconds, and how often it is repeated at least.
const SECONDS: f64 = 0.5;
const LEAST: usize = 5;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let shapes = if quick { &SHAPES[..2] } else { &SHAPES[..] };
    println!("{}, {} threads", Isa::detected().name(), rayon::current_num_threads());
    for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
        println!("{compute:?}: beside {}", peak::instructions(compute));
    }
    let memory = vec![1u8; WORKING_SET];
    let read = (0..5).map(|_| {
        seconds(|| {
            black_box(peak::read(black_box(&memory)));
        })
    });
    println!(
        "reads, GB/s: {:.0} of 512 KiB a thread, {:.0} of memory",
        peak::cached_read(0.2) / 1e9,
        WORKING_SET as f64 / read.fold(f64::INFINITY, f64::min) / 1e9
    );
    println!();
    println!("weight        tokens |   f32 ms  GFLOP/s share   of |  bf16 ms  GFLOP/s share   of");
    for &[n, k] in shapes {
        let weights = copies(n, k);
        let mut turn = weights.elements::<bf16>().chunks_exact(n * k).cycle();
        for m in TOKENS {
            let (x, mut y) = (values(m * k), vec![0.0; m * n]);
            let mut matmul = |compute| {
                let weight = turn.next().expect("a cycle goes on");
                seconds(|| {
                    linear_into(
                        Isa::detected(),
                        compute,
                        black_box(&x),
                        Weight::Bf16(weight),
                        Size { m, n, k },
                        &mut y,
                    );
                    black_box(&mut y);
                })
            };
            let (mut exact, mut rounded) = (vec![], vec![]);
            let start = Instant::now();
            let before = [ActivationDtype::F32, ActivationDtype::Bf16].map(limit);
            while exact.len() < LEAST || start.elapsed().as_secs_f64() < SECONDS {
                exact.push(matmul(ActivationDtype::F32));
                rounded.push(matmul(ActivationDtype::Bf16));
            }
            let after = [ActivationDtype::F32, ActivationDtype::Bf16].map(limit);
            print!("{:<13} {m:>6} |", format!("[{n}, {k}]"));
            for (at, times) in [exact, rounded].into_iter().enumerate() {
                let seconds = median(times);
                let rate = (2 * m * n * k) as f64 / seconds / 1e9;
                let limit = before[at].max(after[at]);
                print!(
                    " {:>8.3} {rate:>8.0} {:>4.0}% {limit:>4.0}",
                    seconds * 1e3,
                    100.0 * rate / limit
                );
                print!("{}", if at == 1 { "\n" } else { " |" });
            }
        }
    }
}

/// What all threads compute on registers, GFLOP/s: the best of five looks.
fn limit(compute: ActivationDtype) -> f64 {
    let look = |_| peak::flops(compute, 0.01).expect("the processor adds up right");
    (0..5).map(look).fold(0.0, f64::max) / 1e9
}

/// Enough copies of one weight to fill the working set; an odd number, so that the contenders do
/// not keep to their own ones. In large pages, as weights of a model are.
fn copies(n: usize, k: usize) -> Large {
    let weight: Vec<bf16> = values(n * k).into_iter().map(bf16::from_f32).collect();
    let bytes = size_of_val(&*weight);
    Large::new((WORKING_SET.div_ceil(bytes) | 1) * bytes, &weight)
}
