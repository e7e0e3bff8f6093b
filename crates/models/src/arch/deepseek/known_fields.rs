//! What is known of the fields of `config.json` of DeepSeek and of the models with its experts.

use super::super::exaone4;
use super::super::expert_fields::EXPERTS;
use super::super::gemma3::TEXT_PART;
use super::super::rms_config::FIELDS;
use super::super::{
    afmoe, cohere2_moe, flint, glm, kolibri1, laguna, lara_mini, mimo_v2, minimax_m3, mistral3,
    step3p7,
};
use super::axk2::AXK2;
use super::dots3::{DOTS3, DOTS3_FIELDS, DOTS3_PARTS, DOTS3_TEXT};
use super::hunyuan::{HY, HY_V4, HY_V4_PART};
use super::indexer::{GLM_INDEXER, INDEXER};
use super::linear;
use super::minicpm::{MINICPM5, MINICPM5_FIELDS};
use super::mistral::LARGE_FIELDS;
use super::sarvam::{SARVAM, SARVAM_MOE};
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{COMMON, KnownField};

/// The fields of that type.
pub(in super::super) fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
    match model_type {
        "deepseek_v2" => &[V2, DENSE_FIRST, LATENT, SHARED, EXPERTS, FIELDS],
        "dots1" => &[DOTS1, V3, DENSE_FIRST, SHARED, EXPERTS, FIELDS],
        "glm4_moe" => &[GLM, V3, DENSE_FIRST, SHARED, EXPERTS, FIELDS],
        "exaone_moe" => &[EXAONE, exaone4::WINDOWS, V3, DENSE_FIRST, SHARED, EXPERTS, FIELDS],
        "solar_open" => &[SOLAR, V3, SHARED, EXPERTS, FIELDS],
        "glm4_moe_lite" => &[GLM_LITE, V3, LATENT, SHARED, EXPERTS, FIELDS],
        "deepseek_v32" => {
            &[INDEXER, LAYER_TYPES, V3, ROTATED, DENSE_FIRST, LATENT, SHARED, EXPERTS, FIELDS]
        }
        "glm_moe_dsa" => &[
            GLM_INDEXER,
            INDEXER,
            LAYER_TYPES,
            V3,
            ROTATED,
            DENSE_FIRST,
            LATENT,
            SHARED,
            EXPERTS,
            FIELDS,
        ],
        "hy_v4" | HY_V4_PART => &[HY_V4, INDEXER, LAYER_TYPES, V3, LATENT, SHARED, EXPERTS, FIELDS],
        "kimi_linear" => &[
            linear::KIMI,
            linear::BOTH,
            LAYER_TYPES,
            V3,
            DENSE_FIRST,
            LATENT,
            SHARED,
            EXPERTS,
            FIELDS,
        ],
        "bailing_hybrid" => &[
            linear::LING,
            linear::BOTH,
            LAYER_TYPES,
            V3,
            ROTATED,
            DENSE_FIRST,
            LATENT,
            SHARED,
            EXPERTS,
            FIELDS,
        ],
        "axk1" => &[LAYER_TYPES, V3, ROPE, DENSE_FIRST, LATENT, SHARED, EXPERTS, FIELDS],
        "axk2" => {
            &[AXK2, INDEXER, LAYER_TYPES, V3, ROTATED, DENSE_FIRST, LATENT, SHARED, EXPERTS, FIELDS]
        }
        "sarvam_mla" => &[SARVAM, V3, ROPE, DENSE_FIRST, LATENT, SHARED, EXPERTS, FIELDS],
        "sarvam_moe" | "param2moe" => &[SARVAM_MOE, GLM, V3, DENSE_FIRST, SHARED, EXPERTS, FIELDS],
        MINICPM5 => &[MINICPM5_FIELDS, LAYER_TYPES, V3, DENSE_FIRST, SHARED, EXPERTS, FIELDS],
        DOTS3 => {
            &[DOTS3_PARTS, DOTS3_FIELDS, INDEXER, LAYER_TYPES, V3, LATENT, SHARED, EXPERTS, FIELDS]
        }
        DOTS3_TEXT => &[DOTS3_FIELDS, INDEXER, LAYER_TYPES, V3, LATENT, SHARED, EXPERTS, FIELDS],
        "mistral4" => MISTRAL4,
        "mistral3" | "mistral_large4" => &[mistral3::MULTIMODAL],
        "kimi_k25" => &[KIMI_IMAGES],
        "glm4v_moe" | "glm46v" => &[glm::MULTIMODAL],
        "hy_v3" => &[HY, V3, SHARED, EXPERTS, FIELDS],
        "afmoe" => afmoe::FIELDS,
        "laguna" => laguna::FIELDS,
        "kolibri1" => kolibri1::FIELDS,
        "flint" => flint::FIELDS,
        "lara_mini" => lara_mini::FIELDS,
        "mimo_v2_flash" => mimo_v2::FIELDS,
        "step3p5" => step3p7::FIELDS_OF_TEXT,
        "step3p7" => &[step3p7::MULTIMODAL],
        "minimax_m3_vl" => &[minimax_m3::MULTIMODAL],
        "cohere2_moe" => cohere2_moe::FIELDS,
        _ => &[V3, ROPE, DENSE_FIRST, LATENT, SHARED, EXPERTS, FIELDS],
    }
}

pub(in super::super) const YOUTU: &[KnownField] = &[
    ("attention_bias", Read),
    // What weights began with.
    ("embedding_initializer_range", Harmless),
    ("hidden_act", Read),
    ("mlp_bias", Effect::OFF),
];

/// Of shared experts, and of groups.
const SHARED: &[KnownField] = &[
    ("attention_bias", Read),
    ("moe_intermediate_size", Read),
    ("n_group", Read),
    ("n_routed_experts", Read),
    ("n_shared_experts", Read),
    ("norm_topk_prob", Read),
    ("routed_scaling_factor", Read),
    ("topk_group", Read),
    ("topk_method", Read),
    // Of training, of more machines, or of layers that guess more tokens.
    ("auto_map", Harmless),
    ("aux_loss_alpha", Harmless),
    ("ep_size", Harmless),
    ("num_mtp_layers", Harmless),
    ("num_nextn_predict_layers", Harmless),
    ("seq_aux", Harmless),
];

/// Of attention over a compressed cache.
pub(in super::super) const LATENT: &[KnownField] = &[
    // As GGUF files have it.
    ("kv_b_apart", Read),
    ("kv_lora_rank", Read),
    ("q_lora_rank", Read),
    // Both parts together.
    ("qk_head_dim", Harmless),
    ("qk_nope_head_dim", Read),
    ("qk_rope_head_dim", Read),
    ("v_head_dim", Read),
];

/// Which layers have experts, beside how many have none.
const LAYER_TYPES: &[KnownField] = &[("mlp_layer_types", Read)];

/// Neighbouring elements are rotated together, whatever it says.
const ROTATED: &[KnownField] = &[("rope_interleave", Effect::ON)];

const MISTRAL4: &[&[KnownField]] = &[SOFTMAX, ROPE, DENSE_FIRST, LATENT, SHARED, EXPERTS, FIELDS];

pub(super) const MISTRAL4_TEXT: &[&[KnownField]] =
    &[TEXT_PART, SOFTMAX, ROPE, DENSE_FIRST, LATENT, SHARED, EXPERTS, FIELDS, COMMON];

pub(super) const LARGE_TEXT: &[&[KnownField]] = &[
    LARGE_FIELDS,
    TEXT_PART,
    GLM_INDEXER,
    INDEXER,
    LAYER_TYPES,
    SOFTMAX,
    ROTATED,
    DENSE_FIRST,
    LATENT,
    SHARED,
    EXPERTS,
    FIELDS,
    COMMON,
];

pub(super) const DOTS3_OF_PARTS: &[&[KnownField]] =
    &[DOTS3_FIELDS, TEXT_PART, INDEXER, LAYER_TYPES, V3, LATENT, SHARED, EXPERTS, FIELDS, COMMON];

const SOFTMAX: &[KnownField] = &[("scoring_func", Only(&["\"softmax\""]))];

pub(super) const KIMI_TEXT: &[&[KnownField]] =
    &[KIMI, V3, ROPE, DENSE_FIRST, LATENT, SHARED, EXPERTS, FIELDS, COMMON];

pub(super) const GLM_V_TEXT: &[&[KnownField]] =
    &[GLM_V_TYPE, TEXT_PART, GLM, V3, DENSE_FIRST, SHARED, EXPERTS, FIELDS, COMMON];

const GLM_V_TYPE: &[KnownField] = &[("model_type", Only(&["\"glm4v_moe_text\""]))];

const KIMI: &[KnownField] = &[
    ("dtype", Harmless),
    ("model_type", Only(&["\"kimi_k2\"", "\"deepseek_v3\""])),
    ("torch_dtype", Harmless),
];

/// Of a Kimi that sees images too.
pub(in super::super) const KIMI_IMAGES: &[KnownField] = &[
    ("auto_map", Harmless),
    ("ignore_index", Harmless),
    ("image_token_id", Harmless),
    ("media_placeholder_token_id", Harmless),
    ("projection_hidden_size", Harmless),
    ("projection_layer_norm_eps", Harmless),
    ("text_config", Read),
    ("use_unified_vision_chunk", Harmless),
    ("video_placeholder", Harmless),
    ("video_token_id", Harmless),
    ("vision_config", Harmless),
    ("vision_end_token_id", Harmless),
    ("vision_start_token_id", Harmless),
];

/// Which layers have experts: all but the first ones.
const DENSE_FIRST: &[KnownField] =
    &[("first_k_dense_replace", Read), ("moe_layer_freq", Effect::ONE)];

pub(in super::super) const ROPE: &[KnownField] = &[("rope_interleave", Read)];

const V2: &[KnownField] =
    &[("norm_topk_prob", Effect::OFF), ("scoring_func", Only(&["\"softmax\""]))];

const V3: &[KnownField] = &[("scoring_func", Only(&["\"sigmoid\""]))];

const DOTS1: &[KnownField] = &[
    ("max_window_layers", Read),
    ("sliding_window", Read),
    // Of the first versions; the window alone counts.
    ("use_sliding_window", Harmless),
];

const GLM: &[KnownField] = &[("partial_rotary_factor", Read), ("use_qk_norm", Read)];

const EXAONE: &[KnownField] = &[("mlp_layer_types", Read), ("num_shared_experts", Read)];

/// All layers have experts, whatever it says.
const SOLAR: &[KnownField] =
    &[("first_k_dense_replace", Harmless), ("moe_layer_freq", Effect::ONE)];

const GLM_LITE: &[KnownField] = &[
    ("first_k_dense_replace", Effect::ONE),
    ("mlp_layer_types", Read),
    ("moe_layer_freq", Effect::ONE),
    ("rope_interleave", Read),
];
