//! Vectors of texts are those of sentence-transformers: scripts/fixtures/embeddings.py made them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::{PROCESS, cpu, least, write};
use outsize_generate::{
    EmbedOptions, EmbeddingPipeline, EmbeddingRecipe, EmbeddingTask, EmbeddingTokenizer, Error,
    GenerationWorkload, OpenedModel, PipelineError, PipelineSettings, Pooling, TextEmbedding,
    Tokenizer, pipeline, read_config, read_embedding_config,
};
use outsize_models::{CacheOptions, Logits};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

const FIXTURES: [(&str, Pooling); 3] = [
    ("qwen3-last", Pooling::LastToken),
    ("mistral-mean", Pooling::Mean),
    ("qwen3-weighted", Pooling::WeightedMean),
];

#[derive(serde::Deserialize)]
struct Expected {
    texts: Vec<String>,
    /// By the name of the prompt.
    vectors: BTreeMap<String, Vec<Vec<f32>>>,
}

fn fixture(name: &str) -> (PathBuf, Expected) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/embeddings").join(name);
    let expected = std::fs::read(folder.join("expected.json")).unwrap();
    (folder, serde_json::from_slice(&expected).unwrap())
}

/// In a budget, in passes of at most `prompt` tokens.
fn open(
    folder: &Path,
    budget: Option<u64>,
    [batch, prompt]: [usize; 2],
) -> Result<EmbeddingPipeline, PipelineError> {
    let settings = PipelineSettings {
        max_memory: cpu(budget),
        workload: GenerationWorkload {
            logits: Logits::Hidden,
            process: PROCESS,
            ..GenerationWorkload::new(CacheOptions { batch, ..CacheOptions::new(200) }, prompt)
        },
        planning: Default::default(),
        stop: None,
    };
    let model = OpenedModel::new(folder, read_embedding_config(folder)?)?;
    let (tokenizer, recipe) = (Tokenizer::open(folder)?, EmbeddingRecipe::open(folder)?);
    let tokenizer = EmbeddingTokenizer::new(tokenizer, recipe, model.config(), 200);
    Ok(EmbeddingPipeline::new(model.dispatch(&settings, |_| {})?, tokenizer))
}

fn prompted(name: &str) -> EmbedOptions<'_> {
    EmbedOptions { prompt_name: Some(name).filter(|name| !name.is_empty()), ..Default::default() }
}

fn bits(vectors: &[TextEmbedding]) -> Vec<Vec<u32>> {
    let bits = |vector: &TextEmbedding| vector.values.iter().map(|value| value.to_bits()).collect();
    vectors.iter().map(bits).collect()
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    for (name, pooling) in FIXTURES {
        let (folder, expected) = fixture(name);
        let mut pipe = pipeline(EmbeddingTask, &folder).batch_size(2).build().unwrap();
        assert_eq!(pipe.tokenizer().recipe().pooling, pooling);
        let texts: Vec<&str> = expected.texts.iter().map(String::as_str).collect();
        let mut cut = 0;
        for (prompt, vectors) in &expected.vectors {
            let found = pipe.embed(&texts, &prompted(prompt)).unwrap();
            for ((found, vector), text) in found.iter().zip(vectors).zip(&texts) {
                assert_eq!(found.values.len(), vector.len());
                let largest = vector.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                let off = found.values.iter().zip(vector).map(|(a, b)| (a - b).abs());
                let off = off.fold(0.0f32, f32::max);
                assert!(off <= 1e-4 * largest, "{name}, {prompt}, {text:?}: {off} of {largest}");
                cut += found.cut;
            }
        }
        // The longest texts of this one have 40 tokens.
        assert_eq!(cut > 0, name == "mistral-mean", "{cut}");
    }
}

#[test]
fn vectors_have_the_same_bits_in_any_budget_batch_and_pass() {
    for (name, _) in FIXTURES {
        let (folder, expected) = fixture(name);
        let texts: Vec<&str> = expected.texts.iter().map(String::as_str).collect();
        let alone = open(&folder, None, [1, 200]).unwrap().embed(&texts, &prompted("")).unwrap();
        let least = least(open(&folder, Some(1), [3, 200]).unwrap_err());
        for (budget, sizes) in
            [(None, [5, 200]), (None, [3, 7]), (Some(least), [3, 200]), (Some(least), [1, 1])]
        {
            let mut pipe = open(&folder, budget, sizes).unwrap();
            let found = pipe.embed(&texts, &prompted("")).unwrap();
            assert!(bits(&found) == bits(&alone), "{name}: {budget:?} {sizes:?}");
            // What was run before is forgotten.
            let again = pipe.embed(&texts[1..2], &prompted("")).unwrap();
            assert!(bits(&again) == bits(&alone[1..2]));
        }
    }
}

#[test]
fn what_is_asked_for_is_given_or_refused() {
    let (folder, expected) = fixture("qwen3-last");
    let mut pipe = open(&folder, None, [1, 200]).unwrap();
    let whole = pipe.embed(&["gravity"], &prompted("")).unwrap().remove(0);
    let options = EmbedOptions { dimensions: Some(8), ..EmbedOptions::default() };
    let short = pipe.embed(&["gravity"], &options).unwrap().remove(0);
    let length = whole.values[..8].iter().map(|value| value * value).sum::<f32>().sqrt();
    for (short, whole) in short.values.iter().zip(&whole.values) {
        assert!((short - whole / length).abs() < 1e-6);
    }
    assert_eq!((short.values.len(), whole.values.len()), (8, 32));
    // Given as it is, a prompt is that of its name.
    let prompt = "Instruct: find what answers it\nQuery:";
    let given = EmbedOptions { prompt: Some(prompt), ..EmbedOptions::default() };
    let named = pipe.embed(&["gravity"], &prompted("query")).unwrap();
    assert_eq!(pipe.embed(&["gravity"], &given).unwrap(), named);
    assert_eq!(pipe.embed(&[], &given).unwrap(), []);

    let error = pipe.embed(&["gravity"], &prompted("passage")).unwrap_err().to_string();
    assert!(error.contains("\"passage\"") && error.contains("document, query"), "{error}");
    let options = EmbedOptions { dimensions: Some(33), ..EmbedOptions::default() };
    let error = pipe.embed(&["gravity"], &options).unwrap_err().to_string();
    assert!(error.contains("expected 1 to 32"), "{error}");
    assert!(expected.texts.contains(&"gravity".to_owned()));
}

#[test]
fn other_models_and_recipes_are_refused() {
    // Which has no head, and is no model that generates.
    let (folder, _) = fixture("mistral-mean");
    let error = read_config(&folder).unwrap_err().to_string();
    assert!(error.contains("architectures"), "{error}");
    let t5 = crate::common::checkpoint::fixture("t5");
    let error = read_embedding_config(&t5).unwrap_err();
    assert!(matches!(error, PipelineError::File(Error::EmbeddingEncoder)), "{error}");

    let dir = TempDir::new().unwrap();
    let place = dir.path();
    std::fs::create_dir(place.join("1_Pooling")).unwrap();
    let said = |name: &str, text: &str| {
        let path = place.join(name);
        let before = std::fs::read_to_string(&path).ok();
        write(place, name, text);
        let said = EmbeddingRecipe::open(place).unwrap_err().to_string();
        match before {
            Some(before) => write(place, name, &before),
            None => std::fs::remove_file(path).unwrap(),
        }
        said
    };
    assert_eq!(EmbeddingRecipe::open(place).unwrap(), EmbeddingRecipe::default());
    let module =
        |class: &str, path: &str| format!(r#"{{"path": "{path}", "type": "a.b.{class}"}}"#);
    let list = |rest: &str| format!("[{}, {rest}]", module("Transformer", ""));
    write(place, "modules.json", &list(&module("Pooling", "1_Pooling")));
    write(place, "1_Pooling/config.json", r#"{"pooling_mode_mean_sqrt_len_tokens": true}"#);
    let recipe = EmbeddingRecipe::open(place).unwrap();
    assert_eq!((recipe.pooling, recipe.normalizes), (Pooling::MeanSqrtLen, false));
    for (name, text, expected) in [
        ("modules.json", "[", "modules.json"),
        ("modules.json", "{}", "it has no list"),
        ("modules.json", &list(&module("Dense", "1_Pooling"))[..], "a.b.Dense"),
        ("modules.json", &list(&module("Pooling", "../1_Pooling")), "not the name of a folder"),
        ("modules.json", &list(&module("Pooling", "/etc")), "not the name of a folder"),
        ("modules.json", &list(&module("Pooling", "2_Pooling")), "it is not there"),
        ("1_Pooling/config.json", r#"{"pooling_mode": ["mean", "max"]}"#, "[mean, max]"),
        ("1_Pooling/config.json", r#"{"pooling_mode": "first"}"#, "expected one of lasttoken"),
        ("1_Pooling/config.json", "{}", "expected one of lasttoken"),
        ("config_sentence_transformers.json", r#"{"prompts": [1]}"#, "prompts are not an object"),
        ("config_sentence_transformers.json", r#"{"prompts": {"a": 1}}"#, "a prompt is no text"),
        ("config_sentence_transformers.json", r#"{"default_prompt_name": "a"}"#, "not the name of"),
        ("sentence_bert_config.json", r#"{"do_lower_case": true}"#, "do_lower_case"),
    ] {
        let said = said(name, text);
        assert!(said.contains(expected), "{text}: {said}");
    }
}

/// Any value of JSON, of names that mean something among others.
fn json_value() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec![
        "",
        "..",
        "1_Pooling",
        "a.Transformer",
        "a.Pooling",
        "mean",
        "é",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    let name = prop::sample::select(vec![
        "path",
        "type",
        "pooling_mode",
        "pooling_mode_cls_token",
        "include_prompt",
        "prompts",
        "default_prompt_name",
        "max_seq_length",
        "model_max_length",
        "do_lower_case",
    ]);
    leaf.prop_recursive(3, 24, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(name.clone(), inner, 0..6).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn any_recipe_is_read_or_refused(files in prop::collection::vec(json_value(), 5), sound in any::<bool>()) {
        const NAMES: [&str; 5] = [
            "1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json",
            "tokenizer_config.json", "modules.json",
        ];
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("1_Pooling")).unwrap();
        for (name, value) in NAMES.iter().zip(&files) {
            write(dir.path(), name, &value.to_string());
        }
        if sound {
            let modules = json!([{"path": "", "type": "a.Transformer"}, {"path": "1_Pooling", "type": "a.Pooling"}]);
            write(dir.path(), "modules.json", &modules.to_string());
        }
        if let Err(error) = EmbeddingRecipe::open(dir.path()) {
            let said = error.to_string();
            prop_assert!(NAMES.iter().any(|name| said.contains(name)), "{said}");
        }
    }
}
