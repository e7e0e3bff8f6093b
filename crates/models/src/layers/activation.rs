//! The non-linear function of the feed-forward block.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};
use std::fmt;

use burn::tensor::Tensor;
use burn::tensor::activation::{gelu, relu, sigmoid, silu};
use outsize_kernels::{ActivationFunction, has_gate, has_kernels, is_gpu};

/// The non-linear function of the feed-forward block (`hidden_act`), as `transformers` defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Activation {
    /// `x · sigmoid(x)`; also called swish.
    #[default]
    Silu,
    /// `x · Φ(x)`, Φ being the normal distribution's cumulative function
    /// ([Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415)).
    Gelu,
    /// The same approximated by a hyperbolic tangent:
    /// `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
    GeluTanh,
    /// The same approximated by a sigmoid: `x · sigmoid(1.702 x)`.
    QuickGelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²` ([So et al., 2021](https://arxiv.org/abs/2109.08668)).
    Relu2,
}

/// Names that `transformers` knows them by.
const NAMES: &[(&str, Activation)] = &[
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("quick_gelu", Activation::QuickGelu),
    ("relu", Activation::Relu),
    ("relu2", Activation::Relu2),
];

impl Activation {
    /// The function of that name, if it is known.
    pub fn named(name: &str) -> Option<Self> {
        let named = |(known, activation): &(&str, Self)| (*known == name).then_some(*activation);
        NAMES.iter().find_map(named)
    }

    /// All names that are known.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// The first of its names.
    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find_map(|(name, activation)| (*activation == self).then_some(*name))
            .unwrap_or_default()
    }

    /// The function of every element, in place where the device has kernels and `x` no other owner.
    pub(crate) fn activate<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match has_kernels(&x.device()) {
            true => outsize_kernels::activate(self.kernel(), x),
            false => self.apply(x),
        }
    }

    /// The function of every element, times `up`: by one operation where the device has such.
    pub(crate) fn gate<const D: usize>(self, gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
        match has_gate(&gate.device(), self.kernel()) {
            true => outsize_kernels::gated(self.kernel(), gate, up),
            false => self.apply(gate) * up,
        }
    }

    /// The kernel that applies it.
    pub(crate) fn kernel(self) -> ActivationFunction {
        match self {
            Self::Silu => ActivationFunction::Silu,
            Self::Gelu => ActivationFunction::Gelu,
            Self::GeluTanh => ActivationFunction::GeluTanh,
            Self::QuickGelu => ActivationFunction::QuickGelu,
            Self::Relu => ActivationFunction::Relu,
            Self::Relu2 => ActivationFunction::Relu2,
        }
    }

    /// The function of every element.
    pub fn apply<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Silu => silu(x),
            Self::Gelu => gelu(x),
            Self::GeluTanh => {
                let cube = x.clone() * x.clone() * x.clone() * 0.044715;
                let slope = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
                tanh((x.clone() + cube) * slope).add_scalar(1.0) * x * 0.5
            }
            Self::QuickGelu => sigmoid(x.clone() * 1.702) * x,
            Self::Relu => relu(x),
            Self::Relu2 => {
                let x = relu(x);
                x.clone() * x
            }
        }
    }
}

/// The hyperbolic tangent of every element. Some GPUs make no number of large ones: from 10 on it
/// is 1 in f32.
pub(crate) fn tanh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match is_gpu(&x.device()) {
        true => x.clamp(-20.0, 20.0).tanh(),
        false => x.tanh(),
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device, TensorData};

    use super::*;

    #[test]
    fn each_is_what_pytorch_computes() {
        let x = [-8.0f32, -3.0, -1.0, -0.25, 0.0, 0.25, 1.0, 3.0, 8.0];
        // `ACT2FN[name](torch.tensor(x, dtype=torch.float64))` of transformers 5.23.
        let expected = [
            (
                "silu",
                [
                    -0.002682801043731825,
                    -0.14227761953270035,
                    -0.2689414213699951,
                    -0.10945587477855048,
                    0.0,
                    0.14054412522144952,
                    0.7310585786300049,
                    2.8577223804672998,
                    7.997317198956269,
                ],
            ),
            (
                "gelu",
                [
                    -4.884981308350689e-15,
                    -0.00404969409489031,
                    -0.15865525393145702,
                    -0.10032341857926907,
                    0.0,
                    0.14967658142073093,
                    0.841344746068543,
                    2.99595030590511,
                    7.999999999999995,
                ],
            ),
            (
                "gelu_new",
                [
                    -0.0,
                    -0.0036373920817729943,
                    -0.1588080093917233,
                    -0.100324649298315,
                    0.0,
                    0.149675350701685,
                    0.8411919906082768,
                    2.996362607918227,
                    8.0,
                ],
            ),
            (
                "gelu_fast",
                [
                    -0.0,
                    -0.003637392081860591,
                    -0.15880800939252304,
                    -0.10032464929840129,
                    0.0,
                    0.1496753507015987,
                    0.841191990607477,
                    2.9963626079181394,
                    8.0,
                ],
            ),
            (
                "quick_gelu",
                [
                    -9.766428865730381e-06,
                    -0.01807130970778597,
                    -0.1542042340671787,
                    -0.09880035009980583,
                    0.0,
                    0.1511996499001942,
                    0.8457957659328212,
                    2.981928690292214,
                    7.999990233571134,
                ],
            ),
            ("relu", [0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 1.0, 3.0, 8.0]),
            ("relu2", [0.0, 0.0, 0.0, 0.0, 0.0, 0.0625, 1.0, 9.0, 64.0]),
        ];
        for (name, expected) in expected {
            let input = Tensor::<1>::from_data(
                TensorData::new(x.to_vec(), [x.len()]),
                (&Device::default(), DType::F32),
            );
            let found = Activation::named(name).unwrap().apply(input);
            let found = found.into_data().try_to_vec::<f32>().unwrap();
            for ((found, expected), x) in found.iter().zip(expected).zip(x) {
                assert!(
                    (f64::from(*found) - expected).abs() <= 3e-7 * expected.abs().max(1.0),
                    "{name}({x}) is {found}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn names_are_found_again() {
        for name in Activation::names() {
            let activation = Activation::named(name).unwrap();
            assert_eq!(Activation::named(activation.name()), Some(activation));
        }
        assert_eq!(Activation::named("gelu_10"), None);
    }
}
