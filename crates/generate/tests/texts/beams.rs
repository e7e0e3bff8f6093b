//! Beam search finds what transformers finds (`scripts/fixtures/beams.py`), on the reference
//! fixtures.

use crate::common::checkpoint::fixture;
use outsize_generate::{
    BeamSearch, EarlyStopping, Generation, GenerationWorkload, Pipeline, PipelineSettings, Request,
    Sampling, beam_search, read_config,
};
use outsize_models::CacheOptions;
use serde_json::Value;

#[derive(Debug, serde::Deserialize)]
struct Case {
    fixture: String,
    prompts: Vec<Vec<u32>>,
    eos: Vec<u32>,
    max_new_tokens: usize,
    num_beams: usize,
    #[serde(default)]
    num_return_sequences: Option<usize>,
    #[serde(default)]
    length_penalty: Option<f32>,
    #[serde(default)]
    early_stopping: Value,
    #[serde(default)]
    repetition_penalty: Option<f32>,
    /// Of each prompt, the best first.
    sequences: Vec<Vec<Vec<u32>>>,
    scores: Vec<Vec<Option<f64>>>,
}

impl Case {
    fn search(&self) -> BeamSearch {
        BeamSearch {
            num_beams: self.num_beams,
            length_penalty: self.length_penalty.unwrap_or(1.0),
            early_stopping: match &self.early_stopping {
                Value::Null => EarlyStopping::Unlikely,
                Value::Bool(true) => EarlyStopping::AtOnce,
                never => match never.as_str() {
                    Some("never") => EarlyStopping::Never,
                    _ => panic!("{never}"),
                },
            },
            num_return_sequences: self.num_return_sequences.unwrap_or(1),
        }
    }

    fn requests(&self) -> Vec<Request> {
        let sampling =
            Sampling { repetition_penalty: self.repetition_penalty, ..Sampling::default() };
        let request = |ids: &Vec<u32>| Request {
            ids: ids.clone(),
            max_new_tokens: self.max_new_tokens,
            eos: self.eos.clone(),
            sampling,
        };
        self.prompts.iter().map(request).collect()
    }

    fn pipeline(&self) -> Pipeline {
        let folder = fixture(&self.fixture);
        let cache = CacheOptions {
            batch: self.prompts.len(),
            beams: self.num_beams,
            ..CacheOptions::new(24)
        };
        let settings = PipelineSettings {
            max_memory: Default::default(),
            workload: GenerationWorkload::new(cache, 9),
            planning: Default::default(),
            stop: None,
        };
        Pipeline::open(&folder, read_config(&folder).unwrap(), &settings, |_| {}).unwrap()
    }
}

#[test]
fn sequences_and_scores_are_those_of_transformers() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../fixtures/beams.json")).unwrap();
    let (mut sequences, mut early, mut worst) = (0, 0, 0.0f64);
    for case in &cases {
        let mut pipeline = case.pipeline();
        let requests = case.requests();
        let of = format!("{} {:?}", case.fixture, case.search());
        if case.num_beams == 1 {
            let mut generation = Generation::new(&mut pipeline, requests).unwrap();
            while generation.advance().unwrap().is_some() {}
            for (outcome, expected) in generation.into_outcomes().iter().zip(&case.sequences) {
                assert_eq!(outcome.tokens, expected[0], "{of}");
            }
            continue;
        }
        let found =
            beam_search(&mut pipeline, &requests, &case.search(), |_, _| Ok(false)).unwrap();
        for ((found, expected), scores) in found.iter().zip(&case.sequences).zip(&case.scores) {
            let tokens: Vec<_> = found.iter().map(|sequence| sequence.tokens.clone()).collect();
            assert_eq!(&tokens, expected, "{of}");
            for (sequence, score) in found.iter().zip(scores) {
                let score = score.unwrap();
                worst = worst.max((sequence.score - score).abs() / score.abs().max(1.0));
                early += usize::from(sequence.tokens.len() < case.max_new_tokens);
            }
            sequences += found.len();
        }
    }
    println!(
        "{sequences} sequences, {early} of them ended early; scores off by at most {worst:.1e}"
    );
    assert!(worst <= 1e-4, "{worst}");
    assert!(cases.len() > 50 && early > sequences / 5);
}
