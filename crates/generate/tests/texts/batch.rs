//! Texts side by side: each computes what it would alone, bit for bit, whoever leaves or joins.

use std::path::Path;

use crate::common::checkpoint::{DECODERS, fixture};
use outsize_generate::{
    Finish, Generation, GenerationWorkload, LanguageModel, Outcome, Pipeline, PipelineSettings,
    Request, Sampling, read_config,
};
use outsize_models::{CacheOptions, KvDtype, Logits, WhenFull};

fn open(folder: &Path, cache: CacheOptions, chunk: usize) -> Pipeline {
    let settings = PipelineSettings {
        max_memory: Default::default(),
        workload: GenerationWorkload {
            logits: Logits::Last,
            ..GenerationWorkload::new(cache, chunk)
        },
        planning: Default::default(),
        stop: None,
    };
    Pipeline::open(folder, read_config(folder).unwrap(), &settings, |_| {}).unwrap()
}

fn cache(batch: usize) -> CacheOptions {
    CacheOptions { batch, ..CacheOptions::new(36) }
}

/// Prompts of several lengths.
fn prompts() -> Vec<Vec<u32>> {
    [9, 20, 1, 14]
        .iter()
        .map(|length| (0..*length).map(|i| (i * 29 + length * 7) % 60 + 3).collect())
        .collect()
}

fn request(ids: &[u32], max_new_tokens: usize, eos: &[u32], sampling: Sampling) -> Request {
    Request { ids: ids.to_vec(), max_new_tokens, eos: eos.to_vec(), sampling }
}

fn outcomes(pipeline: &mut Pipeline, requests: &[Request]) -> Vec<Outcome> {
    pipeline.clear();
    let mut generation = Generation::new(pipeline, requests.to_vec()).unwrap();
    while generation.advance().unwrap().is_some() {}
    generation.into_outcomes()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn rows_have_the_bits_that_they_have_alone() {
    let prompts = prompts();
    let more: [[u32; 3]; 4] = [[5, 6, 7], [8, 9, 10], [11, 12, 13], [14, 15, 16]];
    for name in DECODERS.into_iter().chain(["t5"]) {
        let folder = fixture(name);
        // Passes of 7 columns, so that some hold padding alone.
        let options = CacheOptions { dtype: KvDtype::Bf16, ..cache(4) };
        let mut together = open(&folder, options, if name == "t5" { 20 } else { 7 });
        let mut alone = open(&folder, CacheOptions { batch: 1, ..options }, 20);
        let vocabulary = read_config(&folder).unwrap().vocab_size();
        let alone: Vec<Vec<Vec<u32>>> = (prompts.iter().zip(&more))
            .map(|(prompt, more)| {
                alone.clear();
                let first = bits(&alone.forward(prompt).unwrap());
                let rest = more.iter().map(|id| bits(&alone.forward(&[*id]).unwrap()));
                std::iter::once(first).chain(rest.collect::<Vec<_>>()).collect()
            })
            .collect();
        let rows: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        // The second time after other texts, and in fewer rows than there is room for.
        for rows in [&rows[..], &rows[1..3]] {
            let first = prompts.iter().position(|prompt| prompt == rows[0]).unwrap();
            together.clear();
            let mut held: Vec<usize> = (first..first + rows.len()).collect();
            let mut logits = bits(&together.forward_rows(rows).unwrap());
            for step in 0..4 {
                for (row, text) in logits.chunks(vocabulary).zip(&held) {
                    assert_eq!(row, alone[*text][step], "{name}, text {text}, token {step}");
                }
                // The first leaves, and the last takes its place; then there are two of it.
                match step {
                    0 => {
                        let last = held.len() - 1;
                        together.copy_rows(&[(last, 0)], last).unwrap();
                        held.swap_remove(0);
                    }
                    1 => {
                        together.copy_rows(&[(0, held.len())], held.len() + 1).unwrap();
                        held.push(held[0]);
                    }
                    _ => {}
                }
                if step < 3 {
                    let ids: Vec<&[u32]> =
                        held.iter().map(|text| &more[*text][step..=step]).collect();
                    logits = bits(&together.forward_rows(&ids).unwrap());
                }
            }
        }
    }
}

#[test]
fn texts_end_by_themselves_and_draw_their_own_numbers() {
    for name in ["gqa", "gpt2", "t5"] {
        let folder = fixture(name);
        let mut together = open(&folder, cache(4), 20);
        let mut alone = open(&folder, cache(1), 20);
        let drawn = |seed| Sampling { temperature: 1.5, seed, ..Sampling::default() };
        let penalty = Sampling { repetition_penalty: Some(1.4), ..drawn(3) };
        let prompts = prompts();
        // The same prompt by several seeds too.
        let mut requests: Vec<_> = [drawn(1), Sampling::default(), penalty, drawn(2)]
            .into_iter()
            .zip(&prompts)
            .map(|(sampling, prompt)| request(prompt, 16, &[], sampling))
            .collect();
        let free: Vec<Outcome> = requests
            .iter()
            .flat_map(|request| outcomes(&mut alone, std::slice::from_ref(request)))
            .collect();
        // Tokens that end one text early, and lengths that end others.
        for (row, end) in [(0, 4), (2, 9)] {
            requests[row].eos = vec![free[row].tokens[end]];
        }
        requests[1].max_new_tokens = 2;
        let expected: Vec<Outcome> = requests
            .iter()
            .flat_map(|request| outcomes(&mut alone, std::slice::from_ref(request)))
            .collect();
        let found = outcomes(&mut together, &requests);
        for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(
                (&found.tokens, found.finish),
                (&expected.tokens, expected.finish),
                "{name}, text {row}"
            );
        }
        assert_eq!(found[0].finish, Finish::Eos);
        assert!(found[0].tokens.len() <= 5);
        assert_eq!((found[1].tokens.len(), found[3].tokens.len()), (2, 16));
        // One that may have no token at all is no part of any pass.
        requests[0].max_new_tokens = 0;
        let found = outcomes(&mut together, &requests);
        assert!(found[0].tokens.is_empty());
        assert_eq!(found[3].tokens, expected[3].tokens);
    }
}

#[test]
fn a_context_counts_the_longest_prompt_and_may_slide() {
    let prompts = prompts();
    let requests: Vec<_> =
        prompts.iter().map(|prompt| request(prompt, 30, &[], Sampling::default())).collect();
    let mut together = open(&fixture("gqa"), cache(4), 20);
    for outcome in outcomes(&mut together, &requests) {
        assert_eq!((outcome.tokens.len(), outcome.finish), (16, Finish::Context));
    }
    // Where the oldest tokens are forgotten, there is no such end, and each text is as alone.
    let slide = |batch| CacheOptions { when_full: WhenFull::Slide, batch, ..CacheOptions::new(5) };
    let mut together = open(&fixture("gqa"), slide(4), 20);
    let mut alone = open(&fixture("gqa"), slide(1), 20);
    for (request, outcome) in requests.iter().zip(outcomes(&mut together, &requests)) {
        let expected = outcomes(&mut alone, std::slice::from_ref(request)).remove(0);
        assert_eq!((outcome.tokens.len(), outcome.finish), (30, Finish::Length));
        assert_eq!(outcome.tokens, expected.tokens);
    }
}

#[test]
fn more_texts_than_there_is_room_for_are_refused() {
    let mut pipeline = open(&fixture("gqa"), cache(2), 20);
    let error = pipeline.forward_rows(&[&[5], &[6], &[7]]).unwrap_err().to_string();
    assert!(error.contains("3 texts cannot run in a KV cache that was made for 2"), "{error}");
    pipeline.forward_rows(&[&[5], &[6, 7]]).unwrap();
    for (copies, rows) in [(&[(0, 2)][..], 3), (&[(2, 0)], 2), (&[(0, 3)], 2), (&[], 3), (&[], 0)] {
        pipeline.copy_rows(copies, rows).unwrap_err();
    }
    let error = pipeline.copy_rows(&[(5, 0)], 2).unwrap_err().to_string();
    assert!(error.contains("no text 5 in a KV cache that holds 2"), "{error}");
    // All were refused before anything was copied.
    pipeline.forward_rows(&[&[5], &[6]]).unwrap();
}
