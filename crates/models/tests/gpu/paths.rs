//! What else a decoder on a GPU does: blocks that compute elsewhere in prefill than in decode, an
//! encoder, texts side by side and copies of them, and narrow caches. Against what `transformers`
//! computes in float32, or the same on the processors.

use crate::common::dispatched::{config, load};
use crate::common::gpu::{figures, figures_apart, load_computed, load_on, there_is_a_gpu};
use crate::common::reference::*;
use burn::tensor::DType;
use outsize_core::gpu;
use outsize_kernels::gpu::can_compute;
use outsize_models::{Batch, CacheOptions, DispatchedDecoder, KvCache, KvDtype, Logits};
use outsize_plan::Tier;

/// Several tiles for each matrix.
const TILE: u64 = 700;

const MAPS: [&str; 3] = [r#"{"": "gpu0"}"#, r#"{"": "cpu"}"#, r#"{"": "disk"}"#];

fn pass(model: &DispatchedDecoder, rows: &[impl AsRef<[u32]>], cache: &mut KvCache) -> Vec<f32> {
    let batch = Batch::left_padded(rows).unwrap();
    values(model.forward_batch(&batch, cache, Logits::All).unwrap().unwrap())
}

/// Passes of these lengths, and the rest token by token.
fn passes(
    model: &DispatchedDecoder,
    ids: &[u32],
    lengths: &[usize],
    cache: &mut KvCache,
) -> Vec<f32> {
    cache.expect(ids.len());
    let (mut rest, mut logits) = (ids, Vec::new());
    for length in lengths.iter().copied().chain(std::iter::repeat(1)) {
        let Some((now, later)) = rest.split_at_checked(length) else { break };
        if now.is_empty() || rest.is_empty() {
            break;
        }
        logits.extend(pass(model, &[now], cache));
        rest = later;
    }
    logits
}

fn encode(model: &DispatchedDecoder, prompts: &[impl AsRef<[u32]>], cache: &mut KvCache) {
    let prompt = Batch::left_padded(prompts).unwrap();
    model.encode_batch(&prompt, cache).unwrap().unwrap();
}

#[test]
fn prompts_and_tokens_on_different_devices() {
    if !there_is_a_gpu() {
        return;
    }
    for name in ["gqa-bf16", "mistral-window", "gpt2", "gptj", "gemma3", "bloom", "opt", "falcon"] {
        let expected = expected(name);
        for gpu_reads_prompts in [true, false] {
            let mut tiers = [Tier::Gpu(0), Tier::Cpu];
            if !gpu_reads_prompts {
                tiers.reverse();
            }
            for map in &MAPS[1..] {
                let machine = (figures_apart(gpu_reads_prompts), &[tiers][..]);
                let (_, model, mut cache) =
                    load_computed(name, map, TILE, &CacheOptions::new(40), machine);
                let found = passes(&model, &expected.ids, &[9, 1, 1, 4], &mut cache);
                let what = format!("{name} with {map}, prompts on {}", tiers[0]);
                assert_close(&found, &expected.logits, &what);
            }
        }
    }
}

/// Two devices: with `OUTSIZE_SOFTWARE_GPU=2` on one software adapter.
#[test]
fn a_model_over_two_gpus() {
    if !there_is_a_gpu() {
        return;
    }
    if gpu(1).is_err() {
        eprintln!("skipped: one GPU");
        return;
    }
    let both = [[Tier::Gpu(0); 2], [Tier::Gpu(1); 2]];
    for (name, layer) in [("gqa-bf16", "model.layers.1"), ("gpt2", "transformer.h.1")] {
        let expected = expected(name);
        for map in [
            format!(r#"{{"": "gpu0", "{layer}": "gpu1"}}"#),
            format!(r#"{{"": "gpu1", "{layer}": "gpu0"}}"#),
        ] {
            let options = CacheOptions::new(40);
            let (_, model, mut cache) =
                load_computed(name, &map, TILE, &options, (figures(), &both));
            let found = passes(&model, &expected.ids, &[9, 1, 1, 4], &mut cache);
            assert_close(&found, &expected.logits, &format!("{name} with {map}"));
        }
    }
}

#[test]
fn an_encoder_and_its_decoder() {
    if !there_is_a_gpu() {
        return;
    }
    for name in ["t5", "t5-gated-bf16", "t5-published", "t5-few-buckets-f16"] {
        let expected = expected(name);
        let options = CacheOptions { prompt: expected.ids.len(), ..CacheOptions::new(100) };
        for map in MAPS {
            let (_, model, mut cache) = load_on(name, map, 300, &options);
            for lengths in [&[100][..], &[1], &[3]] {
                encode(&model, &[&expected.ids], &mut cache);
                let ids = &expected.decoder_ids;
                let lengths: Vec<_> = lengths.iter().map(|length| ids.len().min(*length)).collect();
                let found = passes(&model, ids, &lengths, &mut cache);
                assert_close(&found, &expected.logits, &format!("{name} with {map}"));
            }
        }
    }
    let expected = expected("t5");
    let rows = expected.batch.len();
    let options =
        CacheOptions { batch: rows, prompt: expected.ids.len(), ..CacheOptions::new(100) };
    let (config, model, mut cache) = load_on("t5", MAPS[2], 300, &options);
    encode(&model, &expected.batch, &mut cache);
    let starts = vec![[config.decoder_start().unwrap()]; rows];
    assert_close(&pass(&model, &starts, &mut cache), &expected.batch_logits, "a batch");
}

#[test]
fn texts_side_by_side() {
    if !there_is_a_gpu() {
        return;
    }
    for name in ["attention-bias", "mistral-window", "gpt2", "gemma3", "bloom", "opt"] {
        let expected = expected(name);
        let batch = Batch::left_padded(&expected.batch).unwrap();
        for map in [MAPS[0], MAPS[2]] {
            let options = CacheOptions { batch: batch.rows(), ..CacheOptions::new(40) };
            let (config, model, mut cache) = load_on(name, map, TILE, &options);
            let found = pass(&model, &expected.batch, &mut cache);
            let width = batch.tokens() * config.vocab_size();
            for row in 0..batch.rows() {
                // What is computed at padding means nothing.
                let from = row * width + batch.padding()[row] * config.vocab_size();
                let to = (row + 1) * width;
                let what = format!("{name} with {map}, text {row}");
                assert_close(&found[from..to], &expected.batch_logits[from..to], &what);
            }
        }
    }
}

/// What beam search does: the prompt once, then copies of it that go on by themselves.
#[test]
fn copies_of_a_text_go_on_by_themselves() {
    if !there_is_a_gpu() {
        return;
    }
    for name in ["gqa-bf16", "mistral-window", "gpt2", "t5"] {
        let expected = expected(name);
        let prompt = if name == "t5" { expected.ids.len() } else { 0 };
        let options = CacheOptions { beams: 3, prompt, ..CacheOptions::new(60) };
        let run = |model: &DispatchedDecoder, cache: &mut KvCache| {
            let mut logits = match prompt {
                0 => pass(model, &[&expected.ids[..12]], cache),
                _ => {
                    encode(model, &[&expected.ids], cache);
                    pass(model, &[[0]], cache)
                }
            };
            cache.copy_rows(&[(0, 1), (0, 2)], 3).unwrap();
            logits.extend(pass(model, &[[5], [6], [7]], cache));
            // The second and the third are dropped for copies of the first and the second.
            cache.copy_rows(&[(1, 2), (0, 1)], 3).unwrap();
            logits.extend(pass(model, &[[8], [9], [10]], cache));
            logits
        };
        let (config, model) = load(name, TILE);
        let reference = run(&model, &mut cache_of(&config, &options));
        for map in [MAPS[0], MAPS[2]] {
            let (_, model, mut cache) = load_on(name, map, TILE, &options);
            assert_close(&run(&model, &mut cache), &reference, &format!("{name} with {map}"));
        }
    }
}

fn kept(dtype: KvDtype) -> DType {
    match dtype {
        KvDtype::F32 => DType::F32,
        KvDtype::Bf16 => DType::BF16,
        KvDtype::F16 => DType::F16,
    }
}

#[test]
fn narrow_caches() {
    if !there_is_a_gpu() {
        return;
    }
    for name in ["mistral-window", "qwen2-window", "attention-bias", "yarn"] {
        let expected = expected(name);
        for (dtype, reference) in &expected.narrow_logits {
            let options = CacheOptions { dtype: *dtype, ..CacheOptions::new(expected.ids.len()) };
            // As on the processors: a value half-way between two may be rounded either way.
            let tolerance = match dtype {
                KvDtype::F32 => continue,
                KvDtype::Bf16 => 2e-3,
                KvDtype::F16 => 3e-4,
            };
            let (spec, device) = (config(name), &gpu(0).unwrap().device);
            if !can_compute(device, kept(*dtype)) {
                let refused = KvCache::new(spec.cache(), &options, device).unwrap_err();
                assert!(refused.to_string().contains("outsize env"), "{refused}");
                println!("the GPU does not compute in {dtype}");
                continue;
            }
            for map in [MAPS[0], MAPS[2]] {
                let (_, model, mut cache) = load_on(name, map, TILE, &options);
                let found = passes(&model, &expected.ids, &[5, 7, 1], &mut cache);
                let what = format!("{name} in {dtype} with {map}");
                assert_within(tolerance, &found, reference, &what);
                let (model, mut cache) = (load(name, TILE).1, cache_of(&config(name), &options));
                let here = passes(&model, &expected.ids, &[5, 7, 1], &mut cache);
                println!("{what}: {:.1e} from the processors", difference(&found, &here));
            }
        }
    }
}
