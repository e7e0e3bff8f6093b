//! Every field of a `config.json` that is known, and what becomes of it.

use serde_json::Value;

use super::Architecture;
use super::fields::Fields;
use crate::Error;

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Effect {
    /// It is read, checked and obeyed.
    Read,
    /// It changes no logit.
    Harmless,
    /// It would change logits in a way that is not built in: it must be absent, null or one of these, in JSON.
    Only(&'static [&'static str]),
}

use Effect::{Harmless, Only, Read};

const UNSET: Effect = Only(&[]);
const OFF: Effect = Only(&["false"]);
const ON: Effect = Only(&["true"]);
const NONE: Effect = Only(&["0"]);
const ONE: Effect = Only(&["1"]);

/// Of all architectures.
pub(super) const COMMON: &[(&str, Effect)] = &[
    ("architectures", Read),
    ("bos_token_id", Read),
    ("dtype", Read),
    ("eos_token_id", Read),
    ("head_dim", Read),
    ("hidden_act", Read),
    ("hidden_size", Read),
    ("intermediate_size", Read),
    ("layer_types", Read),
    ("max_position_embeddings", Read),
    ("model_type", Read),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("num_key_value_heads", Read),
    ("original_max_position_embeddings", Read),
    ("partial_rotary_factor", Only(&["1"])),
    ("quantization_config", UNSET),
    ("rms_norm_eps", Read),
    ("rope_parameters", Read),
    ("rope_scaling", Read),
    ("rope_theta", Read),
    ("tie_word_embeddings", Read),
    ("torch_dtype", Read),
    ("vocab_size", Read),
    // How it was trained, saved or is looked at from outside.
    ("_attn_implementation", Harmless),
    ("_commit_hash", Harmless),
    ("_name_or_path", Harmless),
    ("attention_dropout", Harmless),
    ("attn_pdrop", Harmless),
    ("chunk_size_feed_forward", Harmless),
    ("embd_pdrop", Harmless),
    ("embedding_dropout", Harmless),
    ("finetuning_task", Harmless),
    ("hidden_dropout", Harmless),
    ("id2label", Harmless),
    ("initializer_range", Harmless),
    ("is_decoder", Harmless),
    ("label2id", Harmless),
    ("max_sequence_length", Harmless),
    ("name_or_path", Harmless),
    ("num_labels", Harmless),
    ("output_attentions", Harmless),
    ("output_hidden_states", Harmless),
    ("pad_token_id", Harmless),
    ("pretraining_tp", Harmless),
    ("problem_type", Harmless),
    ("resid_pdrop", Harmless),
    ("residual_dropout", Harmless),
    ("return_dict", Harmless),
    ("sep_token_id", Harmless),
    ("task_specific_params", Harmless),
    ("tokenizer_class", Harmless),
    ("torchscript", Harmless),
    ("transformers_version", Harmless),
    ("unk_token_id", Harmless),
    ("use_bfloat16", Harmless),
    ("use_cache", Harmless),
    ("use_flash_attention_2", Harmless),
    // Of generation, which has a file of its own.
    ("bad_words_ids", Harmless),
    ("begin_suppress_tokens", Harmless),
    ("diversity_penalty", Harmless),
    ("do_sample", Harmless),
    ("early_stopping", Harmless),
    ("encoder_no_repeat_ngram_size", Harmless),
    ("exponential_decay_length_penalty", Harmless),
    ("forced_bos_token_id", Harmless),
    ("forced_eos_token_id", Harmless),
    ("length_penalty", Harmless),
    ("max_length", Harmless),
    ("max_new_tokens", Harmless),
    ("min_length", Harmless),
    ("no_repeat_ngram_size", Harmless),
    ("num_beam_groups", Harmless),
    ("num_beams", Harmless),
    ("num_return_sequences", Harmless),
    ("output_scores", Harmless),
    ("prefix", Harmless),
    ("remove_invalid_values", Harmless),
    ("repetition_penalty", Harmless),
    ("return_dict_in_generate", Harmless),
    ("suppress_tokens", Harmless),
    ("temperature", Harmless),
    ("top_k", Harmless),
    ("top_p", Harmless),
    ("typical_p", Harmless),
    // Of relatives: another attention.
    ("alibi", OFF),
    ("attention_chunk_size", UNSET),
    ("attention_multiplier", UNSET),
    ("attention_out_bias", OFF),
    ("attention_window", UNSET),
    ("attn_logit_softcapping", UNSET),
    ("attn_scale", UNSET),
    ("attn_temperature_tuning", OFF),
    ("clip_qkv", UNSET),
    ("floor_scale", UNSET),
    ("is_causal", ON),
    ("kv_channels", UNSET),
    ("kv_lora_rank", UNSET),
    ("multi_query", OFF),
    ("q_lora_rank", UNSET),
    ("qk_layernorm", OFF),
    ("qk_norm", OFF),
    ("query_pre_attn_scalar", UNSET),
    ("sliding_window_pattern", UNSET),
    ("use_bidirectional_attention", OFF),
    ("use_dynamic_ntk", OFF),
    ("use_logn_attn", OFF),
    ("use_qk_norm", OFF),
    ("use_qk_rms_norm", OFF),
    ("v_head_dim", UNSET),
    // Another rotary embedding.
    ("no_rope_layer_interval", UNSET),
    ("no_rope_layers", Only(&["[]"])),
    ("position_embedding_type", Only(&["\"rope\"", "\"rotary\""])),
    ("rope_interleave", OFF),
    ("rope_interleaved", OFF),
    ("rope_ratio", ONE),
    ("rotary_base", UNSET),
    ("rotary_dim", UNSET),
    ("rotary_emb_base", UNSET),
    ("rotary_emb_fraction", ONE),
    ("rotary_percent", ONE),
    ("rotary_pct", ONE),
    ("use_mrope", OFF),
    ("use_rope", ON),
    // Other scales.
    ("dim_model_base", UNSET),
    ("embedding_multiplier", ONE),
    ("embedding_scale", ONE),
    ("final_logit_softcapping", UNSET),
    ("lm_head_multiplier", ONE),
    ("logit_scale", ONE),
    ("logits_scaling", ONE),
    ("mup_denominator", UNSET),
    ("residual_multiplier", ONE),
    ("scale_depth", UNSET),
    ("scale_emb", ONE),
    ("scale_embeddings", OFF),
    ("use_mup", OFF),
    // Other layers.
    ("add_cross_attention", OFF),
    ("bias", OFF),
    ("cross_attention_hidden_size", UNSET),
    ("decoder_sparse_step", ONE),
    ("first_k_dense_replace", UNSET),
    ("hidden_activation", UNSET),
    ("is_encoder_decoder", OFF),
    ("is_moe", OFF),
    ("layers_block_type", UNSET),
    ("mlp_only_layers", Only(&["[]"])),
    ("moe_intermediate_size", UNSET),
    ("n_routed_experts", NONE),
    ("n_shared_experts", NONE),
    ("num_experts", Only(&["0", "1"])),
    ("num_experts_per_tok", Only(&["0", "1"])),
    ("num_local_experts", Only(&["0", "1"])),
    ("parallel_attn", OFF),
    ("per_layer_config", Only(&["{}"])),
    ("pruned_heads", Only(&["{}"])),
    ("shared_expert_intermediate_size", UNSET),
    ("swiglu_alpha", UNSET),
    ("swiglu_limit", UNSET),
    ("text_config", UNSET),
    ("tie_encoder_decoder", OFF),
    ("use_bias", OFF),
    ("use_parallel_residual", OFF),
    ("vision_config", UNSET),
];

/// Of Llama.
const LLAMA: &[(&str, Effect)] = &[
    ("attention_bias", Read),
    ("mlp_bias", Read),
    ("qkv_bias", OFF),
    ("use_qkv_bias", OFF),
    ("max_window_layers", UNSET),
    ("sliding_window", UNSET),
    ("use_sliding_window", OFF),
];

/// Of Mistral.
const MISTRAL: &[(&str, Effect)] = &[
    ("attention_bias", OFF),
    ("mlp_bias", OFF),
    ("qkv_bias", OFF),
    ("use_qkv_bias", OFF),
    ("max_window_layers", UNSET),
    ("sliding_window", Read),
    ("use_sliding_window", ON),
];

/// Of Qwen2.
const QWEN2: &[(&str, Effect)] = &[
    ("attention_bias", ON),
    ("mlp_bias", OFF),
    ("qkv_bias", ON),
    ("use_qkv_bias", ON),
    ("max_window_layers", Read),
    ("sliding_window", Read),
    ("use_sliding_window", Read),
];

/// Of the object `rope_parameters` or `rope_scaling`, beside those that its type reads.
pub(super) const ROPE: &[(&str, Effect)] = &[
    ("partial_rotary_factor", Only(&["1"])),
    ("rope_theta", Read),
    ("rope_type", Read),
    ("type", Read),
    // Of one type, and passed over by the others.
    ("attention_factor", Harmless),
    ("beta_fast", Harmless),
    ("beta_slow", Harmless),
    ("factor", Harmless),
    ("high_freq_factor", Harmless),
    ("low_freq_factor", Harmless),
    ("mscale", Harmless),
    ("mscale_all_dim", Harmless),
    ("original_max_position_embeddings", Harmless),
    ("truncate", Harmless),
    // Of types that are not built in.
    ("chunked_attention", UNSET),
    ("full_attention", UNSET),
    ("long_factor", UNSET),
    ("long_mscale", UNSET),
    ("mrope_section", UNSET),
    ("short_factor", UNSET),
    ("short_mscale", UNSET),
    ("sliding_attention", UNSET),
];

/// The fields of an architecture beside the [common](COMMON) ones.
pub(super) fn own(architecture: Architecture) -> &'static [(&'static str, Effect)] {
    match architecture {
        Architecture::Llama => LLAMA,
        Architecture::Mistral => MISTRAL,
        Architecture::Qwen2 => QWEN2,
    }
}

/// Refuses fields that are set to what is not built in, and gives the names of those in no table.
pub(super) fn check(
    fields: &Fields<'_>,
    tables: &[&[(&str, Effect)]],
) -> Result<Vec<String>, Error> {
    let mut unknown = Vec::new();
    for (name, value) in fields.iter() {
        let known = tables
            .iter()
            .flat_map(|table| table.iter())
            .find(|(known, _)| *known == name);
        match known {
            None => unknown.push(fields.path(name)),
            Some((_, Only(values))) if !value.is_null() && !is_one_of(value, values) => {
                return Err(fields.refuse(name, expected(values)));
            }
            Some(_) => {}
        }
    }
    Ok(unknown)
}

fn is_one_of(value: &Value, values: &[&str]) -> bool {
    values
        .iter()
        .filter_map(|text| serde_json::from_str::<Value>(text).ok())
        .any(|allowed| match (allowed.as_f64(), value.as_f64()) {
            (Some(allowed), Some(value)) => allowed == value,
            _ => allowed == *value,
        })
}

fn expected(values: &[&str]) -> String {
    match values {
        [] => "models that set it are not supported".to_owned(),
        values => format!("only {} is supported", values.join(" or ")),
    }
}
