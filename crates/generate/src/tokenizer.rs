//! Text to token ids and back.

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use tokenizers::decoders::DecoderWrapper;

use crate::error::{Error, Result};
use crate::json_file::{read_bounded, read_config};
use crate::text_stream::TextStream;

/// The most bytes read from a tokenizer.json. Those with 256k tokens have about 35 MB.
const TOKENIZER_LIMIT: u64 = 256 << 20;

/// The tokenizer of a checkpoint: tokenizer.json, and from tokenizer_config.json what that leaves open.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Put in front of every text that does not begin with it.
    bos: Option<u32>,
    /// Tokens spelled `<0x41>` are bytes, and a run of them is decoded together.
    byte_fallback: bool,
}

impl Tokenizer {
    /// Reads the tokenizer of the checkpoint in `folder`.
    ///
    /// tokenizer.json decides which special tokens surround a text. tokenizer_config.json is asked only for `add_bos_token`:
    /// where that is true, a text that does not begin with `bos_token` gets it. Truncation and padding stored in tokenizer.json
    /// belong to its training and are not applied.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`] without a tokenizer.json; files that cannot be read, are too large (256 MiB for tokenizer.json,
    /// 16 MiB for its configuration) or broken; a `bos_token` that is wanted and unknown.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let path = folder.join("tokenizer.json");
        let Some(bytes) = read_bounded(&path, TOKENIZER_LIMIT)? else {
            return Err(Error::NoTokenizer {
                folder: folder.to_owned(),
            });
        };
        let refused = |reason: String| Error::BadTokenizer {
            path: path.clone(),
            reason,
        };
        // A download that was cut off is told here, with the place; the library's own message would be about one of its types.
        serde_json::from_slice::<IgnoredAny>(&bytes).map_err(|error| refused(error.to_string()))?;
        let inner = shielded(|| {
            let mut inner = tokenizers::Tokenizer::from_bytes(&bytes)?;
            inner.with_padding(None).with_truncation(None)?;
            Ok(inner)
        });
        let inner = inner.map_err(refused)?;

        let config_path = folder.join("tokenizer_config.json");
        let config = read_config(&config_path)?.unwrap_or_default();
        let bos = wanted_bos(&config, &config_path, &inner)?;
        let byte_fallback = inner.get_decoder().is_some_and(has_byte_fallback);
        Ok(Self {
            inner,
            bos,
            byte_fallback,
        })
    }

    /// The tokens of `text`, with the special tokens that the model expects around it. Special tokens spelled out in the text
    /// are recognised.
    ///
    /// # Errors
    /// [`Error::Encode`], for a text with characters that the vocabulary lacks and has no unknown token for.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = shielded(|| self.inner.encode_fast(text, true))
            .map_err(|reason| Error::Encode { reason })?;
        let ids = encoding.get_ids();
        let bos = self.bos.filter(|bos| ids.first() != Some(bos));
        Ok(bos.into_iter().chain(ids.iter().copied()).collect())
    }

    /// The text of `ids`. Special tokens are left out, and so are ids beyond the vocabulary: models often have more rows in
    /// their embedding than their tokenizer has tokens. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`Error::Decode`], if the tokenizer's decoder refuses the tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        shielded(|| self.inner.decode(ids, true)).map_err(|reason| Error::Decode { reason })
    }

    /// Starts to turn tokens into text one at a time.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream::new(self)
    }

    /// How many tokens there are, special ones included. A model's own vocabulary may be larger.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The id of a token as spelled in tokenizer.json.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// What a token adds to the text.
    pub(crate) fn role(&self, id: u32) -> Role {
        let Some(token) = self.inner.id_to_token(id) else {
            return Role::Nothing;
        };
        if self.inner.get_added_vocabulary().is_special_token(&token) {
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
            .field("bos", &self.bos)
            .finish_non_exhaustive()
    }
}

/// What a token adds to the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A special or unknown token: decoding passes over it.
    Nothing,
    /// One byte, decoded together with the bytes next to it.
    Byte,
    /// Anything else.
    Text,
}

/// Calls the `tokenizers` library, which panics on some files that are valid JSON and no valid tokenizer; that becomes an error
/// with the panic's message.
fn shielded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    // Nothing half-changed is seen afterwards: the calls here only build a value of their own or read.
    match panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(payload) => Err(
            match (
                payload.downcast_ref::<String>(),
                payload.downcast_ref::<&str>(),
            ) {
                (Some(message), _) => message.clone(),
                (_, Some(message)) => (*message).to_owned(),
                _ => "the tokenizers library panicked".to_owned(),
            },
        ),
    }
}

/// The token that `add_bos_token` asks for, if it does.
fn wanted_bos(
    config: &Map<String, Value>,
    path: &Path,
    inner: &tokenizers::Tokenizer,
) -> Result<Option<u32>> {
    if config.get("add_bos_token") != Some(&Value::Bool(true)) {
        return Ok(None);
    }
    // A token is written as a string, or as an object with its content and how it is matched.
    let token = match config.get("bos_token") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(object)) => object.get("content").and_then(Value::as_str),
        Some(value) => value.as_str(),
    };
    let Some(token) = token else {
        return Err(Error::BadKey {
            path: path.to_owned(),
            key: "bos_token",
            found: config
                .get("bos_token")
                .map(Value::to_string)
                .unwrap_or_default(),
            expected: "a token or null",
        });
    };
    match inner.token_to_id(token) {
        Some(id) => Ok(Some(id)),
        None => Err(Error::UnknownBos {
            path: path.to_owned(),
            token: token.to_owned(),
        }),
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
