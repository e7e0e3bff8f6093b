//! Qwen2.5-Omni and Qwen3-Omni, of their thinkers the text parts: Qwen2 and Qwen3-MoE. Xu et al.
//! 2025 (arXiv:2503.20215, arXiv:2509.17765).

use super::expert_fields::{EXPERTS, sparse_layers};
use super::gemma3::TEXT_PART;
use super::llama;
use super::qwen_vl::{ABSENT_3, MULTIMODAL, TEXT_3, read_qwen2_text, read_qwen3_text};
use super::rms_config::{DEFAULTS, FIELDS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::architecture::MultimodalNames;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{COMMON, Fields, KnownField, MAX_INTERMEDIATE, check};

/// Reads the text part of the thinker of Qwen2.5-Omni.
pub(super) fn read_qwen2_5(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let thinker = thinker(fields)?;
    let text = thinker.required_object("text_config")?;
    check(&text, &[TEXT_2_5, TEXT_PART, llama::QWEN2, llama::ACT, FIELDS, COMMON])?;
    let absent = RmsDefaults {
        sizes: &[
            ("hidden_size", 3584),
            ("intermediate_size", 18_944),
            ("num_attention_heads", 28),
            ("num_hidden_layers", 28),
            ("vocab_size", 152_064),
        ],
        key_value_heads: Some(4),
        max_position_embeddings: 32_768,
        rope_theta: 1_000_000.0,
        ..DEFAULTS
    };
    // That of the whole thinker counts.
    let tie_word_embeddings = thinker.flag_or("tie_word_embeddings", false)?;
    Ok(RmsConfig { tie_word_embeddings, ..read_qwen2_text(&text, &absent)? })
}

/// Reads the text part of the thinker of Qwen3-Omni.
pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let thinker = thinker(fields)?;
    let text = thinker.required_object("text_config")?;
    check(&text, &[TEXT, TEXT_PART, TEXT_3, EXPERTS, FIELDS, COMMON])?;
    let absent = RmsDefaults {
        // Of layers without experts, of which there are none as it is published.
        sizes: &[("intermediate_size", 18_944)],
        key_value_heads: Some(4),
        max_position_embeddings: 32_768,
        rope_theta: 1_000_000.0,
        ..ABSENT_3
    };
    let config = read_qwen3_text(&thinker, &text, &absent)?;
    let normalized = text.flag_or("norm_topk_prob", true)?;
    let names = ["num_experts", "num_local_experts"];
    let mut config = config.with_experts(&text, names, (128, 8), normalized)?;
    if let Some(experts) = &mut config.experts {
        experts.intermediate_size = text.size_or("moe_intermediate_size", 768, MAX_INTERMEDIATE)?;
    }
    let sparse_layers = sparse_layers(&text, config.num_hidden_layers)?;
    Ok(RmsConfig { sparse_layers, ..config })
}

/// The fields of what listens, sees and answers in texts.
pub(super) fn thinker<'a>(fields: &Fields<'a>) -> Result<Fields<'a>, Error> {
    let thinker = fields.required_object("thinker_config")?;
    check(&thinker, &[THINKER, MULTIMODAL, COMMON])?;
    Ok(thinker)
}

/// Of the whole model.
pub(super) const OMNI: &[KnownField] = &[
    ("assistant_token_id", Harmless),
    ("code2wav_config", Harmless),
    ("enable_audio_output", Harmless),
    ("enable_talker", Harmless),
    ("im_end_token_id", Harmless),
    ("im_start_token_id", Harmless),
    ("system_token_id", Harmless),
    ("talker_config", Harmless),
    ("thinker_config", Read),
    ("token2wav_config", Harmless),
    ("tts_bos_token_id", Harmless),
    ("tts_eos_token_id", Harmless),
    ("tts_pad_token_id", Harmless),
    ("user_token_id", Harmless),
];

const THINKER: &[KnownField] = &[
    ("audio_config", Harmless),
    ("audio_end_token_id", Harmless),
    ("audio_start_token_id", Harmless),
    ("audio_token_id", Harmless),
    ("audio_token_index", Harmless),
    ("dtype", Harmless),
    ("ignore_index", Harmless),
    ("image_token_index", Harmless),
    ("init_std", Harmless),
    ("model_type", Only(&["\"qwen2_5_omni_thinker\"", "\"qwen3_omni_moe_thinker\""])),
    ("position_id_per_seconds", Harmless),
    ("seconds_per_chunk", Harmless),
    ("torch_dtype", Harmless),
    ("user_token_id", Harmless),
    ("video_token_index", Harmless),
];

const TEXT_2_5: &[KnownField] =
    &[("init_std", Harmless), ("model_type", Only(&["\"qwen2_5_omni_text\""]))];

const TEXT: &[KnownField] = &[
    ("decoder_sparse_step", Read),
    ("mlp_only_layers", Read),
    ("model_type", Only(&["\"qwen3_omni_moe_text\""])),
    ("moe_intermediate_size", Read),
    ("norm_topk_prob", Read),
    ("output_router_logits", Harmless),
    // Not looked at.
    ("shared_expert_intermediate_size", Harmless),
    ("sliding_window", Effect::UNSET),
    ("use_qk_norm", Harmless),
    ("use_sliding_window", Harmless),
];

/// As it is published.
pub(super) const NAMES: MultimodalNames = MultimodalNames {
    prefixes: &[("thinker.", "")],
    others: &["code2wav.", "talker.", "thinker.audio_tower.", "thinker.visual.", "token2wav."],
};
