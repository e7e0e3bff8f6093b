//! What rows of activations say about the columns of a weight.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{cholesky_in_place, cholesky_in_place_scratch};
use faer::linalg::matmul::triangular::{BlockStructure, matmul};
use faer::{Accum, MatMut, MatRef, Par};

use super::feedback::Feedback;

/// The part of the mean of the diagonal that is added to it, so that what was never seen does not count for nothing.
const DAMPING: f32 = 0.01;

/// Sums of products of any two columns of rows `X`: the lower triangle of `Xᵀ · X`, column after column.
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
        let rows = MatRef::from_row_major_slice(rows, rows.len() / n.max(1), n);
        let sums = MatMut::from_column_major_slice_mut(&mut self.sums, n, n);
        matmul(
            sums,
            BlockStructure::TriangularLower,
            Accum::Add,
            rows.transpose(),
            BlockStructure::Rectangular,
            rows,
            BlockStructure::Rectangular,
            1.0,
            Par::rayon(0),
        );
    }

    /// How an error of one column is made up for in those before it, in the same memory; none if all is zero, or is no number.
    ///
    /// With `H = (I + L) · D · (I + L)ᵀ`, `L` below the diagonal, the sum of squares that a row of weights loses over all rows of
    /// `X` is that of `D`'s numbers times the squares of what remains in each column, if column `j` is rounded from its value and
    /// the errors of the columns behind it times column `j` of `L`.
    pub fn feedback(self) -> Option<Feedback> {
        let Self { columns: n, sums: mut factor } = self;
        let diagonal: f64 = (0..n).map(|at| f64::from(factor[at * n + at])).sum();
        let damping = DAMPING * (diagonal / n.max(1) as f64) as f32;
        if !damping.is_finite() || damping <= 0.0 {
            return None;
        }
        (0..n).for_each(|at| factor[at * n + at] += damping);
        let par = Par::rayon(0);
        let scratch = cholesky_in_place_scratch::<f32>(n, par, Default::default());
        let mut scratch = MemBuffer::new(scratch);
        let matrix = MatMut::from_column_major_slice_mut(&mut factor, n, n);
        let stack = MemStack::new(&mut scratch);
        cholesky_in_place(matrix, Default::default(), par, stack, Default::default()).ok()?;
        for (at, column) in factor.chunks_exact_mut(n).enumerate() {
            let by = column[at].recip();
            column[at..].iter_mut().for_each(|value| *value *= by);
        }
        Some(Feedback::new(n, factor))
    }
}
