//! `outsize chat`: a conversation from standard input, its commands, its errors, and Ctrl-C.

use crate::common::{done, failed, folder, message, model, outsize, path, text};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

const TEMPLATE: &str = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}\
    {% if add_generation_prompt %}<s>assistant: {% endif %}";

/// A model with a chat template.
fn chatty(dir: &TempDir) -> PathBuf {
    let model = model(dir);
    std::fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap();
    model
}

fn start(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_outsize"))
        .arg("chat")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A chat in which all of this is said, line by line.
fn chat(args: &[&str], said: &str) -> Output {
    let mut child = start(args);
    // One that refuses its arguments reads nothing.
    let _ = child.stdin.take().unwrap().write_all(said.as_bytes());
    child.wait_with_output().unwrap()
}

fn messages(file: &Path) -> Vec<(String, String)> {
    let value: Vec<Value> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let field = |message: &Value, key: &str| message[key].as_str().unwrap().to_owned();
    value.iter().map(|message| (field(message, "role"), field(message, "content"))).collect()
}

#[test]
fn a_conversation_is_saved_and_goes_on_as_it_would_have() {
    let dir = folder();
    let model = chatty(&dir);
    let (half, whole, again) = (
        dir.path().join("half.json"),
        dir.path().join("whole.json"),
        dir.path().join("again.json"),
    );
    let arguments = [path(&model), "--max-new-tokens", "6", "--system", "Be brief"];
    let said = format!(
        "Hello\n\n/save {}\n\"\"\"Why?\n\nAnd how?\n\"\"\"\n/save {}\n/stats\n/nothing\n/help\n/reset\nHello\n",
        path(&half),
        path(&whole)
    );
    let output = chat(&arguments, &said);
    assert!(failed(&output, 1).contains("1 message or command failed"));
    let shown = text(&output.stdout);
    let said_back = message(&output);
    let whole_messages = messages(&whole);
    let roles: Vec<&str> = whole_messages.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(whole_messages[3].1, "Why?\n\nAnd how?");
    assert_eq!(messages(&half), whole_messages[..3]);
    // A new conversation begins as the first one did.
    let (first, second) = (&whole_messages[2].1, &whole_messages[4].1);
    assert_eq!(shown, format!("{first}\n{second}\n{first}\n"));
    for expected in ["5 messages", "tokens in the KV cache", "kept", "peak memory", "Ctrl-C"] {
        assert!(said_back.contains(expected), "{expected}: {said_back}");
    }
    assert!(said_back.contains("/nothing is no command"), "{said_back}");

    // Under a budget, from the file.
    let said = format!(
        "/load {}\n\"\"\"\nWhy?\n\nAnd how?\"\"\"\n/save {}\n/bye\nnever read\n",
        path(&half),
        path(&again)
    );
    let streamed = [&arguments[..], &["--max-memory", "cpu=110MB", "--context", "200"]].concat();
    let output = chat(&streamed, &said);
    assert_eq!(done(&output), format!("{second}\n"));
    assert_eq!(messages(&again), whole_messages);
}

#[test]
fn what_is_wrong_is_said_and_the_conversation_goes_on() {
    let dir = folder();
    let model = chatty(&dir);
    let arguments = [path(&model), "--max-new-tokens", "3", "--context", "60"];
    let broken = dir.path().join("broken.json");
    std::fs::write(&broken, "[{\"role\": \"user\"}]").unwrap();
    let config = model.join("config.json");
    let said = format!(
        "/load {}\n/load {}\n/save {}\n/save {}\n{}\nHello\n",
        path(&broken),
        path(&dir.path().join("missing.json")),
        path(&config),
        path(&broken),
        "word ".repeat(100)
    );
    let before = std::fs::read(&config).unwrap();
    let output = chat(&arguments, &said);
    assert!(failed(&output, 1).contains("5 messages or commands failed"));
    assert_eq!(text(&output.stdout).lines().count(), 1);
    let message = message(&output);
    for expected in [
        "broken.json is no conversation",
        "cannot read",
        "is a file of the model itself",
        "broken.json exists and is no conversation",
        "begin the conversation anew",
    ] {
        assert!(message.contains(expected), "{expected}: {message}");
    }
    assert!(failed(&chat(&arguments, "Hello\n\"\"\"\nWhy?\n"), 1).contains("not answered"));
    assert_eq!(std::fs::read(&config).unwrap(), before);
    assert_eq!(std::fs::read(&broken).unwrap(), b"[{\"role\": \"user\"}]");
}

#[test]
fn a_model_without_a_chat_template_is_refused_and_given_one() {
    let dir = folder();
    let model = model(&dir);
    // A made model has one.
    done(&chat(&[path(&model), "--max-new-tokens", "2"], "Hello\n"));
    std::fs::remove_file(model.join("chat_template.jinja")).unwrap();
    let message = failed(&chat(&[path(&model)], "Hello\n"), 1);
    assert!(message.contains("no chat template"), "{message}");
    assert!(message.contains("outsize run, --chat-template FILE"), "{message}");
    let file = dir.path().join("mine.jinja");
    std::fs::write(&file, TEMPLATE).unwrap();
    let given = [path(&model), "--max-new-tokens", "2", "--chat-template", path(&file)];
    done(&chat(&given, "Hello\n"));
    // One that refuses a system message says so.
    std::fs::write(&file, "{{ raise_exception('no system here') }}").unwrap();
    let message = failed(&chat(&[&given[..], &["--system", "x"]].concat(), "Hello\n"), 1);
    assert!(message.contains("mine.jinja, line 1: no system here"), "{message}");
    std::fs::write(&file, "{% if %}").unwrap();
    let message = failed(&chat(&given, "Hello\n"), 1);
    assert!(message.contains("mine.jinja, line 1: "), "{message}");
    // Many beams are not for a chat.
    std::fs::write(model.join("generation_config.json"), json!({"num_beams": 4}).to_string())
        .unwrap();
    std::fs::write(&file, TEMPLATE).unwrap();
    let message = failed(&chat(&given, "Hello\n"), 1);
    assert!(message.contains("num_beams"), "{message}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_answer_and_not_the_chat() {
    let dir = folder();
    let model = chatty(&dir);
    let file = dir.path().join("said.json");
    let mut child =
        start(&[path(&model), "--ignore-eos", "--max-memory", "cpu=110MB", "--context", "400"]);
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"Hello\n").unwrap();
    let mut first = [0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
    // It is asked for more only when the answer has ended.
    let mut said = Vec::new();
    let stderr = child.stderr.as_mut().unwrap();
    while !text(&said).contains("interrupted: the answer so far") {
        let mut byte = [0];
        stderr.read_exact(&mut byte).unwrap();
        said.push(byte[0]);
    }
    input.write_all(format!("Why?\n/save {}\n", path(&file)).as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", message(&output));
    let messages = messages(&file);
    assert_eq!(messages.len(), 4);
    assert!(messages[1].1.as_bytes().starts_with(&first));
}

#[test]
fn help_names_what_a_chat_takes() {
    let help = done(&outsize(&["chat", "--help"]));
    for flag in ["--system", "--chat-template", "--max-memory", "--temperature", "--context"] {
        assert!(help.contains(flag), "{flag}");
    }
}
