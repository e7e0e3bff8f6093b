//! Norms, rotary embedding and gates: beside the formulas in f64, and the same bits on every set of
//! instructions and any number of threads.

use crate::common::{DTYPES, Stored, available, bits, values};
use outsize_kernels::activation::{ActivationFunction, activate_in_place, gate_in_place};
use outsize_kernels::norm::{NormKind, NormParameters, add_norm_into, norm_into};
use outsize_kernels::rotary::{RotaryPairs, RotaryShape, rotate_in_place};
use outsize_kernels::{Isa, Weight};
use proptest::prelude::*;

const ROTARY: RotaryShape =
    RotaryShape { heads: 2, width: 4, rotary: 4, pairs: RotaryPairs::Halves };

fn on<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build().expect("threads can be started").install(work)
}

fn rms(weight: Weight<'_>) -> NormParameters<'_> {
    NormParameters { kind: NormKind::Rms, weight, bias: None, epsilon: 1e-3 }
}

fn normed(isa: Isa, x: &[f32], weight: Weight<'_>) -> Vec<f32> {
    let mut y = vec![f32::NAN; x.len()];
    norm_into(isa, x, rms(weight), &mut y);
    y
}

/// `gate(x)` in f64.
fn gate(gate: ActivationFunction, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match gate {
        ActivationFunction::Silu => x * sigmoid(x),
        ActivationFunction::Gelu => {
            // Marsaglia's series; beyond 8 all but 1e-15 of the distribution is on one side.
            let terms = (1..200).scan(x, |term, n| {
                *term *= x * x / f64::from(2 * n + 1);
                Some(*term)
            });
            let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            match x.abs() > 8.0 {
                true => x.max(0.0),
                false => x * (0.5 + density * (x + terms.sum::<f64>())),
            }
        }
        ActivationFunction::GeluTanh => {
            let slope = (2.0 / std::f64::consts::PI).sqrt();
            x / 2.0 * (1.0 + (slope * (x + 0.044_715 * x.powi(3))).tanh())
        }
        ActivationFunction::QuickGelu => x * sigmoid(1.702 * x),
        ActivationFunction::Relu => x.max(0.0),
        ActivationFunction::Relu2 => x.max(0.0).powi(2),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_norm_follows_the_formula(rows in 1usize..6, width in 1usize..200, seed in any::<u32>()) {
        let x = values(rows * width, seed.into());
        let add = values(rows * width, u64::from(seed) + 1);
        for dtype in DTYPES {
            let stored = Stored::new(dtype, &values(width, u64::from(seed) + 2));
            let wide = stored.values();
            let y = normed(Isa::Portable, &x, stored.weight());
            for (x, y) in x.chunks(width).zip(y.chunks(width)) {
                let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / width as f64;
                for ((&x, &weight), &y) in x.iter().zip(&wide).zip(y) {
                    let expected = f64::from(x) / (mean + 1e-3).sqrt() * f64::from(weight);
                    let allowed = (width as f64 / 32.0 + 8.0) * 2f64.powi(-23) * expected.abs();
                    prop_assert!((f64::from(y) - expected).abs() <= allowed, "{y} for {expected}");
                }
            }
            let sums: Vec<f32> = x.iter().zip(&add).map(|(x, add)| x + add).collect();
            let of_sums = normed(Isa::Portable, &sums, stored.weight());
            for isa in available() {
                prop_assert_eq!(bits(&normed(isa, &x, stored.weight())), bits(&y), "{:?}", isa);
                let (mut sum, mut norm) = (x.clone(), vec![f32::NAN; x.len()]);
                add_norm_into(isa, &mut sum, &add, rms(stored.weight()), &mut norm);
                prop_assert_eq!(bits(&sum), bits(&sums), "{:?}", isa);
                prop_assert_eq!(bits(&norm), bits(&of_sums), "{:?}", isa);
            }
        }
    }

    #[test]
    fn a_layer_norm_follows_the_formula(
        rows in 1usize..6, width in 1usize..200, shift in -4.0f32..4.0, biased in any::<bool>(),
        seed in any::<u32>(),
    ) {
        let x: Vec<f32> = values(rows * width, seed.into()).iter().map(|x| x + shift).collect();
        let add = values(rows * width, u64::from(seed) + 1);
        for dtype in DTYPES {
            let of = |seed| Stored::new(dtype, &values(width, seed));
            let (weight, bias) = (of(u64::from(seed) + 2), of(u64::from(seed) + 3));
            let parameters = NormParameters {
                kind: NormKind::Layer,
                weight: weight.weight(),
                bias: biased.then(|| bias.weight()),
                epsilon: 1e-3,
            };
            let affine: Vec<(f32, f32)> = weight.values().into_iter().zip(bias.values()).collect();
            let mut y = vec![f32::NAN; x.len()];
            norm_into(Isa::Portable, &x, parameters, &mut y);
            for (x, y) in x.chunks(width).zip(y.chunks(width)) {
                let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
                let off = |x: f32| f64::from(x) - mean;
                let variance = x.iter().map(|&x| off(x).powi(2)).sum::<f64>() / width as f64;
                let deviation = (variance + 1e-3).sqrt();
                let most = x.iter().fold(0.0, |most: f64, x| most.max(x.abs().into()));
                for ((&x, &(weight, bias)), &y) in x.iter().zip(&affine).zip(y) {
                    let norm = off(x) / deviation;
                    let bias = if biased { f64::from(bias) } else { 0.0 };
                    let expected = norm * f64::from(weight) + bias;
                    let by_mean = most / deviation * f64::from(weight).abs() * (1.0 + norm.abs());
                    let allowed = (width as f64 / 16.0 + 8.0)
                        * 2f64.powi(-23)
                        * (by_mean + expected.abs() + bias.abs());
                    prop_assert!((f64::from(y) - expected).abs() <= allowed, "{y} for {expected}");
                }
            }
            let sums: Vec<f32> = x.iter().zip(&add).map(|(x, add)| x + add).collect();
            let mut of_sums = vec![f32::NAN; x.len()];
            norm_into(Isa::Portable, &sums, parameters, &mut of_sums);
            for isa in available() {
                let (mut sum, mut norm) = (x.clone(), vec![f32::NAN; x.len()]);
                norm_into(isa, &x, parameters, &mut norm);
                prop_assert_eq!(bits(&norm), bits(&y), "{:?}", isa);
                add_norm_into(isa, &mut sum, &add, parameters, &mut norm);
                prop_assert_eq!(bits(&sum), bits(&sums), "{:?}", isa);
                prop_assert_eq!(bits(&norm), bits(&of_sums), "{:?}", isa);
            }
        }
    }

    #[test]
    fn a_rotation_follows_the_formula(
        sequences in 1usize..3, tokens in 1usize..5, heads in 1usize..4, half in 1usize..40,
        beyond in 0usize..20, one in any::<bool>(), seed in any::<u32>(),
    ) {
        let (rotary, width) = (2 * half, 2 * half + beyond);
        let x = values(sequences * tokens * heads * width, seed.into());
        let rotations = if one { tokens } else { sequences * tokens };
        let angles = values(rotations * half, u64::from(seed) + 1);
        let cos: Vec<f32> = angles.iter().map(|angle| (angle * 9.0).cos()).collect();
        let sin: Vec<f32> = angles.iter().map(|angle| (angle * 9.0).sin()).collect();
        for pairs in [RotaryPairs::Halves, RotaryPairs::Interleaved] {
            let shape = RotaryShape { heads, width, rotary, pairs };
            let mut first = None;
            for isa in available() {
                let mut y = x.clone();
                rotate_in_place(isa, &mut y, shape, &cos, &sin);
                for (at, &turned) in y.iter().enumerate() {
                    let (head, i) = (at / width, at % width);
                    if i >= rotary {
                        prop_assert_eq!(turned, x[at]);
                        continue;
                    }
                    let (angle, is_left, left, right) = match pairs {
                        RotaryPairs::Halves => (i % half, i < half, i % half, i % half + half),
                        RotaryPairs::Interleaved => (i / 2, i % 2 == 0, i / 2 * 2, i / 2 * 2 + 1),
                    };
                    let turn = head / heads % rotations * half + angle;
                    let (c, s) = (f64::from(cos[turn]), f64::from(sin[turn]));
                    let [left, right] = [left, right].map(|i| f64::from(x[head * width + i]));
                    let expected = if is_left { left * c - right * s } else { right * c + left * s };
                    let allowed = 2f64.powi(-22) * (left.abs() + right.abs());
                    prop_assert!((f64::from(turned) - expected).abs() <= allowed);
                }
                prop_assert_eq!(first.get_or_insert(bits(&y)), &bits(&y), "{:?}", isa);
            }
        }
    }

    #[test]
    fn a_gate_follows_the_formula(count in 0usize..100, scale in 0.1f32..40.0, seed in any::<u32>()) {
        let x: Vec<f32> = values(count, seed.into()).iter().map(|x| x * scale).collect();
        let up = values(count, u64::from(seed) + 1);
        for kind in ActivationFunction::ALL {
            let mut first = None;
            for isa in available() {
                let mut y = x.clone();
                gate_in_place(isa, kind, &mut y, &up);
                for ((&x, &up), &y) in x.iter().zip(&up).zip(&y) {
                    let expected = gate(kind, x.into()) * f64::from(up);
                    let size = expected.abs().max((f64::from(x) * f64::from(up)).abs());
                    prop_assert!(
                        (f64::from(y) - expected).abs() <= 2f64.powi(-19) * size,
                        "{:?}({}) * {}: {} for {}", kind, x, up, y, expected
                    );
                }
                prop_assert_eq!(first.get_or_insert(bits(&y)), &bits(&y), "{:?} {:?}", kind, isa);
                let (mut alone, mut gated) = (x.clone(), x.clone());
                activate_in_place(isa, kind, &mut alone);
                gate_in_place(isa, kind, &mut gated, &vec![1.0; count]);
                prop_assert_eq!(bits(&alone), bits(&gated), "{:?} {:?}", kind, isa);
            }
        }
    }
}

#[test]
fn threads_change_nothing() {
    let (rows, width, heads) = (300, 512, 4);
    let (x, add) = (values(rows * width, 1), values(rows * width, 2));
    let (weight, cos, sin) = (values(width, 3), values(rows * 64, 4), values(rows * 64, 5));
    let isa = Isa::detected();
    let results = |threads| {
        on(threads, || {
            let (mut sum, mut norm) = (x.clone(), x.clone());
            add_norm_into(isa, &mut sum, &add, rms(Weight::F32(&weight)), &mut norm);
            let plain = normed(isa, &x, Weight::F32(&weight));
            let (mut turned, mut gated) = (x.clone(), x.clone());
            let shape = RotaryShape {
                heads,
                width: width / heads,
                rotary: width / heads,
                pairs: RotaryPairs::Halves,
            };
            rotate_in_place(isa, &mut turned, shape, &cos, &sin);
            gate_in_place(isa, ActivationFunction::Silu, &mut gated, &add);
            let (mut layer_norm, mut activated) = (x.clone(), x.clone());
            let parameters = NormParameters {
                kind: NormKind::Layer,
                weight: Weight::F32(&weight),
                bias: Some(Weight::F32(&weight)),
                epsilon: 1e-5,
            };
            norm_into(isa, &x, parameters, &mut layer_norm);
            activate_in_place(isa, ActivationFunction::GeluTanh, &mut activated);
            [sum, norm, plain, turned, gated, layer_norm, activated].map(|y| bits(&y))
        })
    };
    let alone = results(1);
    for threads in [2, 5] {
        assert_eq!(results(threads), alone, "{threads} threads");
    }
}

#[test]
fn nothing_stays_nothing() {
    let isa = Isa::detected();
    assert_eq!(normed(isa, &[], Weight::F32(&[1.0; 3])), [0.0; 0]);
    rotate_in_place(isa, &mut [], ROTARY, &[1.0; 2], &[0.0; 2]);
    gate_in_place(isa, ActivationFunction::Silu, &mut [], &[]);
}

#[test]
fn what_is_no_number_stays_none() {
    for isa in available() {
        for kind in ActivationFunction::ALL {
            let mut x = [f32::NAN, 1.0, f32::INFINITY];
            gate_in_place(isa, kind, &mut x, &[1.0; 3]);
            assert!(x[0].is_nan() && x[1].is_finite(), "{isa:?} {kind:?}");
            assert_eq!(x[2], f32::INFINITY, "{isa:?} {kind:?}");
        }
    }
}

#[test]
#[should_panic(expected = "a gate has the size of what goes through")]
fn a_gate_of_another_size_is_refused() {
    gate_in_place(Isa::detected(), ActivationFunction::Relu, &mut [0.0; 2], &[0.0; 3]);
}

#[test]
#[should_panic(expected = "rows of the weight's 3 elements must fill 4")]
fn a_norm_of_another_width_is_refused() {
    normed(Isa::detected(), &[1.0; 4], Weight::F32(&[1.0; 3]));
}

#[test]
#[should_panic(expected = "must fit 3 tokens of 2 angles")]
fn rotations_of_other_tokens_are_refused() {
    let shape = RotaryShape { heads: 1, ..ROTARY };
    rotate_in_place(Isa::detected(), &mut [0.0; 12], shape, &[1.0; 4], &[0.0; 4]);
}
