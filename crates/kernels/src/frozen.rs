//! Matmuls with weights that do not learn and are fetched anew whenever they are needed, so that a
//! backward pass holds none of them meanwhile.

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
use burn::tensor::{DType, Tensor};

use crate::buffer;
use crate::extension::{StoredWeightOps, contiguous, stored_linear_tiles};
use crate::{ActivationDtype, WeightTensor};

/// A weight matrix that does not learn, and is fetched for each pass over it.
pub trait FrozenWeight: Debug + Send + Sync {
    /// Rows and columns, as it is stored.
    fn dims(&self) -> [usize; 2];

    /// Its rows, tile after tile, each with which rows these are. One is held at a time.
    fn tiles(&self) -> Box<dyn Iterator<Item = (Range<usize>, WeightTensor)> + '_>;
}

/// A frozen weight as an operand.
#[derive(Debug, Clone)]
pub struct FrozenOperand {
    /// The weight.
    pub weight: Arc<dyn FrozenWeight>,
    /// Whether it is stored `[in, out]`, as GPT-2's `Conv1D` stores it, instead of `[out, in]`.
    pub in_out: bool,
}

/// `x · Wᵀ`, or `x · W` of a weight stored `[in, out]`: `x [.., in]` f32 to `[.., out]` f32, on Flex
/// or autodiff around it. The gradient of `x` fetches the weight once more.
///
/// Neither depends on how the weight is cut into tiles, by a bit.
///
/// # Panics
///
/// If the last dimension of `x` is not `in`, if it is not f32, or if the tiles are not all rows of
/// the weight in order.
pub fn frozen_linear<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    weight: FrozenOperand,
) -> Tensor<D> {
    assert_eq!(x.dtype(), DType::F32, "linear: x must be f32");
    Tensor::from_dispatch(Dispatch::frozen_linear(x.into_dispatch(), weight, compute))
}

/// Products with frozen weights, over a backend's own tensors.
#[backend_extension(Flex, Autodiff)]
pub trait FrozenOps: Backend {
    /// The product that [`frozen_linear`] gives.
    ///
    /// # Panics
    ///
    /// As there.
    fn frozen_linear(
        x: FloatTensor<Self>,
        weight: FrozenOperand,
        compute: ActivationDtype,
    ) -> FloatTensor<Self>;
}

impl FrozenOps for Flex {
    fn frozen_linear(x: FlexTensor, weight: FrozenOperand, compute: ActivationDtype) -> FlexTensor {
        weight.product(x, compute)
    }
}

impl<C: CheckpointStrategy> FrozenOps for Autodiff<Flex, C> {
    fn frozen_linear(
        x: FloatTensor<Self>,
        weight: FrozenOperand,
        compute: ActivationDtype,
    ) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        match FetchedLinear.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let y = weight.product(x, compute);
                prep.finish(weight, y)
            }
            OpsKind::UnTracked(prep) => prep.finish(weight.product(x, compute)),
        }
    }
}

/// A product whose backward pass fetches the weight once more.
#[derive(Debug)]
struct FetchedLinear;

impl Backward<Flex, 1> for FetchedLinear {
    type State = FrozenOperand;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let dy = grads.consume::<Flex>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<Flex>(node.id, ops.state.input_gradient(dy));
        }
    }
}

impl FrozenOperand {
    /// The product on Flex.
    pub(crate) fn product(&self, x: FlexTensor, compute: ActivationDtype) -> FlexTensor {
        match self.in_out {
            false => self.rows_product(x, compute),
            true => self.columns_product(x, compute),
        }
    }

    /// The gradient of `x`, given that of the product.
    pub(crate) fn input_gradient(&self, dy: FlexTensor) -> FlexTensor {
        match self.in_out {
            // In f32 even if activations were rounded: it is no slower.
            false => self.columns_product(dy, ActivationDtype::F32),
            true => self.rows_product(dy, ActivationDtype::F32),
        }
    }

    /// `x · Wᵀ` of the weight as it is stored.
    fn rows_product(&self, x: FlexTensor, compute: ActivationDtype) -> FlexTensor {
        let [rows, _] = self.weight.dims();
        let tiles = self.weight.tiles().map(|(rows, tile)| (rows, tile.into_flex()));
        stored_linear_tiles(compute, x, rows, tiles)
    }

    /// `x · W` of the weight as it is stored.
    fn columns_product(&self, x: FlexTensor, compute: ActivationDtype) -> FlexTensor {
        let [k, n] = self.weight.dims();
        let mut shape = x.shape();
        shape.as_mut_slice().last_mut().into_iter().for_each(|last| *last = n);
        let x = contiguous(x);
        let zeros = buffer::zeroed(shape.num_elements());
        let (mut y, mut next) = (FlexTensor::from_data(buffer::data(zeros, shape)), 0);
        for (rows, tile) in self.weight.tiles() {
            assert_eq!(
                (tile.dims(), rows.start),
                ([rows.len(), n], next),
                "linear: tiles must be rows of a weight [{k}, {n}], one after the other"
            );
            next = rows.end;
            let tile = tile.into_flex();
            y = Flex::add_stored_linear_in_out(y, x.clone(), tile, rows.start, compute);
        }
        assert_eq!(next, k, "linear: tiles must be all of a weight of {k} rows");
        y
    }
}
