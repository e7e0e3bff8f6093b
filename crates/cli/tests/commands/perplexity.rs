//! `outsize perplexity`: what `transformers` finds (`scripts/fixtures/perplexity.py`), in any
//! budget and any batch.

use crate::common::{
    done, failed, folder, megabytes, outsize, path, report, tiny, tiny_of, with_tiles,
};
use serde_json::Value;
use std::path::Path;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/demo");
const TEXT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../LICENSE-MIT");

fn perplexity(model: &str, text: &str, more: &[&str]) -> Value {
    report(&outsize(&[&["perplexity", model, text, "--json"], more].concat()))
}

#[test]
fn it_is_what_transformers_finds_wherever_weights_are() {
    let expected = include_str!("../fixtures/perplexity.json");
    let expected: Vec<Value> = serde_json::from_str(expected).unwrap();
    for expected in &expected {
        let [context, stride] = ["context", "stride"].map(|field| expected[field].to_string());
        let windows = ["--context", &context, "--stride", &stride];
        let mut bits = Vec::new();
        let little = megabytes(64);
        for more in [&[][..], &["--batch", "3"], &["--batch", "12", "--max-memory", &little]] {
            let found = perplexity(MODEL, TEXT, &[&windows[..], more].concat());
            assert_eq!(found["scored_tokens"], expected["tokens"]);
            let of = |value: &Value| value["perplexity"].as_f64().unwrap();
            let off = of(&found) / of(expected) - 1.0;
            assert!(off.abs() < 1e-5, "{windows:?}: {off:e}");
            bits.push(of(&found).to_bits());
            if more.len() > 2 {
                let peak = found["peak_rss_bytes"].as_u64().unwrap();
                assert!(peak <= with_tiles(64) * 1_000_000, "{peak}");
            }
        }
        assert_eq!(bits[1], bits[0]);
        assert_eq!(bits[2], bits[0]);
    }
    // As text.
    let said = done(&outsize(&["perplexity", MODEL, TEXT, "--context", "64"]));
    assert!(said.starts_with("perplexity 534.88"), "{said}");
    assert!(said.contains("6.2820 nats per token"), "{said}");
}

#[test]
fn a_large_vocabulary_takes_no_more_memory() {
    let dir = folder();
    // All logits of a window would be 256 MB.
    let model = tiny_of(&dir, "many", 1_000_000);
    // Whose tokenizer takes more than all else.
    std::fs::copy(tiny(&dir).join("tokenizer.json"), model.join("tokenizer.json")).unwrap();
    let text = dir.path().join("text");
    std::fs::write(&text, "Once upon a time there was a text. ".repeat(4)).unwrap();
    let refused = ["perplexity", path(&model), path(&text), "--max-memory", "cpu=1MB"];
    let refused = failed(&outsize(&refused), 1);
    let (_, least) = refused.split_once("at least cpu=").expect(&refused);
    let least: u64 = least.split(' ').next().unwrap().parse().unwrap();
    let budget = format!("cpu={least}");
    let found = perplexity(path(&model), path(&text), &["--max-memory", &budget]);
    let peak = found["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak <= least && peak < 100_000_000, "{peak} of {least}");
}

#[test]
fn what_is_wrong_is_said() {
    let dir = folder();
    let model = tiny(&dir);
    let file = |name: &str, bytes: &[u8]| {
        let file = dir.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        file
    };
    let [empty, one, latin, long] = [
        file("empty", b""),
        file("one", b"a"),
        file("latin", b"caf\xe9"),
        file("long", &b"word ".repeat(1_000_000)),
    ];
    let fails = |text: &Path, more: &[&str], status: i32| {
        failed(&outsize(&[&["perplexity", path(&model), path(text)], more].concat()), status)
    };
    assert!(fails(&empty, &[], 2).contains("the text has one token at most"));
    assert!(fails(&one, &[], 2).contains("only a token behind another"));
    assert!(fails(&latin, &[], 1).contains("latin: it is not UTF-8 from byte 3 on"));
    assert!(fails(&dir.path().join("none"), &[], 1).contains("none: No such file"));
    assert!(fails(&long, &["--context", "1"], 2).contains("--context: a window has one token"));
    let stride = fails(&long, &["--context", "8", "--stride", "9"], 2);
    assert!(stride.contains("--stride 9 is more than the 8 tokens of a window"), "{stride}");
    let budget = fails(&long, &["--max-memory", "cpu=100MB"], 1);
    assert!(budget.contains("most that can be tokenized in this budget"), "{budget}");
    assert!(fails(&one, &["--context", "65"], 2).contains("--context 65"));
}
