//! A model's `config.json`, checked.

mod fields;
mod rope;

use std::fmt;

use burn::tensor::Device;
use serde_json::Value;

use self::fields::Fields;
pub use self::rope::{RopeConfig, RopeScaling};
use crate::{Error, LlamaForCausalLm};

/// Upper bounds on what a configuration may ask for. They are some ten times beyond the largest models known, and low
/// enough that no product of them overflows 64 bits.
const MAX_HIDDEN: usize = 1 << 20;
const MAX_INTERMEDIATE: usize = 1 << 22;
const MAX_LAYERS: usize = 1 << 12;
const MAX_HEADS: usize = 1 << 12;
const MAX_HEAD_DIM: usize = 1 << 12;
const MAX_VOCAB: usize = 1 << 24;
const MAX_POSITIONS: usize = 1 << 30;

/// The architectures that can be run, by `model_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Architecture {
    /// Llama 1, 2 and 3, and the many models that took their shape.
    Llama,
}

impl Architecture {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Llama];

    /// The name in `model_type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

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

/// A model's `config.json`, checked: every size is positive and bounded, and every option is one that this crate runs.
///
/// Fields carry the names and defaults of `transformers`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// Which architecture this is (`model_type`).
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP's inner layer.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Width of one head; even. Not always `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Token ids run from 0 to this, exclusive.
    pub vocab_size: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f64,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// Whether the output head is the embedding table.
    pub tie_word_embeddings: bool,
    /// The longest context that the model was trained for, in tokens.
    pub max_position_embeddings: usize,
    /// Ids that begin a text; may be empty.
    pub bos_token_ids: Vec<u32>,
    /// Ids that end a text; may be empty.
    pub eos_token_ids: Vec<u32>,
    /// The type that the weights were saved in, where it is said.
    pub dtype: Option<WeightDtype>,
}

impl ModelConfig {
    /// Reads the text of a Hugging Face `config.json`.
    ///
    /// # Errors
    /// Text that is not a JSON object, an architecture that is not supported, a field that is missing, out of bounds, or
    /// asks for something this crate does not run; the message names the field.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let value: Value = serde_json::from_str(text).map_err(|e| Error::Json {
            message: e.to_string(),
        })?;
        let Value::Object(map) = &value else {
            return Err(Error::Json {
                message: "it is not an object".to_owned(),
            });
        };
        let fields = Fields::new(map);
        match architecture(&fields)? {
            Architecture::Llama => Self::llama(&fields),
        }
    }

    fn llama(fields: &Fields<'_>) -> Result<Self, Error> {
        refuse_unsupported(fields)?;
        let hidden_size = fields.size("hidden_size", MAX_HIDDEN)?;
        let heads = fields.size("num_attention_heads", MAX_HEADS)?;
        let kv_heads = fields.size_or("num_key_value_heads", heads, MAX_HEADS)?;
        if heads % kv_heads != 0 {
            return Err(fields.refuse(
                "num_key_value_heads",
                format!("it must divide num_attention_heads, {heads}"),
            ));
        }
        if fields.get("head_dim").is_none() && hidden_size % heads != 0 {
            return Err(fields.refuse(
                "hidden_size",
                format!(
                    "without a `head_dim` it must be a multiple of num_attention_heads, {heads}"
                ),
            ));
        }
        let head_dim = fields.size_or("head_dim", hidden_size / heads, MAX_HEAD_DIM)?;
        if head_dim == 0 || head_dim % 2 != 0 {
            let field = if fields.get("head_dim").is_some() {
                "head_dim"
            } else {
                "hidden_size"
            };
            return Err(fields.refuse(
                field,
                format!("the width of a head, {head_dim}, must be even and not 0"),
            ));
        }
        let rms_norm_eps = fields.number_or("rms_norm_eps", 1e-6)?;
        // Below the least normal f32 it would be no protection at all.
        if !(f64::from(f32::MIN_POSITIVE)..=1.0).contains(&rms_norm_eps) {
            return Err(fields.refuse(
                "rms_norm_eps",
                "it must be above 0 and at most 1".to_owned(),
            ));
        }
        let max_position_embeddings =
            fields.size_or("max_position_embeddings", 2048, MAX_POSITIONS)?;
        Ok(Self {
            architecture: Architecture::Llama,
            hidden_size,
            intermediate_size: fields.size("intermediate_size", MAX_INTERMEDIATE)?,
            num_hidden_layers: fields.size("num_hidden_layers", MAX_LAYERS)?,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            vocab_size: fields.size("vocab_size", MAX_VOCAB)?,
            rms_norm_eps,
            rope: RopeConfig::read(fields, max_position_embeddings)?,
            tie_word_embeddings: fields.flag_or("tie_word_embeddings", false)?,
            max_position_embeddings,
            bos_token_ids: fields.ids("bos_token_id")?,
            eos_token_ids: fields.ids("eos_token_id")?,
            dtype: dtype(fields)?,
        })
    }

    /// An empty model: its parameters have names and shapes, and no storage until something asks for a value.
    pub fn init(&self, device: &Device) -> LlamaForCausalLm {
        match self.architecture {
            Architecture::Llama => LlamaForCausalLm::new(self, device),
        }
    }

    /// Width of all query heads together.
    pub fn query_size(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Width of all key heads together, which is that of all value heads.
    pub fn key_value_size(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// Values in all parameters; a tied head counts once.
    pub fn parameters(&self) -> u64 {
        self.blocks()
            .iter()
            .flat_map(|block| &block.tensors)
            .map(|tensor| tensor.elements())
            .sum()
    }
}

fn architecture(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let found = fields
        .text("model_type")?
        .ok_or_else(|| fields.missing("model_type"))?;
    Architecture::ALL
        .iter()
        .copied()
        .find(|a| a.name() == found)
        .ok_or_else(|| Error::ModelType {
            found: fields::cut(found),
            supported: Architecture::ALL
                .iter()
                .map(|a| a.name())
                .collect::<Vec<_>>()
                .join(", "),
        })
}

/// Options that would change the result and are not built in.
fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), Error> {
    for bias in ["attention_bias", "mlp_bias"] {
        if fields.flag_or(bias, false)? {
            return Err(fields.refuse(
                bias,
                "only models without these biases are supported".to_owned(),
            ));
        }
    }
    if fields.text("hidden_act")?.is_some_and(|act| act != "silu") {
        return Err(fields.refuse("hidden_act", "only \"silu\" is supported".to_owned()));
    }
    if fields.get("quantization_config").is_some() {
        return Err(fields.refuse(
            "quantization_config",
            "quantized checkpoints are not supported; use the model's bf16, f16 or f32 checkpoint"
                .to_owned(),
        ));
    }
    Ok(())
}

fn dtype(fields: &Fields<'_>) -> Result<Option<WeightDtype>, Error> {
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
