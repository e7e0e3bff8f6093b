//! Files of many prompts and of their results: JSON, one object a line.

use crate::error::Failure;
use outsize::generate::{Finish, TextEmbedding, TextOutcome};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The longest line that is read, in bytes.
const LONGEST: u64 = 16 << 20;

/// What every result begins with.
const BEGIN: &[u8] = b"{\"index\":";

/// One line of a file of prompts.
#[derive(Debug, Deserialize)]
pub struct PromptLine {
    /// The text to go on from.
    pub prompt: Option<String>,
    /// The text to embed.
    pub text: Option<String>,
    /// Its tokens instead.
    pub ids: Option<Vec<u32>>,
    /// What the result is known by, beside its number.
    pub id: Option<Value>,
    /// The most tokens to generate.
    pub max_new_tokens: Option<usize>,
}

/// One line of a file of results.
#[derive(Debug, Serialize)]
pub struct ResultLine<'a> {
    /// The prompt's number, counted from 0.
    pub index: usize,
    /// What the prompt is known by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a Value>,
    /// The result, or why there is none.
    #[serde(flatten)]
    pub result: PromptResult<'a>,
}

/// What came of a prompt.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum PromptResult<'a> {
    /// A text.
    Text {
        /// Tokens of the prompt, special ones included.
        prompt_tokens: usize,
        /// The generated text, up to a stop string.
        text: &'a str,
        /// The generated tokens: with the one that ended the text, or those that spell the stop
        /// string.
        tokens: &'a [u32],
        /// Why generation ended.
        finish: Finish,
        /// The stop string that ended the text.
        #[serde(skip_serializing_if = "Option::is_none")]
        stop_string: Option<&'a str>,
    },
    /// A vector.
    Embedding {
        /// Tokens of the text, with those of its prompt and special ones.
        tokens: usize,
        /// Tokens that were cut off.
        cut: usize,
        /// `[dimensions]`.
        embedding: &'a [f32],
    },
    /// No text.
    Failed {
        /// Why.
        error: String,
    },
}

impl<'a> PromptResult<'a> {
    /// A text, and how many tokens its prompt had.
    pub fn of(prompt_tokens: usize, outcome: &'a TextOutcome) -> Self {
        Self::Text {
            prompt_tokens,
            text: &outcome.text,
            tokens: &outcome.outcome.tokens,
            finish: outcome.outcome.finish,
            stop_string: outcome.stop_string.as_deref(),
        }
    }

    /// A vector.
    pub fn embedding(found: &'a TextEmbedding) -> Self {
        Self::Embedding { tokens: found.tokens, cut: found.cut, embedding: &found.values }
    }
}

/// What the lines of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinesOf {
    /// Prompts.
    Prompts,
    /// Texts to embed.
    Texts,
}

impl LinesOf {
    /// The flag that names the file.
    fn flag(self) -> &'static str {
        match self {
            Self::Prompts => "--prompts",
            Self::Texts => "--texts",
        }
    }

    /// The key of a line's text.
    fn key(self) -> &'static str {
        match self {
            Self::Prompts => "prompt",
            Self::Texts => "text",
        }
    }
}

/// The lines of a file of prompts or texts, with their numbers. Blank lines have none.
pub struct PromptLines {
    of: LinesOf,
    lines: BufReader<File>,
    path: PathBuf,
    line: usize,
    index: usize,
}

impl PromptLines {
    /// Opens the file, which is read more than once.
    pub fn open(of: LinesOf, path: &Path) -> Result<Self, Failure> {
        refuse_other_than_files(of.flag(), path)?;
        let file = File::open(path).map_err(|error| reading(path, error))?;
        Ok(Self { of, lines: BufReader::new(file), path: path.to_owned(), line: 0, index: 0 })
    }

    fn read(&mut self) -> Result<Option<(usize, PromptLine)>, Failure> {
        loop {
            let mut text = Vec::new();
            let read = (&mut self.lines).take(LONGEST).read_until(b'\n', &mut text);
            if read.map_err(|error| reading(&self.path, error))? == 0 {
                return Ok(None);
            }
            self.line += 1;
            if text.trim_ascii().is_empty() {
                continue;
            }
            let refused = |reason: String| {
                Failure::Failed(format!("{}, line {}: {reason}", self.path.display(), self.line))
            };
            if text.len() as u64 == LONGEST {
                return Err(refused(format!("it is longer than {LONGEST} bytes")));
            }
            let line: PromptLine = serde_json::from_slice(&text).map_err(|error| {
                let key = self.of.key();
                refused(format!(
                    "expected one JSON object, such as {{\"{key}\": \"Once\"}}: {error}"
                ))
            })?;
            let text = match self.of {
                LinesOf::Prompts => &line.prompt,
                LinesOf::Texts => &line.text,
            };
            if text.is_some() == line.ids.is_some() {
                return Err(refused(format!("give either \"{}\" or \"ids\"", self.of.key())));
            }
            self.index += 1;
            return Ok(Some((self.index - 1, line)));
        }
    }
}

impl Iterator for PromptLines {
    type Item = Result<(usize, PromptLine), Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// A file of results that is appended to.
pub struct ResultsFile {
    file: File,
    path: PathBuf,
    /// Whether it was there before.
    found: bool,
    /// Prompts whose results it has, and what they are known by.
    done: HashMap<usize, Option<Value>>,
    /// How many of them failed.
    failed: usize,
}

impl ResultsFile {
    /// Opens the file, made if it is not there, behind its last whole line: what a killed process
    /// left unfinished is dropped.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        refuse_other_than_files("--output", path)?;
        let found = path.symlink_metadata().is_ok();
        let opened = File::options().read(true).append(true).create(true).open(path);
        let file = opened.map_err(|error| Failure::writing(path.display(), error))?;
        // Gone: one who made it has removed it again, and what is written here would be lost.
        if file.try_lock().is_err() || !path.exists() {
            let reason = "another process is writing to it; give each an --output of its own";
            return Err(Failure::Failed(format!("{}: {reason}", path.display())));
        }
        let mut results =
            Self { file, path: path.to_owned(), found, done: HashMap::new(), failed: 0 };
        results.read()?;
        Ok(results)
    }

    fn read(&mut self) -> Result<(), Failure> {
        /// What has to be known of a line.
        #[derive(Deserialize)]
        struct Known {
            index: usize,
            id: Option<Value>,
            error: Option<IgnoredAny>,
        }
        let refused = |number: usize, reason: &dyn Display| {
            let path = self.path.display();
            let what = "it is no file of results; give another --output";
            Failure::Failed(format!("{path}, line {number}: {reason}: {what}"))
        };
        let mut lines = BufReader::new(&self.file);
        let (mut whole, mut number, mut text) = (0, 0, Vec::new());
        loop {
            text.clear();
            let read = (&mut lines).take(4 * LONGEST).read_until(b'\n', &mut text);
            let read = read.map_err(|error| reading(&self.path, error))?;
            number += 1;
            if text.last() != Some(&b'\n') {
                let len = text.len().min(BEGIN.len());
                if text[..len] != BEGIN[..len] {
                    return Err(refused(number, &"another text than a result"));
                }
                break;
            }
            let line: Known =
                serde_json::from_slice(&text).map_err(|error| refused(number, &error))?;
            self.done.insert(line.index, line.id);
            self.failed += usize::from(line.error.is_some());
            whole += read as u64;
        }
        let cut = self.file.set_len(whole);
        let cut = cut.and_then(|()| self.file.seek(SeekFrom::End(0)));
        cut.map(drop).map_err(|error| Failure::writing(self.path.display(), error))
    }

    /// Whether it has a prompt's result.
    pub fn has(&self, index: usize) -> bool {
        self.done.contains_key(&index)
    }

    /// Refuses a result that is known by something else than the prompt of its number: it is
    /// another prompt's.
    pub fn check(&self, index: usize, line: &PromptLine) -> Result<(), Failure> {
        let shown = |id: &Option<Value>| id.as_ref().map_or("none".into(), Value::to_string);
        match self.done.get(&index).filter(|id| **id != line.id) {
            Some(id) => Err(Failure::Failed(format!(
                "{}: the result of prompt {index} has the id {}, and the prompt {}: the prompts are not those that it is of; \
                 give another --output",
                self.path.display(),
                shown(id),
                shown(&line.id)
            ))),
            None => Ok(()),
        }
    }

    /// Appends a result: a whole line, at once.
    pub fn append(&mut self, line: &ResultLine<'_>) -> Result<(), Failure> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let written = self.file.write_all(&text);
        written.map_err(|error| Failure::writing(self.path.display(), error))?;
        self.failed += usize::from(matches!(line.result, PromptResult::Failed { .. }));
        Ok(())
    }

    /// That all prompts have a text.
    pub fn check_all(&self) -> Result<(), Failure> {
        let (count, path) = (self.failed, self.path.display());
        let prompts = if count == 1 { "prompt" } else { "prompts" };
        match count {
            0 => Ok(()),
            _ => Err(Failure::Failed(format!("{count} {prompts} failed: see \"error\" in {path}"))),
        }
    }
}

/// A file that was made and has no result is not left behind.
impl Drop for ResultsFile {
    fn drop(&mut self) {
        if !self.found && self.file.metadata().is_ok_and(|file| file.len() == 0) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Refuses a pipe or a device, which cannot be read twice or appended to.
fn refuse_other_than_files(flag: &str, path: &Path) -> Result<(), Failure> {
    match path.metadata() {
        Ok(found) if !found.is_file() => {
            Err(Failure::usage(format!("{flag}: {} is not a regular file", path.display())))
        }
        _ => Ok(()),
    }
}

fn reading(path: &Path, error: std::io::Error) -> Failure {
    Failure::Failed(format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_read_line_by_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prompts.jsonl");
        let read = |text: &str| -> Result<Vec<_>, Failure> {
            std::fs::write(&path, text).unwrap();
            PromptLines::open(LinesOf::Prompts, &path)?.collect()
        };
        let lines = read("{\"prompt\": \"a\", \"id\": 7}\n\n{\"ids\": [1], \"max_new_tokens\": 3}")
            .unwrap();
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[1].0, lines[1].1.max_new_tokens), (1, Some(3)));
        assert_eq!(lines[0].1.id, Some(Value::from(7)));
        for (text, said) in [
            ("{\"prompt\": \"a\"}\n{", "prompts.jsonl, line 2: expected one JSON object"),
            ("{}", "either \"prompt\" or \"ids\""),
            ("{\"prompt\": \"a\", \"ids\": []}", "either \"prompt\" or \"ids\""),
            ("\"a\"", "line 1"),
        ] {
            let Err(Failure::Failed(message)) = read(text) else { panic!("{text}") };
            assert!(message.contains(said), "{message}");
        }
    }

    #[test]
    fn results_go_on_behind_the_last_whole_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.jsonl");
        let failed = || PromptResult::Failed { error: "x".into() };
        let append = |index| {
            let mut file = ResultsFile::open(&path).unwrap();
            file.append(&ResultLine { index, id: None, result: failed() }).unwrap();
        };
        append(3);
        let whole = std::fs::read_to_string(&path).unwrap();
        assert_eq!(whole, "{\"index\":3,\"error\":\"x\"}\n");
        std::fs::write(&path, format!("{whole}{{\"index\":4,\"err")).unwrap();
        let file = ResultsFile::open(&path).unwrap();
        assert!(file.has(3) && !file.has(4));
        // One process at a time.
        assert!(ResultsFile::open(&path).is_err());
        drop(file);
        append(5);
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            whole.clone() + &whole.replace('3', "5")
        );
        for other in ["once\n", "once", "{\"a\":1}"] {
            std::fs::write(&path, other).unwrap();
            let Err(Failure::Failed(message)) = ResultsFile::open(&path) else { panic!("{other}") };
            assert!(message.contains("line 1") && message.contains("--output"), "{message}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), other);
        }
        std::fs::write(&path, "{\"in").unwrap();
        ResultsFile::open(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }

    #[test]
    fn results_of_other_prompts_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.jsonl");
        std::fs::write(&path, "{\"index\":0,\"id\":\"a\"}\n{\"index\":1}\n").unwrap();
        let results = ResultsFile::open(&path).unwrap();
        let check = |index, prompt: &str| {
            results.check(index, &serde_json::from_str(prompt).unwrap()).map_err(
                |error| match error {
                    Failure::Failed(message) => message,
                    error => panic!("{error:?}"),
                },
            )
        };
        assert_eq!(check(0, r#"{"id": "a"}"#), Ok(()));
        assert_eq!(check(1, "{}"), Ok(()));
        assert_eq!(check(2, r#"{"id": "c"}"#), Ok(()));
        for (index, prompt) in [(0, r#"{"id": "b"}"#), (0, "{}"), (1, r#"{"id": 1}"#)] {
            assert!(check(index, prompt).unwrap_err().contains("another --output"));
        }
    }

    #[test]
    fn pipes_are_refused() {
        let refused = |failure| matches!(failure, Some(Failure::Usage(_)));
        let null = Path::new("/dev/null");
        assert!(refused(PromptLines::open(LinesOf::Prompts, null).err()));
        assert!(refused(ResultsFile::open(null).err()));
    }
}
