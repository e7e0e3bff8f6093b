//! Blocks of a pass that are computed once more by the backward pass, so that Burn's graph holds of
//! each only what went into it.

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;

use crate::FetchedValues;
use crate::fetched_value::flex;

/// A block of a pass, from one tensor to one other.
pub trait RecomputedBlock<const D: usize, const E: usize>: Send + Sync + 'static {
    /// Computes the block once more and backward, on Flex: the gradient of `x`, given that of what
    /// the block makes of it.
    fn input_gradient(&self, x: Tensor<D>, gradient: Tensor<E>) -> Tensor<D>;
}

impl FetchedValues {
    /// What a block has made of `x`, which is `y`, both without a graph, as a part of the graph of
    /// `of`, from which `x` was taken.
    pub fn recomputed<const D: usize, const E: usize>(
        &self,
        of: Tensor<D>,
        y: Tensor<E>,
        block: impl RecomputedBlock<D, E>,
    ) -> Tensor<E> {
        let block = BlockOperand(Arc::new(OfRanks(block)));
        let (of, before) = (of.into_dispatch(), self.farther().into_dispatch());
        Tensor::from_dispatch(Dispatch::recomputed(of, before, flex(y), block))
    }
}

/// A [`RecomputedBlock`] of any ranks.
trait BlockGradient: Send + Sync {
    fn input_gradient(&self, x: FlexTensor, gradient: FlexTensor) -> FlexTensor;
}

struct OfRanks<const D: usize, const E: usize, B>(B);

impl<const D: usize, const E: usize, B: RecomputedBlock<D, E>> BlockGradient for OfRanks<D, E, B> {
    fn input_gradient(&self, x: FlexTensor, gradient: FlexTensor) -> FlexTensor {
        let x = Tensor::from_primitive::<Flex>(x);
        flex(self.0.input_gradient(x, Tensor::from_primitive::<Flex>(gradient)))
    }
}

/// A block as an operand.
#[derive(Clone)]
pub struct BlockOperand(Arc<dyn BlockGradient>);

impl Debug for BlockOperand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a block")
    }
}

/// Blocks that are computed once more, over a backend's own tensors.
#[backend_extension(Flex, Autodiff)]
pub trait RecomputedOps: Backend {
    /// `y`, which the block makes of `x`, as what `before` makes too.
    fn recomputed(
        x: FloatTensor<Self>,
        before: FloatTensor<Self>,
        y: FlexTensor,
        block: BlockOperand,
    ) -> FloatTensor<Self>;
}

impl RecomputedOps for Flex {
    fn recomputed(
        _x: FlexTensor,
        _before: FlexTensor,
        y: FlexTensor,
        _block: BlockOperand,
    ) -> FlexTensor {
        y
    }
}

impl<C: CheckpointStrategy> RecomputedOps for Autodiff<Flex, C> {
    fn recomputed(
        x: FloatTensor<Self>,
        before: FloatTensor<Self>,
        y: FlexTensor,
        block: BlockOperand,
    ) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        match Recompute.prepare::<C>([node, before.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((block, x), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}

/// A block whose backward pass computes it once more.
#[derive(Debug)]
struct Recompute;

impl Backward<Flex, 2> for Recompute {
    /// The block, and what went into it.
    type State = (BlockOperand, FlexTensor);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<Flex>(&ops.node);
        let (block, x) = ops.state;
        let gradient = block.0.input_gradient(x, gradient);
        if let [Some(node), _] = ops.parents {
            grads.register::<Flex>(node.id, gradient);
        }
    }
}
