//! Small tokenizers of the kinds that checkpoints come with.

// Each test program uses some of these.
#![allow(dead_code)]

pub mod adapter;
pub mod checkpoint;
pub mod conversations;

use std::path::Path;

use outsize_generate::{PipelineError, Tokenizer, byte_level_tokenizer};
use outsize_plan::{Budget, Tier};
use serde_json::{Value, json};
use tempfile::TempDir;

/// What transformers' AutoTokenizer makes of texts and ids; scripts/fixtures/tiny_tokenizers.py
/// made it.
#[derive(Debug, serde::Deserialize)]
pub struct Expected {
    pub texts: Vec<ExpectedIds>,
    pub ids: Vec<ExpectedText>,
}

#[derive(Debug, serde::Deserialize)]
pub struct ExpectedIds {
    pub text: String,
    /// With special tokens around them.
    pub ids: Vec<u32>,
    /// Without.
    pub plain: Vec<u32>,
}

#[derive(Debug, serde::Deserialize)]
pub struct ExpectedText {
    pub ids: Vec<u32>,
    /// Without special tokens.
    pub text: String,
    /// With them.
    pub shown: String,
}

/// More than a program of tests holds, in bytes: where plans count this as the process, they are
/// the same whatever other tests hold meanwhile.
pub const PROCESS: u64 = 1 << 30;

/// A budget of main memory, if one is given.
pub fn cpu(bytes: Option<u64>) -> Budget {
    let mut budget = Budget::default();
    if let Some(bytes) = bytes {
        budget.set(Tier::Cpu, bytes);
    }
    budget
}

/// The least budget that works, from the planner's own message.
pub fn least(error: PipelineError) -> u64 {
    match error {
        PipelineError::Core(outsize_core::Error::Plan(outsize_plan::Error::TooSmall(
            shortfall,
        ))) => shortfall.least,
        other => panic!("{other}"),
    }
}

/// The tokenizers that transformers was asked about, by name.
pub fn fixtures() -> Vec<(String, Tokenizer, Expected)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers");
    let mut fixtures: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let expected = std::fs::read(path.join("expected.json")).unwrap();
            (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                Tokenizer::open(&path).unwrap(),
                serde_json::from_slice(&expected).unwrap(),
            )
        })
        .collect();
    fixtures.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(fixtures.len(), 10);
    fixtures
}

/// A folder with the given tokenizer.json.
pub fn folder(tokenizer: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "tokenizer.json", tokenizer);
    folder
}

pub fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

pub fn open(tokenizer: &str) -> Tokenizer {
    Tokenizer::open(folder(tokenizer).path()).unwrap()
}

/// One of each kind, by name.
pub fn every_kind() -> Vec<(&'static str, Tokenizer)> {
    vec![
        ("byte-level", open(&byte_level_tokenizer(700).unwrap())),
        ("bytes only", open(&byte_level_tokenizer(256).unwrap())),
        ("sentencepiece BPE", open(&sentencepiece_bpe().to_string())),
        ("sentencepiece unigram", open(&sentencepiece_unigram().to_string())),
        ("word pieces", open(&word_pieces().to_string())),
        ("suffixed BPE", open(&suffixed_bpe().to_string())),
        ("no decoder", open(&no_decoder().to_string())),
    ]
}

/// Tokens 0, 1 and 2 are special; the model's vocabulary must have them too.
fn tokenizer(
    model: Value,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
) -> Value {
    let added: Vec<Value> = ["<unk>", "<s>", "</s>"]
        .iter()
        .enumerate()
        .map(|(id, content)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer,
           "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder, "model": model})
}

/// Puts `<s>` in front, as Llama's does.
pub fn bos_template() -> Value {
    json!({"type": "TemplateProcessing",
           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}})
}

/// As Llama 2: `▁` for spaces, bytes spelled `<0x00>` from id 3 on, then pieces from id 259 on.
pub fn sentencepiece_bpe() -> Value {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(
        [
            "▁", "t", "h", "e", "c", "a", "é", "中", "�", "▁t", "he", "▁the", "▁c", "▁ca", "▁cat",
            "▁▁",
        ]
        .map(String::from),
    );
    let vocab: serde_json::Map<String, Value> =
        tokens.into_iter().zip((0..).map(|id: u32| json!(id))).collect();
    let merges = json!(["▁ t", "h e", "▁t he", "▁ c", "▁c a", "▁ca t", "▁ ▁"]);
    tokenizer(
        json!({"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
               "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges}),
        json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}),
        Value::Null,
        bos_template(),
        json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
    )
}

/// As T5 and XLM-R: a unigram model with the Metaspace decoder.
fn sentencepiece_unigram() -> Value {
    let pieces = ["<unk>", "<s>", "</s>", "▁", "▁the", "▁cat", "s", "é", "中", "▁▁", "."];
    let vocab: Vec<Value> =
        pieces.iter().enumerate().map(|(id, piece)| json!([piece, -(id as f64)])).collect();
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    tokenizer(
        json!({"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false}),
        Value::Null,
        metaspace.clone(),
        Value::Null,
        metaspace,
    )
}

/// As BERT: continuations are marked, spaces before punctuation removed.
fn word_pieces() -> Value {
    tokenizer(
        json!({"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
               "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "the": 3, "cat": 4, "##s": 5, ".": 6, "'": 7, "n't": 8, "é": 9}}),
        Value::Null,
        json!({"type": "Whitespace"}),
        Value::Null,
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
    )
}

/// As CLIP and the first GPT: the end of a word is marked.
fn suffixed_bpe() -> Value {
    tokenizer(
        json!({"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
               "end_of_word_suffix": "</w>", "fuse_unk": false,
               "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4, "a</w>": 5, "b</w>": 6, "é</w>": 7}, "merges": []}),
        Value::Null,
        json!({"type": "Whitespace"}),
        Value::Null,
        json!({"type": "BPEDecoder", "suffix": "</w>"}),
    )
}

/// Tokens are put together with spaces.
fn no_decoder() -> Value {
    tokenizer(
        json!({"type": "WordLevel", "unk_token": "<unk>",
               "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "the": 3, "cat": 4, "é": 5, "�": 6}}),
        Value::Null,
        json!({"type": "Whitespace"}),
        Value::Null,
        Value::Null,
    )
}
