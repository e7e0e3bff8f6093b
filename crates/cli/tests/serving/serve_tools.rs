//! `outsize serve`: functions that a request offers, and their calls in answers.

use crate::common::folder;
use crate::common::scripted::scripted;
use crate::common::serving::Server;
use serde_json::{Value, json};

const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\
    {% for call in m.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}</s>{% endfor %}\
    {% if add_generation_prompt %}assistant: <s>{% endif %}";

const PIECES: [(&str, bool); 7] = [
    ("Let me see.\n", false),
    ("<tool_call>", true),
    ("\n{\"name\": \"get_weather\", ", false),
    ("\"arguments\": {\"place\": \"Pa", false),
    ("ris\"}}\n", false),
    ("</tool_call>", true),
    ("\n<tool_call>{\"name\": \"stop\"}", false),
];

fn tools() -> Value {
    let place = json!({"type": "object", "properties": {"place": {"type": "string"}}});
    json!([
        {"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": place}},
        {"type": "function", "function": {"name": "stop"}},
    ])
}

/// A message of which a stream's deltas are the parts.
fn put_together(parts: &[Value]) -> (Value, Value) {
    let (mut content, mut calls) = (String::new(), Vec::<Value>::new());
    let mut finish = Value::Null;
    for choice in parts.iter().map(|part| &part["choices"][0]) {
        let delta = &choice["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                // What it is comes before the arguments.
                assert_eq!(
                    (&call["type"], &call["function"]["arguments"]),
                    (&json!("function"), &json!(""))
                );
                calls.push(json!({"name": call["function"]["name"], "arguments": ""}));
            }
            let more = call["function"]["arguments"].as_str().unwrap();
            let arguments = calls[index]["arguments"].as_str().unwrap().to_owned() + more;
            calls[index]["arguments"] = json!(arguments);
        }
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
    }
    (json!({"content": content, "calls": calls}), finish)
}

#[test]
fn calls_of_functions_are_told_from_the_text() {
    let dir = folder();
    let model = scripted(&dir, "caller", TEMPLATE, &PIECES);
    for batch in ["1", "2"] {
        let server = Server::start(&model, &["--batch", batch]);
        let ask = json!([{"role": "user", "content": "How is it in Paris?"}]);
        let request = json!({"messages": ask, "tools": tools(), "tool_choice": "auto"});
        let (status, answer) = server.post("/v1/chat/completions", &request);
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("tool_calls"), &json!("Let me see."))
        );
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        let functions: Vec<&Value> = calls.iter().map(|call| &call["function"]).collect();
        let weather = json!({"name": "get_weather", "arguments": "{\"place\": \"Paris\"}"});
        let stop = json!({"name": "stop", "arguments": "{}"});
        assert_eq!(functions, [&weather, &stop]);
        assert_eq!(
            (calls[0]["id"].as_str().unwrap().len(), &calls[0]["type"]),
            (9, &json!("function"))
        );
        assert_ne!(calls[0]["id"], calls[1]["id"]);

        let parts = server.stream("/v1/chat/completions", &request);
        let streamed = put_together(&parts);
        let expected = json!({"content": "Let me see.", "calls": [weather, stop]});
        assert_eq!(streamed, (expected, json!("tool_calls")));

        let single = json!({"messages": ask, "tools": tools(), "parallel_tool_calls": false});
        let (_, single) = server.post("/v1/chat/completions", &single);
        assert_eq!(single["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!(single["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
        assert_eq!(single["usage"]["completion_tokens"], 5);

        // The next turn, whose prompt the template makes of the calls and what they gave.
        let mut messages = vec![ask[0].clone(), choice["message"].clone()];
        for call in calls {
            messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "rain"}));
        }
        let next = json!({"messages": messages, "tools": tools()});
        let (status, next) = server.post("/v1/chat/completions", &next);
        assert_eq!(status, 200, "{next}");
        let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(tokens(&next) > tokens(&answer) + 20, "{next}");

        // Nobody offers functions: the text is what it always was.
        let mut texts = vec![json!({"messages": ask}), json!({"messages": ask, "tools": []})];
        texts.push(json!({"messages": ask, "tools": tools(), "tool_choice": "none"}));
        for request in texts {
            let (_, answer) = server.post("/v1/chat/completions", &request);
            let choice = &answer["choices"][0];
            let text = "Let me see.\n\n{\"name\": \"get_weather\", \"arguments\": {\"place\": \"Paris\"}}\n\n\
                <tool_call>{\"name\": \"stop\"}";
            assert_eq!(
                (&choice["message"]["content"], &choice["finish_reason"]),
                (&json!(text), &json!("stop"))
            );
            assert!(choice["message"].get("tool_calls").is_none());
            assert!(tokens(&answer) < 60, "{answer}");
        }

        // An answer that is cut in a call has its text.
        let cut = json!({"messages": ask, "tools": tools(), "max_tokens": 4});
        let (_, whole) = server.post("/v1/chat/completions", &cut);
        let parts = server.stream("/v1/chat/completions", &cut);
        let text =
            "Let me see.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"place\": \"Pa";
        assert_eq!(whole["choices"][0]["message"]["content"], text);
        assert_eq!(put_together(&parts), (json!({"content": text, "calls": []}), json!("length")));
    }
}

#[test]
fn what_is_wrong_with_functions_is_said() {
    let dir = folder();
    let model = scripted(&dir, "plain", "{{ messages[0].content }}<s>", &[("Hm", false)]);
    let server = Server::start(&model, &[]);
    let request = |name: &str, value: Value| {
        let mut request = json!({"messages": [{"role": "user", "content": "a"}], "tools": tools()});
        request[name] = value;
        request
    };
    let call = |arguments: &str| {
        let function = json!({"name": "f", "arguments": arguments});
        json!([{"role": "assistant", "tool_calls": [{"id": "a", "function": function}]}])
    };
    for (request, param, message) in [
        (request("seed", json!(1)), "tools", "has no place for tools"),
        (request("tools", json!([{"type": "web_search"}])), "", "tools[0]"),
        (request("tools", json!([{"type": "function", "function": {}}])), "", "\"name\""),
        (request("tool_choice", json!("maybe")), "tool_choice", "maybe"),
        (request("functions", json!([{"name": "f"}])), "functions", "not built in"),
        (request("messages", call("[]")), "messages[0].tool_calls[0]", "no JSON object"),
        (request("messages", json!([{"role": "assistant"}])), "messages[0].content", "content"),
    ] {
        let (status, answer) = server.post("/v1/chat/completions", &request);
        assert_eq!(status, 400, "{request}: {answer}");
        let error = &answer["error"];
        assert!(error["message"].as_str().unwrap().contains(message), "{request}: {answer}");
        assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{request}: {answer}");
    }
    // Calls of before are the template's matter alone.
    let mut told = request("tools", json!(null));
    told["messages"] =
        json!([{"role": "user", "content": "a"}, call("{}")[0], {"role": "tool", "content": "b"}]);
    let (status, answer) = server.post("/v1/chat/completions", &told);
    assert_eq!(
        (status, &answer["choices"][0]["message"]["content"]),
        (200, &json!("Hm")),
        "{answer}"
    );
}
