//! Computing in bf16 or fp16 with float32 weights.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::PoisonError;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, DType, FloatDType, Int, Tensor};

use super::Accelerator;
use super::step::first_parameter;
use crate::Error;

/// What [`Accelerator::autocast`] computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MixedPrecision {
    /// float32.
    #[default]
    No,
    /// float16, with a scaled loss.
    Fp16,
    /// bfloat16.
    Bf16,
}

impl MixedPrecision {
    /// As Accelerate names it: `no`, `fp16`, `bf16`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
        }
    }

    fn dtype(self) -> Option<FloatDType> {
        match self {
            Self::No => None,
            Self::Fp16 => Some(FloatDType::F16),
            Self::Bf16 => Some(FloatDType::BF16),
        }
    }
}

impl FromStr for MixedPrecision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "no" => Ok(Self::No),
            "fp16" => Ok(Self::Fp16),
            "bf16" => Ok(Self::Bf16),
            "fp8" => Err(Error::Setting(
                "mixed precision fp8 is not supported, as Burn has no such dtype: use bf16"
                    .to_owned(),
            )),
            _ => Err(Error::Setting(format!(
                "unknown mixed precision {name:?}: expected no, fp16 or bf16"
            ))),
        }
    }
}

/// A value whose float tensors can be cast: inputs and outputs of a model.
pub trait CastFloats {
    /// The value with its float tensors in `dtype`; other tensors stay as they are.
    #[must_use]
    fn cast_floats(self, dtype: FloatDType) -> Self;
}

impl<const D: usize> CastFloats for Tensor<D> {
    fn cast_floats(self, dtype: FloatDType) -> Self {
        self.cast(dtype)
    }
}

impl<const D: usize> CastFloats for Tensor<D, Int> {
    fn cast_floats(self, _dtype: FloatDType) -> Self {
        self
    }
}

impl<const D: usize> CastFloats for Tensor<D, Bool> {
    fn cast_floats(self, _dtype: FloatDType) -> Self {
        self
    }
}

impl<T: CastFloats> CastFloats for Option<T> {
    fn cast_floats(self, dtype: FloatDType) -> Self {
        self.map(|value| value.cast_floats(dtype))
    }
}

impl<T: CastFloats> CastFloats for Vec<T> {
    fn cast_floats(self, dtype: FloatDType) -> Self {
        self.into_iter().map(|value| value.cast_floats(dtype)).collect()
    }
}

impl<A: CastFloats, B: CastFloats> CastFloats for (A, B) {
    fn cast_floats(self, dtype: FloatDType) -> Self {
        (self.0.cast_floats(dtype), self.1.cast_floats(dtype))
    }
}

impl<A: CastFloats, B: CastFloats, C: CastFloats> CastFloats for (A, B, C) {
    fn cast_floats(self, dtype: FloatDType) -> Self {
        (self.0.cast_floats(dtype), self.1.cast_floats(dtype), self.2.cast_floats(dtype))
    }
}

impl Accelerator {
    /// Runs `forward` in the precision of
    /// [`mixed_precision`](crate::AcceleratorBuilder::mixed_precision): with the weights and the
    /// input cast to it, and the output cast back to float32. Gradients reach the float32
    /// weights. Compute the loss of the output, outside.
    ///
    /// # Errors
    ///
    /// The module mixes dtypes, such as one that keeps running statistics in float32.
    pub fn autocast<M: Module, I: CastFloats, O: CastFloats>(
        &self,
        model: &M,
        input: I,
        forward: impl FnOnce(&M, I) -> O,
    ) -> Result<O, Error> {
        let precision = self.inner.settings.mixed_precision;
        let Some(dtype) = precision.dtype() else {
            return Ok(forward(model, input));
        };
        let fault = |model: String, reason: String| Error::Precision {
            model,
            precision: precision.name(),
            reason,
        };
        let mut castable = self.inner.castable.lock().unwrap_or_else(PoisonError::into_inner);
        if *castable != Some(first_parameter(model)) {
            if let Some(path) = shared_state(model) {
                let reason = "it has running statistics, which stay in float32".to_owned();
                return Err(fault(path, reason));
            }
            *castable = Some(first_parameter(model));
        }
        drop(castable);
        let low = model.clone().map(&mut Cast { dtype, trainable: true });
        let input = input.cast_floats(dtype);
        match catch_unwind(AssertUnwindSafe(|| forward(&low, input))) {
            Ok(output) => Ok(output.cast_floats(FloatDType::F32)),
            Err(panic) => {
                let message = crate::panic::message(&*panic);
                if !message.to_lowercase().contains("dtype") {
                    std::panic::resume_unwind(panic);
                }
                let reason = format!("it mixes dtypes ({message})");
                Err(fault(std::any::type_name::<M>().to_owned(), reason))
            }
        }
    }
}

/// Casts float parameters, within the graph, so that gradients reach what they were cast from.
struct Cast {
    dtype: FloatDType,
    /// Whether trainable parameters are cast too.
    trainable: bool,
}

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if param.is_require_grad() && !self.trainable {
            return param;
        }
        let (id, value, mapper) = param.consume();
        Param::from_mapped_value(id, value.cast(self.dtype), mapper)
    }
}

/// The path of a parameter that changes when a clone is cast: running statistics.
fn shared_state<M: Module>(model: &M) -> Option<String> {
    struct Visitor {
        path: Vec<String>,
        found: Option<String>,
    }
    impl ModuleVisitor for Visitor {
        fn enter_module(&mut self, name: &str, container_type: &str) {
            self.path.push(format!("{name} ({container_type})"));
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_initialized() && param.base().dtype() == DType::F64 {
                self.found.get_or_insert(self.path.join("."));
            }
        }
    }
    // From f32 to f64 and back loses nothing.
    let cast = |dtype| drop(model.clone().map(&mut Cast { dtype, trainable: false }));
    let mut visitor = Visitor { path: Vec::new(), found: None };
    cast(FloatDType::F64);
    model.visit(&mut visitor);
    if visitor.found.is_some() {
        cast(FloatDType::F32);
    }
    visitor.found
}
