//! The backward passes of matmuls and rows of stored weights.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, AutodiffBackend, Flex, TensorMetadata};
use burn::tensor::{DType, Shape};
use bytes::Bytes;

use crate::buffer;
use crate::extension::{
    StoredWeightOps, contiguous, dims, f32_elements, input_gradient, weight_gradient,
};
use crate::layer_extension::LayerOps;
use crate::{ActivationDtype, ActivationFunction, BlockWeight, WeightOperand};

impl<C: CheckpointStrategy> StoredWeightOps for Autodiff<Flex, C> {
    fn stored_linear(
        x: FloatTensor<Self>,
        weight: WeightOperand<Self>,
        compute: ActivationDtype,
    ) -> FloatTensor<Self> {
        let moves = x.is_tracked();
        let (x, x_node) = x.into_parts();
        let weight = match weight {
            WeightOperand::Float(weight) => weight,
            WeightOperand::Blocks(weight) => {
                let y = Flex::stored_linear(x, WeightOperand::Blocks(weight.clone()), compute);
                return match FrozenLinear.prepare::<C>([x_node]).compute_bound().stateful() {
                    OpsKind::Tracked(prep) => prep.finish((weight, compute), y),
                    OpsKind::UnTracked(prep) => prep.finish(y),
                };
            }
        };
        let learns = weight.is_tracked();
        let (weight, weight_node) = weight.into_parts();
        match Linear.prepare::<C>([x_node, weight_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let state = LinearState {
                    x: learns.then(|| x.clone()),
                    weight: moves.then(|| weight.clone()),
                    dtype: weight.dtype(),
                    // Wider weights are not to be rounded.
                    compute: match weight.dtype() {
                        DType::BF16 => compute,
                        _ => ActivationDtype::F32,
                    },
                };
                let y = Flex::stored_linear(x, WeightOperand::Float(weight), compute);
                prep.finish(state, y)
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(Flex::stored_linear(x, WeightOperand::Float(weight), compute))
            }
        }
    }

    fn stored_linear_qkv(
        x: FloatTensor<Self>,
        first: WeightOperand<Self>,
        second: WeightOperand<Self>,
        third: WeightOperand<Self>,
        compute: ActivationDtype,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        (
            Self::stored_linear(x.clone(), first, compute),
            Self::stored_linear(x.clone(), second, compute),
            Self::stored_linear(x, third, compute),
        )
    }

    fn stored_gated_linear(
        x: FloatTensor<Self>,
        gate: WeightOperand<Self>,
        up: WeightOperand<Self>,
        act: ActivationFunction,
        compute: ActivationDtype,
    ) -> FloatTensor<Self> {
        let gate = Self::stored_linear(x.clone(), gate, compute);
        Self::gated(gate, Self::stored_linear(x, up, compute), act)
    }

    fn add_stored_linear_in_out(
        y: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: WeightOperand<Self>,
        start: usize,
        compute: ActivationDtype,
    ) -> FloatTensor<Self> {
        let weight = match weight {
            WeightOperand::Float(weight) => weight,
            WeightOperand::Blocks(weight) => Self::from_inner(dequantized(&weight)),
        };
        let (rows, last) = (weight.shape()[0], x.rank() - 1);
        let x = match rows == x.shape()[last] {
            true => x,
            false => {
                let mut slices = vec![burn::tensor::Slice::full(); last];
                slices.push((start..start + rows).into());
                Self::float_slice(x, &slices)
            }
        };
        // Stored as other weights are.
        let weight = WeightOperand::Float(Self::float_transpose(weight));
        Self::float_add(y, Self::stored_linear(x, weight, compute))
    }

    fn stored_rows(table: WeightOperand<Self>, ids: IntTensor<Self>) -> FloatTensor<Self> {
        let table = match table {
            WeightOperand::Float(table) => table,
            WeightOperand::Blocks(table) => {
                return Self::from_inner(Flex::stored_rows(WeightOperand::Blocks(table), ids));
            }
        };
        let (table, node) = table.into_parts();
        match Rows.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let state = (ids.clone(), table.shape(), table.dtype());
                prep.finish(state, Flex::stored_rows(WeightOperand::Float(table), ids))
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(Flex::stored_rows(WeightOperand::Float(table), ids))
            }
        }
    }
}

/// `y = x · Wᵀ`: `dx = dy · W`, `dW = dyᵀ · x`.
#[derive(Debug)]
struct Linear;

#[derive(Clone, Debug)]
struct LinearState {
    /// Kept if the weight learns.
    x: Option<FlexTensor>,
    /// Kept if a gradient flows on.
    weight: Option<FlexTensor>,
    /// Of the weight, and so of its gradient.
    dtype: DType,
    /// What gradients are multiplied in, as activations were.
    compute: ActivationDtype,
}

impl Backward<Flex, 2> for Linear {
    type State = LinearState;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let dy = contiguous(grads.consume::<Flex>(&ops.node));
        let LinearState { x, weight, dtype, compute } = ops.state;
        let [x_node, weight_node] = ops.parents;
        if let (Some(node), Some(x)) = (weight_node, x) {
            grads.register::<Flex>(node.id, cast(weight_gradient(&dy, x, compute), dtype));
        }
        if let (Some(node), Some(weight)) = (x_node, weight) {
            let dx = input_gradient(dy, WeightOperand::Float(weight), compute);
            grads.register::<Flex>(node.id, dx);
        }
    }
}

/// The same for a weight in blocks, which does not learn.
#[derive(Debug)]
struct FrozenLinear;

impl Backward<Flex, 1> for FrozenLinear {
    type State = (BlockWeight<Bytes>, ActivationDtype);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let dy = contiguous(grads.consume::<Flex>(&ops.node));
        let ([Some(node)], (weight, compute)) = (ops.parents, ops.state) else { return };
        let dx = input_gradient(dy, WeightOperand::Blocks(weight), compute);
        grads.register::<Flex>(node.id, dx);
    }
}

/// Rows of a table: each row's gradient is added to the row that it came from.
#[derive(Debug)]
struct Rows;

impl Backward<Flex, 1> for Rows {
    /// Ids, and the table's shape and dtype.
    type State = (FlexTensor, Shape, DType);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let dy = contiguous(grads.consume::<Flex>(&ops.node));
        let ([Some(node)], (ids, shape, dtype)) = (ops.parents, ops.state) else { return };
        let [_, width] = dims(&dy, "embedding: gradient");
        let mut table = buffer::zeroed(shape.num_elements());
        let rows = f32_elements(&dy, "embedding: gradient").chunks_exact(width);
        for (id, row) in ids.into_data().iter::<i64>().zip(rows) {
            // The forward pass has checked the ids.
            let to = &mut table[id as usize * width..][..width];
            to.iter_mut().zip(row).for_each(|(to, more)| *to += more);
        }
        let table = FlexTensor::from_data(buffer::data(table, shape));
        grads.register::<Flex>(node.id, cast(table, dtype));
    }
}

/// A weight's gradient in the dtype of the weight.
pub(super) fn cast(gradient: FlexTensor, dtype: DType) -> FlexTensor {
    match (gradient.dtype() == dtype, dtype) {
        (false, DType::BF16) => Flex::float_cast(gradient, burn::tensor::FloatDType::BF16),
        (false, DType::F16) => Flex::float_cast(gradient, burn::tensor::FloatDType::F16),
        _ => gradient,
    }
}

fn dequantized(weight: &BlockWeight<Bytes>) -> FlexTensor {
    let [rows, columns] = weight.shape();
    let mut values = buffer::zeroed(rows * columns);
    weight.dequantize(0..rows, &mut values);
    FlexTensor::from_data(buffer::data(values, [rows, columns]))
}
