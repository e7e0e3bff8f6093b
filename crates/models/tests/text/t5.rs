//! T5 against what `transformers` computes in float32 (`scripts/fixtures/t5.py`), dispatched from
//! its checkpoints: with the tensors and fields of published ones, and as saved today.

use crate::common::dispatched::{assert_same_streamed, config, load, load_in};
use crate::common::reference::*;
use burn::tensor::Device;
use outsize_models::{
    ActivationDtype, Batch, CacheOptions, DispatchedDecoder, Error, KvCache, KvDtype, Logits,
    ModelConfig, WhenFull,
};

const FIXTURES: [&str; 4] = ["t5", "t5-gated-bf16", "t5-published", "t5-few-buckets-f16"];

/// Those with a batch of prompts of several lengths.
const BATCHES: [&str; 2] = ["t5", "t5-published"];

/// Several tiles for each matrix.
const TILE: u64 = 300;

fn options(name: &str) -> CacheOptions {
    CacheOptions { prompt: expected(name).ids.len(), ..CacheOptions::new(100) }
}

fn encode(model: &DispatchedDecoder, prompts: &[impl AsRef<[u32]>], cache: &mut KvCache) {
    let prompt = Batch::left_padded(prompts).unwrap();
    model.encode_batch(&prompt, cache).unwrap().unwrap();
}

fn in_passes(
    model: &DispatchedDecoder,
    rows: &[impl AsRef<[u32]>],
    step: usize,
    cache: &mut KvCache,
) -> Vec<f32> {
    let batch = Batch::left_padded(rows).unwrap();
    let passes = batch
        .chunks(step)
        .flat_map(|pass| values(model.forward_batch(&pass, cache, Logits::All).unwrap().unwrap()));
    passes.collect()
}

/// The last logits of each row to its next token.
fn next(config: &ModelConfig, logits: &[f32], rows: usize) -> Vec<[u32; 1]> {
    let rows = logits.chunks(logits.len() / rows);
    rows.map(|row| [first_maximum(&row[row.len() - config.vocab_size()..])]).collect()
}

#[test]
fn passes_of_any_length_give_the_reference_logits() {
    for name in FIXTURES {
        let (config, model) = load(name, TILE);
        assert_eq!(config.unknown_fields, [""; 0], "{name}");
        let expected = expected(name);
        let mut cache = cache_of(&config, &options(name));
        for step in [100, 1, 2, 7] {
            encode(&model, &[&expected.ids], &mut cache);
            let found = in_passes(&model, &[&expected.decoder_ids], step, &mut cache);
            assert_close(&found, &expected.logits, &format!("{name} by {step}"));
        }
    }
}

#[test]
fn greedy_tokens_are_the_references() {
    for name in FIXTURES {
        let (config, model) = load(name, TILE);
        let expected = expected(name);
        let mut cache = cache_of(&config, &options(name));
        encode(&model, &[&expected.ids], &mut cache);
        let (mut last, mut found) = (vec![[config.decoder_start().unwrap()]], Vec::new());
        while found.len() < expected.greedy.len() {
            last = next(&config, &in_passes(&model, &last, 1, &mut cache), 1);
            found.extend(last[0]);
        }
        assert_eq!(found, expected.greedy, "{name}");
    }
}

#[test]
fn prompts_of_several_lengths_give_the_reference() {
    for name in BATCHES {
        let (config, model) = load(name, TILE);
        let expected = expected(name);
        let rows = expected.batch.len();
        let options = CacheOptions { batch: rows, ..options(name) };
        let mut cache = cache_of(&config, &options);
        encode(&model, &expected.batch, &mut cache);
        let starts = vec![[config.decoder_start().unwrap()]; rows];
        let mut logits = in_passes(&model, &starts, 1, &mut cache);
        assert_close(&logits, &expected.batch_logits, name);
        for step in 0..expected.batch_greedy[0].len() {
            let column: Vec<_> = expected.batch_greedy.iter().map(|row| [row[step]]).collect();
            let found = next(&config, &logits, rows);
            assert_eq!(found, column, "{name}, token {step}");
            logits = in_passes(&model, &found, 1, &mut cache);
        }
    }
}

#[test]
fn rounded_activations_stay_near_the_reference_logits() {
    for name in FIXTURES {
        let (model, _) = load_in(name, TILE, "16MiB", ActivationDtype::Bf16).unwrap();
        let expected = expected(name);
        let mut cache = cache_of(&config(name), &options(name));
        encode(&model, &[&expected.ids], &mut cache);
        let found = in_passes(&model, &[&expected.decoder_ids], 100, &mut cache);
        assert_rounded(&found, &expected.logits, name);
    }
}

#[test]
fn streamed_or_resident_the_bits_are_the_same() {
    for name in FIXTURES {
        let (config, model) = load(name, TILE);
        let expected = expected(name);
        let run = |model: &DispatchedDecoder| {
            let options = CacheOptions { dtype: KvDtype::Bf16, ..options(name) };
            let mut cache = cache_of(&config, &options);
            let mut found = Vec::new();
            // The second prompt finds a stream that has learned what the decoder asks for.
            for ids in [&expected.ids[..9], &expected.ids] {
                encode(model, &[ids], &mut cache);
                found.extend(in_passes(model, &[&expected.decoder_ids], 9, &mut cache));
            }
            found
        };
        assert_same_streamed(name, TILE, &run(&model), run);
    }
}

#[test]
fn classes_are_those_of_transformers() {
    let tree = config("t5").tree_without_weights().unwrap();
    for (module, class) in [
        ("", "T5ForConditionalGeneration"),
        ("shared", "Embedding"),
        ("encoder", "T5Stack"),
        ("encoder.block", "ModuleList"),
        ("encoder.block.1", "T5Block"),
        ("decoder.block.2", "T5Block"),
        ("decoder.block.2.layer", "ModuleList"),
        ("decoder.block.2.layer.0", "T5LayerSelfAttention"),
        ("decoder.block.2.layer.0.SelfAttention", "T5Attention"),
        ("decoder.block.2.layer.0.layer_norm", "T5LayerNorm"),
        ("decoder.block.2.layer.1", "T5LayerCrossAttention"),
        ("decoder.block.2.layer.2", "T5LayerFF"),
        ("decoder.block.2.layer.2.DenseReluDense", "T5DenseActDense"),
        ("decoder.block.0.layer.0.SelfAttention.relative_attention_bias", "Embedding"),
        ("decoder.final_layer_norm", "T5LayerNorm"),
    ] {
        assert_eq!(tree.classes[module], class, "{module}");
    }
}

#[test]
fn the_prompt_comes_first_and_fits() {
    let (config, model) = load("t5", TILE);
    let mut cache = cache_of(&config, &options("t5"));
    let batch = |ids: &[u32]| Batch::left_padded(&[ids]).unwrap();
    let forward =
        |cache: &mut KvCache| model.forward_batch(&batch(&[0]), cache, Logits::Last).unwrap();
    assert!(matches!(forward(&mut cache), Err(Error::NoPrompt)));
    let long = model.encode_batch(&batch(&[5; 25]), &mut cache).unwrap();
    assert!(matches!(long, Err(Error::Prompt { tokens: 25, capacity: 24 })), "{long:?}");
    let outside = model.encode_batch(&batch(&[64]), &mut cache).unwrap();
    assert!(matches!(outside, Err(Error::TokenId { id: 64, .. })), "{outside:?}");
    encode(&model, &[[5, 6, 7]], &mut cache);
    assert!(cache.has_prompt());
    forward(&mut cache).unwrap();
    assert_eq!(cache.position(), 1);
    cache.clear();
    assert!(matches!(forward(&mut cache), Err(Error::NoPrompt)));
    let none = KvCache::new(config.cache(), &CacheOptions::new(9), &Device::flex()).unwrap_err();
    assert!(matches!(none, Error::Prompt { tokens: 0, .. }), "{none:?}");
    // Distances know no end.
    let slide = CacheOptions { when_full: WhenFull::Slide, context: 8, ..options("t5") };
    let mut cache = cache_of(&config, &slide);
    encode(&model, &[[5, 6, 7]], &mut cache);
    (0..20).for_each(|_| drop(forward(&mut cache).unwrap()));
}

#[test]
fn spellings_and_mistakes_of_a_configuration() {
    let read = |more: &str| ModelConfig::from_json(&format!(r#"{{"model_type": "t5"{more}}}"#));
    let plain = read("").unwrap();
    for more in [
        r#", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "head_dim": 64"#,
        r#", "feed_forward_proj": "relu", "dense_act_fn": "relu", "is_gated_act": false"#,
        r#", "n_positions": 512, "is_encoder_decoder": true, "tie_word_embeddings": true"#,
        r#", "decoder_start_token_id": 0, "architectures": ["T5WithLMHeadModel"]"#,
        r#", "scale_decoder_outputs": true, "num_decoder_layers": null"#,
    ] {
        assert_eq!(read(more).unwrap(), plain, "{more}");
    }
    // Of a version that ties in any case, and still says that this one did not.
    let own = read(r#", "tie_word_embeddings": false"#).unwrap();
    assert_eq!(
        read(r#", "tie_word_embeddings": true, "scale_decoder_outputs": false"#).unwrap(),
        own
    );
    assert_eq!(own.tied_head(), None);
    assert_eq!(plain.tied_head().unwrap().0, "shared.weight");
    for (more, field) in [
        (r#", "feed_forward_proj": "gated-sin""#, "feed_forward_proj"),
        (r#", "dense_act_fn": "sin""#, "dense_act_fn"),
        (r#", "is_encoder_decoder": false"#, "is_encoder_decoder"),
        (r#", "tie_encoder_decoder": true"#, "tie_encoder_decoder"),
        (r#", "relative_attention_num_buckets": 3"#, "relative_attention_num_buckets"),
        (r#", "relative_attention_max_distance": 16"#, "relative_attention_max_distance"),
        (r#", "decoder_start_token_id": 32128"#, "decoder_start_token_id"),
        (r#", "architectures": ["T5EncoderModel"]"#, "architectures"),
        (r#", "num_experts": 8"#, "num_experts"),
    ] {
        let message = read(more).unwrap_err().to_string();
        assert!(message.contains(&format!("`{field}`")), "{more}: {message}");
    }
}
