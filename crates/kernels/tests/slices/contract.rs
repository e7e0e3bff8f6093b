//! The contract: the bits of an output depend on its row of `x`, its row of the weight and the
//! instruction set alone.

use crate::common::{COMPUTES, DTYPES, Dtype, Stored, available, bits, values};
use outsize_kernels::matmul::{Matmul, MatmulActivations, Size, linear_each_into, linear_into};
use outsize_kernels::{ActivationDtype, Isa, Weight};
use proptest::prelude::*;

/// How a matmul is computed.
type Way = (Isa, ActivationDtype);

/// What to test a way with: AMX takes bf16 only, all else is left to AVX-512.
fn dtypes((isa, _): Way) -> &'static [Dtype] {
    match isa {
        Isa::AmxBf16 => &DTYPES[..1],
        _ => &DTYPES,
    }
}

/// All that this processor can do.
fn ways() -> impl Iterator<Item = Way> {
    available().flat_map(|isa| COMPUTES.map(|compute| (isa, compute)))
}

/// The matmul on a pool of `threads`.
fn matmul(
    (isa, compute): Way,
    x: &[f32],
    weight: Weight<'_>,
    size: Size,
    threads: usize,
) -> Vec<u32> {
    let mut y = vec![0.0; size.m * size.n];
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .expect("threads can be started");
    pool.install(|| linear_into(isa, compute, x, weight, size, &mut y));
    bits(&y)
}

/// Asserts that outputs computed alone have the bits they have in `y`.
fn assert_same_alone(
    (isa, compute): Way,
    x: &[f32],
    weight: Weight<'_>,
    Size { m, n, k }: Size,
    y: &[u32],
) {
    // An emulated instruction takes a microsecond: some outputs must do.
    let every = match isa == Isa::AmxBf16 && crate::common::amx_is_emulated() {
        true => 1 + m * n * k / 20_000,
        false => 1,
    };
    for index in (0..m * n).step_by(every) {
        let (i, j) = (index / n, index % n);
        let mut alone = [0.0];
        linear_into(
            isa,
            compute,
            &x[i * k..][..k],
            weight.slice(j * k, (j + 1) * k),
            Size { m: 1, n: 1, k },
            &mut alone,
        );
        let of = format!("{isa:?} {compute:?} [{m}, {n}, {k}] at {index}");
        assert_eq!(bits(&alone), y[index..index + 1], "{of}");
    }
}

/// Values in which any order of summation shows: of many magnitudes, with zeros of both signs,
/// subnormals and, rarely, others that are not finite.
fn hard_values(count: usize, seed: u64) -> Vec<f32> {
    let mut values = values(count, seed);
    for (index, value) in values.iter_mut().enumerate() {
        match (index as u64).wrapping_mul(seed | 1) % 1009 {
            0 => *value = f32::INFINITY,
            1 => *value = f32::NAN,
            2..20 => *value = -0.0,
            20..40 => *value = 1e-40,
            40..60 => *value *= 1e4,
            _ => {}
        }
    }
    values
}

/// Matmuls of the same activations, of weights of any dtypes and heights, on a pool of `threads`.
fn each(
    (isa, compute): Way,
    x: &[f32],
    [m, k]: [usize; 2],
    weights: &[(usize, Stored)],
    threads: usize,
) -> Vec<Vec<u32>> {
    let mut ys: Vec<Vec<f32>> = weights.iter().map(|(n, _)| vec![f32::NAN; m * n]).collect();
    let mut matmuls: Vec<Matmul> = weights
        .iter()
        .zip(&mut ys)
        .map(|((n, weight), y)| Matmul { weight: weight.weight(), n: *n, y, stride: *n })
        .collect();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .expect("threads can be started");
    pool.install(|| linear_each_into(isa, compute, x, [m, k], &mut matmuls));
    ys.iter().map(|y| bits(y)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A weight that comes some rows at a time has the bits of the whole.
    #[test]
    fn rows_of_a_weight_go_where_they_belong(
        m in 0usize..40, k in 0usize..90, n in 0usize..70, cuts in prop::collection::vec(0usize..70, 0..4),
        threads in 1usize..4, seed in any::<u32>(),
    ) {
        let (x, of_weight) = (values(m * k, seed.into()), values(n * k, u64::from(seed) + 1));
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(n)).chain([0, n]).collect();
        cuts.sort();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for way in ways() {
            for &dtype in dtypes(way) {
                let weight = Stored::new(dtype, &of_weight);
                let whole = matmul(way, &x, weight.weight(), Size { m, n, k }, 1);
                let mut y = vec![f32::NAN; m * n];
                pool.install(|| {
                    let mut activations = MatmulActivations::new(way.0, way.1, &x, [m, k]);
                    for rows in cuts.windows(2) {
                        let some = Stored::new(dtype, &of_weight[rows[0] * k..rows[1] * k]);
                        activations.multiply_rows(some.weight(), rows[0]..rows[1], n, &mut y);
                    }
                });
                prop_assert_eq!(bits(&y), whole, "{:?} {:?}", way, dtype);
            }
        }
    }

    /// Made together, matmuls have the bits that they have one by one.
    #[test]
    fn products_of_the_same_activations_share_nothing_but_time(
        m in 0usize..18, k in 0usize..90, heights in prop::collection::vec((0usize..50, 0usize..3), 0..5),
        threads in 1usize..4, seed in any::<u32>(),
    ) {
        let x = values(m * k, seed.into());
        let weights: Vec<(usize, Stored)> = heights
            .iter()
            .map(|&(n, dtype)| (n, Stored::new(DTYPES[dtype], &values(n * k, seed as u64 + 1 + n as u64))))
            .collect();
        for way in ways() {
            let alone: Vec<Vec<u32>> = weights
                .iter()
                .map(|(n, weight)| matmul(way, &x, weight.weight(), Size { m, n: *n, k }, 1))
                .collect();
            prop_assert_eq!(each(way, &x, [m, k], &weights, threads), alone);
        }
    }
}

/// Large enough that runs of rows begin and end in the middle of weights.
#[test]
fn large_products_of_the_same_activations_share_nothing_but_time() {
    for way in ways().filter(|(isa, _)| *isa != Isa::AmxBf16) {
        for m in [1, 2, 8] {
            let k = 515;
            let x = values(m * k, 5);
            let weights = [700, 3, 0, 260, 901]
                .map(|n| (n, Stored::new(Dtype::Bf16, &values(n * k, 6 + n as u64))));
            let together = each(way, &x, [m, k], &weights, 3);
            for ((n, weight), y) in weights.iter().zip(together) {
                assert_eq!(
                    y,
                    matmul(way, &x, weight.weight(), Size { m, n: *n, k }, 1),
                    "{way:?} {m} {n}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn an_output_alone_has_the_same_bits(
        m in 1usize..=17, n in 1usize..=60, k in 0usize..=200, seed in any::<u32>(),
    ) {
        let size = Size { m, n, k };
        let x = hard_values(m * k, seed.into());
        for way @ (isa, compute) in ways() {
            for &dtype in dtypes(way) {
                let stored = Stored::new(dtype, &hard_values(n * k, u64::from(seed) + 1));
                let mut y = vec![0.0; m * n];
                linear_into(isa, compute, &x, stored.weight(), size, &mut y);
                assert_same_alone(way, &x, stored.weight(), size, &bits(&y));
            }
        }
    }

    #[test]
    fn any_part_has_the_bits_of_the_whole(
        m in 1usize..=20, n in 1usize..=80, k in 1usize..=150, seed in any::<u32>(),
        cuts in prop::array::uniform4(0.0f64..1.0),
    ) {
        let cut = |end: usize, a: f64, b: f64| {
            let (a, b) = ((a * end as f64) as usize, (b * end as f64) as usize);
            a.min(b)..a.max(b) + 1
        };
        let (rows, columns) = (cut(m, cuts[0], cuts[1]), cut(n, cuts[2], cuts[3]));
        let x = hard_values(m * k, seed.into());
        for way @ (isa, compute) in ways() {
            for &dtype in dtypes(way) {
                let stored = Stored::new(dtype, &hard_values(n * k, u64::from(seed) + 1));
                let mut whole = vec![0.0; m * n];
                linear_into(isa, compute, &x, stored.weight(), Size { m, n, k }, &mut whole);
                let part = stored.weight().slice(columns.start * k, columns.end * k);
                let size = Size { m: rows.len(), n: columns.len(), k };
                let mut y = vec![0.0; size.m * size.n];
                linear_into(isa, compute, &x[rows.start * k..rows.end * k], part, size, &mut y);
                let want: Vec<f32> = rows.clone().flat_map(|i| whole[i * n..][columns.clone()].to_vec()).collect();
                prop_assert_eq!(bits(&y), bits(&want), "{:?} {:?}", way, dtype);
            }
        }
    }
}

/// Sizes that are cut into several panels and regions, on pools of several sizes.
#[test]
fn threads_and_panels_change_nothing() {
    let sizes = [
        (1, 2000, 300),
        (2, 700, 1030),
        (7, 400, 1030),
        (8, 401, 1030),
        (15, 301, 515),
        (17, 301, 515),
        (40, 150, 2048),
        (300, 7, 515),
        (5, 60, 9000),
        (14, 60, 9000),
        // Rows that are longer than the first-level cache, and more of them than a shared one.
        (20, 101, 5003),
        (1400, 5, 3100),
    ];
    for (m, n, k) in sizes {
        let size = Size { m, n, k };
        let x = values(m * k, 5);
        for way in ways() {
            for &dtype in dtypes(way) {
                let stored = Stored::new(dtype, &values(n * k, 6));
                let alone = matmul(way, &x, stored.weight(), size, 1);
                assert_same_alone(way, &x, stored.weight(), size, &alone);
                for threads in [2, 3, 7] {
                    let y = matmul(way, &x, stored.weight(), size, threads);
                    assert_eq!(y, alone, "{way:?} {dtype:?} {size:?} on {threads} threads");
                }
            }
        }
    }
}

/// A weight widened beforehand gives the same bits, if activations stay as they are: the dtype it
/// is stored in only saves memory. (With AMX it also chooses the instructions: bf16 is multiplied
/// in tiles.)
#[test]
fn a_widened_weight_has_the_same_bits() {
    for (m, n, k) in [(1, 40, 517), (9, 40, 517)] {
        let x = values(m * k, 5);
        let isas = available().filter(|&isa| isa != Isa::AmxBf16);
        for way in isas.map(|isa| (isa, ActivationDtype::F32)) {
            for dtype in [Dtype::Bf16, Dtype::F16] {
                let stored = Stored::new(dtype, &values(n * k, 6));
                let wide = stored.values();
                let size = Size { m, n, k };
                let y = matmul(way, &x, stored.weight(), size, 1);
                assert_eq!(y, matmul(way, &x, Weight::F32(&wide), size, 1), "{way:?} {dtype:?}");
            }
        }
    }
}
