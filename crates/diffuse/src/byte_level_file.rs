//! The tokenizer of Qwen2 where a model has it in several files.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use outsize_generate::TokenizerFile;
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::tokenizer_parts::{merged_pairs, put_together, vocabulary};

/// The most tokens that are added to a vocabulary.
const MOST_ADDED: usize = 1 << 12;

/// Where texts are cut.
const PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A tokenizer.json of vocab.json, merges.txt and the tokens that tokenizer_config.json adds, as
/// transformers makes one of them.
///
/// # Errors
/// A file that is missing, cannot be read or is damaged.
pub(crate) fn byte_level_tokenizer_file(
    folder: &Path,
    config: &Map<String, Value>,
) -> Result<TokenizerFile, Error> {
    let (vocabulary, ids) = vocabulary(folder)?;
    let refused = |reason: String| Error::Field {
        path: folder.join("tokenizer_config.json"),
        reason: format!("`added_tokens_decoder` {reason}"),
    };
    let added = config.get("added_tokens_decoder").and_then(Value::as_object);
    let added = added.ok_or_else(|| refused("is missing".to_owned()))?;
    if added.len() > MOST_ADDED {
        return Err(refused(format!("has more than {MOST_ADDED} tokens")));
    }
    let around = json!({
        "version": "1.0",
        "added_tokens": added_tokens(added, &ids).map_err(refused)?,
        "normalizer": { "type": "NFC" },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": PATTERN }, "behavior": "Isolated", "invert": false },
            { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
        ] },
        "post_processor": null,
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
        },
    })
    .to_string();
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
        "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false,
    })
    .to_string();
    Ok(put_together(folder, [&around, &model, &vocabulary, &merged_pairs(folder)?]))
}

/// The tokens that are added, in the order of their ids, or what is wrong with them: those behind
/// the vocabulary follow it without gaps, as their ids are counted.
fn added_tokens(
    added: &Map<String, Value>,
    ids: &HashMap<String, u32>,
) -> Result<Vec<Value>, String> {
    let mut tokens = BTreeMap::new();
    for (id, token) in added {
        let content = token.get("content").and_then(Value::as_str);
        let (Ok(id), Some(content)) = (id.parse::<u32>(), content) else {
            return Err("has a token without an id or a content".to_owned());
        };
        let flag = |name: &str| token.get(name).and_then(Value::as_bool).unwrap_or(false);
        let entry = json!({
            "id": id, "content": content, "special": flag("special"),
            "normalized": flag("normalized"), "single_word": flag("single_word"),
            "lstrip": flag("lstrip"), "rstrip": flag("rstrip"),
        });
        tokens.insert(id, (content, entry));
    }
    let mut next = ids.len() as u32;
    for (id, (content, _)) in &tokens {
        match ids.get(*content) {
            Some(known) if known == id => {}
            None if *id == next => next += 1,
            _ => return Err(format!("gives a token the id {id}, which is not its place")),
        }
    }
    Ok(tokens.into_values().map(|(_, entry)| entry).collect())
}
