//! A model behind a budget computes what it computes without one, and what transformers computes.

use crate::common::checkpoint::{fixture, random};
use crate::common::{PROCESS, cpu, least};
use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};
use outsize_generate::{
    Finish, GenerationWorkload, LanguageModel, Pipeline, PipelineError, PipelineSettings, Request,
    Sampling, generate, read_config,
};
use outsize_models::{ActivationDtype, CacheOptions, KvDtype, Logits, WhenFull};
use std::ops::ControlFlow;
use std::path::Path;
use tempfile::TempDir;

/// Reference fixtures of the models crate: tiny checkpoints with what transformers computed.
const FIXTURES: [&str; 6] =
    ["mha-tied", "gqa", "head-dim", "llama3-rope", "gqa-bf16", "mha-tied-bf16"];

fn expected(name: &str) -> (Vec<u32>, Vec<u32>, Vec<f32>) {
    let text = std::fs::read_to_string(fixture(name).join("expected.json")).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids = |key: &str| -> Vec<u32> {
        let list = value[key].as_array().unwrap();
        list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let file = Checkpoint::open(fixture(name).join("expected.safetensors")).unwrap();
    let raw = file.read(file.get("logits").unwrap()).unwrap();
    let logits = raw.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
    (ids("ids"), ids("greedy"), logits.collect())
}

fn settings(budget: Option<u64>, logits: Logits) -> PipelineSettings {
    PipelineSettings {
        max_memory: cpu(budget),
        workload: GenerationWorkload {
            logits,
            process: PROCESS,
            ..GenerationWorkload::new(CacheOptions::new(64), 32)
        },
        planning: Default::default(),
        stop: None,
    }
}

fn open_with(folder: &Path, settings: &PipelineSettings) -> Result<Pipeline, PipelineError> {
    Pipeline::open(folder, read_config(folder)?, settings, |_| {})
}

fn open(folder: &Path, budget: Option<u64>, logits: Logits) -> Result<Pipeline, PipelineError> {
    open_with(folder, &settings(budget, logits))
}

fn logits(pipeline: &mut Pipeline, ids: &[u32]) -> Vec<f32> {
    let mut all = Vec::new();
    pipeline.logits(ids, |rows| all.extend_from_slice(rows)).unwrap();
    pipeline.clear();
    all
}

fn greedy(pipeline: &mut Pipeline, ids: &[u32], count: usize) -> Vec<u32> {
    let request = Request {
        ids: ids.to_vec(),
        max_new_tokens: count,
        eos: Vec::new(),
        sampling: Sampling::default(),
    };
    let outcome = generate(pipeline, &request, |_| ControlFlow::Continue(())).unwrap();
    pipeline.clear();
    outcome.tokens
}

fn least_budget(folder: &Path) -> u64 {
    least(open(folder, Some(1), Logits::All).unwrap_err())
}

#[test]
fn logits_and_greedy_tokens_are_those_of_transformers() {
    for name in FIXTURES {
        let (ids, tokens, reference) = expected(name);
        let mut pipeline = open(&fixture(name), None, Logits::All).unwrap();
        let found = logits(&mut pipeline, &ids);
        let largest = reference.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let worst = found.iter().zip(&reference).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
        assert_eq!(found.len(), reference.len());
        assert!(worst <= 1e-4 * largest, "{name}: {worst} of {largest}");
        assert_eq!(greedy(&mut pipeline, &ids, tokens.len()), tokens, "{name}");
    }
}

/// A checkpoint of some 50 MB in bf16, so that a ring is smaller than the weights; its head has
/// several tiles.
fn wide(folder: &Path, tied: bool, dtype: Dtype) {
    let config = format!(
        r#"{{"model_type": "llama", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
            "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 6000, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 128, "tie_word_embeddings": {tied}}}"#
    );
    random(folder, &config, dtype, 4.0);
}

#[test]
fn placement_never_changes_a_bit() {
    for (tied, dtype) in [(false, Dtype::BF16), (true, Dtype::BF16), (false, Dtype::F32)] {
        let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let folder = dir.path().join("model");
        wide(&folder, tied, dtype);
        let ids: Vec<u32> = (0..20).map(|i| (i * 131 + 7) % 6000).collect();
        let mut resident = open(&folder, None, Logits::All).unwrap();
        let (reference, tokens) = (logits(&mut resident, &ids), greedy(&mut resident, &ids, 12));
        assert_eq!(resident.device_map().streamed_bytes(), 0);
        let weights = resident.device_map().resident_bytes();
        let least = least_budget(&folder);
        for extra in [0, weights / 5, weights / 3] {
            let mut streamed = open(&folder, Some(least + extra), Logits::All).unwrap();
            assert!(streamed.device_map().streamed_bytes() > 0, "{tied} {dtype} {extra}");
            let found = logits(&mut streamed, &ids);
            assert!(
                found.iter().zip(&reference).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{tied} {dtype} {extra}"
            );
            assert_eq!(greedy(&mut streamed, &ids, 12), tokens);
        }
    }
}

#[test]
fn a_repetition_penalty_gives_the_tokens_of_transformers() {
    let expected: serde_json::Value =
        serde_json::from_str(include_str!("../fixtures/penalty.json")).unwrap();
    let ids = |key: &str| -> Vec<u32> { serde_json::from_value(expected[key].clone()).unwrap() };
    for (key, penalty) in [("1.2", 1.2), ("0.8", 0.8)] {
        let request = Request {
            ids: ids("ids"),
            max_new_tokens: 24,
            eos: Vec::new(),
            sampling: Sampling { repetition_penalty: Some(penalty), ..Sampling::default() },
        };
        let mut pipeline = open(&fixture("gqa"), None, Logits::Last).unwrap();
        let outcome = generate(&mut pipeline, &request, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(outcome.tokens, ids(key), "{key}");
    }
}

/// The bits of the logits after the last of `ids`.
fn bits(pipeline: &mut Pipeline, ids: &[u32]) -> Vec<u32> {
    let logits = pipeline.forward(ids).unwrap();
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn a_text_rolled_back_goes_on_as_if_nothing_had_been() {
    for kv_dtype in KvDtype::ALL {
        let (ids, _, _) = expected("gqa");
        let mut settings = settings(None, Logits::Last);
        settings.workload.cache.dtype = *kv_dtype;
        let mut pipeline = open_with(&fixture("gqa"), &settings).unwrap();
        let request = Request {
            ids: ids.clone(),
            max_new_tokens: 20,
            eos: Vec::new(),
            sampling: Sampling { temperature: 1.0, seed: 3, ..Sampling::default() },
        };
        let run = |pipeline: &mut Pipeline| {
            generate(pipeline, &request, |_| ControlFlow::Continue(())).unwrap().tokens
        };
        let first = run(&mut pipeline);
        assert_eq!(pipeline.position(), ids.len() + 19);
        pipeline.truncate(0).unwrap();
        assert_eq!(run(&mut pipeline), first, "{kv_dtype}");

        // From the middle: the logits after another token, with and without the tokens forgotten.
        pipeline.truncate(ids.len() + 5).unwrap();
        assert_eq!(pipeline.position(), ids.len() + 5);
        let again = bits(&mut pipeline, &first[5..6]);
        let other = [bits(&mut pipeline, &[9]), bits(&mut pipeline, &[17])];
        pipeline.clear();
        bits(&mut pipeline, &ids);
        for token in &first[..5] {
            bits(&mut pipeline, &[*token]);
        }
        assert_eq!(bits(&mut pipeline, &first[5..6]), again, "{kv_dtype}");
        assert_eq!(bits(&mut pipeline, &[9]), other[0], "{kv_dtype}");
        assert_eq!(bits(&mut pipeline, &[17]), other[1], "{kv_dtype}");
        // Further than the text there is nothing to forget.
        let position = pipeline.position();
        pipeline.truncate(position + 1).unwrap();
        assert_eq!(pipeline.position(), position);
    }
}

#[test]
fn tokens_that_an_answer_does_not_depend_on_are_not_run() {
    // Two or three layers, each of which sees itself and `window - 1` tokens before.
    for (name, slide, to_run) in [
        ("gqa", Some(4), 10),
        ("attention-bias", Some(5), 9),
        ("yarn", Some(3), 5),
        ("mistral-window", None, 11),
    ] {
        let (ids, _, _) = expected(name);
        let mut settings = settings(None, Logits::All);
        if let Some(context) = slide {
            settings.workload.cache =
                CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(context) };
        }
        let mut pipeline = open_with(&fixture(name), &settings).unwrap();
        let mut all = Vec::new();
        pipeline.logits(&ids, |rows| all.extend_from_slice(rows)).unwrap();
        let last = all.len() / ids.len();
        let last: Vec<u32> = all[all.len() - last..].iter().map(|logit| logit.to_bits()).collect();
        let next = bits(&mut pipeline, &[7]);
        pipeline.clear();
        assert_eq!(pipeline.tokens_to_run(ids.len()), to_run, "{name}");
        let before = pipeline.watch_tokens()();
        assert_eq!(bits(&mut pipeline, &ids), last, "{name}");
        assert_eq!(pipeline.watch_tokens()() - before, to_run as u64, "{name}");
        assert_eq!(pipeline.position(), ids.len());
        assert_eq!(bits(&mut pipeline, &[7]), next, "{name}");
    }
}

#[test]
fn a_tied_head_that_is_stored_too_is_the_table() {
    let (ids, tokens, _) = expected("mha-tied");
    let checkpoint = Checkpoint::open(fixture("mha-tied")).unwrap();
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("model");
    let written = |head_shape: Option<[usize; 2]>| {
        let table = checkpoint.get("model.embed_tokens.weight").unwrap();
        let mut specs: Vec<TensorSpec> = (checkpoint.tensors().iter())
            .map(|tensor| TensorSpec::new(&tensor.name, tensor.dtype, tensor.shape.clone()))
            .collect();
        let shape = head_shape.map_or(table.shape.clone(), |shape| shape.to_vec());
        specs.push(TensorSpec::new("lm_head.weight", table.dtype, shape));
        let _ = std::fs::remove_dir_all(&folder);
        let mut writer = ShardWriter::create(&folder, specs, u64::MAX).unwrap();
        let config = std::fs::read(fixture("mha-tied").join("config.json")).unwrap();
        writer.add_file("config.json", &config).unwrap();
        for tensor in checkpoint.tensors() {
            writer.write(&tensor.name, &checkpoint.read(tensor).unwrap()).unwrap();
        }
        let bytes = checkpoint.read(table).unwrap();
        let len = head_shape.map_or(bytes.len(), |[rows, width]| 4 * rows * width);
        writer.write("lm_head.weight", &bytes[..len]).unwrap();
        writer.finish().unwrap();
    };
    written(None);
    let mut pipeline = open(&folder, None, Logits::Last).unwrap();
    assert_eq!(greedy(&mut pipeline, &ids, tokens.len()), tokens);
    let mut plain = open(&fixture("mha-tied"), None, Logits::Last).unwrap();
    assert_eq!(pipeline.device_map().total_bytes(), plain.device_map().total_bytes());
    plain.clear();
    let described = outsize_generate::describe(&folder).unwrap();
    assert_eq!(
        (described.source, described.notes),
        (outsize_generate::SizeSource::Both, Vec::<String>::new())
    );
    // What differs is not the table.
    let mut bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let file = Checkpoint::open(&folder).unwrap();
    let head = file.get("lm_head.weight").unwrap();
    bytes[(head.offset + head.len) as usize - 1] ^= 1;
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    let error = open(&folder, None, Logits::Last).unwrap_err().to_string();
    assert!(
        error.contains("lm_head.weight is stored and differs from model.embed_tokens.weight"),
        "{error}"
    );
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["tie_word_embeddings"] = false.into();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    open(&folder, None, Logits::Last).unwrap();
    // What cannot be the table is no part of the model.
    written(Some([2, 64]));
    let error = open(&folder, None, Logits::Last).unwrap_err().to_string();
    assert!(error.contains("lm_head.weight"), "{error}");
}

#[test]
fn a_sliding_context_goes_on_and_rolls_back_as_far_as_it_remembers() {
    let (ids, _, _) = expected("gqa");
    let mut sliding = settings(None, Logits::Last);
    sliding.workload.cache = CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(8) };
    let mut pipeline = open_with(&fixture("gqa"), &sliding).unwrap();
    assert_eq!(pipeline.context(), None);
    // A prompt three times as long as what is remembered.
    assert_eq!(ids.len(), 24);
    let first = bits(&mut pipeline, &ids);
    let request = Request {
        ids: vec![7],
        max_new_tokens: 100,
        eos: Vec::new(),
        sampling: Sampling::default(),
    };
    let outcome = generate(&mut pipeline, &request, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((outcome.finish, outcome.tokens.len()), (Finish::Length, 100));
    assert_eq!(pipeline.position(), 24 + 100);
    let error = pipeline.truncate(24).unwrap_err().to_string();
    assert!(error.contains("24"), "{error}");
    assert_eq!(pipeline.position(), 24 + 100);
    pipeline.truncate(0).unwrap();
    assert_eq!(bits(&mut pipeline, &ids), first);
    // As long as nothing is forgotten it makes no difference.
    pipeline.clear();
    let mut whole = open(&fixture("gqa"), None, Logits::Last).unwrap();
    assert_eq!(bits(&mut pipeline, &ids[..8]), bits(&mut whole, &ids[..8]));
    assert_ne!(bits(&mut pipeline, &ids[8..]), bits(&mut whole, &ids[8..]));
}

#[test]
fn rounded_activations_give_the_same_bits_wherever_weights_are() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("model");
    wide(&folder, false, Dtype::BF16);
    let ids: Vec<u32> = (1..20).collect();
    let run = |budget: Option<u64>, compute| {
        let mut settings = settings(budget, Logits::All);
        settings.workload.compute = compute;
        let mut pipeline = open_with(&folder, &settings).unwrap();
        let found = logits(&mut pipeline, &ids);
        (found, pipeline.device_map().streamed_bytes())
    };
    let (exact, _) = run(None, ActivationDtype::F32);
    let (resident, none) = run(None, ActivationDtype::Bf16);
    // Rounded activations of passes of 32 tokens.
    let (streamed, some) = run(Some(least_budget(&folder)), ActivationDtype::Bf16);
    assert!(none == 0 && some > 0);
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&resident), bits(&streamed));
    // How near they are to the exact ones is the models' affair; here, that they are rounded at
    // all.
    assert_ne!(bits(&resident), bits(&exact));
}

#[test]
fn the_type_of_the_cache_is_counted_and_costs_little_precision() {
    let (ids, _, reference) = expected("gqa");
    let largest = reference.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let mut bytes = Vec::new();
    // Rounding to 11 and to 8 significant bits.
    for (kv_dtype, tolerance) in [(KvDtype::F32, 1e-4), (KvDtype::F16, 2e-3), (KvDtype::Bf16, 2e-2)]
    {
        let mut settings = settings(None, Logits::All);
        settings.workload.cache.dtype = kv_dtype;
        let mut pipeline = open_with(&fixture("gqa"), &settings).unwrap();
        assert_eq!(pipeline.cache_options().dtype, kv_dtype);
        bytes.push(pipeline.device_map().needs().kv_cache);
        let found = logits(&mut pipeline, &ids);
        let worst = found.iter().zip(&reference).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(worst <= tolerance * largest, "{kv_dtype}: {worst} of {largest}");
        // And it is really kept so.
        assert_eq!(worst > 1e-4 * largest, kv_dtype != KvDtype::F32, "{kv_dtype}: {worst}");
    }
    // Keys and values of 3 layers, 2 heads of 8, 64 tokens, 4 bytes.
    assert_eq!(bytes, [24_576, 12_288, 12_288]);
}

#[test]
fn a_prompt_in_several_passes_gives_the_same_logits() {
    let (ids, _, _) = expected("gqa");
    let folder = fixture("gqa");
    let mut at_once = open(&folder, None, Logits::All).unwrap();
    let reference = logits(&mut at_once, &ids);
    let mut short = settings(None, Logits::All);
    short.workload.prompt = 3;
    let mut parts = open_with(&folder, &short).unwrap();
    let found = logits(&mut parts, &ids);
    let largest = reference.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    for (a, b) in found.iter().zip(&reference) {
        assert!((a - b).abs() <= 1e-5 * largest);
    }
    let mut rows = Vec::new();
    parts.logits(&ids[..2], |part| rows.push(part.len())).unwrap();
    assert_eq!(parts.position(), 2);
    assert_eq!(rows.iter().sum::<usize>(), 2 * read_config(&folder).unwrap().vocab_size());
}

#[test]
fn what_is_wrong_is_said() {
    let dir = TempDir::new().unwrap();
    let error = read_config(dir.path()).unwrap_err().to_string();
    assert!(error.contains("config.json"), "{error}");
    std::fs::write(dir.path().join("config.json"), r#"{"model_type": "rwkv"}"#).unwrap();
    let error = read_config(dir.path()).unwrap_err().to_string();
    assert!(error.contains("rwkv") && error.contains("mistral"), "{error}");

    let folder = fixture("gqa");
    let mut long = settings(None, Logits::Last);
    long.workload.cache.context = 1 << 20;
    let error = open_with(&folder, &long).unwrap_err();
    assert!(error.to_string().contains("a context of"), "{error}");

    let mut pipeline = open(&folder, None, Logits::Last).unwrap();
    let vocabulary = read_config(&folder).unwrap().vocab_size() as u32;
    let error = pipeline.forward(&[vocabulary]).unwrap_err();
    assert!(error.to_string().contains(&vocabulary.to_string()), "{error}");
    // Refused before anything was computed: the pipeline goes on.
    assert_eq!(pipeline.position(), 0);
    pipeline.forward(&[1, 2]).unwrap();
    assert_eq!(pipeline.position(), 2);
}

#[test]
fn a_context_beyond_the_models_own_is_for_rotations_that_follow_the_length() {
    let mut settings = settings(None, Logits::Last);
    settings.workload.cache.context = 200;
    assert!(open_with(&fixture("dynamic-rope"), &settings).is_ok());
    for name in ["linear-rope", "llama3-rope"] {
        let error = open_with(&fixture(name), &settings).unwrap_err();
        assert!(matches!(error, PipelineError::Context { .. }), "{error}");
    }
}
