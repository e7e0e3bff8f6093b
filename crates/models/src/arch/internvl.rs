//! InternVL, whose language model is one of several types: its text part. Wang et al. 2025
//! (arXiv:2508.18265).

use super::gemma3::TEXT_PART;
use super::rms_config::RmsConfig;
use super::rms_layer::RmsFeedForward;
use crate::Error;
use crate::config::Effect::{Harmless, Read};
use crate::config::{COMMON, Fields, KnownField, check};

/// What it is called.
pub(super) const INTERNVL: &str = "internvl";

/// Reads the text part, which is of one of these types, with what reads those.
pub(super) fn read_part<F: RmsFeedForward>(
    fields: &Fields<'_>,
    types: &[&'static str],
) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    let found = text.text("model_type")?.unwrap_or("qwen2");
    let Some(model_type) = types.iter().find(|model_type| **model_type == found) else {
        let expected = "qwen2, qwen3, llama, qwen3_moe and gpt_oss are built in".to_owned();
        return Err(text.refuse("model_type", expected));
    };
    let tables = [F::fields(model_type), &[TEXT_TYPE, TEXT_PART, COMMON]].concat();
    check(&text, &tables)?;
    let config = F::read(model_type, &text)?;
    // That of the whole model counts.
    let tied = fields.flag_or("tie_word_embeddings", config.tie_word_embeddings)?;
    Ok(RmsConfig { tie_word_embeddings: tied, ..config })
}

const TEXT_TYPE: &[KnownField] = &[("model_type", Read)];

/// Of a model that sees images too.
pub(super) const MULTIMODAL: &[KnownField] = &[
    ("downsample_ratio", Harmless),
    ("image_seq_length", Harmless),
    ("image_token_id", Harmless),
    ("projector_hidden_act", Harmless),
    ("text_config", Read),
    ("vision_config", Harmless),
    ("vision_feature_layer", Harmless),
    ("vision_feature_select_strategy", Harmless),
];
