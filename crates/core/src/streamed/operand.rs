//! Streamed weights in a backward pass, and their own gradients.

use super::Streamed;
use crate::{Access, Error};
use burn::tensor::{DType, Tensor, TensorData};
use outsize_kernels::{
    FetchedOperand, FetchedValue, FetchedValues, FetchedWeight, GradientRows, WeightTiles,
};
use std::ops::Range;
use std::sync::Arc;

impl Streamed {
    /// The matrix as an operand of products that gradients flow through: it is fetched for each, so
    /// that none is held from one to the next. Shaped `[in, out]` if `in_out`.
    pub fn operand(&self, in_out: bool) -> FetchedOperand {
        FetchedOperand { weight: Arc::new(self.clone()), in_out }
    }

    /// The same of some rows of a matrix that is fetched as a whole.
    pub fn operand_rows(&self, rows: Range<usize>, in_out: bool) -> FetchedOperand {
        FetchedOperand { weight: Arc::new(MatrixRows { matrix: self.clone(), rows }), in_out }
    }

    /// The value, of a pass that is recorded: a leaf of the graph, which holds it until the
    /// backward pass ends.
    pub(super) fn leaf<const D: usize>(&self) -> Tensor<D> {
        self.check_is_float();
        let leaf = leaf(self.value_beside_ring());
        let (of_leaf, parameter) = (leaf.clone(), self.clone());
        self.inner.tape.add_leaf(Box::new(move |found| {
            if let Some(gradient) = of_leaf.grad_remove(found) {
                parameter.add_value_gradient(gradient);
            }
        }));
        leaf
    }

    /// The same for Burn's own operations, fetched anew for the backward pass.
    pub(super) fn refetched<const D: usize>(&self, values: &FetchedValues) -> Tensor<D> {
        self.check_is_float();
        values.value(self.clone())
    }

    /// The value, and if it streams a copy of it, so that the ring is free whoever holds that.
    fn value_beside_ring<const D: usize>(&self) -> Tensor<D> {
        // Of a value that is held elsewhere too, Burn makes another.
        let copied = |value: Tensor<D>| value.clone() * 1.0;
        self.used_value(self.inner.or_raise(self.inner.value_of(copied)))
    }

    /// Adds the gradient of the value as `Param::val()` gives it.
    fn add_value_gradient<const D: usize>(&self, gradient: Tensor<D>) {
        let gradient = self.inner.saved(gradient);
        let stored = if self.inner.transposed { gradient.swap_dims(0, 1) } else { gradient };
        let stored = values(stored);
        self.add_gradient(0, floats(&stored));
    }

    /// [Rows](Self::rows) that were looked up, as the pass may use them: a leaf, if it is recorded.
    pub fn learning_rows(&self, ids: &[usize], rows: Tensor<2>) -> Tensor<2> {
        let tape = &self.inner.tape;
        if !tape.is_recording() {
            return rows;
        }
        self.check_learns();
        let leaf = leaf(rows);
        let (of_leaf, parameter, ids) = (leaf.clone(), self.clone(), ids.to_vec());
        tape.add_leaf(Box::new(move |found| {
            if let Some(gradient) = of_leaf.grad_remove(found) {
                parameter.add_row_gradients(&ids, gradient);
            }
        }));
        leaf
    }

    /// Adds to the gradient of the values from `start` on, if the pass is recorded.
    ///
    /// # Unwinds
    /// To [`Dispatched::run_learning`](crate::Dispatched::run_learning) with what the sink said.
    pub fn add_gradient(&self, start: u64, gradient: &[f32]) {
        let inner = &self.inner;
        if let Some(sink) = inner.tape.sink() {
            let added = sink.add(inner.weight.data(), start, gradient);
            let path = || inner.path.to_string();
            inner.or_raise(added.map_err(|source| Error::Gradient { path: path(), source }));
        }
    }

    /// Adds to the gradients of rows, of which some may come several times.
    fn add_row_gradients(&self, ids: &[usize], gradient: Tensor<2>) {
        let [_, width] = gradient.dims();
        let gradient = values(gradient);
        let gradient = floats(&gradient);
        let row = |at: usize| &gradient[at * width..(at + 1) * width];
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_by_key(|at| ids[*at]);
        for same in order.chunk_by(|one, other| ids[*one] == ids[*other]) {
            let mut sum = row(same[0]).to_vec();
            for at in &same[1..] {
                sum.iter_mut().zip(row(*at)).for_each(|(sum, more)| *sum += more);
            }
            self.add_gradient((ids[same[0]] * width) as u64, &sum);
        }
    }

    /// Refuses weights whose values are not floats as they are stored.
    fn check_is_float(&self) {
        if self.inner.in_blocks {
            self.inner.refuse_use("learns it, and it is stored in blocks");
        }
    }

    /// Refuses weights whose rows are not rows as they are stored.
    fn check_learns(&self) {
        self.check_is_float();
        if self.inner.transposed {
            self.inner.refuse_use("learns rows of it, and it is stored the other way round");
        }
    }
}

/// A value in f32 as a leaf of the graph.
fn leaf<const D: usize>(value: Tensor<D>) -> Tensor<D> {
    value.cast(DType::F32).autodiff().detach().require_grad()
}

/// The values of a gradient, which is in f32 unless an operation has cast it.
fn values<const D: usize>(gradient: Tensor<D>) -> TensorData {
    gradient.cast(DType::F32).into_data()
}

fn floats(values: &TensorData) -> &[f32] {
    values.as_slice().expect("they are in f32, in main memory")
}

impl<const D: usize> FetchedValue<D> for Streamed {
    fn fetch(&self) -> Tensor<D> {
        self.value_beside_ring().cast(DType::F32)
    }

    fn add_gradient(&self, gradient: Tensor<D>) {
        self.add_value_gradient(gradient);
    }
}

impl GradientRows for Streamed {
    fn add(&self, rows: Range<usize>, gradient: &[f32]) {
        let [_, columns] = FetchedWeight::dims(self);
        self.add_gradient((rows.start * columns) as u64, gradient);
    }
}

/// Some rows of a matrix that is fetched as a whole.
#[derive(Debug)]
struct MatrixRows {
    matrix: Streamed,
    rows: Range<usize>,
}

impl FetchedWeight for MatrixRows {
    fn dims(&self) -> [usize; 2] {
        [self.rows.len(), self.matrix.dims()[1]]
    }

    fn tiles(&self) -> WeightTiles<'_> {
        let rows = self.matrix.weight().slice(self.rows.clone());
        Box::new(std::iter::once((0..self.rows.len(), rows)))
    }

    fn learner(&self) -> Option<&dyn GradientRows> {
        self.matrix.learner().map(|_| self as _)
    }
}

impl GradientRows for MatrixRows {
    fn add(&self, rows: Range<usize>, gradient: &[f32]) {
        let first = self.rows.start;
        GradientRows::add(&self.matrix, first + rows.start..first + rows.end, gradient);
    }
}

impl FetchedWeight for Streamed {
    fn dims(&self) -> [usize; 2] {
        let shape = self.shape();
        let rows = self.inner.weight.rows();
        [rows, shape.iter().product::<usize>() / rows.max(1)]
    }

    fn tiles(&self) -> WeightTiles<'_> {
        match self.is_resident() || self.access() != Access::Tiles {
            false => Box::new(self.tiles()),
            true => Box::new(std::iter::once_with(|| {
                let weight = self.weight();
                (0..weight.dims()[0], weight)
            })),
        }
    }

    fn learner(&self) -> Option<&dyn GradientRows> {
        let records = self.inner.tape.is_recording();
        if records {
            self.check_learns();
        }
        records.then_some(self as _)
    }
}
