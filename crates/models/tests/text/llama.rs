//! The Llama family against what `transformers` computes in float32 (`scripts/fixtures/llama.py`).

use crate::common::reference::*;
use burn::tensor::Device;
use outsize_models::arch::LlamaForCausalLm;
use outsize_models::{
    ActivationDtype, Batch, CacheOptions, Decoder, Error, Init, KvCache, KvDtype, Logits, WhenFull,
};

const FIXTURES: [&str; 21] = [
    "mha-tied",
    "gqa",
    "head-dim",
    "llama3-rope",
    "gqa-bf16",
    "mha-tied-bf16",
    "mistral-window",
    "mistral-f16",
    "qwen2-tied",
    "qwen2-window",
    "qwen2-layer-types-bf16",
    "attention-bias",
    "mlp-bias-gelu-tanh",
    "gelu-eps",
    "relu2-tied",
    "quick-gelu-eps",
    "linear-rope",
    "dynamic-rope",
    "yarn",
    "yarn-attention-factor",
    "yarn-mscale",
];

/// Those with a batch of texts of several lengths.
const BATCHES: [&str; 3] = ["mistral-window", "qwen2-window", "attention-bias"];

/// Those with logits of narrow caches.
const NARROW: [&str; 4] = ["mistral-window", "qwen2-window", "attention-bias", "yarn"];

/// Those with a text that slides on beyond its context.
const SLIDES: [&str; 2] = ["attention-bias", "yarn"];

#[test]
fn one_pass_gives_the_reference_logits() {
    for name in FIXTURES {
        let (config, model) = crate::common::load(name);
        let expected = expected(name);
        let mut cache = cache(&config, expected.ids.len());
        let logits = model.forward(&expected.ids, &mut cache, Logits::All).unwrap();
        assert_eq!(logits.dims(), [1, expected.ids.len(), config.vocab_size()]);
        assert_close(&values(logits), &expected.logits, name);
        assert_eq!(cache.position(), expected.ids.len());
    }
}

/// Runs `ids` in passes of `step` tokens; all logits.
#[test]
fn rounded_activations_stay_near_the_reference_logits() {
    for name in FIXTURES {
        let rounded = Init { compute: ActivationDtype::Bf16, ..Init::new(&Device::default()) };
        let (config, model) = crate::common::load_with(name, &rounded);
        let expected = expected(name);
        let run = |ids: &[u32], cache: &mut KvCache| {
            values(model.forward(ids, cache, Logits::All).unwrap())
        };
        let found = run(&expected.ids, &mut cache(&config, expected.ids.len()));
        assert_rounded(&found, &expected.logits, name);
    }
}

fn in_passes(model: &LlamaForCausalLm, ids: &[u32], step: usize, cache: &mut KvCache) -> Vec<f32> {
    cache.expect(ids.len());
    let passes = ids.chunks(step);
    passes.flat_map(|ids| values(model.forward(ids, cache, Logits::All).unwrap())).collect()
}

#[test]
fn passes_of_any_length_give_the_reference_logits() {
    for name in FIXTURES {
        let (config, model) = crate::common::load(name);
        let expected = expected(name);
        for step in [1, 2, 5, 7, 23] {
            let mut cache = cache(&config, 40);
            let found = in_passes(&model, &expected.ids, step, &mut cache);
            assert_close(&found, &expected.logits, &format!("{name} by {step}"));
        }
    }
}

#[test]
fn dynamic_rope_depends_on_the_text_that_is_expected() {
    let (config, model) = crate::common::load("dynamic-rope");
    let expected = expected("dynamic-rope");
    assert!(expected.ids.len() > config.cache().trained_context);
    let mut cache = cache(&config, 40);
    let mut unexpected = Vec::new();
    for ids in expected.ids.chunks(7) {
        unexpected.extend(values(model.forward(ids, &mut cache, Logits::All).unwrap()));
    }
    assert!(difference(&unexpected, &expected.logits) > 100.0 * TOLERANCE);

    // Winding back forgets the expectation.
    let short = &expected.ids[..9];
    let plain = values(model.forward(short, &mut self::cache(&config, 40), Logits::All).unwrap());
    cache.clear();
    cache.expect(40);
    cache.truncate(0).unwrap();
    let found = values(model.forward(short, &mut cache, Logits::All).unwrap());
    assert_eq!(found, plain);

    let slide = CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(8) };
    let refused = KvCache::new(config.cache(), &slide, &Device::default()).unwrap_err();
    assert!(matches!(refused, Error::CannotSlide { .. }), "{refused:?}");
}

#[test]
fn a_narrow_cache_gives_the_references_logits_however_it_is_filled() {
    for name in NARROW {
        let (config, model) = crate::common::load(name);
        let expected = expected(name);
        for (dtype, reference) in &expected.narrow_logits {
            let reference = match dtype {
                KvDtype::F32 => &expected.logits,
                _ => reference,
            };
            let options = CacheOptions { dtype: *dtype, ..CacheOptions::new(expected.ids.len()) };
            // A value half-way between two of the type's may be rounded either way, by one more or
            // less rounding error in f32. One that goes the other way changes a logit by some 1e-4
            // (f16) or 1e-3 (bf16).
            let tolerance = match dtype {
                KvDtype::F32 => TOLERANCE,
                KvDtype::Bf16 => 2e-3,
                KvDtype::F16 => 3e-4,
            };
            for step in [1, 5, expected.ids.len()] {
                let mut cache = cache_of(&config, &options);
                let found = in_passes(&model, &expected.ids, step, &mut cache);
                let what = format!("{name} in {dtype} by {step}");
                assert_within(tolerance, &found, reference, &what);
            }
            let far = difference(reference, &expected.logits);
            println!("{name} in {dtype}: {far:.1e} from f32");
            assert!(*dtype == KvDtype::F32 || far > 2.0 * tolerance, "{far}");
        }
    }
}

#[test]
fn a_text_slides_on_as_mistral_does() {
    for name in SLIDES {
        let (config, model) = crate::common::load(name);
        let expected = expected(name);
        let context = expected.slide.unwrap();
        let text = [&expected.ids[..], &expected.greedy].concat();
        assert!(text.len() > 3 * context);
        for step in [1, 3, context, context + 1, text.len()] {
            let mut cache = cache_of(
                &config,
                &CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(context) },
            );
            let found = in_passes(&model, &text, step, &mut cache);
            assert_eq!((cache.position(), cache.capacity()), (text.len(), context));
            assert_close(&found, &expected.slide_logits, &format!("{name} by {step}"));
        }
    }
}

#[test]
fn padded_batches_give_the_reference_and_each_row_what_it_gives_alone() {
    for name in BATCHES {
        let (config, model) = crate::common::load(name);
        let expected = expected(name);
        let batch = Batch::left_padded(&expected.batch).unwrap();
        let width = batch.tokens() * config.vocab_size();
        let options = CacheOptions { batch: batch.rows(), ..CacheOptions::new(batch.tokens() + 8) };
        for step in [1, 4, batch.tokens()] {
            let mut cache = cache_of(&config, &options);
            let mut found = vec![Vec::new(); batch.rows()];
            for piece in batch.chunks(step) {
                let logits = model.forward_batch(&piece, &mut cache, Logits::All).unwrap();
                assert_eq!(logits.dims(), [batch.rows(), piece.tokens(), config.vocab_size()]);
                let logits = values(logits);
                let rows = logits.chunks(piece.tokens() * config.vocab_size());
                for (found, logits) in found.iter_mut().zip(rows) {
                    found.extend(logits);
                }
            }
            assert_eq!(cache.padding(), batch.padding());
            for (row, found) in found.iter().enumerate() {
                // What is computed at padding means nothing.
                let from = batch.padding()[row] * config.vocab_size();
                let reference = &expected.batch_logits[row * width..][..width];
                let what = format!("{name}, row {row} by {step}");
                assert_close(&found[from..], &reference[from..], &what);
                let mut alone = self::cache(&config, 40);
                let alone = model.forward(&expected.batch[row], &mut alone, Logits::All);
                let what = format!("{what}, alone");
                assert_within(1e-5, &found[from..], &values(alone.unwrap()), &what);
            }
            let mut next: Vec<_> = found
                .iter()
                .map(|row| first_maximum(&row[row.len() - config.vocab_size()..]))
                .collect();
            for step in 0..8 {
                let column: Vec<_> = expected.batch_greedy.iter().map(|row| row[step]).collect();
                assert_eq!(next, column, "{name}, token {step}");
                let rows: Vec<_> = next.iter().map(|&id| [id]).collect();
                let rows = Batch::left_padded(&rows).unwrap();
                let logits = model.forward_batch(&rows, &mut cache, Logits::Last).unwrap();
                let logits = values(logits);
                next = logits.chunks(config.vocab_size()).map(first_maximum).collect();
            }
        }
    }
}

#[test]
fn batches_that_do_not_fit_are_refused() {
    let (config, model) = crate::common::load("attention-bias");
    let options = CacheOptions { batch: 2, ..CacheOptions::new(9) };
    let mut cache = cache_of(&config, &options);
    let mut run = |rows: &[Vec<u32>]| {
        let batch = Batch::left_padded(rows).unwrap();
        model.forward_batch(&batch, &mut cache, Logits::Last)
    };
    let rows = run(&[vec![1], vec![2], vec![3]]).unwrap_err();
    assert!(matches!(rows, Error::BatchRows { rows: 3, batch: 2 }));
    let outside = run(&[vec![1, 2, 3], vec![4, 96]]).unwrap_err();
    assert!(matches!(outside, Error::TokenId { id: 96, index: 1, .. }), "{outside:?}");
    run(&[vec![1, 2, 3], vec![4]]).unwrap();
    let late = run(&[vec![1, 2], vec![4]]).unwrap_err();
    assert!(matches!(late, Error::Padding { row: 1, position: 3 }), "{late:?}");
    let full = run(&[vec![1; 7], vec![4; 7]]).unwrap_err();
    assert!(matches!(full, Error::ContextFull { position: 3, .. }), "{full:?}");
    run(&[vec![1; 6], vec![4; 6]]).unwrap();
    let single = model.forward(&[1], &mut cache, Logits::Last).unwrap_err();
    assert!(matches!(single, Error::BatchRows { rows: 1, batch: 2 }));
    for batch in [0, 1 << 13] {
        let options = CacheOptions { batch, ..options };
        let refused = KvCache::new(config.cache(), &options, &Device::default()).unwrap_err();
        assert!(matches!(refused, Error::Batch { .. }), "{refused:?}");
    }
}

#[test]
fn greedy_tokens_are_the_references() {
    for name in FIXTURES {
        let (config, model) = crate::common::load(name);
        let expected = expected(name);
        assert_eq!(expected.greedy.len(), 16);
        let mut cache = cache(&config, expected.ids.len() + expected.greedy.len());
        let mut ids = expected.ids.clone();
        let mut found = Vec::<u32>::new();
        while found.len() < expected.greedy.len() {
            let logits = values(model.forward(&ids, &mut cache, Logits::Last).unwrap());
            assert_eq!(logits.len(), config.vocab_size());
            ids = vec![first_maximum(&logits)];
            found.extend(&ids);
        }
        assert_eq!(found, expected.greedy, "{name}");
    }
}

#[test]
fn the_cache_can_be_wound_back() {
    for name in FIXTURES {
        let (config, model) = crate::common::load(name);
        let expected = expected(name);
        let (mut cache, mut fresh_cache) = (cache(&config, 30), cache(&config, 30));
        let run = |cache: &mut KvCache, ids: &[u32]| {
            values(model.forward(ids, cache, Logits::All).unwrap())
        };
        run(&mut cache, &expected.ids[..10]);
        let next = run(&mut cache, &expected.ids[10..11]);
        // One token can always be taken back.
        cache.truncate(10).unwrap();
        assert_eq!(run(&mut cache, &expected.ids[10..11]), next, "{name}");
        run(&mut cache, &expected.ids[11..20]);
        let layers = config.cache().layers.iter();
        let window = layers.filter_map(|layer| layer.window()).min();
        match cache.truncate(10) {
            Ok(()) => {
                assert_eq!(window, None, "{name}");
                assert_eq!(run(&mut cache, &expected.ids[10..11]), next, "{name}");
            }
            Err(error) => {
                let window = window.unwrap();
                assert!(
                    matches!(error, Error::Forgotten { position: 10, needed, oldest }
                        if needed == 11 - window && oldest == 20 - window),
                    "{name}: {error:?}"
                );
                assert_eq!(cache.position(), 20);
            }
        }
        cache.truncate(0).unwrap();
        let other = [7, 8, 9];
        assert_eq!(
            run(&mut cache, &other),
            run(&mut fresh_cache, &other),
            "{name}: a cache wound back to the start must be as good as new"
        );
    }
}

#[test]
fn bad_calls_are_errors_that_leave_the_cache_as_it_was() {
    let (config, model) = crate::common::load("gqa");
    let expected = expected("gqa");
    let mut cache = cache(&config, 26);
    model.forward(&expected.ids[..20], &mut cache, Logits::Last).unwrap();

    let full = model.forward(&[1; 7], &mut cache, Logits::Last).unwrap_err();
    assert!(
        matches!(full, Error::ContextFull { position: 20, tokens: 7, capacity: 26 }),
        "{full:?}"
    );
    assert!(full.to_string().contains("27") && full.to_string().contains("26"), "{full}");

    let outside = model.forward(&[1, 255, 256], &mut cache, Logits::Last).unwrap_err();
    assert!(
        matches!(outside, Error::TokenId { id: 256, index: 2, vocab_size: 256 }),
        "{outside:?}"
    );
    assert!(model.forward(&[u32::MAX], &mut cache, Logits::Last).is_err());
    assert!(matches!(model.forward(&[], &mut cache, Logits::All), Err(Error::NoTokens)));

    let (other, _) = crate::common::load("mha-tied");
    let mut foreign = cache_of(&other, &CacheOptions::new(26));
    let mismatch = model.forward(&[1], &mut foreign, Logits::Last).unwrap_err();
    assert!(matches!(mismatch, Error::CacheShape { .. }), "{mismatch:?}");

    assert_eq!(cache.position(), 20);
    let rest = values(model.forward(&expected.ids[20..], &mut cache, Logits::All).unwrap());
    assert_close(&rest, &expected.logits[20 * config.vocab_size()..], "after refused calls");
}

#[test]
fn a_model_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared::<LlamaForCausalLm>(&crate::common::load("gqa").1);
}
