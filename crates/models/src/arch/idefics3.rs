//! Idefics3 and SmolVLM, whose language model is a Llama: their text part. Laurençon et al. 2024
//! (arXiv:2408.12637), Marafioti et al. 2025 (arXiv:2504.05299).

use super::gemma3::TEXT_PART;
use super::llama;
use super::rms_config::{FIELDS, RmsConfig};
use crate::Error;
use crate::architecture::MultimodalNames;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{COMMON, Fields, KnownField, check};

/// What they are called.
pub(super) const IDEFICS3: &str = "idefics3";
pub(super) const SMOLVLM: &str = "smolvlm";

pub(super) fn read_part(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    check(&text, &[TEXT, TEXT_PART, llama::LLAMA, llama::ACT, FIELDS, COMMON])?;
    // What the whole model says of its head counts.
    let tie_word_embeddings = fields.flag_or("tie_word_embeddings", false)?;
    Ok(RmsConfig { tie_word_embeddings, ..llama::read("llama", &text)? })
}

/// Of the text part, with what its makers left there.
const TEXT: &[KnownField] = &[
    ("_flash_attn_2_enabled", Harmless),
    ("is_llama_config", Harmless),
    ("model_type", Only(&["\"llama\""])),
    ("neftune_noise_alpha", Harmless),
    ("perceiver_config", Harmless),
    ("pixel_shuffle_factor", Harmless),
    ("qk_layer_norms", Effect::OFF),
    ("tie_word_embeddings", Harmless),
    ("use_resampler", Effect::OFF),
];

/// Of a model that sees images too.
pub(super) const MULTIMODAL: &[KnownField] = &[
    ("_pad_token_id", Harmless),
    ("image_token_id", Harmless),
    ("scale_factor", Harmless),
    ("text_config", Read),
    ("vision_config", Harmless),
    // Beside that of the text part, which counts.
    ("vocab_size", Harmless),
];

pub(super) const NAMES: MultimodalNames = MultimodalNames {
    prefixes: &[("model.text_model.", "model.")],
    others: &["model.vision_model.", "model.connector."],
};
