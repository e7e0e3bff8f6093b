//! The tokenizers of text encoders: prompts to as many token ids as each reads.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use outsize_checkpoint::{read_object, shown};
use outsize_generate::{ChatMessage, ChatTemplate, ChatTemplates, Tokenizer, TokenizerFile};
use outsize_models::arch::TextFilling;
use serde_json::{Map, Value, json};

use crate::byte_level_file::byte_level_tokenizer_file;
use crate::error::Error;
use crate::tokenizer_parts::{merged_pairs, put_together, vocabulary};

/// Tokens that CLIP was trained with, where the configuration does not say.
const LENGTH: usize = 77;

/// The most tokens of a prompt that a configuration may ask for. Some write numbers beyond any
/// meaning for "no limit".
const MOST_TOKENS: u64 = 1 << 16;

/// The tokenizer of a text encoder.
#[derive(Debug)]
pub struct PromptTokenizer {
    inner: Tokenizer,
    length: usize,
    around: AroundPrompt,
    /// What fills up a text, if it is a token.
    filling: Option<TextFilling>,
}

/// What a chat template writes around a prompt, which a user says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatAround {
    /// An answer begins behind it.
    Answer {
        /// Whether that may begin with thoughts.
        thinks: bool,
    },
    /// The system says this before it, and nothing is behind it.
    System(&'static str),
}

/// What stands around a prompt.
#[derive(Debug)]
enum AroundPrompt {
    /// Tokens of beginning and end, and behind them one that fills up the length.
    Padding(u32),
    /// What a chat template writes.
    Chat(ChatTemplate, ChatAround),
    /// Texts before and behind it.
    Texts([String; 2]),
}

/// A prompt as the text encoder reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedPrompt {
    /// As many as the text encoder reads: the tokens between those of beginning and end, and
    /// padding. Within a template those of the text that it makes, without padding.
    pub ids: Vec<u32>,
    /// The text of what there was no room for.
    pub cut: Option<String>,
}

/// The files of a tokenizer, read and not parsed.
#[derive(Debug)]
pub struct PromptTokenizerFiles {
    file: TokenizerFile,
    pad: String,
    pad_path: PathBuf,
    /// Whether padding stands before a text (`padding_side`, or what is usual for the tokenizer's
    /// class).
    pads_left: bool,
    folder: PathBuf,
    length: usize,
}

impl PromptTokenizerFiles {
    /// Reads the tokenizer in `folder`: tokenizer.json, or vocab.json and merges.txt as CLIP has
    /// them; and what tokenizer_config.json and special_tokens_map.json say of its special tokens.
    ///
    /// # Errors
    /// A file that is missing, cannot be read or is damaged; a special token that is not in the
    /// vocabulary.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let config_path = folder.join("tokenizer_config.json");
        let config = read_object(&config_path)?.unwrap_or_default();
        let length = match config.get("model_max_length").and_then(Value::as_u64) {
            Some(length @ 2..MOST_TOKENS) => length as usize,
            _ => LENGTH,
        };
        let map_path = folder.join("special_tokens_map.json");
        // As in transformers: newer files say all in one place.
        let map = match config.contains_key("added_tokens_decoder") {
            true => Map::new(),
            false => read_object(&map_path)?.unwrap_or_default(),
        };
        let token = |key: &'static str, default: &str| {
            let (path, value) = match (map.get(key), config.get(key)) {
                (Some(value), _) if !value.is_null() => (&map_path, value),
                (_, Some(value)) if !value.is_null() => (&config_path, value),
                _ => return SpecialToken::new(&config_path, key, &Value::from(default)),
            };
            let added = config.get("added_tokens_decoder").and_then(Value::as_object);
            let mut added = added.into_iter().flat_map(Map::values);
            let described = added.find(|token| token["content"] == *value);
            SpecialToken::new(path, key, described.unwrap_or(value))
        };
        let pad = token("pad_token", "<|endoftext|>")?;
        let (pad_content, pad_path) = (pad.content.clone(), pad.path.clone());
        let is_of_class = |name: &str| {
            let class = config.get("tokenizer_class").and_then(Value::as_str);
            class.is_some_and(|class| class.starts_with(name))
        };
        let file = match folder.join("tokenizer.json").is_file() {
            true => TokenizerFile::read(folder)?,
            false if is_of_class("Qwen2Tokenizer") => byte_level_tokenizer_file(folder, &config)?,
            false => {
                let bos = token("bos_token", "<|startoftext|>")?;
                let eos = token("eos_token", "<|endoftext|>")?;
                assembled(folder, [bos, eos, token("unk_token", "<|endoftext|>")?, pad])?
            }
        };
        let pads_left = match config.get("padding_side").and_then(Value::as_str) {
            Some(side) => side == "left",
            // As in transformers.
            None => is_of_class("LlamaTokenizer"),
        };
        Ok(Self { file, pad: pad_content, pad_path, pads_left, folder: folder.to_owned(), length })
    }

    /// For texts of so many tokens (in a chat template of up to so many), whatever the files say.
    pub fn with_length(self, length: usize) -> Self {
        Self { length, ..self }
    }

    /// An upper bound on what loading and holding the tokenizer takes in memory, in bytes.
    pub fn memory(&self) -> u64 {
        self.file.memory()
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// Files that are no tokenizer.
    pub fn load(self) -> Result<PromptTokenizer, Error> {
        let Self { file, pad, pad_path, length, .. } = self;
        let inner = Tokenizer::load(file)?;
        let pad = inner.token_id(&pad).ok_or_else(|| not_in_vocabulary(&pad_path, &pad))?;
        Ok(PromptTokenizer { inner, length, around: AroundPrompt::Padding(pad), filling: None })
    }

    /// The tokenizer of prompts that stand in the model's chat template.
    ///
    /// # Errors
    /// Files that are no tokenizer, or no template.
    pub fn load_chat(self, around: ChatAround) -> Result<PromptTokenizer, Error> {
        let template = ChatTemplates::open(&self.folder)?.default_template()?;
        let template = match around {
            ChatAround::Answer { thinks } => template.with_flag("enable_thinking", thinks),
            ChatAround::System(_) => template,
        };
        self.load_around(AroundPrompt::Chat(template, around))
    }

    /// The tokenizer of prompts that stand between two texts.
    ///
    /// # Errors
    /// Files that are no tokenizer.
    pub(crate) fn load_between(self, texts: [String; 2]) -> Result<PromptTokenizer, Error> {
        self.load_around(AroundPrompt::Texts(texts))
    }

    fn load_around(self, around: AroundPrompt) -> Result<PromptTokenizer, Error> {
        let Self { file, pad, length, pads_left: before, .. } = self;
        let inner = Tokenizer::load(file)?;
        let token = inner.token_id(&pad);
        let filling = token.map(|token| TextFilling { token, tokens: length, before });
        Ok(PromptTokenizer { inner, length, around, filling })
    }

    /// The same of texts that are filled up.
    ///
    /// # Errors
    /// As there, and files that fill them up with what is not a token.
    pub fn load_filled_chat(self, around: ChatAround) -> Result<PromptTokenizer, Error> {
        let missing = not_in_vocabulary(&self.pad_path, &self.pad);
        let tokenizer = self.load_chat(around)?;
        tokenizer.filling.map(|_| ()).ok_or(missing)?;
        Ok(tokenizer)
    }
}

impl PromptTokenizer {
    /// Reads and loads the tokenizer in `folder`.
    ///
    /// # Errors
    /// As [`PromptTokenizerFiles::read`] and [`PromptTokenizerFiles::load`].
    pub fn open(folder: &Path) -> Result<Self, Error> {
        PromptTokenizerFiles::read(folder)?.load()
    }

    /// The tokenizer itself.
    pub(crate) fn inner(&self) -> &Tokenizer {
        &self.inner
    }

    /// Tokens of a prompt, with those of beginning and end; in a chat template the most.
    pub fn length(&self) -> usize {
        self.length
    }

    /// What fills up a text within a template, if it is a token.
    pub fn filling(&self) -> Option<TextFilling> {
        self.filling
    }

    /// The tokens of a prompt, cut or padded to [`length`](Self::length); in a chat template cut
    /// alone.
    ///
    /// # Errors
    /// What the tokenizer or the template says.
    pub fn encode(&self, text: &str) -> Result<EncodedPrompt, Error> {
        let pad = match &self.around {
            AroundPrompt::Padding(pad) => *pad,
            AroundPrompt::Chat(template, ChatAround::Answer { .. }) => {
                let written = template.render(&[ChatMessage::new("user", text)], true)?;
                return self.encode_written(text, &written, true);
            }
            AroundPrompt::Chat(template, ChatAround::System(system)) => {
                // What stands for a picture there.
                let text = text.replace("[IMG]", "");
                let said = [("system", *system), ("user", &text)];
                let said = said.map(|(role, said)| ChatMessage::new(role, said));
                // The template has the tokens that any text begins with.
                return self.encode_written(&text, &template.render(&said, false)?, false);
            }
            AroundPrompt::Texts([before, behind]) => {
                return self.encode_written(text, &format!("{before}{text}{behind}"), true);
            }
        };
        let mut ids = self.inner.encode(text, true)?;
        let mut cut = None;
        if ids.len() > self.length {
            // The last one is the token of the end.
            let rest = ids.drain(self.length - 1..ids.len() - 1).collect::<Vec<_>>();
            let text = self.inner.decode(&rest, false)?.replace("</w>", " ");
            cut = Some(text.trim().to_owned());
        }
        ids.resize(self.length, pad);
        Ok(EncodedPrompt { ids, cut })
    }

    /// The same of a prompt within what is `written` around it, and maybe special tokens around
    /// that.
    fn encode_written(
        &self,
        text: &str,
        written: &str,
        special: bool,
    ) -> Result<EncodedPrompt, Error> {
        let mut ids = self.inner.encode(written, special)?;
        if ids.len() <= self.length {
            return Ok(EncodedPrompt { ids, cut: None });
        }
        let rest = self.inner.decode(&ids.split_off(self.length), false)?;
        // Without what is written behind the prompt.
        let behind = written.rsplit_once(text.trim()).map_or("", |(_, behind)| behind);
        let cut = rest.strip_suffix(behind).map(|cut| cut.trim().to_owned());
        Ok(EncodedPrompt { ids, cut: cut.filter(|cut| !cut.is_empty()) })
    }
}

/// A special token, as a file names it.
struct SpecialToken {
    path: PathBuf,
    content: String,
    /// How it is matched, in the words of a tokenizer.json.
    flags: Value,
}

impl SpecialToken {
    /// Of the `key` of the file at `path`: a string, or an object with the content and how it is
    /// matched.
    fn new(path: &Path, key: &'static str, value: &Value) -> Result<Self, Error> {
        let Some(content) = value.get("content").unwrap_or(value).as_str() else {
            let found = shown(&value.to_string(), 80);
            let reason = format!("`{key}` is {found}, but it must be a token");
            return Err(Error::Field { path: path.to_owned(), reason });
        };
        let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or(false);
        let flags = json!({
            "special": true, "normalized": flag("normalized"), "single_word": flag("single_word"),
            "lstrip": flag("lstrip"), "rstrip": flag("rstrip"),
        });
        Ok(Self { path: path.to_owned(), content: content.to_owned(), flags })
    }

    fn id(&self, vocabulary: &HashMap<String, u32>) -> Result<u32, Error> {
        let id = vocabulary.get(&self.content).copied();
        id.ok_or_else(|| not_in_vocabulary(&self.path, &self.content))
    }
}

/// A tokenizer.json of CLIP's vocab.json and merges.txt, as transformers makes one of them.
fn assembled(folder: &Path, special: [SpecialToken; 4]) -> Result<TokenizerFile, Error> {
    let (vocabulary, ids) = vocabulary(folder)?;
    let mut added: Vec<Value> = Vec::new();
    for token in &special {
        let id = token.id(&ids)?;
        // Of two tokens of the same letters the last one counts.
        added.retain(|other| other["id"] != id);
        let mut entry = token.flags.clone();
        entry["id"] = id.into();
        entry["content"] = token.content.as_str().into();
        added.push(entry);
    }
    let [bos, eos, unknown, _] = &special;
    let (bos, eos) = ((&bos.content, bos.id(&ids)?), (&eos.content, eos.id(&ids)?));
    let pairs = merged_pairs(folder)?;
    let pattern = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";
    let around = json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "NFC" },
            { "type": "Replace", "pattern": { "Regex": r"\s+" }, "content": " " },
            { "type": "Lowercase" },
        ] },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Removed", "invert": true },
            { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        ] },
        "post_processor": {
            "type": "RobertaProcessing", "sep": eos, "cls": bos,
            "trim_offsets": false, "add_prefix_space": false,
        },
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true,
        },
    })
    .to_string();
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": unknown.content, "continuing_subword_prefix": "",
        "end_of_word_suffix": "</w>", "fuse_unk": false, "byte_fallback": false,
    })
    .to_string();
    Ok(put_together(folder, [&around, &model, &vocabulary, &pairs]))
}

fn not_in_vocabulary(path: &Path, token: &str) -> Error {
    let reason = format!("the token {:?} is not in the vocabulary", shown(token, 80));
    Error::Field { path: path.to_owned(), reason }
}
