//! `quantization_config`: in which blocks the weights of linear layers are stored.

use outsize_checkpoint::StorageFormat;
use serde_json::Value;

use super::fields::Fields;
use super::known::{self, Effect, KnownField};
use crate::{Error, WeightKind, WeightSpec};

/// Rows or columns that one scale may be for.
const MAX_BLOCK: usize = 1 << 16;

/// Of the object `quantization_config`.
const FIELDS: &[KnownField] = &[
    ("quant_method", Effect::Only(&["\"fp8\""])),
    ("fmt", Effect::Only(&["\"e4m3\""])),
    ("weight_block_size", Effect::Read),
    ("modules_to_not_convert", Effect::Read),
    // Scales of activations, which are not quantised here: made in each pass, so that no tensor holds them.
    ("activation_scheme", Effect::Only(&["\"dynamic\""])),
    ("scale_fmt", Effect::Harmless),
];

/// How linear layers are stored: in fp8, as DeepSeek-V3 is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantization {
    /// The blocks, and their scales.
    pub format: StorageFormat,
    /// Modules whose weights are stored as plain numbers.
    kept: Vec<String>,
}

impl Quantization {
    /// Reads the object, if there is one.
    pub(crate) fn read(all: &Fields<'_>) -> Result<Option<Self>, Error> {
        let name = "quantization_config";
        let Some(fields) = all.object(name)? else {
            return Ok(None);
        };
        if fields.get("quant_method").is_none() {
            return Err(all.refuse(name, "it must have a `quant_method`".to_owned()));
        }
        known::check(&fields, &[FIELDS])?;
        if fields.get("weight_block_size").is_none() {
            return Err(fields.missing("weight_block_size"));
        }
        let block = fields.get("weight_block_size").and_then(Value::as_array);
        let sizes = block.map_or(&[][..], Vec::as_slice).iter().map(|size| {
            let size = usize::try_from(size.as_u64()?).ok()?;
            (1..=MAX_BLOCK).contains(&size).then_some(size)
        });
        let [Some(height), Some(width)] = sizes.collect::<Vec<_>>()[..] else {
            let expected = format!("it must be two whole numbers from 1 to {MAX_BLOCK}");
            return Err(fields.refuse("weight_block_size", expected));
        };
        let kept = match fields.get("modules_to_not_convert") {
            None => Some(vec!["lm_head".to_owned()]),
            Some(value) => value.as_array().and_then(|names| {
                let names = names.iter().map(|name| name.as_str().map(str::to_owned));
                names.collect()
            }),
        };
        let wanted = "it must be a list of names".to_owned();
        Ok(Some(Self {
            format: StorageFormat::fp8([height, width]),
            kept: kept.ok_or_else(|| fields.refuse("modules_to_not_convert", wanted))?,
        }))
    }

    /// Whether a checkpoint of this configuration stores a weight in blocks. One at hand says so itself.
    pub fn converts(&self, weight: &WeightSpec) -> bool {
        let path = weight.name.strip_suffix(".weight").unwrap_or(&weight.name);
        let is_in = |module: &String| {
            let rest = path.strip_prefix(module.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        weight.kind == WeightKind::Linear && !self.kept.iter().any(is_in)
    }
}
