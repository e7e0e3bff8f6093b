//! The matmul over slices against one in f64: every instruction set, dtype, odd size and
//! alignment.

use crate::common::{COMPUTES, DTYPES, Dtype, Stored, available, multiplied, reference, values};
use outsize_kernels::matmul::{Size, linear_into};
use outsize_kernels::{ActivationDtype, Isa};
use proptest::prelude::*;

/// Runs one matmul whose matrices begin `skip` elements into their buffers and are surrounded by
/// NaN, so that whatever is read beyond them shows, and checks that nothing beyond `y` is written.
fn surrounded(
    (isa, compute): (Isa, ActivationDtype),
    x: &[f32],
    stored: &Stored,
    dtype: Dtype,
    size: Size,
    skip: usize,
) -> Vec<f32> {
    const MARK: f32 = 12345.0;
    let surround = |values: &[f32], with: f32| [&vec![with; skip], values, &[with; 40]].concat();
    let (x_buffer, weight_buffer) = (surround(x, f32::NAN), surround(&stored.values(), f32::NAN));
    let weight_buffer = Stored::new(dtype, &weight_buffer);
    let weight = weight_buffer.weight().slice(skip, skip + size.n * size.k);
    let mut y = vec![MARK; skip + size.m * size.n + 40];
    linear_into(
        isa,
        compute,
        &x_buffer[skip..][..x.len()],
        weight,
        size,
        &mut y[skip..][..size.m * size.n],
    );
    let (before, rest) = y.split_at(skip);
    let (result, after) = rest.split_at(size.m * size.n);
    assert!(before.iter().chain(after).all(|&value| value == MARK), "written outside y");
    result.to_vec()
}

fn check(isa: Isa, dtype: Dtype, size: Size, skip: usize, seed: u64) -> Result<(), TestCaseError> {
    let Size { m, n, k } = size;
    let (x, stored) = (values(m * k, seed), Stored::new(dtype, &values(n * k, seed + 1)));
    for compute in COMPUTES {
        let y = surrounded((isa, compute), &x, &stored, dtype, size, skip);
        let (want, allowed) = reference(&multiplied(compute, &x), &stored.values(), [m, n, k]);
        for (index, ((&y, want), allowed)) in y.iter().zip(want).zip(allowed).enumerate() {
            let error = (f64::from(y) - want).abs();
            prop_assert!(
                error <= allowed,
                "{isa:?} {compute:?} {dtype:?} {size:?} at {index}: {y} for {want}, off by {error:e}"
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn agrees_with_f64(
        m in 1usize..=17, n in 1usize..=40, k in 0usize..=300, skip in 0usize..33, seed in any::<u32>(),
    ) {
        for isa in available() {
            for dtype in DTYPES {
                check(isa, dtype, Size { m, n, k }, skip, seed.into())?;
            }
        }
    }
}

/// Every remainder of `k` at every height of a row block, with columns that fill no block.
#[test]
fn every_tail_agrees_with_f64() {
    for isa in available() {
        for dtype in DTYPES {
            for k in 0..70 {
                for m in 1..10 {
                    check(isa, dtype, Size { m, n: 11, k }, 1, 7)
                        .unwrap_or_else(|error| panic!("{error}"));
                }
            }
        }
    }
}

/// Large enough for several panels and regions.
#[test]
fn large_products_agree_with_f64() {
    for isa in available() {
        for dtype in DTYPES {
            for (m, n, k) in [
                (1, 1500, 515),
                (2, 700, 515),
                (8, 701, 515),
                (15, 301, 515),
                (20, 257, 515),
                (150, 5, 515),
                (9, 80, 9001),
            ] {
                check(isa, dtype, Size { m, n, k }, 3, 11)
                    .unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }
}

/// Not finite in, not finite out: at each place of a row, in its own outputs and in no other.
#[test]
fn infinities_and_nan_reach_their_outputs_alone() {
    let Size { m, n, k } = Size { m: 7, n: 9, k: 37 };
    let ways = available().flat_map(|isa| COMPUTES.map(|compute| (isa, compute)));
    for (isa, compute) in ways {
        for dtype in DTYPES {
            for place in 0..k {
                for (special, in_x) in [
                    (f32::NAN, true),
                    (f32::INFINITY, true),
                    (f32::NAN, false),
                    (f32::INFINITY, false),
                ] {
                    let (mut x, mut weight) = (vec![1.0; m * k], vec![1.0; n * k]);
                    if in_x {
                        x[3 * k + place] = special
                    } else {
                        weight[5 * k + place] = special
                    }
                    let mut y = vec![0.0; m * n];
                    let stored = Stored::new(dtype, &weight);
                    linear_into(isa, compute, &x, stored.weight(), Size { m, n, k }, &mut y);
                    for (index, &y) in y.iter().enumerate() {
                        let hit = if in_x { index / n == 3 } else { index % n == 5 };
                        let want = if hit { special } else { k as f32 };
                        assert!(
                            y == want || y.is_nan() && want.is_nan(),
                            "{isa:?} {compute:?} {dtype:?} {place} {index}: {y}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn empty_sides_give_empty_or_zero_results() {
    let weight = Stored::new(Dtype::Bf16, &[]);
    linear_into(
        Isa::detected(),
        ActivationDtype::F32,
        &[],
        weight.weight(),
        Size { m: 0, n: 0, k: 5 },
        &mut [],
    );
    let mut y = [f32::NAN; 6];
    linear_into(
        Isa::detected(),
        ActivationDtype::F32,
        &[],
        weight.weight(),
        Size { m: 2, n: 3, k: 0 },
        &mut y,
    );
    assert_eq!(y, [0.0; 6]);
}

#[test]
#[should_panic(expected = "weight must hold n * k elements")]
fn a_weight_of_another_size_is_refused() {
    let weight = Stored::new(Dtype::Bf16, &[1.0; 5]);
    linear_into(
        Isa::detected(),
        ActivationDtype::F32,
        &[1.0; 3],
        weight.weight(),
        Size { m: 1, n: 2, k: 3 },
        &mut [0.0; 2],
    );
}

#[test]
#[should_panic(expected = "x must hold m * k elements")]
fn sizes_that_overflow_are_refused() {
    let weight = Stored::new(Dtype::Bf16, &[]);
    linear_into(
        Isa::detected(),
        ActivationDtype::F32,
        &[],
        weight.weight(),
        Size { m: 1 << 33, n: 0, k: 1 << 33 },
        &mut [],
    );
}
