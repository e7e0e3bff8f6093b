//! The loop with text at its end: what is shown, what is cut, what ends it.

use std::convert::Infallible;
use std::ops::ControlFlow;

use outsize_generate::{
    Error, Finish, GenerateError, LanguageModel, Request, Sampling, StopStrings, TextOptions,
    TextOutcome, Tokenizer, byte_level_tokenizer, generate_text,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Says the tokens that it was given to say, whatever it is asked.
struct Script<'a> {
    tokens: &'a [u32],
    vocab: usize,
    said: usize,
}

impl LanguageModel for Script<'_> {
    type Error = Infallible;

    fn forward_rows(&mut self, _: &[&[u32]]) -> Result<Vec<f32>, Infallible> {
        let mut logits = vec![0.0; self.vocab];
        logits[self.tokens[self.said] as usize] = 1.0;
        self.said += 1;
        Ok(logits)
    }

    fn copy_rows(&mut self, _: &[(usize, usize)], _: usize) -> Result<(), Infallible> {
        unreachable!("there is one sequence")
    }

    fn context(&self) -> Option<usize> {
        None
    }

    fn position(&self) -> usize {
        self.said
    }
}

/// What is generated, and the parts that were shown.
fn say(
    tokenizer: &Tokenizer,
    tokens: &[u32],
    eos: &[u32],
    options: &TextOptions,
    mut on_text: impl FnMut(&str) -> ControlFlow<()>,
) -> (TextOutcome, Vec<String>) {
    let mut script = Script { tokens, vocab: tokenizer.vocab_size() + 10, said: 0 };
    let request = Request {
        ids: vec![1],
        max_new_tokens: tokens.len(),
        eos: eos.to_vec(),
        sampling: Sampling::default(),
    };
    let mut parts = Vec::new();
    let outcome = generate_text(&mut script, tokenizer, &request, options, |part| {
        parts.push(part.to_owned());
        on_text(part)
    });
    (outcome.unwrap(), parts)
}

fn go_on(_: &str) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn stop_at(stops: &[&str]) -> TextOptions {
    TextOptions { stop: StopStrings::new(stops.iter().copied()).unwrap(), ..TextOptions::default() }
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(|byte| u32::from(byte) + 3).collect()
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let tokenizer = crate::common::open(&byte_level_tokenizer(259).unwrap());
    // Byte by byte, in the middle of characters too.
    let tokens = bytes("né\n\nUser: é");
    let (said, parts) = say(&tokenizer, &tokens, &[], &stop_at(&["User:", "\n\n"]), go_on);
    assert_eq!((said.text.as_str(), said.stop_string.as_deref()), ("né", Some("\n\n")));
    assert_eq!(said.outcome.finish, Finish::StopString);
    // The tokens are those that were computed.
    assert_eq!(said.outcome.tokens, bytes("né\n\n"));
    assert_eq!(parts, ["n", "", "é", "", ""]);

    let (said, _) = say(&tokenizer, &tokens, &[], &stop_at(&["ser: é"]), go_on);
    assert_eq!(said.text, "né\n\nU");
    assert_eq!(said.outcome.tokens, tokens);
    // What only might have become one is text after all.
    let (said, parts) = say(&tokenizer, &bytes("a User"), &[], &stop_at(&["User:"]), go_on);
    assert_eq!((said.text.as_str(), said.outcome.finish), ("a User", Finish::Length));
    assert_eq!(parts.last().unwrap(), "User");
}

#[test]
fn a_stop_string_of_bytes_ends_the_text_at_once() {
    // A run of bytes is text once another token follows, and this one goes on and on.
    let tokenizer = crate::common::open(&crate::common::sentencepiece_bpe().to_string());
    let the = tokenizer.token_id("▁the").unwrap();
    let tokens = [vec![the], bytes("\n\n\n\n")].concat();
    for (stop, computed) in [("\n", 2), ("\n\n", 3), ("e\n\n\n", 4)] {
        let (said, parts) = say(&tokenizer, &tokens, &[], &stop_at(&[stop]), go_on);
        assert_eq!(said.stop_string.as_deref(), Some(stop));
        assert_eq!(said.outcome.tokens, tokens[..computed]);
        assert_eq!(said.text, "the\n\n\n".split(stop).next().unwrap());
        assert_eq!(parts.concat(), said.text);
    }
    // An unfinished character is none yet.
    let (said, _) =
        say(&tokenizer, &[vec![the], bytes("é")].concat(), &[], &stop_at(&["é"]), go_on);
    assert_eq!((said.text.as_str(), said.outcome.tokens.len()), ("the", 3));
}

#[test]
fn a_token_that_ends_the_text_is_not_shown() {
    let tokenizer = crate::common::open(&byte_level_tokenizer(259).unwrap());
    let tokens = [bytes("a"), vec![1], bytes("b"), vec![2], bytes("c")].concat();
    for (show_special_tokens, text) in [(false, "ab"), (true, "a<s>b")] {
        let options = TextOptions { show_special_tokens, ..TextOptions::default() };
        let (said, _) = say(&tokenizer, &tokens, &[2], &options, go_on);
        assert_eq!((said.text.as_str(), said.outcome.finish), (text, Finish::Eos));
        assert_eq!(said.outcome.tokens.last(), Some(&2));
    }
}

#[test]
fn the_caller_may_stop_and_keeps_what_was_shown() {
    let tokenizer = crate::common::open(&byte_level_tokenizer(259).unwrap());
    let (said, parts) =
        say(&tokenizer, &bytes("abcdef"), &[], &stop_at(&["cx"]), |part| match part {
            "cd" => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
    assert_eq!(parts, ["a", "b", "", "cd"]);
    assert_eq!((said.text.as_str(), said.outcome.finish), ("abcd", Finish::Stopped));
    assert_eq!(said.outcome.tokens, bytes("abcd"));
}

#[test]
fn tokens_without_a_text_are_an_error() {
    // More to strip than there is.
    let mut tokenizer = crate::common::sentencepiece_bpe();
    tokenizer["decoder"] =
        serde_json::json!({"type": "Strip", "content": "t", "start": 0, "stop": 2});
    let tokenizer = crate::common::open(&tokenizer.to_string());
    let t = tokenizer.token_id("t").unwrap();
    let request =
        Request { ids: vec![1], max_new_tokens: 3, eos: Vec::new(), sampling: Sampling::default() };
    let mut script = Script { tokens: &[t, t, t], vocab: 300, said: 0 };
    let error = generate_text(&mut script, &tokenizer, &request, &TextOptions::default(), go_on);
    assert!(matches!(error, Err(GenerateError::Request(Error::Decode { .. }))), "{error:?}");
    assert_eq!(script.said, 1);
}

/// The text and the stop string by their definition: of the fewest tokens whose text has one,
/// without what may be the beginning of a character. (A run of bytes that is text by then may not
/// be with more of them.)
fn ended(tokenizer: &Tokenizer, ids: &[u32], options: &TextOptions) -> (String, Option<String>) {
    let text = |count: usize| {
        let text = tokenizer.decode(&ids[..count], !options.show_special_tokens).unwrap();
        match count == ids.len() {
            true => text,
            false => text.trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned(),
        }
    };
    let found = |count| reference(options.stop.strings(), &text(count));
    let first = (1..=ids.len()).map(found).find(|found| found.1.is_some());
    first.unwrap_or_else(|| (text(ids.len()), None))
}

/// The same of a text.
fn reference(stops: &[String], text: &str) -> (String, Option<String>) {
    for (index, character) in text.char_indices() {
        let seen = &text[..index + character.len_utf8()];
        let ending = stops.iter().filter(|stop| seen.ends_with(stop.as_str()));
        if let Some(stop) = ending.max_by_key(|stop| stop.len()) {
            return (seen[..seen.len() - stop.len()].to_owned(), Some(stop.clone()));
        }
    }
    (text.to_owned(), None)
}

#[test]
fn however_a_text_comes_in_tokens_its_end_is_the_same() {
    for (name, tokenizer) in crate::common::every_kind() {
        let size = tokenizer.vocab_size() as u32;
        let ids = prop_oneof![0..size, 0..20u32, 255..275u32];
        // Strings that occur: parts of what other tokens spell.
        proptest!(ProptestConfig::with_cases(1000), |(
            ids in vec(ids, 1..30),
            stops in vec((0usize..25, 1usize..6), 0..4),
            show_special_tokens: bool,
        )| {
            let ids: Vec<u32> = ids.into_iter().filter(|id| *id < size).collect();
            let whole = tokenizer.decode(&ids, !show_special_tokens).unwrap();
            let stops: Vec<String> = stops
                .into_iter()
                .map(|(from, length)| whole.chars().skip(from).take(length).collect())
                .filter(|stop: &String| !stop.is_empty())
                .collect();
            let stop = StopStrings::new(stops.clone()).unwrap();
            let options = TextOptions { stop, show_special_tokens, ..TextOptions::default() };
            let (said, parts) = say(&tokenizer, &ids, &[], &options, go_on);
            let expected = ended(&tokenizer, &ids, &options);
            prop_assert_eq!(&(said.text.clone(), said.stop_string), &expected, "{}: {:?}", name, ids);
            prop_assert_eq!(parts.concat(), said.text);
            let finish = if expected.1.is_some() { Finish::StopString } else { Finish::Length };
            prop_assert_eq!(said.outcome.finish, finish);
        });
    }
}
