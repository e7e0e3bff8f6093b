//! The shares of two experts as SparseMixer makes them.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Int, Tensor};

/// The shares of the best expert and of the next best ([Liu et al.,
/// 2024](https://arxiv.org/abs/2409.12136)): each by a softmax of its own, over experts whose
/// scores are hardly less than its; the second one without the first. Of scores `[rows, experts]`
/// and the places of both experts, `[rows, 2]`, gives the shape of the latter.
pub(super) fn shares(scores: Tensor<2>, places: Tensor<2, Int>, jitter: f64) -> Tensor<2> {
    let [first, second] = [0, 1].map(|at| places.clone().narrow(1, at, 1));
    let one = |chosen: Tensor<2, Int>, left_out: Option<Tensor<2, Bool>>| {
        let best = scores.clone().gather(1, chosen.clone());
        let magnitude = scores.clone().abs().max_pair(best.clone());
        let is_less = ((best - scores.clone()) / magnitude).greater_elem(2.0 * jitter);
        let masked = scores.clone().mask_fill(is_less, f32::NEG_INFINITY);
        let masked = match left_out {
            Some(left_out) => masked.mask_fill(left_out, f32::NEG_INFINITY),
            None => masked,
        };
        softmax(masked, 1).gather(1, chosen)
    };
    let ([rows, experts], device) = (scores.dims(), scores.device());
    let numbers = Tensor::<1, Int>::arange(0..experts as i64, (&device, first.dtype()));
    let is_first = numbers
        .unsqueeze::<2>()
        .expand([rows, experts])
        .equal(first.clone().expand([rows, experts]));
    Tensor::cat(vec![one(first, None), one(second, Some(is_first))], 1)
}
