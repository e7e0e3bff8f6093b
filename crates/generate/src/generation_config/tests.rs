use super::*;

fn open(generation: Option<&str>, config: Option<&str>) -> Result<GenerationConfig> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("generation_config.json", generation), ("config.json", config)] {
        if let Some(text) = text {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
    }
    GenerationConfig::open(folder.path())
}

fn eos(generation: Option<&str>, config: Option<&str>) -> Vec<u32> {
    open(generation, config).unwrap().eos_token_id
}

#[test]
fn one_id_a_list_or_nothing_ends_a_text() {
    assert_eq!(eos(None, Some(r#"{"eos_token_id": 2}"#)), [2]);
    let list = r#"{"eos_token_id": [128009, 128001, 128009]}"#;
    assert_eq!(eos(None, Some(list)), [128001, 128009]);
    assert_eq!(eos(Some(list), None), [128001, 128009]);
    for silent in
        [Some(r#"{"eos_token_id": null}"#), Some(r#"{"eos_token_id": -1}"#), Some("{}"), None]
    {
        assert!(eos(None, silent).is_empty(), "{silent:?}");
    }
}

#[test]
fn generation_config_comes_first_and_text_config_last() {
    let model = Some(r#"{"eos_token_id": 2}"#);
    assert_eq!(eos(Some(r#"{"eos_token_id": [7, 8]}"#), model), [7, 8]);
    assert_eq!(eos(Some("{}"), model), [2]);
    let nested = r#"{"text_config": {"eos_token_id": 106}}"#;
    assert_eq!(eos(None, Some(nested)), [106]);
    let both = r#"{"eos_token_id": 1, "text_config": {"eos_token_id": 106}}"#;
    assert_eq!(eos(None, Some(both)), [1]);
}

#[test]
fn every_field_is_read() {
    // As Llama 3 and Qwen 2 have them, and the rest.
    let config = open(
        Some(
            r#"{"bos_token_id": 128000, "pad_token_id": [5, 6], "eos_token_id": [128001, 128009], "do_sample": true,
                "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.05,
                "max_new_tokens": 12, "max_length": 4096, "stop_strings": ["\n\n", "</s>"],
                "transformers_version": "4.40.0", "use_cache": true, "cache_implementation": "hybrid",
                "num_beams": 1, "no_repeat_ngram_size": 0, "suppress_tokens": [], "typical_p": 1.0, "min_length": 0,
                "guidance_scale": null, "token_healing": false}"#,
        ),
        None,
    )
    .unwrap();
    let expected = Sampling {
        repetition_penalty: Some(1.05),
        temperature: 0.6,
        top_k: Some(20),
        top_p: Some(0.9),
        min_p: Some(0.05),
        seed: 9,
        ..Sampling::default()
    };
    assert_eq!(config.sampling(9), expected);
    assert_eq!(config.new_tokens(4090).unwrap(), Some(12));
    assert_eq!(config.stop_strings.strings(), ["\n\n", "</s>"]);
}

#[test]
fn what_the_file_leaves_out_is_as_in_transformers() {
    let sampling = |text| open(Some(text), None).unwrap().sampling(0);
    assert_eq!(sampling("{}"), Sampling::default());
    // Set for those who sample; the text is greedy.
    let greedy = sampling(r#"{"temperature": 0.7, "top_p": 0.8}"#);
    assert_eq!((greedy.temperature, greedy.top_k), (0.0, None));
    let sampled = sampling(r#"{"do_sample": true}"#);
    assert_eq!((sampled.temperature, sampled.top_k), (1.0, Some(50)));
    let all = sampling(r#"{"do_sample": true, "top_k": 0}"#);
    assert_eq!(all.top_k, None);
    assert_eq!(sampling(r#"{"repetition_penalty": 1.0}"#).repetition_penalty, None);
}

#[test]
fn a_length_counts_the_prompt() {
    let config = open(Some(r#"{"max_length": 20}"#), None).unwrap();
    assert_eq!(config.new_tokens(5).unwrap(), Some(15));
    let message = config.new_tokens(20).unwrap_err().to_string();
    for part in ["20 tokens", "generation_config.json", "max_new_tokens"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(open(None, None).unwrap().new_tokens(5).unwrap(), None);
}

#[test]
fn a_field_of_another_kind_is_named_with_its_file() {
    for (key, values) in [
        ("eos_token_id", &["\"</s>\"", "1.5", "[1, [2]]", "4294967296", "{}", "true"][..]),
        ("do_sample", &["1", "\"true\""]),
        ("temperature", &["-0.1", "\"1\"", "1e300", "[]", "true"]),
        ("top_k", &["-1", "1.5", "\"50\"", "1e30"]),
        ("top_p", &["-0.1", "1.1", "\"1\"", "{}"]),
        ("min_p", &["-0.1", "1.1"]),
        ("num_beams", &["0", "-1", "2.5", "\"4\""]),
        ("num_return_sequences", &["0", "[1]"]),
        ("length_penalty", &["\"1\"", "1e300", "true"]),
        ("early_stopping", &["1", "\"always\""]),
        ("repetition_penalty", &["0", "-1", "1e300", "1e-60"]),
        ("max_new_tokens", &["0", "-5", "1.5", "\"5\""]),
        ("max_length", &["0", "[20]"]),
        ("stop_strings", &["3", "[\"a\", 3]", "{}", "true"]),
    ] {
        for value in values {
            let text = format!(r#"{{"{key}": {value}}}"#);
            let message = open(Some(&text), None).unwrap_err().to_string();
            let start = format!("generation_config.json: {key} is ");
            assert!(message.contains(&start), "{text}: {message}");
        }
    }
    let message = open(Some(r#"{"stop_strings": ["a", ""]}"#), None).unwrap_err();
    assert!(message.to_string().contains("stop_strings"), "{message}");
}

#[test]
fn what_would_change_the_text_is_not_passed_over() {
    for (key, value) in [
        ("num_beam_groups", "2"),
        ("no_repeat_ngram_size", "3"),
        ("typical_p", "0.95"),
        ("suppress_tokens", "[1, 2]"),
        ("bad_words_ids", "[[5]]"),
        ("min_new_tokens", "10"),
        ("guidance_scale", "1.5"),
        ("forced_eos_token_id", "2"),
        ("sequence_bias", r#"[[[1], 2.0]]"#),
        ("watermarking_config", r#"{"bias": 2.5}"#),
        ("dola_layers", "\"high\""),
    ] {
        let text = format!(r#"{{"{key}": {value}}}"#);
        let message = open(Some(&text), None).unwrap_err().to_string();
        for part in ["generation_config.json", key, "read no such file"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn beams_are_for_those_who_search() {
    let beams = |text| open(Some(text), None).unwrap().beam_search();
    assert_eq!(beams("{}"), None);
    assert_eq!(beams(r#"{"num_beams": 1, "length_penalty": 0.5}"#), None);
    assert_eq!(beams(r#"{"num_beams": 4, "early_stopping": null}"#), Some(BeamSearch::new(4)));
    let all = r#"{"num_beams": 5, "num_return_sequences": 2, "length_penalty": -0.5, "early_stopping": "never"}"#;
    let expected = BeamSearch {
        length_penalty: -0.5,
        early_stopping: EarlyStopping::Never,
        num_return_sequences: 2,
        ..BeamSearch::new(5)
    };
    assert_eq!(beams(all), Some(expected));
    let at_once = beams(r#"{"num_beams": 2, "early_stopping": true}"#).unwrap();
    assert_eq!(at_once.early_stopping, EarlyStopping::AtOnce);
    // Others are told rather than given another text.
    let message = open(Some(all), None).unwrap().without_beams().unwrap_err().to_string();
    assert!(message.contains("num_beams is 5"), "{message}");
    assert!(open(Some("{}"), None).unwrap().without_beams().is_ok());
    let text = r#"{"num_beams": 2, "repetition_penalty": 1.5, "renormalize_logits": true}"#;
    let message = open(Some(text), None).unwrap_err().to_string();
    assert!(message.contains("renormalize_logits is true"), "{message}");
}

#[test]
fn another_file_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("generation_config.json", r#"{"typical_p": 0.5}"#);
    write("other.json", r#"{"top_k": 3}"#);
    write("config.json", r#"{"eos_token_id": 2}"#);
    let other = GenerationConfig::open_file(folder.path(), folder.path().join("other.json"));
    let other = other.unwrap();
    assert_eq!((other.top_k, &other.eos_token_id[..]), (Some(3), &[2][..]));
    let none = GenerationConfig::without_file(folder.path()).unwrap();
    assert_eq!((none.top_k, &none.eos_token_id[..]), (None, &[2][..]));
    let missing = GenerationConfig::open_file(folder.path(), folder.path().join("missing.json"));
    let message = missing.unwrap_err().to_string();
    assert!(message.contains("missing.json"), "{message}");
}
