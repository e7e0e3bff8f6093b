//! Root-mean-square layer normalisation.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};

use super::entered::entered;
use super::linear::{ones, zeros};
use crate::Init;

/// `x / sqrt(mean(x²) + epsilon) · weight` over the last dimension, in f32.
///
/// Follows [Zhang and Sennrich, 2019](https://arxiv.org/abs/1910.07467) as `transformers` computes
/// it.
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[hidden]`; in f32, bf16 or f16. None where nothing is scaled.
    pub weight: Option<Param<Tensor<1>>>,
    epsilon: f64,
    width: usize,
    /// Whether the scale is one more than the weight.
    plus_one: bool,
}

impl RmsNorm {
    /// A norm without storage; unless loaded, its weight is 1.
    pub fn new(hidden: usize, epsilon: f64, init: &Init) -> Self {
        let weight = Some(ones(hidden, &init.device));
        Self { weight, epsilon, width: hidden, plus_one: false }
    }

    /// The same without a weight.
    pub fn unweighted(self) -> Self {
        Self { weight: None, ..self }
    }

    /// The same with another epsilon.
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }

    /// A norm as Gemma's, which scales by one more than the weight; unless loaded, the weight is 0.
    pub fn plus_one(hidden: usize, epsilon: f64, init: &Init) -> Self {
        let weight = Some(zeros(hidden, &init.device));
        Self { weight, epsilon, width: hidden, plus_one: true }
    }

    /// Values of the last dimension.
    pub fn width(&self) -> usize {
        self.width
    }

    fn scale(&self, device: &Device) -> Tensor<1> {
        scale(&self.weight, self.plus_one, self.width, device)
    }

    /// `[.., hidden]` f32 to the same.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let x = self.entered(x);
        let scale = self.scale(&x.device());
        outsize_kernels::rms_norm(x, scale, self.epsilon)
    }

    /// The same, multiplied with `factors [hidden]` f32.
    pub(crate) fn forward_scaled<const D: usize>(
        &self,
        x: Tensor<D>,
        factors: Tensor<1>,
    ) -> Tensor<D> {
        let x = self.entered(x);
        let scale = self.scale(&x.device()).cast(DType::F32);
        let factors = factors.to_device(&scale.device());
        outsize_kernels::rms_norm(x, scale * factors, self.epsilon)
    }

    /// `x + add`, and the norm of that; `[.., hidden]` f32 each.
    pub fn add_forward<const D: usize>(
        &self,
        x: Tensor<D>,
        add: Tensor<D>,
    ) -> (Tensor<D>, Tensor<D>) {
        let (x, add) = (self.entered(x), self.entered(add));
        let add = add.to_device(&x.device());
        let scale = self.scale(&x.device());
        outsize_kernels::add_rms_norm(x, add, scale, self.epsilon)
    }

    /// As [`add_forward`](Self::add_forward), if there is anything to add.
    pub(crate) fn after<const D: usize>(
        &self,
        x: Tensor<D>,
        add: Option<Tensor<D>>,
    ) -> (Tensor<D>, Tensor<D>) {
        match add {
            Some(add) => self.add_forward(x, add),
            None => {
                let x = self.entered(x);
                (x.clone(), self.forward(x))
            }
        }
    }

    /// Activations where its block computes, if it has anything there.
    pub(crate) fn entered<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match &self.weight {
            Some(weight) => entered(x, weight),
            None => x,
        }
    }
}

/// What a norm of so many values scales by: ones without a weight.
pub(super) fn scale(
    weight: &Option<Param<Tensor<1>>>,
    plus_one: bool,
    width: usize,
    device: &Device,
) -> Tensor<1> {
    match (weight, plus_one) {
        (Some(weight), true) => weight.val().cast(DType::F32).add_scalar(1.0),
        (Some(weight), false) => weight.val(),
        (None, _) => Tensor::ones([width], (device, DType::F32)),
    }
}

/// `x / sqrt(mean(x²) + epsilon)` over the last dimension; f32.
pub(crate) fn unit_rms_norm<const D: usize>(x: Tensor<D>, epsilon: f64) -> Tensor<D> {
    let ones = Tensor::ones([x.dims()[D - 1]], (&x.device(), DType::F32));
    outsize_kernels::rms_norm(x, ones, epsilon)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::module::ParamId;
    use burn::tensor::TensorData;

    #[test]
    fn matches_the_formula_in_f64() {
        let device = Device::default();
        let (hidden, epsilon) = (50, 1e-2);
        let x: Vec<f32> = (0..2 * hidden).map(|i| ((i * 37 % 101) as f32 - 50.0) / 80.0).collect();
        let w: Vec<f32> = (0..hidden).map(|i| 1.0 + i as f32 / 8.0).collect();
        let mut norm = RmsNorm::new(hidden, epsilon, &Init::new(&device));
        norm.weight = Some(Param::initialized(
            ParamId::new(),
            Tensor::from_data(TensorData::new(w.clone(), [hidden]), (&device, DType::BF16)),
        ));
        let input =
            Tensor::<2>::from_data(TensorData::new(x.clone(), [2, hidden]), (&device, DType::F32));
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
