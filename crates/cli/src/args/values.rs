//! Values of options: by name, or numbers in a range.

use crate::error::Failure;
use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use outsize::generate::Pooling;
use outsize::models::{ActivationDtype, KvDtype, MAX_BATCH, WhenFull};
use outsize::plan::{Strategy, WeightDtype, parse_size};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Names, what they mean to a reader of `--help`, and to the libraries.
pub type Named<T> = [(&'static str, &'static str, T)];

/// How weights are placed.
pub const STRATEGIES: &Named<Strategy> = &[
    ("auto", "The placement with the least predicted time per token", Strategy::Auto),
    (
        "sequential",
        "Devices are filled one after the other, as by Accelerate",
        Strategy::Sequential,
    ),
    ("balanced", "Each GPU gets about the same, as by Accelerate", Strategy::Balanced),
    (
        "balanced_low_0",
        "The same, with as little as possible on the first GPU",
        Strategy::BalancedLow0,
    ),
];

/// Dtypes of the KV cache.
pub const KV_DTYPES: &Named<KvDtype> = &[
    ("f32", "32-bit floats", KvDtype::F32),
    ("bf16", "Brain floats", KvDtype::Bf16),
    ("f16", "16-bit floats", KvDtype::F16),
];

/// Dtypes of activations in matmuls.
pub const ACTIVATION_DTYPES: &Named<ActivationDtype> = &[
    ("f32", "As they are", ActivationDtype::F32),
    ("bf16", "Rounded to brain floats", ActivationDtype::Bf16),
];

/// What to do when the context is full.
pub const WHEN_FULL: &Named<WhenFull> = &[
    ("refuse", "End the text; a prompt that does not fit is an error", WhenFull::Refuse),
    ("slide", "Forget the oldest tokens and go on", WhenFull::Slide),
];

/// Takes one of the values by its name.
pub fn one_of<T: Copy + Send + Sync>(all: &'static Named<T>) -> impl TypedValueParser<Value = T> {
    let names = all.iter().map(|(name, help, _)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(names).try_map(|given| {
        let found = all.iter().find(|(name, ..)| *name == given);
        found.map(|(.., value)| *value).ok_or("unknown name")
    })
}

/// The name of one of the values.
pub fn name_of<T: PartialEq>(all: &'static Named<T>, value: &T) -> &'static str {
    all.iter().find(|(.., known)| known == value).map_or("unknown", |(name, ..)| name)
}

/// A number of tokens, at least one.
pub fn some() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// A number of tokens to guess at once.
pub fn draft_tokens() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=255)
}

/// Tokens of images, so many at least.
pub fn image_tokens(least: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=1 << 20)
}

/// A size in bytes, at least one.
pub fn some_bytes(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Ok(0) => Err("expected more than 0".to_string()),
        size => size.map_err(|error| error.to_string()),
    }
}

/// How states of tokens become one.
pub fn pooling() -> impl TypedValueParser<Value = Pooling> {
    let names = Pooling::NAMES.map(|(name, _)| name);
    PossibleValuesParser::new(names).try_map(|name| name.parse().map_err(|()| "unknown name"))
}

/// A batch size that is possible.
pub fn batch() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=MAX_BATCH as u64)
}

/// MODEL, and the values of an option of several values, which takes a MODEL behind it for one
/// more.
pub fn model_and_values<'a>(
    model: &'a Option<PathBuf>,
    values: &'a [String],
) -> Result<(&'a Path, &'a [String]), Failure> {
    match (model, values) {
        (Some(model), values) => Ok((model, values)),
        (None, [values @ .., model]) if !values.is_empty() => Ok((Path::new(model), values)),
        _ => Err(Failure::usage("MODEL is missing")),
    }
}

/// A temperature of sampling.
pub fn temperature(text: &str) -> Result<f32, String> {
    number(text, 0.0..=f32::MAX, "a finite number, 0 or above")
}

/// A share of the probability.
pub fn share(text: &str) -> Result<f32, String> {
    number(text, 0.0..=1.0, "a number from 0 to 1")
}

/// A factor that makes tokens less likely.
pub fn penalty(text: &str) -> Result<f32, String> {
    number(text, f32::MIN_POSITIVE..=f32::MAX, "a finite number above 0")
}

fn number(text: &str, range: RangeInclusive<f32>, expected: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value| range.contains(value));
    value.ok_or_else(|| format!("expected {expected}"))
}

/// A dtype of weights by its name here or in PyTorch.
pub fn weight_dtype(name: &str) -> Result<WeightDtype, String> {
    let lower = name.trim().to_ascii_lowercase();
    let own = match lower.strip_prefix("torch.").unwrap_or(&lower) {
        "float64" | "double" => "f64",
        "float32" | "fp32" | "float" => "f32",
        "float16" | "fp16" | "half" => "f16",
        "bfloat16" => "bf16",
        "fp8" | "float8_e4m3fn" | "float8_e5m2" => "f8",
        "fp4" => "f4",
        "uint8" => "int8",
        other => other,
    };
    WeightDtype::ALL.into_iter().find(|dtype| dtype.name() == own).ok_or_else(|| {
        let known = WeightDtype::ALL.map(WeightDtype::name).join(", ");
        format!("unknown dtype {name:?}; known are {known}")
    })
}

/// A tensor's name and its dtype, as `NAME=DTYPE`.
pub fn special_dtype(text: &str) -> Result<(String, WeightDtype), String> {
    let (name, dtype) = text.rsplit_once('=').ok_or("expected NAME=DTYPE")?;
    Ok((name.to_string(), weight_dtype(dtype)?))
}

/// A dtype to estimate weights in; none for that which they are stored in.
pub fn estimated_dtype(name: &str) -> Result<Option<WeightDtype>, String> {
    use WeightDtype::{Bool, Int16, Int32, Int64};
    match name {
        "stored" => Ok(None),
        name => match weight_dtype(name)? {
            Int64 | Int32 | Int16 | Bool => Err("weights cannot be estimated in it".to_string()),
            dtype => Ok(Some(dtype)),
        },
    }
}
