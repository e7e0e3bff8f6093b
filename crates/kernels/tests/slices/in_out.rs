//! Weights stored `[in, out]`: beside the formula in f64, and what the bits depend on.

#![allow(clippy::single_range_in_vec_init, reason = "a weight may come in one tile")]

use std::ops::Range;

use crate::common::{COMPUTES, DTYPES, Stored, available, bits, multiplied, reference, values};
use outsize_kernels::matmul::{InOutMatmul, add_linear_in_out_into};
use outsize_kernels::{ActivationDtype, Isa};
use proptest::prelude::*;

/// What `y` holds after some tiles of the weight's rows, one after the other.
fn add(
    (isa, compute): (Isa, ActivationDtype),
    x: &[f32],
    stored: &Stored,
    [m, k, n]: [usize; 3],
    tiles: &[Range<usize>],
    y: &[f32],
) -> Vec<f32> {
    let mut y = y.to_vec();
    assert_eq!((x.len(), y.len()), (m * k, m * n));
    for rows in tiles {
        let matmul = InOutMatmul {
            x,
            k,
            weight: stored.weight().slice(rows.start * n, rows.end * n),
            rows: rows.clone(),
            y: &mut y,
            n,
        };
        add_linear_in_out_into(isa, compute, matmul);
    }
    y
}

/// The chain that each output is, where multiply-adds are fused.
fn chain(x: &[f32], weight: &[f32], [m, k, n]: [usize; 3], y: &[f32]) -> Vec<f32> {
    let output = |index: usize| {
        let (i, j) = (index / n, index % n);
        (0..k).fold(y[index], |sum, l| x[i * k + l].mul_add(weight[l * n + j], sum))
    };
    (0..m * n).map(output).collect()
}

fn check(size @ [m, k, n]: [usize; 3], cuts: [f64; 2], seed: u64) -> Result<(), TestCaseError> {
    let (x, y) = (values(m * k, seed), values(m * n, seed + 1));
    let mut cuts = cuts.map(|cut| (cut * k as f64) as usize);
    cuts.sort();
    let tiles = [0..cuts[0], cuts[0]..cuts[1], cuts[1]..k];
    for isa in available() {
        for dtype in DTYPES {
            let stored = Stored::new(dtype, &values(k * n, seed + 2));
            let wide = stored.values();
            let transposed: Vec<f32> = (0..n * k).map(|at| wide[at % k * n + at / k]).collect();
            for compute in COMPUTES {
                let x = multiplied(compute, &x);
                let whole = add((isa, compute), &x, &stored, size, &[0..k], &y);
                let (want, allowed) = reference(&x, &transposed, [m, n, k]);
                for (((&found, &y), want), allowed) in whole.iter().zip(&y).zip(want).zip(allowed) {
                    // What `reference` allows is `(k / 4 + 4) · 2⁻²³` of the sum of magnitudes.
                    let allowed =
                        4.0 * allowed + (k + 1) as f64 * 2f64.powi(-23) * f64::from(y).abs();
                    let want = want + f64::from(y);
                    prop_assert!(
                        (f64::from(found) - want).abs() <= allowed,
                        "{isa:?} {compute:?} {dtype:?} {size:?}: {found} for {want}"
                    );
                }
                if isa != Isa::Portable {
                    prop_assert_eq!(bits(&whole), bits(&chain(&x, &wide, size, &y)), "{:?}", isa);
                }
                let in_tiles = add((isa, compute), &x, &stored, size, &tiles, &y);
                prop_assert_eq!(bits(&in_tiles), bits(&whole), "{:?} {:?}", isa, dtype);
                for i in 0..m {
                    let (x, y) = (&x[i * k..][..k], &y[i * n..][..n]);
                    let alone = add((isa, compute), x, &stored, [1, k, n], &tiles, y);
                    prop_assert_eq!(bits(&alone), bits(&whole[i * n..][..n]), "{:?}", isa);
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn follows_the_formula_and_no_tiling_changes_a_bit(
        m in 1usize..=20, k in 0usize..=150, n in 1usize..=150,
        cuts in prop::array::uniform2(0.0f64..=1.0), seed in any::<u32>(),
    ) {
        check([m, k, n], cuts, seed.into())?;
    }
}

/// Sizes of several panels, and of the weight's rows in several of them.
#[test]
fn large_matmuls_follow_the_formula() {
    for (size, seed) in [([1, 700, 1100], 1), ([3, 300, 700], 2), ([60, 300, 200], 3)] {
        check(size, [0.3, 0.31], seed).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn threads_change_nothing() {
    for size @ [m, k, n] in [[1, 515, 2000], [5, 515, 700], [150, 300, 90], [9, 300, 1000]] {
        let (x, y) = (values(m * k, 1), values(m * n, 2));
        for isa in available() {
            let stored = Stored::new(crate::common::Dtype::Bf16, &values(k * n, 3));
            let on = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                let way = (isa, ActivationDtype::F32);
                let work = || add(way, &x, &stored, size, &[0..k], &y);
                bits(&pool.expect("threads can be started").install(work))
            };
            let alone = on(1);
            for threads in [2, 3, 7] {
                assert_eq!(on(threads), alone, "{isa:?} {size:?} on {threads} threads");
            }
        }
    }
}

/// Not finite in, not finite out, in its own outputs and in no other.
#[test]
fn infinities_and_nan_reach_their_outputs_alone() {
    let size @ [m, k, n] = [9, 37, 21];
    for isa in available() {
        for dtype in DTYPES {
            for (special, in_x) in [(f32::NAN, true), (f32::INFINITY, false), (f32::NAN, false)] {
                let (mut x, mut weight) = (vec![1.0; m * k], vec![1.0; k * n]);
                match in_x {
                    true => x[3 * k + 17] = special,
                    false => weight[17 * n + 5] = special,
                }
                let (way, stored) = ((isa, ActivationDtype::F32), Stored::new(dtype, &weight));
                let y = add(way, &x, &stored, size, &[0..k], &vec![0.0; m * n]);
                for (index, y) in y.into_iter().enumerate() {
                    let hit = if in_x { index / n == 3 } else { index % n == 5 };
                    let want = if hit { special } else { k as f32 };
                    assert!(y == want || y.is_nan() && want.is_nan(), "{isa:?} {index}: {y}");
                }
            }
        }
    }
}

#[test]
fn nothing_added_changes_nothing() {
    let stored = Stored::new(crate::common::Dtype::F32, &[]);
    let way = (Isa::detected(), ActivationDtype::F32);
    assert_eq!(add(way, &[], &stored, [2, 0, 3], &[0..0], &[7.0; 6]), [7.0; 6]);
    assert_eq!(add(way, &[], &stored, [0, 5, 3], &[0..0], &[]), [0.0; 0]);
}

#[test]
#[should_panic(expected = "weight must hold 2 rows of 3 elements")]
fn a_weight_of_another_size_is_refused() {
    let matmul = InOutMatmul {
        x: &[1.0; 4],
        k: 4,
        weight: outsize_kernels::Weight::F32(&[1.0; 5]),
        rows: 1..3,
        y: &mut [0.0; 3],
        n: 3,
    };
    add_linear_in_out_into(Isa::detected(), ActivationDtype::F32, matmul);
}
