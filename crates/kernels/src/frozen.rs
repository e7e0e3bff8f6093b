//! Matmuls with weights that do not learn and are fetched anew whenever they are needed, so that a
//! backward pass holds none of them meanwhile.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use burn::backend::Dispatch;
use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor};

use crate::buffer;
use crate::extension::{
    StoredWeightOps, contiguous, contiguous_rows, f32_elements, matrix, operand,
    stored_linear_tiles,
};
use crate::matmul::{InOutMatmul, add_linear_in_out_into};
use crate::{ActivationDtype, Isa, WeightTensor};

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
        let x = contiguous(x);
        let mut shape = x.shape();
        let elements = f32_elements(&x, "linear: x");
        let mut y = buffer::zeroed(elements.len() / k.max(1) * n);
        let mut next = 0;
        for (rows, tile) in self.weight.tiles() {
            let tile = contiguous_rows(tile.into_flex());
            assert_eq!(
                ([rows.len(), n], rows.start),
                (matrix(&tile, "linear: tile"), next),
                "linear: tiles must be rows of a weight [{k}, {n}], one after the other"
            );
            next = rows.end;
            let weight = operand(&tile, "linear: tile");
            let matmul = InOutMatmul { x: elements, k, weight, rows, y: &mut y, n };
            add_linear_in_out_into(Isa::detected(), compute, matmul);
        }
        assert_eq!(next, k, "linear: tiles must be all of a weight of {k} rows");
        shape.as_mut_slice().last_mut().into_iter().for_each(|last| *last = n);
        FlexTensor::from_data(buffer::data(y, shape))
    }
}
