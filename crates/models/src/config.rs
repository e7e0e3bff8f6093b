//! Reading a `config.json`: its fields, checked.

mod fields;
mod known;
mod quantization;
mod rope;
mod window;

pub use self::fields::Fields;
pub(crate) use self::fields::printable;
pub(crate) use self::known::{COMMON, check};
pub use self::known::{Effect, KnownField};
pub use self::quantization::Quantization;
pub(crate) use self::rope::RopeContext;
pub use self::rope::{RopeConfig, RopeScaling};
pub(crate) use self::window::{DEFAULT_WINDOW, layer_windows, sliding_window};
use crate::Error;
use crate::layers::Activation;

/// Upper bounds on what a configuration may ask for. They are some ten times beyond the largest models known, and low
/// enough that no product of them overflows 64 bits.
pub(crate) const MAX_HIDDEN: usize = 1 << 20;
pub(crate) const MAX_INTERMEDIATE: usize = 1 << 22;
pub(crate) const MAX_LAYERS: usize = 1 << 12;
pub(crate) const MAX_HEADS: usize = 1 << 12;
pub(crate) const MAX_HEAD_DIM: usize = 1 << 12;
pub(crate) const MAX_VOCAB: usize = 1 << 24;
pub(crate) const MAX_POSITIONS: usize = 1 << 30;

/// The type that a checkpoint's weights were saved in, as the configuration has it. The checkpoint itself has the last
/// word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightDtype {
    /// 32-bit IEEE floating point.
    F32,
    /// 16-bit IEEE floating point.
    F16,
    /// The upper half of a 32-bit floating point number.
    Bf16,
}

impl WeightDtype {
    /// Bytes of one value.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// The non-linear function that `field` names, or `default` if it is absent.
pub(crate) fn activation(
    fields: &Fields<'_>,
    field: &str,
    default: Activation,
) -> Result<Activation, Error> {
    let Some(name) = fields.text(field)? else {
        return Ok(default);
    };
    Activation::named(name).ok_or_else(|| {
        let names: Vec<_> = Activation::names().collect();
        let expected = format!("only these are supported: {}", names.join(", "));
        fields.refuse(field, expected)
    })
}

/// What a norm adds before its root.
pub(crate) fn epsilon(fields: &Fields<'_>, field: &str, default: f64) -> Result<f64, Error> {
    let epsilon = fields.number_or(field, default)?;
    // Below the least normal f32 it would be no protection at all.
    if (f64::from(f32::MIN_POSITIVE)..=1.0).contains(&epsilon) {
        return Ok(epsilon);
    }
    Err(fields.refuse(field, "it must be above 0 and at most 1".to_owned()))
}

/// The type that the weights were saved in, where it is said.
pub(crate) fn dtype(fields: &Fields<'_>) -> Result<Option<WeightDtype>, Error> {
    // `dtype` since transformers 4.56, `torch_dtype` before.
    let field = if fields.get("dtype").is_some() {
        "dtype"
    } else {
        "torch_dtype"
    };
    let Some(name) = fields.text(field)? else {
        return Ok(None);
    };
    match name.strip_prefix("torch.").unwrap_or(name) {
        "float32" => Ok(Some(WeightDtype::F32)),
        "float16" => Ok(Some(WeightDtype::F16)),
        "bfloat16" => Ok(Some(WeightDtype::Bf16)),
        _ => Err(fields.refuse(
            field,
            "only \"bfloat16\", \"float16\" and \"float32\" are supported".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests;
