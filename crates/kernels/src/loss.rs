//! The loss of a language model, over Burn tensors.

use burn::backend::Dispatch;
use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, Int, Tensor};

use crate::device::has_kernels;
use crate::loss_extension::LossOps;

/// The mean cross-entropy of `logits [rows, vocabulary]` and the tokens that were to come, `targets
/// [rows]`: `-ln(softmax(logits)[target])` in f32. Rows whose target is negative count for nothing;
/// without any other row the mean is 0.
///
/// On Flex, or autodiff around it, this is [one operation](crate::gradient::cross_entropy), whose
/// backward pass writes the gradient in the place of the logits where these have no other owner;
/// else Burn's own ones.
///
/// # Panics
///
/// If sizes do not fit each other, or if a target is not below the vocabulary. (Some GPU backends
/// do not check targets.)
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let logits = logits.cast(DType::F32);
    if has_kernels(&logits.device()) {
        return Tensor::from_dispatch(Dispatch::cross_entropy(
            logits.into_dispatch(),
            targets.into_dispatch(),
        ));
    }
    let counted = targets.clone().greater_equal_elem(0);
    let targets = targets.clamp_min(0).unsqueeze_dim(1);
    let chances = log_softmax(logits, 1).gather(1, targets).squeeze_dim::<1>(1);
    let chances = chances.mask_fill(counted.clone().bool_not(), 0.0);
    let count = counted.float().sum().clamp_min(1.0);
    -chances.sum() / count
}
