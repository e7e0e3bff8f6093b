//! How likely tokens are, over HTTP; and several answers to a request.

use crate::common::serving::Server;
use crate::common::{folder, model};
use serde_json::{Value, json};

fn of(choice: &Value, field: &str) -> Vec<Option<f64>> {
    choice["logprobs"][field].as_array().unwrap().iter().map(Value::as_f64).collect()
}

fn tokens(choice: &Value) -> &Vec<Value> {
    choice["logprobs"]["tokens"].as_array().unwrap()
}

fn near(found: &[Option<f64>], expected: &[Option<f64>]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let (found, expected) = (found.unwrap(), expected.unwrap());
        assert!((found - expected).abs() < 1e-5, "{found} for {expected}");
    }
}

#[test]
fn tokens_have_the_same_scores_as_prompts_and_as_answers() {
    let dir = folder();
    let model = model(&dir);
    std::fs::write(
        model.join("chat_template.jinja"),
        "{% for m in messages %}{{ m.content }}{% endfor %}",
    )
    .unwrap();
    for batch in ["1", "3"] {
        let flags = ["--max-memory", "cpu=150MB", "--context", "200", "--batch", batch];
        let server = Server::start(&model, &flags);
        scores_are_the_same(&server);
        answers_are_those_of_requests_for_one(&server);
        biases_change_their_own_answer(&server);
        let peak = server.peak_rss();
        assert!(peak <= 150_000_000, "{peak}");
    }
}

/// And not what the model thinks of its tokens.
fn biases_change_their_own_answer(server: &Server) {
    let request =
        json!({"prompt": ["The end", "Once"], "max_tokens": 5, "temperature": 0, "logprobs": 0});
    let ask = |biases: Value| {
        let mut request = request.clone();
        request["logit_bias"] = biases;
        server.post("/v1/completions", &request)
    };
    let (_, before) = ask(json!({}));
    let (status, biased) = ask(json!({"70": 100, "71": -3.5}));
    assert_eq!(status, 200, "{biased}");
    for choice in biased["choices"].as_array().unwrap() {
        let all = tokens(choice);
        assert!(all.len() == 5 && all.iter().all(|token| *token == all[0]), "{choice}");
        assert!(of(choice, "token_logprobs").iter().all(|logprob| logprob.unwrap() < -0.1));
    }
    assert_eq!(ask(Value::Null).1["choices"], before["choices"]);
    let (status, refused) = ask(json!({"70": 1, "4000000": 1}));
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("logit_bias")));
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("no token 4000000"), "{message}");
}

fn scores_are_the_same(server: &Server) {
    let ask = |request: Value| {
        let (status, answer) = server.post("/v1/completions", &request);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let request =
        json!({"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0, "logprobs": 2});
    let answer = ask(request.clone());
    let answered = &answer["choices"][0];
    let own = of(answered, "token_logprobs");
    assert_eq!(own.len(), 6);
    // The likeliest token each time.
    let top = answered["logprobs"]["top_logprobs"].as_array().unwrap();
    for (own, top) in own.iter().zip(top) {
        let top: Vec<f64> =
            top.as_object().unwrap().values().map(|v| v.as_f64().unwrap()).collect();
        assert_eq!(top.len(), 2);
        assert_eq!(top.iter().copied().reduce(f64::max), *own);
    }
    let spelled: String = tokens(answered).iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(answered["text"], spelled);

    // The prompt before it, and the same text as a prompt.
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    let mut echoed = request.clone();
    echoed["echo"] = json!(true);
    let with_prompt = ask(echoed.clone());
    let echoed_choice = &with_prompt["choices"][0];
    let text = echoed_choice["text"].as_str().unwrap().to_owned();
    assert_eq!(text, format!("Once upon a time{}", answered["text"].as_str().unwrap()));
    let all = of(echoed_choice, "token_logprobs");
    assert_eq!((all.len(), all[0]), (prompt + 6, None));
    assert_eq!(echoed_choice["logprobs"]["top_logprobs"][0], Value::Null);
    near(&all[prompt..], &own);
    let offsets: Vec<u64> = echoed_choice["logprobs"]["text_offset"]
        .as_array()
        .unwrap()
        .iter()
        .map(|offset| offset.as_u64().unwrap())
        .collect();
    for (token, offset) in tokens(echoed_choice).iter().zip(&offsets) {
        assert!(text[*offset as usize..].starts_with(token.as_str().unwrap()), "{token}");
    }
    let whole = json!({"prompt": text, "max_tokens": 0, "echo": true, "logprobs": 2});
    let alone = ask(whole);
    if tokens(&alone["choices"][0]) == tokens(echoed_choice) {
        near(&of(&alone["choices"][0], "token_logprobs")[1..], &all[1..]);
    }
    assert_eq!(alone["usage"]["completion_tokens"], 0);
    assert_eq!(alone["choices"][0]["finish_reason"], "length");

    // Several at once, some of which go on, and by their tokens.
    let texts = ["Once upon a time", "The end", "Once upon a hill there was a house"];
    let of_text = |text: &str, more: u64| {
        ask(
            json!({"prompt": text, "max_tokens": more, "echo": true, "logprobs": 0, "temperature": 0}),
        )
    };
    let several = ask(
        json!({"prompt": texts, "max_tokens": 3, "echo": true, "logprobs": 0, "temperature": 0}),
    );
    for (index, text) in texts.iter().enumerate() {
        let (found, expected) = (&several["choices"][index], &of_text(text, 3)["choices"][0]);
        assert_eq!((&found["index"], &found["text"]), (&json!(index), &expected["text"]));
        near(&of(found, "token_logprobs")[1..], &of(expected, "token_logprobs")[1..]);
    }
    // Without scores the prompt is only sent back.
    let plain = ask(json!({"prompt": "The end", "echo": true, "max_tokens": 3, "temperature": 0}));
    assert_eq!(plain["choices"][0]["text"], several["choices"][1]["text"]);
    assert_eq!(plain["choices"][0]["logprobs"], Value::Null);

    // An answer in a conversation, whole and as it comes.
    let messages = json!([{"role": "user", "content": "Once upon a time"}]);
    let chat = json!({"messages": messages, "max_tokens": 4, "temperature": 0, "logprobs": true, "top_logprobs": 3});
    let (status, answer) = server.post("/v1/chat/completions", &chat);
    assert_eq!(status, 200, "{answer}");
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 4);
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(content[0]["top_logprobs"][0]["logprob"], content[0]["logprob"]);
    let bytes: Vec<u8> = serde_json::from_value(content[0]["bytes"].clone()).unwrap();
    assert_eq!(content[0]["token"], String::from_utf8(bytes).unwrap());
    let parts = server.stream("/v1/chat/completions", &chat);
    let last = parts.last().unwrap();
    assert_eq!(last["choices"][0]["logprobs"], answer["choices"][0]["logprobs"]);
}

fn answers_are_those_of_requests_for_one(server: &Server) {
    let request = |more: Value| {
        let mut request = json!({"temperature": 0.9, "max_tokens": 5, "seed": 3});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    let texts = ["Once upon a time", "The end"];
    let all = server.post("/v1/completions", &request(json!({"prompt": texts, "n": 2}))).1;
    let mut counts = [0, 0];
    for (index, choice) in all["choices"].as_array().unwrap().iter().enumerate() {
        let (text, seed) = (texts[index / 2], 3 + index % 2);
        let (_, one) =
            server.post("/v1/completions", &request(json!({"prompt": text, "seed": seed})));
        assert_eq!(choice["index"], index);
        assert_eq!(choice["text"], one["choices"][0]["text"]);
        let count = |name: &str| one["usage"][name].as_u64().unwrap();
        counts[0] += count("prompt_tokens");
        counts[1] += count("completion_tokens");
    }
    // A prompt counts once.
    assert_eq!(all["usage"]["prompt_tokens"], counts[0] / 2);
    assert_eq!(all["usage"]["completion_tokens"], counts[1]);
    // Each choice of a stream is told by its number.
    let usage = json!({"include_usage": true});
    let parts = request(json!({"prompt": texts, "n": 2, "stream_options": usage}));
    let parts = server.stream("/v1/completions", &parts);
    for (index, choice) in all["choices"].as_array().unwrap().iter().enumerate() {
        let of_choice = parts.iter().filter_map(|part| {
            let choice = &part["choices"][0];
            (choice["index"] == index).then(|| choice["text"].as_str()).flatten()
        });
        assert_eq!(of_choice.collect::<String>(), choice["text"].as_str().unwrap());
    }
    assert_eq!(
        parts.last().unwrap()["usage"]["completion_tokens"],
        all["usage"]["completion_tokens"]
    );
    // By their tokens.
    let scored = json!({"prompt": "The end", "echo": true, "logprobs": 0, "max_tokens": 0});
    let (_, scored) = server.post("/v1/completions", &scored);
    assert_eq!(scored["choices"][0]["text"], "The end");
    let by_ids = json!({"prompt": [5, 6, 7], "echo": true, "logprobs": 1, "max_tokens": 1});
    let (status, by_ids) = server.post("/v1/completions", &by_ids);
    assert_eq!((status, &by_ids["usage"]["prompt_tokens"]), (200, &json!(3)), "{by_ids}");
    assert_eq!(tokens(&by_ids["choices"][0]).len(), 4);

    for (request, param, message) in [
        (json!({"prompt": "a", "logprobs": 21}), "logprobs", "at most 20"),
        (json!({"prompt": "a", "logprobs": true}), "logprobs", "it is a number"),
        (json!({"prompt": "a", "n": 0}), "n", "at least 1"),
        (json!({"prompt": "a", "n": 65}), "n", "at most 64 answers"),
        (json!({"prompt": vec!["a"; 65]}), "prompt", "at most 64 answers"),
        (json!({"prompt": "a", "echo": true, "stream": true}), "echo", "leave out `stream`"),
        (json!({"prompt": []}), "prompt", "a text, its tokens"),
        (json!({"prompt": [[5], []], "echo": true, "logprobs": 1}), "", "no tokens"),
        (json!({"prompt": [999_999], "echo": true, "logprobs": 1}), "", "999999"),
        (json!({"prompt": [999_999]}), "", "999999"),
        (json!({"prompt": vec![5; 300], "echo": true, "logprobs": 1}), "", "300"),
        (json!({"prompt": "a", "echo": true, "logprobs": 1, "top_p": 7}), "", "top_p"),
    ] {
        let (status, answer) = server.post("/v1/completions", &request);
        assert_eq!(status, 400, "{request}: {answer}");
        let error = &answer["error"];
        assert!(error["message"].as_str().unwrap().contains(message), "{request}: {answer}");
        assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{request}: {answer}");
    }
}
