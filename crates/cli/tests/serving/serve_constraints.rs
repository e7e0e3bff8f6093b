//! `outsize serve --structured-output`: answers that have to be JSON.

use crate::common::serving::Server;
use crate::common::{folder, model};
use serde_json::{Value, json};

const TEMPLATE: &str = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>\
    {% endfor %}{% if add_generation_prompt %}<s>assistant: {% endif %}";

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"kind": {"enum": ["rain", "sun"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["kind", "days"],
        "additionalProperties": false,
    })
}

/// Whether an object is valid by it.
fn assert_valid(text: &Value) {
    let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    assert!(["rain", "sun"].map(Value::from).contains(&value["kind"]), "{value}");
    assert!((1..=9).contains(&value["days"].as_u64().unwrap()), "{value}");
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"where": {"$ref": "#/$defs/place"}},
        "required": ["where"], "additionalProperties": false, "$defs": {"place": {"enum": ["Paris", "Rome"]}}});
    json!([
        {"type": "function", "function": {"name": "forecast", "parameters": schema()}},
        {"type": "function", "function": {"name": "go", "parameters": parameters}},
        {"type": "function", "function": {"name": "stop"}},
    ])
}

#[test]
fn answers_are_valid_by_their_schema() {
    let dir = folder();
    let model = model(&dir);
    std::fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap();
    let flags = ["--max-memory", "cpu=190MB", "--context", "512", "--structured-output"];
    let alone = Server::start(&model, &flags);
    let together = Server::start(&model, &[&flags[..], &["--batch", "2"]].concat());
    let guessing = Server::start(&model, &[&flags[..], &["--prompt-lookup"]].concat());
    let messages = json!([{"role": "user", "content": "What is the weather?"}]);
    let format = json!({"type": "json_schema", "json_schema": {"name": "weather", "schema": schema(), "strict": true}});
    for (seed, temperature) in [(1, 0.0), (2, 0.9)] {
        let request = |more: Value| {
            let mut request = json!({"messages": messages, "seed": seed, "temperature": temperature, "max_tokens": 300});
            request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            request
        };
        let ask = |request: &Value| {
            let (status, answer) = alone.post("/v1/chat/completions", request);
            assert_eq!(status, 200, "{answer}");
            let choice = answer["choices"][0].clone();
            // But for the ids of calls.
            let plain = |mut choice: Value| {
                for call in choice["message"]["tool_calls"].as_array_mut().into_iter().flatten() {
                    call["id"] = Value::Null;
                }
                choice
            };
            for other in [&together, &guessing] {
                let (status, other) = other.post("/v1/chat/completions", request);
                assert_eq!(status, 200, "{other}");
                assert_eq!(plain(choice.clone()), plain(other["choices"][0].clone()));
            }
            choice
        };
        let choice = ask(&request(json!({"response_format": format})));
        assert_valid(&choice["message"]["content"]);
        assert_eq!(choice["finish_reason"], "stop");
        let parts =
            together.stream("/v1/chat/completions", &request(json!({"response_format": format})));
        let text: String = parts
            .iter()
            .filter_map(|part| part["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(choice["message"]["content"], text);

        let named = json!({"type": "function", "function": {"name": "go"}});
        let choice = ask(&request(json!({"tools": tools(), "tool_choice": named})));
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(
            (calls.len(), &calls[0]["function"]["name"], &choice["finish_reason"]),
            (1, &json!("go"), &json!("tool_calls"))
        );
        let arguments: Value =
            serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(["Paris", "Rome"].map(Value::from).contains(&arguments["where"]), "{arguments}");

        let required =
            json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": false});
        let choice = ask(&request(required));
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!((calls.len(), &choice["message"]["content"]), (1, &Value::Null));
        if calls[0]["function"]["name"] == "forecast" {
            assert_valid(&calls[0]["function"]["arguments"]);
        }

        // An answer that is cut is text.
        let choice = ask(&request(json!({"response_format": format, "max_tokens": 3})));
        assert_eq!(choice["finish_reason"], "length");
        assert!(choice["message"]["content"].as_str().unwrap().starts_with('{'), "{choice}");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", together.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak * 1024 <= 190_000_000, "{peak} kB");

    for (more, param, message) in [
        (json!({"response_format": {"type": "xml"}}), "response_format", "xml"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format", "`schema`"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}),
            "response_format",
            "nothing",
        ),
        (
            json!({"tools": tools(), "tool_choice": {"function": {"name": "f"}}}),
            "tool_choice",
            "\"f\"",
        ),
        (json!({"tool_choice": "required"}), "tool_choice", "no tools"),
    ] {
        let mut request = json!({"messages": messages});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        for server in [&alone, &together] {
            let (status, answer) = server.post("/v1/chat/completions", &request);
            assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
            assert!(answer["error"]["message"].as_str().unwrap().contains(message), "{answer}");
        }
    }
}

#[test]
fn without_memory_for_them_they_are_refused() {
    let dir = folder();
    let model = crate::common::tiny(&dir);
    let server = Server::start(&model, &[]);
    let request = json!({"prompt": "a", "response_format": {"type": "json_object"}});
    let (status, answer) = server.post("/v1/completions", &request);
    assert_eq!(status, 400);
    assert!(answer["error"]["message"].as_str().unwrap().contains("structured output"), "{answer}");
}
