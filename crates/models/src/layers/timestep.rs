//! The embedding of a time, or of another number.

use burn::module::Module;
use burn::tensor::activation::silu;
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::Linear;
use crate::Init;

/// The longest period of the sines that tell the time.
const MAX_PERIOD: f32 = 10_000.0;

/// How a consistency model is told the guidance less one, and what that is multiplied with. Luo et
/// al. 2023 (arXiv:2310.04378).
const OF_GUIDANCE: Sinusoids = Sinusoids { cosines_first: false, freq_shift: 1.0 };
const GUIDANCE_SCALE: f32 = 1000.0;

/// `linear_2(silu(linear_1(x)))`.
#[derive(Module, Debug)]
pub struct TimestepEmbedding {
    /// `[in, condition]`: what is told besides, before the other layers.
    pub cond_proj: Option<Linear>,
    /// `[width, in]`.
    pub linear_1: Linear,
    /// `[width, width]`.
    pub linear_2: Linear,
}

/// How a number is told by sines and cosines, as `diffusers` does it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sinusoids {
    /// Whether cosines come before sines.
    pub cosines_first: bool,
    /// What is taken off the number of frequencies.
    pub freq_shift: f64,
}

impl TimestepEmbedding {
    /// Layers without storage, for `inputs` values.
    pub fn new(inputs: usize, width: usize, init: &Init) -> Self {
        Self::with_bias(inputs, width, true, init)
    }

    /// The same with biases or without them.
    pub(crate) fn with_bias(inputs: usize, width: usize, bias: bool, init: &Init) -> Self {
        Self {
            cond_proj: None,
            linear_1: Linear::new(inputs, width, bias, init),
            linear_2: Linear::new(width, width, bias, init),
        }
    }

    /// The same that is told `condition` values besides, if there are any.
    pub(crate) fn with_condition(self, condition: Option<usize>, init: &Init) -> Self {
        let [_, inputs] = self.linear_1.widths();
        let cond_proj = condition.map(|condition| Linear::new(condition, inputs, false, init));
        Self { cond_proj, ..self }
    }

    /// `[rows, in]` f32 to `[rows, width]` f32.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.linear_2.forward(silu(self.linear_1.forward(x)))
    }

    /// The embedding of a number by its sines and cosines: `[1, width]` f32.
    pub(crate) fn embed(&self, number: f32, sinusoids: Sinusoids, device: &Device) -> Tensor<2> {
        let [_, inputs] = self.linear_1.widths();
        self.forward(sinusoids.of(&[number], inputs, device))
    }

    /// The same of a time, where it is told how closely to follow the text, if the layers are told
    /// that.
    pub(crate) fn embed_guided(
        &self,
        number: f32,
        guidance: Option<f32>,
        sinusoids: Sinusoids,
        device: &Device,
    ) -> Tensor<2> {
        let Some(cond_proj) = &self.cond_proj else {
            return self.embed(number, sinusoids, device);
        };
        let guidance = guidance.expect("this model is told how closely to follow the text");
        let [inputs, condition] = cond_proj.widths();
        let told = OF_GUIDANCE.of(&[GUIDANCE_SCALE * (guidance - 1.0)], condition, device);
        let told = cond_proj.forward(told);
        let number = sinusoids.of(&[number], inputs, &told.device());
        self.forward(number + told)
    }
}

impl Sinusoids {
    /// Sines and cosines of each number, of falling frequencies: `[numbers, channels]` f32.
    pub fn of(self, numbers: &[f32], channels: usize, device: &Device) -> Tensor<2> {
        let half = channels / 2;
        let step = -MAX_PERIOD.ln() / (half as f64 - self.freq_shift) as f32;
        let mut values = Vec::with_capacity(numbers.len() * channels);
        for number in numbers {
            let angles: Vec<f32> = (0..half).map(|n| number * (n as f32 * step).exp()).collect();
            let sines = angles.iter().map(|angle| angle.sin());
            let cosines = angles.iter().map(|angle| angle.cos());
            match self.cosines_first {
                true => values.extend(cosines.chain(sines)),
                false => values.extend(sines.chain(cosines)),
            }
            values.extend((2 * half..channels).map(|_| 0.0));
        }
        let data = TensorData::new(values, [numbers.len(), channels]);
        Tensor::from_data(data, (device, DType::F32))
    }
}
