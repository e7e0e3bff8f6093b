//! The loop around a model.

use std::convert::Infallible;
use std::ops::ControlFlow;

use outsize_generate::{
    Error, Finish, GenerateError, LanguageModel, Outcome, Request, Sampling, generate,
};
use proptest::collection::vec;
use proptest::prelude::*;

const VOCAB: u32 = 50;

/// After token `t` the likeliest is `t + 1`; the second likeliest `t + 2`.
#[derive(Debug)]
struct Counter {
    context: usize,
    /// Every call's ids.
    calls: Vec<Vec<u32>>,
    position: usize,
}

impl Counter {
    fn new(context: usize) -> Self {
        Self { context, calls: Vec::new(), position: 0 }
    }
}

impl LanguageModel for Counter {
    type Error = Infallible;

    fn forward_rows(&mut self, rows: &[&[u32]]) -> Result<Vec<f32>, Infallible> {
        let [ids] = rows else { unreachable!("there is one sequence") };
        self.calls.push(ids.to_vec());
        self.position += ids.len();
        assert!(self.position <= self.context, "given more than the context holds");
        let last = *ids.last().expect("the loop never gives no ids");
        let mut logits = vec![0.0; VOCAB as usize];
        logits[((last + 1) % VOCAB) as usize] = 2.0;
        logits[((last + 2) % VOCAB) as usize] = 1.0;
        Ok(logits)
    }

    fn copy_rows(&mut self, _: &[(usize, usize)], _: usize) -> Result<(), Infallible> {
        unreachable!("there is one sequence")
    }

    fn context(&self) -> Option<usize> {
        Some(self.context)
    }

    fn position(&self) -> usize {
        self.position
    }
}

fn request(ids: &[u32], max_new_tokens: usize, eos: &[u32]) -> Request {
    Request { ids: ids.to_vec(), max_new_tokens, eos: eos.to_vec(), sampling: Sampling::default() }
}

/// The outcome and the tokens that the caller saw.
fn run(decoder: &mut Counter, request: &Request) -> (Outcome, Vec<u32>) {
    let mut seen = Vec::new();
    let outcome = generate(decoder, request, |token| {
        seen.push(token);
        ControlFlow::Continue(())
    });
    (outcome.unwrap(), seen)
}

#[test]
fn the_prompt_goes_in_whole_and_then_each_token_but_the_last() {
    let mut model = Counter::new(100);
    let (outcome, seen) = run(&mut model, &request(&[7, 3], 3, &[]));
    assert_eq!(outcome.tokens, [4, 5, 6]);
    assert_eq!(outcome.text_tokens(), [4, 5, 6]);
    assert_eq!(seen, [4, 5, 6]);
    assert_eq!(outcome.finish, Finish::Length);
    assert_eq!(model.calls, [vec![7, 3], vec![4], vec![5]]);
    assert_eq!(outcome.token_seconds.len(), 2);
}

#[test]
fn an_end_token_is_the_last_token_and_not_text() {
    let (outcome, seen) = run(&mut Counter::new(100), &request(&[3], 10, &[40, 6]));
    assert_eq!(outcome.tokens, [4, 5, 6]);
    assert_eq!(outcome.text_tokens(), [4, 5]);
    assert_eq!(seen, [4, 5]);
    assert_eq!(outcome.finish, Finish::Eos);
    // Even where it is the last token allowed, it is the reason.
    assert_eq!(run(&mut Counter::new(100), &request(&[3], 3, &[6])).0.finish, Finish::Eos);
    assert_eq!(run(&mut Counter::new(4), &request(&[3], 10, &[6])).0.finish, Finish::Eos);
    // In the prompt it ends nothing.
    assert_eq!(run(&mut Counter::new(100), &request(&[6, 6], 2, &[6])).0.tokens, [7, 8]);
}

#[test]
fn the_context_bounds_prompt_and_tokens_together() {
    let mut model = Counter::new(5);
    let (outcome, _) = run(&mut model, &request(&[1, 2], 10, &[]));
    assert_eq!((outcome.tokens.len(), outcome.finish), (3, Finish::Context));
    // What it already holds counts: 2 + 2 tokens were given, the next prompt takes the last but one
    // place.
    model.context = 6;
    let (outcome, _) = run(&mut model, &request(&[9], 10, &[]));
    assert_eq!((outcome.tokens.len(), outcome.finish), (1, Finish::Context));
    // A request that fits exactly was not cut.
    assert_eq!(run(&mut Counter::new(5), &request(&[1, 2], 3, &[])).0.finish, Finish::Length);
}

#[test]
fn a_prompt_without_room_is_refused_before_any_work() {
    for length in [5, 6] {
        let mut model = Counter::new(5);
        let error =
            generate(&mut model, &request(&vec![1; length], 1, &[]), |_| ControlFlow::Continue(()))
                .unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains(&format!("takes {length} tokens")) && message.contains("holds 5"),
            "{message}"
        );
        assert!(message.contains("shorten the prompt"), "{message}");
        assert!(model.calls.is_empty());
    }
}

#[test]
fn requests_that_cannot_start_are_refused() {
    let mut model = Counter::new(5);
    let empty = generate(&mut model, &request(&[], 1, &[]), |_| ControlFlow::Continue(()));
    assert!(matches!(empty, Err(GenerateError::Request(Error::EmptyPrompt))));
    let mut bad = request(&[1], 1, &[]);
    bad.sampling.temperature = -1.0;
    let bad = generate(&mut model, &bad, |_| ControlFlow::Continue(()));
    assert!(matches!(
        bad,
        Err(GenerateError::Request(Error::SamplingValue { field: "temperature", .. }))
    ));
    assert!(model.calls.is_empty());
}

#[test]
fn no_tokens_wanted_is_no_work() {
    let mut model = Counter::new(5);
    let (outcome, seen) = run(&mut model, &request(&[1], 0, &[]));
    assert!(outcome.tokens.is_empty() && seen.is_empty() && model.calls.is_empty());
    assert_eq!((outcome.finish, outcome.prefill_seconds), (Finish::Length, 0.0));
    // Then the prompt may fill the context, and still not more than that.
    assert!(run(&mut model, &request(&[1; 5], 0, &[])).0.tokens.is_empty());
    let more = generate(&mut model, &request(&[1; 6], 0, &[]), |_| ControlFlow::Continue(()));
    assert!(matches!(more, Err(GenerateError::Request(Error::PromptTooLong { .. }))));
}

#[test]
fn the_caller_may_stop() {
    let outcome = generate(&mut Counter::new(100), &request(&[3], 10, &[]), |token| match token {
        5 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    let outcome = outcome.unwrap();
    assert_eq!(outcome.tokens, [4, 5]);
    assert_eq!(outcome.text_tokens(), [4, 5]);
    assert_eq!(outcome.finish, Finish::Stopped);
}

/// Fails, or gives logits that are not numbers, at the second call.
struct Failing {
    calls: usize,
    nan: bool,
}

impl LanguageModel for Failing {
    type Error = String;

    fn forward_rows(&mut self, _: &[&[u32]]) -> Result<Vec<f32>, String> {
        self.calls += 1;
        match (self.calls, self.nan) {
            (1, _) => Ok(vec![1.0, 0.0]),
            (_, true) => Ok(vec![1.0, f32::NAN]),
            (_, false) => Err("the disk is gone".into()),
        }
    }

    fn copy_rows(&mut self, _: &[(usize, usize)], _: usize) -> Result<(), String> {
        unreachable!("there is one sequence")
    }

    fn context(&self) -> Option<usize> {
        Some(10)
    }

    fn position(&self) -> usize {
        self.calls
    }
}

#[test]
fn what_the_model_gets_wrong_comes_out_as_an_error() {
    let run = |nan| {
        generate(&mut Failing { calls: 0, nan }, &request(&[1], 5, &[]), |_| {
            ControlFlow::Continue(())
        })
    };
    assert!(
        matches!(run(false), Err(GenerateError::Model(message)) if message == "the disk is gone")
    );
    let error = run(true).unwrap_err();
    assert!(matches!(error, GenerateError::Request(Error::BadLogits { .. })));
    assert!(error.to_string().contains("token 1"), "{error}");
}

proptest! {
    #[test]
    fn every_outcome_keeps_its_promises(
        ids in vec(0..VOCAB, 1..20),
        context in 1usize..40,
        max_new_tokens in 0usize..40,
        eos in vec(0..VOCAB, 0..3),
        temperature in prop_oneof![Just(0.0f32), Just(1.0)],
        seed: u64,
    ) {
        let sampling = Sampling { temperature, seed, ..Sampling::default() };
        let request = Request { ids, max_new_tokens, eos, sampling };
        let mut model = Counter::new(context);
        let mut seen = Vec::new();
        let outcome = generate(&mut model, &request, |token| {
            seen.push(token);
            ControlFlow::Continue(())
        });
        if request.ids.len() + max_new_tokens.min(1) > context {
            let refused = matches!(outcome, Err(GenerateError::Request(Error::PromptTooLong { .. })));
            prop_assert!(refused);
            return Ok(());
        }
        let outcome = outcome.unwrap();
        let count = outcome.tokens.len();
        prop_assert_eq!(outcome.text_tokens(), seen.as_slice());
        prop_assert!(seen.iter().all(|token| !request.eos.contains(token)));
        prop_assert_eq!(outcome.token_seconds.len(), count.saturating_sub(1));
        match outcome.finish {
            Finish::Eos => prop_assert!(request.eos.contains(&outcome.tokens[count - 1])),
            Finish::Length => prop_assert_eq!(count, max_new_tokens),
            Finish::Context => prop_assert!(request.ids.len() + count == context && count < max_new_tokens),
            Finish::StopString | Finish::Stopped | Finish::Complete | Finish::Stuck => {
                prop_assert!(false, "nobody stopped it");
            }
        }
        // All but the last token were given to the model, each once.
        let given: Vec<u32> = model.calls.concat();
        let all: Vec<u32> = request.ids.iter().chain(&outcome.tokens).copied().collect();
        prop_assert_eq!(&given[..], if count == 0 { &[][..] } else { &all[..all.len() - 1] });
    }
}
