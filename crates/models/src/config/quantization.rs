//! `quantization_config`: how the weights of linear layers are stored.

mod compressed;
mod integers;
mod kept_modules;

pub use self::compressed::{IntegerGroups, compressed_integers};
use outsize_checkpoint::{StorageFormat, shown};
use serde_json::Value;

use self::kept_modules::KeptModules;

use super::fields::{Fields, MAX_QUOTE};
use super::known::{self, Effect, KnownField};
use crate::{Error, WeightKind, WeightSpec};

/// Rows or columns that one scale may be for.
const MAX_BLOCK: usize = 1 << 16;

/// What `quant_method` is in a checkpoint with weights in packed bf16, so that other programs do
/// not take it for another.
pub(crate) const PACKED_BF16: &str = "packed_bf16";

/// Of the object `quantization_config`.
const FIELDS: &[KnownField] = &[
    ("quant_method", Effect::Read),
    ("fmt", Effect::Only(&["\"e4m3\""])),
    ("weight_block_size", Effect::Read),
    ("modules_to_not_convert", Effect::Read),
    // Of activations, which are not quantised here.
    ("activation_scheme", Effect::Only(&["\"dynamic\"", "\"static\""])),
    ("dequantize", Effect::Harmless),
    ("scale_fmt", Effect::Harmless),
    (EXPERTS, Effect::Read),
];

/// What says how experts are stored, here or beside.
const EXPERTS: &str = "expert_dtype";

/// What DeepSeek-V4 has as plain numbers.
const DEEPSEEK_V4_KEPT: &[&str] = &[
    "lm_head",
    "model.layers.*.self_attn.compressor",
    "model.layers.*.self_attn.indexer.compressor",
    "model.layers.*.self_attn.indexer.weights_proj",
];

/// How linear layers are stored: in fp8, as DeepSeek-V3 is published, in MXFP4, as gpt-oss is, in
/// GGUF's blocks, or as integers of 4 or 8 bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantization {
    /// The blocks, and their scales; `None` where each tensor's own type says it, as in GGUF files
    /// and for packed bf16.
    pub format: Option<StorageFormat>,
    /// Those of experts, if they are others.
    experts: Option<StorageFormat>,
    /// Modules whose weights are stored as plain numbers.
    kept: KeptModules,
}

impl Quantization {
    /// Ends of the names of tensors with scales of activations, which are not quantised here.
    pub(crate) const OF_ACTIVATIONS: &[&str] =
        &[".activation_scale", ".input_scale", ".input_zero_point"];

    /// Reads the object, if there is one; that of a model of several may be with its text part.
    pub(crate) fn read(all: &Fields<'_>) -> Result<Option<Self>, Error> {
        let name = "quantization_config";
        let Some(fields) = all.object(name)? else {
            return match all.object("text_config")? {
                Some(text) => Self::read(&text),
                None => Ok(None),
            };
        };
        let method = fields.text("quant_method")?;
        let (format, kept, absent) = match method {
            None => return Err(all.refuse(name, "it must have a `quant_method`".to_owned())),
            Some("gguf" | PACKED_BF16) => {
                let kept = KeptModules::default();
                return Ok(Some(Self { format: None, experts: None, kept }));
            }
            Some("fp8") => {
                known::check(&fields, &[FIELDS])?;
                let format = fp8(&fields)?;
                let (format, kept) = match (all.text("model_type")?, format.scales) {
                    (Some("deepseek_v4"), Some(grid)) => {
                        (StorageFormat::deepseek_v4_fp8(grid.block), DEEPSEEK_V4_KEPT)
                    }
                    _ => (format, &["lm_head"][..]),
                };
                let kept = kept.iter().map(|name| (*name).to_owned());
                (format, "modules_to_not_convert", kept.collect())
            }
            Some("mxfp4") => {
                known::check(&fields, &[MXFP4])?;
                (StorageFormat::mxfp4(), "modules_to_not_convert", Vec::new())
            }
            Some("compressed-tensors") => (compressed::read(&fields)?, "ignore", Vec::new()),
            Some("awq") => {
                (integers::awq(&fields)?, "modules_to_not_convert", vec!["lm_head".to_owned()])
            }
            Some("gptq") => (integers::gptq(&fields)?, "modules_to_not_convert", head(&fields)?),
            Some(other) => {
                let advice = format!(
                    "weights quantised by {other:?} are not built in (\"awq\", \"gptq\", \
                     \"compressed-tensors\", \"fp8\" and \"mxfp4\" are): take the model's original weights, or a GGUF file of it"
                );
                return Err(fields.refuse("quant_method", advice));
            }
        };
        let names = match fields.get(kept) {
            None => absent,
            Some(value) => {
                let names = value.as_array().and_then(|names| {
                    let names = names.iter().map(|name| name.as_str().map(str::to_owned));
                    names.collect()
                });
                let refused = || fields.refuse(kept, "it must be a list of names".to_owned());
                let mut names: Vec<String> = names.ok_or_else(refused)?;
                // These quantise blocks alone, whatever else is listed.
                if matches!(method, Some("awq" | "gptq")) {
                    names.extend(absent);
                }
                names
            }
        };
        let kept = KeptModules::new(names).map_err(|name| {
            let expected = format!("{:?} is no regular expression", shown(&name, MAX_QUOTE));
            fields.refuse(kept, expected)
        })?;
        let owner = if fields.get(EXPERTS).is_some() { &fields } else { all };
        let experts = match owner.text(EXPERTS)? {
            None | Some("fp8") => None,
            Some("fp4") => Some(StorageFormat::deepseek_v4_fp4()),
            Some(_) => {
                let expected = "only \"fp4\" and \"fp8\" are supported".to_owned();
                return Err(owner.refuse(EXPERTS, expected));
            }
        };
        Ok(Some(Self { format: Some(format), experts, kept }))
    }

    /// How a checkpoint of this configuration stores a weight, if in blocks.
    pub fn format_of(&self, weight: &WeightSpec) -> Option<StorageFormat> {
        let is_expert = weight.name.contains(".experts.");
        let format = self.experts.filter(|_| is_expert).or(self.format);
        format.filter(|_| self.converts(weight))
    }

    /// Whether a checkpoint of this configuration stores a weight in blocks. One at hand says so
    /// itself.
    pub fn converts(&self, weight: &WeightSpec) -> bool {
        let path = weight.name.strip_suffix(".weight").unwrap_or(&weight.name);
        self.format.is_some() && weight.kind == WeightKind::Linear && !self.kept.contains(path)
    }
}

/// What GPTQ leaves alone: the head, unless it is quantised too.
fn head(fields: &Fields<'_>) -> Result<Vec<String>, Error> {
    let has_head = fields.flag_or("lm_head", false)?;
    Ok(if has_head { Vec::new() } else { vec!["lm_head".to_owned()] })
}

/// The blocks of DeepSeek-V3; if null says that there are none, one scale for each matrix.
fn fp8(fields: &Fields<'_>) -> Result<StorageFormat, Error> {
    let field = "weight_block_size";
    if fields.get(field).is_none() {
        return match fields.has(field) {
            true => Ok(StorageFormat::whole_fp8()),
            false => Err(fields.missing(field)),
        };
    }
    let block = fields.get("weight_block_size").and_then(Value::as_array);
    let sizes = block.map_or(&[][..], Vec::as_slice).iter().map(|size| {
        let size = usize::try_from(size.as_u64()?).ok()?;
        (1..=MAX_BLOCK).contains(&size).then_some(size)
    });
    match sizes.collect::<Vec<_>>()[..] {
        [Some(height), Some(width)] => Ok(StorageFormat::fp8([height, width])),
        _ => {
            let expected = format!("it must be two whole numbers from 1 to {MAX_BLOCK}");
            Err(fields.refuse("weight_block_size", expected))
        }
    }
}

/// Of `quantization_config` of gpt-oss.
const MXFP4: &[KnownField] = &[
    ("quant_method", Effect::Read),
    ("modules_to_not_convert", Effect::Read),
    ("dequantize", Effect::OFF),
];
