//! Texts that have to be JSON by a schema: whatever the model says, they are.

mod common;

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::process::Command;
use std::time::Instant;

use common::every_kind;
use outsize_generate::{
    Error, Finish, GenerateError, JsonConstraint, LanguageModel, Request, Sampling, TextOptions,
    TextOutcome, Tokenizer, byte_level_tokenizer, generate_text,
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Likes tokens at random.
struct Random {
    vocab: usize,
    state: u64,
}

impl LanguageModel for Random {
    type Error = Infallible;

    fn forward_rows(&mut self, _: &[&[u32]]) -> Result<Vec<f32>, Infallible> {
        let logit = |_| {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.state >> 40) as f32 / (1 << 22) as f32
        };
        Ok((0..self.vocab).map(logit).collect())
    }

    fn copy_rows(&mut self, _: &[(usize, usize)], _: usize) -> Result<(), Infallible> {
        unreachable!("there is one sequence")
    }

    fn context(&self) -> Option<usize> {
        None
    }

    fn position(&self) -> usize {
        0
    }
}

/// What a random model says that has to be valid by a schema.
fn say(
    tokenizer: &Tokenizer,
    schema: Value,
    eos: &[u32],
    seed: u64,
    most: usize,
) -> Result<TextOutcome, GenerateError<Infallible>> {
    // A model may have more tokens than its tokenizer.
    let mut model = Random { vocab: tokenizer.vocab_size() + 9, state: seed };
    let temperature = if seed.is_multiple_of(2) { 0.0 } else { 1.0 };
    let sampling = Sampling { temperature, seed, top_k: Some(40), ..Sampling::default() };
    let request = Request { ids: vec![1], max_new_tokens: most, eos: eos.to_vec(), sampling };
    let constraint = Some(JsonConstraint::new(schema));
    let options = TextOptions { constraint, ..TextOptions::default() };
    generate_text(&mut model, tokenizer, &request, &options, |_| ControlFlow::Continue(()))
}

/// A schema, and whether a value is valid by it.
type Schema = (Value, fn(&Value) -> bool);

fn schemas() -> Vec<Schema> {
    let point = json!({"type": "object", "properties": {"x": {"type": "number", "minimum": -1e9, "maximum": 1e9}}, "required": ["x"],
        "additionalProperties": false});
    let object = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kind": {"enum": ["a", "é\n\"", 7, null]},
            "ok": {"type": "boolean"},
            "points": {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 3},
        },
        "required": ["name", "age", "kind", "ok", "points"],
        "additionalProperties": false,
        "$defs": {"point": point},
    });
    let is_object: fn(&Value) -> bool = |value| {
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        let points = value["points"].as_array().unwrap();
        keys == ["name", "age", "kind", "ok", "points"]
            && value["name"].as_str().is_some_and(|name| name.chars().count() <= 12)
            && value["age"].as_u64().is_some_and(|age| age <= 150)
            && [json!("a"), json!("é\n\""), json!(7), Value::Null].contains(&value["kind"])
            && value["ok"].is_boolean()
            && points.len() <= 3
            && points.iter().all(|point| point["x"].is_number())
    };
    vec![
        (object, is_object),
        (json!({"anyOf": [{"type": "null"}, {"const": "x y"}]}), |value| {
            value.is_null() || *value == "x y"
        }),
        (
            json!({"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 5},
                "minItems": 2, "maxItems": 4}),
            |value| {
                let items = value.as_array().unwrap();
                (2..=4).contains(&items.len())
                    && items.iter().all(|item| {
                        // -0, too.
                        item.as_f64().is_some_and(|item| item.abs() <= 5.0 && item.fract() == 0.0)
                    })
            },
        ),
        (json!({"type": "string", "pattern": "^[a-c]{2,5}-\\d$"}), |value| {
            value.as_str().is_some_and(|text| {
                (4..=7).contains(&text.len()) && text.as_bytes()[text.len() - 2] == b'-'
            })
        }),
    ]
}

#[test]
fn texts_are_valid_whatever_the_tokenizer() {
    for (kind, tokenizer) in every_kind() {
        for (schema, is_valid) in schemas() {
            for (seed, eos) in [(2, vec![]), (3, vec![2]), (4, vec![2, 5000]), (5, vec![])] {
                let outcome = match say(&tokenizer, schema.clone(), &eos, seed, 3000) {
                    Ok(outcome) => outcome,
                    Err(GenerateError::Request(Error::Constraint { reason })) => {
                        // Some vocabularies lack letters, or bytes at all.
                        let lacks = reason.contains("as bytes") || kind.contains("unigram");
                        assert!(lacks, "{kind}: {reason}");
                        continue;
                    }
                    Err(error) => panic!("{kind}: {error}"),
                };
                let finish = outcome.outcome.finish;
                // A small vocabulary may lack letters.
                if finish == Finish::Stuck && kind.contains("unigram") {
                    continue;
                }
                let text = &outcome.text;
                assert!(
                    [Finish::Complete, Finish::Eos].contains(&finish),
                    "{kind}, {finish:?}: {text}"
                );
                let value: Value = serde_json::from_str(text)
                    .unwrap_or_else(|error| panic!("{kind}: {error}: {text:?}"));
                assert!(is_valid(&value), "{kind}: {text}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn texts_are_valid_whatever_the_model_says(seed in any::<u64>(), which in 0..4usize) {
        let tokenizer = common::open(&byte_level_tokenizer(700).unwrap());
        let (schema, is_valid) = schemas().swap_remove(which);
        let outcome = say(&tokenizer, schema, &[2], seed, 3000).unwrap();
        prop_assert!([Finish::Complete, Finish::Eos].contains(&outcome.outcome.finish));
        prop_assert!(is_valid(&serde_json::from_str(&outcome.text).unwrap()), "{}", outcome.text);
        // Any object may take long; what there is of one begins like one.
        let object = say(&tokenizer, json!({"type": "object"}), &[2], seed, 300).unwrap();
        prop_assert!(object.text.starts_with('{'), "{}", object.text);
        if object.outcome.finish != Finish::Length {
            match serde_json::from_str::<Value>(&object.text) {
                Ok(value) => prop_assert!(value.is_object()),
                // To JSON, a number may be of any size.
                Err(error) => prop_assert!(error.to_string().contains("number out of range"), "{error}"),
            }
        }
    }
}

/// Schemas that cannot be obeyed, or take long.
fn hostile() -> Vec<Value> {
    let mut deep = json!({"type": "integer"});
    for _ in 0..60 {
        deep = json!({"type": "array", "items": deep, "anyOf": [{"minItems": 1}, {"maxItems": 3}]});
    }
    let names: Vec<String> = (0..4000).map(|number| format!("value {number}")).collect();
    let many: serde_json::Map<String, Value> = names
        .iter()
        .map(|name| (name.clone(), json!({"type": "string", "pattern": "(ab?){1,40}c"})))
        .collect();
    let all: Vec<Value> = (0..200)
        .map(|number| json!({"properties": {format!("a{number}"): {"pattern": format!("x{{1,{number}}}")}}}))
        .collect();
    vec![
        json!(true),
        json!([1]),
        json!({"type": "nothing"}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"$ref": "#"}),
        json!({"$ref": "http://localhost/schema"}),
        json!({"type": "string", "pattern": "("}),
        json!({"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}"}),
        json!({"type": "string", "pattern": "(a|b)*a(a|b){200}"}),
        json!({"type": "string", "pattern": "(.*a.*b.*c.*d.*e.*f){3,90}"}),
        json!({"type": "string", "minLength": 1_000_000_000_u64}),
        json!({"type": "integer", "minimum": 9, "maximum": 1}),
        json!({"type": "integer", "minimum": "a"}),
        json!({"type": "number", "multipleOf": 1e-300}),
        json!({"enum": []}),
        json!({"enum": names}),
        json!({"enum": [1], "x-guidance": {"whitespace_pattern": "("}}),
        json!({"type": "array", "minItems": 1_000_000}),
        json!({"type": "object", "properties": many}),
        json!({"allOf": all}),
        json!({"anyOf": vec![json!({"type": "object", "properties": {"a": {"type": "string"}}}); 90]}),
        json!({"oneOf": vec![json!({"type": "object", "properties": {"a": {"type": "string"}}}); 90]}),
        json!({"not": {"type": "string"}}),
        json!({"type": "string", "description": "x".repeat(70_000)}),
        deep,
    ]
}

#[test]
fn hostile_schemas_end_soon() {
    let tokenizer = common::open(&byte_level_tokenizer(5000).unwrap());
    for schema in hostile() {
        let shown: String = schema.to_string().chars().take(100).collect();
        let started = Instant::now();
        match say(&tokenizer, schema, &[2], 7, 40) {
            Ok(_) => {}
            Err(GenerateError::Request(error @ Error::Constraint { .. })) => {
                let message = error.to_string();
                assert!(
                    message.len() < 1000 && !message.contains("backtrace"),
                    "{shown}: {message}"
                );
            }
            Err(error) => panic!("{shown}: {error}"),
        }
        let seconds = started.elapsed().as_secs_f64();
        assert!(seconds < 20.0, "{shown}: {seconds}");
        println!("{seconds:.2} s {shown}");
    }
}

/// The number of the hostile schema that a child tries.
const SCHEMA: &str = "OUTSIZE_TEST_SCHEMA";

/// A line of /proc/self/status in bytes.
fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    let number = line.trim_start_matches(':').trim().strip_suffix(" kB").unwrap();
    number.parse::<u64>().unwrap() * 1024
}

/// In a process of its own: what one hostile schema takes beside the tokenizer.
#[test]
fn child() {
    let Ok(number) = std::env::var(SCHEMA) else { return };
    let tokenizer = common::open(&byte_level_tokenizer(60_000).unwrap());
    outsize_stream::return_freed_memory();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS");
    let _ = say(&tokenizer, hostile().swap_remove(number.parse().unwrap()), &[2], 7, 200);
    println!("MEMORY {} {}", status("VmHWM") - before, tokenizer.constraint_memory(1));
}

#[test]
fn what_constraints_take_is_known_before() {
    for number in 0..hostile().len() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(SCHEMA, number.to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find_map(|line| line.split_once("MEMORY "));
        let (_, line) = line.unwrap_or_else(|| panic!("{output:?}"));
        let (taken, bound) = line.split_once(' ').unwrap();
        println!("{number}: {taken} of {bound}");
        assert!(taken.parse::<u64>().unwrap() <= bound.parse::<u64>().unwrap(), "{number}: {line}");
    }
}
