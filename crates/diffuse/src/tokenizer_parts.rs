//! A tokenizer in several files: its vocabulary, and the pairs of tokens that are merged.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use outsize_checkpoint::{ConfigFileError, read_optional_text, shown};
use outsize_generate::TokenizerFile;
use serde_json::Value;

use crate::error::Error;

/// The most bytes read from vocab.json and from merges.txt. Those of CLIP have about 1 MB, those of
/// Qwen2 some more.
const LIMIT: u64 = 64 << 20;

/// A file in the folder, and its path.
fn text(folder: &Path, name: &str) -> Result<(PathBuf, String), Error> {
    let path = folder.join(name);
    match read_optional_text(&path, LIMIT)? {
        Some(text) => Ok((path, text)),
        None => Err(Error::no_file(folder, name)),
    }
}

/// The text of a vocab.json, and the ids that it holds.
pub(crate) fn vocabulary(folder: &Path) -> Result<(String, HashMap<String, u32>), Error> {
    let (path, vocabulary) = text(folder, "vocab.json")?;
    let ids = serde_json::from_str(&vocabulary);
    let ids = ids.map_err(|error| ConfigFileError::not_json(&path, error))?;
    Ok((vocabulary, ids))
}

/// The pairs of a merges.txt, as a list of JSON without its brackets.
pub(crate) fn merged_pairs(folder: &Path) -> Result<String, Error> {
    let (path, merges) = text(folder, "merges.txt")?;
    let mut pairs = String::new();
    for (number, line) in merges.lines().enumerate() {
        if line.is_empty() || (number == 0 && line.starts_with("#version")) {
            continue;
        }
        if line.split(' ').count() != 2 {
            let reason = format!("line {} is not two tokens: {:?}", number + 1, shown(line, 80));
            return Err(Error::Field { path, reason });
        }
        let separator = if pairs.is_empty() { "" } else { "," };
        pairs += &format!("{separator}{}", Value::from(line));
    }
    Ok(pairs)
}

/// A tokenizer.json of an object that lacks its model, the model that lacks its vocabulary, that as
/// it stands (a tree of it would take more memory than all else), and its pairs.
pub(crate) fn put_together(
    folder: &Path,
    [around, model, vocabulary, pairs]: [&str; 4],
) -> TokenizerFile {
    let file = format!(
        "{},\"model\":{},\"vocab\":{vocabulary},\"merges\":[{pairs}]}}}}",
        around.strip_suffix('}').unwrap_or_default(),
        model.strip_suffix('}').unwrap_or_default(),
    );
    TokenizerFile::new(folder.join("vocab.json"), file.into_bytes())
}
