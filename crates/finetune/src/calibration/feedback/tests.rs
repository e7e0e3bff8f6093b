use super::super::gram::Gram;
use super::*;
use outsize_checkpoint::{Dtype, IntegerWidth, StorageFormat};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::Deserialize;

fn values(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    (0..count).map(|_| (random.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Rows whose columns have much in common.
fn inputs(rows: usize, columns: usize) -> Vec<f32> {
    let (common, own) = (values(1, rows), values(2, rows * columns));
    let row = |at: usize| own[at] * 0.5 + common[at / columns] * (1.0 + (at % columns % 3) as f32);
    (0..rows * columns).map(row).collect()
}

fn rounding(width: IntegerWidth, group: usize) -> IntegerRounding {
    let format = StorageFormat::packed_integers(width, group, false);
    IntegerRounding::of(format.with_scales(Dtype::BF16)).unwrap()
}

/// The squares of what products of all inputs lose.
fn lost(inputs: &[f32], errors: &[f32], columns: usize) -> f64 {
    let product = |x: &[f32], e: &[f32]| -> f64 {
        x.iter().zip(e).map(|(x, e)| f64::from(*x) * f64::from(*e)).sum()
    };
    let rows = errors.chunks_exact(columns);
    let of_row = |e| inputs.chunks_exact(columns).map(|x| product(x, e).powi(2)).sum::<f64>();
    rows.map(of_row).sum()
}

fn rounded(gram: Gram, rounding: IntegerRounding, weights: &[f32]) -> Rounded {
    gram.feedback().unwrap().rounded(rounding, weights)
}

#[test]
fn columns_without_anything_in_common_are_rounded_alone() {
    let (columns, weights) = (70, values(3, 5 * 70));
    let mut gram = Gram::new(columns);
    let mut one = vec![0.0; columns * columns];
    (0..columns).for_each(|at| one[at * columns + at] = 1.0);
    gram.add(&one);
    let rounding = rounding(IntegerWidth::U4, 32);
    let found = gram.feedback().unwrap().round(rounding, &weights);
    assert_eq!(found, rounding.round(&weights, columns));
}

#[test]
fn products_lose_less() {
    for (width, group, columns) in [
        (IntegerWidth::U4, 32, 300),
        (IntegerWidth::U4, 48, 300),
        (IntegerWidth::U4, 200, 300),
        (IntegerWidth::U4, 0, 300),
        (IntegerWidth::U8, 32, 33),
    ] {
        let rounding = rounding(width, group);
        let (inputs, weights) = (inputs(400, columns), values(4, 20 * columns));
        let mut gram = Gram::new(columns);
        inputs.chunks(columns * 150).for_each(|some| gram.add(some));
        let Rounded { errors, integers, scales } = rounded(gram, rounding, &weights);
        let groups = columns.div_ceil(rounding.group());
        let alone: Vec<f32> = (weights.chunks(columns))
            .flat_map(|row| row.chunks(rounding.group()))
            .flat_map(|values| {
                let scale = rounding.scale(values);
                values.iter().map(move |it| it - rounding.integer(*it, scale) * scale)
            })
            .collect();
        let [with, without] = [&errors, &alone].map(|errors| lost(&inputs, errors, columns));
        assert!(with < 0.5 * without, "{width:?} {group} {columns}: {with} of {without}");
        // Errors are those of what is stored.
        for (at, error) in errors.iter().enumerate() {
            let scale = scales[at / columns * groups + at % columns / rounding.group()];
            assert_eq!(*error, weights[at] - integers[at] * scale);
        }
    }
}

#[test]
fn pieces_of_a_weight_are_as_in_the_whole() {
    let columns = 4100;
    let weights = values(5, 300 * columns);
    let mut gram = Gram::new(columns);
    gram.add(&inputs(30, columns));
    let (feedback, rounding) = (gram.feedback().unwrap(), rounding(IntegerWidth::U4, 128));
    let [data, scales] = feedback.round(rounding, &weights);
    let halves = weights.chunks(150 * columns).map(|half| feedback.round(rounding, half));
    let halves: Vec<_> = halves.collect();
    assert_eq!(data, [&halves[0][0][..], &halves[1][0]].concat());
    assert_eq!(scales, [&halves[0][1][..], &halves[1][1]].concat());
}

#[test]
fn nothing_seen_says_nothing() {
    assert!(Gram::new(3).feedback().is_none());
    let mut gram = Gram::new(2);
    gram.add(&[1.0, f32::NAN]);
    assert!(gram.feedback().is_none());
}

/// Weights that GPTQ's own formulas made integers of, by `scripts/fixtures/gptq.py`.
#[derive(Deserialize)]
struct Fixture {
    columns: usize,
    inputs: Vec<f32>,
    weights: Vec<f32>,
    results: Vec<FixtureResult>,
}

#[derive(Deserialize)]
struct FixtureResult {
    group: usize,
    integers: Vec<f32>,
    scales: Vec<f32>,
}

#[test]
fn integers_are_those_of_gptq() {
    let text = include_str!("../../../tests/fixtures/gptq.json");
    let Fixture { columns, inputs, weights, results } = serde_json::from_str(text).unwrap();
    for FixtureResult { group, integers, scales } in results {
        let mut gram = Gram::new(columns);
        gram.add(&inputs);
        let found = rounded(gram, rounding(IntegerWidth::U8, group), &weights);
        // A value in the middle between two integers goes to either, and what comes after it goes
        // with it.
        let apart = |at: &usize| (found.integers[*at] - integers[*at]).abs();
        let others: Vec<f32> =
            (0..integers.len()).map(|at| apart(&at)).filter(|it| *it > 0.0).collect();
        assert!(others.len() * 10 <= integers.len(), "{group}: {others:?}");
        assert!(others.iter().all(|apart| *apart <= 1.0), "{group}: {others:?}");
        let groups = columns.div_ceil(group);
        let error = |at: usize| {
            weights[at] - integers[at] * scales[at / columns * groups + at % columns / group]
        };
        let expected: Vec<f32> = (0..weights.len()).map(error).collect();
        let [found, expected] = [&found.errors, &expected].map(|it| lost(&inputs, it, columns));
        assert!((found / expected - 1.0).abs() < 0.01, "{group}: {found} for {expected}");
    }
}
