//! Drafts change how many passes a text takes, and nothing else.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::checkpoint::with_tokenizer;
use crate::common::{PROCESS, least};
use outsize_generate::{
    DraftStats, GenerationWorkload, LanguageModel, OpenedModel, Pipeline, PipelineError,
    PipelineSettings, Request, Sampling, generate, read_config,
};
use outsize_models::{CacheOptions, WhenFull};
use outsize_plan::Budget;
use tempfile::TempDir;

const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 700, "max_position_embeddings": 400}"#;

/// Of more tokens than the others, and of a short context.
const SMALL: &str = r#"{"model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 731, "max_position_embeddings": 60}"#;

const WINDOWS: &str = r#"{"model_type": "olmo3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 700, "max_position_embeddings": 400, "sliding_window": 9}"#;

/// Whose keys depend on the length of the text beyond 30 tokens.
const DYNAMIC: &str = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 700, "max_position_embeddings": 30,
    "rope_scaling": {"type": "dynamic", "factor": 4.0}}"#;

const EXPERTS: &str = r#"{"model_type": "mixtral", "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 700, "max_position_embeddings": 400,
    "num_local_experts": 5, "num_experts_per_tok": 2}"#;

const STATES: &str = r#"{"model_type": "qwen3_5_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"], "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 12, "vocab_size": 700,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "max_position_embeddings": 400}"#;

fn checkpoint(dir: &TempDir, name: &str, config: &str) -> PathBuf {
    let folder = dir.path().join(name);
    with_tokenizer(&folder, config, 3.0, "{}");
    folder
}

fn open(
    folder: &Path,
    draft: Option<&Path>,
    cache: CacheOptions,
    memory: Budget,
) -> Result<Pipeline, PipelineError> {
    let settings = PipelineSettings {
        max_memory: memory,
        workload: GenerationWorkload { process: PROCESS, ..GenerationWorkload::new(cache, 16) },
        planning: Default::default(),
        stop: None,
    };
    let mut model = OpenedModel::new(folder, read_config(folder)?)?;
    if let Some(draft) = draft {
        model.draft_with(OpenedModel::new(draft, read_config(draft)?)?)?;
    }
    model.dispatch(&settings, |_| {})
}

/// A prompt that repeats itself.
fn request(sampling: Sampling) -> Request {
    let ids = (0..30).map(|at| [5, 9, 17, 3, 8, 11, 40][at % 7]).collect();
    Request { ids, max_new_tokens: 24, eos: vec![2], sampling }
}

fn samplings() -> [Sampling; 3] {
    let drawn = Sampling { temperature: 0.9, top_k: Some(20), seed: 3, ..Sampling::default() };
    let varied = Sampling {
        temperature: 0.3,
        repetition_penalty: Some(1.3),
        seed: 4,
        ..Sampling::default()
    };
    [Sampling::default(), drawn, varied]
}

fn tokens(pipeline: &mut Pipeline, request: &Request) -> Vec<u32> {
    generate(pipeline, request, |_| ControlFlow::Continue(())).unwrap().tokens
}

#[test]
fn texts_are_what_they_are_without_drafts() {
    let dir = TempDir::new().unwrap();
    let small = checkpoint(&dir, "small", SMALL);
    let slide = CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(20) };
    let refuse = CacheOptions::new(100);
    for (name, config, cache) in [
        ("llama", LLAMA, refuse),
        ("llama-full", LLAMA, CacheOptions::new(41)),
        ("llama-slides", LLAMA, slide),
        ("windows", WINDOWS, refuse),
        ("dynamic", DYNAMIC, refuse),
        ("experts", EXPERTS, refuse),
    ] {
        let folder = checkpoint(&dir, name, config);
        for draft in [None, Some(&*small), Some(&*folder)] {
            for draft_tokens in [1, 2, 7] {
                let mut plain = open(&folder, None, cache, Budget::default()).unwrap();
                let drafts = CacheOptions { draft_tokens, ..cache };
                let mut drafting = open(&folder, draft, drafts, Budget::default()).unwrap();
                for sampling in samplings() {
                    let request = request(sampling);
                    let expected = tokens(&mut plain, &request);
                    let found = tokens(&mut drafting, &request);
                    let case = format!("{name}, {draft:?}, {draft_tokens}, {sampling:?}");
                    assert_eq!(found, expected, "{case}");
                    assert_eq!(drafting.position(), plain.position(), "{case}");
                    // The text can go on, or back, as it can without.
                    let next = [&expected[expected.len() - 1..], &[6, 7]].concat();
                    if plain.context().is_none_or(|most| plain.position() + next.len() <= most) {
                        let expected = plain.forward(&next).unwrap();
                        assert_eq!(drafting.forward(&next).unwrap(), expected, "{case}");
                    }
                    plain.clear();
                    drafting.clear();
                }
            }
        }
    }
}

#[test]
fn a_model_that_drafts_for_itself_is_always_right() {
    let dir = TempDir::new().unwrap();
    for (name, config) in [("llama", LLAMA), ("windows", WINDOWS), ("experts", EXPERTS)] {
        let folder = checkpoint(&dir, name, config);
        let cache = CacheOptions { draft_tokens: 5, ..CacheOptions::new(100) };
        let mut pipeline = open(&folder, Some(&folder), cache, Budget::default()).unwrap();
        let request = Request { eos: Vec::new(), ..request(Sampling::default()) };
        let count = tokens(&mut pipeline, &request).len() as u64;
        let DraftStats { passes, drafted, accepted } = pipeline.draft_stats().unwrap();
        // The first comes from the pass over the prompt; then each pass gives one and its drafts.
        // The last is not run.
        assert_eq!((count, passes), (24, 4), "{name}");
        assert_eq!(drafted, 4 * 5, "{name}");
        assert_eq!(accepted, count - 1 - passes, "{name}");
        // What comes after is drafted already.
        assert_eq!(pipeline.position(), 30 + 23, "{name}");
    }
}

#[test]
fn a_text_that_repeats_takes_fewer_passes() {
    let dir = TempDir::new().unwrap();
    let folder = checkpoint(&dir, "llama", LLAMA);
    let cache = CacheOptions { draft_tokens: 6, ..CacheOptions::new(400) };
    let mut pipeline = open(&folder, None, cache, Budget::default()).unwrap();
    // A random model that always takes the likeliest token soon repeats itself.
    let request = Request { max_new_tokens: 200, eos: Vec::new(), ..request(Sampling::default()) };
    tokens(&mut pipeline, &request);
    let DraftStats { passes, drafted, accepted } = pipeline.draft_stats().unwrap();
    assert!(passes + accepted >= 199, "{passes} passes, {accepted} of {drafted} accepted");
    assert!(passes < 100 && accepted <= drafted, "{passes} passes");
}

#[test]
fn what_cannot_be_taken_back_is_not_drafted() {
    let dir = TempDir::new().unwrap();
    let (llama, states) = (checkpoint(&dir, "llama", LLAMA), checkpoint(&dir, "states", STATES));
    let cache = CacheOptions { draft_tokens: 4, ..CacheOptions::new(100) };
    let said = |folder, draft, cache| {
        open(folder, draft, cache, Budget::default()).unwrap_err().to_string()
    };
    let error = said(&states, None, cache);
    assert!(
        error.contains("tokens cannot be drafted here: a state of linear attention"),
        "{error}"
    );
    let error = said(&llama, Some(&*states), cache);
    assert!(error.contains("the draft model cannot draft: a state"), "{error}");
    let error = said(&llama, None, CacheOptions { batch: 2, ..cache });
    assert!(error.contains("several would run side by side"), "{error}");
}

#[test]
fn a_budget_has_the_draft_model_in_it() {
    let dir = TempDir::new().unwrap();
    let (llama, small) = (checkpoint(&dir, "llama", LLAMA), checkpoint(&dir, "small", SMALL));
    let cache = CacheOptions { draft_tokens: 4, ..CacheOptions::new(100) };
    let tiny = Budget::parse("cpu=1MB").unwrap();
    let least = |draft| least(open(&llama, draft, cache, tiny.clone()).unwrap_err());
    let (alone, both) = (least(None), least(Some(&*small)));
    // Its weights, at least.
    let weights = std::fs::metadata(small.join("model.safetensors")).unwrap().len();
    assert!(both > alone + weights, "{alone} and {both} bytes, {weights} of weights");
    let budget = Budget::parse(&format!("cpu={both}")).unwrap();
    let mut pipeline = open(&llama, Some(&small), cache, budget).unwrap();
    let mut plain = open(&llama, None, cache, Budget::default()).unwrap();
    let request = request(Sampling::default());
    assert_eq!(tokens(&mut pipeline, &request), tokens(&mut plain, &request));
}
