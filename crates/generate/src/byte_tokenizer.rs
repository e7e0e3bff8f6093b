//! A tokenizer for a checkpoint that has none.

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// Tokens for single bytes.
const BYTES: usize = 256;
/// In the order of Llama 2, where the bytes follow from 3 on too.
const SPECIAL: [&str; 3] = ["<unk>", "<s>", "</s>"];
/// The largest vocabulary served, in tokens: sixteen times the largest in use.
const MOST: usize = 1 << 22;

const CONSONANTS: &[u8] = b"bdfgklmnprstvz";
const VOWELS: &[u8] = b"aeiou";
const SYLLABLES: usize = CONSONANTS.len() * VOWELS.len();
/// Shares no factor with [`SYLLABLES`], so that multiplying by it only reorders the words of one
/// length.
const STRIDE: usize = 7919;

/// A tokenizer.json with exactly `vocab_size` tokens, at least 256: a byte-level BPE tokenizer in
/// which every text is made of tokens and every token has a text.
///
/// - From 259 tokens on, 0, 1 and 2 are the special tokens `<unk>`, `<s>` and `</s>`; smaller
///   vocabularies have none.
/// - The next 256 are the bytes 0 to 255 in order.
/// - All others are made-up words with a space in front (` ba`, ` fumosi`), so that a model with
///   random weights prints words. They are also recognised where they occur in a text. A larger
///   vocabulary has the same words first.
///
/// No special token is put around a text. There are no merges. 128,000 tokens take less than 0.1 s
/// and 2.2 MB of text. The `tokenizers` crate and transformers load the result; its
/// tokenizer_config.json is [`byte_level_tokenizer_config`].
///
/// # Errors
/// [`Error::VocabularySize`] below 256 or above 4,194,304 tokens.
pub fn byte_level_tokenizer(vocab_size: usize) -> Result<String> {
    let special = special_tokens(vocab_size)?;
    let added_tokens: Vec<Value> = (0..)
        .zip(special)
        .map(|(id, token): (u32, _)| {
            json!({
                "id": id, "content": token, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        })
        .collect();
    let tokens =
        special.iter().map(|token| (*token).to_owned()).chain(byte_tokens()).chain((0..).map(word));
    let vocab: Map<String, Value> = tokens.zip((0..vocab_size).map(Value::from)).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    let mut tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens,
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            // A word that is a token is taken whole, although no merges lead to it.
            "ignore_merges": true,
            "merges": [],
        },
    });
    // Inside the macro the whole vocabulary would be copied.
    tokenizer["model"]["vocab"] = Value::Object(vocab);
    Ok(tokenizer.to_string())
}

/// The tokenizer_config.json that belongs to [`byte_level_tokenizer`] of the same size.
///
/// # Errors
/// [`Error::VocabularySize`], as there.
pub fn byte_level_tokenizer_config(vocab_size: usize) -> Result<String> {
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": false,
        "clean_up_tokenization_spaces": false,
    });
    if let [unk, bos, eos] = special_tokens(vocab_size)? {
        config["unk_token"] = json!(unk);
        config["bos_token"] = json!(bos);
        config["eos_token"] = json!(eos);
    }
    Ok(format!("{config:#}"))
}

/// The special tokens that a vocabulary of this size has room for.
fn special_tokens(vocab_size: usize) -> Result<&'static [&'static str]> {
    match vocab_size {
        size if !(BYTES..=MOST).contains(&size) => {
            Err(Error::VocabularySize { vocab_size, least: BYTES, most: MOST })
        }
        size if size < SPECIAL.len() + BYTES => Ok(&[]),
        _ => Ok(&SPECIAL),
    }
}

/// How byte-level BPE spells the bytes 0 to 255: printable Latin-1 characters stand for themselves,
/// the others for characters from U+0100 on, as in GPT-2's `bytes_to_unicode`.
fn byte_tokens() -> impl Iterator<Item = String> {
    let mut others = '\u{100}'..='\u{1FF}';
    (0..=u8::MAX)
        .filter_map(move |byte| match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => Some(char::from(byte)),
            _ => others.next(),
        })
        .map(String::from)
}

/// The `index`-th word, spelled as a token: a space (`Ġ`) and syllables, first all words of one,
/// then of two, and so on.
fn word(index: usize) -> String {
    let (mut rest, mut length, mut words) = (index, 1, SYLLABLES);
    while rest >= words {
        rest -= words;
        length += 1;
        words *= SYLLABLES;
    }
    let mut scattered = rest * STRIDE % words;
    let mut token = String::from('Ġ');
    for _ in 0..length {
        let syllable = scattered % SYLLABLES;
        scattered /= SYLLABLES;
        token.push(char::from(CONSONANTS[syllable / VOWELS.len()]));
        token.push(char::from(VOWELS[syllable % VOWELS.len()]));
    }
    token
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn words_are_distinct_and_a_syllable_is_two_letters() {
        assert_eq!(SYLLABLES, 70);
        assert_eq!(word(0), "Ġba");
        let words: HashSet<String> = (0..400_000).map(word).collect();
        assert_eq!(words.len(), 400_000);
        let of_length = |syllables: usize| {
            words.iter().filter(|word| word.len() == "Ġ".len() + 2 * syllables).count()
        };
        assert_eq!([1, 2, 3].map(of_length), [70, 4_900, 343_000]);
    }

    #[test]
    fn bytes_are_spelled_as_the_byte_level_decoder_reads_them() {
        use tokenizers::Decoder;
        use tokenizers::decoders::byte_level::ByteLevel;

        let spelled: Vec<String> = byte_tokens().collect();
        assert_eq!(spelled.len(), 256);
        for (byte, token) in (0..=u8::MAX).zip(&spelled) {
            let text = ByteLevel::default().decode(vec![token.clone()]).unwrap();
            assert_eq!(text, String::from_utf8_lossy(&[byte]), "byte {byte}");
        }
        let alphabet: HashSet<String> =
            ByteLevel::alphabet().into_iter().map(String::from).collect();
        assert_eq!(spelled.into_iter().collect::<HashSet<_>>(), alphabet);
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        for size in [0, 255, MOST + 1, usize::MAX] {
            let message = byte_level_tokenizer(size).unwrap_err().to_string();
            assert!(message.contains(&format!("256 to 4194304 tokens, not {size}")), "{message}");
            assert!(byte_level_tokenizer_config(size).is_err());
        }
    }

    #[test]
    fn special_tokens_come_with_room_for_them() {
        for (size, has_special) in [(256, false), (258, false), (259, true), (1000, true)] {
            assert_eq!(
                byte_level_tokenizer(size).unwrap().contains("\"</s>\""),
                has_special,
                "{size}"
            );
            assert_eq!(
                byte_level_tokenizer_config(size).unwrap().contains("\"</s>\""),
                has_special,
                "{size}"
            );
        }
    }
}
