//! Reading a `config.json`: its fields, checked.

mod fields;
mod known;
mod quantization;
mod rope;
mod window;

use outsize_checkpoint::{Dtype, parse_json};
use serde_json::{Map, Value};

pub use self::fields::Fields;
pub(crate) use self::fields::MAX_QUOTE;
pub(crate) use self::known::{COMMON, ROPE, check};
pub use self::known::{Effect, KnownField};
pub(crate) use self::quantization::PACKED_BF16;
pub use self::quantization::{IntegerGroups, Quantization, compressed_integers};
pub use self::rope::{RopeConfig, RopeScaling};
pub(crate) use self::rope::{RopeContext, check_no_rope_scaling, rope_object, theta, yarn_stretch};
pub(crate) use self::window::{
    DEFAULT_WINDOW, chunked_layers, layer_windows, sliding_window, uniform_windows,
};
use crate::Error;
use crate::layers::Activation;

/// Upper bounds on what a configuration may ask for. They are some ten times beyond the largest
/// models known, and low enough that no product of them overflows 64 bits.
pub(crate) const MAX_HIDDEN: usize = 1 << 20;
pub(crate) const MAX_INTERMEDIATE: usize = 1 << 22;
pub(crate) const MAX_LAYERS: usize = 1 << 12;
/// Of all layers together: each is a module of its own, with or without its weights.
pub(crate) const MAX_EXPERTS: usize = 1 << 16;
pub(crate) const MAX_HEADS: usize = 1 << 12;
pub(crate) const MAX_HEAD_DIM: usize = 1 << 12;
pub(crate) const MAX_VOCAB: usize = 1 << 24;
pub(crate) const MAX_POSITIONS: usize = 1 << 30;

/// The object that the text of a `config.json` is.
pub(crate) fn object(text: &str) -> Result<Map<String, Value>, Error> {
    let value = parse_json(text.as_bytes()).map_err(|e| Error::Json { message: e.to_string() })?;
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(Error::Json { message: "it is not an object".to_owned() }),
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

/// What something is multiplied by; `None` if by one.
pub(crate) fn multiplier(fields: &Fields<'_>, field: &str) -> Result<Option<f64>, Error> {
    Ok(match fields.get(field) {
        Some(_) => Some(fields.number_within(field, 1e-6, 1e6)?).filter(|&scale| scale != 1.0),
        None => None,
    })
}

/// A list of numbers.
pub(crate) fn numbers(value: &Value) -> Option<Vec<usize>> {
    let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
    value.as_array()?.iter().map(number).collect()
}

/// The number of a token, under the first of its names that is there, or `absent`.
pub(crate) fn token_id(fields: &Fields<'_>, names: &[&str], absent: u32) -> Result<u32, Error> {
    let Some((name, id)) = names.iter().find_map(|name| Some((*name, fields.get(name)?))) else {
        return Ok(absent);
    };
    let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
    number.ok_or_else(|| fields.refuse(name, "it must be the number of a token".to_owned()))
}

/// The type that the weights were saved in, where it is said.
pub(crate) fn dtype(fields: &Fields<'_>) -> Result<Option<Dtype>, Error> {
    // `dtype` since transformers 4.56, `torch_dtype` before.
    let field = if fields.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    let Some(name) = fields.text(field)? else {
        return Ok(None);
    };
    match name.strip_prefix("torch.").unwrap_or(name) {
        "float32" => Ok(Some(Dtype::F32)),
        "float16" => Ok(Some(Dtype::F16)),
        "bfloat16" => Ok(Some(Dtype::BF16)),
        "float64" => Ok(Some(Dtype::F64)),
        _ => Err(fields.refuse(
            field,
            "only \"bfloat16\", \"float16\", \"float32\" and \"float64\" are supported".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests;
