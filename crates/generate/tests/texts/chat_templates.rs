//! Chat templates render as in transformers, byte for byte.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use outsize_generate::{ChatMessage, ChatTemplate, ChatTemplates, ChatTool};
use serde::Deserialize;
use serde_json::json;

/// What scripts/fixtures/chat_templates.py writes.
#[derive(Deserialize)]
struct Fixture {
    now: String,
    tokens: BTreeMap<String, String>,
    conversations: Vec<Conversation>,
    /// Of each template, the text of each conversation, or none if it is refused.
    rendered: BTreeMap<String, Vec<Option<String>>>,
}

#[derive(Deserialize)]
struct Conversation {
    messages: Vec<ChatMessage>,
    #[serde(default)]
    tools: Vec<ChatTool>,
    add_generation_prompt: bool,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat")
}

/// Compares all templates of a folder; gives how many texts there were, and what differs.
fn compare(folder: &Path, rendered: &Path) -> (usize, Vec<String>) {
    let fixture: Fixture =
        serde_json::from_str(&std::fs::read_to_string(rendered).unwrap()).unwrap();
    let now = fixture.now.parse::<DateTime>().unwrap().to_zoned(TimeZone::UTC).unwrap();
    let (mut texts, mut wrong) = (0, Vec::new());
    for (name, expected) in &fixture.rendered {
        let source = std::fs::read_to_string(folder.join(name)).unwrap();
        let template = match ChatTemplate::new(name, &source, fixture.tokens.clone()) {
            Ok(template) => template,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        assert_eq!(expected.len(), fixture.conversations.len());
        for (index, (chat, expected)) in fixture.conversations.iter().zip(expected).enumerate() {
            let text =
                template.render_at(&chat.messages, &chat.tools, chat.add_generation_prompt, &now);
            texts += usize::from(expected.is_some());
            if text.as_ref().ok() != expected.as_ref() {
                wrong.push(format!("{name}, {index}: {text:?} instead of {expected:?}"));
            }
        }
    }
    (texts, wrong)
}

#[test]
fn well_known_templates_are_rendered_as_in_transformers() {
    let (texts, wrong) = compare(&fixtures(), &fixtures().join("rendered.json"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(texts > 120, "{texts}");
}

/// Editors send dozens of functions.
#[test]
fn many_tools_are_no_hostile_template() {
    let parameter = json!({"type": "string", "description": "What it is about, in one sentence.", "enum": ["a", "b"]});
    let parameters: Vec<_> =
        (0..12).map(|at| (format!("parameter_{at}"), parameter.clone())).collect();
    let parameters =
        json!({"type": "object", "properties": serde_json::Map::from_iter(parameters)});
    let tool = |at: usize| {
        let function = json!({"name": format!("function_{at}"), "description": "Does it.", "parameters": parameters});
        serde_json::from_value(json!({"type": "function", "function": function})).unwrap()
    };
    let tools: Vec<ChatTool> = (0..60).map(tool).collect();
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "jinja") {
            let source = std::fs::read_to_string(&path).unwrap();
            let template = ChatTemplate::new(&path, &source, BTreeMap::new()).unwrap();
            match template.render_with(&[ChatMessage::new("user", "Hi")], &tools, true) {
                Ok(text) => assert!(text.len() > 20_000, "{}", path.display()),
                Err(error) => assert!(error.to_string().contains("no place for tools"), "{error}"),
            }
        }
    }
}

/// Templates of a folder of one's own: `OUTSIZE_CHAT_TEMPLATES=FOLDER`, with rendered.json in it.
#[test]
#[ignore = "needs other templates"]
fn templates_of_a_folder_are_rendered_as_in_transformers() {
    let folder = PathBuf::from(std::env::var("OUTSIZE_CHAT_TEMPLATES").unwrap());
    let (texts, wrong) = compare(&folder, &folder.join("rendered.json"));
    assert!(wrong.is_empty(), "{} of {texts}:\n{}", wrong.len(), wrong.join("\n"));
}

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn templates_are_found_where_models_keep_them() {
    let dir = tempfile::tempdir().unwrap();
    let render = |name: &str| {
        let template = ChatTemplates::open(dir.path())?.get(name)?;
        template.render(&[ChatMessage::new("user", "Hi")], false)
    };
    let message = render("default").unwrap_err().to_string();
    assert!(message.contains("no chat template: "), "{message}");

    let config = r#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null,
        "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}"}"#;
    write(dir.path(), "tokenizer_config.json", config);
    assert_eq!(render("default").unwrap(), "<s>Hi</s>");

    let several = r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}"#;
    write(dir.path(), "tokenizer_config.json", several);
    assert_eq!((render("default").unwrap(), render("tool_use").unwrap()), ("a".into(), "b".into()));
    let message = render("rag").unwrap_err().to_string();
    assert!(message.contains("(there is default, tool_use)"), "{message}");

    write(dir.path(), "chat_template.jinja", "c");
    write(dir.path(), "additional_chat_templates/rag.jinja", "d");
    assert_eq!((render("default").unwrap(), render("rag").unwrap()), ("c".into(), "d".into()));

    write(dir.path(), "special_tokens_map.json", r#"{"bos_token": "<bos>"}"#);
    write(dir.path(), "other.jinja", "{{ bos_token }}");
    let other = ChatTemplates::open_file(dir.path(), &dir.path().join("other.jinja")).unwrap();
    assert_eq!(other.render(&[], false).unwrap(), "<bos>");
    let missing = ChatTemplates::open_file(dir.path(), Path::new("missing.jinja")).unwrap_err();
    assert!(missing.to_string().contains("missing.jinja"), "{missing}");

    for broken in [r#"{"chat_template": 3}"#, r#"{"chat_template": [{"name": "a"}]}"#, "[]"] {
        std::fs::remove_file(dir.path().join("chat_template.jinja")).ok();
        std::fs::remove_dir_all(dir.path().join("additional_chat_templates")).ok();
        write(dir.path(), "tokenizer_config.json", broken);
        let message = render("default").unwrap_err().to_string();
        assert!(message.contains("tokenizer_config.json"), "{message}");
    }
}
