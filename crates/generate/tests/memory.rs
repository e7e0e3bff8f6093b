//! The budget holds for batches and beams: peaks of memory, each measured in a process of its own.

mod common;

use std::path::Path;
use std::process::Command;

use common::adapter::random_adapter;
use common::checkpoint::with_tokenizer;
use common::least;
use outsize_generate::{BeamSearch, GenerateOptions, PipelineBuilder, TextTask, pipeline};
use outsize_lora::{LoraConfig, ModulePattern};
use outsize_plan::{Budget, Tier};
use tempfile::TempDir;

/// Some 50 MB in bf16. Keys and values of 16 sequences of 340 tokens take 33 MB.
const DECODER: &str = r#"{"model_type": "llama", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 6000, "max_position_embeddings": 512}"#;

/// Some 60 MB in bf16. Keys and values of 16 prompts of 300 tokens take 79 MB.
const ENCODER: &str = r#"{"model_type": "t5", "d_model": 512, "d_ff": 2048, "d_kv": 64, "num_layers": 4, "num_heads": 8,
    "vocab_size": 6000, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false, "decoder_start_token_id": 0}"#;

/// Some 35 MB, and keys and values of 4 MB.
const DRAFT: &str = r#"{"model_type": "llama", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 6000, "max_position_embeddings": 512}"#;

fn builder(
    folder: &str,
    task: TextTask,
    [texts, beams]: [usize; 2],
    bytes: u64,
) -> PipelineBuilder<TextTask> {
    let mut budget = Budget::default();
    budget.set(Tier::Cpu, bytes);
    let context = if task == TextTask::TextGeneration { 340 } else { 30 };
    let builder = pipeline(task, folder);
    let builder = match std::env::var("OUTSIZE_CHILD_DRAFT") {
        Ok(draft) => builder.draft_model(draft, 7),
        Err(_) => builder,
    };
    let builder = match std::env::var("OUTSIZE_CHILD_ADAPTER") {
        Ok(adapter) => builder.adapter(adapter),
        Err(_) => builder,
    };
    builder
        .context(context)
        .prompt_tokens(300)
        .batch_size(texts)
        .num_beams(beams)
        .max_memory(budget)
}

#[test]
fn child() {
    let Ok(folder) = std::env::var("OUTSIZE_CHILD_CHECKPOINT") else {
        return; // an ordinary test run: this is no test of its own
    };
    let [texts, beams, encodes, extra] = std::env::var("OUTSIZE_CHILD")
        .unwrap()
        .split(',')
        .map(|number| number.parse::<usize>().unwrap())
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    let task = [TextTask::TextGeneration, TextTask::Text2TextGeneration][encodes];
    let shape = [texts, beams];
    // The process grows a little between two looks at it.
    let too_small = builder(&folder, task, shape, 1).build().unwrap_err();
    let budget = least(too_small) + (1 << 20) + extra as u64;
    let mut pipe = builder(&folder, task, shape, budget).build().unwrap();
    assert!(pipe.pipeline().device_map().streamed_bytes() > 0);
    // Prompts that nearly fill the cache, of several lengths.
    let prompts: Vec<String> = (0..texts).map(|text| "x".repeat(300 - 37 * text % 200)).collect();
    let options = GenerateOptions {
        max_new_tokens: Some(20),
        eos: Some(Vec::new()),
        beams: Some(BeamSearch::new(beams)),
        ..GenerateOptions::default()
    };
    let found = pipe.generate_batch(&prompts, &options).unwrap();
    assert!(found.iter().all(|text| text.outcome.tokens.len() == 20));
    if let Some(stats) = pipe.pipeline().draft_stats() {
        assert!(stats.drafted > 0, "{stats:?}");
    }
    println!("budget={budget} peak={}", outsize_machine::peak_rss().unwrap());
}

fn run(
    folder: &Path,
    more: Option<(&str, &Path)>,
    shape: [usize; 2],
    encodes: bool,
    extra: usize,
) -> [u64; 2] {
    let [texts, beams] = shape;
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("OUTSIZE_CHILD", format!("{texts},{beams},{},{extra}", usize::from(encodes)))
        .env("OUTSIZE_CHILD_CHECKPOINT", folder)
        .envs(more)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    ["budget=", "peak="].map(|name| {
        let (_, rest) = text.split_once(name).unwrap();
        rest.split_whitespace().next().unwrap().parse().unwrap()
    })
}

#[test]
fn batches_and_beams_stay_within_the_budget() {
    for (config, encodes) in [(DECODER, false), (ENCODER, true)] {
        let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let folder = dir.path().join("model");
        with_tokenizer(&folder, config, 4.0, "{}");
        let mut budgets = Vec::new();
        for (shape, extra) in [([1, 1], 0), ([16, 1], 0), ([4, 4], 0), ([2, 8], 10 << 20)] {
            let [budget, peak] = run(&folder, None, shape, encodes, extra);
            eprintln!("{shape:?} {encodes}: budget {budget}, peak {peak}");
            assert!(peak <= budget, "{shape:?} {encodes}: {peak} > {budget}");
            budgets.push(budget);
        }
        // Keys and values of fifteen more sequences.
        assert!(budgets[2] > budgets[0] + (25 << 20), "{budgets:?}");
    }
}

#[test]
fn a_model_that_drafts_stays_within_the_budget() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [folder, draft] = ["model", "draft"].map(|name| dir.path().join(name));
    with_tokenizer(&folder, DECODER, 4.0, "{}");
    with_tokenizer(&draft, DRAFT, 4.0, "{}");
    let [alone, _] = run(&folder, None, [1, 1], false, 0);
    for extra in [0, 10 << 20] {
        let [budget, peak] =
            run(&folder, Some(("OUTSIZE_CHILD_DRAFT", &draft)), [1, 1], false, extra);
        eprintln!("with drafts: budget {budget}, peak {peak}; without {alone}");
        assert!(peak <= budget, "{peak} > {budget}");
        // All of its weights, which are held besides.
        assert!(budget > alone + (30 << 20), "{budget}, {alone} without drafts");
        assert!(peak > alone, "{peak} of {budget}, {alone} without drafts");
    }
}

#[test]
fn an_adapter_stays_within_the_budget() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (model, encodes) in [(DECODER, false), (ENCODER, true)] {
        let [folder, adapter, head] =
            ["model", "adapter", "head"].map(|name| dir.path().join(format!("{name}{encodes}")));
        with_tokenizer(&folder, model, 4.0, "{}");
        random_adapter(&adapter, model, &LoraConfig::new(64, 64.0, ModulePattern::AllLinear));
        let of_head = ModulePattern::suffixes(["lm_head"]);
        random_adapter(&head, model, &LoraConfig::new(256, 64.0, of_head));
        for shape in [[1, 1], [16, 1], [4, 4]] {
            let [alone, _] = run(&folder, None, shape, encodes, 0);
            // What is held besides: some 17 and 22 MB of matrices, and 6.7 MB.
            for (adapter, least) in [(&adapter, 16 << 20), (&head, 6 << 20)] {
                let more = Some(("OUTSIZE_CHILD_ADAPTER", adapter.as_path()));
                let [budget, peak] = run(&folder, more, shape, encodes, 0);
                eprintln!("{shape:?} {encodes}: budget {budget}, peak {peak}; without {alone}");
                assert!(peak <= budget, "{shape:?} {encodes}: {peak} > {budget}");
                assert!(budget > alone + least, "{shape:?} {encodes}: {budget}, {alone} without");
                assert!(
                    budget < alone + 8 * least,
                    "{shape:?} {encodes}: {budget}, {alone} without"
                );
            }
        }
    }
}
