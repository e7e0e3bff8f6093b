//! The loss of a language model, over a backend's own tensors: a Burn backend extension for Flex.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Flex, backend_extension};
use burn::tensor::TensorData;

use crate::Isa;
use crate::extension::{dims, f32_elements, f32_elements_mut, whole};
use crate::gradient;

/// The loss of a language model.
#[backend_extension(Flex, Autodiff)]
pub trait LossOps: Backend {
    /// The mean of [cross-entropies](crate::cross_entropy) of `logits [rows, vocabulary]` f32 and
    /// `targets [rows]`, to `[1]` f32.
    ///
    /// # Panics
    ///
    /// As [there](gradient::cross_entropy), or if a rank or a dtype is another.
    fn cross_entropy(logits: FloatTensor<Self>, targets: IntTensor<Self>) -> FloatTensor<Self>;
}

impl LossOps for Flex {
    fn cross_entropy(logits: FlexTensor, targets: FlexTensor) -> FlexTensor {
        let logits = whole(logits);
        let _: [usize; 2] = dims(&logits, "cross entropy: logits");
        let elements = f32_elements(&logits, "cross entropy: logits");
        let (loss, _) = gradient::cross_entropy(Isa::detected(), elements, &ids(targets));
        scalar(loss)
    }
}

impl<C: CheckpointStrategy> LossOps for Autodiff<Flex, C> {
    fn cross_entropy(logits: FloatTensor<Self>, targets: FlexTensor) -> FloatTensor<Self> {
        let (logits, node) = logits.into_parts();
        match CrossEntropy.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let (logits, targets) = (whole(logits), ids(targets));
                let elements = f32_elements(&logits, "cross entropy: logits");
                let (loss, sums) = gradient::cross_entropy(Isa::detected(), elements, &targets);
                prep.finish((logits, sums, targets), scalar(loss))
            }
            OpsKind::UnTracked(prep) => prep.finish(Flex::cross_entropy(logits, targets)),
        }
    }
}

#[derive(Debug)]
struct CrossEntropy;

impl Backward<Flex, 1> for CrossEntropy {
    /// Logits, what each row's exponentials come to, and targets.
    type State = (FlexTensor, Vec<f32>, Vec<i64>);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let dy = grads.consume::<Flex>(&ops.node);
        let ([Some(node)], (mut logits, sums, targets)) = (ops.parents, ops.state) else { return };
        let dy = f32_elements(&dy, "cross entropy: gradient")[0];
        gradient::cross_entropy_gradient_in_place(
            Isa::detected(),
            f32_elements_mut(&mut logits, "cross entropy: logits"),
            &sums,
            &targets,
            dy,
        );
        grads.register::<Flex>(node.id, logits);
    }
}

fn ids(targets: FlexTensor) -> Vec<i64> {
    targets.into_data().iter::<i64>().collect()
}

fn scalar(value: f32) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(vec![value], [1]))
}
