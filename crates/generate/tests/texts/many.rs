//! Many prompts: texts begin in the place of those that end, and each has the bits that it has
//! alone.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::checkpoint::{DECODERS, fixture, with_tokenizer};
use outsize_generate::{
    Error, Finish, GenerationWorkload, LanguageModel, Pipeline, PipelineSettings, Request,
    Sampling, StopStrings, TextOptions, TextOutcome, Tokenizer, generate_many, generate_text,
    read_config,
};
use outsize_models::{CacheOptions, KvDtype, WhenFull};
use tempfile::TempDir;

const CONFIGS: [&str; 2] = [
    r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 200}"#,
    r#"{"model_type": "t5", "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4,
        "vocab_size": 300, "decoder_start_token_id": 0}"#,
];

fn open(folder: &Path, cache: CacheOptions, prompt: usize) -> Pipeline {
    open_until(folder, cache, prompt, None)
}

fn open_until(
    folder: &Path,
    cache: CacheOptions,
    prompt: usize,
    stop: Option<Arc<AtomicBool>>,
) -> Pipeline {
    let settings = PipelineSettings {
        max_memory: Default::default(),
        workload: GenerationWorkload::new(cache, prompt),
        planning: Default::default(),
        stop,
    };
    Pipeline::open(folder, read_config(folder).unwrap(), &settings, |_| {}).unwrap()
}

fn replacing(batch: usize, context: usize) -> CacheOptions {
    CacheOptions { batch, when_full: WhenFull::Replace, ..CacheOptions::new(context) }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn texts_that_begin_beside_others_have_the_bits_that_they_have_alone() {
    // The tokens of each text, how many of them are the prompt, and the pass with which it begins.
    let texts: Vec<(Vec<u32>, usize, usize)> =
        [(9, 4, 0), (20, 17, 0), (7, 1, 0), (24, 20, 2), (24, 3, 2), (12, 11, 4), (24, 23, 6)]
            .iter()
            .map(|&(length, prompt, begins)| {
                let ids = (0..length).map(|i| (i * 29 + length * 7 + prompt * 3) % 60 + 3);
                (ids.collect(), prompt as usize, begins)
            })
            .collect();
    for name in DECODERS {
        let folder = fixture(name);
        let vocabulary = read_config(&folder).unwrap().vocab_size();
        for dtype in [KvDtype::F32, KvDtype::Bf16] {
            let mut alone = open(&folder, CacheOptions { dtype, ..CacheOptions::new(24) }, 24);
            let expected: Vec<Vec<Vec<u32>>> = (texts.iter())
                .map(|(ids, prompt, _)| {
                    alone.clear();
                    let first = bits(&alone.forward(&ids[..*prompt]).unwrap());
                    let rest = ids[*prompt..].iter();
                    let rest: Vec<_> =
                        rest.map(|id| bits(&alone.forward(&[*id]).unwrap())).collect();
                    std::iter::once(first).chain(rest).collect()
                })
                .collect();
            // Passes of 3 columns of all texts, or more of few.
            let options = CacheOptions { dtype, ..replacing(7, 24) };
            let mut together = open(&folder, options, 3);
            // Of each text on its way, how many logits it has had.
            let mut held: Vec<(usize, usize)> = Vec::new();
            // The second time behind others that have left.
            for _ in 0..2 {
                let mut pass = 0;
                while pass < 3 || !held.is_empty() {
                    // Who has had all leaves, and the last one takes its place.
                    for row in (0..held.len()).rev() {
                        if held[row].1 == expected[held[row].0].len() {
                            held.swap_remove(row);
                            if !held.is_empty() {
                                let copies =
                                    if row < held.len() { vec![(held.len(), row)] } else { vec![] };
                                together.copy_rows(&copies, held.len()).unwrap();
                            }
                        }
                    }
                    let check = |rows: &[(usize, usize)], logits: Vec<f32>| {
                        for (row, (text, had)) in bits(&logits).chunks(vocabulary).zip(rows) {
                            assert_eq!(row, expected[*text][*had], "{name}, {text}, token {had}");
                        }
                    };
                    let new: Vec<usize> =
                        (0..texts.len()).filter(|text| texts[*text].2 == pass).collect();
                    if !new.is_empty() {
                        let rows: Vec<&[u32]> =
                            new.iter().map(|text| &texts[*text].0[..texts[*text].1]).collect();
                        let logits = together.begin_rows(held.len(), &rows).unwrap();
                        let rows: Vec<_> = new.iter().map(|text| (*text, 0)).collect();
                        check(&rows, logits);
                        held.extend(new.iter().map(|text| (*text, 1)));
                    } else if !held.is_empty() {
                        let ids: Vec<[u32; 1]> = (held.iter())
                            .map(|(text, had)| [texts[*text].0[texts[*text].1 + had - 1]])
                            .collect();
                        let ids: Vec<&[u32]> = ids.iter().map(|id| &id[..]).collect();
                        let logits = together.forward_rows(&ids).unwrap();
                        check(&held, logits);
                        held.iter_mut().for_each(|(_, had)| *had += 1);
                    }
                    pass += 1;
                }
            }
        }
    }
}

fn request(tokenizer: &Tokenizer, number: usize) -> (Request, TextOptions) {
    let words = ["one", "two three", "a longer prompt of some words", "x", "once upon a time"];
    let prompt = format!("{} {number}", words[number % words.len()]);
    let sampling = match number % 3 {
        0 => Sampling::default(),
        1 => Sampling { temperature: 1.2, seed: number as u64, ..Sampling::default() },
        _ => Sampling { repetition_penalty: Some(1.3), ..Sampling::default() },
    };
    let request = Request {
        ids: tokenizer.encode(&prompt, true).unwrap(),
        max_new_tokens: [7, 1, 19, 12, 0, 30][number % 6],
        eos: vec![(number % 250) as u32 + 3],
        sampling,
    };
    let stop = match number % 4 {
        3 => StopStrings::new(["a", "e"]).unwrap(),
        _ => StopStrings::default(),
    };
    (request, TextOptions { stop, ..TextOptions::default() })
}

fn gist(outcome: &TextOutcome) -> (String, Option<String>, Vec<u32>, Finish) {
    let TextOutcome { text, stop_string, outcome } = outcome.clone();
    (text, stop_string, outcome.tokens, outcome.finish)
}

#[test]
fn each_text_is_what_it_is_alone_whatever_the_batch() {
    for config in CONFIGS {
        let dir = TempDir::new().unwrap();
        let folder = dir.path().join("model");
        with_tokenizer(&folder, config, 12.0, "{}");
        let tokenizer = Tokenizer::open(&folder).unwrap();
        let count = 40;
        let prompt = CacheOptions { prompt: 60, ..CacheOptions::new(60) };
        let mut alone = open(&folder, prompt, 60);
        let expected: Vec<_> = (0..count)
            .map(|number| {
                alone.clear();
                let (request, text) = request(&tokenizer, number);
                let on_text = |_: &str| ControlFlow::Continue(());
                gist(&generate_text(&mut alone, &tokenizer, &request, &text, on_text).unwrap())
            })
            .collect();
        for batch in [1, 3, 16, 64] {
            let cache = CacheOptions { prompt: 60, ..replacing(batch, 60) };
            let mut pipeline = open(&folder, cache, 60);
            let taken = Cell::new(0);
            let requests = (0..count).map(|number| {
                taken.set(number + 1);
                request(&tokenizer, number)
            });
            let mut found: Vec<Option<_>> = vec![None; count];
            let (mut finished, mut first) = (0, usize::MAX);
            let done = |number: usize, outcome: Result<TextOutcome, Error>| {
                finished += 1;
                first = first.min(taken.get());
                assert!(found[number].replace(gist(&outcome.unwrap())).is_none());
                ControlFlow::Continue(())
            };
            assert!(generate_many(&mut pipeline, &tokenizer, batch, requests, done).unwrap());
            assert_eq!(finished, count);
            // Requests are taken as there is room, and results come before all are taken.
            assert!(first <= batch + 1, "{first} of {batch}");
            for (number, (found, expected)) in found.into_iter().zip(&expected).enumerate() {
                assert_eq!(found.as_ref(), Some(expected), "prompt {number}, batch {batch}");
            }
        }
    }
}

#[test]
fn a_prompt_that_does_not_fit_leaves_the_others_and_a_stop_ends_all() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("model");
    with_tokenizer(&folder, CONFIGS[0], 12.0, "{}");
    let tokenizer = Tokenizer::open(&folder).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut pipeline = open_until(&folder, replacing(2, 30), 30, Some(stop.clone()));
    let request = |length: usize| {
        let ids = vec![40; length];
        let request =
            Request { ids, max_new_tokens: 5, eos: Vec::new(), sampling: Sampling::default() };
        (request, TextOptions::default())
    };
    let lengths = [3, 40, 0, 30, 28, 25];
    let mut found = vec![String::new(); lengths.len()];
    let done = |number: usize, outcome: Result<TextOutcome, Error>| {
        found[number] = match outcome {
            Ok(outcome) => format!("{}", outcome.outcome.tokens.len()),
            Err(error) => error.to_string(),
        };
        ControlFlow::Continue(())
    };
    let requests = lengths.map(request);
    assert!(generate_many(&mut pipeline, &tokenizer, 2, requests, done).unwrap());
    let says = ["5", "takes 40 tokens", "no tokens", "takes 30 tokens", "2", "5"];
    for (found, says) in found.iter().zip(says) {
        assert!(found.contains(says), "{found}: {says}");
    }
    // Between texts, and within a pass.
    let mut count = 0;
    let done = |_: usize, _: Result<TextOutcome, Error>| {
        count += 1;
        ControlFlow::Break(())
    };
    let requests = [3, 4, 5].map(request);
    assert!(!generate_many(&mut pipeline, &tokenizer, 2, requests, done).unwrap());
    assert_eq!(count, 1);
    stop.store(true, Ordering::Relaxed);
    let requests = [3, 4, 5].map(request);
    let done = |_, _: Result<TextOutcome, Error>| panic!("nothing was generated");
    assert!(!generate_many(&mut pipeline, &tokenizer, 2, requests, done).unwrap());
}
