//! Rounding that makes up for its errors, as GPTQ does (Frantar et al. 2023).

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use outsize_kernels::IntegerRounding;
use rayon::prelude::*;

/// Columns whose errors are made up for together in those before them, about.
const TOGETHER: usize = 128;

/// Weights that are rounded at a time, at most.
const VALUES: usize = 1 << 20;

/// How errors of a column are made up for in those before it: see [`Gram::feedback`](super::gram::Gram::feedback).
#[derive(Debug)]
pub(super) struct Feedback {
    columns: usize,
    /// Column after column, of which what is below the diagonal counts.
    factor: Vec<f32>,
}

/// Rows on their way to integers, row after row.
struct Rounded {
    /// What each value has lost.
    errors: Vec<f32>,
    integers: Vec<f32>,
    scales: Vec<f32>,
}

impl Feedback {
    pub fn new(columns: usize, factor: Vec<f32>) -> Self {
        Self { columns, factor }
    }

    /// The bytes of the integers that rows of weights become, and of their scales.
    pub fn round(&self, rounding: IntegerRounding, weights: &[f32]) -> [Vec<u8>; 2] {
        let n = self.columns;
        let some = (VALUES / n).max(1) * n;
        let stored = weights.chunks(some).map(|weights| {
            let Rounded { integers, scales, .. } = self.rounded(rounding, weights);
            rounding.stored(&integers, &scales, n)
        });
        stored
            .reduce(|[mut data, mut scales], [more, more_scales]| {
                data.extend(more);
                scales.extend(more_scales);
                [data, scales]
            })
            .unwrap_or_default()
    }

    fn rounded(&self, rounding: IntegerRounding, weights: &[f32]) -> Rounded {
        let (n, group) = (self.columns, rounding.group());
        let (rows, groups) = (weights.len() / n, n.div_ceil(group));
        let mut rounded = Rounded {
            errors: vec![0.0; rows * n],
            integers: vec![0.0; rows * n],
            scales: vec![0.0; rows * groups],
        };
        // Groups are not cut; one scale of a whole row is that of its weights as they are.
        let together = match group < n {
            true => group * (TOGETHER / group).max(1),
            false => {
                let scales = rounded.scales.iter_mut().zip(weights.chunks_exact(n));
                scales.for_each(|(scale, row)| *scale = rounding.scale(row));
                TOGETHER
            }
        };
        for start in (0..n).step_by(together).rev() {
            let end = n.min(start + together);
            let mut targets = self.targets(weights, &rounded.errors, start, end);
            let before = self.before(start, end);
            let rows = targets.par_chunks_mut(end - start).zip(weights.par_chunks(n));
            let parts = (rounded.errors.par_chunks_mut(n))
                .zip(rounded.integers.par_chunks_mut(n))
                .zip(rounded.scales.par_chunks_mut(groups));
            rows.zip(parts).for_each(|((targets, weights), ((errors, integers), scales))| {
                for at in (0..end - start).rev() {
                    let column = start + at;
                    let of_group = column / group;
                    let is_last = column + 1 == n || (column + 1).is_multiple_of(group);
                    if is_last && group < n {
                        scales[of_group] = rounding.scale(&targets[of_group * group - start..=at]);
                    }
                    let scale = scales[of_group];
                    let integer = rounding.integer(targets[at], scale);
                    let error = weights[column] - integer * scale;
                    (integers[column], errors[column]) = (integer, error);
                    let (targets, factors) = (&mut targets[..at], &before[at * (end - start)..]);
                    for (target, factor) in targets.iter_mut().zip(factors) {
                        *target += error * factor;
                    }
                }
            });
        }
        rounded
    }

    /// Some columns of weights, with what makes up for the errors of those behind them.
    fn targets(&self, weights: &[f32], errors: &[f32], start: usize, end: usize) -> Vec<f32> {
        let (n, width) = (self.columns, end - start);
        let rows = weights.len() / n;
        let some = weights.chunks_exact(n).flat_map(|row| &row[start..end]);
        let mut targets: Vec<f32> = some.copied().collect();
        let errors = MatRef::from_row_major_slice(errors, rows, n);
        let factor = MatRef::from_column_major_slice(&self.factor, n, n);
        matmul(
            MatMut::from_row_major_slice_mut(&mut targets, rows, width),
            Accum::Add,
            errors.submatrix(0, end, rows, n - end),
            factor.submatrix(end, start, n - end, width),
            1.0,
            Par::rayon(0),
        );
        targets
    }

    /// The factors among some columns, row after row.
    fn before(&self, start: usize, end: usize) -> Vec<f32> {
        let row = |at| (start..end).map(move |column| self.factor[column * self.columns + at]);
        (start..end).flat_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::gram::Gram;
    use super::*;
    use outsize_checkpoint::{IntegerWidth, StorageFormat};
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    fn values(seed: u64, count: usize) -> Vec<f32> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        (0..count).map(|_| (random.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// Rows whose columns have much in common.
    fn inputs(rows: usize, columns: usize) -> Vec<f32> {
        let (common, own) = (values(1, rows), values(2, rows * columns));
        let row =
            |at: usize| own[at] * 0.5 + common[at / columns] * (1.0 + (at % columns % 3) as f32);
        (0..rows * columns).map(row).collect()
    }

    fn rounding(width: IntegerWidth, group: usize) -> IntegerRounding {
        IntegerRounding::of(StorageFormat::packed_integers(width, group, false)).unwrap()
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
}
