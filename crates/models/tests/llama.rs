//! `llama` against what `transformers` computes in float32 (`scripts/fixtures/llama.py`).

mod common;

use burn::tensor::{Device, Tensor};
use outsize_checkpoint::Checkpoint;
use outsize_models::{CacheOptions, Error, KvCache, LlamaForCausalLm, Logits, ModelConfig};

const FIXTURES: [&str; 6] = [
    "mha-tied",
    "gqa",
    "head-dim",
    "llama3-rope",
    "gqa-bf16",
    "mha-tied-bf16",
];

/// Greatest difference over greatest logit.
const TOLERANCE: f32 = 1e-4;

#[derive(serde::Deserialize)]
struct Expected {
    ids: Vec<u32>,
    greedy: Vec<u32>,
    #[serde(skip)]
    logits: Vec<f32>,
}

fn expected(name: &str) -> Expected {
    let folder = common::folder(name);
    let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let mut expected: Expected = serde_json::from_str(&text).unwrap();
    let file = Checkpoint::open(folder.join("expected.safetensors")).unwrap();
    let bytes = file.read(file.get("logits").unwrap()).unwrap();
    expected.logits = bytes
        .as_chunks()
        .0
        .iter()
        .map(|&bytes| f32::from_le_bytes(bytes))
        .collect();
    expected
}

fn cache(config: &ModelConfig, context: usize) -> KvCache {
    KvCache::new(config, &CacheOptions::new(context), &Device::default()).unwrap()
}

fn values(logits: Tensor<3>) -> Vec<f32> {
    logits.into_data().try_to_vec().unwrap()
}

/// Greatest difference over greatest reference; NaN counts as infinite.
fn difference(found: &[f32], reference: &[f32]) -> f32 {
    assert_eq!(found.len(), reference.len());
    let largest = reference.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let worst = found
        .iter()
        .zip(reference)
        .map(|(a, b)| (a - b).abs())
        .fold(
            0.0f32,
            |m, d| {
                if d.is_nan() { f32::INFINITY } else { m.max(d) }
            },
        );
    worst / largest
}

fn assert_close(found: &[f32], reference: &[f32], what: &str) {
    let difference = difference(found, reference);
    println!("{what}: {difference:.1e}");
    assert!(
        difference <= TOLERANCE,
        "{what}: off by {difference:e} of the largest logit"
    );
}

fn first_maximum(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        assert!(!logit.is_nan());
        if logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

#[test]
fn one_pass_gives_the_reference_logits() {
    for name in FIXTURES {
        let (config, model) = common::load(name);
        let expected = expected(name);
        let mut cache = cache(&config, expected.ids.len());
        let logits = model
            .forward(&expected.ids, &mut cache, Logits::All)
            .unwrap();
        assert_eq!(logits.dims(), [1, expected.ids.len(), config.vocab_size]);
        assert_close(&values(logits), &expected.logits, name);
        assert_eq!(cache.position(), expected.ids.len());
    }
}

#[test]
fn token_by_token_gives_the_reference_logits() {
    for name in FIXTURES {
        let (config, model) = common::load(name);
        let expected = expected(name);
        let mut cache = cache(&config, 40);
        let mut found = Vec::new();
        for &id in &expected.ids {
            let logits = model.forward(&[id], &mut cache, Logits::Last).unwrap();
            assert_eq!(logits.dims(), [1, 1, config.vocab_size]);
            found.extend(values(logits));
        }
        assert_close(&found, &expected.logits, name);
    }
}

#[test]
fn passes_of_any_length_give_the_reference_logits() {
    let (config, model) = common::load("gqa");
    let expected = expected("gqa");
    for step in [2, 5, 7, 23] {
        let mut cache = cache(&config, expected.ids.len());
        let mut found = Vec::new();
        for ids in expected.ids.chunks(step) {
            found.extend(values(model.forward(ids, &mut cache, Logits::All).unwrap()));
        }
        assert_close(&found, &expected.logits, &format!("in steps of {step}"));
    }
}

#[test]
fn greedy_tokens_are_the_references() {
    for name in FIXTURES {
        let (config, model) = common::load(name);
        let expected = expected(name);
        assert_eq!(expected.greedy.len(), 16);
        let mut cache = cache(&config, expected.ids.len() + expected.greedy.len());
        let mut ids = expected.ids.clone();
        let mut found = Vec::<u32>::new();
        while found.len() < expected.greedy.len() {
            let logits = values(model.forward(&ids, &mut cache, Logits::Last).unwrap());
            assert_eq!(logits.len(), config.vocab_size);
            ids = vec![first_maximum(&logits)];
            found.extend(&ids);
        }
        assert_eq!(found, expected.greedy, "{name}");
    }
}

#[test]
fn the_last_positions_logits_are_those_of_all() {
    let (config, model) = common::load("head-dim");
    let ids = expected("head-dim").ids;
    let all = values(
        model
            .forward(&ids, &mut cache(&config, 64), Logits::All)
            .unwrap(),
    );
    let last = values(
        model
            .forward(&ids, &mut cache(&config, 64), Logits::Last)
            .unwrap(),
    );
    assert_close(&last, &all[all.len() - config.vocab_size..], "last");
}

#[test]
fn the_cache_can_be_wound_back() {
    let (config, model) = common::load("mha-tied");
    let expected = expected("mha-tied");
    let (mut cache, mut fresh_cache) = (cache(&config, 30), cache(&config, 30));
    model
        .forward(&expected.ids, &mut cache, Logits::Last)
        .unwrap();
    cache.truncate(10).unwrap();
    let tail = values(
        model
            .forward(&expected.ids[10..], &mut cache, Logits::All)
            .unwrap(),
    );
    assert_close(
        &tail,
        &expected.logits[10 * config.vocab_size..],
        "after truncating to 10",
    );
    cache.truncate(0).unwrap();
    let other = [7, 8, 9];
    let again = values(model.forward(&other, &mut cache, Logits::All).unwrap());
    let fresh = values(
        model
            .forward(&other, &mut fresh_cache, Logits::All)
            .unwrap(),
    );
    assert_eq!(
        again, fresh,
        "a cache wound back to the start must be as good as new"
    );
}

#[test]
fn bad_calls_are_errors_that_leave_the_cache_as_it_was() {
    let (config, model) = common::load("gqa");
    let expected = expected("gqa");
    let mut cache = cache(&config, 26);
    model
        .forward(&expected.ids[..20], &mut cache, Logits::Last)
        .unwrap();

    let full = model
        .forward(&[1; 7], &mut cache, Logits::Last)
        .unwrap_err();
    assert!(
        matches!(
            full,
            Error::ContextFull {
                position: 20,
                tokens: 7,
                capacity: 26
            }
        ),
        "{full:?}"
    );
    assert!(
        full.to_string().contains("27") && full.to_string().contains("26"),
        "{full}"
    );

    let outside = model
        .forward(&[1, 255, 256], &mut cache, Logits::Last)
        .unwrap_err();
    assert!(
        matches!(
            outside,
            Error::TokenId {
                id: 256,
                index: 2,
                vocab_size: 256
            }
        ),
        "{outside:?}"
    );
    assert!(
        model
            .forward(&[u32::MAX], &mut cache, Logits::Last)
            .is_err()
    );
    assert!(matches!(
        model.forward(&[], &mut cache, Logits::All),
        Err(Error::NoTokens)
    ));

    let (other, _) = common::load("mha-tied");
    let mut foreign = KvCache::new(&other, &CacheOptions::new(26), &Device::default()).unwrap();
    let mismatch = model.forward(&[1], &mut foreign, Logits::Last).unwrap_err();
    assert!(matches!(mismatch, Error::CacheShape { .. }), "{mismatch:?}");

    assert_eq!(cache.position(), 20);
    let rest = values(
        model
            .forward(&expected.ids[20..], &mut cache, Logits::All)
            .unwrap(),
    );
    assert_close(
        &rest,
        &expected.logits[20 * config.vocab_size..],
        "after refused calls",
    );
}

#[test]
fn a_model_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared::<LlamaForCausalLm>(&common::load("gqa").1);
}
