//! How near the layers of models of pictures come to what the cores compute on registers alone.
//!
//! ```text
//! cargo bench -p outsize-kernels --bench pictures             # all layers, in f32 and bf16
//! cargo bench -p outsize-kernels --bench pictures -- --quick  # the first
//! ```
//!
//! Shapes are those of the denoiser and the decoder of Stable Diffusion 1 at 512 x 512, weights in
//! f16. Medians are shown; beside each stands the limit, measured in the same second (see
//! [`peak`]).

use std::hint::black_box;
use std::time::Instant;

use half::f16;
use outsize_kernels::attention::{PixelAttentionShape, attend_pixels_into};
use outsize_kernels::group_norm::{GroupSums, normalize_groups_into, row_sums};
use outsize_kernels::matmul::{
    ConvolutionOutputs, ConvolutionShape, ConvolutionWindow, PackedPictures,
};
use outsize_kernels::{ActivationDtype, Isa, Weight, peak};

#[path = "common/timing.rs"]
mod timing;

use timing::{median, seconds, values};

const ONE: ConvolutionWindow = ConvolutionWindow::One;
const THREE: ConvolutionWindow = ConvolutionWindow::Three { stride: 1, above: true, below: true };
const HALVING: ConvolutionWindow = ConvolutionWindow::Three { stride: 2, above: true, below: true };

/// Batch, rows, columns, channels; outputs; what outputs see.
const CONVOLUTIONS: [([usize; 4], usize, ConvolutionWindow); 13] = [
    ([2, 64, 64, 320], 320, THREE),
    ([2, 64, 64, 320], 320, HALVING),
    ([2, 32, 32, 640], 640, THREE),
    ([2, 16, 16, 1280], 1280, THREE),
    ([2, 8, 8, 2560], 1280, THREE),
    ([1, 18, 256, 512], 512, THREE),
    ([1, 18, 512, 128], 128, THREE),
    ([2, 64, 64, 320], 320, ONE),
    ([2, 64, 64, 320], 2560, ONE),
    ([2, 64, 64, 1280], 320, ONE),
    ([2, 32, 32, 640], 5120, ONE),
    ([2, 16, 16, 1280], 10240, ONE),
    ([2, 16, 16, 1280], 1280, ONE),
];

/// Queries, keys, heads and their width; of two pictures.
const ATTENTIONS: [[usize; 4]; 5] = [
    [4096, 4096, 8, 40],
    [1024, 1024, 8, 80],
    [256, 256, 8, 160],
    [4096, 77, 8, 40],
    [2048, 4096, 1, 512],
];

/// How often each is repeated at least, and for how many seconds.
const LEAST: usize = 3;
const SECONDS: f64 = 0.5;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    println!("{}, {} threads", Isa::detected().name(), rayon::current_num_threads());
    for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
        println!("\n{}", peak::instructions(compute));
        println!("layer         |                     |     ms  GFLOP/s share   of");
        let count = if quick { 1 } else { CONVOLUTIONS.len() };
        for &(sides, n, window) in &CONVOLUTIONS[..count] {
            convolution(compute, sides, n, window);
        }
        let count = if quick { 1 } else { ATTENTIONS.len() };
        for sizes in &ATTENTIONS[..count] {
            attention(compute, *sizes);
        }
    }
    println!("\nlayer         |                     |     ms     GB/s");
    norm([2, 64, 64, 320]);
    norm([1, 32, 512, 128]);
}

fn convolution(compute: ActivationDtype, sides: [usize; 4], n: usize, window: ConvolutionWindow) {
    let [batch, rows, columns, channels] = sides;
    let shape = ConvolutionShape { batch, rows, columns, channels, window };
    let ([height, width], k) = (shape.output(), channels * window.taps());
    let x = values(sides.iter().product());
    let weight: Vec<f16> = values(n * k).into_iter().map(f16::from_f32).collect();
    let (bias, mut y) = (values(n), vec![0.0; batch * height * width * n]);
    let name = match window {
        ConvolutionWindow::One => "1x1, linear",
        ConvolutionWindow::Three { stride: 1, .. } => "3x3",
        ConvolutionWindow::Three { .. } => "3x3, stride 2",
    };
    let operations = 2 * batch * height * width * n * k;
    report(compute, name, &format!("{sides:?} to {n}"), operations, || {
        let x = black_box(&x);
        PackedPictures::new(Isa::detected(), compute, x, shape).convolve_into(ConvolutionOutputs {
            weight: Weight::F16(&weight),
            bias: Some(&bias),
            y: &mut y,
            n,
            outputs: 0..n,
        });
    });
}

fn attention(compute: ActivationDtype, [tokens, seen, heads, width]: [usize; 4]) {
    let shape = PixelAttentionShape { batch: 2, tokens, seen, heads, width };
    let of = |rows: usize| values(2 * rows * heads * width);
    let (queries, keys, mixed, mut y) = (of(tokens), of(seen), of(seen), of(tokens));
    let operations = 2 * 4 * tokens * seen * heads * width;
    report(
        compute,
        "attention",
        &format!("{tokens}, {seen}, {heads} x {width}"),
        operations,
        || {
            let inputs = [black_box(&queries[..]), &keys, &mixed];
            attend_pixels_into(Isa::detected(), compute, inputs, shape, 0.1, &mut y);
        },
    );
}

/// Times the work, and what all threads compute on registers.
fn report(
    compute: ActivationDtype,
    layer: &str,
    shape: &str,
    operations: usize,
    mut work: impl FnMut(),
) {
    let limit = || {
        let look = |_| peak::flops(compute, 0.01).expect("the processor adds up right");
        (0..5).map(look).fold(0.0, f64::max) / 1e9
    };
    let (start, before, mut times) = (Instant::now(), limit(), vec![]);
    work();
    while times.len() < LEAST || start.elapsed().as_secs_f64() < SECONDS {
        times.push(seconds(&mut work));
    }
    let limit = before.max(limit());
    let time = median(times);
    let rate = operations as f64 / time / 1e9;
    println!(
        "{layer:<13} | {shape:<19} | {:>6.1} {rate:>8.0} {:>4.0}% {limit:>4.0}",
        time * 1e3,
        100.0 * rate / limit,
    );
}

/// A group norm with SiLU: reads what it is of twice, and writes it once.
fn norm(sides: [usize; 4]) {
    let [batch, _, columns, channels] = sides;
    let x = values(sides.iter().product());
    let (weights, mut y) = (vec![1.0; channels], x.clone());
    let times = (0..20).map(|_| {
        seconds(|| {
            let mut sums = GroupSums::default();
            let of_rows = row_sums(Isa::detected(), black_box(&x), sides, 32);
            sums.add(&of_rows, batch, 32, columns * channels / 32);
            let (moments, affine) = (sums.moments(1e-5), (&*weights, &*weights));
            normalize_groups_into(Isa::detected(), &x, sides, &moments, affine, true, &mut y);
        })
    });
    let time = median(times.collect());
    println!(
        "norm and SiLU | {:<19} | {:>6.1} {:>8.1}",
        format!("{sides:?}"),
        time * 1e3,
        12.0 * x.len() as f64 / time / 1e9
    );
}
