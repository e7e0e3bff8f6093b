//! Answers side by side: each is the one that a run of its own gives, and what texts have in common
//! is run once.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::checkpoint::with_tokenizer;
use crate::common::conversations::{
    DYNAMIC, ENCODER, LLAMA, STATES, WINDOW, WINDOWS, checkpoint, options, pipeline, session,
    template,
};
use outsize_generate::{
    ChatAnswer, ChatBatch, ChatMessage, ChatOptions, ChatPart, ChatPrompt, Error, Finish,
    GenerateError, Outcome, PipelineError, Request, Tokenizer, generate,
};
use outsize_models::{CacheOptions, WhenFull};
use tempfile::TempDir;

type Done = Result<(), GenerateError<PipelineError>>;

const CONTEXT: usize = 300;

fn replacing(batch: usize, context: usize) -> CacheOptions {
    CacheOptions { batch, when_full: WhenFull::Replace, ..CacheOptions::new(context) }
}

fn ids(tokenizer: &Tokenizer, prompt: &ChatPrompt) -> Vec<u32> {
    match prompt {
        ChatPrompt::Messages(messages) => {
            tokenizer.encode(&template().render(messages, true).unwrap(), false).unwrap()
        }
        ChatPrompt::Text(text) => tokenizer.encode(text, true).unwrap(),
        ChatPrompt::Ids(ids) => ids.clone(),
    }
}

/// What a run of its own gives.
fn alone(folder: &Path) -> impl FnMut(&ChatPrompt, &ChatOptions) -> Outcome {
    let tokenizer = Tokenizer::open(folder).unwrap();
    let mut pipeline = pipeline(folder, CacheOptions::new(CONTEXT), None);
    move |prompt, options| {
        let ChatOptions { eos, sampling, .. } = options.clone();
        let max_new_tokens = options.max_new_tokens.unwrap();
        let request = Request { ids: ids(&tokenizer, prompt), max_new_tokens, eos, sampling };
        pipeline.clear();
        generate(&mut pipeline, &request, |_| ControlFlow::Continue(())).unwrap()
    }
}

/// Answers of different lengths.
fn options_of(number: usize) -> ChatOptions {
    let mut options = options();
    options.max_new_tokens = Some(1 + number * 5 % 9);
    options.sampling.seed = number as u64;
    options
}

/// Runs requests, each as soon as there is room; gives the answers in the order of the requests.
fn answers(
    batch: &mut ChatBatch<'_>,
    requests: &[(ChatPrompt, ChatOptions)],
) -> Result<Vec<ChatAnswer>, GenerateError<PipelineError>> {
    let mut answers = vec![None; requests.len()];
    let mut waiting = requests.iter().enumerate();
    // Of each answer on its way, its request and what was shown of it.
    let mut shown = vec![(0, String::new()); requests.len()];
    loop {
        while batch.has_room()
            && let Some((index, (prompt, options))) = waiting.next()
        {
            shown[batch.begin(prompt, options)?] = (index, String::new());
        }
        if batch.is_idle() {
            return Ok(answers.into_iter().map(Option::unwrap).collect());
        }
        let ended = batch.advance(|number, part| {
            let ChatPart::Answer(part) = part else { panic!("there are no channels") };
            shown[number].1.push_str(part);
            ControlFlow::Continue(())
        })?;
        for (number, answer) in ended {
            assert_eq!(shown[number].1, answer.outcome.text);
            answers[shown[number].0] = Some(answer);
        }
    }
}

#[test]
fn each_answer_is_that_of_a_run_of_its_own() {
    // Texts of a sliding window or a state are gone on from where they end, which an answer that is
    // read again seldom spells.
    let cases =
        [(LLAMA, true), (DYNAMIC, false), (WINDOW, false), (WINDOWS, false), (STATES, false)];
    for (config, shares) in cases {
        let (_dir, folder) = checkpoint(config);
        let (mut alone, tokenizer) = (alone(&folder), Tokenizer::open(&folder).unwrap());
        for batch in [2, 3, 5] {
            let mut chat = session(&folder, replacing(batch, CONTEXT), None);
            let run = chat.pipeline().watch_tokens();
            let (mut reused, mut prompts) = (0, 0);
            let done: Done = chat.side_by_side(|batch| {
                let mut conversations: Vec<Vec<ChatMessage>> = vec![Vec::new(); 4];
                for turn in 0..3 {
                    let mut requests = Vec::new();
                    for (index, messages) in conversations.iter_mut().enumerate() {
                        messages
                            .push(ChatMessage::new("user", format!("Question {index}, {turn}")));
                        let prompt = ChatPrompt::Messages(messages.clone());
                        requests.push((prompt, options_of(index + turn)));
                    }
                    let text = format!("Once upon a time there was {turn}");
                    requests.push((ChatPrompt::Text(text), options_of(turn)));
                    let found = answers(batch, &requests)?;
                    for ((prompt, options), answer) in requests.iter().zip(&found) {
                        let expected = alone(prompt, options);
                        let outcome = &answer.outcome.outcome;
                        assert_eq!(outcome.tokens, expected.tokens);
                        assert_eq!(outcome.finish, expected.finish);
                        let tokens = ids(&tokenizer, prompt).len();
                        assert_eq!(answer.prompt_tokens, tokens);
                        assert!(answer.reused_tokens < tokens);
                        reused += answer.reused_tokens;
                        prompts += tokens + outcome.tokens.len() - 1;
                    }
                    for (messages, answer) in conversations.iter_mut().zip(&found) {
                        messages.push(ChatMessage::new("assistant", &answer.outcome.text));
                    }
                }
                Ok(())
            });
            done.unwrap();
            assert_eq!(run() as usize, prompts - reused, "{batch}: {config}");
            // Where every conversation finds its place again.
            let kept = shares && batch == 5;
            assert!(!kept || reused * 3 > prompts, "{batch}: {reused} of {prompts}");
        }
    }
}

#[test]
fn what_requests_have_in_common_is_run_once() {
    let (_dir, folder) = checkpoint(LLAMA);
    let mut alone = alone(&folder);
    let mut chat = session(&folder, replacing(4, CONTEXT), None);
    let system = "You are a model of few words, and of no names. ".repeat(4);
    let done: Done = chat.side_by_side(|batch| {
        let requests: Vec<_> = (0..4)
            .map(|number| {
                let text = ChatPrompt::Text(format!("{system}{number}"));
                (text, ChatOptions { max_new_tokens: Some(6), ..options_of(number) })
            })
            .collect();
        // All at once: the first one runs what they have in common, and the others wait for it.
        let found = answers(batch, &requests)?;
        for (number, ((prompt, options), answer)) in requests.iter().zip(&found).enumerate() {
            assert_eq!(answer.outcome.outcome.tokens, alone(prompt, options).tokens);
            let expected = if number == 0 { 0 } else { answer.prompt_tokens - 1 };
            assert_eq!(answer.reused_tokens, expected, "{number}");
        }
        // While another one goes on.
        let one = (requests[0].0.clone(), ChatOptions { max_new_tokens: Some(40), ..options() });
        let first = batch.begin(&one.0, &one.1)?;
        batch.advance(|_, _| ControlFlow::Continue(()))?;
        let second = batch.begin(&requests[1].0, &requests[1].1)?;
        let mut ended = Vec::new();
        while !batch.is_idle() {
            ended.extend(batch.advance(|_, _| ControlFlow::Continue(()))?);
        }
        assert_eq!(ended.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [second, first]);
        for ((_, answer), (prompt, options)) in ended.iter().zip([&requests[1], &one]) {
            assert_eq!(answer.outcome.outcome.tokens, alone(prompt, options).tokens);
            assert_eq!(answer.reused_tokens, answer.prompt_tokens - 1);
        }
        Ok(())
    });
    done.unwrap();
    // One after the other again.
    let answer = chat.answer("Hello", &options(), |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(answer.reused_tokens, 0);
}

#[test]
fn texts_that_begin_alike_are_told_apart() {
    for config in [LLAMA, WINDOWS, STATES] {
        let (_dir, folder) = checkpoint(config);
        let mut alone = alone(&folder);
        let mut state = 1u64;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % bound
        };
        for batch in [3, 4, 6] {
            let mut chat = session(&folder, replacing(batch, 80), None);
            let done: Done = chat.side_by_side(|batch| {
                // They come a few at a time, and differ at any place.
                for _ in 0..12 {
                    let requests: Vec<_> = (0..1 + below(9))
                        .map(|_| {
                            let words = ["one ", "two ", "three "];
                            let most = words.len() - usize::from(below(3) > 0);
                            let count = 1 + below(9);
                            let text = (0..count).map(|_| words[below(most) * below(2)]).collect();
                            (ChatPrompt::Text(text), options_of(below(20)))
                        })
                        .collect();
                    let found = answers(batch, &requests)?;
                    for ((prompt, options), answer) in requests.iter().zip(&found) {
                        let expected = alone(prompt, options).tokens;
                        assert_eq!(answer.outcome.outcome.tokens, expected, "{prompt:?}");
                    }
                }
                Ok(())
            });
            done.unwrap();
        }
    }
}

#[test]
fn prompts_that_an_encoder_reads_begin_together() {
    let (_dir, folder) = checkpoint(ENCODER);
    let mut alone = alone(&folder);
    let mut chat = session(&folder, replacing(2, 40), None);
    let texts = ["one", "two one", "three", "one two", "two"].into_iter().enumerate();
    let requests: Vec<_> = texts
        .map(|(number, text)| (ChatPrompt::Text(text.to_owned()), options_of(number)))
        .collect();
    let done: Done = chat.side_by_side(|batch| {
        for ((prompt, options), answer) in requests.iter().zip(answers(batch, &requests)?) {
            assert_eq!(answer.outcome.outcome.tokens, alone(prompt, options).tokens);
            assert_eq!(answer.reused_tokens, 0);
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn one_that_ends_early_leaves_the_others() {
    let (_dir, folder) = checkpoint(LLAMA);
    let mut alone = alone(&folder);
    let stop = Arc::new(AtomicBool::new(false));
    let mut chat = session(&folder, replacing(3, 60), Some(stop.clone()));
    let text = |text: &str| ChatPrompt::Text(text.to_owned());
    let done: Done = chat.side_by_side(|batch| {
        // What cannot be begun is refused, and takes no room.
        let error = batch.begin(&text(&"word ".repeat(90)), &options()).unwrap_err();
        assert!(matches!(error, GenerateError::Request(Error::PromptTooLong { .. })), "{error}");
        let error = batch.begin(&text(""), &options()).unwrap_err();
        assert!(matches!(error, GenerateError::Request(Error::EmptyPrompt)), "{error}");
        assert!(batch.is_idle());
        let prompts = ["Hello", "Why?", "Bye"].map(text);
        for (number, prompt) in prompts.iter().enumerate() {
            assert_eq!(batch.begin(prompt, &options())?, number);
        }
        assert!(!batch.has_room());
        let mut parts = 0;
        let mut ended = Vec::new();
        while !batch.is_idle() {
            ended.extend(batch.advance(|number, _| {
                parts += usize::from(number == 1);
                match number == 1 && parts == 3 {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            })?);
        }
        ended.sort_by_key(|(number, _)| *number);
        for ((number, answer), prompt) in ended.iter().zip(&prompts) {
            let (found, expected) = (&answer.outcome.outcome, alone(prompt, &options()));
            match number {
                1 => {
                    assert_eq!(found.finish, Finish::Stopped);
                    assert_eq!(found.tokens, expected.tokens[..3]);
                }
                _ => assert_eq!((&found.tokens, found.finish), (&expected.tokens, expected.finish)),
            }
        }
        // Somebody ends a pass.
        batch.begin(&prompts[0], &options())?;
        batch.begin(&prompts[1], &options())?;
        stop.store(true, Ordering::Relaxed);
        let mut ended = Vec::new();
        while !batch.is_idle() {
            ended.extend(batch.advance(|_, _| ControlFlow::Continue(()))?);
        }
        let finishes = ended.iter().map(|(_, answer)| answer.outcome.outcome.finish);
        assert!(finishes.eq([Finish::Stopped; 2]));
        stop.store(false, Ordering::Relaxed);
        let found = answers(batch, &[(prompts[2].clone(), options())])?;
        assert_eq!(found[0].outcome.outcome.tokens, alone(&prompts[2], &options()).tokens);
        Ok(())
    });
    done.unwrap();
}

#[test]
fn an_error_ends_all_of_them_and_others_can_begin() {
    let dir = TempDir::new().unwrap();
    // No logit of it is a number.
    with_tokenizer(dir.path(), LLAMA, f32::NAN, "{}");
    let mut chat = session(dir.path(), replacing(3, 60), None);
    let done: Done = chat.side_by_side(|batch| {
        for _ in 0..2 {
            for text in ["Hello", "Why?"] {
                batch.begin(&ChatPrompt::Text(text.to_owned()), &options())?;
            }
            let error = batch.advance(|_, _| ControlFlow::Continue(())).unwrap_err();
            assert!(matches!(error, GenerateError::Request(_)), "{error}");
            assert!(batch.is_idle() && batch.has_room());
        }
        Ok(())
    });
    done.unwrap();
}
