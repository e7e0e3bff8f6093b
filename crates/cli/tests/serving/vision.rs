//! Images in prompts, conversations and requests: the text is that of `transformers`
//! (`scripts/fixtures/vision.py`).

use crate::common::serving::Server;
use crate::common::{done, failed, folder, message, model, outsize, path, report, text};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const QWEN3: &str = "vision-qwen3_vl";

/// Where tiny checkpoints are, with what transformers computed.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/fixtures");

fn fixture(name: &str) -> PathBuf {
    Path::new(FIXTURES).join(name)
}

/// Those that see images.
fn fixtures() -> Vec<String> {
    let names = std::fs::read_dir(FIXTURES).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("vision-") && !name.starts_with("vision-gguf-")).collect()
}

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture(name).join("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn images(name: &str) -> [String; 2] {
    ["image-0.png", "image-1.png"].map(|file| path(&fixture(name).join(file)).to_owned())
}

/// The text of a prompt that stands for an image.
fn place(name: &str) -> &'static str {
    match name {
        "vision-mistral3" | "vision-mistral_large4" => "[IMG]",
        "vision-gemma4" | "vision-gemma4-clipped" | "vision-gemma4_unified" | "vision-llama4" => {
            "<|image|>"
        }
        "vision-gemma3" => "<start_of_image>",
        "vision-glm4v" | "vision-glm4v_moe" => "<|begin_of_image|><|image|><|end_of_image|>",
        "vision-muse_glimmer" | "vision-muse_spark" => "<|patch|>",
        "vision-internvl" | "vision-internvl-experts" => "<IMG_CONTEXT>",
        "vision-cohere2_vision" => "<|IMG_PATCH|>",
        "vision-aya_vision" | "vision-smolvlm" | "vision-idefics3" => "<image>",
        "vision-kimi_k25" => "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>",
        _ => "<|vision_start|><|image_pad|><|vision_end|>",
    }
}

/// The fixture's prompt.
fn prompt(name: &str) -> String {
    let image = place(name);
    let said = format!("First {image}, then {image}: what is it?");
    match name {
        "vision-mistral3" | "vision-mistral_large4" => format!("<s>[INST]{said}[/INST]"),
        "vision-gemma4" | "vision-gemma4-clipped" | "vision-gemma4_unified" => {
            format!("<bos><|turn>user\n{said}<turn|>\n<|turn>model\n")
        }
        "vision-gemma3" => {
            format!("<bos><start_of_turn>user\n{said}<end_of_turn>\n<start_of_turn>model\n")
        }
        "vision-glm4v" | "vision-glm4v_moe" => format!("<|user|>\n{said}<|assistant|>\n"),
        "vision-muse_glimmer" | "vision-muse_spark" => format!("user: {said}<|eot|>assistant: "),
        "vision-llama4" => format!("<|begin_of_text|>user: {said}<|eot|>assistant: "),
        "vision-cohere2_vision" | "vision-aya_vision" => {
            format!("<BOS><|START|>user: {said}<|END|><|START|>assistant: ")
        }
        "vision-smolvlm" | "vision-idefics3" => {
            format!("<|im_start|>User: {said}<end_of_utterance>\nAssistant:")
        }
        "vision-kimi_k25" => format!("<|im_user|>user: {said}<|im_end|><|im_user|>assistant: "),
        _ => format!("<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"),
    }
}

fn chat(args: &[&str], said: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_outsize"))
        .arg("chat")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that refuses its arguments reads nothing.
    let _ = child.stdin.take().unwrap().write_all(said.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn a_prompt_with_images_is_gone_on_with_as_by_the_reference() {
    for name in fixtures().iter().map(String::as_str) {
        let (folder, prompt, [first, second]) = (fixture(name), prompt(name), images(name));
        let arguments = ["run", path(&folder), "--max-new-tokens", "16", "--no-special-tokens"];
        let run = |more: &[&str]| {
            let output = outsize(&[&arguments, more].concat());
            (done(&output), message(&output))
        };
        let given = ["--prompt", &prompt, "--image", &first, "--image", &second];
        let json = |more: &[&str]| -> Value {
            let all = [&given, more, &["--json"]].concat();
            let (text, said) = run(&all);
            assert_eq!(said, "", "{name}");
            serde_json::from_str(&text).unwrap()
        };
        let report = json(&[]);
        let expected = expected(name);
        assert_eq!(report["tokens"], expected["greedy"], "{name}");
        assert_eq!(report["prompt_tokens"], expected["ids"].as_array().unwrap().len());
        // With as little memory as is asked for.
        let refused = outsize(&[&arguments, &given[..], &["--max-memory", "cpu=1MB"]].concat());
        assert!(failed(&refused, 1).contains("--max-memory"), "{name}");
        let tight = json(&["--max-memory", "cpu=54MB"]);
        assert_eq!(tight["tokens"], report["tokens"], "{name}");
        // Guesses change nothing.
        if name != "vision-qwen3_5" {
            assert_eq!(json(&["--prompt-lookup"])["tokens"], report["tokens"], "{name}");
        }
        // Without places for them, images come first.
        let (_, said) = run(&["--prompt", "What?", "--image", &second]);
        let seen = match name {
            "vision-gemma3" => "24",
            "vision-qwen2_vl"
            | "vision-qwen2_5_vl"
            | "vision-qwen2_5_omni"
            | "vision-exaone4_5" => "56",
            "vision-gemma4" | "vision-gemma4-clipped" | "vision-gemma4_unified" => "60",
            "vision-llama4"
            | "vision-internvl"
            | "vision-internvl-experts"
            | "vision-cohere2_vision"
            | "vision-aya_vision"
            | "vision-smolvlm" => "7 tiles of 16",
            "vision-idefics3" => "5 tiles of 16",
            _ => "48",
        };
        assert!(said.contains(&format!("image-1.png: 75 x 49, seen as {seen} x")), "{said}");
        // Seen smaller.
        let (_, said) = run(&["--prompt", "What?", "--image", &second, "--image-tokens", "6"]);
        let seen = match name {
            "vision-gemma4" | "vision-gemma4-clipped" | "vision-gemma4_unified" => "36",
            "vision-llama4"
            | "vision-internvl"
            | "vision-internvl-experts"
            | "vision-cohere2_vision"
            | "vision-aya_vision"
            | "vision-smolvlm" => "16",
            // Of a token each.
            "vision-idefics3" => "5 tiles of 16",
            _ => "24",
        };
        assert!(said.contains(&format!("seen as {seen} x")), "{said}");
    }
}

#[test]
fn the_vision_encoder_of_a_gguf_file_is_beside_it_or_given() {
    let (name, files) = ("vision-gemma3", fixture("vision-gguf-gemma3"));
    let [first, second] = images(name);
    let run = |model: &Path, more: &[&str]| {
        let given = ["run", path(model), "--prompt", &prompt(name), "--no-special-tokens"];
        let images = ["--image", &first, "--image", &second, "--max-new-tokens", "16", "--json"];
        outsize(&[&given, &images[..], more].concat())
    };
    let tokens = &expected(name)["greedy"];
    let (model, encoder) = (files.join("model.gguf"), files.join("mmproj.gguf"));
    assert_eq!(report(&run(&model, &[]))["tokens"], *tokens);
    assert_eq!(report(&run(&model, &["--max-memory", "cpu=54MB"]))["tokens"], *tokens);
    // Alone in a folder it needs to be told.
    let alone = folder();
    let copy = alone.path().join("m.gguf");
    std::fs::copy(&model, &copy).unwrap();
    let said = failed(&run(&copy, &[]), 2);
    assert!(said.contains("--mmproj"), "{said}");
    let given = ["--mmproj", path(&encoder)];
    assert_eq!(report(&run(&copy, &given))["tokens"], *tokens);
    // Of two that would do, one is to be named.
    for name in ["mmproj-a.gguf", "mmproj-b.gguf"] {
        std::fs::copy(&encoder, alone.path().join(name)).unwrap();
    }
    let said = failed(&run(&copy, &[]), 1);
    assert!(said.contains("mmproj-a.gguf and mmproj-b.gguf beside it"), "{said}");
    assert!(said.contains("(--mmproj)"), "{said}");
    // What cannot be.
    let other = fixture("vision-gguf-mistral3").join("mmproj.gguf");
    let said = failed(&run(&copy, &["--mmproj", path(&other)]), 1);
    assert!(said.contains("mmproj.gguf: ") && said.contains("for language models of"), "{said}");
    let said = failed(&run(&copy, &["--mmproj", path(&model)]), 1);
    assert!(said.contains("\"clip\""), "{said}");
    let said = failed(&run(&fixture(name), &given), 2);
    assert!(said.contains("--mmproj: this model is a folder"), "{said}");
    let said = failed(&outsize(&[&["run", path(&model), "--prompt", "x"], &given[..]].concat()), 2);
    assert!(said.contains("--mmproj: give --image"), "{said}");
    let said = failed(&outsize(&["run", path(&encoder), "--prompt", "x"]), 1);
    assert!(said.contains("name the file of the whole model"), "{said}");
    // A conversation finds it too; and one that is given is not passed over.
    let arguments = [path(&model), "--max-new-tokens", "4", "--image", &first];
    done(&chat(&arguments, "What?\n"));
    let said = failed(&chat(&[&arguments[..], &["--mmproj", path(&other)]].concat(), "What?\n"), 1);
    assert!(said.contains("for language models of"), "{said}");
}

#[test]
fn images_without_places_come_behind_what_any_text_begins_with() {
    for (name, begin) in [
        (QWEN3, None),
        ("vision-mistral3", Some("<s>")),
        ("vision-gemma3", Some("<bos>")),
        ("vision-gemma4", Some("<bos>")),
        ("vision-muse_glimmer", Some("<|begin_of_text|>")),
        ("vision-kimi_k25", Some("[BOS]")),
    ] {
        let model = folder();
        for file in std::fs::read_dir(fixture(name)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), model.path().join(file.file_name())).unwrap();
        }
        if let Some(begin) = begin {
            let file = model.path().join("tokenizer.json");
            let mut tokenizer: Value =
                serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
            let tokens = tokenizer["added_tokens"].as_array().unwrap();
            let id = &tokens.iter().find(|token| token["content"] == begin).unwrap()["id"];
            let special = json!({"SpecialToken": {"id": begin, "type_id": 0}});
            let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
            tokenizer["post_processor"] = json!({
                "type": "TemplateProcessing",
                "single": [special, text("A")],
                "pair": [special, text("A"), text("B")],
                "special_tokens": {begin: {"id": begin, "ids": [id], "tokens": [begin]}},
            });
            std::fs::write(&file, tokenizer.to_string()).unwrap();
        }
        let [first, second] = images(name);
        let run = |prompt: &str, more: &[&str]| -> Value {
            let arguments = ["run", path(model.path()), "--prompt", prompt, "--json"];
            let images = ["--max-new-tokens", "8", "--image", &first, "--image", &second];
            report(&outsize(&[&arguments, &images[..], more].concat()))
        };
        let plain = run("What?", &[]);
        let placed = format!("{}{}What?", begin.unwrap_or(""), place(name).repeat(2));
        let placed = run(&placed, &["--no-special-tokens"]);
        for entry in ["prompt_tokens", "tokens"] {
            assert_eq!(plain[entry], placed[entry], "{name}, {entry}");
        }
    }
}

#[test]
fn a_conversation_is_about_images() {
    let name = QWEN3;
    let (model, [first, second]) = (fixture(name), images(name));
    let saved = folder();
    let file = saved.path().join("saved.json");
    let arguments = [path(&model), "--max-new-tokens", "4", "--image", &first];
    let said = format!(
        "What is this?\n/image {second}\nAnd this?\n/image nothing.png\n/save {}\n/stats\n",
        path(&file)
    );
    let output = chat(&arguments, &said);
    let said = failed(&output, 1);
    for part in ["nothing.png", "4 messages", "images are not part of the file", "--image"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!text(&output.stdout).is_empty());
    // Both images take more than 20 tokens; the conversation goes on without the second.
    let said = format!("What is this?\n/image {second}\nAnd this?\nBut?\n");
    let output = chat(&[&arguments[..], &["--image-tokens", "20"]].concat(), &said);
    let said = failed(&output, 1);
    assert!(said.contains("21 tokens") && said.contains("opened for 20"), "{said}");
    assert!(said.contains("(--image-tokens)"), "{said}");
    assert!(said.contains("1 message or command failed"), "{said}");
    // For none, no memory is kept.
    let output = chat(&[&arguments[..], &["--image-tokens", "0"]].concat(), "What is this?\n");
    assert!(failed(&output, 1).contains("not opened for any"));
    // No room for images is no reason not to talk.
    let output = chat(&[path(&model), "--max-memory", "cpu=50MB"], "Hello\n");
    done(&output);
    assert!(message(&output).contains("no memory is left for images"), "{}", message(&output));
}

#[test]
fn requests_have_images_in_them() {
    for name in fixtures().iter().map(String::as_str) {
        let url = |file: &str, kind: &str| {
            format!("data:image/{kind};base64,{}", STANDARD.encode(std::fs::read(file).unwrap()))
        };
        let [first, second] = images(name).map(|file| url(&file, "png"));
        let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let said = |text: &str| json!({"type": "text", "text": text});
        let ask = |url: &str| {
            let content =
                [said("First "), image(&first), said(", then "), image(url), said(": what is it?")];
            json!({"messages": [{"role": "user", "content": content}], "max_tokens": 16})
        };
        let server = Server::start(&fixture(name), &["--image-tokens", "100"]);
        for turn in 0..2 {
            let (status, answer) = server.post("/v1/chat/completions", &ask(&second));
            assert_eq!(status, 200, "{answer}");
            let expected = expected(name);
            assert_eq!(
                answer["choices"][0]["message"]["content"], expected["text"],
                "{name}, {turn}"
            );
            assert_eq!(answer["usage"]["prompt_tokens"], expected["ids"].as_array().unwrap().len());
        }
        for (broken, why) in [
            ("https://example.org/image.png", "nothing is fetched"),
            ("data:image/png;base64,!!", "not base64"),
            ("data:image/png,x", ";base64,"),
            ("data:image/png;base64,bm8gaW1hZ2U=", "PNG, JPEG and WebP"),
        ] {
            let (status, answer) = server.post("/v1/chat/completions", &ask(broken));
            let error = &answer["error"];
            assert_eq!(
                (status, &error["param"]),
                (400, &json!("messages[0].content[3].image_url"))
            );
            assert!(error["message"].as_str().unwrap().contains(why), "{error}");
        }
        let video = json!({"messages": [{"role": "user", "content": [{"type": "video_url"}]}]});
        assert_eq!(server.post("/v1/chat/completions", &video).0, 400);
        server.end();
    }
    // Side by side there are none.
    let name = QWEN3;
    let server = Server::start(&fixture(name), &["--batch", "2"]);
    let [first, _] = images(name).map(|file| STANDARD.encode(std::fs::read(file).unwrap()));
    let image = json!({"type": "image_url", "image_url": format!("data:image/png;base64,{first}")});
    let request = json!({"messages": [{"role": "user", "content": [image]}]});
    let (status, answer) = server.post("/v1/chat/completions", &request);
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("messages")), "{answer}");
    server.end();
}

#[test]
fn models_that_see_none_say_so() {
    let dir = folder();
    let model = model(&dir);
    let [image, _] = images(QWEN3);
    let run = |more: &[&str]| outsize(&[&["run", path(&model), "--ids", "1"], more].concat());
    let said = failed(&run(&["--image", &image]), 2);
    assert!(said.contains("sees no images") && said.contains("qwen3_vl"), "{said}");
    assert!(failed(&run(&["--image-tokens", "9"]), 2).contains("give --image"));
    let serve = outsize(&["serve", path(&model), "--port", "0", "--image-tokens", "9"]);
    assert!(failed(&serve, 2).contains("sees no images"));
    let fixture = fixture(QWEN3);
    let both = ["serve", path(&fixture), "--port", "0", "--image-tokens", "9", "--batch", "2"];
    assert!(failed(&outsize(&both), 2).contains("--batch"));
    let file = path(&model.join("config.json")).to_owned();
    let run = ["run", path(&fixture), "--prompt", "x", "--image", &file];
    let said = failed(&outsize(&run), 1);
    assert!(said.contains("config.json") && said.contains("PNG, JPEG and WebP"), "{said}");
}
