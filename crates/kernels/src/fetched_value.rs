//! Values that are fetched anew whenever a pass needs them, so that Burn's graph holds none of them
//! meanwhile: for modules that compute with Burn's own operations.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{Device, Tensor};

/// A value in f32, on Flex, that is fetched for each use of it.
pub trait FetchedValue<const D: usize>: Debug + Send + Sync + 'static {
    /// The value.
    fn fetch(&self) -> Tensor<D>;

    /// Takes the gradient of one use.
    fn add_gradient(&self, gradient: Tensor<D>);
}

/// The device of passes whose graph holds no fetched value: one on which the backward pass computes
/// again what is cheap to compute.
pub fn fetching_device(device: &Device) -> Device {
    device.clone().autodiff().gradient_checkpointing()
}

/// By how much each value is farther from the roots of the graph than the one before: about as many
/// operations as a module does between two of its parameters.
const STEPS: usize = 32;

/// The values of a pass whose gradients are wanted, on [`fetching_device`].
///
/// A backward pass comes to operations by their distance from the roots of the graph. So each value
/// is made farther from them than what was computed before it: its gradient is handed over soon
/// after it is found, rather than at the end with those of all others.
#[derive(Debug)]
pub struct FetchedValues(Mutex<Tensor<1>>);

impl FetchedValues {
    /// Those of a pass on Flex.
    pub fn new() -> Self {
        let root = Tensor::zeros([1], &fetching_device(&Device::flex()));
        Self(Mutex::new(root.require_grad()))
    }

    /// The value, for operations of the pass. Those whose backward pass needs it and that leave it
    /// to the graph to keep their inputs, as products and convolutions do, have it fetched once
    /// more then.
    pub fn value<const D: usize>(&self, value: impl FetchedValue<D>) -> Tensor<D> {
        let now = flex(value.fetch());
        let value = ValueOperand(Arc::new(OfRank(value)));
        let before = self.farther().into_dispatch();
        Tensor::from_dispatch(Dispatch::fetched_value(before, value, now))
    }

    /// A tensor that is farther from the roots of the graph than what was computed before it.
    pub(crate) fn farther(&self) -> Tensor<1> {
        // Nothing under the lock can panic.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Tensor::from_dispatch(Dispatch::farther(last.clone().into_dispatch()));
        last.clone()
    }
}

impl Default for FetchedValues {
    fn default() -> Self {
        Self::new()
    }
}

/// A [`FetchedValue`] of any rank.
trait FetchedPrimitive: Debug + Send + Sync {
    fn fetch(&self) -> FlexTensor;
    fn add_gradient(&self, gradient: FlexTensor);
}

#[derive(Debug)]
struct OfRank<const D: usize, V>(V);

impl<const D: usize, V: FetchedValue<D>> FetchedPrimitive for OfRank<D, V> {
    fn fetch(&self) -> FlexTensor {
        flex(self.0.fetch())
    }

    fn add_gradient(&self, gradient: FlexTensor) {
        self.0.add_gradient(Tensor::from_primitive::<Flex>(gradient));
    }
}

pub(crate) fn flex<const D: usize>(value: Tensor<D>) -> FlexTensor {
    value.try_into_primitive::<Flex>().expect("fetched values are on Flex")
}

/// A value to be fetched, as an operand.
#[derive(Debug, Clone)]
pub struct ValueOperand(Arc<dyn FetchedPrimitive>);

/// Fetched values, over a backend's own tensors.
#[backend_extension(Flex, Autodiff)]
pub trait FetchedValueOps: Backend {
    /// A tensor that is farther from the roots of the graph.
    fn farther(from: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The value that was fetched `now`, as what `before` makes.
    fn fetched_value(
        before: FloatTensor<Self>,
        value: ValueOperand,
        now: FlexTensor,
    ) -> FloatTensor<Self>;
}

impl FetchedValueOps for Flex {
    fn farther(from: FlexTensor) -> FlexTensor {
        from
    }

    fn fetched_value(_before: FlexTensor, _value: ValueOperand, now: FlexTensor) -> FlexTensor {
        now
    }
}

impl<C: CheckpointStrategy> FetchedValueOps for Autodiff<Flex, C> {
    fn farther(from: FloatTensor<Self>) -> FloatTensor<Self> {
        (0..STEPS).fold(from, |from, _| {
            let (value, node) = from.into_parts();
            Farther.prepare::<C>([node]).compute_bound().stateless(value)
        })
    }

    fn fetched_value(
        before: FloatTensor<Self>,
        value: ValueOperand,
        now: FlexTensor,
    ) -> FloatTensor<Self> {
        let prepared = FetchAgain
            .prepare::<C>([before.node()])
            .memory_bound()
            .retro_forward(FetchForward { before: before.id(), value: value.clone() })
            .parents([&before])
            .stateful();
        match prepared {
            OpsKind::Tracked(prep) => prep.finish(value, now),
            OpsKind::UnTracked(prep) => prep.finish(now),
        }
    }
}

/// How a value is fetched again.
#[derive(Debug)]
struct FetchForward {
    before: NodeId,
    value: ValueOperand,
}

impl RetroForward for FetchForward {
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        // Which the graph keeps for this.
        let _before = states.get_state::<FlexTensor>(&self.before);
        states.save(out_node, self.value.0.fetch());
    }
}

/// One operation that makes nothing.
#[derive(Debug)]
struct Farther;

impl Backward<Flex, 1> for Farther {
    type State = ();

    fn backward(
        self,
        _ops: Ops<Self::State, 1>,
        _grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        // It has no gradient: values do not depend on it.
    }
}

/// A value that is fetched again where a backward pass needs it.
#[derive(Debug)]
struct FetchAgain;

impl Backward<Flex, 1> for FetchAgain {
    type State = ValueOperand;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        ops.state.0.add_gradient(grads.consume::<Flex>(&ops.node));
    }
}
