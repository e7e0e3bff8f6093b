//! Residual streams of which a layer computes one and predicts the others ([Baykal et al.,
//! 2023](https://arxiv.org/abs/2301.13310)).

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};

use super::{AltUpConfig, Gemma3nConfig};
use crate::Init;
use crate::layers::{Linear, RmsNorm, tanh, zeros};

/// What predicts the streams before a layer, and corrects them behind it.
#[derive(Module, Debug)]
pub struct Gemma3nAltUp {
    /// `[hidden]`: what the corrected stream is multiplied by where the layer's own input is taken.
    pub correct_output_scale: Param<Tensor<1>>,
    /// `[streams, streams]`.
    pub correction_coefs: Linear,
    /// `[streams², streams]`.
    pub prediction_coefs: Linear,
    /// `[streams, hidden]`.
    pub modality_router: Linear,
    /// `[hidden]`.
    pub router_norm: RmsNorm,
    #[module(skip)]
    config: AltUpConfig,
}

impl Gemma3nAltUp {
    /// Without storage.
    pub fn new(config: &Gemma3nConfig, init: &Init) -> Self {
        let (hidden, streams) = (config.base.text.hidden_size, config.altup.streams);
        let linear = |from, to| Linear::new(from, to, false, init);
        Self {
            correct_output_scale: zeros(hidden, &init.device),
            correction_coefs: linear(streams, streams),
            prediction_coefs: linear(streams, streams * streams),
            modality_router: linear(hidden, streams),
            router_norm: RmsNorm::new(hidden, config.base.text.rms_norm_eps, init),
            config: config.altup,
        }
    }

    /// Of the stream that is computed, `[batch, tokens, hidden]` f32: `[batch, tokens, streams]`.
    fn modalities(&self, x: Tensor<3>) -> Tensor<3> {
        let hidden = self.router_norm.width() as f64;
        tanh(self.modality_router.forward(self.router_norm.forward(x) * (1.0 / hidden)))
    }

    /// Where the streams are taken to be, `[batch, tokens, hidden]` f32 each.
    pub(super) fn predict(&self, streams: &[Tensor<3>]) -> Vec<Tensor<3>> {
        let count = streams.len();
        let streams: Vec<_> =
            streams.iter().map(|stream| self.router_norm.entered(stream.clone())).collect();
        let modalities = self.modalities(streams[self.config.active].clone());
        let coefs = self.prediction_coefs.forward(modalities);
        let predicted = |to: usize| {
            let parts = streams.iter().enumerate().map(|(from, stream)| {
                stream.clone() * coefs.clone().narrow(2, to * count + from, 1)
            });
            streams[to].clone() + parts.reduce(|sum, part| sum + part).expect("there are streams")
        };
        (0..count).map(predicted).collect()
    }

    /// Where they are, once one of them was computed.
    pub(super) fn correct(&self, predicted: Vec<Tensor<3>>, computed: Tensor<3>) -> Vec<Tensor<3>> {
        let coefs = self.correction_coefs.forward(self.modalities(computed.clone())) + 1.0;
        let innovation = computed - predicted[self.config.active].clone();
        let corrected = |(at, stream): (usize, Tensor<3>)| {
            stream + innovation.clone() * coefs.clone().narrow(2, at, 1)
        };
        predicted.into_iter().enumerate().map(corrected).collect()
    }

    /// What the layer's own input is taken by.
    pub(super) fn scaled(&self, x: Tensor<3>) -> Tensor<3> {
        if !self.config.scales_output {
            return x;
        }
        let scale = self.correct_output_scale.val().cast(DType::F32).to_device(&x.device());
        x * scale.unsqueeze()
    }
}
