//! `outsize serve`: answers are those of `outsize run` and `outsize chat`, whole or as they come;
//! what is wrong is said.

use crate::common::serving::Server;
use crate::common::{done, failed, folder, model, outsize, path, report, tiny};
use serde_json::{Value, json};
use std::io::Read;
use std::process::Command;

const TEMPLATE: &str = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}\
    {% if add_generation_prompt %}<s>assistant: {% endif %}";

fn said(values: &[Value], of: impl Fn(&Value) -> &Value) -> String {
    values.iter().filter_map(|value| of(&value["choices"][0]).as_str()).collect()
}

#[test]
fn answers_are_those_of_the_other_commands() {
    let dir = folder();
    let model = model(&dir);
    std::fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap();
    let server =
        Server::start(&model, &["--max-memory", "cpu=150MB", "--context", "200", "--name", "wide"]);

    // A text, as `run` goes on with it.
    let run = |sampling: &[&str]| {
        let arguments =
            ["run", path(&model), "--prompt", "Once upon", "--max-new-tokens", "12", "--json"];
        report(&outsize(&[&arguments[..], sampling].concat()))
    };
    let request = json!({"model": "wide", "prompt": "Once upon", "temperature": 0});
    let (status, answer) = server.post("/v1/completions", &request);
    let expected = run(&[]);
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!("wide")));
    assert_eq!(answer["choices"][0]["text"], expected["text"]);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["prompt_tokens"], expected["prompt_tokens"]);
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    let drawn = json!({"prompt": ["Once upon"], "temperature": 0.8, "seed": 9, "top_k": 40});
    let (_, answer) = server.post("/v1/completions", &drawn);
    let expected = run(&["--temperature", "0.8", "--seed", "9", "--top-k", "40"]);
    assert_eq!(answer["choices"][0]["text"], expected["text"]);
    // Of the same prompt one token is run again.
    let kept = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(kept.as_u64().unwrap() + 1, expected["prompt_tokens"].as_u64().unwrap());
    let parts = server.stream("/v1/completions", &drawn);
    assert_eq!(said(&parts, |choice| &choice["text"]), expected["text"].as_str().unwrap());
    assert_eq!(parts.last().unwrap()["choices"][0]["finish_reason"], "length");

    // A conversation, as `chat` answers it.
    let mut messages = vec![json!({"role": "system", "content": "Be brief"})];
    let mut chat = vec!["chat", path(&model), "--max-new-tokens", "12", "--context", "200"];
    chat.extend(["--system", "Be brief"]);
    let input = dir.path().join("said");
    std::fs::write(&input, "Hello\nWhy?\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outsize"));
    let output = command.args(&chat).stdin(std::fs::File::open(&input).unwrap()).output().unwrap();
    let expected = done(&output);
    let mut found = String::new();
    for text in ["Hello", "Why?"] {
        messages.push(json!({"role": "user", "content": [{"type": "text", "text": text}]}));
        let request = json!({"messages": messages, "temperature": 0, "stream_options": {"include_usage": true}});
        let (status, answer) = server.post("/v1/chat/completions", &request);
        assert_eq!(status, 200, "{answer}");
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        let parts = server.stream("/v1/chat/completions", &request);
        assert_eq!(parts[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(said(&parts, |choice| &choice["delta"]["content"]), content);
        assert_eq!(parts.last().unwrap()["usage"]["completion_tokens"], 12);
        found.push_str(&content);
        found.push('\n');
        messages.push(json!({"role": "assistant", "content": content}));
    }
    assert_eq!(found, expected);
    let said = server.end();
    assert!(said.contains("12 tokens at") && said.contains("of them kept"), "{said}");
}

#[test]
fn requests_side_by_side_are_answered_as_they_are_alone() {
    let dir = folder();
    let model = model(&dir);
    std::fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap();
    let budget = ["--max-memory", "cpu=150MB", "--context", "200"];
    let alone = Server::start(&model, &budget);
    let together = Server::start(&model, &[&budget[..], &["--batch", "3"]].concat());
    let requests: Vec<_> = (0..7)
        .map(|number| {
            let content = format!("Once upon a time there was one of {number}");
            let length = 3 + 5 * (number % 3);
            match number % 2 {
                0 => ("/v1/completions", json!({"prompt": content, "max_tokens": length, "seed": number})),
                _ => {
                    let messages = json!([{"role": "user", "content": content}]);
                    let request = json!({"messages": messages, "max_tokens": length, "temperature": 0.7, "seed": number});
                    ("/v1/chat/completions", request)
                }
            }
        })
        .collect();
    let found: Vec<Value> = std::thread::scope(|scope| {
        let ask = |(at, request)| together.post(at, request).1;
        let threads = requests.iter().map(|(at, request)| scope.spawn(move || ask((*at, request))));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for ((at, request), found) in requests.iter().zip(&found) {
        let expected = alone.post(at, request).1;
        assert_eq!(found["choices"], expected["choices"], "{request}");
        for count in ["prompt_tokens", "completion_tokens"] {
            assert_eq!(found["usage"][count], expected["usage"][count], "{request}");
        }
        // A stream of it, of which the prompt has been run.
        let parts = together.stream(at, request);
        let text = |choice: &Value| match &choice["text"] {
            Value::Null => choice["delta"]["content"].as_str().unwrap_or_default().to_owned(),
            text => text.as_str().unwrap_or_default().to_owned(),
        };
        let streamed: String = parts.iter().map(|part| text(&part["choices"][0])).collect();
        let choice = &expected["choices"][0];
        let whole = choice["message"]["content"].as_str().or(choice["text"].as_str());
        assert_eq!(streamed, whole.unwrap());
        let again = &together.post(at, request).1["usage"];
        let kept = again["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert_eq!(kept + 1, again["prompt_tokens"].as_u64().unwrap());
    }
    let peak = together.peak_rss();
    assert!(peak <= 150_000_000, "{peak}");
    for (flags, message) in [
        (&["--when-full", "slide"][..], "--when-full: a context slides for one text alone"),
        (&["--prompt-lookup"], "tokens are guessed for one text alone, without --batch"),
    ] {
        let serve = ["serve", path(&model), "--port", "0", "--batch", "2"];
        let error = failed(&outsize(&[&serve[..], flags].concat()), 2);
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn what_is_wrong_is_said_and_the_server_goes_on() {
    let dir = folder();
    // Without a chat template, and with a context of 64 tokens.
    let model = tiny(&dir);
    std::fs::remove_file(model.join("chat_template.jinja")).unwrap();
    for batch in ["1", "2"] {
        what_is_wrong_is_said(&Server::start(&model, &["--api-key", "secret", "--batch", batch]));
    }
}

fn what_is_wrong_is_said(server: &Server) {
    let (status, text) = server.text("/v1/completions", &json!({"prompt": "a"}), "secre");
    assert_eq!(status, 401, "{text}");
    assert!(text.contains("Authorization: Bearer KEY"), "{text}");
    assert_eq!(server.get("/v1/models").0, 401);
    assert_eq!(server.get("/health"), (200, json!({"status": "ok"})));
    for (at, request, status, param, message) in [
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "a"}]}),
            400,
            "messages",
            "no chat template",
        ),
        ("/v1/chat/completions", json!({"messages": []}), 400, "messages", "at least one"),
        ("/v1/chat/completions", json!({"prompt": "a"}), 400, "", "messages"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            400,
            "messages[0].content",
            "image_url",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]}),
            400,
            "messages[0].tool_calls[0]",
            "invalid type",
        ),
        ("/v1/completions", json!({"prompt": 5}), 400, "prompt", "a text, its tokens"),
        ("/v1/completions", json!({"prompt": ""}), 400, "", "no tokens"),
        ("/v1/completions", json!({"prompt": "a", "model": "gpt-5"}), 404, "model", "gpt-5"),
        ("/v1/completions", json!({"prompt": "a", "best_of": 3}), 400, "best_of", "not built in"),
        ("/v1/completions", json!({"prompt": "a", "temperature": -1}), 400, "", "temperature"),
        ("/v1/completions", json!({"prompt": "word ".repeat(200)}), 400, "", "tokens"),
        ("/v1/completions", json!({"prompt": "a", "stream": true, "top_p": 7}), 400, "", "top_p"),
        ("/v2", json!({}), 404, "", "/v1/chat/completions"),
    ] {
        let (found, text) = server.text(at, &request, "secret");
        assert_eq!(found, status, "{request}: {text}");
        let error: Value = serde_json::from_str(&text).unwrap();
        let error = &error["error"];
        assert!(error["message"].as_str().unwrap().contains(message), "{request}: {text}");
        assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{request}: {text}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    let (status, text) =
        server.text("/v1/completions", &json!({"prompt": "a", "user": "me"}), "secret");
    assert_eq!(status, 200, "{text}");
}

#[test]
fn requests_wait_their_turn_and_those_that_went_away_are_dropped() {
    let dir = folder();
    let model = model(&dir);
    for batch in ["1", "2"] {
        those_that_went_away_are_dropped(Server::start(
            &model,
            &["--context", "500", "--batch", batch],
        ));
    }
}

fn those_that_went_away_are_dropped(server: Server) {
    let long =
        json!({"prompt": "Once upon", "max_tokens": 450, "ignore_eos": false, "stream": true});
    std::thread::scope(|scope| {
        // A client that reads the beginning of a long answer, and goes.
        let post = server.agent().post(format!("http://{}/v1/completions", server.address));
        let answer = post.content_type("application/json").send(long.to_string()).unwrap();
        let mut first = [0; 10];
        answer.into_body().into_reader().read_exact(&mut first).unwrap();
        assert_eq!(&first[..5], b"data:");
        // Others are answered as if they were alone.
        let ask = |seed: u64| {
            let request = json!({"prompt": "The end", "seed": seed, "temperature": 0.9});
            server.post("/v1/completions", &request).1["choices"][0]["text"].clone()
        };
        let together: Vec<_> = (0..4).map(|seed| scope.spawn(move || ask(seed))).collect();
        let together: Vec<Value> =
            together.into_iter().map(|thread| thread.join().unwrap()).collect();
        let alone: Vec<Value> = (0..4).map(ask).collect();
        assert_eq!(together, alone);
    });
    // The long answer did not go on to its end.
    let said = server.end();
    assert!(!said.contains("450 tokens at"), "{said}");
}

#[test]
fn an_address_in_use_is_said_before_the_model_is_read() {
    let dir = folder();
    let model = tiny(&dir);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let error = failed(&outsize(&["serve", path(&model), "--port", &port]), 1);
    assert!(error.contains(&format!("cannot listen at 127.0.0.1:{port}")), "{error}");
    assert!(error.contains("--port"), "{error}");
}
