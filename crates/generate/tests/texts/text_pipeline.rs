//! The front door: a task, a folder and a budget in; texts out, streamed, in batches, with beams.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::checkpoint::{fixture, with_tokenizer};
use crate::common::write;
use outsize_generate::{
    BeamSearch, EarlyStopping, Finish, GenerateOptions, PipelineBuilder, Sampling, StopStrings,
    TextOutcome, TextPipeline, TextTask, pipeline,
};
use outsize_models::KvDtype;
use outsize_plan::{Budget, ChosenBy, ManualMap, Strategy};
use tempfile::TempDir;

const DECODER: &str = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 200}"#;

const ENCODER: &str = r#"{"model_type": "t5", "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4,
    "vocab_size": 300, "decoder_start_token_id": 0}"#;

fn checkpoint(config: &str, generation: &str) -> (TempDir, std::path::PathBuf) {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("model");
    with_tokenizer(&folder, config, 12.0, generation);
    (dir, folder)
}

fn builder(folder: &Path) -> PipelineBuilder<TextTask> {
    let task = match std::fs::read_to_string(folder.join("config.json")).unwrap().contains("t5") {
        true => TextTask::Text2TextGeneration,
        false => TextTask::TextGeneration,
    };
    pipeline(task, folder).prompt_tokens(40).context(120)
}

fn new_tokens(count: usize) -> GenerateOptions {
    GenerateOptions { max_new_tokens: Some(count), ..GenerateOptions::default() }
}

fn drawn(seed: u64) -> GenerateOptions {
    let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
    GenerateOptions { sampling: Some(sampling), ..new_tokens(20) }
}

/// Times aside.
fn gist(outcome: &TextOutcome) -> (String, Option<String>, Vec<u32>, Finish) {
    let TextOutcome { text, stop_string, outcome } = outcome.clone();
    (text, stop_string, outcome.tokens, outcome.finish)
}

const PROMPTS: [&str; 5] = ["Once upon a time", "a", "Is 7 prime? Is 8?", "é中", "the end"];

#[test]
fn streams_batches_and_single_texts_are_alike() {
    for config in [DECODER, ENCODER] {
        let (_dir, folder) = checkpoint(config, "{}");
        let mut pipe = builder(&folder).build().unwrap();
        let mut batched = builder(&folder).batch_size(3).build().unwrap();
        let mut single = Vec::new();
        for (seed, prompt) in (0..).zip(PROMPTS) {
            let whole = pipe.generate(prompt, &drawn(seed)).unwrap();
            assert_eq!(whole.outcome.tokens.len(), 20);
            let parts: Vec<String> =
                pipe.stream(prompt, &drawn(seed)).unwrap().map(Result::unwrap).collect();
            assert_eq!(parts.concat(), whole.text);
            assert!(parts.len() > 3 && parts.iter().all(|part| !part.is_empty()), "{parts:?}");
            single.push(whole);
        }
        // Two groups, of three and of two.
        let options: Vec<_> = (0..5).map(drawn).collect();
        let each: Vec<_> = PROMPTS.into_iter().zip(&options).collect();
        let found = batched.generate_each(&each).unwrap();
        let gists = |outcomes: &[TextOutcome]| outcomes.iter().map(gist).collect::<Vec<_>>();
        assert_eq!(gists(&found), gists(&single));
        let greedy: Vec<_> =
            PROMPTS.iter().map(|prompt| pipe.generate(prompt, &new_tokens(9)).unwrap()).collect();
        let found = batched.generate_batch(&PROMPTS, &new_tokens(9)).unwrap();
        assert_eq!(gists(&found), gists(&greedy));
        assert!(batched.generate_batch(&[""; 0], &new_tokens(9)).unwrap().is_empty());
    }
}

#[test]
fn a_stream_that_is_dropped_leaves_nothing_behind() {
    let (_dir, folder) = checkpoint(DECODER, "{}");
    let mut pipe = builder(&folder).build().unwrap();
    let whole = pipe.generate(PROMPTS[0], &drawn(1)).unwrap();
    let before = pipe.pipeline().watch_tokens()();
    let mut parts = pipe.stream(PROMPTS[0], &drawn(1)).unwrap();
    let first = parts.next().unwrap().unwrap();
    assert!(whole.text.starts_with(&first));
    drop(parts);
    // The prompt and a few tokens were run, and no more.
    assert!(pipe.pipeline().watch_tokens()() - before < 16 + 20);
    assert_eq!(gist(&pipe.generate(PROMPTS[0], &drawn(1)).unwrap()), gist(&whole));
    let mut parts = pipe.stream(PROMPTS[0], &drawn(1)).unwrap();
    let (first, second) = (parts.next().unwrap().unwrap(), parts.next().unwrap().unwrap());
    let outcome = parts.into_outcome();
    assert_eq!((outcome.text, outcome.outcome.finish), (first + &second, Finish::Stopped));
}

#[test]
fn another_thread_may_stop_a_text() {
    let (_dir, folder) = checkpoint(DECODER, "{}");
    let flag = Arc::new(AtomicBool::new(false));
    let mut pipe = builder(&folder).stop(flag.clone()).build().unwrap();
    let mut parts = pipe.stream(PROMPTS[0], &drawn(1)).unwrap();
    parts.next().unwrap().unwrap();
    flag.store(true, Ordering::Relaxed);
    assert!(parts.next().is_none());
    assert_eq!(parts.into_outcome().outcome.finish, Finish::Stopped);
    flag.store(false, Ordering::Relaxed);
    assert_eq!(pipe.generate("a", &new_tokens(4)).unwrap().outcome.tokens.len(), 4);
}

#[test]
fn stop_strings_and_end_tokens_are_of_each_text() {
    let (_dir, folder) = checkpoint(DECODER, "{}");
    let mut pipe = builder(&folder).batch_size(4).num_beams(2).build().unwrap();
    let free = pipe.generate_batch(&PROMPTS[..3], &new_tokens(16)).unwrap();
    let stop_at = |outcome: &TextOutcome| {
        let string: String = outcome.text.chars().skip(4).take(2).collect();
        GenerateOptions { stop: Some(StopStrings::new([string]).unwrap()), ..new_tokens(16) }
    };
    let options = [
        stop_at(&free[0]),
        GenerateOptions { eos: Some(vec![free[1].outcome.tokens[3]]), ..new_tokens(16) },
        new_tokens(16),
    ];
    let each: Vec<_> = PROMPTS.into_iter().zip(&options).collect();
    let found = pipe.generate_each(&each).unwrap();
    assert_eq!(found[0].outcome.finish, Finish::StopString);
    assert!(free[0].text.starts_with(&found[0].text) && found[0].text.chars().count() <= 4);
    assert_eq!(found[1].outcome.finish, Finish::Eos);
    assert_eq!(gist(&found[2]), gist(&free[2]));
    for (row, (prompt, options)) in each.iter().enumerate() {
        assert_eq!(gist(&pipe.generate(prompt, options).unwrap()), gist(&found[row]));
    }
    // A beam ends with the string too, and is cut before it.
    let beams = |stop: Option<StopStrings>| GenerateOptions {
        stop,
        beams: Some(BeamSearch { num_return_sequences: 2, ..BeamSearch::new(2) }),
        ..new_tokens(16)
    };
    let free = pipe.beam_search(&PROMPTS[..1], &beams(None)).unwrap().remove(0);
    let string: String = free[0].text.chars().skip(3).take(1).collect();
    let stop = StopStrings::new([string.clone()]).unwrap();
    let found = pipe.beam_search(&PROMPTS[..1], &beams(Some(stop))).unwrap().remove(0);
    let ended: Vec<_> = found.iter().filter(|text| text.stop_string.is_some()).collect();
    assert!(!ended.is_empty());
    for text in ended {
        assert_eq!(text.hypothesis.finish, Finish::StopString);
        assert!(!text.text.contains(&string), "{text:?}");
    }
}

#[test]
fn beams_come_from_the_file_or_the_caller() {
    let file = r#"{"num_beams": 3, "max_new_tokens": 7, "length_penalty": 0.5, "num_return_sequences": 2}"#;
    for config in [DECODER, ENCODER] {
        let (_dir, folder) = checkpoint(config, file);
        let mut pipe = builder(&folder).batch_size(2).build().unwrap();
        assert_eq!(pipe.pipeline().cache_options().sequences(), 6);
        let defaults = GenerateOptions::default();
        let found = pipe.beam_search(&PROMPTS, &defaults).unwrap();
        assert_eq!(found.len(), 5);
        for texts in &found {
            assert!(texts.len() == 2 && texts[0].hypothesis.score >= texts[1].hypothesis.score);
            assert!(texts.iter().all(|text| text.hypothesis.tokens.len() == 7));
        }
        let best = pipe.generate_batch(&PROMPTS, &defaults).unwrap();
        let best: Vec<_> = best.iter().map(|outcome| &outcome.text).collect();
        assert_eq!(best, found.iter().map(|texts| &texts[0].text).collect::<Vec<_>>());
        // A text alone is as beside others, and as the caller spells it out.
        let spelled = BeamSearch {
            length_penalty: 0.5,
            early_stopping: EarlyStopping::Unlikely,
            ..BeamSearch::new(3)
        };
        let options = GenerateOptions { beams: Some(spelled), ..new_tokens(7) };
        assert_eq!(pipe.generate(PROMPTS[2], &options).unwrap().text, found[2][0].text);
        // Without beams as ever, beside the file; a stream needs that.
        let plain = GenerateOptions { beams: Some(BeamSearch::new(1)), ..new_tokens(7) };
        let text = pipe.generate("a", &plain).unwrap().text;
        let parts: Vec<String> = pipe.stream("a", &plain).unwrap().map(Result::unwrap).collect();
        assert_eq!(parts.concat(), text);
        let refused = |error: String| assert!(error.contains("num_beams is 3"), "{error}");
        refused(pipe.stream("a", &defaults).unwrap_err().to_string());
        refused(pipe.generate_each(&[("a", &defaults)]).unwrap_err().to_string());
        let many = GenerateOptions { beams: Some(BeamSearch::new(7)), ..new_tokens(7) };
        let error = pipe.generate("a", &many).unwrap_err().to_string();
        assert!(error.contains("num_beams is 7") && error.contains("built for 6"), "{error}");
        let drawn = GenerateOptions { beams: Some(spelled), ..drawn(1) };
        let error = pipe.generate("a", &drawn).unwrap_err().to_string();
        assert!(error.contains("does not sample"), "{error}");
        let none = GenerateOptions { max_new_tokens: Some(0), ..defaults };
        assert_eq!(pipe.generate("a", &none).unwrap().text, "");
    }
}

#[test]
fn a_pipeline_is_placed_as_it_is_asked() {
    let (_dir, folder) = checkpoint(DECODER, r#"{"do_sample": true, "temperature": 0.5}"#);
    let text = |mut pipe: TextPipeline| pipe.generate("a", &new_tokens(5)).unwrap().text;
    let expected = text(builder(&folder).build().unwrap());
    for strategy in
        [Strategy::Auto, Strategy::Sequential, Strategy::Balanced, Strategy::BalancedLow0]
    {
        let budget = Budget::parse("cpu=2GiB").unwrap();
        let pipe = builder(&folder).device_map(strategy).max_memory(budget).build().unwrap();
        assert_eq!(text(pipe), expected, "{strategy:?}");
    }
    let map = ManualMap::parse(r#"{"model": "cpu", "lm_head": "disk"}"#).unwrap();
    let pipe = builder(&folder).device_map(map).kv_dtype(KvDtype::F32).build().unwrap();
    assert_eq!(pipe.pipeline().device_map().chosen_by(), ChosenBy::Manual);
    assert_eq!(pipe.generation_config().temperature, Some(0.5));
    assert_eq!(text(pipe), expected);
    // A file of weights stands for its folder.
    let file = std::fs::read_dir(&folder).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        path.extension().is_some_and(|end| end == "safetensors").then_some(path)
    });
    let pipe = pipeline(TextTask::TextGeneration, file.unwrap()).build().unwrap();
    assert_eq!(pipe.pipeline().cache_options().context, 200);
    assert_eq!(text(pipe), expected);
}

#[test]
fn what_is_wrong_is_said() {
    let failed = |builder: PipelineBuilder<TextTask>| builder.build().unwrap_err().to_string();
    let error = failed(pipeline(TextTask::Text2TextGeneration, fixture("gpt2")));
    for part in ["gpt2 is not a model for text2text-generation", "one for text-generation"] {
        assert!(error.contains(part), "{error}");
    }
    let error = failed(pipeline(TextTask::TextGeneration, fixture("t5")));
    for part in ["t5 is not a model for text-generation", "one for text2text-generation"] {
        assert!(error.contains(part), "{error}");
    }
    let error = failed(pipeline(TextTask::TextGeneration, fixture("gpt2")));
    assert!(error.contains("tokenizer.json"), "{error}");
    let error = failed(pipeline(TextTask::TextGeneration, "/nowhere"));
    assert!(error.contains("/nowhere has no config.json"), "{error}");

    let (_dir, folder) = checkpoint(ENCODER, r#"{"decoder_start_token_id": 3}"#);
    let error = failed(builder(&folder));
    assert!(error.contains("decoder_start_token_id is 3, but 0"), "{error}");
    write(&folder, "generation_config.json", r#"{"typical_p": 0.5}"#);
    assert!(failed(builder(&folder)).contains("typical_p is 0.5"));
    write(&folder, "generation_config.json", "{}");
    let error = failed(builder(&folder).batch_size(0));
    assert!(error.contains("a batch of 0 texts"), "{error}");
    // As a file may ask.
    let error = failed(builder(&folder).num_beams(usize::MAX));
    assert!(error.contains("choose 1 to 4096"), "{error}");
    let small = builder(&folder).max_memory(Budget::parse("cpu=1MB").unwrap());
    assert!(failed(small).contains("cpu="));
    let mut pipe = builder(&folder).build().unwrap();
    let error = pipe.generate(&"a".repeat(41), &new_tokens(3)).unwrap_err().to_string();
    assert!(error.contains("prompts of 40"), "{error}");
    let error = pipe.generate("", &new_tokens(3)).unwrap_err().to_string();
    assert!(error.contains("the prompt has no tokens"), "{error}");

    let (_dir, folder) = checkpoint(DECODER, "{}");
    let error = failed(builder(&folder).context(201));
    assert!(error.contains("a context of 201 tokens"), "{error}");
    let mut pipe = builder(&folder).build().unwrap();
    let error = pipe.generate(&"a".repeat(120), &new_tokens(3)).unwrap_err().to_string();
    assert!(error.contains("raise the context above 120") && !error.contains("--"), "{error}");
    // The next text finds nothing of it.
    pipe.generate("a", &new_tokens(3)).unwrap();
}

#[test]
fn drafts_change_no_text() {
    let (_dir, folder) = checkpoint(DECODER, "{}");
    let (_other, draft) =
        checkpoint(&DECODER.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"), "{}");
    let mut plain = builder(&folder).build().unwrap();
    let mut lookup = builder(&folder).prompt_lookup(5).build().unwrap();
    let mut drafted = builder(&folder).draft_model(&draft, 3).build().unwrap();
    for options in [new_tokens(20), drawn(3)] {
        for prompt in PROMPTS {
            let expected = gist(&plain.generate(prompt, &options).unwrap());
            for pipe in [&mut lookup, &mut drafted] {
                assert_eq!(gist(&pipe.generate(prompt, &options).unwrap()), expected);
                let streamed: String =
                    pipe.stream(prompt, &options).unwrap().map(Result::unwrap).collect();
                assert_eq!(streamed, expected.0);
            }
        }
    }
    assert!(drafted.pipeline().draft_stats().unwrap().drafted > 0);
    let error = builder(&folder).prompt_lookup(5).batch_size(2).build().unwrap_err().to_string();
    assert!(error.contains("several would run side by side"), "{error}");
}
