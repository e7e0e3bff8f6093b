//! What a tokenizer takes in memory, told from the text of its file.
//!
//! The `tokenizers` library builds hash tables of a vocabulary, and holds merges as untyped values
//! while it reads them; of a model that does not name its type, all. What these take for each entry
//! was measured with glibc, and `tests/tokenizer_memory.rs` holds the bound against random
//! tokenizers of each kind.

use crate::tokenizer_parsing::{ModelType, model_type};

/// Bytes that an entry of a vocabulary takes, beside its slots in two hash tables.
const ENTRY: u64 = 80;
/// Bytes of a slot of both hash tables.
const SLOTS: u64 = 68;
/// Bytes of an array of two values: a merge, or a token with its score.
const PAIR: u64 = 300;
/// Bytes of a string that stands alone: a merge in the older spelling.
const STRING: u64 = 150;
/// Bytes of any other value.
const VALUE: u64 = 110;
/// Bytes of an object, beside its entries.
const OBJECT: u64 = 200;
/// Bytes of a string that its smallest allocation has room for.
const SHORT: u64 = 16;
/// Bytes of a node of a Unigram's trie.
const NODE: u64 = 368;
/// Bytes for each byte of an added token, in the automaton that finds them.
const ADDED: u64 = 160;
/// Bytes that any tokenizer takes: caches, regular expressions.
const LEAST: u64 = 1 << 20;
/// How many times as much a model takes that does not name its type.
const UNTYPED: u64 = 2;

/// What of a tokenizer.json its memory depends on.
#[derive(Debug, Default)]
pub(crate) struct TokenizerCounts<'t> {
    bytes: u64,
    strings: u64,
    /// Bytes of strings beyond the first [`SHORT`], and all of those with escapes, twice.
    long: u64,
    /// Bytes of the texts of added tokens.
    added: u64,
    /// Pairs of key and value.
    entries: u64,
    arrays: u64,
    objects: u64,
    commas: u64,
    /// The first strings of arrays: the tokens of a Unigram.
    firsts: Vec<&'t [u8]>,
    /// Models are told apart by their type; without one, all are tried.
    model: Option<ModelType>,
    /// A model with dropout is copied to remove it.
    dropout: bool,
}

impl<'t> TokenizerCounts<'t> {
    /// Counts what is in a text, which need not be valid.
    pub fn of(text: &'t [u8]) -> Self {
        let (bytes, model) = (text.len() as u64, model_type(text));
        let mut counts = Self { bytes, model, ..Self::default() };
        let (mut at, mut before, mut last): (usize, u8, &[u8]) = (0, 0, b"");
        while let Some(&byte) = text.get(at) {
            at += 1;
            match byte {
                b'"' => {
                    let string = string(&text[at..]);
                    at += string.len() + 1;
                    counts.add(string, before, last);
                    last = string;
                }
                b':' => counts.entries += 1,
                b'[' => counts.arrays += 1,
                b'{' => counts.objects += 1,
                b',' => counts.commas += 1,
                byte if byte.is_ascii_whitespace() => continue,
                byte => counts.dropout |= before == b':' && last == b"dropout" && byte != b'n',
            }
            before = byte;
        }
        if counts.model.is_some_and(|model| model != ModelType::Unigram) {
            counts.firsts = Vec::new();
        }
        counts
    }

    /// Counts a string behind the byte `before`; `last` is the string before it.
    fn add(&mut self, string: &'t [u8], before: u8, last: &[u8]) {
        let len = string.len() as u64;
        self.strings += 1;
        self.long += len.saturating_sub(SHORT);
        if string.contains(&b'\\') {
            self.long += 2 * (len + SHORT);
        }
        match (before, last) {
            (b'[', _) => self.firsts.push(string),
            (b':', b"content") => self.added += len,
            _ => {}
        }
    }

    /// An upper bound on the memory, in bytes.
    pub fn memory(mut self) -> u64 {
        let entries = self.entries;
        // A hash table is at most seven eighths full, and doubles.
        let slots = (entries * 8 / 7 + 1).next_power_of_two();
        let alone = self.strings.saturating_sub(entries + 2 * self.arrays);
        let values = self.commas + self.arrays + self.objects + entries;
        let others = values.saturating_sub(2 * entries + 3 * self.arrays + alone);
        let read = entries * ENTRY
            + slots * SLOTS
            + self.arrays * PAIR
            + alone * STRING
            + others * VALUE
            + self.objects * OBJECT
            + self.long * 4
            + self.added * ADDED;
        let times = if self.model.is_none() { UNTYPED } else { 1 };
        let model = read * times + self.nodes() * NODE;
        LEAST + self.bytes + model * (1 + u64::from(self.dropout))
    }

    /// The nodes of a trie of a Unigram's tokens: their different beginnings. A `\\u4e00` stands
    /// for three bytes at most, and other escapes for fewer than spell them.
    fn nodes(&mut self) -> u64 {
        self.firsts.sort_unstable();
        let mut last: &[u8] = b"";
        let mut nodes = 0;
        for token in &self.firsts {
            let common = token.iter().zip(last).take_while(|(one, other)| one == other).count();
            let rest = &token[common..];
            let escapes = rest.windows(2).filter(|pair| pair == b"\\u").count();
            nodes += rest.len().saturating_sub(3 * escapes) as u64;
            last = token;
        }
        nodes
    }
}

/// What is before the quote that ends a string.
fn string(text: &[u8]) -> &[u8] {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => return &text[..at],
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text
}
