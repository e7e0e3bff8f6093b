//! A `config.json` from the metadata of a GGUF file.

mod architecture;
mod deepseek;
mod experts;
mod fields;
mod gemma;
mod linear_attention;
mod mixtures;
mod relatives;
mod rope;
mod state_space;

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use self::architecture::{ARCHITECTURES, Convention, Convention::*};
use self::fields::{FIELDS, OTHERS};
use super::ARCHITECTURE;
use super::fault::GgufFault;
use super::header::{GgufHeader, metadata};
use super::tokenizer::end_ids;
use super::value::GgufValue;
use crate::header::HeaderEntry;

/// The most bytes of values that are copied. Real ones have some hundred.
const MAX_COPIED: usize = 1 << 20;

/// The text of a `config.json` that says what the metadata says. `factors` are those of the rotary
/// embedding of each pair of dimensions, where there are such tensors: of all texts, and of short
/// and long ones.
pub(super) fn json(
    header: &GgufHeader,
    tensors: &[&HeaderEntry],
    factors: [Option<Vec<f32>>; 3],
) -> Result<Vec<u8>, GgufFault> {
    let mut config = Config::new(header, tensors)?;
    config.add_rope(factors)?;
    let has_two = config.fields.get("model_type").is_some_and(|it| it == "olmo3");
    if has_two || matches!(config.architecture, "laguna" | "mellum" | "mimo2" | "step35") {
        config.nest_rope()?;
    }
    if config.architecture == "minimax-m3" {
        config.nest_text_part("minimax_m3_vl");
    }
    Ok(Value::from(config.fields).to_string().into_bytes())
}

struct Config<'a> {
    header: &'a GgufHeader,
    /// Of all parts.
    tensors: &'a [&'a HeaderEntry],
    architecture: &'a str,
    conventions: &'static [Convention],
    fields: Map<String, Value>,
}

impl<'a> Config<'a> {
    /// All but the rotary embedding.
    fn new(header: &'a GgufHeader, tensors: &'a [&'a HeaderEntry]) -> Result<Self, GgufFault> {
        refuse_other_files(header)?;
        let key = ARCHITECTURE;
        let architecture =
            header.text(key)?.ok_or_else(|| metadata(key, "it is missing".to_owned()))?;
        let known = ARCHITECTURES.iter().find(|(name, ..)| *name == architecture);
        let Some(&(_, model_type, conventions)) = known else {
            let names: Vec<_> = ARCHITECTURES.iter().map(|(name, ..)| *name).collect();
            let reason = format!(
                "the architecture {architecture:?} is not built in for GGUF files: {} are",
                names.join(", ")
            );
            return Err(metadata(key, reason));
        };
        let fields = Map::new();
        let mut config = Self { header, tensors, architecture, conventions, fields };
        config.set("model_type", model_type);
        if matches!(architecture, "qwen2moe" | "qwen3moe" | "qwen3vlmoe" | "olmoe") {
            // The others of these add the shares up as they are.
            config.set("norm_topk_prob", architecture.starts_with("qwen3"));
        }
        config.copy()?;
        config.leave_further_layers_out()?;
        match architecture {
            _ if config.has_convention(LatentAttention) => config.add_latent_attention()?,
            "gemma3n" | "gemma4" => config.add_heads_of_kinds()?,
            // They have none.
            "mamba" | "mamba2" => {}
            _ => config.add_heads()?,
        }
        if config.has_convention(LinearAttention) {
            config.add_linear_attention()?;
        }
        config.add_shapes()?;
        if config.has_experts()? {
            config.add_experts()?;
        }
        config.add_conventions();
        config.add_state_space()?;
        config.add_conventions_of_relatives()?;
        config.add_conventions_of_mixtures()?;
        Ok(config)
    }

    fn set(&mut self, field: &str, value: impl Into<Value>) {
        self.fields.insert(field.to_owned(), value.into());
    }

    fn has_convention(&self, convention: Convention) -> bool {
        self.conventions.contains(&convention)
    }

    /// The whole key of one of the architecture.
    fn key(&self, end: &str) -> String {
        format!("{}.{end}", self.architecture)
    }

    fn unsigned(&self, end: &str) -> Result<Option<u64>, GgufFault> {
        self.header.unsigned(&self.key(end))
    }

    fn number(&self, end: &str) -> Option<f64> {
        match self.header.get(&self.key(end))? {
            GgufValue::Array(_) => None,
            value => value.json()?.as_f64(),
        }
    }

    /// A whole number that must be there.
    fn required(&self, end: &str) -> Result<u64, GgufFault> {
        let found = self.unsigned(end)?;
        found.ok_or_else(|| metadata(&self.key(end), "it is missing".to_owned()))
    }

    /// How many layers the model has, without those that guess further tokens: so many that each
    /// can be looked at.
    fn layers(&self) -> Result<u64, GgufFault> {
        const MOST: u64 = 1 << 16;
        let reason = || format!("only up to {MOST} are built in");
        self.required("block_count")?;
        let few = layers(self.header).filter(|&layers| layers <= MOST);
        few.ok_or_else(|| metadata(&self.key("block_count"), reason()))
    }

    /// Values that transformers has under another name. Those that nobody here knows keep theirs,
    /// for who reads the configuration to mention.
    fn copy(&mut self) -> Result<(), GgufFault> {
        let mut bytes = 0;
        for (key, value) in self.header.values() {
            let own = key.strip_prefix(self.architecture).and_then(|rest| rest.strip_prefix('.'));
            let Some(end) = own.filter(|end| !OTHERS.contains(end)) else {
                continue;
            };
            bytes += key.len() + value.len();
            if bytes > MAX_COPIED {
                let reason = format!("it takes the configuration over {MAX_COPIED} bytes");
                return Err(metadata(key, reason));
            }
            let value = value.json();
            let value = value.ok_or_else(|| metadata(key, "it has no place in JSON".to_owned()))?;
            match FIELDS.iter().find(|(known, _)| *known == end) {
                // As good as none.
                Some((_, "sliding_window")) if value == 0 => {}
                Some((_, field)) => self.set(field, value),
                None => self.set(key, value),
            }
        }
        Ok(())
    }

    /// Counts the model's layers alone, where those are counted too that guess further tokens.
    fn leave_further_layers_out(&mut self) -> Result<(), GgufFault> {
        self.fields.remove("num_nextn_predict_layers");
        let (Some(blocks), Some(layers)) = (self.unsigned("block_count")?, layers(self.header))
        else {
            return Ok(());
        };
        for list in self.fields.values_mut().filter_map(Value::as_array_mut) {
            if list.len() as u64 == blocks {
                list.truncate(layers as usize);
            }
        }
        self.set("num_hidden_layers", layers);
        Ok(())
    }

    /// What the tensors' shapes and types say.
    fn add_shapes(&mut self) -> Result<(), GgufFault> {
        match self.side("token_embd.weight", 0) {
            Some(rows) => self.set("vocab_size", rows),
            None => {
                if let Some(size) = self.unsigned("vocab_size")? {
                    self.set("vocab_size", size);
                }
            }
        }
        self.set("tie_word_embeddings", !self.has("output.weight"));
        // Those of Qwen2 always are there, and those of some others if nothing is said.
        let has_bias = self.has_in_a_block("attn_q.bias");
        let is_biased = self.has_convention(Biases);
        if !matches!(self.architecture, "qwen2" | "qwen2vl") && (has_bias || is_biased) {
            self.set("attention_bias", has_bias);
        }
        if self.has_in_a_block("ffn_up.bias") {
            self.set("mlp_bias", true);
        }
        if self.tensors.iter().any(|entry| entry.dtype.block().elements > 1) {
            self.set("quantization_config", json!({ "quant_method": "gguf" }));
        }
        Ok(())
    }

    /// The names of all tensors.
    fn names(&self) -> HashSet<&'a str> {
        self.tensors.iter().map(|entry| entry.name.as_str()).collect()
    }

    fn tensor(&self, name: &str) -> Option<&'a HeaderEntry> {
        self.tensors.iter().find(|entry| entry.name == name).copied()
    }

    fn has(&self, name: &str) -> bool {
        self.tensor(name).is_some()
    }

    /// A side of a tensor's shape, if there are both.
    fn side(&self, name: &str, at: usize) -> Option<usize> {
        self.tensor(name)?.shape.get(at).copied()
    }

    /// Whether a block has a tensor of that name.
    fn has_in_a_block(&self, name: &str) -> bool {
        let of_block = |entry: &&HeaderEntry| {
            let behind = entry.name.strip_prefix("blk.")?.split_once('.')?.1;
            Some(behind == name)
        };
        self.tensors.iter().any(|entry| of_block(entry) == Some(true))
    }

    /// Of each layer, whether it has a tensor of that name.
    fn layers_with(&self, name: &str) -> Result<Vec<bool>, GgufFault> {
        let names = self.names();
        let has = |layer| names.contains(&*format!("blk.{layer}.{name}"));
        Ok((0..self.layers()?).map(has).collect())
    }

    /// Says of each layer one of two things, by whether it has a tensor of that name.
    fn set_kinds_by_tensor(
        &mut self,
        field: &str,
        name: &str,
        [without, with]: [&str; 2],
    ) -> Result<(), GgufFault> {
        let kind = |has| if has { with } else { without };
        let kinds: Vec<_> = self.layers_with(name)?.into_iter().map(kind).collect();
        self.set(field, kinds);
        Ok(())
    }

    /// The widths of heads.
    fn add_heads(&mut self) -> Result<(), GgufFault> {
        let heads = match self.fields.get("num_attention_heads") {
            // Whose width is said.
            Some(Value::Array(_)) => None,
            _ => self.unsigned("attention.head_count")?,
        };
        let hidden = self.unsigned("embedding_length")?;
        let is_mixtral = self.architecture == "llama" && self.has_experts()?;
        let width = match (self.unsigned("attention.key_length")?, heads, hidden) {
            (Some(width), ..) => width,
            (None, Some(heads @ 1..), Some(hidden)) => {
                if self.has_convention(HeadDim) || is_mixtral {
                    // Where transformers would take another width, or none.
                    self.set("head_dim", hidden / heads);
                }
                hidden / heads
            }
            // Whoever reads the configuration says what is missing.
            _ => return Ok(()),
        };
        if let Some(values) = self.unsigned("attention.value_length")?
            && values != width
        {
            self.set("v_head_dim", values);
        }
        if let Some(rotated) = self.unsigned("rope.dimension_count")?
            && rotated != width
        {
            self.set("partial_rotary_factor", part(rotated, width));
        }
        if matches!(self.architecture, "gemma2" | "gemma3") {
            // As llama.cpp tells those of 27B, whose heads are narrower than their share.
            let layers = if self.architecture == "gemma2" { 46 } else { 62 };
            let of_27b = self.unsigned("block_count")? == Some(layers);
            let share = hidden.zip(heads).map_or(width, |(hidden, heads)| hidden / heads.max(1));
            self.set("query_pre_attn_scalar", if of_27b { share } else { width });
        }
        Ok(())
    }

    /// Makes all of it that of a part of a model that sees images.
    fn nest_text_part(&mut self, model_type: &str) {
        let mut text = std::mem::take(&mut self.fields);
        self.set("model_type", model_type);
        for field in ["bos_token_id", "eos_token_id", "quantization_config"] {
            if let Some(value) = text.remove(field) {
                self.set(field, value);
            }
        }
        self.set("text_config", text);
    }

    /// What GGUF files have otherwise than transformers.
    fn add_conventions(&mut self) {
        if self.has_convention(Neighbours) {
            self.set("rope_interleaved", true);
        }
        if self.has_convention(OneAdded) {
            self.set("rms_norm_add_unit_offset", false);
        }
        if self.architecture == "glm4" && self.header.get("glm4.rope.dimension_sections").is_some()
        {
            // Of one that sees images they are in another order than of others.
            self.set("rope_interleaved", false);
        }
        if self.architecture == "gpt-oss" {
            // Gate and up are tensors of their own.
            self.set("experts_gate_apart", true);
        }
        let [begin, end] = end_ids(self.header);
        self.set("bos_token_id", begin);
        self.set("eos_token_id", end);
    }
}

/// How many layers the model of a file has, without those that guess further tokens, if it says
/// that.
pub(super) fn layers(header: &GgufHeader) -> Option<u64> {
    let architecture = header.text(ARCHITECTURE).ok()??;
    let count = |end| header.unsigned(&format!("{architecture}.{end}")).ok().flatten();
    Some(count("block_count")?.saturating_sub(count("nextn_predict_layers").unwrap_or(0)))
}

/// What part of a head so many elements are, or of its pairs: who reads it rounds down to whole
/// ones.
fn part(rotated: u64, all: u64) -> f64 {
    (rotated as f64 + 0.5) / all as f64
}

/// Refuses what is no model by itself.
fn refuse_other_files(header: &GgufHeader) -> Result<(), GgufFault> {
    let key = "general.type";
    if let Some(kind) = header.text(key)?.filter(|kind| *kind != "model") {
        let reason = format!("{kind:?} is not supported: name the file of the whole model");
        return Err(metadata(key, reason));
    }
    let key = "general.quantization_version";
    match header.unsigned(key)? {
        None | Some(2) => Ok(()),
        Some(other) => Err(metadata(key, format!("{other} is not supported, only 2 is"))),
    }
}
