//! Decoders on a GPU, or on a software adapter that acts as one (`OUTSIZE_SOFTWARE_GPU=1`), against
//! what `transformers` computes in float32, and against themselves with weights elsewhere.

#[path = "../common/mod.rs"]
mod common;
mod paths;

use common::gpu::{load_on, there_is_a_gpu};
use common::reference::*;
use outsize_models::{Batch, CacheOptions, DispatchedDecoder, KvCache, Logits};

/// What GPUs refuse, integers and types of GGUF with a codebook, and what is no decoder alone:
/// `paths` has encoders with a decoder.
const OTHERS: [&str; 6] = ["awq", "gptq", "compressed", "llama-iq", "t5", "vision"];

/// All others that are there.
fn fixtures() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> =
        names.filter(|name| !OTHERS.iter().any(|other| name.contains(other))).collect();
    names.sort();
    assert!(names.len() > 60, "{names:?}");
    names
}

/// Several tiles for each matrix.
const TILE: u64 = 700;

/// A prompt and two tokens.
fn run(model: &DispatchedDecoder, ids: &[u32], cache: &mut KvCache) -> Vec<f32> {
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
    let mut others = Vec::new();
    for name in &fixtures() {
        let expected = expected(name);
        let mut first: Option<Vec<f32>> = None;
        for map in [r#"{"": "gpu0"}"#, r#"{"": "cpu"}"#, r#"{"": "disk"}"#] {
            let (_, model, mut cache) = load_on(name, map, TILE, &CacheOptions::new(40));
            let found = run(&model, &expected.ids, &mut cache);
            assert_close(&found, &expected.logits, &format!("{name} with {map}"));
            let first = first.get_or_insert_with(|| found.clone());
            let same = found.iter().zip(first.iter()).all(|(a, b)| a.to_bits() == b.to_bits());
            if !same {
                others.push(format!("{name} with {map}"));
            }
        }
    }
    assert_eq!(others, [""; 0], "other bits than on the GPU");
}
