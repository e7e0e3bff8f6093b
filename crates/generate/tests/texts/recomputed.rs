//! Texts that grow beyond the length for which their keys were computed: transformers computes all
//! keys of a Phi-3 anew then, so that its texts are those of a model without a KV cache
//! (`Phi3ForCausalLM.prepare_inputs_for_generation`).

use std::ops::ControlFlow;

use crate::common::checkpoint::fixture;
use outsize_generate::{
    BeamSearch, EarlyStopping, Generation, GenerationWorkload, Hypothesis, LanguageModel, Pipeline,
    PipelineError, PipelineSettings, Request, Sampling, TextOptions, beam_search, generate_many,
    read_config,
};
use outsize_models::{CacheOptions, WhenFull};

/// Up to 16 tokens have other rotations than longer texts.
const FIXTURE: &str = "phi3-longrope";
const NEW: usize = 14;

fn open(batch: usize, when_full: WhenFull) -> Pipeline {
    let folder = fixture(FIXTURE);
    let cache = CacheOptions { batch, when_full, ..CacheOptions::new(48) };
    let settings = PipelineSettings {
        max_memory: Default::default(),
        workload: GenerationWorkload::new(cache, 5),
        planning: Default::default(),
        stop: None,
    };
    Pipeline::open(&folder, read_config(&folder).unwrap(), &settings, |_| {}).unwrap()
}

/// Computes every text anew for every token.
struct WithoutCache {
    pipeline: Pipeline,
    rows: Vec<Vec<u32>>,
}

impl WithoutCache {
    fn new() -> Self {
        Self { pipeline: open(1, WhenFull::Refuse), rows: Vec::new() }
    }
}

impl LanguageModel for WithoutCache {
    type Error = PipelineError;

    fn forward_rows(&mut self, rows: &[&[u32]]) -> Result<Vec<f32>, PipelineError> {
        self.rows.resize(rows.len(), Vec::new());
        let mut logits = Vec::new();
        for (text, new) in self.rows.iter_mut().zip(rows) {
            text.extend_from_slice(new);
            self.pipeline.clear();
            logits.extend(self.pipeline.forward(text)?);
        }
        Ok(logits)
    }

    fn copy_rows(&mut self, copies: &[(usize, usize)], rows: usize) -> Result<(), PipelineError> {
        for &(from, to) in copies {
            let text = self.rows[from].clone();
            self.rows.resize(self.rows.len().max(to + 1), Vec::new());
            self.rows[to] = text;
        }
        self.rows.truncate(rows);
        Ok(())
    }

    fn context(&self) -> Option<usize> {
        self.pipeline.context()
    }

    fn position(&self) -> usize {
        0
    }
}

/// Prompts that are shorter than 16 tokens, just as long, and longer.
fn requests() -> Vec<Request> {
    let prompt = |length: u32| (0..length).map(|i| (i * 29 + length * 7) % 60 + 3).collect();
    let request = |length| Request {
        ids: prompt(length),
        max_new_tokens: NEW,
        eos: Vec::new(),
        sampling: Sampling::default(),
    };
    [4, 15, 9, 16, 17, 12, 1].map(request).to_vec()
}

fn tokens<D: LanguageModel<Error = PipelineError>>(
    decoder: &mut D,
    requests: &[Request],
) -> Vec<Vec<u32>> {
    let mut generation = Generation::new(decoder, requests.to_vec()).unwrap();
    while generation.advance().unwrap().is_some() {}
    generation.into_outcomes().into_iter().map(|outcome| outcome.tokens).collect()
}

fn expected() -> Vec<Vec<u32>> {
    let alone = |request| tokens(&mut WithoutCache::new(), &[request]).remove(0);
    requests().into_iter().map(alone).collect()
}

/// The likeliest tokens where keys are kept.
fn with_kept_keys(pipeline: &mut Pipeline, prompt: &[u32]) -> Vec<u32> {
    pipeline.clear();
    let mut logits = pipeline.forward(prompt).unwrap();
    let mut text = Vec::new();
    while text.len() < NEW {
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        text.push(best as u32);
        logits = pipeline.forward(&[best as u32]).unwrap();
    }
    text
}

#[test]
fn texts_alone_and_side_by_side_are_those_without_a_cache() {
    let (requests, expected) = (requests(), expected());
    let (mut pipeline, mut same) = (open(1, WhenFull::Refuse), 0);
    for (request, expected) in requests.iter().zip(&expected) {
        same += usize::from(with_kept_keys(&mut pipeline, &request.ids) == *expected);
        pipeline.clear();
        assert_eq!(&tokens(&mut pipeline, std::slice::from_ref(request)).remove(0), expected);
    }
    assert!(same < requests.len(), "kept keys give the same tokens");
    assert_eq!(tokens(&mut open(requests.len(), WhenFull::Refuse), &requests), expected);
}

#[test]
fn texts_that_begin_beside_others_are_those_without_a_cache() {
    let mut pipeline = open(3, WhenFull::Replace);
    let requests = requests().into_iter().map(|request| (request, TextOptions::default()));
    let mut found = vec![Vec::new(); requests.len()];
    let all = generate_many(&mut pipeline, None, 3, requests, |number, outcome| {
        found[number] = outcome.unwrap().outcome.tokens;
        ControlFlow::Continue(())
    });
    assert!(all.unwrap());
    assert_eq!(found, expected());
}

#[test]
fn beams_are_those_without_a_cache() {
    let search = BeamSearch {
        num_beams: 3,
        length_penalty: 1.0,
        early_stopping: EarlyStopping::Never,
        num_return_sequences: 3,
    };
    let mut pipeline = open(6, WhenFull::Refuse);
    for requests in requests().chunks(2) {
        pipeline.clear();
        let found = beam_search(&mut pipeline, requests, &search, |_, _| Ok(false)).unwrap();
        let mut without = WithoutCache::new();
        let expected = beam_search(&mut without, requests, &search, |_, _| Ok(false)).unwrap();
        let tokens = |texts: Vec<Vec<Hypothesis>>| -> Vec<Vec<u32>> {
            texts.into_iter().flatten().map(|hypothesis| hypothesis.tokens).collect()
        };
        assert_eq!(tokens(found), tokens(expected));
    }
}
