//! Models that hold conversations.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use outsize_generate::{
    ChatOptions, ChatSession, ChatTemplate, GenerationWorkload, OpenedModel, Pipeline,
    PipelineSettings, Sampling, Tokenizer, read_config,
};
use outsize_models::CacheOptions;
use tempfile::TempDir;

use super::checkpoint::with_tokenizer;

pub const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 700, "max_position_embeddings": 400}"#;

pub const DYNAMIC: &str = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 700, "max_position_embeddings": 60,
    "rope_scaling": {"type": "dynamic", "factor": 2.0}}"#;

pub const WINDOW: &str = r#"{"model_type": "mistral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 700, "max_position_embeddings": 400,
    "sliding_window": 16}"#;

pub const WINDOWS: &str = r#"{"model_type": "olmo3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 700, "max_position_embeddings": 400, "sliding_window": 16}"#;

pub const STATES: &str = r#"{"model_type": "qwen3_5_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4, "vocab_size": 700,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "max_position_embeddings": 400}"#;

pub const ENCODER: &str = r#"{"model_type": "t5", "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4,
    "vocab_size": 700, "decoder_start_token_id": 0}"#;

pub const TEMPLATE: &str = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}\
    {% if add_generation_prompt %}<s>assistant: {% endif %}";

pub fn checkpoint(config: &str) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("model");
    with_tokenizer(&folder, config, 12.0, "{}");
    (dir, folder)
}

pub fn pipeline(folder: &Path, cache: CacheOptions, stop: Option<Arc<AtomicBool>>) -> Pipeline {
    let settings = PipelineSettings {
        max_memory: Default::default(),
        workload: GenerationWorkload::new(cache, 16),
        planning: Default::default(),
        stop,
    };
    let open = || OpenedModel::new(folder, read_config(folder).unwrap()).unwrap();
    let mut model = open();
    if cache.draft_tokens > 0 {
        // It drafts for itself, so that many guesses are right.
        model.draft_with(open()).unwrap();
    }
    model.dispatch(&settings, |_| {}).unwrap()
}

pub fn template() -> ChatTemplate {
    ChatTemplate::new("chat_template.jinja", TEMPLATE, BTreeMap::new()).unwrap()
}

pub fn session(folder: &Path, cache: CacheOptions, stop: Option<Arc<AtomicBool>>) -> ChatSession {
    let tokenizer = Tokenizer::open(folder).unwrap();
    ChatSession::new(pipeline(folder, cache, stop), tokenizer, template(), 700)
}

pub fn options() -> ChatOptions {
    let sampling = Sampling {
        temperature: 0.8,
        seed: 7,
        repetition_penalty: Some(1.2),
        ..Sampling::default()
    };
    ChatOptions { max_new_tokens: Some(9), eos: vec![2], sampling, ..ChatOptions::default() }
}
