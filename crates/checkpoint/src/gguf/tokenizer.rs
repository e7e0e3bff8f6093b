//! A `tokenizer.json` and a `tokenizer_config.json` from the metadata of a GGUF file.

mod pre_tokenizer;

use std::collections::HashMap;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use self::pre_tokenizer::{byte_level, pre_tokenizer, split};
use super::fault::GgufFault;
use super::header::{GgufHeader, metadata};
use super::value::GgufValue;

const MODEL: &str = "tokenizer.ggml.model";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";

/// A tokenizer of byte pairs of text itself, in which spaces are written otherwise.
const GEMMA4: &str = "gemma4";

/// Bytes of text that all pairs of tokens that are merged may have. Those of 256k tokens have about
/// 10 MB.
const MAX_MERGES: usize = 64 << 20;

/// The most tokens. Real vocabularies have less than a third.
const MAX_TOKENS: usize = 1 << 20;

/// The most bytes that are looked up to find those pairs. 256k tokens take less than a hundredth.
const MAX_LOOKED_UP: usize = 1 << 32;

/// Types of tokens, in the format.
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const BYTE: i64 = 6;

/// Tokens that end an answer although the file names another one, as in llama.cpp.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    END_OF_MESSAGE,
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    RETURN,
    "<|call|>",
];

/// Of gpt-oss, whose answers are several messages.
const RETURN: &str = "<|return|>";

/// This ends an answer, but where there is the one above.
const END_OF_MESSAGE: &str = "<|end|>";

#[derive(Serialize)]
struct TokenizerJson<'a> {
    version: &'static str,
    added_tokens: Vec<AddedToken<'a>>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Bpe<'a>,
}

#[derive(Serialize)]
struct AddedToken<'a> {
    id: usize,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
struct Bpe<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    unk_token: Option<&'a str>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    #[serde(serialize_with = "numbered")]
    vocab: &'a [&'a str],
    merges: Merges<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Merges<'a> {
    Texts(Vec<&'a str>),
    Pairs(Vec<(&'a str, &'a str)>),
}

fn numbered<S: Serializer>(tokens: &&[&str], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(tokens.iter().zip(0usize..))
}

/// The text of a `tokenizer.json`; `None` if the file has no tokenizer.
pub(super) fn json(header: &GgufHeader) -> Result<Option<Vec<u8>>, GgufFault> {
    let Some(model) = header.text(MODEL)?.filter(|model| !["none", "no_vocab"].contains(model))
    else {
        return Ok(None);
    };
    let missing = |key| metadata(key, "it is missing".to_owned());
    let tokens = header.texts(TOKENS)?.ok_or_else(|| missing(TOKENS))?;
    if tokens.len() > MAX_TOKENS {
        return Err(metadata(TOKENS, format!("there are over {MAX_TOKENS} tokens")));
    }
    let types = types(header, tokens.len())?;
    let is_of = |kind| types.contains(&kind);
    let mut json = TokenizerJson {
        version: "1.0",
        added_tokens: added(&tokens, &types),
        normalizer: Value::Null,
        pre_tokenizer: Value::Null,
        post_processor: around(header, &tokens)?,
        decoder: Value::Null,
        model: Bpe {
            kind: "BPE",
            unk_token: None,
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: false,
            vocab: &tokens,
            merges: Merges::Texts(Vec::new()),
        },
    };
    let unknown = types.iter().position(|kind| *kind == UNKNOWN);
    let unknown = unknown.and_then(|at| tokens.get(at).copied());
    match model {
        "gpt2" => {
            let pre = pre_tokenizer(header)?;
            json.normalizer = if pre.nfc { json!({ "type": "NFC" }) } else { Value::Null };
            json.pre_tokenizer = pre.json();
            json.decoder = byte_level(true);
            json.model.ignore_merges = pre.ignore_merges;
            let merges = header.texts(MERGES)?.ok_or_else(|| missing(MERGES))?;
            json.model.merges = Merges::Texts(merges);
        }
        GEMMA4 => {
            json.model.unk_token = unknown;
            json.model.fuse_unk = true;
            json.model.byte_fallback = is_of(BYTE);
            let merges = header.texts(MERGES)?.ok_or_else(|| missing(MERGES))?;
            json.model.merges = Merges::Texts(merges);
            (json.normalizer, json.decoder) = spaces(false);
            // No pair goes over the end of a line.
            json.pre_tokenizer = split(r"[^\n]+|[\n]+");
        }
        "llama" => {
            json.model.unk_token = unknown;
            json.model.fuse_unk = true;
            json.model.byte_fallback = is_of(BYTE);
            let number = |value| match value {
                GgufValue::F32(score) => Some(score),
                _ => None,
            };
            let scores = header.array(SCORES, "an array of F32", number)?;
            let scores = scores.ok_or_else(|| missing(SCORES))?;
            same_length(SCORES, scores.len(), tokens.len())?;
            json.model.merges = Merges::Pairs(merges(&tokens, &types, &scores)?);
            let prefix = header.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
            (json.normalizer, json.decoder) = spaces(prefix);
        }
        other => {
            let reason = format!(
                "tokenizers of type {other:?} are not built in: gpt2, llama and {GEMMA4} are"
            );
            return Err(metadata(MODEL, reason));
        }
    }
    if header.get("tokenizer.ggml.precompiled_charsmap").is_some() {
        let reason = "a normalizer of its own is not built in".to_owned();
        return Err(metadata("tokenizer.ggml.precompiled_charsmap", reason));
    }
    // Texts and numbers are all that is in it.
    Ok(serde_json::to_vec(&json).ok())
}

/// Whether a text begins with its special token, and whether it ends with one.
fn surrounds(header: &GgufHeader) -> Result<[bool; 2], GgufFault> {
    let model = header.text(MODEL)?;
    let unless_said = match model {
        Some("llama") => true,
        Some("gpt2") => pre_tokenizer(header)?.begins,
        _ => false,
    };
    let flag = |name: &str, absent| {
        header.flag(&format!("tokenizer.ggml.{name}")).map(|flag| flag.unwrap_or(absent))
    };
    // A text of Gemma 4 begins with it whatever the file says.
    let begins = model == Some(GEMMA4) || flag("add_bos_token", unless_said)?;
    Ok([begins, flag("add_eos_token", false)?])
}

/// The special token of that name: its id and how it is spelled.
fn special_token<'a>(
    header: &GgufHeader,
    tokens: &[&'a str],
    name: &str,
) -> Option<(u64, &'a str)> {
    let id = special_id(header, name)?;
    Some((id, *tokens.get(usize::try_from(id).ok()?)?))
}

/// What puts special tokens around a text. transformers hears nothing else.
fn around(header: &GgufHeader, tokens: &[&str]) -> Result<Value, GgufFault> {
    let [begins, ends] = surrounds(header)?;
    let token = |name, wanted: bool| special_token(header, tokens, name).filter(|_| wanted);
    let (bos, eos) = (token("bos", begins), token("eos", ends));
    if bos.or(eos).is_none() {
        return Ok(Value::Null);
    }
    let special = |(_, token): (u64, &str)| json!({"SpecialToken": {"id": token, "type_id": 0}});
    let text = |name: &str| {
        let text = json!({"Sequence": {"id": name, "type_id": 0}});
        bos.map(special).into_iter().chain([text]).chain(eos.map(special)).collect::<Vec<_>>()
    };
    let pair = [text("A"), text("B")].concat();
    let known = bos.into_iter().chain(eos).map(|(id, token)| {
        (token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]}))
    });
    Ok(json!({
        "type": "TemplateProcessing",
        "single": text("A"),
        "pair": pair,
        "special_tokens": known.collect::<serde_json::Map<_, _>>(),
    }))
}

/// The text of a `tokenizer_config.json`: what surrounds a text, and the chat template.
pub(super) fn config(header: &GgufHeader) -> Result<Vec<u8>, GgufFault> {
    let [begins, ends] = surrounds(header)?;
    let tokens = header.texts(TOKENS)?.unwrap_or_default();
    let token = |name: &str| special_token(header, &tokens, name).map(|(_, token)| token);
    let config = json!({
        "add_bos_token": begins,
        "add_eos_token": ends,
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "chat_template": header.text("tokenizer.chat_template")?,
    });
    Ok(config.to_string().into_bytes())
}

/// The ids of the token that a text begins with, and of those that end one.
pub(super) fn end_ids(header: &GgufHeader) -> [Value; 2] {
    let mut ends: Vec<u64> =
        ["eos", "eot", "eom"].iter().filter_map(|name| special_id(header, name)).collect();
    let tokens = header.texts(TOKENS).ok().flatten().unwrap_or_default();
    let types = types(header, tokens.len()).unwrap_or_default();
    let has_return = tokens.contains(&RETURN);
    let by_name = tokens.iter().zip(types).zip(0..).filter(|((token, kind), id)| {
        let ends_message = has_return && **token == END_OF_MESSAGE;
        *kind == CONTROL && ENDS.contains(token) && !ends_message && !ends.contains(id)
    });
    let by_name: Vec<u64> = by_name.map(|(_, id)| id).collect();
    ends.extend(by_name);
    [special_id(header, "bos").into(), if ends.is_empty() { Value::Null } else { ends.into() }]
}

/// The id of a token, if there is one.
pub(super) fn token_id(header: &GgufHeader, token: &str) -> Result<Option<u64>, GgufFault> {
    let place = header.texts(TOKENS)?.and_then(|all| all.iter().position(|one| *one == token));
    Ok(place.map(|id| id as u64))
}

fn special_id(header: &GgufHeader, name: &str) -> Option<u64> {
    header.unsigned(&format!("tokenizer.ggml.{name}_token_id")).ok().flatten()
}

/// The type of each of `count` tokens.
fn types(header: &GgufHeader, count: usize) -> Result<Vec<i64>, GgufFault> {
    let number = |value| match value {
        GgufValue::Signed(kind) => Some(kind),
        GgufValue::Unsigned(kind) => i64::try_from(kind).ok(),
        _ => None,
    };
    let types = header.array(TYPES, "an array of whole numbers", number)?;
    let types = types.unwrap_or_else(|| vec![NORMAL; count]);
    same_length(TYPES, types.len(), count)?;
    Ok(types)
}

fn same_length(key: &str, found: usize, wanted: usize) -> Result<(), GgufFault> {
    match found == wanted {
        true => Ok(()),
        false => {
            Err(metadata(key, format!("it has {found} entries, and there are {wanted} tokens")))
        }
    }
}

/// Tokens that are looked for in a text before anything else.
fn added<'a>(tokens: &[&'a str], types: &[i64]) -> Vec<AddedToken<'a>> {
    let tokens = tokens.iter().zip(types).enumerate();
    let added = tokens.filter(|(_, (token, kind))| {
        [CONTROL, USER_DEFINED, UNKNOWN].contains(kind) && !token.is_empty()
    });
    let token = |(id, (content, kind)): (usize, (&&'a str, &i64))| AddedToken {
        id,
        content,
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: false,
        special: *kind != USER_DEFINED,
    };
    added.map(token).collect()
}

/// How SentencePiece writes spaces: the normalizer, and the decoder. With a `prefix` one stands
/// before each piece of text between special tokens, as in llama.cpp.
fn spaces(prefix: bool) -> (Value, Value) {
    let replace =
        |from, to| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let mut normalizers = vec![replace(" ", "▁")];
    let mut decoders =
        vec![replace("▁", " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    if prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    (
        json!({ "type": "Sequence", "normalizers": normalizers }),
        json!({ "type": "Sequence", "decoders": decoders }),
    )
}

/// The pairs that SentencePiece would merge, those of the best scores first: every way to put a
/// token together from two.
///
/// # Errors
/// If their text is longer than that of any real tokenizer, or tokens are.
fn merges<'a>(
    tokens: &[&'a str],
    types: &[i64],
    scores: &[f32],
) -> Result<Vec<(&'a str, &'a str)>, GgufFault> {
    let pieces = || {
        let all = tokens.iter().copied().zip(types).zip(scores);
        all.filter(|((_, kind), _)| **kind == NORMAL).map(|((token, _), score)| (token, *score))
    };
    let known: HashMap<&str, f32> = pieces().collect();
    let (mut merges, mut bytes, mut looked_up) = (Vec::new(), 0, 0usize);
    for (piece, score) in pieces() {
        // Each way to divide it.
        looked_up = looked_up.saturating_add(piece.len().saturating_mul(piece.len()));
        if looked_up > MAX_LOOKED_UP {
            return Err(metadata(TOKENS, "they are too long".to_owned()));
        }
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if known.contains_key(left) && known.contains_key(right) {
                merges.push((score, left, right));
                bytes += piece.len();
            }
        }
        if bytes > MAX_MERGES {
            return Err(metadata(
                TOKENS,
                "there are too many ways to put them together".to_owned(),
            ));
        }
    }
    let length = |text: &str| text.chars().count();
    merges.sort_by(|(one, left, right), (other, its_left, its_right)| {
        other
            .total_cmp(one)
            .then_with(|| length(its_left).cmp(&length(left)))
            .then_with(|| length(its_right).cmp(&length(right)))
    });
    Ok(merges.into_iter().map(|(_, left, right)| (left, right)).collect())
}
