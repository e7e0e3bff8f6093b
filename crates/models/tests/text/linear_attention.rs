//! What a cache with states in it can do: texts that are copied, replaced, taken back and cut off
//! by an error.

use crate::common::dispatched::{load, path};
use crate::common::reference::values;
use burn::tensor::{Device, Tensor};
use outsize_models::{
    Batch, CacheOptions, DispatchedDecoder, Error, KvCache, Logits, ModelConfig, WhenFull,
};

const TILE: u64 = 700;

const MODELS: [&str; 12] = [
    "qwen3_next",
    "qwen3_5",
    "granitemoehybrid",
    "falcon_h1",
    "nemotron_h",
    "olmo_hybrid",
    "kimi_linear",
    "bailing_hybrid",
    "minimax",
    "jamba",
    "falcon_mamba",
    "mamba2",
];

fn cache_of(config: &ModelConfig, options: &CacheOptions) -> KvCache {
    KvCache::new(config.cache(), options, &Device::default()).unwrap()
}

fn forward(
    model: &DispatchedDecoder,
    rows: &[&[u32]],
    cache: &mut KvCache,
) -> Result<Vec<f32>, Error> {
    let batch = Batch::left_padded(rows)?;
    let logits: Tensor<3> = model.forward_batch(&batch, cache, Logits::Last).unwrap()?;
    Ok(values(logits))
}

/// The logits behind a text that runs alone, in one pass.
fn alone(config: &ModelConfig, model: &DispatchedDecoder, ids: &[u32]) -> Vec<f32> {
    forward(model, &[ids], &mut cache_of(config, &CacheOptions::new(40))).unwrap()
}

#[test]
fn what_is_in_a_state_cannot_be_taken_back() {
    for name in MODELS {
        let (config, model) = load(name, TILE);
        let mut cache = cache_of(&config, &CacheOptions::new(40));
        let ids: Vec<u32> = (3..20).collect();
        forward(&model, &[&ids[..10]], &mut cache).unwrap();
        let error = cache.truncate(9).unwrap_err();
        assert!(
            matches!(error, Error::CannotGoBack { position: 9, written: 10 }),
            "{name}: {error:?}"
        );
        assert!(error.to_string().contains("linear attention has all 10 tokens"), "{error}");
        // The cache stayed as it was.
        cache.truncate(10).unwrap();
        cache.truncate(30).unwrap();
        let next = forward(&model, &[&ids[10..]], &mut cache).unwrap();
        assert_eq!(next, alone(&config, &model, &ids), "{name}");
        cache.truncate(0).unwrap();
        let other = forward(&model, &[&ids[5..9]], &mut cache).unwrap();
        assert_eq!(other, alone(&config, &model, &ids[5..9]), "{name}");
    }
}

#[test]
fn copied_texts_go_on_by_themselves() {
    for name in MODELS {
        let (config, model) = load(name, TILE);
        let options = CacheOptions { batch: 2, beams: 2, ..CacheOptions::new(40) };
        let mut cache = cache_of(&config, &options);
        let (one, other): (Vec<u32>, Vec<u32>) = ((3..12).collect(), (30..35).collect());
        forward(&model, &[&one, &other], &mut cache).unwrap();
        cache.copy_rows(&[(1, 2), (0, 1), (2, 0)], 3).unwrap();
        let next = forward(&model, &[&[7], &[8], &[9]], &mut cache).unwrap();
        let expected = [(&other, 7), (&one, 8), (&other, 9)]
            .map(|(text, next)| alone(&config, &model, &[&text[..], &[next]].concat()));
        assert_eq!(next, expected.concat(), "{name}");
    }
}

#[test]
fn a_text_that_begins_beside_others_is_as_it_is_alone() {
    for name in MODELS {
        let (config, model) = load(name, TILE);
        let options =
            CacheOptions { batch: 3, when_full: WhenFull::Replace, ..CacheOptions::new(20) };
        let mut cache = cache_of(&config, &options);
        let texts: [Vec<u32>; 3] = [(3..12).collect(), (30..35).collect(), (40..48).collect()];
        cache.begin_beside(&Batch::left_padded(&texts[..2]).unwrap()).unwrap();
        forward(&model, &[&texts[0], &texts[1]], &mut cache).unwrap();
        cache.join();
        forward(&model, &[&[5], &[6]], &mut cache).unwrap();
        // In the place of the second one, in two passes.
        cache.copy_rows(&[], 1).unwrap();
        let new = Batch::left_padded(&texts[2..]).unwrap();
        cache.begin_beside(&new).unwrap();
        for piece in new.chunks(5) {
            model.forward_batch(&piece, &mut cache, Logits::Last).unwrap().unwrap();
        }
        cache.join();
        let next = forward(&model, &[&[7], &[8]], &mut cache).unwrap();
        let expected = [[&texts[0][..], &[5, 7]].concat(), [&texts[2][..], &[8]].concat()];
        let expected = expected.map(|text| alone(&config, &model, &text));
        assert_eq!(next, expected.concat(), "{name}");
    }
}

#[test]
fn texts_cannot_slide() {
    for name in MODELS {
        let options = CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(20) };
        let config = crate::common::dispatched::config(name);
        let error = KvCache::new(config.cache(), &options, &Device::default()).unwrap_err();
        assert!(error.to_string().contains("cannot forget the oldest"), "{error}");
    }
}

#[test]
fn another_models_cache_is_refused() {
    let (_, model) = load("qwen3_next", TILE);
    let mut other = cache_of(&crate::common::dispatched::config("qwen3_5"), &CacheOptions::new(20));
    let error = forward(&model, &[&[3]], &mut other).unwrap_err();
    assert!(matches!(error, Error::CacheShape { .. }), "{error:?}");
    assert!(path("qwen3_5").exists());
}
