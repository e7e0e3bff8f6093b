//! Rounding that makes up for its errors, as GPTQ does (Frantar et al. 2023).

use outsize_kernels::IntegerRounding;
use rayon::prelude::*;

use super::cholesky::products;

/// Columns whose errors are made up for together in those before them, about.
const TOGETHER: usize = 128;

/// Weights that are rounded at a time, at most.
const VALUES: usize = 1 << 20;

/// How errors of a column are made up for in those before it: see
/// [`Gram::feedback`](super::gram::Gram::feedback).
#[derive(Debug)]
pub(super) struct Feedback {
    columns: usize,
    /// Row after row, of which what is below the diagonal counts.
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
        let part = |values: &[f32], first: usize, last: usize| -> Vec<f32> {
            values.chunks_exact(n).flat_map(|row| &row[first..last]).copied().collect()
        };
        let behind = &self.factor[end * n..];
        let factors =
            (start..end).flat_map(|column| behind.chunks_exact(n).map(move |row| row[column]));
        let factors: Vec<f32> = factors.collect();
        let more = products(&part(errors, end, n), &factors, [rows, width, n - end]);
        let mut targets = part(weights, start, end);
        targets.iter_mut().zip(more).for_each(|(target, more)| *target += more);
        targets
    }

    /// The factors among some columns, row after row.
    fn before(&self, start: usize, end: usize) -> Vec<f32> {
        let rows = self.factor[start * self.columns..end * self.columns].chunks_exact(self.columns);
        rows.flat_map(|row| &row[start..end]).copied().collect()
    }
}

#[cfg(test)]
mod tests;
