//! Decoders on a GPU, or on a software adapter that acts as one (`OUTSIZE_SOFTWARE_GPU=1`), against what `transformers`
//! computes in float32, and against themselves with weights elsewhere.

mod common;

use common::gpu::{load_on, there_is_a_gpu};
use common::reference::*;
use outsize_models::{Batch, CacheOptions, DispatchedDecoder, KvCache, Logits};

/// One of each architecture and of each dtype of weights.
const FIXTURES: &[&str] = &[
    "gqa",
    "gqa-bf16",
    "mha-tied-bf16",
    "mistral-f16",
    "mistral-window",
    "qwen2-tied",
    "gpt2",
    "gpt2-inner-relu-bf16",
    "gpt2-inverse-layer-f16",
    "gptj",
    "gptj-full-rotary-bf16",
    "qwen3",
    "qwen3-published-bf16",
    "olmo2",
    "olmo2-published-bf16",
    "phi3",
    "phi3-published-longrope-bf16",
    "gemma3",
    "gemma3-published-bf16",
    "gpt_neox",
    "gpt_neox-published-f16",
    "gpt_neox-serial",
    "opt",
    "opt-published-f16",
    "bloom",
    "bloom-untied-bf16",
    "falcon",
    "falcon-published-bf16",
    "falcon-alibi",
    "gguf-llama-q8_0",
    "gguf-llama-q4_0",
    "gguf-llama-k",
    "gguf-qwen3-tied-q6_k",
    "gguf-gemma3-linear-q8_0",
];

/// Several tiles for each matrix.
const TILE: u64 = 700;

/// A prompt and two tokens.
fn run(model: &dyn DispatchedDecoder, ids: &[u32], cache: &mut KvCache) -> Vec<f32> {
    cache.expect(ids.len());
    let (prompt, rest) = ids.split_at(ids.len() - 2);
    let passes = [prompt, &rest[..1], &rest[1..]];
    let logits = passes.map(|ids| {
        let batch = Batch::left_padded(&[ids]).unwrap();
        values(model.forward_batch(&batch, cache, Logits::All).unwrap().unwrap())
    });
    logits.concat()
}

#[test]
fn logits_are_the_references_wherever_weights_are_kept() {
    if !there_is_a_gpu() {
        return;
    }
    for &name in FIXTURES {
        let expected = expected(name);
        let mut first: Option<Vec<f32>> = None;
        for map in [r#"{"": "gpu0"}"#, r#"{"": "cpu"}"#, r#"{"": "disk"}"#] {
            let (_, model, mut cache) = load_on(name, map, TILE, &CacheOptions::new(40));
            let found = run(&*model, &expected.ids, &mut cache);
            assert_close(&found, &expected.logits, &format!("{name} with {map}"));
            let first = first.get_or_insert_with(|| found.clone());
            let same = found.iter().zip(first.iter()).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{name}: other bits with {map}");
        }
    }
}
