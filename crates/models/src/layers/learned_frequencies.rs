//! Rotary frequencies of which some part was learned.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};

use super::Rope;
use super::linear::zeros;
use crate::Init;

/// What multiplies rotary frequencies: powers of e whose exponents were learned, in Mistral Large 4
/// (Mistral AI 2026). No gradient flows to them.
#[derive(Module, Debug)]
pub struct LearnedFrequencies {
    /// `[rotated / 2]`.
    pub alpha: Param<Tensor<1>>,
}

impl LearnedFrequencies {
    /// Those of a model that rotates so many elements of a head, without storage.
    pub fn new(rotated: usize, init: &Init) -> Self {
        Self { alpha: zeros(rotated / 2, &init.device) }
    }

    /// The same embedding with its frequencies multiplied.
    pub(crate) fn applied(&self, rope: &Rope) -> Rope {
        let factors = self.alpha.val().cast(DType::F32).exp().into_data();
        rope.clone().multiplied(factors.iter::<f32>().collect())
    }
}
