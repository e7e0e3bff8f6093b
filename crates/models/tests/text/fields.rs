//! Every field that an architecture knows beside those of all, one by one: what changes the result
//! is read or refused by name.

use outsize_models::arch::{
    ApertusForCausalLm, ArceeForCausalLm, BambaForCausalLm, BloomForCausalLm, DbrxForCausalLm,
    DeepseekForCausalLm, DeepseekV4ForCausalLm, ErnieMoeForCausalLm, FalconForCausalLm,
    FalconH1ForCausalLm, Gemma3nForCausalLm, Gemma4ForCausalLm, GlmForCausalLm, GptNeoxForCausalLm,
    GraniteMoeForCausalLm, GraniteMoeHybridForCausalLm, HunyuanMoeForCausalLm, HyV4ForCausalLm,
    KimiForCausalLm, Lfm2ForCausalLm, Llama4ForCausalLm, LlamaForCausalLm, LongcatForCausalLm,
    MiniMaxForCausalLm, MixtralForCausalLm, MuseSparkForCausalLm, NemotronHForCausalLm,
    OptForCausalLm, Phi3ForCausalLm, PhiForCausalLm, Qwen3VlMoeForCausalLm, SparseMoeForCausalLm,
    Starcoder2ForCausalLm,
};
use outsize_models::{Architecture, Effect, KnownField, ModelConfig};
use serde_json::{Value, json};

/// A fixture of each architecture, with the tables of the fields that it knows.
fn architectures() -> Vec<(&'static str, &'static [&'static [KnownField]])> {
    fn of<A: Architecture>(name: &'static str) -> (&'static str, &'static [&'static [KnownField]]) {
        let is_own = |(model_type, _): &&(&str, _)| model_type.starts_with(name);
        (name, A::fields(A::MODEL_TYPES.iter().find(is_own).unwrap().0))
    }
    vec![
        of::<LlamaForCausalLm>("qwen3"),
        of::<LlamaForCausalLm>("olmo2"),
        of::<LlamaForCausalLm>("olmo3"),
        of::<LlamaForCausalLm>("granite"),
        of::<LlamaForCausalLm>("smollm3"),
        of::<LlamaForCausalLm>("seed_oss"),
        of::<ArceeForCausalLm>("arcee"),
        of::<ArceeForCausalLm>("nanochat"),
        of::<ArceeForCausalLm>("jais2"),
        of::<DeepseekForCausalLm>("kolibri1"),
        of::<DeepseekForCausalLm>("dots3_note_text"),
        ("dots3_note-published-bf16", DeepseekForCausalLm::fields("dots3_note")),
        of::<DeepseekForCausalLm>("flint"),
        of::<DeepseekForCausalLm>("lara_mini"),
        of::<LlamaForCausalLm>("ministral"),
        of::<LlamaForCausalLm>("internlm3"),
        of::<LlamaForCausalLm>("exaone"),
        of::<LlamaForCausalLm>("hyperclovax"),
        of::<Phi3ForCausalLm>("phi3"),
        of::<LlamaForCausalLm>("exaone4"),
        of::<LlamaForCausalLm>("ernie4_5"),
        of::<LlamaForCausalLm>("hunyuan_v1_dense"),
        of::<GlmForCausalLm>("glm"),
        of::<GlmForCausalLm>("glm4"),
        of::<HunyuanMoeForCausalLm>("hunyuan_v1_moe"),
        of::<DeepseekForCausalLm>("dots1"),
        of::<ErnieMoeForCausalLm>("ernie4_5_moe"),
        of::<MixtralForCausalLm>("minimax_m2"),
        of::<LlamaForCausalLm>("cohere"),
        of::<LlamaForCausalLm>("cohere2"),
        of::<LlamaForCausalLm>("stablelm"),
        of::<Starcoder2ForCausalLm>("starcoder2"),
        of::<PhiForCausalLm>("phi"),
        of::<LlamaForCausalLm>("ministral3"),
        of::<LlamaForCausalLm>("mistral3"),
        of::<LlamaForCausalLm>("qwen3_vl"),
        of::<Qwen3VlMoeForCausalLm>("qwen3_vl_moe"),
        of::<GlmForCausalLm>("glm4v"),
        of::<Lfm2ForCausalLm>("lfm3"),
        of::<LlamaForCausalLm>("exaone4_5"),
        of::<LlamaForCausalLm>("muse_glimmer"),
        of::<MuseSparkForCausalLm>("muse_spark"),
        of::<DeepseekForCausalLm>("glm4v_moe"),
        of::<LlamaForCausalLm>("gemma"),
        of::<LlamaForCausalLm>("gemma2"),
        of::<LlamaForCausalLm>("gemma3"),
        of::<GptNeoxForCausalLm>("gpt_neox"),
        of::<OptForCausalLm>("opt"),
        of::<BloomForCausalLm>("bloom"),
        of::<FalconForCausalLm>("falcon"),
        of::<Llama4ForCausalLm>("llama4"),
        of::<Gemma4ForCausalLm>("gemma4"),
        of::<Gemma4ForCausalLm>("gemma4_unified_text"),
        of::<Gemma3nForCausalLm>("gemma3n"),
        of::<Lfm2ForCausalLm>("lfm2"),
        of::<Lfm2ForCausalLm>("lfm2_moe"),
        of::<LlamaForCausalLm>("olmo"),
        of::<ArceeForCausalLm>("nemotron"),
        of::<ApertusForCausalLm>("apertus"),
        of::<GraniteMoeForCausalLm>("granitemoe"),
        of::<GraniteMoeForCausalLm>("granitemoeshared"),
        of::<DeepseekForCausalLm>("solar_open"),
        of::<DeepseekForCausalLm>("exaone_moe"),
        of::<DeepseekForCausalLm>("deepseek_v32"),
        of::<DeepseekForCausalLm>("glm_moe_dsa"),
        of::<DeepseekForCausalLm>("mistral4"),
        of::<DeepseekForCausalLm>("mistral_large4"),
        of::<DeepseekForCausalLm>("axk1"),
        of::<DeepseekForCausalLm>("axk2"),
        of::<DeepseekForCausalLm>("sarvam_mla"),
        of::<DeepseekForCausalLm>("sarvam_moe"),
        of::<DeepseekForCausalLm>("param2moe"),
        of::<DeepseekForCausalLm>("minicpm5_moe"),
        of::<DeepseekForCausalLm>("hy_v3"),
        of::<DeepseekForCausalLm>("afmoe"),
        of::<DeepseekForCausalLm>("laguna"),
        of::<DeepseekForCausalLm>("mimo_v2_flash"),
        of::<LongcatForCausalLm>("longcat_flash"),
        of::<HyV4ForCausalLm>("hy_v4"),
        of::<HyV4ForCausalLm>("hy_v4_vl"),
        of::<DeepseekV4ForCausalLm>("deepseek_v4"),
        of::<DbrxForCausalLm>("dbrx"),
        of::<KimiForCausalLm>("kimi_linear"),
        of::<KimiForCausalLm>("bailing_hybrid"),
        of::<MiniMaxForCausalLm>("minimax"),
        of::<DeepseekForCausalLm>("cohere2_moe"),
        of::<MixtralForCausalLm>("phimoe"),
        of::<SparseMoeForCausalLm>("flex_olmo"),
        of::<SparseMoeForCausalLm>("qwen3_next"),
        of::<GraniteMoeForCausalLm>("granitemoe_swa"),
        of::<LlamaForCausalLm>("granite_swa"),
        of::<LlamaForCausalLm>("olmo_hybrid"),
        of::<LlamaForCausalLm>("cwm"),
        of::<LlamaForCausalLm>("youtu"),
        of::<LlamaForCausalLm>("minicpm3"),
        of::<LlamaForCausalLm>("vaultgemma"),
        of::<LlamaForCausalLm>("helium"),
        of::<SparseMoeForCausalLm>("mellum"),
        ("vision-qwen3_omni_moe", SparseMoeForCausalLm::fields("qwen3_omni_moe")),
        ("vision-internvl", LlamaForCausalLm::fields("internvl")),
        ("vision-qwen2_5_omni", LlamaForCausalLm::fields("qwen2_5_omni")),
        ("vision-smolvlm", LlamaForCausalLm::fields("smolvlm")),
        ("vision-idefics3", LlamaForCausalLm::fields("idefics3")),
        of::<GraniteMoeHybridForCausalLm>("granitemoehybrid"),
        of::<BambaForCausalLm>("bamba"),
        of::<FalconH1ForCausalLm>("falcon_h1"),
        of::<NemotronHForCausalLm>("nemotron_h"),
        of::<BambaForCausalLm>("jamba"),
        of::<NemotronHForCausalLm>("mamba"),
        of::<NemotronHForCausalLm>("falcon_mamba"),
        of::<NemotronHForCausalLm>("mamba2"),
    ]
}

/// The fixture's configuration with one field changed.
pub fn read(name: &str, field: &str, value: Value) -> Result<ModelConfig, outsize_models::Error> {
    let text = std::fs::read_to_string(crate::common::folder(name).join("config.json")).unwrap();
    let mut fields = outsize_checkpoint::parse_json(text.as_bytes()).unwrap();
    fields[field] = value;
    ModelConfig::from_json(&fields.to_string())
}

/// What no field means anything by.
fn nonsense() -> [Value; 4] {
    [json!("an unknown value"), json!(-7.25), json!([[0.5]]), json!({"an": "unknown value"})]
}

/// Fields that only count together with others, or of which an object with nothing known in it says
/// nothing.
fn may_be_passed_over(name: &str, field: &str, value: &Value) -> bool {
    match field {
        "original_max_position_embeddings" => true,
        "rope_parameters" | "rope_scaling" | "linear_attn_config" | "attn_config"
        | "ffn_config" => value.is_object(),
        // All that it may say has a default.
        "text_config" => {
            let all = [
                "mistral_large4",
                "hy_v4_vl",
                "muse_glimmer",
                "muse_spark",
                "dots3_note-published-bf16",
            ];
            all.contains(&name) && value.is_object()
        }
        // In files of older versions: those of newer ones have it in `rope_parameters`.
        "rope_theta"
        | "rotary_emb_base"
        | "rotary_pct"
        | "partial_rotary_factor"
        | "rope_local_base_freq" => true,
        // Of files that do not list what each layer has.
        "full_attention_interval" => name == "qwen3_next",
        "compress_rates" => value.is_object(),
        "compress_ratios" | "num_hash_layers" | "qk_rope_head_dim" => name == "deepseek_v4",
        "hybrid_layer_pattern" => name == "mimo_v2_flash",
        "index_skip_topk_offset" | "index_topk_freq" | "index_topk_pattern" => {
            name == "glm_moe_dsa"
        }
        // Of others: they list which layers have experts.
        "first_k_dense_replace" => {
            ["deepseek_v32", "glm_moe_dsa", "axk1", "axk2", "dots3_note_text", "minicpm5_moe"]
                .contains(&name)
        }
        // Of files as they were published first, which do not list sizes of each layer.
        "moe_layer_freq" | "sliding_window_size" => name == "dots3_note_text",
        "use_sliding_window" => name.starts_with("dots3_note"),
        // One of these is a number that it may be.
        "kda_lower_bound" => value.is_number(),
        // Other names of fields that are there.
        "num_attention_heads" | "num_hidden_layers" => name == "bloom",
        _ => field.starts_with("swa_") && name == "dots3_note_text",
    }
}

#[test]
fn what_changes_the_result_is_read_or_refused_by_name() {
    let mut tried = 0;
    for (name, tables) in architectures() {
        for &(field, effect) in tables.iter().copied().flatten() {
            for value in nonsense() {
                let passed_over = may_be_passed_over(name, field, &value);
                match (read(name, field, value), effect) {
                    (Ok(config), Effect::Harmless) => {
                        assert!(config.unknown_fields.is_empty(), "{name}: {field}");
                    }
                    (Ok(_), Effect::Read) => assert!(passed_over, "{name}: {field}"),
                    (Ok(_), Effect::Only(_)) => panic!("{name}: {field} is not refused"),
                    (Err(error), _) => {
                        let message = error.to_string();
                        assert!(message.contains(&format!("`{field}")), "{name}: {message}");
                        tried += 1;
                    }
                }
            }
            if let Effect::Only(values) = effect {
                let plain = read(name, "use_cache", json!(true)).unwrap();
                for value in values.iter().map(|text| serde_json::from_str(text).unwrap()) {
                    assert_eq!(read(name, field, value).unwrap(), plain, "{name}: {field}");
                }
            }
        }
    }
    assert!(tried > 50, "{tried}");
}

#[test]
fn no_field_is_in_two_tables_of_one_architecture() {
    for (name, tables) in architectures() {
        let mut fields: Vec<_> = tables.iter().copied().flatten().map(|(field, _)| field).collect();
        let all = fields.len();
        fields.sort();
        fields.dedup();
        assert_eq!(fields.len(), all, "{name}");
    }
}
