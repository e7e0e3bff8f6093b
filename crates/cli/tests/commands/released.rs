//! A checkpoint that was released, beside what `transformers` gives in float32
//! (`bench/released.py`).

use crate::common::{megabytes, outsize, report, with_tiles};

/// The file, which `.ci/run` fetches.
const FILE: &str = "OUTSIZE_RELEASED";
const LICENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../LICENSE-APACHE");

/// What SmolLM2-135M-Instruct in Q4_1 takes to be the likeliest.
const LIKELIEST: &str = " the Eiffel Tower.\n\nThe Eiffel Tower is a iconic symbol of Paris and a testament to the \
    ingenuity and craftsmanship of the French people. It's also a symbol of the city's architectural heritage and a symbol of \
    the city's cultural identity.\n\nThe Eiffel Tower is a symbol of the city's";
const PERPLEXITY: f64 = 17.645_044;

#[test]
fn a_released_checkpoint_says_what_it_says_elsewhere() {
    let Some(file) = std::env::var_os(FILE) else {
        println!("SKIPPED: {FILE} names no SmolLM2-135M-Instruct.Q4_1.gguf");
        return;
    };
    let file = file.to_str().unwrap();
    let prompt = "The capital of France is Paris. Its most famous monument is";
    for most in [115, 400] {
        let budget = &megabytes(most);
        let run = ["run", file, "--prompt", prompt, "--max-new-tokens", "64", "--temperature", "0"];
        let said = report(&outsize(&[&run[..], &["--json", "--max-memory", budget]].concat()));
        assert_eq!(said["text"], LIKELIEST, "{budget}");
        let perplexity = ["perplexity", file, LICENCE, "--context", "512", "--json"];
        let scored = report(&outsize(&[&perplexity[..], &["--max-memory", budget]].concat()));
        assert_eq!(scored["scored_tokens"], 1971);
        let off = scored["perplexity"].as_f64().unwrap() / PERPLEXITY - 1.0;
        assert!(off.abs() < 1e-5, "{budget}: {off:e}");
        for report in [said, scored] {
            let peak = report["peak_rss_bytes"].as_u64().unwrap();
            assert!(peak <= with_tiles(most) * 1_000_000, "{budget}: {peak}");
        }
    }
}
