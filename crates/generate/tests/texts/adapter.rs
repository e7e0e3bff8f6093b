//! Pipelines with an adapter: all that a pipeline does, it does with the weights that the adapter
//! makes.

use std::path::Path;

use crate::common::adapter::random_adapter;
use crate::common::checkpoint::with_tokenizer;
use outsize_generate::{
    BeamSearch, GenerateOptions, PipelineBuilder, PipelineError, TextTask, pipeline,
};
use outsize_lora::{LoraConfig, ModulePattern};
use outsize_plan::ManualMap;
use tempfile::TempDir;

const MODEL: &str = r#"{"model_type": "llama", "hidden_size": 256, "intermediate_size": 2048, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 700, "max_position_embeddings": 256}"#;

const PROMPTS: [&str; 3] = ["once upon a time", "a", "there was there was there was"];

fn builder(folder: &Path) -> PipelineBuilder<TextTask> {
    pipeline(TextTask::TextGeneration, folder).context(96)
}

/// The tokens that come after each prompt.
fn tokens(builder: PipelineBuilder<TextTask>, beams: usize) -> Vec<Vec<u32>> {
    let mut pipe = builder.build().unwrap();
    let options = GenerateOptions {
        max_new_tokens: Some(24),
        eos: Some(Vec::new()),
        beams: Some(BeamSearch::new(beams)),
        ..GenerateOptions::default()
    };
    let one = |prompt: &&str| pipe.generate_batch(&[*prompt], &options).unwrap().remove(0);
    PROMPTS.iter().map(one).map(|answer| answer.outcome.tokens).collect()
}

#[test]
fn batches_beams_drafts_and_streaming_have_the_adapter_too() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [folder, adapter] = ["model", "adapter"].map(|name| dir.path().join(name));
    with_tokenizer(&folder, MODEL, 4.0, "{}");
    random_adapter(&adapter, MODEL, &LoraConfig::new(8, 32.0, ModulePattern::AllLinear));
    let adapted = || builder(&folder).adapter(&adapter);
    let plain = tokens(builder(&folder), 1);
    let found = tokens(adapted(), 1);
    assert_ne!(found, plain);

    let mut together = adapted().batch_size(3).build().unwrap();
    let options = GenerateOptions {
        max_new_tokens: Some(24),
        eos: Some(Vec::new()),
        ..GenerateOptions::default()
    };
    let answers = together.generate_batch(&PROMPTS, &options).unwrap();
    assert!(answers.iter().zip(&found).all(|(answer, found)| answer.outcome.tokens == *found));

    // Drafts of the model without the adapter are wrong, and change nothing.
    let mut drafting = adapted().draft_model(&folder, 4).build().unwrap();
    let answer = drafting.generate_batch(&PROMPTS[..1], &options).unwrap().remove(0);
    assert_eq!(answer.outcome.tokens, found[0]);
    let stats = drafting.pipeline().draft_stats().unwrap();
    assert!(stats.accepted < stats.drafted, "{stats:?}");
    let of_itself = tokens(builder(&folder).draft_model(&folder, 4), 1);
    assert_eq!(of_itself, plain);

    let beams = tokens(adapted().num_beams(3), 3);
    assert_ne!(beams, tokens(builder(&folder).num_beams(3), 3));

    let map = ManualMap::parse(r#"{"model": "disk", "lm_head": "cpu"}"#).unwrap();
    for (beam, expected) in [(1, &found), (3, &beams)] {
        let streamed = adapted().num_beams(beam).device_map(map.clone());
        let pipe = streamed.clone().build().unwrap();
        assert!(pipe.pipeline().device_map().streamed_bytes() > 0);
        drop(pipe);
        assert_eq!(tokens(streamed, beam), *expected);
    }
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [folder, adapter] = ["model", "adapter"].map(|name| dir.path().join(name));
    with_tokenizer(&folder, MODEL, 4.0, "{}");
    let other = MODEL.replace("\"hidden_size\": 256", "\"hidden_size\": 128");
    random_adapter(&adapter, &other, &LoraConfig::new(8, 32.0, ModulePattern::AllLinear));
    let error = builder(&folder).adapter(&adapter).build().unwrap_err();
    assert!(matches!(error, PipelineError::Adapter(_)), "{error}");
    assert!(error.to_string().contains("another model"), "{error}");
    assert!(builder(&folder).adapter(dir.path()).build().is_err());
}
