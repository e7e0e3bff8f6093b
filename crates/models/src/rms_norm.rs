//! Root-mean-square layer normalisation.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device, Tensor};

/// `x / sqrt(mean(x²) + epsilon) · weight` over the last dimension, in f32.
///
/// Follows [Zhang and Sennrich, 2019](https://arxiv.org/abs/1910.07467) as `transformers` computes it.
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[hidden]`; in f32, bf16 or f16.
    pub weight: Param<Tensor<1>>,
    epsilon: f64,
}

impl RmsNorm {
    /// A norm without storage; unless loaded, its weight is 1.
    pub fn new(hidden: usize, epsilon: f64, device: &Device) -> Self {
        let weight = Param::uninitialized(
            ParamId::new(),
            move |device, require_grad| {
                Tensor::ones([hidden], device).set_require_grad(require_grad)
            },
            device.clone(),
            false,
            [hidden].into(),
        );
        Self { weight, epsilon }
    }

    /// `[.., hidden]` f32 to the same.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let mean_square = (x.clone() * x.clone()).mean_dim(D - 1);
        // The weight has at most a few thousand values: a cast on every use costs nothing.
        let weight = self.weight.val().cast(DType::F32);
        x * (mean_square + self.epsilon).sqrt().recip() * weight.unsqueeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::TensorData;

    #[test]
    fn matches_the_formula_in_f64() {
        let device = Device::default();
        let (hidden, epsilon) = (50, 1e-2);
        let x: Vec<f32> = (0..2 * hidden)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) / 80.0)
            .collect();
        let w: Vec<f32> = (0..hidden).map(|i| 1.0 + i as f32 / 8.0).collect();
        let mut norm = RmsNorm::new(hidden, epsilon, &device);
        norm.weight = Param::initialized(
            ParamId::new(),
            Tensor::from_data(TensorData::new(w.clone(), [hidden]), (&device, DType::BF16)),
        );
        let input = Tensor::<2>::from_data(
            TensorData::new(x.clone(), [2, hidden]),
            (&device, DType::F32),
        );
        let found = norm.forward(input).into_data().try_to_vec::<f32>().unwrap();
        for (row, found) in x.chunks(hidden).zip(found.chunks(hidden)) {
            let mean = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / hidden as f64;
            for ((&v, &w), &found) in row.iter().zip(&w).zip(found) {
                // Steps of 1/8 up to 7 are exact in bf16.
                let expected = f64::from(v) / (mean + epsilon).sqrt() * f64::from(w);
                assert!(
                    (f64::from(found) - expected).abs() <= 1e-6 * expected.abs().max(0.1),
                    "{found} {expected}"
                );
            }
        }
    }
}
