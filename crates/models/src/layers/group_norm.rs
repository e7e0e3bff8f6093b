//! Group normalisation.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use outsize_kernels::group_norm::{GroupSums, Moments};

use super::entered::entered;
use super::linear::{ones, zeros};
use crate::Init;

/// `(x - mean) / sqrt(variance + epsilon) · weight + bias` of pictures
/// `[batch, rows, columns, channels]` in f32, mean and variance being those of a group of channels
/// in all of a picture ([Wu and He, 2018](https://arxiv.org/abs/1803.08494)).
#[derive(Module, Debug)]
pub struct GroupNorm {
    /// `[channels]`; in f32, bf16 or f16.
    pub weight: Param<Tensor<1>>,
    /// `[channels]`; in f32, bf16 or f16.
    pub bias: Param<Tensor<1>>,
    groups: usize,
    epsilon: f64,
}

impl GroupNorm {
    /// A norm without storage; unless loaded, its weight is 1 and its bias 0. The groups divide the
    /// channels.
    pub fn new(channels: usize, groups: usize, epsilon: f64, init: &Init) -> Self {
        Self {
            weight: ones(channels, &init.device),
            bias: zeros(channels, &init.device),
            groups,
            epsilon,
        }
    }

    /// The norm.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let x = entered(x, &self.weight);
        let weights = (self.weight.val(), self.bias.val());
        outsize_kernels::group_norm(x, self.groups, weights, self.epsilon, false)
    }

    /// `y · sigmoid(y)` of the norm `y`.
    pub fn forward_silu(&self, x: Tensor<4>) -> Tensor<4> {
        let x = entered(x, &self.weight);
        let weights = (self.weight.val(), self.bias.val());
        outsize_kernels::group_norm(x, self.groups, weights, self.epsilon, true)
    }

    /// Mean and deviation of each group of a picture that comes in bands of rows.
    pub(crate) fn moments<'a>(&self, bands: impl Iterator<Item = &'a Tensor<4>>) -> Vec<Moments> {
        let mut sums = GroupSums::default();
        bands.for_each(|band| outsize_kernels::group_sums(&mut sums, band.clone(), self.groups));
        sums.moments(self.epsilon)
    }

    /// [`forward_silu`](Self::forward_silu) of some rows of a picture that has these moments.
    pub(crate) fn rows_silu(&self, rows: Tensor<4>, moments: &[Moments]) -> Tensor<4> {
        let rows = entered(rows, &self.weight);
        let (weight, bias) = (self.weight.val(), self.bias.val());
        outsize_kernels::normalize_groups(rows, moments.to_vec(), weight, bias, true)
    }
}
