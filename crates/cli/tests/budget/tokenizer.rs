//! The memory of tokenizers.

use crate::measured::measure;
use crate::{least, model_of};
use serde_json::{Value, json};
use std::path::Path;

/// A tokenizer.json of 150,000 tokens and as many merges; loading it takes more than 100 MB.
fn write_large_tokenizer(model: &str) {
    let letters: Vec<char> = ('a'..='z').collect();
    let mut words: Vec<String> = letters.iter().map(char::to_string).collect();
    let mut merges = Vec::new();
    let mut next = 0;
    while words.len() < 150_000 {
        let left = words[next].clone();
        next += 1;
        for letter in &letters {
            words.push(format!("{left}{letter}"));
            merges.push([left.clone(), letter.to_string()]);
        }
    }
    let vocab: serde_json::Map<String, Value> =
        words.into_iter().zip((0u32..).map(Value::from)).collect();
    let tokenizer = json!({"version": "1.0", "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges}});
    std::fs::write(Path::new(model).join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

#[test]
fn a_tokenizer_beyond_the_budget_is_refused_before_it_is_loaded() {
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let shape = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 151000,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
    });
    let model = model_of(dir.path(), &shape);
    write_large_tokenizer(&model);
    for input in [["--prompt", "hello world"], ["--ids", "1,2"]] {
        let run = |budget: u64| {
            let limit = format!("cpu={budget}");
            let arguments = ["run", &model, input[0], input[1], "--context", "64", "--max-memory"];
            measure(
                dir.path(),
                &[&arguments[..], &[&limit, "--max-new-tokens", "2"]].concat(),
                None,
            )
        };
        let refused = run(80_000_000);
        assert_eq!(refused.status, Some(1), "{}", refused.stderr);
        assert!(refused.peak_rss <= 80_000_000, "peak {}", refused.peak_rss);
        // A prompt that is text is longer than can be known.
        let budget = least(&refused.stderr) + 2_000_000;
        let done = run(budget);
        assert_eq!(done.status, Some(0), "{}", done.stderr);
        assert!(done.peak_rss <= budget, "peak {} of {budget}", done.peak_rss);
    }
}

#[test]
fn plans_and_estimates_count_the_tokenizer_as_runs_do() {
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let shape = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 30000,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
    });
    let model = model_of(dir.path(), &shape);
    let tokenizer = Path::new(&model).join("tokenizer.json");
    let config = format!("{model}/config.json");
    let said = |arguments: &[&str]| measure(dir.path(), arguments, None);
    let ids = vec!["5"; 256].join(",");
    for with_tokenizer in [true, false] {
        if !with_tokenizer {
            std::fs::remove_file(&tokenizer).unwrap();
        }
        let of = |place: &str| {
            let small = ["--must-fit", "--context", "512", "--max-memory", "cpu=1"];
            least(&said(&[&["plan", place][..], &small].concat()).stderr)
        };
        let planned = of(&model);
        assert_eq!(of(&config), planned);
        let run = |budget: u64| {
            let limit = format!("cpu={budget}");
            said(&[
                "run",
                &model,
                "--ids",
                &ids,
                "--context",
                "512",
                "--max-new-tokens",
                "2",
                "--must-fit",
                "--max-memory",
                &limit,
            ])
        };
        let done = run(planned);
        assert_eq!(done.status, Some(0), "{}", done.stderr);
        assert!(done.peak_rss <= planned, "peak {} of {planned}", done.peak_rss);
        let needed = least(&run(1).stderr);
        assert!(needed.abs_diff(planned) < 1 << 20, "run {needed}, plan {planned}");
        // A prompt of the whole context.
        for place in [&model, &config] {
            let told =
                said(&["estimate", place, "--context", "512", "--dtypes", "stored", "--json"]);
            let told: Value = serde_json::from_str(&told.stdout).unwrap();
            let long = vec!["5"; 511].join(",");
            for (figure, must_fit) in [("resident", &["--must-fit"][..]), ("least", &[])] {
                let budget = told["estimates"][0][figure].as_u64().unwrap();
                let limit = format!("cpu={budget}");
                let arguments = ["run", &model, "--ids", &long, "--context", "512", "--max-memory"];
                let more = [&limit, "--max-new-tokens", "1"];
                let done = said(&[&arguments[..], &more, must_fit].concat());
                assert_eq!(done.status, Some(0), "{figure} {budget}: {}", done.stderr);
                assert!(done.peak_rss <= budget, "{figure}: {} of {budget}", done.peak_rss);
            }
        }
    }
}
