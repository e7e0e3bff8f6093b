//! Matmuls with weights that are fetched anew whenever they are needed, so that a backward pass
//! holds none of them meanwhile.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape, Tensor};

use crate::buffer;
use crate::extension::{StoredWeightOps, contiguous, f32_elements, weight_gradient};
use crate::extension::{contiguous_rows, operand};
use crate::linear::into_flex;
#[cfg(target_arch = "x86_64")]
use crate::matmul::{self, PairedRows};
#[cfg(target_arch = "x86_64")]
use crate::tiled_extension::{Tiles, stored_linear_tiles};
use crate::{ActivationDtype, WeightOperand, WeightTensor};
#[cfg(target_arch = "x86_64")]
use crate::{Isa, Weight};

/// Bytes of a weight's gradient that exist at once, about.
pub const GRADIENT_PIECE: u64 = 4 << 20;

/// Rows of a weight, tile after tile, each with which rows these are.
pub type WeightTiles<'a> = Box<dyn Iterator<Item = (Range<usize>, WeightTensor)> + 'a>;

/// A weight matrix that is fetched for each pass over it.
pub trait FetchedWeight: Debug + Send + Sync {
    /// Rows and columns, as it is stored.
    fn dims(&self) -> [usize; 2];

    /// All of its rows. One tile is held at a time.
    fn tiles(&self) -> WeightTiles<'_>;

    /// Who takes its gradient, if it learns. A product asks when it is made.
    fn learner(&self) -> Option<&dyn GradientRows> {
        None
    }
}

/// Takes the gradient of a weight matrix, some rows at a time.
pub trait GradientRows {
    /// Adds to the gradient of these rows, `[rows.len(), columns]` as the weight is stored.
    fn add(&self, rows: Range<usize>, gradient: &[f32]);
}

/// A fetched weight as an operand.
#[derive(Debug, Clone)]
pub struct FetchedOperand {
    /// The weight.
    pub weight: Arc<dyn FetchedWeight>,
    /// Whether it is stored `[in, out]`, as GPT-2's `Conv1D` stores it, instead of `[out, in]`.
    pub in_out: bool,
}

/// `x · Wᵀ`, or `x · W` of a weight stored `[in, out]`: `x [.., in]` f32 to `[.., out]` f32, on
/// Flex or autodiff around it. The gradient of `x` fetches the weight once more; that of a weight
/// that learns, while `x` is tracked, is handed over in pieces.
///
/// Neither depends on how the weight is cut into tiles, by a bit.
///
/// # Panics
///
/// If the last dimension of `x` is not `in`, if it is not f32, or if the tiles are not all rows of
/// the weight in order.
pub fn fetched_linear<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    weight: FetchedOperand,
) -> Tensor<D> {
    assert_eq!(x.dtype(), DType::F32, "linear: x must be f32");
    Tensor::from_dispatch(Dispatch::fetched_linear(x.into_dispatch(), weight, compute))
}

/// Products with fetched weights, over a backend's own tensors.
#[backend_extension(Flex, Autodiff)]
pub trait FetchedOps: Backend {
    /// The product that [`fetched_linear`] gives.
    ///
    /// # Panics
    ///
    /// As there.
    fn fetched_linear(
        x: FloatTensor<Self>,
        weight: FetchedOperand,
        compute: ActivationDtype,
    ) -> FloatTensor<Self>;
}

impl FetchedOps for Flex {
    fn fetched_linear(
        x: FlexTensor,
        weight: FetchedOperand,
        compute: ActivationDtype,
    ) -> FlexTensor {
        weight.product(x, compute)
    }
}

impl<C: CheckpointStrategy> FetchedOps for Autodiff<Flex, C> {
    fn fetched_linear(
        x: FloatTensor<Self>,
        weight: FetchedOperand,
        compute: ActivationDtype,
    ) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        match FetchedLinear.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let learns = weight.weight.learner().is_some();
                let kept = learns.then(|| x.clone());
                let y = weight.product(x, compute);
                prep.finish((weight, kept, compute), y)
            }
            OpsKind::UnTracked(prep) => prep.finish(weight.product(x, compute)),
        }
    }
}

/// A product whose backward pass fetches the weight once more.
#[derive(Debug)]
struct FetchedLinear;

impl Backward<Flex, 1> for FetchedLinear {
    /// The weight; what it was multiplied with, if it learns.
    type State = (FetchedOperand, Option<FlexTensor>, ActivationDtype);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let dy = grads.consume::<Flex>(&ops.node);
        let (weight, x, compute) = ops.state;
        if let Some(x) = x {
            weight.add_gradient(x, dy.clone());
        }
        if let [Some(node)] = ops.parents {
            grads.register::<Flex>(node.id, weight.input_gradient(dy, compute));
        }
    }
}

impl FetchedOperand {
    /// The product on Flex.
    pub(crate) fn product(&self, x: FlexTensor, compute: ActivationDtype) -> FlexTensor {
        match self.in_out {
            false => self.rows_product(x, compute),
            true => self.columns_product(x, compute),
        }
    }

    /// The gradient of `x`, given that of the product.
    pub(crate) fn input_gradient(&self, dy: FlexTensor, compute: ActivationDtype) -> FlexTensor {
        match self.in_out {
            false => self.columns_gradient(dy, compute),
            true => self.rows_product(dy, compute),
        }
    }

    /// Hands over the weight's gradient, given that of the product: some rows at a time, as many
    /// for every cut into tiles.
    fn add_gradient(&self, x: FlexTensor, dy: FlexTensor) {
        let Some(learner) = self.weight.learner() else { return };
        // What rows are of, and what columns are of.
        let (of_rows, of_columns) = if self.in_out { (x, dy) } else { (dy, x) };
        add_gradient(learner, 0, &matrix(of_rows), matrix(of_columns));
    }

    /// `x · Wᵀ` of the weight as it is stored.
    fn rows_product(&self, x: FlexTensor, compute: ActivationDtype) -> FlexTensor {
        let [rows, _] = self.weight.dims();
        let [y] = stored_linear_tiles(compute, x, [(rows, self.tiles())]);
        y
    }

    /// `x · W` of the weight as it is stored.
    fn columns_product(&self, x: FlexTensor, compute: ActivationDtype) -> FlexTensor {
        add_tiles(contiguous(x), self.weight.dims(), self.tiles(), compute)
    }

    /// The same of gradients: with a bf16 weight in products of pairs, where activations are
    /// rounded and the processor has such; else in f32, which is as fast.
    fn columns_gradient(&self, dy: FlexTensor, compute: ActivationDtype) -> FlexTensor {
        let (dy, tiles) = (contiguous(dy), self.tiles());
        #[cfg(target_arch = "x86_64")]
        let mut tiles = tiles.peekable();
        #[cfg(target_arch = "x86_64")]
        if PairedRows::are_for(Isa::detected(), compute)
            && tiles.peek().is_some_and(|(_, tile)| is_bf16(tile))
        {
            let [k, n] = self.weight.dims();
            let mut y = zeros(&dy, n);
            let mut sum = PairedRows::new(f32_elements(&dy, "linear: dy"), k, y.storage_mut(), n);
            for (_, tile) in tiles {
                match operand(&contiguous_rows(tile), "linear: tile") {
                    Weight::Bf16(rows) => sum.add(rows),
                    packed => matmul::for_each_unpacked(packed, |rows| sum.add(rows)),
                }
            }
            sum.finish();
            return y;
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = compute;
        add_tiles(dy, self.weight.dims(), tiles, ActivationDtype::F32)
    }

    /// The weight's rows, tile after tile.
    fn tiles(&self) -> impl Tiles + '_ {
        into_flex(self.weight.tiles())
    }
}

/// Whether rows of a weight are bf16, as they are or packed.
#[cfg(target_arch = "x86_64")]
fn is_bf16(tile: &WeightOperand<Flex>) -> bool {
    match tile {
        WeightOperand::Float(tile) => tile.dtype() == DType::BF16,
        WeightOperand::Blocks(tile) => tile.view().packed_bf16().is_some(),
    }
}

/// Hands over `of_rowsᵀ · of_columns`, the gradient of a weight's rows from `first` on, some rows
/// at a time.
pub(crate) fn add_gradient(
    learner: &dyn GradientRows,
    first: usize,
    of_rows: &FlexTensor,
    of_columns: FlexTensor,
) {
    let [rows, columns] = [of_rows, &of_columns].map(|matrix| matrix.shape()[1]);
    let piece = (GRADIENT_PIECE as usize / (4 * columns.max(1))).max(1);
    for start in (0..rows).step_by(piece) {
        let count = piece.min(rows - start);
        let some = contiguous(of_rows.narrow(1, start, count));
        let gradient = weight_gradient(&some, of_columns.clone(), ActivationDtype::F32);
        let rows = first + start..first + start + count;
        learner.add(rows, f32_elements(&gradient, "linear: gradient"));
    }
}

/// A tensor's rows, whatever they are divided into.
fn matrix(x: FlexTensor) -> FlexTensor {
    let x = contiguous(x);
    let shape = x.shape();
    let columns = shape.as_slice().last().copied().unwrap_or(1);
    let rows = shape.num_elements() / columns.max(1);
    x.reshape(Shape::from([rows, columns]))
}

/// `x · W` of a weight `[k, n]` that comes in tiles of rows.
fn add_tiles(
    x: FlexTensor,
    [k, n]: [usize; 2],
    tiles: impl Iterator<Item = (Range<usize>, WeightOperand<Flex>)>,
    compute: ActivationDtype,
) -> FlexTensor {
    let (mut y, mut next) = (zeros(&x, n), 0);
    for (rows, tile) in tiles {
        assert_eq!(rows.start, next, "linear: tiles must be rows of a weight, one after the other");
        next = rows.end;
        y = Flex::add_stored_linear_in_out(y, x.clone(), tile, rows.start, compute);
    }
    assert_eq!(next, k, "linear: tiles must be all of a weight of {k} rows");
    y
}

/// Zeros of as many rows as `x` has, of `n` columns.
fn zeros(x: &FlexTensor, n: usize) -> FlexTensor {
    let mut shape = x.shape();
    shape.as_mut_slice().last_mut().into_iter().for_each(|last| *last = n);
    FlexTensor::from_data(buffer::data(buffer::zeroed(shape.num_elements()), shape))
}
