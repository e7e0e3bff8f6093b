//! Text to token ids and back.

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use llguidance::ParserFactory;
use outsize_checkpoint::read_object;
use serde_json::{Map, Value};
use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::ModelWrapper;

use crate::error::{Error, Result};
use crate::growth::Rewriting;
use crate::json_value::bad_key;
use crate::shield::shielded;
use crate::text_stream::TextStream;
use crate::token_trie::{CONSTRAINT_BYTES, Spelling, constraints, token_bytes, trie_memory};
use crate::tokenizer_file::TokenizerFile;
use crate::tokenizer_parsing::parse;

/// The tokenizer of a checkpoint: tokenizer.json, and from tokenizer_config.json what that leaves
/// open.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// What stands around a text where tokenizer.json puts nothing there.
    around: Option<Around>,
    /// Tokens spelled `<0x41>` are bytes, and a run of them is decoded together.
    byte_fallback: bool,
    /// Made once a text is constrained.
    constraints: OnceLock<ParserFactory>,
}

/// The special tokens before and after a text.
#[derive(Debug, Clone, Copy)]
struct Around {
    bos: Option<u32>,
    eos: Option<u32>,
}

impl Tokenizer {
    /// Reads the tokenizer of the checkpoint in `folder`.
    ///
    /// tokenizer.json decides which special tokens surround a text. Only if it adds none,
    /// `add_bos_token` and `add_eos_token` of tokenizer_config.json are heard where they are true.
    /// (transformers 4 heard them for some kinds of tokenizer; 5 never does if there is a
    /// tokenizer.json.) Truncation, padding and dropout stored in tokenizer.json belong to its
    /// training and are not applied.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`] without a tokenizer.json; files that cannot be read, are too large
    /// (256 MiB for tokenizer.json, 16 MiB for its configuration) or broken; a `bos_token` or
    /// `eos_token` that is wanted and unknown.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Self::load(TokenizerFile::read(folder)?)
    }

    /// The same of a file that is read already.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn load(file: TokenizerFile) -> Result<Self> {
        let TokenizerFile { path, bytes } = file;
        let refused = |reason: String| Error::BadTokenizer { path: path.clone(), reason };
        // A download that was cut off is told here, with the place; the library's own message would
        // be about one of its types.
        let rewriting: Rewriting =
            serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()))?;
        rewriting.check().map_err(refused)?;
        let inner = shielded(|| {
            let mut inner = parse(&bytes)?;
            inner.with_padding(None).with_truncation(None)?;
            if let ModelWrapper::BPE(bpe) = inner.get_model()
                && bpe.dropout.is_some()
            {
                let mut bpe = bpe.clone();
                bpe.dropout = None;
                inner.with_model(bpe);
            }
            Ok(inner)
        });
        let inner = inner.map_err(refused)?;

        let config_path = path.with_file_name("tokenizer_config.json");
        let config = read_object(&config_path)?.unwrap_or_default();
        let alone = shielded(|| {
            let count = |special| inner.encode_fast("", special).map(|encoding| encoding.len());
            Ok(count(true)? == count(false)?)
        });
        let around = match alone.map_err(refused)? {
            true => Some(around(&config, &config_path, &inner)?),
            false => None,
        };
        let byte_fallback = inner.get_decoder().is_some_and(has_byte_fallback);
        Ok(Self { inner, around, byte_fallback, constraints: OnceLock::new() })
    }

    /// The tokens of `text`, and around them the special tokens that the model expects if
    /// `add_special_tokens`. Special tokens spelled out in the text are recognised either way; so a
    /// text that begins with one gets a second one in front, as in transformers.
    ///
    /// # Errors
    /// [`Error::Encode`], for a text with characters that the vocabulary lacks and has no unknown
    /// token for.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let encoding = shielded(|| self.inner.encode_fast(text, add_special_tokens))
            .map_err(|reason| Error::Encode { reason })?;
        let ids = encoding.get_ids().iter().copied();
        let around = self.around.filter(|_| add_special_tokens);
        let bos = around.and_then(|around| around.bos);
        let eos = around.and_then(|around| around.eos);
        Ok(bos.into_iter().chain(ids).chain(eos).collect())
    }

    /// The text of `ids`, without special tokens if `skip_special_tokens`. Added tokens that are
    /// not special are text. Ids beyond the vocabulary are left out: models often have more rows in
    /// their embedding than their tokenizer has tokens. Bytes that are not UTF-8 become U+FFFD.
    /// Spaces before punctuation stay: `clean_up_tokenization_spaces`, which transformers hears for
    /// tokenizers that are not BPE, is not applied.
    ///
    /// # Errors
    /// [`Error::Decode`], if the tokenizer's decoder refuses the tokens.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        // The decoder of BPE fails without any token, where overflow is checked.
        if ids.iter().all(|id| self.role(*id, skip_special_tokens) == Role::Nothing) {
            return Ok(String::new());
        }
        shielded(|| self.inner.decode(ids, skip_special_tokens))
            .map_err(|reason| Error::Decode { reason })
    }

    /// Starts to turn tokens into text one at a time; see [`decode`](Self::decode).
    pub fn stream(&self, skip_special_tokens: bool) -> TextStream<'_> {
        TextStream::new(Some(self), skip_special_tokens, &[])
    }

    /// Checks that a model of `vocab_size` tokens has all of `ids`.
    ///
    /// # Errors
    /// [`Error::OutOfVocabulary`] for the first that it does not have.
    pub fn check(&self, ids: &[u32], vocab_size: usize) -> Result<()> {
        match ids.iter().find(|id| **id as usize >= vocab_size) {
            Some(&id) => Err(Error::OutOfVocabulary {
                id,
                token: self.inner.id_to_token(id).unwrap_or_default(),
                vocab_size,
            }),
            None => Ok(()),
        }
    }

    /// How many tokens there are, special ones included. A model's own vocabulary may be larger.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The id of a token as spelled in tokenizer.json.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// What constraining texts takes at most, in bytes: for all of them, and for each of as many as
    /// grow at once.
    pub fn constraint_memory(&self, texts: usize) -> u64 {
        let tokens = 0..self.vocab_size() as u32;
        let bytes = tokens.filter_map(|id| Some(self.inner.id_to_token(id)?.len() as u64)).sum();
        trie_memory(self.vocab_size() as u64, bytes) + texts as u64 * CONSTRAINT_BYTES
    }

    /// What makes constraints for texts of these tokens.
    pub(crate) fn constraints(&self) -> Result<&ParserFactory> {
        if let Some(constraints) = self.constraints.get() {
            return Ok(constraints);
        }
        let refused = |reason: String| Error::Constraint { reason };
        let spelling = self.spelling().ok_or_else(|| {
            refused("the tokens of this model's tokenizer cannot be told as bytes".to_owned())
        })?;
        // A special one is no text.
        let bytes = |id: u32| match self.is_special(id) {
            true => Vec::new(),
            false => self.spelled(id, spelling),
        };
        let made = shielded(|| {
            let tokens: Vec<Vec<u8>> = (0..self.vocab_size() as u32).map(bytes).collect();
            constraints(&tokens)
        });
        let made = made.map_err(refused)?;
        Ok(self.constraints.get_or_init(|| made))
    }

    /// The bytes of a token's text, by itself: a part of a character may be all there is. Those of
    /// special tokens are their names. Of a tokenizer whose tokens cannot be told as bytes it is
    /// the text that the token has alone.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        match self.spelling() {
            Some(spelling) => self.spelled(id, spelling),
            None => self.decode(&[id], false).unwrap_or_default().into_bytes(),
        }
    }

    /// Whether a token is no text, but begins or ends something.
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder().get(&id);
        added.is_some_and(|added| added.special)
    }

    fn spelling(&self) -> Option<Spelling> {
        self.inner.get_decoder().and_then(spelling)
    }

    fn spelled(&self, id: u32, spelling: Spelling) -> Vec<u8> {
        match self.inner.get_added_vocabulary().get_added_tokens_decoder().get(&id) {
            Some(added) => added.content.clone().into_bytes(),
            None => token_bytes(&self.inner.id_to_token(id).unwrap_or_default(), spelling),
        }
    }

    /// What a token adds to the text.
    pub(crate) fn role(&self, id: u32, skip_special_tokens: bool) -> Role {
        let Some(token) = self.inner.id_to_token(id) else {
            return Role::Nothing;
        };
        if self.inner.get_added_vocabulary().is_special_token(&token) && skip_special_tokens {
            Role::Nothing
        } else if self.byte_fallback && is_byte(&token) {
            Role::Byte
        } else {
            Role::Text
        }
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The vocabulary would fill screens.
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("around", &self.around)
            .finish_non_exhaustive()
    }
}

/// What a token adds to the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// An unknown token, or a special one that is not shown: decoding passes over it.
    Nothing,
    /// One byte, decoded together with the bytes next to it.
    Byte,
    /// Anything else.
    Text,
}

/// The special tokens that the configuration puts around a text.
fn around(
    config: &Map<String, Value>,
    path: &Path,
    inner: &tokenizers::Tokenizer,
) -> Result<Around> {
    let wanted = |flag: &'static str, key: &'static str| -> Result<Option<u32>> {
        match config.get(flag) {
            Some(Value::Bool(true)) => special_token(config, path, inner, flag, key),
            None | Some(Value::Null | Value::Bool(false)) => Ok(None),
            Some(value) => Err(bad_key(path, flag, value, "true, false or null")),
        }
    };
    Ok(Around {
        bos: wanted("add_bos_token", "bos_token")?,
        eos: wanted("add_eos_token", "eos_token")?,
    })
}

/// The id of the token under `key`, which `flag` asks for. Nothing is put where the key has no
/// token.
fn special_token(
    config: &Map<String, Value>,
    path: &Path,
    inner: &tokenizers::Tokenizer,
    flag: &'static str,
    key: &'static str,
) -> Result<Option<u32>> {
    let value = match config.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(value) => value,
    };
    // A token is written as a string, or as an object with its content and how it is matched.
    let token = match value {
        Value::Object(object) => object.get("content").and_then(Value::as_str),
        value => value.as_str(),
    };
    let Some(token) = token else {
        return Err(bad_key(path, key, value, "a token or null"));
    };
    match inner.token_to_id(token) {
        Some(id) => Ok(Some(id)),
        None => {
            Err(Error::UnknownSpecial { path: path.to_owned(), flag, key, token: token.to_owned() })
        }
    }
}

/// How tokens spell bytes, by what turns them into text.
fn spelling(decoder: &DecoderWrapper) -> Option<Spelling> {
    match decoder {
        DecoderWrapper::ByteLevel(_) => Some(Spelling::ByteLevel),
        DecoderWrapper::ByteFallback(_) | DecoderWrapper::Metaspace(_) => {
            Some(Spelling::SentencePiece)
        }
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().find_map(spelling),
        _ => None,
    }
}

fn has_byte_fallback(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteFallback(_) => true,
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(has_byte_fallback),
        _ => false,
    }
}

/// Whether a token spells a byte as sentencepiece does: `<0x41>`.
fn is_byte(token: &str) -> bool {
    token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok())
}
