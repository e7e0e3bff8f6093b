//! GGUF files against what `transformers` computes in float32 from their dequantised weights, and
//! against llama.cpp (`scripts/fixtures/gguf_files.py`, `gguf_converted.py`).

use crate::common::dispatched::{assert_same_streamed, load};
use crate::common::reference::*;
use burn::tensor::Tensor;
use outsize_models::{Batch, DispatchedDecoder, KvCache, Logits};

/// With how far llama.cpp is off, of the largest logit: it rounds activations to the type of 16-bit
/// weights, and to 8 bits for quantised ones.
const FIXTURES: &[(&str, f32)] = &[
    ("gguf-llama", TOLERANCE),
    ("gguf-llama-f16", 5e-3),
    ("gguf-llama-bf16", 5e-2),
    ("gguf-llama3-rope", TOLERANCE),
    ("gguf-llama-q8_0", 1e-1),
    ("gguf-llama-q4_0", 2e-1),
    ("gguf-llama-k", 1e-1),
    ("gguf-qwen2", TOLERANCE),
    ("gguf-qwen3-tied-q6_k", 5e-2),
    ("gguf-qwen2-yarn", TOLERANCE),
    ("gguf-qwen3", TOLERANCE),
    ("gguf-gemma3-f16", 5e-3),
    ("gguf-gemma3-linear-q8_0", 2e-1),
    ("gguf-mixtral-q4_0", 2e-1),
    ("gguf-qwen2_moe-f16", 5e-3),
    ("gguf-qwen3_moe", TOLERANCE),
    ("gguf-qwen3_moe-k", 1e-1),
    ("gguf-olmoe", TOLERANCE),
    ("gguf-gpt_oss", TOLERANCE),
    ("gguf-gpt_oss-mxfp4", 1e-1),
    ("gguf-deepseek_v3", TOLERANCE),
    ("gguf-deepseek_v3-q8_0", 1e-1),
    ("gguf-deepseek_v2-f16", 1e-2),
    ("gguf-glm4_moe", TOLERANCE),
    ("gguf-qwen3_next", TOLERANCE),
    ("gguf-qwen3_next-joint-f16", 5e-3),
    ("gguf-qwen3_5", TOLERANCE),
    ("gguf-qwen3_5_moe-q8_0", 2e-1),
    ("gguf-gemma-f16", 5e-3),
    // It looks up GELU in a table of 16 bits.
    ("gguf-gemma2", 1e-3),
    ("gguf-granite", TOLERANCE),
    ("gguf-smollm3", TOLERANCE),
    ("gguf-olmo2", TOLERANCE),
    ("gguf-olmo", TOLERANCE),
    ("gguf-nemotron", TOLERANCE),
    ("gguf-lfm2", TOLERANCE),
    ("gguf-lfm2_moe", TOLERANCE),
    ("gguf-cohere-q8_0", 1e-1),
    ("gguf-cohere2", TOLERANCE),
    ("gguf-glm4", TOLERANCE),
    ("gguf-glm4-unbiased-f16", 5e-3),
    ("gguf-ernie4_5", TOLERANCE),
    ("gguf-seed_oss", TOLERANCE),
    ("gguf-starcoder2", 1e-3),
    ("gguf-minimax_m2", TOLERANCE),
    ("gguf-phi3", TOLERANCE),
    ("gguf-phi3-longrope-f16", 5e-3),
    ("gguf-qwen2vl", TOLERANCE),
    ("gguf-qwen3vl-f16", 5e-3),
    ("gguf-qwen3vlmoe", TOLERANCE),
    ("gguf-hunyuan", TOLERANCE),
    ("gguf-hunyuan_moe", TOLERANCE),
    ("gguf-dots1", TOLERANCE),
    ("gguf-ernie4_5_moe", TOLERANCE),
    ("gguf-nemotron_h", TOLERANCE),
    ("gguf-nemotron_h_moe", TOLERANCE),
    ("gguf-nemotron_h_moe-latent-f16", 1e-2),
    ("gguf-falcon_h1", TOLERANCE),
    ("gguf-falcon_h1-normed-q8_0", 1e-1),
    ("gguf-jamba", TOLERANCE),
    ("gguf-mamba", TOLERANCE),
    ("gguf-falcon_mamba-q8_0", 2e-1),
    ("gguf-mamba2", TOLERANCE),
    // The table again, in each of its gates.
    ("gguf-gemma4", 5e-2),
    ("gguf-gemma4-experts", 1e-2),
    ("gguf-granite_hybrid", TOLERANCE),
    ("gguf-granite_hybrid-experts-f16", 1e-2),
    ("gguf-granite_moe", TOLERANCE),
    ("gguf-granite_moe-shared", TOLERANCE),
    ("gguf-llama4", TOLERANCE),
    ("gguf-ministral3", TOLERANCE),
    ("gguf-mistral3", TOLERANCE),
    ("gguf-llama-q5", 1e-1),
    ("gguf-llama-q3", 1e-1),
    ("gguf-llama-iq", 2e-1),
    // Made by its own converter.
    ("gguf-afmoe", TOLERANCE),
    ("gguf-arcee", TOLERANCE),
    ("gguf-cohere2_moe", TOLERANCE),
    ("gguf-exaone_moe", TOLERANCE),
    ("gguf-hy_v3", TOLERANCE),
    ("gguf-kimi_linear", 1e-3),
    ("gguf-laguna", TOLERANCE),
    ("gguf-olmo3", TOLERANCE),
    ("gguf-cohere2_moe-joined", TOLERANCE),
    ("gguf-stablelm", TOLERANCE),
    // Which it reads otherwise, or not.
    ("gguf-deepseek_v32", f32::INFINITY),
    ("gguf-deepseek_v4", f32::INFINITY),
    ("gguf-exaone", f32::INFINITY),
    ("gguf-glm4_moe_lite", f32::INFINITY),
    ("gguf-jais2", f32::INFINITY),
    ("gguf-mellum", f32::INFINITY),
    ("gguf-mimo_v2_flash", f32::INFINITY),
    ("gguf-minimax_m3", f32::INFINITY),
    ("gguf-phi", f32::INFINITY),
    ("gguf-qwen3_5-listed", f32::INFINITY),
    ("gguf-step3p5", f32::INFINITY),
    ("gguf-youtu", f32::INFINITY),
    // There each token sees all.
    ("gguf-glm_moe_dsa", f32::INFINITY),
    // There widths, shared layers and windows are those of the published models.
    ("gguf-gemma3n", f32::INFINITY),
    ("gguf-exaone4", f32::INFINITY),
];

/// Several tiles for each matrix.
const TILE: u64 = 700;

fn forward(model: &DispatchedDecoder, ids: &[u32], cache: &mut KvCache) -> Tensor<3> {
    let batch = Batch::left_padded(&[ids]).unwrap();
    model.forward_batch(&batch, cache, Logits::All).unwrap().unwrap()
}

fn in_passes(model: &DispatchedDecoder, ids: &[u32], step: usize, cache: &mut KvCache) -> Vec<f32> {
    // What LongRoPE stretches depends on the whole text.
    cache.expect(ids.len());
    ids.chunks(step).flat_map(|ids| values(forward(model, ids, cache))).collect()
}

#[test]
fn logits_are_those_of_the_references() {
    for &(name, off) in FIXTURES {
        let (config, model) = load(name, TILE);
        assert_eq!(config.unknown_fields, [""; 0], "{name}");
        let expected = expected(name);
        for step in [24, 1, 7] {
            let found = in_passes(&model, &expected.ids, step, &mut cache(&config, 40));
            assert_close(&found, &expected.logits, &format!("{name} by {step}"));
            match off.is_finite() {
                true => {
                    let name = format!("{name}, llama.cpp");
                    assert_within(off, &found, &expected.llama_cpp_logits, &name);
                }
                false => assert!(expected.llama_cpp_logits.is_empty(), "{name}"),
            }
        }
    }
}

#[test]
fn greedy_tokens_are_the_references() {
    for &(name, _) in FIXTURES {
        let (config, model) = load(name, TILE);
        let expected = expected(name);
        let mut cache = cache(&config, 40);
        let (mut ids, mut found) = (expected.ids.clone(), Vec::<u32>::new());
        while found.len() < expected.greedy.len() {
            let logits = values(forward(&model, &ids, &mut cache));
            ids = vec![first_maximum(&logits[logits.len() - config.vocab_size()..])];
            found.extend(&ids);
        }
        assert_eq!(found, expected.greedy, "{name}");
    }
}

#[test]
fn streaming_does_not_change_a_bit() {
    for &(name, _) in FIXTURES {
        let (config, model) = load(name, TILE);
        let ids = expected(name).ids;
        let run = |model: &DispatchedDecoder| in_passes(model, &ids, 9, &mut cache(&config, 40));
        assert_same_streamed(name, TILE, &run(&model), run);
    }
}
