//! The taps of a convolution over tokens.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};

use super::linear::{lazy, normal, zeros};
use crate::Init;

/// The taps of a convolution over tokens, of each channel by itself.
#[derive(Module, Debug)]
pub struct CausalConv1d {
    /// `[channels, 1, taps]`: the last tap is that of the token itself.
    pub weight: Param<Tensor<3>>,
    /// `[channels]`.
    pub bias: Option<Param<Tensor<1>>>,
}

impl CausalConv1d {
    /// Without storage.
    pub fn new(channels: usize, taps: usize, bias: bool, init: &Init) -> Self {
        Self {
            weight: lazy([channels, 1, taps], &init.device, normal),
            bias: bias.then(|| zeros(channels, &init.device)),
        }
    }

    /// `[channels, taps]` f32.
    pub(crate) fn taps(&self) -> Tensor<2> {
        let taps = self.weight.val().cast(DType::F32);
        let [channels, _, count] = taps.dims();
        taps.reshape([channels, count])
    }

    /// `[channels]` f32.
    pub(crate) fn bias(&self) -> Option<Tensor<1>> {
        self.bias.as_ref().map(|bias| bias.val().cast(DType::F32))
    }
}
