//! The taps of a convolution over tokens.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use outsize_kernels::causal_convolution;

use super::QueryPositions;
use super::linear::{lazy, normal, zeros};
use crate::kv_cache::RecurrentState;
use crate::{Error, Init, KvCache};

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

    /// `[batch, tokens, channels]` f32 to the same, or SiLU of it. The last inputs in layer `layer`
    /// of the cache become those of the tokens.
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        is_activated: bool,
        positions: &QueryPositions<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let (taps, bias) = (self.taps(), self.bias());
        cache.with_state(layer, positions, [x], |[x], state, rows| {
            // The state stays where it is.
            let RecurrentState { matrices, inputs } = state;
            let device = inputs.device();
            let (x, taps) = (x.to_device(&device), taps.clone().to_device(&device));
            let bias = bias.clone().map(|bias| bias.to_device(&device));
            let (x, inputs) = causal_convolution(x, taps, bias, inputs, rows, is_activated);
            (x, RecurrentState { matrices, inputs })
        })
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
