//! Blocks of a pass whose activations are computed once more instead of kept.

use crate::tape::Tape;
use burn::tensor::{Device, Distribution, GradientCheckpointingStrategy, Int, Tensor};
use outsize_kernels::RecomputedBlock;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    /// The tape of the pass forward and backward that this thread runs, if it runs one.
    static CURRENT: RefCell<Option<Arc<Tape>>> = const { RefCell::new(None) };
}

/// Says which pass this thread runs, until that is dropped.
pub(crate) struct Running(Option<Arc<Tape>>);

impl Running {
    pub(crate) fn begin(tape: Arc<Tape>) -> Self {
        Self(CURRENT.replace(Some(tape)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// What `block` makes of `input`. Of a pass forward and backward of a dispatched module, such as
/// [`Dispatched::backward`](crate::Dispatched::backward) runs, the activations within are not kept:
/// the backward pass computes the block once more, as `torch.utils.checkpoint` does. Other passes,
/// and other threads of the module's own, compute it as ever.
///
/// `block` has modules of its own: a clone shares its weights with the module.
///
/// ```no_run
/// # use burn::nn::Linear;
/// # use burn::tensor::Tensor;
/// # use outsize_core::activation_checkpoint;
/// # fn forward(layers: &[Linear], mut x: Tensor<3>) -> Tensor<3> {
/// for layer in layers {
///     let layer = layer.clone();
///     x = activation_checkpoint(x, move |x| layer.forward(x));
/// }
/// # x
/// # }
/// ```
///
/// What is drawn at random, such as what dropout leaves out, is the same both times; for that,
/// Burn's generator is seeded anew with what it gives, and no other thread of the process may draw
/// from it meanwhile. Gradients reach `input` and the parameters of the module; not other tensors
/// that `block` has.
pub fn activation_checkpoint<const D: usize, const E: usize>(
    input: Tensor<D>,
    block: impl Fn(Tensor<D>) -> Tensor<E> + Send + Sync + 'static,
) -> Tensor<E> {
    let tape = CURRENT.with_borrow(Clone::clone);
    let Some((tape, values)) = tape.and_then(|tape| Some((tape.clone(), tape.values()?))) else {
        return block(input);
    };
    let (seed, next) = (drawn(), drawn());
    let x = learning(input.clone().inner());
    let y = tape.paused(|| seeded(seed, || block(x)));
    Device::flex().seed(next);
    values.recomputed(input, y.inner(), Block { block, tape, seed })
}

/// A block of a recorded pass.
struct Block<F> {
    block: F,
    tape: Arc<Tape>,
    /// What it was seeded with.
    seed: u64,
}

impl<const D: usize, const E: usize, F> RecomputedBlock<D, E> for Block<F>
where
    F: Fn(Tensor<D>) -> Tensor<E> + Send + Sync + 'static,
{
    fn input_gradient(&self, x: Tensor<D>, gradient: Tensor<E>) -> Tensor<D> {
        let x = learning(x).require_grad();
        let next = drawn();
        let mut found = self.tape.nested(|| {
            let y = seeded(self.seed, || (self.block)(x.clone()));
            Device::flex().seed(next);
            (y * learning(gradient)).sum().backward()
        });
        x.grad_remove(&mut found).unwrap_or_else(|| x.zeros_like().inner())
    }
}

/// The value on [`learning_device`](crate::learning_device).
fn learning<const D: usize>(value: Tensor<D>) -> Tensor<D> {
    value.autodiff().with_gradient_checkpointing_strategy(GradientCheckpointingStrategy::Balanced)
}

fn seeded<R>(seed: u64, work: impl FnOnce() -> R) -> R {
    Device::flex().seed(seed);
    work()
}

/// A number that Burn's generator gives.
fn drawn() -> u64 {
    let half = Distribution::Uniform(0.0, f64::from(i32::MAX));
    let halves = Tensor::<1, Int>::random([2], half, &Device::flex()).into_data();
    halves.iter::<i64>().fold(0, |number, half| number << 31 | half as u64)
}
