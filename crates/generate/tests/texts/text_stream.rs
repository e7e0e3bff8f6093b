//! Text that grows with every token is the text of all tokens.

use outsize_generate::{Tokenizer, byte_level_tokenizer};
use proptest::collection::vec;
use proptest::prelude::*;

/// The pieces in order, the last one from the end of the stream.
fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<Option<String>> {
    pieces_of(tokenizer, ids, true)
}

fn pieces_of(tokenizer: &Tokenizer, ids: &[u32], skip_special_tokens: bool) -> Vec<Option<String>> {
    let mut stream = tokenizer.stream(skip_special_tokens);
    let mut pieces: Vec<_> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    pieces.push(stream.finish().unwrap());
    pieces
}

fn joined(pieces: &[Option<String>]) -> String {
    pieces.iter().flatten().map(String::as_str).collect()
}

/// One byte per token.
fn bytes_as_ids(text: &[u8]) -> Vec<u32> {
    text.iter().map(|&byte| u32::from(byte) + 3).collect()
}

#[test]
fn random_ids_of_every_kind_of_tokenizer() {
    for (name, tokenizer) in crate::common::every_kind() {
        // Some ids lie beyond the vocabulary, as a model's may.
        let ids = 0..tokenizer.vocab_size() as u32 + 3;
        proptest!(ProptestConfig::with_cases(500), |(ids in vec(ids, 0..40), skip: bool)| {
            let pieces = pieces_of(&tokenizer, &ids, skip);
            prop_assert_eq!(joined(&pieces), tokenizer.decode(&ids, skip).unwrap(), "{}: {:?}", name, ids);
            prop_assert!(pieces.iter().flatten().all(|piece| !piece.is_empty()));
        });
    }
}

#[test]
fn random_ids_of_the_tokenizers_that_transformers_reads_too() {
    for (name, tokenizer, expected) in crate::common::fixtures() {
        let ids = 0..tokenizer.vocab_size() as u32;
        // Special tokens, the first bytes or pieces, and spaces, more often than the others.
        let ids = prop_oneof![ids, 0..8u32, 255..265u32, 280..300u32];
        proptest!(ProptestConfig::with_cases(500), |(ids in vec(ids, 0..40), skip: bool)| {
            let pieces = pieces_of(&tokenizer, &ids, skip);
            prop_assert_eq!(joined(&pieces), tokenizer.decode(&ids, skip).unwrap(), "{}: {:?}", name, ids);
        });
        for case in expected.ids {
            for (skip, text) in [(true, &case.text), (false, &case.shown)] {
                let found = joined(&pieces_of(&tokenizer, &case.ids, skip));
                assert_eq!(&found, text, "{name}: {:?}", case.ids);
            }
        }
    }
}

#[test]
fn every_short_sequence_of_the_delicate_tokens() {
    // The special, byte and space tokens of the sentencepiece kind, where decoding depends most on
    // neighbours.
    let tokenizer = crate::common::open(&crate::common::sentencepiece_bpe().to_string());
    let delicate = ["<s>", "<0xC3>", "<0xA9>", "<0x20>", "▁", "▁▁", "▁the", "a", "�"];
    let delicate = delicate.map(|token| tokenizer.token_id(token).unwrap());
    for number in 0..delicate.len().pow(5) {
        let mut rest = number;
        let ids: Vec<u32> = (0..5)
            .map(|_| {
                let id = delicate[rest % delicate.len()];
                rest /= delicate.len();
                id
            })
            .collect();
        for skip in [true, false] {
            assert_eq!(
                joined(&pieces_of(&tokenizer, &ids, skip)),
                tokenizer.decode(&ids, skip).unwrap(),
                "{ids:?}"
            );
        }
    }
}

#[test]
fn random_bytes_through_byte_level_and_byte_fallback_tokens() {
    let byte_level = crate::common::open(&byte_level_tokenizer(259).unwrap());
    let byte_fallback = crate::common::open(&crate::common::sentencepiece_bpe().to_string());
    proptest!(ProptestConfig::with_cases(1000), |(text in vec(any::<u8>(), 0..60))| {
        let ids = bytes_as_ids(&text);
        let streamed = joined(&pieces(&byte_level, &ids));
        prop_assert_eq!(&streamed, &byte_level.decode(&ids, true).unwrap());
        prop_assert_eq!(&streamed, &String::from_utf8_lossy(&text));
        prop_assert_eq!(joined(&pieces(&byte_fallback, &ids)), byte_fallback.decode(&ids, true).unwrap());
    });
}

#[test]
fn any_text_comes_back_in_whole_characters() {
    let tokenizer = crate::common::open(&byte_level_tokenizer(1000).unwrap());
    proptest!(ProptestConfig::with_cases(1000), |(text in any::<String>())| {
        let ids = tokenizer.encode(&text, true).unwrap();
        // A text may name a special token, such as `<s>`, which is left out.
        prop_assume!(ids.iter().all(|id| *id >= 3));
        let pieces = pieces(&tokenizer, &ids);
        prop_assert_eq!(joined(&pieces), text.as_str());
        if !text.contains(char::REPLACEMENT_CHARACTER) {
            prop_assert!(!joined(&pieces).contains(char::REPLACEMENT_CHARACTER));
            // Nothing is left for the end: each character came with its last byte.
            prop_assert_eq!(pieces.last().unwrap(), &None);
        }
    });
}

#[test]
fn a_character_comes_with_its_last_byte() {
    let tokenizer = crate::common::open(&byte_level_tokenizer(259).unwrap());
    let pieces = pieces(&tokenizer, &bytes_as_ids("aé😀b".as_bytes()));
    let expected = [Some("a"), None, Some("é"), None, None, None, Some("😀"), Some("b"), None];
    assert_eq!(pieces, expected.map(|piece| piece.map(String::from)));
}

#[test]
fn a_broken_end_is_replaced() {
    let tokenizer = crate::common::open(&byte_level_tokenizer(259).unwrap());
    let pieces = pieces(&tokenizer, &bytes_as_ids(b"a\xE4\xB8"));
    assert_eq!(
        pieces,
        [Some("a"), None, None, Some("\u{FFFD}")].map(|piece| piece.map(String::from))
    );
}

#[test]
fn sentencepiece_words_keep_their_spaces_and_the_first_loses_its_own() {
    let tokenizer = crate::common::open(&crate::common::sentencepiece_bpe().to_string());
    let ids = tokenizer.encode("the cat  the", true).unwrap();
    assert_eq!(ids[0], 1, "<s> comes first");
    let pieces = pieces(&tokenizer, &ids);
    assert_eq!(joined(&pieces), "the cat  the");
    assert_eq!(pieces[..3], [None, Some("the"), Some(" cat")].map(|piece| piece.map(String::from)));
}

#[test]
fn special_tokens_in_the_middle_do_not_disturb_spaces() {
    let tokenizer = crate::common::open(&crate::common::sentencepiece_bpe().to_string());
    let [the, cat] = ["▁the", "▁cat"].map(|token| tokenizer.token_id(token).unwrap());
    let pieces = pieces(&tokenizer, &[the, 2, 1, cat, 99_999, cat]);
    assert_eq!(joined(&pieces), "the cat cat");
}
