//! Tokenizers of built-in pipelines.

use outsize_generate::byte_level_tokenizer;
use outsize_models::{Error, WeightSpec};
use serde_json::{Map, Value, json};

/// A tokenizer of single letters, as T5's is made.
pub(super) fn unigrams() -> String {
    let special = ["<pad>", "</s>", "<unk>"].map(|token| json!([token, 0.0]));
    let letters = (32..=126).filter_map(char::from_u32).map(|letter| match letter {
        // Where a word begins.
        ' ' => json!(["▁", -2.0]),
        letter => json!([letter, -3.0]),
    });
    let vocabulary: Vec<Value> = special.into_iter().chain(letters).collect();
    let added =
        [(0, "<pad>"), (1, "</s>"), (2, "<unk>")].map(|(id, content)| special_token(id, content));
    json!({
        "version": "1.0", "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "decoder": { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true },
        "model": { "type": "Unigram", "unk_id": 2, "vocab": vocabulary, "byte_fallback": false },
    })
    .to_string()
}

/// The files of a tokenizer that has as many tokens as the table of these weights, of which the
/// last ones are `special`, with a chat template.
pub(super) fn chat_tokenizer(
    folder: &str,
    weights: &[WeightSpec],
    special: &[&str],
) -> Result<[(String, String); 2], Error> {
    const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}\n{{ message.content }}\n{% endfor %}\
                            {% if add_generation_prompt %}assistant\n{% endif %}";
    let tokens = weights.first().map_or(0, |table| table.shape[0]);
    let refused = |error: outsize_generate::Error| Error::Json { message: error.to_string() };
    let others = tokens.saturating_sub(special.len());
    let tokenizer = byte_level_tokenizer(others).map_err(refused)?;
    let tokenizer = match special {
        [] => tokenizer,
        special => with_tokens(&tokenizer, others, special)?,
    };
    let config = json!({
        "chat_template": TEMPLATE, "pad_token": "</s>", "tokenizer_class": "Qwen2Tokenizer",
    });
    Ok([
        (format!("{folder}/tokenizer.json"), tokenizer),
        (format!("{folder}/tokenizer_config.json"), config.to_string()),
    ])
}

/// A tokenizer.json with more special tokens, from that id on.
pub(super) fn with_tokens(tokenizer: &str, first: usize, tokens: &[&str]) -> Result<String, Error> {
    let parsed: Result<Value, _> = serde_json::from_str(tokenizer);
    let mut tokenizer = parsed.map_err(|error| Error::Json { message: error.to_string() })?;
    if let Some(added) = tokenizer["added_tokens"].as_array_mut() {
        added.extend((first..).zip(tokens).map(|(id, token)| special_token(id, token)));
    }
    Ok(tokenizer.to_string())
}

/// A special token of a tokenizer.json.
pub(super) fn special_token(id: usize, content: &str) -> Value {
    json!({
        "id": id, "content": content, "special": true, "normalized": false,
        "single_word": false, "lstrip": false, "rstrip": false,
    })
}

/// A vocabulary of single bytes, with the special tokens where CLIP has them.
pub(super) fn vocabulary() -> String {
    let plain = (33..=126).chain(161..=172).chain(174..=255).map(char::from_u32);
    // GPT-2's letters for bytes that cannot be seen.
    let others = (256..256 + 68).map(char::from_u32);
    let letters: Vec<char> = plain.chain(others).flatten().collect();
    let alone = letters.iter().map(char::to_string);
    let last = letters.iter().map(|letter| format!("{letter}</w>"));
    let mut ids: Map<String, Value> =
        alone.chain(last).enumerate().map(|(id, token)| (token, id.into())).collect();
    ids.insert("<|startoftext|>".to_owned(), 49406.into());
    ids.insert("<|endoftext|>".to_owned(), 49407.into());
    Value::Object(ids).to_string()
}
