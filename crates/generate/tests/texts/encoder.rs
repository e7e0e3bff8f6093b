//! An encoder-decoder behind a budget: the prompt goes to the encoder, once.

use std::ops::ControlFlow;
use std::path::Path;

use crate::common::checkpoint::{fixture, random};
use crate::common::{PROCESS, cpu, least};
use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, TensorInfo, TensorSpec};
use outsize_generate::{
    Finish, GenerationWorkload, LanguageModel, Pipeline, PipelineError, PipelineSettings, Request,
    Sampling, generate, read_config,
};
use outsize_models::{CacheOptions, Error as ModelError, Logits};
use tempfile::TempDir;

fn open(folder: &Path, budget: Option<u64>, logits: Logits) -> Result<Pipeline, PipelineError> {
    let settings = PipelineSettings {
        max_memory: cpu(budget),
        workload: GenerationWorkload {
            logits,
            process: PROCESS,
            ..GenerationWorkload::new(CacheOptions::new(24), 40)
        },
        planning: Default::default(),
        stop: None,
    };
    Pipeline::open(folder, read_config(folder)?, &settings, |_| {})
}

fn request(ids: &[u32], max_new_tokens: usize) -> Request {
    let sampling = Sampling::default();
    Request { ids: ids.to_vec(), max_new_tokens, eos: Vec::new(), sampling }
}

fn greedy(pipeline: &mut Pipeline, ids: &[u32], count: usize) -> Vec<u32> {
    let on_token = |_| ControlFlow::Continue(());
    let outcome = generate(pipeline, &request(ids, count), on_token).unwrap();
    pipeline.clear();
    outcome.tokens
}

fn logits(pipeline: &mut Pipeline, ids: &[u32], decoder_ids: &[u32]) -> Vec<f32> {
    let mut all = Vec::new();
    pipeline.encode(ids).unwrap();
    pipeline.logits(decoder_ids, |rows| all.extend_from_slice(rows)).unwrap();
    pipeline.clear();
    all
}

#[test]
fn tokens_are_those_of_transformers() {
    for name in ["t5", "t5-published"] {
        let text = std::fs::read_to_string(fixture(name).join("expected.json")).unwrap();
        let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
        let list =
            |key: &str| -> Vec<u32> { serde_json::from_value(expected[key].clone()).unwrap() };
        let mut pipeline = open(&fixture(name), None, Logits::Last).unwrap();
        // The second prompt finds nothing of the first.
        greedy(&mut pipeline, &[5, 6, 7], 3);
        assert_eq!(greedy(&mut pipeline, &list("ids"), 16), list("greedy"), "{name}");
    }
}

#[test]
fn a_head_that_is_not_stored_is_the_table() {
    let place = TempDir::new().unwrap();
    let source = Checkpoint::open(fixture("t5-gated-bf16")).unwrap();
    let table = source.get("shared.weight").unwrap();
    let write = |name: &str, head: bool| {
        let folder = place.path().join(name);
        let kept: Vec<_> = (source.tensors().iter())
            .filter(|tensor| head || tensor.name != "lm_head.weight")
            .collect();
        assert_eq!(kept.len() + usize::from(!head), source.tensors().len());
        let spec = |tensor: &&TensorInfo| {
            TensorSpec::new(&tensor.name, tensor.dtype, tensor.shape.clone())
        };
        let specs = kept.iter().map(spec).collect();
        let mut writer = ShardWriter::create(&folder, specs, u64::MAX).unwrap();
        let config = std::fs::read(source.folder().join("config.json")).unwrap();
        writer.add_file("config.json", &config).unwrap();
        for tensor in kept {
            let stored = if tensor.name == "lm_head.weight" { table } else { tensor };
            writer.write(&tensor.name, &source.read(stored).unwrap()).unwrap();
        }
        writer.finish().unwrap();
        folder
    };
    let (stored, left_out) = (write("stored", true), write("left-out", false));
    let run = |folder: &Path| {
        let mut pipeline = open(folder, None, Logits::All).unwrap();
        (logits(&mut pipeline, &[5, 6, 7], &[0, 9, 3]), pipeline.device_map().total_bytes())
    };
    let ((expected, more), (found, bytes)) = (run(&stored), run(&left_out));
    assert_eq!(found, expected);
    assert_eq!(more - bytes, table.len);
}

#[test]
fn the_context_is_that_of_the_answer() {
    let mut pipeline = open(&fixture("t5"), None, Logits::Last).unwrap();
    let on_token = |_| ControlFlow::Continue(());
    let outcome = generate(&mut pipeline, &request(&[5; 40], 60), on_token).unwrap();
    // What the decoder begins with takes one of 24 places.
    assert_eq!((outcome.tokens.len(), outcome.finish), (23, Finish::Context));
    pipeline.clear();
    let long = pipeline.forward(&[5; 41]).unwrap_err();
    let fits =
        "a prompt of 41 tokens is not possible in a KV cache that was made for prompts of 40";
    assert!(long.to_string().contains(fits), "{long}");
    let mut decoder = open(&fixture("gpt2"), None, Logits::Last).unwrap();
    let none = decoder.encode(&[5]).unwrap_err();
    assert!(matches!(none, PipelineError::Model(ModelError::NoEncoder)), "{none:?}");
}

/// A checkpoint of some 60 MB in bf16.
fn wide(folder: &Path) {
    let config = r#"{"model_type": "t5", "d_model": 512, "d_ff": 2048, "d_kv": 64, "num_layers": 4, "num_heads": 8,
        "vocab_size": 6000, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false}"#;
    random(folder, config, Dtype::BF16, 3.0);
}

fn least_budget(folder: &Path) -> u64 {
    least(open(folder, Some(1), Logits::All).unwrap_err())
}

#[test]
fn placement_changes_no_bit_and_decoding_reads_nothing_of_the_encoder() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = dir.path().join("model");
    wide(&folder);
    let ids: Vec<u32> = (0..40).map(|i| (i * 131 + 7) % 6000).collect();
    let mut resident = open(&folder, None, Logits::All).unwrap();
    let reference = logits(&mut resident, &ids, &ids[..20]);
    let tokens = greedy(&mut resident, &ids, 12);
    assert_eq!(resident.device_map().streamed_bytes(), 0);
    let weights = resident.device_map().resident_bytes();
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let tree = read_config(&folder).unwrap().tree("", checkpoint.tensors()).unwrap();
    let once: u64 = tree.tensors().filter(|tensor| tensor.once).map(|tensor| tensor.bytes).sum();
    assert!(once > weights / 3 && once < weights / 2, "{once} of {weights}");
    drop(resident);
    let least = least_budget(&folder);
    for extra in [0, weights / 4, weights / 2] {
        let mut streamed = open(&folder, Some(least + extra), Logits::All).unwrap();
        let map = streamed.device_map().clone();
        assert!(map.streamed_bytes() > 0, "{extra}");
        let found = logits(&mut streamed, &ids, &ids[..20]);
        assert!(found.iter().zip(&reference).all(|(a, b)| a.to_bits() == b.to_bits()), "{extra}");
        assert_eq!(greedy(&mut streamed, &ids, 12), tokens);
        // What a token reads at most, and what the readers fetch for a pass that does not come.
        let predicted = streamed.prediction().decode.disk_bytes;
        let ahead = map.ring_bytes();
        for _ in 0..2 {
            let mut last = streamed.forward(&ids).unwrap();
            let before = streamed.stats().bytes_read;
            for _ in 0..8 {
                let likeliest =
                    |best: usize, at: usize| if last[at] > last[best] { at } else { best };
                let token = (0..last.len()).fold(0, likeliest);
                last = streamed.forward(&[token as u32]).unwrap();
            }
            let read = streamed.stats().bytes_read - before;
            println!("{extra}: {read} read for 8 tokens, {predicted} predicted for each");
            assert!(read <= 8 * predicted * 11 / 10 + ahead, "{extra}: {read}, {predicted}");
            streamed.clear();
        }
    }
}
