//! The embedding of a time, or of another number.

use burn::module::Module;
use burn::tensor::activation::silu;
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::Linear;
use crate::Init;

/// The longest period of the sines that tell the time.
const MAX_PERIOD: f32 = 10_000.0;

/// `linear_2(silu(linear_1(x)))`.
#[derive(Module, Debug)]
pub struct TimestepEmbedding {
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
        Self {
            linear_1: Linear::new(inputs, width, true, init),
            linear_2: Linear::new(width, width, true, init),
        }
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
