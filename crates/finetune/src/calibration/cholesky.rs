//! The Cholesky factor of a large matrix, in its own memory.

use outsize_kernels::matmul::{Size, linear_into};
use outsize_kernels::{ActivationDtype, Isa, Weight};
use rayon::prelude::*;

/// Rows and columns that are worked on together.
const BLOCK: usize = 256;

/// Replaces the lower triangle of a symmetric matrix `[n, n]` by `L` with `L · Lᵀ` equal to it;
/// none if it is not positive definite. What is above the diagonal is not looked at.
pub(super) fn cholesky(matrix: &mut [f32], n: usize) -> Option<()> {
    for start in (0..n).step_by(BLOCK) {
        let end = n.min(start + BLOCK);
        let width = end - start;
        // What the columns before these take from the rows of the block, and of all rows below.
        let left = block(matrix, n, start..end, 0..start);
        for first in (start..n).step_by(BLOCK) {
            let last = n.min(first + BLOCK);
            let rows = block(matrix, n, first..last, 0..start);
            let sums = products(&rows, &left, [last - first, width, start]);
            let of_rows = matrix[first * n..last * n].chunks_exact_mut(n);
            for (row, sums) in of_rows.zip(sums.chunks_exact(width)) {
                row[start..end].iter_mut().zip(sums).for_each(|(value, sum)| *value -= sum);
            }
        }
        let (above, below) = matrix.split_at_mut(end * n);
        let triangle = &mut above[start * n..];
        // Of the block's factor the transpose: what comes of a value is taken from all behind it at
        // once.
        let mut columns = vec![0.0; width * width];
        for row in 0..width {
            let values = &mut triangle[row * n + start..][..=row];
            let (pivot, values) = values.split_last_mut()?;
            solve(values, &columns, width);
            *pivot -= values.iter().map(|value| value * value).sum::<f32>();
            if pivot.is_nan() || *pivot <= 0.0 || pivot.is_infinite() {
                return None;
            }
            *pivot = pivot.sqrt();
            for (at, value) in triangle[row * n + start..][..=row].iter().enumerate() {
                columns[at * width + row] = *value;
            }
        }
        below.par_chunks_exact_mut(n).for_each(|row| solve(&mut row[start..end], &columns, width));
    }
    Some(())
}

/// Divides a row by an upper triangle with rows of `width`, or by its beginning.
fn solve(values: &mut [f32], triangle: &[f32], width: usize) {
    for at in 0..values.len() {
        let (before, behind) = values.split_at_mut(at + 1);
        let row = &triangle[at * width + at..];
        before[at] /= row[0];
        behind.iter_mut().zip(&row[1..]).for_each(|(value, factor)| *value -= before[at] * factor);
    }
}

/// A part of a matrix with rows of `n`, without gaps.
fn block(
    matrix: &[f32],
    n: usize,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
) -> Vec<f32> {
    let rows = matrix[rows.start * n..rows.end * n].chunks_exact(n);
    rows.flat_map(|row| &row[columns.clone()]).copied().collect()
}

/// `x · Wᵀ` of `x [m, k]` and `W [n, k]`.
pub(super) fn products(x: &[f32], weight: &[f32], [m, n, k]: [usize; 3]) -> Vec<f32> {
    let mut y = vec![0.0; m * n];
    if k > 0 {
        let size = Size { m, n, k };
        let (isa, compute) = (Isa::detected(), ActivationDtype::F32);
        linear_into(isa, compute, x, Weight::F32(weight), size, &mut y);
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_square_is_the_matrix() {
        for n in [1, 2, 7, BLOCK, BLOCK + 1, 2 * BLOCK + 100] {
            let value = |row: usize, column: usize| {
                let near = ((row * 37 + column * 37) % 101) as f32 / 101.0 - 0.5;
                if row == column { 0.75 * n as f32 + 1.0 } else { near }
            };
            let at = |at: usize| (at / n, at % n);
            let matrix: Vec<f32> =
                (0..n * n).map(at).map(|(row, column)| value(row, column)).collect();
            let mut factor = matrix.clone();
            cholesky(&mut factor, n).unwrap();
            for (row, column) in
                (0..n * n).step_by(n / 9 + 1).map(at).filter(|(row, column)| column <= row)
            {
                let [one, other] = [row, column].map(|row| &factor[row * n..][..=column]);
                let sum: f64 =
                    one.iter().zip(other).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let wanted = f64::from(matrix[row * n + column]);
                assert!(
                    (sum - wanted).abs() < 1e-5 * n as f64,
                    "{n} {row} {column}: {sum} {wanted}"
                );
            }
        }
    }

    #[test]
    fn others_have_none() {
        assert!(cholesky(&mut [1.0, 0.0, 2.0, 1.0], 2).is_none());
        assert!(cholesky(&mut [f32::NAN], 1).is_none());
        assert!(cholesky(&mut [0.0], 1).is_none());
        assert!(cholesky(&mut [], 0).is_some());
    }
}
