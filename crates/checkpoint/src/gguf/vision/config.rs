//! A `config.json` and a `preprocessor_config.json` from the metadata of a vision encoder.

use serde_json::{Map, Value, json};

use super::VISION_ENCODER;
use super::names::{QWEN, deepstack};
use crate::gguf::header::metadata;
use crate::gguf::names::lists;
use crate::gguf::tokenizer::{TOKENS as TOKENS_KEY, token_id};
use crate::gguf::{ARCHITECTURE, GgufFault, GgufHeader, GgufValue};
use crate::header::HeaderEntry;

/// By the families that have them, the tokens that stand for an image, or are around it, and the
/// fields that have their ids in transformers.
const TOKENS: &[(&str, &str, &str)] = &[
    ("gemma3", "<image_soft_token>", "image_token_index"),
    ("gemma4", "<|image|>", "image_token_id"),
    ("gemma4", "<|image>", "boi_token_id"),
    ("gemma4", "<image|>", "eoi_token_id"),
    ("glm", "<|image|>", "image_token_id"),
    ("glm", "<|begin_of_image|>", "image_start_token_id"),
    ("glm", "<|end_of_image|>", "image_end_token_id"),
    ("pixtral", "[IMG]", "image_token_index"),
    (QWEN, "<|image_pad|>", "image_token_id"),
    (QWEN, "<|vision_start|>", "vision_start_token_id"),
    (QWEN, "<|vision_end|>", "vision_end_token_id"),
];

/// The fewest and the most tokens of an image that llama.cpp gives those with images of any size,
/// if a file does not say.
const IMAGE_TOKENS: [u64; 2] = [8, 4096];

/// The tokens of a language model that its images are written with, as fields.
pub(super) fn tokens(family: &str, model: &GgufHeader) -> Result<Map<String, Value>, GgufFault> {
    let mut fields = Map::new();
    for (_, token, field) in TOKENS.iter().filter(|(families, ..)| lists(families, family)) {
        let id = token_id(model, token)?.ok_or_else(|| {
            let reason = format!("there is no {token}, which a text with an image has");
            metadata(TOKENS_KEY, reason)
        })?;
        fields.insert((*field).to_owned(), id.into());
    }
    Ok(fields)
}

/// The texts of both files, of an encoder and of the header of its language model, whose own
/// `config.json` is `text`, with the fields of its tokens.
pub(super) fn made(
    encoder: &Encoder<'_>,
    model: &GgufHeader,
    text: Map<String, Value>,
    tokens: Map<String, Value>,
) -> Result<(String, String), GgufFault> {
    let mut text = match text.get("text_config") {
        Some(Value::Object(part)) => part.clone(),
        _ => text,
    };
    encoder.check_width(&text)?;
    let made = match encoder.family {
        "gemma3" => encoder.gemma3(),
        "gemma4" => encoder.gemma4(&text),
        "glm" => encoder.glm(model, &text),
        "pixtral" => encoder.pixtral(),
        _ => encoder.qwen(model, &text),
    }?;
    let Value::Object(mut config) = made else { return Ok(Default::default()) };
    if let Some(Value::Object(more)) = config.remove("text_config") {
        text.extend(more);
    }
    config.insert("text_config".to_owned(), text.into());
    config.extend(tokens);
    Ok((Value::from(config).to_string(), encoder.processor()?.to_string()))
}

/// The field of the rotary embedding with how many pairs follow time, rows and columns, if the
/// language model's file says it.
fn with_sections(
    model: &GgufHeader,
    text: &Map<String, Value>,
) -> Result<Map<String, Value>, GgufFault> {
    let key = format!("{}.rope.dimension_sections", model.text(ARCHITECTURE)?.unwrap_or_default());
    let sections = model.array(&key, "an array of whole numbers", |value| value.unsigned())?;
    let mut part = Map::new();
    if let Some(sections) = sections.filter(|sections| sections.len() >= 3) {
        let mut rope = match text.get("rope_scaling") {
            Some(Value::Object(rope)) => rope.clone(),
            _ => Map::from_iter([("rope_type".to_owned(), "default".into())]),
        };
        rope.insert("mrope_section".to_owned(), sections[..3].into());
        part.insert("rope_scaling".to_owned(), rope.into());
    }
    Ok(part)
}

/// What its file says of an encoder.
pub(super) struct Encoder<'a> {
    pub header: &'a GgufHeader,
    pub tensors: &'a [&'a HeaderEntry],
    pub family: &'static str,
}

impl Encoder<'_> {
    fn gemma3(&self) -> Result<Value, GgufFault> {
        let [image, patch] = [self.required("image_size")?, self.required("patch_size")?];
        // Patches of a token's side.
        let merge = self.unsigned("projector.scale_factor")?.unwrap_or(4);
        let tokens = image.checked_div(patch).and_then(|side| side.checked_div(merge));
        Ok(json!({
            "model_type": "gemma3",
            "mm_tokens_per_image": tokens.and_then(|side| side.checked_mul(side)),
            "vision_config": self.with_sizes(json!({
                "image_size": image,
                "layer_norm_eps": self.epsilon()?,
                "rms_norm_add_unit_offset": false,
            }))?,
        }))
    }

    fn gemma4(&self, text: &Map<String, Value>) -> Result<Value, GgufFault> {
        let heads = self.required("attention.head_count")?;
        let width = self.side("v.blk.0.attn_q.weight", 0).map(|rows| rows / heads.max(1));
        let is_clipped = self.tensors.iter().any(|entry| entry.name.ends_with(".input_max"));
        // No file says it: but in those whose layers have inputs of their own, tokens of an image
        // see each other.
        let inputs = text.get("hidden_size_per_layer_input").and_then(Value::as_u64);
        let seen = if inputs.unwrap_or(0) == 0 { Value::from("vision") } else { Value::Null };
        Ok(json!({
            "model_type": "gemma4",
            "text_config": { "use_bidirectional_attention": seen },
            "vision_config": self.with_sizes(json!({
                "num_key_value_heads": heads,
                "head_dim": width,
                "rms_norm_eps": self.epsilon()?,
                "pooling_kernel_size": self.pooled_side()?,
                "position_embedding_size": self.side("v.position_embd.weight", 1),
                "standardize": self.has("v.std_bias"),
                "use_clipped_linears": is_clipped,
                "patch_colours_first": true,
            }))?,
        }))
    }

    fn glm(&self, model: &GgufHeader, text: &Map<String, Value>) -> Result<Value, GgufFault> {
        Ok(json!({
            "model_type": "glm4v",
            "text_config": with_sections(model, text)?,
            "vision_config": {
                "depth": self.required("block_count")?,
                "num_heads": self.required("attention.head_count")?,
                "patch_size": self.required("patch_size")?,
                "spatial_merge_size": self.merged_side()?,
                "hidden_size": self.required("embedding_length")?,
                "out_hidden_size": self.required("projection_dim")?,
                "intermediate_size": self.side("mm.gate.weight", 0),
                "image_size": self.required("image_size")?,
                "rms_norm_eps": self.epsilon()?,
                "attention_bias": self.has("v.blk.0.attn_qkv.bias"),
                "frames_apart": self.has("v.patch_embd.weight.1"),
            },
        }))
    }

    fn pixtral(&self) -> Result<Value, GgufFault> {
        if !self.has("mm.patch_merger.weight") {
            let tensor = "mm.patch_merger.weight".to_owned();
            let reason = "it is missing: images of Pixtral without it are not built in".to_owned();
            return Err(GgufFault::Tensor { tensor, reason });
        }
        let activation = match self.header.flag("clip.use_silu")? {
            Some(true) => "silu",
            _ => "gelu",
        };
        let theta = self.header.get("clip.rope.freq_base").and_then(|theta| theta.json());
        Ok(json!({
            "model_type": "mistral3",
            "spatial_merge_size": self.required("spatial_merge_size")?,
            "multimodal_projector_bias": self.has("mm.1.bias"),
            "vision_config": self.with_sizes(json!({
                "hidden_act": activation,
                "rope_theta": theta.unwrap_or_else(|| 10_000.0.into()),
                "rope_interleaved": true,
            }))?,
        }))
    }

    fn qwen(&self, model: &GgufHeader, text: &Map<String, Value>) -> Result<Value, GgufFault> {
        let stacked = deepstack(self.tensors.iter().copied());
        let blocks = self.required("block_count")?;
        let hidden = self.required("embedding_length")?;
        let inner = self.inner()?;
        let mut vision = json!({
            "depth": blocks,
            "num_heads": self.required("attention.head_count")?,
            "patch_size": self.required("patch_size")?,
            "spatial_merge_size": self.merged_side()?,
            "frames_apart": self.has("v.patch_embd.weight.1"),
            "qkv_apart": self.has("v.blk.0.attn_q.weight"),
        });
        let model_type = match self.family {
            "qwen2" => {
                vision["embed_dim"] = hidden.into();
                vision["hidden_size"] = self.required("projection_dim")?.into();
                vision["mlp_ratio"] = inner.checked_div(hidden).into();
                "qwen2_vl"
            }
            "qwen2_5" => {
                let every = self.required("n_wa_pattern")?.max(1);
                // Each of them a number of a block, and no more than there can be.
                let whole: Vec<_> =
                    (1..=blocks.min(1 << 16) / every).map(|n| n * every - 1).collect();
                vision["fullatt_block_indexes"] = whole.into();
                vision["window_size"] = self.unsigned("window_size")?.unwrap_or(112).into();
                "qwen2_5_vl"
            }
            _ => {
                vision["num_position_embeddings"] = self.side("v.position_embd.weight", 0).into();
                match stacked.is_empty() {
                    true => "qwen3_5",
                    false => {
                        vision["deepstack_visual_indexes"] = stacked.into_iter().collect();
                        "qwen3_vl"
                    }
                }
            }
        };
        if self.family != "qwen2" {
            vision["hidden_size"] = hidden.into();
            vision["intermediate_size"] = inner.into();
            vision["out_hidden_size"] = self.required("projection_dim")?.into();
        }
        let part = with_sections(model, text)?;
        Ok(json!({ "model_type": model_type, "vision_config": vision, "text_config": part }))
    }

    /// Fields with the sizes that all but Qwen's call alike.
    fn with_sizes(&self, mut fields: Value) -> Result<Value, GgufFault> {
        for (field, size) in [
            ("patch_size", self.required("patch_size")?),
            ("num_hidden_layers", self.required("block_count")?),
            ("hidden_size", self.required("embedding_length")?),
            ("intermediate_size", self.inner()?),
            ("num_attention_heads", self.required("attention.head_count")?),
        ] {
            fields[field] = size.into();
        }
        Ok(fields)
    }

    /// What `preprocessor_config.json` says of images.
    fn processor(&self) -> Result<Value, GgufFault> {
        let mut processor = Map::new();
        for name in ["image_mean", "image_std"] {
            let key = self.key(name);
            let colours = match self.header.get(&key) {
                // No more are looked at.
                Some(GgufValue::Array(array)) if array.iter().take(4).count() == 3 => {
                    array.iter().map(GgufValue::json).collect::<Option<Vec<_>>>()
                }
                Some(_) => None,
                None => continue,
            };
            let wrong = || metadata(&key, "it must be three numbers".to_owned());
            processor.insert(name.to_owned(), colours.ok_or_else(wrong)?.into());
        }
        let pixels = |key| self.unsigned(key);
        let side = self.required("patch_size")?;
        let of_token = |merge: u64| side.saturating_mul(merge).saturating_pow(2).max(1);
        match self.family {
            "gemma3" => {}
            "gemma4" => {
                let merge = self.pooled_side()?;
                let most = pixels("image_max_pixels")?.map(|most| most / of_token(merge));
                processor.extend(most.map(|most| ("max_soft_tokens".to_owned(), most.into())));
                // The encoder itself does.
                processor.retain(|name, _| name == "max_soft_tokens");
            }
            "pixtral" => {
                let longest = match self.unsigned("preproc_image_size")? {
                    Some(longest) => longest,
                    None => self.required("image_size")?,
                };
                processor.insert("size".to_owned(), json!({ "longest_edge": longest }));
            }
            _ => {
                let unit = of_token(self.merged_side()?);
                let [least, most] = IMAGE_TOKENS.map(|tokens| tokens.saturating_mul(unit));
                let size = json!({
                    "shortest_edge": pixels("image_min_pixels")?.unwrap_or(least),
                    "longest_edge": pixels("image_max_pixels")?.unwrap_or(most),
                });
                processor.insert("size".to_owned(), size);
            }
        }
        Ok(processor.into())
    }

    /// Features are as wide as the language model.
    fn check_width(&self, text: &Map<String, Value>) -> Result<(), GgufFault> {
        let key = "projection_dim";
        let (made, taken) = (self.required(key)?, text.get("hidden_size").and_then(Value::as_u64));
        match taken {
            Some(taken) if taken != made => {
                let reason = format!(
                    "its features have {made} values, and the language model takes {taken}: this is the vision encoder of another model"
                );
                Err(metadata(&self.key(key), reason))
            }
            _ => Ok(()),
        }
    }

    fn key(&self, end: &str) -> String {
        format!("{VISION_ENCODER}.vision.{end}")
    }

    fn unsigned(&self, end: &str) -> Result<Option<u64>, GgufFault> {
        self.header.unsigned(&self.key(end))
    }

    fn required(&self, end: &str) -> Result<u64, GgufFault> {
        self.unsigned(end)?.ok_or_else(|| metadata(&self.key(end), "it is missing".to_owned()))
    }

    /// Patches of the side of a token of Qwen's and GLM's.
    fn merged_side(&self) -> Result<u64, GgufFault> {
        Ok(self.unsigned("spatial_merge_size")?.unwrap_or(2))
    }

    /// The same of Gemma 4's.
    fn pooled_side(&self) -> Result<u64, GgufFault> {
        Ok(self.unsigned("projector.scale_factor")?.unwrap_or(3))
    }

    /// What norms add.
    fn epsilon(&self) -> Result<Value, GgufFault> {
        let key = self.key("attention.layer_norm_epsilon");
        let found = self.header.get(&key).and_then(|value| value.json());
        found.ok_or_else(|| metadata(&key, "it must be a number".to_owned()))
    }

    /// The width of the MLP's inner layer: of older files a tensor alone says it, which may be
    /// called otherwise.
    fn inner(&self) -> Result<u64, GgufFault> {
        let hidden = self.required("embedding_length")?;
        match self.tensor("v.blk.0.ffn_up.weight").map(|entry| &entry.shape[..]) {
            Some(&[rows, columns]) if columns as u64 == hidden => Ok(rows as u64),
            Some(&[_, columns]) => Ok(columns as u64),
            _ => self.required("feed_forward_length"),
        }
    }

    fn tensor(&self, name: &str) -> Option<&HeaderEntry> {
        self.tensors.iter().find(|entry| entry.name == name).copied()
    }

    fn has(&self, name: &str) -> bool {
        self.tensor(name).is_some()
    }

    fn side(&self, name: &str, at: usize) -> Option<u64> {
        Some(*self.tensor(name)?.shape.get(at)? as u64)
    }
}
