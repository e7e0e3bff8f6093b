//! AMX, on hardware or on an emulation of it (which, the tests say): that it is what runs, how
//! exact it is, and what it makes of numbers that are hard for it. What all sets promise is tested
//! with them, in `matmul.rs` and `contract.rs`.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod common;

use common::amx::{Amx, emulated, provide};
use common::{Dtype, Stored, bits, reference, values};
use half::bf16;
use outsize_kernels::activation::gate_in_place;
use outsize_kernels::attention::{
    AttentionMask, AttentionShape, KvSegment, RingLayout, StridedRows, attend_into,
};
use outsize_kernels::matmul::{MatmulActivations, Size, linear_into};
use outsize_kernels::{ActivationDtype, ActivationFunction, Isa, Weight};

fn matmul(isa: Isa, compute: ActivationDtype, x: &[f32], stored: &Stored, size: Size) -> Vec<f32> {
    let mut y = vec![f32::NAN; size.m * size.n];
    linear_into(isa, compute, x, stored.weight(), size, &mut y);
    y
}

/// Without this, a matmul that took other loops would pass all else.
#[test]
fn tiles_are_what_multiplies() {
    let amx = provide();
    if amx == Amx::None {
        return;
    }
    let size = Size { m: 40, n: 70, k: 100 };
    let x = values(size.m * size.k, 1);
    let stored = Stored::new(Dtype::Bf16, &values(size.n * size.k, 2));
    for (compute, parts) in [(ActivationDtype::F32, 3), (ActivationDtype::Bf16, 1)] {
        let before = emulated();
        matmul(Isa::AmxBf16, compute, &x, &stored, size);
        // Of sixteen rows of the weight, four steps and sixteen rows of activations each. (Other
        // tests may run meanwhile.)
        let least = 5 * 4 * 3 * parts;
        if amx == Amx::Emulation {
            let ran = emulated() - before;
            assert!(ran >= least, "{compute:?}: {ran} instructions");
        }
    }
}

/// The same of attention.
#[test]
fn tiles_are_what_attends() {
    let amx = provide();
    if amx == Amx::None {
        return;
    }
    let shape = AttentionShape { batch: 1, tokens: 40, heads: 2, key_heads: 1, width: 50 };
    let [queries, held] = [shape.heads, shape.key_heads]
        .map(|heads| values(shape.tokens * heads * shape.width, heads as u64));
    let rows = StridedRows {
        elements: Weight::F32(&held),
        sequence_stride: held.len(),
        head_stride: held.len(),
        slot_stride: shape.width,
    };
    let ring = RingLayout { first: 0, end: 40, capacity: 40, origin: 0 };
    let held = KvSegment { keys: rows, values: rows, ring };
    let mask = AttentionMask { window: usize::MAX, padding: vec![0], ..Default::default() };
    // Of the 16 queries of a tile scores of so many tiles of keys in two steps, and sums of four
    // tiles of values in as many steps as it sees: eight tokens a tile, none sees what comes later.
    let tiles = |seen: usize| seen.div_ceil(16) * 2 + seen.div_ceil(32) * 4;
    let least: usize = [8, 16, 24, 32, 40].map(tiles).iter().sum();
    for (compute, products) in [(ActivationDtype::F32, 6), (ActivationDtype::Bf16, 1)] {
        let mut y = vec![f32::NAN; queries.len()];
        let before = emulated();
        attend_into((Isa::AmxBf16, compute), &queries, shape, &[held], &mask, None, &mut y);
        assert!(y.iter().all(|y| y.is_finite()));
        if amx == Amx::Emulation {
            let ran = emulated() - before;
            assert!(ran >= (least * products) as u64, "{compute:?}: {ran} instructions");
        }
    }
}

/// Panels that are copied and sums that wait for the next steps of long rows come to the bits of a
/// few rows, which need neither.
#[test]
fn panels_come_to_the_bits_of_a_few_rows() {
    if provide() == Amx::None {
        return;
    }
    // More row blocks than wait at once; several panels of all steps; weights where they lie, twice
    // over, and once: all with ends that fill no tile.
    for [m, n, k] in [[2090, 40, 1100], [250, 300, 330], [100, 75, 330], [30, 75, 3301]] {
        let size = Size { m, n, k };
        let x = values(m * k, 5);
        let stored = Stored::new(Dtype::Bf16, &values(n * k, 6));
        for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
            let all = matmul(Isa::AmxBf16, compute, &x, &stored, size);
            for (x, all) in x.chunks(9 * k).zip(all.chunks(9 * n)) {
                let few = Size { m: x.len() / k, ..size };
                let few = matmul(Isa::AmxBf16, compute, x, &stored, few);
                assert_eq!(bits(all), bits(&few), "{compute:?} {size:?}");
            }
        }
    }
}

/// What is gated as it is written has the bits of what is gated later, also where it is computed
/// again because it is not finite.
#[test]
fn gates_come_to_the_bits_of_both_parts() {
    if provide() == Amx::None {
        return;
    }
    // Weights where they lie, panels of all steps, and several panels whose sums wait.
    for [m, n, k] in [[5, 75, 330], [40, 75, 330], [150, 75, 330], [150, 300, 1100]] {
        let size = Size { m, n, k };
        let mut x = values(m * k, 9);
        x[7] = f32::INFINITY;
        let [gate, up] = [10, 11].map(|seed| Stored::new(Dtype::Bf16, &values(n * k, seed)));
        for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
            let [mut want, other] =
                [&gate, &up].map(|weight| matmul(Isa::AmxBf16, compute, &x, weight, size));
            gate_in_place(Isa::AmxBf16, ActivationFunction::Silu, &mut want, &other);
            let mut y = vec![f32::NAN; m * n];
            let weights = [gate.weight(), up.weight()];
            let mut activations = MatmulActivations::new(Isa::AmxBf16, compute, &x, [m, k]);
            activations.multiply_gated(ActivationFunction::Silu, weights, 0..n, n, &mut y);
            assert_eq!(bits(&y), bits(&want), "{compute:?} {size:?}");
            // Also some rows of the weights at a time.
            y.fill(f32::NAN);
            for rows in [0..7, 7..40, 40..n] {
                let some = weights.map(|weight| weight.slice(rows.start * k, rows.end * k));
                activations.multiply_gated(ActivationFunction::Silu, some, rows, n, &mut y);
            }
            assert_eq!(bits(&y), bits(&want), "{compute:?} {size:?}, in parts");
        }
    }
}

/// Activations that a gated matmul makes have the bits of outputs that are packed, also where they
/// are made in parts, where they are computed again because they are not finite, and with weights
/// that are not multiplied in tiles.
#[test]
fn made_activations_come_to_the_bits_of_outputs_that_are_packed() {
    if provide() == Amx::None {
        return;
    }
    let act = ActivationFunction::Silu;
    for [m, inner, k] in [[5, 75, 330], [16, 64, 64], [40, 75, 330], [150, 300, 330], [530, 96, 70]]
    {
        let mut x = values(m * k, 9);
        x[7] = f32::INFINITY;
        let [gate, mut up] = [10, 11].map(|seed| values(inner * k, seed));
        up[3 * k] = f32::INFINITY;
        let [gate, up] = [gate, up].map(|values| Stored::new(Dtype::Bf16, &values));
        let n = 50;
        let downs = [Dtype::Bf16, Dtype::F16, Dtype::F32]
            .map(|dtype| Stored::new(dtype, &values(n * inner, 12)));
        for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
            let activations = || MatmulActivations::new(Isa::AmxBf16, compute, &x, [m, k]);
            let mut outputs = vec![f32::NAN; m * inner];
            let weights = [gate.weight(), up.weight()];
            activations().multiply_gated(act, weights, 0..inner, inner, &mut outputs);
            for parts in [vec![0, inner], vec![0, 32, 64.min(inner), inner], vec![0, 7, 40, inner]]
            {
                for down in &downs {
                    let size = Size { m, n, k: inner };
                    let want = matmul(Isa::AmxBf16, compute, &outputs, down, size);
                    let size = [m, inner];
                    let mut made = MatmulActivations::to_be_made(Isa::AmxBf16, compute, size);
                    let mut activations = activations();
                    for rows in parts.windows(2).map(|ends| ends[0]..ends[1]) {
                        let some = weights.map(|weight| weight.slice(rows.start * k, rows.end * k));
                        activations.multiply_gated_to(act, some, rows, &mut made);
                    }
                    let mut y = vec![f32::NAN; m * n];
                    made.multiply_rows(down.weight(), 0..n, n, &mut y);
                    let context = format!("{compute:?} {size:?} {parts:?}");
                    assert_eq!(bits(&y), bits(&want), "{context}");
                }
            }
        }
    }
}

/// Rows that begin with a cache line pass the caches otherwise than those that do not.
#[test]
fn weights_come_to_the_same_bits_wherever_they_begin() {
    if provide() == Amx::None {
        return;
    }
    for m in [40, 100, 550] {
        let size = Size { m, n: 75, k: 1088 };
        let x = values(m * size.k, 7);
        let weight: Vec<bf16> =
            values(size.n * size.k, 8).into_iter().map(bf16::from_f32).collect();
        let mut memory = vec![bf16::ZERO; weight.len() + 64];
        let line = memory.as_ptr().align_offset(64);
        for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
            let [aligned, other] = [line, line + 4].map(|start| {
                let place = &mut memory[start..start + weight.len()];
                place.copy_from_slice(&weight);
                let mut y = vec![f32::NAN; m * size.n];
                linear_into(Isa::AmxBf16, compute, &x, Weight::Bf16(place), size, &mut y);
                bits(&y)
            });
            assert_eq!(aligned, other, "{compute:?} {size:?}");
        }
    }
}

/// Root of the mean square of errors, each relative to the sum of the magnitudes of its products.
fn error(y: &[f32], x: &[f32], weight: &[f32], size: Size) -> f64 {
    let sizes = [size.m, size.n, size.k];
    let (want, allowed) = reference(x, weight, sizes);
    let per_magnitude = (size.k as f64 / 4.0 + 4.0) * 2f64.powi(-23);
    let square = |((&y, want), allowed): ((&f32, f64), f64)| {
        ((f64::from(y) - want) / (allowed / per_magnitude)).powi(2)
    };
    let sum: f64 = y.iter().zip(want).zip(allowed).map(square).sum();
    (sum / y.len() as f64).sqrt()
}

/// Three parts are as exact as fused multiply-adds, and two would not be.
#[test]
fn three_parts_err_like_multiply_adds() {
    if provide() == Amx::None {
        return;
    }
    for k in [64, 256, 2048, 5632] {
        let size = Size { m: 16, n: 32, k };
        let x = values(size.m * k, 3);
        let stored = Stored::new(Dtype::Bf16, &values(size.n * k, 4));
        let weight = stored.values();
        let of = |isa, x: &[f32]| matmul(isa, ActivationDtype::F32, x, &stored, size);
        let fused = error(&of(Isa::Avx512, &x), &x, &weight, size);
        let tiles = error(&of(Isa::AmxBf16, &x), &x, &weight, size);
        // What two parts hold of an activation: its nearest bf16, and the nearest to the rest.
        let two: Vec<f32> = x
            .iter()
            .map(|&x| {
                let first = bf16::from_f32(x).to_f32();
                first + bf16::from_f32(x - first).to_f32()
            })
            .collect();
        let halves = error(&of(Isa::Avx512, &two), &x, &weight, size);
        println!(
            "k {k}: multiply-adds {fused:.1e}, three parts {tiles:.1e}, two parts {halves:.1e}"
        );
        assert!(tiles < 3.0 * fused, "k {k}: {tiles:e} beside {fused:e}");
        assert!(halves > 4.0 * fused, "k {k}: {halves:e} beside {fused:e}");
    }
}

/// Of each magnitude that a number can have: what is below the normal ones may count as zero, and
/// nothing else is lost.
#[test]
fn every_magnitude_keeps_its_bits() {
    if provide() == Amx::None {
        return;
    }
    let weight = [1.0f32, -1.5, 0.0078125, 3.0e38, 1.0e-38];
    let stored = Stored::new(Dtype::Bf16, &weight);
    let weight = stored.values();
    for exponent in 0..255u32 {
        for mantissa in [0, 1, 0x7f_ffff, 0x40_0001, 0x00_ff00, 0x2a_aaaa] {
            let x = [f32::from_bits(exponent << 23 | mantissa)];
            let size = Size { m: 1, n: 5, k: 1 };
            let y = matmul(Isa::AmxBf16, ActivationDtype::F32, &x, &stored, size);
            for (&y, &w) in y.iter().zip(&weight) {
                let want = f64::from(x[0]) * f64::from(w);
                let least = f64::from(f32::MIN_POSITIVE);
                // A weight or a part that is lost, a product or two, and two roundings of sums of
                // parts.
                let lost = least * f64::from(w.abs().max(x[0].abs())) + 3.0 * least;
                let allowed = lost + 2f64.powi(-23) * want.abs();
                match want.abs() >= f64::from(f32::MAX) {
                    true => assert!(y.abs() >= f32::MAX, "{} * {w}: {y}", x[0]),
                    false => assert!(
                        (f64::from(y) - want).abs() <= allowed,
                        "{} * {w}: {y} for {want}",
                        x[0]
                    ),
                }
            }
        }
    }
}

/// What is not finite, or is not in the end, comes out as with multiply-adds, in every output and
/// beside every other.
#[test]
fn what_is_not_finite_is_as_with_multiply_adds() {
    if provide() == Amx::None {
        return;
    }
    let size = Size { m: 33, n: 35, k: 67 };
    let specials = [
        f32::NAN,
        // A NaN whose upper half alone would be infinite.
        f32::from_bits(0x7f80_0001),
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        f32::MAX,
    ];
    for seed in 0..6 {
        let (mut x, mut weight) =
            (values(size.m * size.k, seed), values(size.n * size.k, seed + 1));
        for (index, &special) in specials.iter().enumerate() {
            x[(index * 311 + seed as usize * 97) % (size.m * size.k)] = special;
            weight[(index * 613 + seed as usize * 41) % (size.n * size.k)] = special;
        }
        let stored = Stored::new(Dtype::Bf16, &weight);
        let tiles = matmul(Isa::AmxBf16, ActivationDtype::F32, &x, &stored, size);
        let fused = matmul(Isa::Avx512, ActivationDtype::F32, &x, &stored, size);
        let mut not_finite = 0;
        for (index, (tiles, fused)) in tiles.into_iter().zip(fused).enumerate() {
            not_finite += usize::from(!fused.is_finite());
            let alike = match fused.is_finite() {
                true => tiles.is_finite(),
                false => bits(&[tiles]) == bits(&[fused]),
            };
            assert!(alike, "seed {seed}, output {index}: {tiles} for {fused}");
        }
        assert!(not_finite > size.n, "seed {seed}: only {not_finite}");
    }
}
