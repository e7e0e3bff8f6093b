//! What rows of activations say about the columns of a weight.

use outsize_kernels::matmul::{Size, weight_gradient_into};
use outsize_kernels::{ActivationDtype, Isa};

use super::cholesky::cholesky;
use super::feedback::Feedback;

/// The part of the mean of the diagonal that is added to it, so that what was never seen does not
/// count for nothing.
const DAMPING: f32 = 0.01;

/// Columns whose products with those before them are summed up together.
const TOGETHER: usize = 512;

/// Sums of products of any two columns of rows `X`: `Xᵀ · X`, row after row, of which what is above
/// the diagonal does not count.
#[derive(Debug)]
pub(super) struct Gram {
    columns: usize,
    sums: Vec<f32>,
}

impl Gram {
    pub fn new(columns: usize) -> Self {
        Self { columns, sums: vec![0.0; columns * columns] }
    }

    /// Bytes that one of so many columns takes.
    pub fn bytes(columns: usize) -> u64 {
        (columns as u64).saturating_mul(columns as u64).saturating_mul(4)
    }

    pub fn add(&mut self, rows: &[f32]) {
        let n = self.columns;
        let part = |columns: std::ops::Range<usize>| -> Vec<f32> {
            let rows = rows.chunks_exact(n);
            rows.flat_map(|row| &row[columns.clone()]).copied().collect()
        };
        for start in (0..n).step_by(TOGETHER) {
            let end = n.min(start + TOGETHER);
            let mut more = vec![0.0; (end - start) * end];
            let size = Size { m: rows.len() / n, n: end - start, k: end };
            let (isa, compute) = (Isa::detected(), ActivationDtype::F32);
            weight_gradient_into(isa, compute, &part(start..end), &part(0..end), size, &mut more);
            let sums = self.sums[start * n..end * n].chunks_exact_mut(n);
            for (sums, more) in sums.zip(more.chunks_exact(end)) {
                sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            }
        }
    }

    /// How an error of one column is made up for in those before it, in the same memory; none if
    /// all is zero, or is no number.
    ///
    /// With `H = (I + L) · D · (I + L)ᵀ`, `L` below the diagonal, the sum of squares that a row of
    /// weights loses over all rows of `X` is that of `D`'s numbers times the squares of what
    /// remains in each column, if column `j` is rounded from its value and the errors of the
    /// columns behind it times column `j` of `L`.
    pub fn feedback(self) -> Option<Feedback> {
        let Self { columns: n, sums: mut factor } = self;
        let diagonal: f64 = (0..n).map(|at| f64::from(factor[at * n + at])).sum();
        let damping = DAMPING * (diagonal / n.max(1) as f64) as f32;
        if !damping.is_finite() || damping <= 0.0 {
            return None;
        }
        (0..n).for_each(|at| factor[at * n + at] += damping);
        cholesky(&mut factor, n)?;
        let pivots: Vec<f32> = (0..n).map(|at| factor[at * n + at].recip()).collect();
        for row in factor.chunks_exact_mut(n) {
            row.iter_mut().zip(&pivots).for_each(|(value, by)| *value *= by);
        }
        Some(Feedback::new(n, factor))
    }
}
