//! All matmuls of a model, one after the other.

use std::collections::BTreeMap;
use std::time::Instant;

use half::bf16;
use outsize_kernels::matmul::{Size, linear_into};
use outsize_kernels::{ActivationDtype, Isa, Weight, peak};

use crate::large::Large;
use crate::shapes::{HEAD, LAYER, LAYERS};
use crate::timing::{median, seconds, values};

/// Sequences side by side, and how activations are multiplied.
const PASSES: [(usize, ActivationDtype); 8] = [
    (1, ActivationDtype::F32),
    (2, ActivationDtype::F32),
    (4, ActivationDtype::F32),
    (8, ActivationDtype::F32),
    (16, ActivationDtype::F32),
    (1, ActivationDtype::Bf16),
    (8, ActivationDtype::Bf16),
    (16, ActivationDtype::Bf16),
];

/// Prints how long passes take, and those of one and eight sequences by shape. `most` is what
/// multiply-adds on registers reach, in GFLOP/s.
pub fn passes(quick: bool, most: f64) {
    let layers = if quick { LAYERS / 4 } else { LAYERS };
    let rounds = if quick { 7 } else { 25 };
    let mut shapes: Vec<[usize; 2]> = (0..layers).flat_map(|_| LAYER).collect();
    shapes.push(HEAD);
    let bytes = |[out, width]: [usize; 2]| out * width * size_of::<bf16>();
    let total = shapes.iter().copied().map(bytes).sum();
    let row: Vec<bf16> = values(1 << 20).into_iter().map(bf16::from_f32).collect();
    let weights = Large::new(total, &row);
    let x = values(16 * 5632);
    let mut y = vec![0.0; 16 * 32000];

    let mut reads = vec![];
    let mut times = vec![vec![]; PASSES.len()];
    let mut by_shape = BTreeMap::<_, (Vec<f64>, Vec<f64>)>::new();
    for _ in 0..rounds {
        reads.push(seconds(|| peak::read(weights.bytes())));
        for (times, (batch, compute)) in times.iter_mut().zip(PASSES) {
            let mut left = weights.elements::<bf16>();
            let began = Instant::now();
            for &[out, width] in &shapes {
                let (weight, rest) = left.split_at(out * width);
                left = rest;
                let (m, n, k) = (batch, out, width);
                let time = seconds(|| {
                    linear_into(
                        Isa::detected(),
                        compute,
                        &x[..m * k],
                        Weight::Bf16(weight),
                        Size { m, n, k },
                        &mut y[..m * n],
                    )
                });
                match (batch, compute) {
                    (1, ActivationDtype::F32) => &mut by_shape.entry([out, width]).or_default().0,
                    (8, ActivationDtype::F32) => &mut by_shape.entry([out, width]).or_default().1,
                    _ => continue,
                }
                .push(time);
            }
            times.push(began.elapsed().as_secs_f64());
        }
    }

    let speed = |times: &[f64], bytes: usize| bytes as f64 / median(times.to_vec()) / 1e9;
    let quotient = |of: &[f64], by: &[f64]| median(of.iter().zip(by).map(|(a, b)| a / b).collect());
    println!();
    println!(
        "a model of {layers} layers, {:.2} GB: memory {:.1} GB/s, {:.2} ms",
        total as f64 / 1e9,
        speed(&reads, total),
        1e3 * median(reads.clone())
    );
    println!();
    println!("batch  activations |      time    GB/s  share | GFLOP/s  share | by batch 1");
    for (time, (batch, compute)) in times.iter().zip(PASSES) {
        let operations = (batch * total) as f64 / median(time.clone()) / 1e9;
        println!(
            "{batch:>5}  {:<11} | {:>6.2} ms {:>7.1} {:>5.0}% | {operations:>7.0} {:>5.0}% | {:>5.2}x",
            match compute {
                ActivationDtype::F32 => "f32",
                ActivationDtype::Bf16 => "bf16",
            },
            1e3 * median(time.clone()),
            speed(time, total),
            100.0 * quotient(&reads, time),
            100.0 * operations / most,
            quotient(time, &times[0]),
        );
    }
    println!();
    println!("weight        | batch 1:  time    GB/s  share | batch 8:  time GFLOP/s  share");
    for (shape, (one, eight)) in by_shape {
        let operations = (8 * bytes(shape)) as f64 / median(eight.clone()) / 1e9;
        println!(
            "{:<13} | {:>11.3} ms {:>7.1} {:>5.0}% | {:>11.3} ms {operations:>7.0} {:>5.0}%",
            format!("{shape:?}"),
            1e3 * median(one.clone()),
            speed(&one, bytes(shape)),
            100.0 * speed(&one, bytes(shape)) / speed(&reads, total),
            1e3 * median(eight),
            100.0 * operations / most,
        );
    }
}
