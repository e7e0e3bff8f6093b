//! A model's `config.json`, checked.

mod fields;
mod known;
mod rope;
mod window;

use std::fmt;

use burn::tensor::Device;
use serde_json::Value;

use self::fields::{Fields, printable};
pub use self::rope::{RopeConfig, RopeScaling};
use crate::{Activation, Error, LlamaForCausalLm};

/// Upper bounds on what a configuration may ask for. They are some ten times beyond the largest models known, and low
/// enough that no product of them overflows 64 bits.
const MAX_HIDDEN: usize = 1 << 20;
const MAX_INTERMEDIATE: usize = 1 << 22;
const MAX_LAYERS: usize = 1 << 12;
const MAX_HEADS: usize = 1 << 12;
const MAX_HEAD_DIM: usize = 1 << 12;
const MAX_VOCAB: usize = 1 << 24;
const MAX_POSITIONS: usize = 1 << 30;

/// More names of unknown fields than this are of no use to anyone.
const MAX_UNKNOWN: usize = 32;

/// The architectures that can be run, by `model_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Architecture {
    /// Llama 1, 2 and 3, and the many models that took their shape.
    Llama,
    /// Mistral: Llama with a sliding window in every layer, or without.
    Mistral,
    /// Qwen 2 and 2.5: Llama with biases for queries, keys and values, and sliding windows in some layers.
    Qwen2,
}

impl Architecture {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Llama, Self::Mistral, Self::Qwen2];

    /// The name in `model_type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
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
    /// The non-linear function of the MLP (`hidden_act`).
    pub activation: Activation,
    /// Whether the projections to queries, keys and values have a bias.
    pub attention_in_bias: bool,
    /// Whether the projection from attention has a bias.
    pub attention_out_bias: bool,
    /// Whether the MLP's projections have a bias.
    pub mlp_bias: bool,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// Of each layer, how many tokens a token sees, itself included; `None` is all before it.
    pub windows: Vec<Option<usize>>,
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
    /// Fields that nobody here knows, and that were passed over; at most 32, in the order of their names.
    pub unknown_fields: Vec<String>,
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
        Self::read(architecture(&fields)?, &fields)
    }

    fn read(architecture: Architecture, fields: &Fields<'_>) -> Result<Self, Error> {
        let mut unknown = known::check(fields, &[known::COMMON, known::own(architecture)])?;
        check_head(fields)?;
        let hidden_size = fields.size("hidden_size", MAX_HIDDEN)?;
        let heads = fields.size("num_attention_heads", MAX_HEADS)?;
        // Absent and null are not the same here.
        let absent = match architecture {
            _ if fields.has("num_key_value_heads") => heads,
            Architecture::Llama => heads,
            Architecture::Mistral => 8,
            Architecture::Qwen2 => 32,
        };
        let kv_heads = fields.size_or("num_key_value_heads", absent, MAX_HEADS)?;
        if heads % kv_heads != 0 {
            return Err(fields.refuse(
                "num_key_value_heads",
                format!("{kv_heads} key-value heads must divide num_attention_heads, {heads}"),
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
        let trained = match architecture {
            Architecture::Llama => 2048,
            Architecture::Mistral => 4096 * 32,
            Architecture::Qwen2 => 32_768,
        };
        let max_position_embeddings =
            fields.size_or("max_position_embeddings", trained, MAX_POSITIONS)?;
        let surroundings = rope::Surroundings {
            fields,
            head_dim,
            max_position_embeddings,
        };
        let rope = RopeConfig::read(&surroundings, &mut unknown)?;
        let num_hidden_layers = fields.size("num_hidden_layers", MAX_LAYERS)?;
        let (attention_in_bias, attention_out_bias, mlp_bias) = match architecture {
            Architecture::Llama => {
                let attention = fields.flag_or("attention_bias", false)?;
                (attention, attention, fields.flag_or("mlp_bias", false)?)
            }
            Architecture::Mistral => (false, false, false),
            Architecture::Qwen2 => (true, false, false),
        };
        unknown.truncate(MAX_UNKNOWN);
        Ok(Self {
            architecture,
            hidden_size,
            intermediate_size: fields.size("intermediate_size", MAX_INTERMEDIATE)?,
            num_hidden_layers,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            vocab_size: fields.size("vocab_size", MAX_VOCAB)?,
            rms_norm_eps,
            activation: activation(fields)?,
            attention_in_bias,
            attention_out_bias,
            mlp_bias,
            rope,
            windows: window::read(architecture, fields, num_hidden_layers)?,
            tie_word_embeddings: fields.flag_or("tie_word_embeddings", false)?,
            max_position_embeddings,
            bos_token_ids: fields.ids("bos_token_id")?,
            eos_token_ids: fields.ids("eos_token_id")?,
            dtype: dtype(fields)?,
            unknown_fields: unknown,
        })
    }

    /// An empty model: its parameters have names and shapes, and no storage until something asks for a value.
    pub fn init(&self, device: &Device) -> LlamaForCausalLm {
        LlamaForCausalLm::new(self, device)
    }

    /// How many tokens a token of a layer sees, itself included; `None` is all before it.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }

    /// Width of all query heads together.
    pub fn query_size(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Width of all key heads together, which is that of all value heads.
    pub fn key_value_size(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// The longest context that makes sense, in tokens: what the model was trained for, unless its rotary
    /// scaling follows the length of the text.
    pub fn longest_context(&self) -> usize {
        match self.rope.scaling {
            RopeScaling::Dynamic { .. } => crate::kv_cache::MAX_CONTEXT,
            _ => self.max_position_embeddings,
        }
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
            found: printable(found),
            supported: Architecture::ALL
                .iter()
                .map(|a| a.name())
                .collect::<Vec<_>>()
                .join(", "),
        })
}

/// Refuses models that end in anything but logits of the next token.
fn check_head(fields: &Fields<'_>) -> Result<(), Error> {
    let Some(value) = fields.get("architectures") else {
        return Ok(());
    };
    let names = value.as_array().map_or(&[][..], Vec::as_slice);
    let causal = |name: &Value| name.as_str().is_some_and(|n| n.ends_with("ForCausalLM"));
    if names.iter().any(causal) {
        return Ok(());
    }
    Err(fields.refuse(
        "architectures",
        "only models for causal language modelling (\"…ForCausalLM\") are supported".to_owned(),
    ))
}

fn activation(fields: &Fields<'_>) -> Result<Activation, Error> {
    let Some(name) = fields.text("hidden_act")? else {
        return Ok(Activation::Silu);
    };
    Activation::named(name).ok_or_else(|| {
        let names: Vec<_> = Activation::names().collect();
        let expected = format!("only these are supported: {}", names.join(", "));
        fields.refuse("hidden_act", expected)
    })
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
