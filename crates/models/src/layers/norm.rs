//! The norm of a block, of either kind.

use burn::tensor::Tensor;

use super::{Either, LayerNorm, RmsNorm, either};

/// A norm of either kind.
pub type Norm = Either<RmsNorm, LayerNorm>;

impl Norm {
    /// Values of the last dimension.
    pub fn width(&self) -> usize {
        either!(self, norm => norm.width())
    }

    /// `[.., hidden]` f32 to the same.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        either!(self, norm => norm.forward(x))
    }

    /// `x + add`, if there is anything to add, and the norm of that; `[.., hidden]` f32 each.
    pub(crate) fn after<const D: usize>(
        &self,
        x: Tensor<D>,
        add: Option<Tensor<D>>,
    ) -> (Tensor<D>, Tensor<D>) {
        either!(self, norm => norm.after(x, add))
    }

    /// Activations where its block computes.
    pub(crate) fn entered<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        either!(self, norm => norm.entered(x))
    }
}
