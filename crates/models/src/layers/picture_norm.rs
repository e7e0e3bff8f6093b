//! The norm of a picture, of either kind.

use burn::tensor::Tensor;
use outsize_kernels::group_norm::Moments;

use super::{Activation, ChannelNorm, Either, GroupNorm};
use crate::Init;

/// A norm of either kind.
pub type PictureNorm = Either<GroupNorm, ChannelNorm>;

/// Which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureNormKind {
    /// Of so many groups of channels in all of a picture.
    Groups(usize),
    /// Of the channels of each pixel.
    Channels,
}

impl PictureNorm {
    /// A norm without storage; `epsilon` is what one of groups adds to variances.
    pub fn new(kind: PictureNormKind, channels: usize, epsilon: f64, init: &Init) -> Self {
        match kind {
            PictureNormKind::Groups(groups) => {
                Self::One(GroupNorm::new(channels, groups, epsilon, init))
            }
            PictureNormKind::Channels => Self::Other(ChannelNorm::new(channels, init)),
        }
    }

    /// The norm.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::One(norm) => norm.forward(x),
            Self::Other(norm) => norm.forward(x),
        }
    }

    /// `y · sigmoid(y)` of the norm `y`.
    pub fn forward_silu(&self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::One(norm) => norm.forward_silu(x),
            Self::Other(norm) => Activation::Silu.activate(norm.forward(x)),
        }
    }

    /// What a norm knows of a picture that comes in bands of rows, before any of them is
    /// normalised.
    pub(crate) fn moments<'a>(&self, bands: impl Iterator<Item = &'a Tensor<4>>) -> Vec<Moments> {
        match self {
            Self::One(norm) => norm.moments(bands),
            Self::Other(_) => Vec::new(),
        }
    }

    /// [`forward_silu`](Self::forward_silu) of some rows of a picture that has these moments.
    pub(crate) fn rows_silu(&self, rows: Tensor<4>, moments: &[Moments]) -> Tensor<4> {
        match self {
            Self::One(norm) => norm.rows_silu(rows, moments),
            Self::Other(_) => self.forward_silu(rows),
        }
    }
}
