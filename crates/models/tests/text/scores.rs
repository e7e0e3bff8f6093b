//! How likely tokens are, beside the logits that `transformers` computes in float32.

use crate::common::decoder_fixtures::{BATCHES, FIXTURES};
use crate::common::dispatched::{assert_same_streamed, load};
use crate::common::reference::*;
use outsize_kernels::TokenScore;
use outsize_models::{Batch, CacheOptions, DispatchedDecoder, Error, KvCache, Scores, Scoring};

/// Several tiles for each matrix.
const TILE: u64 = 700;

/// Of the likeliest tokens.
const TOP: usize = 4;

/// What a pass over `rows` gives, of which each token is scored by those before it; and `next`
/// behind the last ones.
fn scored(
    model: &DispatchedDecoder,
    rows: &[impl AsRef<[u32]>],
    next: Option<u32>,
    cache: &mut KvCache,
) -> Scores {
    let batch = Batch::left_padded(rows).unwrap();
    let mut labels = Vec::new();
    for (row, padding) in rows.iter().zip(batch.padding()) {
        labels.extend(vec![None; *padding]);
        labels.extend(row.as_ref().iter().skip(1).map(|id| Some(*id)).chain([next]));
    }
    let scoring = Scoring { labels: &labels, top: TOP, last: true };
    model.score_batch(&batch, cache, scoring).unwrap().unwrap()
}

/// The same of one text in passes of so many tokens.
fn in_passes(
    model: &DispatchedDecoder,
    ids: &[u32],
    step: usize,
    cache: &mut KvCache,
) -> Vec<TokenScore> {
    cache.expect(ids.len());
    let starts = (0..ids.len()).step_by(step);
    let passes = starts.map(|start| {
        let end = ids.len().min(start + step);
        scored(model, &[&ids[start..end]], ids.get(end).copied(), cache).tokens
    });
    passes.flatten().collect()
}

/// That they are what the logits before each token say.
fn assert_scores(found: &[TokenScore], ids: &[u32], logits: &[f32], vocabulary: usize, name: &str) {
    let largest = logits.iter().fold(0_f32, |most, logit| most.max(logit.abs()));
    assert_eq!(found.len(), ids.len() - 1, "{name}");
    for ((score, token), logits) in found.iter().zip(&ids[1..]).zip(logits.chunks(vocabulary)) {
        assert_eq!(score.token, *token, "{name}");
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let of = |token: u32| (f64::from(logits[token as usize]) - sum.ln()) as f32;
        let mut ranked: Vec<u32> = (0..vocabulary as u32).collect();
        ranked.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        let near = |found: f32, expected: f32| {
            let off = (found - expected).abs();
            assert!(off <= TOLERANCE * largest.max(1.0), "{name}: {found} for {expected}");
        };
        near(score.logprob, of(*token));
        assert_eq!(score.top.len(), TOP.min(vocabulary));
        for ((token, found), ranked) in score.top.iter().zip(ranked) {
            near(*found, of(*token));
            near(*found, of(ranked));
        }
    }
}

#[test]
fn they_are_what_the_reference_logits_say() {
    for &name in FIXTURES {
        let (config, model) = load(name, TILE);
        let expected = expected(name);
        for step in [24, 7] {
            let found = in_passes(&model, &expected.ids, step, &mut cache(&config, 40));
            assert_scores(&found, &expected.ids, &expected.logits, config.vocab_size(), name);
        }
        // The logits of the last position are those of a pass without scores.
        let mut held = cache(&config, 40);
        let last = scored(&model, &[&expected.ids], None, &mut held).last.unwrap();
        let (last, position) = (values(last), held.position());
        assert_close(&last, &expected.logits[expected.logits.len() - last.len()..], name);
        assert_eq!(position, expected.ids.len(), "{name}");
    }
}

#[test]
fn padded_batches_have_the_scores_of_each_text() {
    for &name in BATCHES {
        let (config, model) = load(name, TILE);
        let expected = expected(name);
        let options = CacheOptions { batch: expected.batch.len(), ..CacheOptions::new(40) };
        let mut cache = cache_of(&config, &options);
        let found = scored(&model, &expected.batch, None, &mut cache).tokens;
        let mut found = found.into_iter();
        let alone = |ids: &Vec<u32>| {
            let options = CacheOptions { batch: 1, ..options };
            scored(&model, &[ids], None, &mut cache_of(&config, &options)).tokens
        };
        for ids in &expected.batch {
            let of_text: Vec<_> = found.by_ref().take(ids.len() - 1).collect();
            for (found, alone) in of_text.iter().zip(alone(ids)) {
                assert_eq!(found.token, alone.token, "{name}");
                assert!((found.logprob - alone.logprob).abs() <= TOLERANCE, "{name}");
            }
        }
        assert_eq!(found.count(), 0, "{name}");
    }
}

#[test]
fn the_scores_of_a_texts_end_are_those_of_all_of_it() {
    for &name in FIXTURES {
        let (config, model) = load(name, TILE);
        let ids = expected(name).ids;
        let end = ids.len() - 4;
        for step in [ids.len(), end / 2] {
            let mut cache = cache(&config, 40);
            let mut run = |from: usize| {
                cache.clear();
                cache.expect(ids.len());
                let label = |next: usize| ids.get(next).copied().filter(|_| next > from);
                let mut scores = Vec::new();
                for start in (0..ids.len()).step_by(step) {
                    let batch = Batch::left_padded(&[&ids[start..ids.len().min(start + step)]]);
                    let batch = batch.unwrap();
                    let labels: Vec<_> =
                        (start..start + batch.tokens()).map(|column| label(column + 1)).collect();
                    let scoring = Scoring { labels: &labels, top: TOP, last: false };
                    let scored = model.score_batch(&batch, &mut cache, scoring);
                    scores.extend(scored.unwrap().unwrap().tokens);
                }
                scores
            };
            let [all, of_end] = [0, end].map(&mut run);
            assert_eq!(of_end.len(), 3, "{name}");
            assert_eq!(all[all.len() - 3..], of_end, "{name} by {step}");
        }
    }
}

#[test]
fn streamed_or_resident_the_bits_are_the_same() {
    // All do as to what comes before the head.
    for &name in FIXTURES.iter().step_by(6) {
        let (config, model) = load(name, TILE);
        let ids = expected(name).ids;
        let run = |model: &DispatchedDecoder| -> Vec<f32> {
            let scores = in_passes(model, &ids, 9, &mut cache(&config, 40));
            let values = scores
                .iter()
                .flat_map(|score| score.top.iter().map(|top| top.1).chain([score.logprob]));
            values.collect()
        };
        assert_same_streamed(name, TILE, &run(&model), run);
    }
}

#[test]
fn a_label_that_is_no_token_is_an_error_and_the_text_stays() {
    let (config, model) = load(FIXTURES[0], TILE);
    let mut cache = cache(&config, 40);
    let batch = Batch::left_padded(&[[1, 2]]).unwrap();
    let labels = [None, Some(config.vocab_size() as u32)];
    let scoring = Scoring { labels: &labels, top: 0, last: false };
    let error = model.score_batch(&batch, &mut cache, scoring).unwrap().unwrap_err();
    assert!(matches!(error, Error::TokenId { .. }), "{error}");
    assert_eq!(cache.position(), 0);
    let none = Scoring { labels: &[None, None], ..scoring };
    let scores = model.score_batch(&batch, &mut cache, none).unwrap().unwrap();
    assert_eq!((scores.tokens, cache.position()), (vec![], 2));
}
