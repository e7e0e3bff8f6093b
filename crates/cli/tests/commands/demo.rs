//! `outsize demo`, which makes its model once.

use crate::common::{done, folder, report, start};

#[test]
fn two_at_once_make_one_model() {
    let cache = folder();
    let demos = [(); 2].map(|()| start(cache.path(), &["demo"]));
    let shown = demos.map(|demo| done(&demo.wait_with_output().unwrap()));
    for text in &shown {
        for part in ["1 empty model", "3 plan", "5 run         Once upon a time", "tokens/s"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    assert_eq!(shown.iter().filter(|text| text.starts_with("Making a model")).count(), 1);
    let left: Vec<_> =
        cache.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["llama-demo"]);
}

#[test]
fn a_trained_model_writes_sentences() {
    let cache = folder();
    let demo = start(cache.path(), &["demo", "--text", "--json"]);
    let report = report(&demo.wait_with_output().unwrap());
    let budget = report["placement"]["budget"]["cpu"].as_u64().unwrap();
    assert!(report["peak_rss_bytes"].as_u64().unwrap() <= budget, "{report}");
    let text = report["text"].as_str().unwrap();
    let common = ["the", "and", "of", "that", "to", "in", "he", "shall", "unto", "for", "I", "his"];
    let words: Vec<&str> = text.split_whitespace().collect();
    let known = words.iter().filter(|word| common.contains(word)).count();
    assert!(words.len() > 40 && 4 * known > words.len(), "a quarter of it is common: {text}");
}
