//! Opening the tokenizer of a checkpoint, and what comes out of it.

use crate::common::{folder, sentencepiece_bpe, write};
use outsize_generate::{Error, Tokenizer, byte_level_tokenizer, byte_level_tokenizer_config};
use proptest::prelude::*;
use serde_json::{Value, json};

#[test]
fn a_missing_tokenizer_says_what_else_works() {
    let folder = tempfile::tempdir().unwrap();
    let error = Tokenizer::open(folder.path()).unwrap_err();
    assert!(matches!(error, Error::NoTokenizer { .. }));
    let message = error.to_string();
    assert!(
        message.contains("token ids") && message.contains(folder.path().to_str().unwrap()),
        "{message}"
    );
}

#[test]
fn a_broken_tokenizer_is_an_error_that_names_the_file() {
    let whole = byte_level_tokenizer(300).unwrap();
    for text in ["", "{}", "[]", "null", "{\"model\": 3}", &whole[..whole.len() / 2]] {
        let message = Tokenizer::open(folder(text).path()).unwrap_err().to_string();
        assert!(message.contains("tokenizer.json is not a tokenizer"), "{message}");
    }
}

#[test]
fn parts_that_make_the_library_panic_are_errors() {
    // A charsmap that is none, at opening.
    let mut tokenizer = sentencepiece_bpe();
    tokenizer["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
    let opened = Tokenizer::open(folder(&tokenizer.to_string()).path());
    assert!(matches!(opened, Err(Error::BadTokenizer { .. })), "{opened:?}");
    // More to strip than there is, at decoding.
    let mut tokenizer = sentencepiece_bpe();
    tokenizer["decoder"] = json!({"type": "Strip", "content": "t", "start": 0, "stop": 2});
    let tokenizer = crate::common::open(&tokenizer.to_string());
    let t = tokenizer.token_id("t").unwrap();
    assert!(matches!(tokenizer.decode(&[t], true), Err(Error::Decode { .. })));
    assert!(matches!(tokenizer.stream(true).push(t), Err(Error::Decode { .. })));
}

#[test]
fn damaged_tokenizers_never_panic() {
    let whole = sentencepiece_bpe().to_string();
    proptest!(ProptestConfig::with_cases(300), |(at in 0..whole.len(), by in "[\\x00-\\x7F]{0,3}", length in 0usize..4)| {
        let mut bytes = whole.clone().into_bytes();
        bytes.splice(at..(at + length).min(whole.len()), by.bytes());
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), bytes).unwrap();
        if let Ok(tokenizer) = Tokenizer::open(folder.path()) {
            let _ = tokenizer.encode("the cat é", true);
            let _ = tokenizer.decode(&[1, 70, 262, 9, 5000], true);
        }
    });
}

#[test]
fn text_survives_the_way_to_tokens_and_back() {
    let tokenizer = crate::common::open(&byte_level_tokenizer(5_000).unwrap());
    proptest!(|(text in any::<String>())| {
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text, true).unwrap(), true).unwrap(), text);
    });
}

#[test]
fn stored_truncation_and_padding_are_not_applied() {
    let mut tokenizer: Value = serde_json::from_str(&byte_level_tokenizer(300).unwrap()).unwrap();
    tokenizer["truncation"] =
        json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    tokenizer["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
                                  "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"});
    let tokenizer = crate::common::open(&tokenizer.to_string());
    assert_eq!(
        tokenizer.encode("Forty letters are ten times four letters", true).unwrap().len(),
        40
    );
}

#[test]
fn special_tokens_are_encoded_and_not_decoded() {
    let tokenizer = crate::common::open(&sentencepiece_bpe().to_string());
    let ids = tokenizer.encode("the</s> cat", true).unwrap();
    assert_eq!((ids[0], ids[2]), (1, 2));
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "the  cat");
}

/// The first tokens of "a" with a tokenizer_config.json, and whether tokenizer.json puts `<s>` in
/// front itself.
fn first_tokens(config: &str, template: bool) -> Result<Vec<u32>, Error> {
    let mut tokenizer: Value = serde_json::from_str(&byte_level_tokenizer(300).unwrap()).unwrap();
    if template {
        tokenizer["post_processor"] = crate::common::bos_template();
    }
    let folder = folder(&tokenizer.to_string());
    write(folder.path(), "tokenizer_config.json", config);
    Tokenizer::open(folder.path())?.encode("a", true)
}

#[test]
fn ids_and_texts_are_those_of_transformers() {
    for (name, tokenizer, expected) in crate::common::fixtures() {
        for case in &expected.texts {
            let text = &case.text;
            let plain = tokenizer.encode(text, false).unwrap();
            assert_eq!(plain, case.plain, "{name}: {text:?}");
            let mut ids = tokenizer.encode(text, true).unwrap();
            if name == "byte-level-config-bos" {
                // Heard here, although transformers 5 does not: tokenizer.json adds nothing.
                assert_eq!(ids.remove(0), 1, "{name}: {text:?}");
            }
            assert_eq!(ids, case.ids, "{name}: {text:?}");
        }
        for case in &expected.ids {
            let text = tokenizer.decode(&case.ids, true).unwrap();
            assert_eq!(text, case.text, "{name}: {:?}", case.ids);
            let shown = tokenizer.decode(&case.ids, false).unwrap();
            assert_eq!(shown, case.shown, "{name}: {:?}", case.ids);
        }
    }
}

#[test]
fn the_configuration_may_ask_for_tokens_that_the_tokenizer_leaves_out() {
    let a = 3 + u32::from(b'a');
    let object =
        r#"{"add_bos_token": true, "bos_token": {"__type": "AddedToken", "content": "<s>"}}"#;
    for config in [r#"{"add_bos_token": true, "bos_token": "<s>"}"#, object] {
        assert_eq!(first_tokens(config, false).unwrap(), [1, a]);
        assert_eq!(first_tokens(config, true).unwrap(), [1, a], "not twice");
    }
    let both = r#"{"add_bos_token": true, "add_eos_token": true, "bos_token": "<s>", "eos_token": "</s>"}"#;
    assert_eq!(first_tokens(both, false).unwrap(), [1, a, 2]);
    assert_eq!(first_tokens(both, true).unwrap(), [1, a]);
    for config in [
        "{}",
        r#"{"bos_token": "<s>"}"#,
        r#"{"add_bos_token": false, "bos_token": "<s>"}"#,
        r#"{"add_bos_token": null, "bos_token": "<s>"}"#,
        r#"{"add_bos_token": true, "bos_token": null}"#,
    ] {
        assert_eq!(first_tokens(config, false).unwrap(), [a], "{config}");
        assert_eq!(first_tokens(config, true).unwrap(), [1, a], "{config}");
    }
}

#[test]
fn dropout_is_not_applied() {
    let text = include_str!("../fixtures/tokenizers/byte-level/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_str(text).unwrap();
    let whole = crate::common::open(text).encode("the theme of the thesis", true).unwrap();
    tokenizer["model"]["dropout"] = json!(0.9);
    let with_dropout = crate::common::open(&tokenizer.to_string());
    for _ in 0..3 {
        let ids = with_dropout.encode("the theme of the thesis", true).unwrap();
        assert_eq!(ids, whole);
    }
}

#[test]
fn a_token_that_the_model_does_not_have_is_named() {
    let tokenizer = crate::common::open(&byte_level_tokenizer(300).unwrap());
    tokenizer.check(&[1, 299], 300).unwrap();
    let message = tokenizer.check(&[1, 2, 299, 7], 3).unwrap_err().to_string();
    for part in ["299", "only 3", "tokenizer.json", "config.json"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_configuration_at_odds_with_itself_is_refused() {
    let message = first_tokens(r#"{"add_bos_token": true, "bos_token": "<bos>"}"#, false)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("tokenizer_config.json") && message.contains("\"<bos>\""),
        "{message}"
    );
    let message =
        first_tokens(r#"{"add_bos_token": true, "bos_token": 7}"#, false).unwrap_err().to_string();
    assert!(message.contains("bos_token is 7"), "{message}");
    let message = first_tokens(r#"{"add_eos_token": "yes"}"#, false).unwrap_err().to_string();
    assert!(message.contains("add_eos_token is \"yes\""), "{message}");
    assert!(matches!(first_tokens("{", false), Err(Error::File(_))));
}

#[test]
fn made_up_tokenizers_have_the_size_asked_for_and_a_text_for_every_id() {
    for vocab_size in [256, 257, 258, 259, 260, 1_000, 32_000] {
        let folder = folder(&byte_level_tokenizer(vocab_size).unwrap());
        write(
            folder.path(),
            "tokenizer_config.json",
            &byte_level_tokenizer_config(vocab_size).unwrap(),
        );
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        assert_eq!(tokenizer.vocab_size(), vocab_size);
        let special = if vocab_size < 259 { 0 } else { 3 };
        for id in 0..vocab_size as u32 {
            let text = tokenizer.decode(&[id], true).unwrap();
            assert_eq!(text.is_empty(), id < special, "{id} of {vocab_size}");
            if id >= special + 256 {
                assert!(
                    text.starts_with(' ')
                        && text[1..].bytes().all(|byte| byte.is_ascii_lowercase()),
                    "{text:?}"
                );
                assert_eq!(tokenizer.encode(&text, true).unwrap(), [id], "{text:?}");
            }
        }
        assert_eq!(tokenizer.decode(&[special + u32::from(b'q')], true).unwrap(), "q");
        assert_eq!(tokenizer.token_id("</s>"), (special > 0).then_some(2));
    }
}
