//! How near 3x3 convolutions and what stands between them come to what the cores compute on registers alone.
//!
//! ```text
//! cargo bench -p outsize-kernels --bench convolution             # every shape
//! cargo bench -p outsize-kernels --bench convolution -- --quick  # the first
//! ```
//!
//! Shapes are those of the denoiser and the decoder of Stable Diffusion 1 at 512 x 512, weights in f16. Medians are shown;
//! beside each stands the limit, measured in the same second (see [`peak`]).

use std::hint::black_box;
use std::time::Instant;

use half::f16;
use outsize_kernels::group_norm::{GroupSums, normalize_groups_into, row_sums};
use outsize_kernels::matmul::{Convolution, ConvolutionShape, ConvolutionWindow, convolve_into};
use outsize_kernels::{ActivationDtype, Isa, Weight, peak};

#[path = "common/timing.rs"]
mod timing;

use timing::{median, seconds, values};

/// Batch, rows, columns, channels; outputs; stride.
const SHAPES: [([usize; 4], usize, usize); 7] = [
    ([2, 64, 64, 320], 320, 1),
    ([2, 64, 64, 320], 320, 2),
    ([2, 32, 32, 640], 640, 1),
    ([2, 16, 16, 1280], 1280, 1),
    ([2, 8, 8, 2560], 1280, 1),
    ([1, 18, 256, 512], 512, 1),
    ([1, 18, 512, 128], 128, 1),
];

/// How often each is repeated at least, and for how many seconds.
const LEAST: usize = 3;
const SECONDS: f64 = 1.0;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let shapes = if quick { &SHAPES[..1] } else { &SHAPES[..] };
    println!("{}, {} threads", Isa::detected().name(), rayon::current_num_threads());
    println!(
        "picture              outputs stride |       ms  GFLOP/s share   of | norm and SiLU ms"
    );
    for &(sides, n, stride) in shapes {
        let [batch, rows, columns, channels] = sides;
        let window = ConvolutionWindow::three(stride);
        let shape = ConvolutionShape { batch, rows, columns, channels, window };
        let [height, width] = shape.output();
        let x = values(sides.iter().product());
        let weight: Vec<f16> = values(n * channels * 9).into_iter().map(f16::from_f32).collect();
        let (bias, mut y) = (values(n), vec![0.0; batch * height * width * n]);
        let mut normed = x.clone();
        let weights = vec![1.0; channels];
        let (mut times, mut norms) = (vec![], vec![]);
        let (start, before) = (Instant::now(), limit());
        while times.len() < LEAST || start.elapsed().as_secs_f64() < SECONDS {
            norms.push(seconds(|| {
                let mut sums = GroupSums::default();
                let of_rows = row_sums(Isa::detected(), black_box(&x), sides, 32);
                sums.add(&of_rows, batch, 32, columns * channels / 32);
                let moments = sums.moments(1e-5);
                let affine = (&*weights, &*weights);
                normalize_groups_into(
                    Isa::detected(),
                    &x,
                    sides,
                    &moments,
                    affine,
                    true,
                    &mut normed,
                );
            }));
            let convolution = Convolution {
                x: black_box(&x),
                shape,
                weight: Weight::F16(&weight),
                bias: &bias,
                y: &mut y,
                n,
                outputs: 0..n,
            };
            let convolve = || convolve_into(Isa::detected(), ActivationDtype::F32, convolution);
            times.push(seconds(convolve));
        }
        let limit = before.max(limit());
        let time = median(times);
        let rate = (2 * batch * height * width * n * channels * 9) as f64 / time / 1e9;
        println!(
            "{:<20} {n:>7} {stride:>6} | {:>8.2} {rate:>8.0} {:>4.0}% {limit:>4.0} | {:>8.2}",
            format!("{sides:?}"),
            time * 1e3,
            100.0 * rate / limit,
            median(norms) * 1e3,
        );
    }
}

/// What all threads compute on registers, GFLOP/s: the best of five looks.
fn limit() -> f64 {
    let look = |_| peak::flops(ActivationDtype::F32, 0.01).expect("the processor adds up right");
    (0..5).map(look).fold(0.0, f64::max) / 1e9
}
