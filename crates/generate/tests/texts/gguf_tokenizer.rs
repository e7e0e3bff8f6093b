//! Tokenizers of GGUF files against llama.cpp (`scripts/fixtures/gguf_tokenizers.py`).

use std::collections::BTreeMap;
use std::path::Path;

use outsize_generate::Tokenizer;

#[derive(serde::Deserialize)]
struct Encoded {
    text: String,
    ids: Vec<u32>,
    plain: Vec<u32>,
}

#[test]
fn texts_become_the_tokens_of_llama_cpp() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf");
    let expected = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let expected: BTreeMap<String, Vec<Encoded>> = serde_json::from_str(&expected).unwrap();
    assert_eq!(expected.len(), 37);
    for (name, texts) in expected {
        let tokenizer = Tokenizer::open(folder.join(format!("{name}.gguf"))).unwrap();
        assert!(texts.len() > 8, "{name}: {} texts", texts.len());
        for Encoded { text, ids, plain } in texts {
            assert_eq!(tokenizer.encode(&text, true).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(tokenizer.encode(&text, false).unwrap(), plain, "{name}: {text:?}");
            // Behind special tokens, a space that was put in front stays.
            if !text.contains('<') {
                assert_eq!(tokenizer.decode(&plain, false).unwrap(), text, "{name}");
            }
        }
    }
}
