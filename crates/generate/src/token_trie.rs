//! A tokenizer's tokens as bytes, in the tree in which constraints look them up.

use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::toktrie::{
    INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv,
};

/// The longest token that the tree has room for, in bytes.
const LONGEST: usize = 1000;

/// Bytes that the tree takes for each token, and for each of the tokens' bytes, while it is made.
const TOKEN: u64 = 160;
const BYTE: u64 = 92;

/// Bytes that one constraint takes at most while its text grows: the limits of schemas keep it
/// below.
pub(crate) const CONSTRAINT_BYTES: u64 = 24 << 20;

/// How tokens spell bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// Each byte is a character, as in GPT-2.
    ByteLevel,
    /// As text with `▁` for a space, and `<0x41>` for a byte.
    SentencePiece,
}

/// An upper bound on what the tree takes of so many tokens of so many bytes in all.
pub(crate) fn trie_memory(tokens: u64, bytes: u64) -> u64 {
    (1 << 20) + tokens * TOKEN + bytes * BYTE
}

/// The bytes of a token; none if they cannot be told.
pub(crate) fn token_bytes(token: &str, spelling: Spelling) -> Vec<u8> {
    let bytes = match spelling {
        Spelling::ByteLevel => token.chars().map(byte_of).collect(),
        Spelling::SentencePiece => {
            let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
            let byte = byte.filter(|hex| hex.len() == 2);
            match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => Some(vec![byte]),
                None => Some(token.replace('▁', " ").into_bytes()),
            }
        }
    };
    bytes.filter(|bytes: &Vec<u8>| bytes.len() <= LONGEST).unwrap_or_default()
}

/// The byte that a character stands for in byte-level BPE.
fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        // The others in order: 0 to 0x20, 0x7F to 0xA0, 0xAD.
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// What makes constraints for texts of these tokens: an empty one is never chosen.
pub(crate) fn constraints(tokens: &[Vec<u8>]) -> tokenizers::Result<ParserFactory> {
    // What ends a text is the caller's matter.
    let info = TokRxInfo::new(tokens.len() as u32, INVALID_TOKEN);
    let env: TokEnv = Arc::new(TrieTokens(TokTrie::from(&info, tokens)));
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &[])?;
    factory.quiet();
    // Real schemas need a small part of it.
    *factory.limits_mut() = ParserLimits {
        initial_lexer_fuel: 200_000,
        max_lexer_states: 8000,
        max_grammar_size: 50_000,
        max_items_in_row: 1000,
        // The tree is walked where it is needed.
        precompute_large_lexemes: false,
        verbose_errors: false,
        ..ParserLimits::default()
    };
    Ok(factory)
}

struct TrieTokens(TokTrie);

impl TokenizerEnv for TrieTokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    /// Any tokens will do that spell a text.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_told_as_bytes() {
        let bytes = |token| token_bytes(token, Spelling::ByteLevel);
        assert_eq!(bytes("ĠaĊ"), b" a\n");
        assert_eq!(bytes("Ã©"), "é".as_bytes());
        assert_eq!(bytes("ĀġĢłŃ"), [0, 0x7F, 0x80, 0xA0, 0xAD]);
        assert_eq!(bytes("▁"), b"");
        let bytes = |token| token_bytes(token, Spelling::SentencePiece);
        assert_eq!(bytes("▁a▁b"), b" a b");
        assert_eq!((bytes("<0xC3>"), bytes("<0xC>")), (vec![0xC3], b"<0xC>".to_vec()));
        assert_eq!(bytes(&"a".repeat(LONGEST + 1)), b"");
    }
}
