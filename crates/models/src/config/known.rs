//! Every field of a `config.json` that is known, and what becomes of it.

use serde_json::Value;

use super::fields::Fields;
use crate::Error;

/// The name of a field of `config.json`, and what becomes of it.
pub type KnownField = (&'static str, Effect);

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Effect {
    /// It is read, checked and obeyed.
    Read,
    /// It changes no logit.
    Harmless,
    /// It would change logits in a way that is not built in: it must be absent, null or one of
    /// these, in JSON.
    Only(&'static [&'static str]),
}

use Effect::{Harmless, Only, Read};

impl Effect {
    pub(crate) const UNSET: Self = Only(&[]);
    pub(crate) const OFF: Self = Only(&["false"]);
    pub(crate) const ON: Self = Only(&["true"]);
    pub(crate) const ZERO: Self = Only(&["0"]);
    pub(crate) const ONE: Self = Only(&["1"]);
}

/// Fields of all architectures. An architecture that reads one of them has it in a table of its
/// own.
pub(crate) const COMMON: &[KnownField] = &[
    ("architectures", Read),
    ("dtype", Read),
    ("model_type", Read),
    ("partial_rotary_factor", Effect::ONE),
    ("quantization_config", Read),
    ("tie_word_embeddings", Read),
    ("torch_dtype", Read),
    ("vocab_size", Read),
    // How it was trained, saved or is looked at from outside.
    ("_attn_implementation", Harmless),
    ("_attn_implementation_autoset", Harmless),
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
    // Of generation, which reads them itself, or has a file of its own.
    ("bad_words_ids", Harmless),
    ("begin_suppress_tokens", Harmless),
    ("bos_token_id", Harmless),
    ("diversity_penalty", Harmless),
    ("do_sample", Harmless),
    ("early_stopping", Harmless),
    ("encoder_no_repeat_ngram_size", Harmless),
    ("eos_token_id", Harmless),
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
    ("alibi", Effect::OFF),
    ("attention_chunk_size", Effect::UNSET),
    ("attention_multiplier", Effect::UNSET),
    ("attention_out_bias", Effect::OFF),
    ("attention_window", Effect::UNSET),
    ("attn_logit_softcapping", Effect::UNSET),
    ("attn_scale", Effect::UNSET),
    ("attn_temperature_tuning", Effect::OFF),
    ("clip_qkv", Effect::UNSET),
    ("floor_scale", Effect::UNSET),
    ("is_causal", Effect::ON),
    ("kv_channels", Effect::UNSET),
    ("kv_lora_rank", Effect::UNSET),
    ("multi_query", Effect::OFF),
    ("q_lora_rank", Effect::UNSET),
    ("qk_layernorm", Effect::OFF),
    ("qk_norm", Effect::OFF),
    ("query_pre_attn_scalar", Effect::UNSET),
    ("sliding_window_pattern", Effect::UNSET),
    ("use_bidirectional_attention", Effect::OFF),
    ("use_dynamic_ntk", Effect::OFF),
    ("use_logn_attn", Effect::OFF),
    ("use_qk_norm", Effect::OFF),
    ("use_qk_rms_norm", Effect::OFF),
    ("v_head_dim", Effect::UNSET),
    // Another rotary embedding.
    ("no_rope_layer_interval", Effect::UNSET),
    ("no_rope_layers", Only(&["[]"])),
    ("position_embedding_type", Only(&["\"rope\"", "\"rotary\""])),
    ("rope_interleave", Effect::OFF),
    ("rope_interleaved", Effect::OFF),
    ("rope_ratio", Effect::ONE),
    ("rotary_base", Effect::UNSET),
    ("rotary_dim", Effect::UNSET),
    ("rotary_emb_base", Effect::UNSET),
    ("rotary_emb_fraction", Effect::ONE),
    ("rotary_percent", Effect::ONE),
    ("rotary_pct", Effect::ONE),
    ("use_mrope", Effect::OFF),
    ("use_rope", Effect::ON),
    // Other scales.
    ("dim_model_base", Effect::UNSET),
    ("embedding_multiplier", Effect::ONE),
    ("embedding_scale", Effect::ONE),
    ("final_logit_softcapping", Effect::UNSET),
    ("lm_head_multiplier", Effect::ONE),
    ("logit_scale", Effect::ONE),
    ("logits_scaling", Effect::ONE),
    ("mup_denominator", Effect::UNSET),
    ("residual_multiplier", Effect::ONE),
    ("scale_depth", Effect::UNSET),
    ("scale_emb", Effect::ONE),
    ("scale_embeddings", Effect::OFF),
    ("use_mup", Effect::OFF),
    // Other layers.
    ("add_cross_attention", Effect::OFF),
    ("bias", Effect::OFF),
    ("cross_attention_hidden_size", Effect::UNSET),
    ("decoder_sparse_step", Effect::ONE),
    // Of GGUF: 1 is a softmax.
    ("expert_gating_func", Only(&["0", "1"])),
    ("first_k_dense_replace", Effect::UNSET),
    ("hidden_activation", Effect::UNSET),
    ("is_encoder_decoder", Effect::OFF),
    ("is_moe", Effect::OFF),
    ("layers_block_type", Effect::UNSET),
    ("mlp_only_layers", Only(&["[]"])),
    ("moe_intermediate_size", Effect::UNSET),
    ("n_group", Only(&["0", "1"])),
    ("n_routed_experts", Effect::ZERO),
    ("n_shared_experts", Effect::ZERO),
    ("num_experts", Only(&["0", "1"])),
    ("num_experts_per_tok", Only(&["0", "1"])),
    ("num_local_experts", Only(&["0", "1"])),
    ("parallel_attn", Effect::OFF),
    ("per_layer_config", Only(&["{}"])),
    ("pruned_heads", Only(&["{}"])),
    ("routed_scaling_factor", Effect::ONE),
    ("scoring_func", Only(&["\"softmax\""])),
    ("shared_expert_intermediate_size", Effect::UNSET),
    ("swiglu_alpha", Effect::UNSET),
    ("swiglu_limit", Effect::UNSET),
    ("text_config", Effect::UNSET),
    ("tie_encoder_decoder", Effect::OFF),
    ("topk_group", Only(&["0", "1"])),
    ("use_bias", Effect::OFF),
    ("use_parallel_residual", Effect::OFF),
    ("vision_config", Effect::UNSET),
];

/// Of the object `rope_parameters` or `rope_scaling`, beside those that its type reads.
pub(crate) const ROPE: &[KnownField] = &[
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
    ("long_factor", Harmless),
    ("low_freq_factor", Harmless),
    ("mscale", Harmless),
    ("mscale_all_dim", Harmless),
    // Where images and videos are; of texts alone all of them are the same.
    ("mrope_interleaved", Harmless),
    ("mrope_section", Harmless),
    ("original_max_position_embeddings", Harmless),
    ("short_factor", Harmless),
    ("truncate", Harmless),
    // Of types that are not built in.
    ("chunked_attention", Effect::UNSET),
    ("full_attention", Effect::UNSET),
    ("long_mscale", Effect::UNSET),
    ("short_mscale", Effect::UNSET),
    ("sliding_attention", Effect::UNSET),
];

/// Refuses fields that are set to what is not built in, and notes the names of those in no table.
/// Of two tables that have a field the first counts.
pub(crate) fn check(fields: &Fields<'_>, tables: &[&[KnownField]]) -> Result<(), Error> {
    for (name, value) in fields.iter() {
        let known = tables.iter().flat_map(|table| table.iter()).find(|(known, _)| *known == name);
        match known {
            None => fields.note_unknown(name),
            Some((_, Only(values))) if !value.is_null() && !is_one_of(value, values) => {
                return Err(fields.refuse(name, expected(values)));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn is_one_of(value: &Value, values: &[&str]) -> bool {
    values.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok()).any(|allowed| match (
        allowed.as_f64(),
        value.as_f64(),
    ) {
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
