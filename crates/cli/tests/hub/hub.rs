//! Models on a Hub: what describes them is fetched, and never their weights; whatever a server
//! answers, it is one error.

use crate::common::{done, failed, folder, outsize, path, text};
use crate::server::{Asked, Body, COMMIT, Reply, Server, files, names};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// The command, with the Hub at `endpoint` and an empty cache, and more variables.
fn estimate_with(endpoint: &str, model: &str, variables: &[(&str, &str)], more: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outsize"));
    for name in
        ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN_PATH"]
    {
        command.env_remove(name);
    }
    command
        .args(["estimate", model])
        .args(more)
        .env("NO_PROXY", "127.0.0.1,localhost")
        .env("HF_HOME", home.path())
        .env("HF_ENDPOINT", endpoint)
        .envs(variables.iter().copied())
        // No name of a model is one of a folder here.
        .current_dir(home.path())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn estimate(server: &Server, more: &[&str]) -> Output {
    estimate_with(&server.url(), "org/model", &[], more)
}

/// The one message of a command that failed, fit for a terminal.
#[track_caller]
fn said(output: &Output) -> String {
    let message = failed(output, 1);
    assert!(message.starts_with("error: "), "{message}");
    assert_eq!(message.matches("error: ").count(), 1, "{message}");
    assert!(message.chars().all(|char| char == '\n' || !char.is_control()), "{message:?}");
    assert!(message.len() < 2000, "{message}");
    assert!(output.stdout.is_empty());
    message
}

/// A model of some 500 KB, in shards or in one file.
fn model(dir: &TempDir, shard: &str) -> PathBuf {
    let config = dir.path().join("config.json");
    let text = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 600, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "tie_word_embeddings": false
    });
    fs::write(&config, text.to_string()).unwrap();
    let out = dir.path().join("model");
    done(&outsize(&["synth", path(&config), path(&out), "--max-shard-size", shard]));
    out
}

/// The report without what differs from run to run: the process itself.
fn steady(output: &Output) -> Value {
    let mut report: Value = serde_json::from_str(&done(output)).unwrap();
    report.as_object_mut().unwrap().remove("model");
    report.as_object_mut().unwrap().remove("notes");
    for row in report["estimates"].as_array_mut().unwrap() {
        for key in ["resident", "least"] {
            assert!(row.as_object_mut().unwrap().remove(key).unwrap().as_u64().is_some());
        }
    }
    report
}

fn header_len(file: &[u8]) -> u64 {
    u64::from_le_bytes(file[..8].try_into().unwrap())
}

#[test]
fn weights_are_never_asked_for() {
    for shard in ["50KB", "5GB"] {
        let dir = folder();
        let model = model(&dir, shard);
        let here = steady(&outsize(&["estimate", path(&model), "--json"]));
        assert_eq!(here["source"], "config and headers");
        let server = Server::of_folder(&model);
        assert_eq!(steady(&estimate(&server, &["--json"])), here);
        let files = files(&model);
        let shards: Vec<_> =
            files.iter().filter(|(name, _)| name.ends_with(".safetensors")).collect();
        assert_eq!(shards.len() > 4, shard == "50KB");
        for (name, bytes) in shards {
            let asked: Vec<_> =
                server.asked().into_iter().filter(|asked| asked.file() == name).collect();
            assert!(asked.iter().all(|asked| asked.range().is_some()));
            let sent: u64 = asked.iter().map(|asked| asked.sent).sum();
            assert_eq!(sent, 9 + header_len(bytes), "{name}");
        }
        for asked in server.asked() {
            let of_commit = format!("/org/model/resolve/{COMMIT}/");
            assert!(asked.is_list() || asked.path.starts_with(&of_commit), "{}", asked.path);
            assert!(!asked.headers.contains_key("authorization"));
            assert!(asked.headers["user-agent"].contains("outsize/"));
        }
    }
}

#[test]
fn of_a_gguf_file_the_header_is_fetched() {
    let dir = folder();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures");
    let mut bytes = fs::read(fixtures.join("gguf-llama-q8_0/model.gguf")).unwrap();
    // As much as is never asked for.
    bytes.resize(bytes.len() + (4 << 20), 0);
    let file = dir.path().join("m-Q8_0.gguf");
    fs::write(&file, bytes).unwrap();
    let here = steady(&outsize(&["estimate", path(&file), "--json"]));
    assert_eq!(here["source"], "config and headers");
    for model in ["org/model", "org/model:q8_0"] {
        let server = Server::of_folder(dir.path());
        let there = estimate_with(&server.url(), model, &[], &["--json"]);
        assert_eq!(steady(&there), here);
        let asked = server.asked().into_iter().filter(|asked| !asked.is_list());
        assert_eq!(asked.map(|asked| asked.sent).sum::<u64>(), 1 << 20);
    }
}

#[test]
fn a_bare_configuration_will_do() {
    let dir = folder();
    let model = model(&dir, "5GB");
    fs::remove_file(model.join(SINGLE)).unwrap();
    let server = Server::of_folder(&model);
    let report: Value = serde_json::from_str(&done(&estimate(&server, &["--json"]))).unwrap();
    assert_eq!(report["source"], "config");
    let notes = report["notes"].to_string();
    assert!(notes.contains("has no weights that can be read"), "{notes}");
    fs::remove_file(model.join("config.json")).unwrap();
    let message = said(&estimate(&Server::of_folder(&model), &[]));
    assert!(message.contains("org/model has neither config.json nor"), "{message}");
}

#[test]
fn all_files_are_of_one_commit() {
    let dir = folder();
    let server = Server::of_folder(&model(&dir, "50KB"));
    let output = estimate_with(&server.url(), "org/model@refs/pr/1", &[], &[]);
    assert!(done(&output).contains(&format!("at commit {COMMIT}")));
    let asked = server.asked();
    assert_eq!(asked[0].path, "/api/models/org/model/revision/refs%2Fpr%2F1?blobs=true");
    let commit = format!("/org/model/resolve/{COMMIT}/");
    assert!(asked[1..].iter().all(|asked| asked.path.starts_with(&commit)));
}

/// A Hub that redirects all files to another host.
fn elsewhere(files: &Path, target: String) -> Server {
    Server::of(crate::server::files(files), move |asked: &Asked, reply| {
        if asked.is_list() {
            return reply;
        }
        let target = format!("Location: {target}/cdn{}", asked.path);
        Reply::new(302, &[&target], b"moved")
    })
}

#[test]
fn the_token_is_for_the_hub_alone() {
    let dir = folder();
    let model = model(&dir, "50KB");
    let cdn = Server::of_folder(&model);
    let hub = elsewhere(&model, cdn.url().replace("127.0.0.1", "localhost"));
    let token = ("HF_TOKEN", "hf_secret");
    done(&estimate_with(&hub.url(), "org/model", &[token], &[]));
    let is_token = |asked: &Asked| {
        asked.headers.get("authorization").map(String::as_str) == Some("Bearer hf_secret")
    };
    assert!(!hub.asked().is_empty() && hub.asked().iter().all(is_token));
    assert!(!cdn.asked().is_empty());
    for asked in cdn.asked() {
        assert!(!format!("{asked:?}").contains("secret"), "{asked:?}");
    }
    // Neither in a message.
    let message = said(&estimate_with("http://127.0.0.1:9", "org/model", &[token], &[]));
    assert!(message.contains("cannot reach 127.0.0.1") && !message.contains("secret"), "{message}");
}

#[test]
fn redirects_that_lead_nowhere() {
    for (location, part) in [
        ("/a", "too many redirects"),
        ("file:///etc/passwd", ""),
        ("ftp://127.0.0.1/", ""),
        ("http://", ""),
        ("", ""),
    ] {
        let server =
            Server::new(move |_| Reply::new(302, &[&format!("Location: {location}")], b""));
        let message = said(&estimate(&server, &[]));
        assert!(message.contains("cannot reach 127.0.0.1") && message.contains(part), "{message}");
        assert!(server.asked().len() < 25);
    }
}

#[test]
fn lists_that_lie() {
    for list in [
        json!({}),
        json!({"sha": COMMIT}),
        json!({"sha": "../../etc", "siblings": []}),
        json!({"sha": COMMIT, "siblings": [{"size": 3}]}),
        json!([1]),
    ] {
        let server = Server::new(move |_| Reply::new(200, &[], list.to_string().as_bytes()));
        assert!(said(&estimate(&server, &[])).contains("it is no list of files"));
    }
    let nothing = Server::new(|_| Reply::new(200, &[], &names(&[])));
    assert!(said(&estimate(&nothing, &[])).contains("neither config.json nor"));
}

#[test]
fn refusals_say_what_to_do() {
    let message = |status: u16, line: &'static str, token: &str| {
        let server = Server::new(move |_| Reply::new(status, &[line], b"\x1b[2J no"));
        said(&estimate_with(&server.url(), "org/model@v1", &[("HF_TOKEN", token)], &[]))
    };
    for status in [401, 403] {
        let gated = message(status, "X-Error-Code: GatedRepo", "");
        assert!(
            gated.contains("org/model@v1 is gated: ask for access at http://127.0.0.1"),
            "{gated}"
        );
        assert!(gated.contains("HF_TOKEN"), "{gated}");
    }
    let unknown = message(401, "X-Error-Code: RepoNotFound", "");
    assert!(unknown.contains("check the name; if the model is private or gated"), "{unknown}");
    let token = message(401, "X-Error-Message: \u{9b}2J", "hf_x");
    assert!(token.contains("to the token that it was given") && !token.contains("hf_x"), "{token}");
    let missing = message(404, "X-Error-Code: RepoNotFound", "");
    assert!(missing.contains("there is no model org/model@v1 on the Hub"), "{missing}");
    assert!(missing.contains("nor a folder of that name here"), "{missing}");
    let revision = message(404, "X-Error-Code: RevisionNotFound", "");
    assert!(revision.contains("org/model has no revision \"v1\""), "{revision}");
    let limited = message(429, "Retry-After: 77", "");
    assert!(limited.contains("rate limit") && limited.contains("in 77 s"), "{limited}");
    let limited = message(429, "Retry-After: soon", "");
    assert!(limited.contains("in some minutes"), "{limited}");
    let teapot = message(418, "X: y", "");
    assert!(teapot.contains("answered 418 for the list of files"), "{teapot}");
}

#[test]
fn what_a_moment_mends_is_tried_once_more() {
    let dir = folder();
    let model = model(&dir, "5GB");
    let serve = |failures: usize| {
        let count = AtomicUsize::new(0);
        Server::of(files(&model), move |_, reply| {
            match count.fetch_add(1, Ordering::Relaxed) < failures {
                true => Reply::new(503, &[], b""),
                false => reply,
            }
        })
    };
    done(&estimate(&serve(1), &[]));
    let server = serve(2);
    assert!(said(&estimate(&server, &[])).contains("answered 503"));
    assert_eq!(server.asked().len(), 2);
}

/// A server of a good configuration, and of `reply` to all that is asked of the weights.
fn with_weights(reply: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Server {
    let config = json!({
        "model_type": "rwkv", "hidden_size": 64
    });
    Server::new(move |asked| match asked.file() {
        _ if asked.is_list() => Reply::new(200, &[], &names(&["config.json", SINGLE])),
        "config.json" => Reply::new(200, &[], config.to_string().as_bytes()),
        _ => reply(asked),
    })
}

fn single(bytes: Vec<u8>) -> Server {
    with_weights(move |asked| Reply::file(&bytes, asked.range()))
}

fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 7);
    file
}

#[test]
fn a_server_that_ignores_ranges_is_cut_off() {
    let header =
        r#"{"h.0.w":{"dtype":"U8","shape":[1000000000000],"data_offsets":[0,1000000000000]}}"#;
    let start = safetensors(header, 0);
    let len = start.len() as u64 + 1_000_000_000_000;
    let server = with_weights(move |_| Reply {
        status: 200,
        headers: Vec::new(),
        body: Body::Endless(start.clone(), Some(len)),
    });
    let text = done(&estimate(&server, &[]));
    assert!(text.contains("1 TB"), "{text}");
    // What the system takes into its buffers before it hears that nobody reads.
    assert!(server.sent() < 64 << 20, "{}", server.sent());
    // Without a length nobody knows where the file ends.
    let start = safetensors(header, 0);
    let server = with_weights(move |_| Reply {
        status: 200,
        headers: Vec::new(),
        body: Body::Endless(start.clone(), None),
    });
    assert!(said(&estimate(&server, &[])).contains("has no Content-Length"));
    assert!(server.sent() < 64 << 20, "{}", server.sent());
}

#[test]
fn what_is_not_known_is_said() {
    let header = r#"{"h.0.w":{"dtype":"F16","shape":[3,5],"data_offsets":[0,30]},"wte":{"dtype":"F32","shape":[2],"data_offsets":[30,38]}}"#;
    let server = single(safetensors(header, 38));
    let text = done(&estimate(&server, &[]));
    assert!(text.contains("unknown"), "{text}");
    assert!(text.contains("the architecture rwkv is not built in"), "{text}");
    let report: Value = serde_json::from_str(&done(&estimate(&server, &["--json"]))).unwrap();
    assert_eq!(report["context"], Value::Null);
    let row = &report["estimates"][0];
    assert_eq!(
        (&row["weights"], &row["kv_cache"], &row["least"]),
        (&json!(38), &Value::Null, &Value::Null)
    );
}

#[test]
fn headers_that_lie() {
    let message = |file: Vec<u8>| said(&estimate(&single(file), &[]));
    let claim = |len: u64| [&len.to_le_bytes()[..], b"{}"].concat();
    assert!(message(claim(1 << 62)).contains("over the format's limit"));
    assert!(message(claim(99_000_000)).contains("it is cut short"));
    assert!(message(claim(0)).contains("does not start with"));
    assert!(message(Vec::new()).contains("the file has 0 bytes"));
    assert!(message(b"PK\x03\x04aaaaaaaaaa".to_vec()).contains("a zip archive"));
    assert!(message(b"<!DOCTYPE html><p>".to_vec()).contains("a web page"));
    let name = "\u{1b}[2J".escape_unicode().to_string().replace("\\u{1b}", "\\u001b");
    let entry = r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    let header = format!(r#"{{"a{name}":{entry}}}"#);
    let evil = message(safetensors(&header, 1));
    assert!(evil.contains("org/model/model.safetensors"), "{evil}");
    let huge = r#"{"a":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,1]}}"#;
    assert!(message(safetensors(huge, 1)).contains("too large to be real"));
}

#[test]
fn answers_that_lie() {
    let header = r#"{"w":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}"#;
    let file = Arc::new(safetensors(header, 9));
    let message = |change: fn(&Asked, &mut Reply)| {
        let file = file.clone();
        let server = with_weights(move |asked| {
            let mut reply = Reply::file(&file, asked.range());
            change(asked, &mut reply);
            reply
        });
        let message = said(&estimate(&server, &[]));
        assert!(server.asked().len() < 8);
        message
    };
    let other = message(|_, reply| reply.headers = vec!["Content-Range: bytes 5-13/70".into()]);
    assert!(other.contains("another range than requested"), "{other}");
    let none = message(|_, reply| reply.headers.clear());
    assert!(none.contains("Content-Range is malformed"), "{none}");
    let star = message(|_, reply| reply.headers = vec!["Content-Range: bytes 0-8/*".into()]);
    assert!(star.contains("Content-Range is malformed"), "{star}");
    let short = message(|_, reply| reply.body = Body::Bytes(vec![0; 4]));
    assert!(short.contains("ends early"), "{short}");
    let changed = message(|asked, reply| {
        if asked.range().unwrap().start > 0 {
            reply.headers = vec!["Content-Range: bytes 8-60/1000".into()];
        }
    });
    assert!(changed.contains("replaced meanwhile"), "{changed}");
    let hung_up = message(|_, reply| {
        reply.headers.push("Content-Length: 9".into());
        reply.body = Body::Bytes(Vec::new());
    });
    assert!(hung_up.contains("cannot reach") || hung_up.contains("ends early"), "{hung_up}");
    let no_range = message(|_, reply| *reply = Reply::new(416, &[], b""));
    assert!(no_range.contains("lacks the requested range"), "{no_range}");
}

#[test]
fn indexes_that_lie() {
    let message = |index: Value| {
        let files = [("config.json", json!({"model_type": "rwkv"})), (INDEX, index)];
        let files = files.map(|(name, value)| (name.to_owned(), value.to_string().into_bytes()));
        let server = Server::of(files.into(), |_, reply| reply);
        let message = said(&estimate(&server, &[]));
        // Nothing outside of the model is asked for.
        let of_commit = format!("/org/model/resolve/{COMMIT}/");
        let within = |asked: &Asked| asked.is_list() || asked.path.starts_with(&of_commit);
        assert!(server.asked().iter().all(within));
        message
    };
    for file in ["../other/x", "/etc/passwd", "a\\b", "https://evil/x"] {
        let message = message(json!({"weight_map": {"w": file}}));
        assert!(message.contains("not the name of a file inside the folder"), "{message}");
    }
    let missing = message(json!({"weight_map": {"w": "a.safetensors"}}));
    assert!(missing.contains("org/model has no a.safetensors"), "{missing}");
    assert!(message(json!({"weight_map": {}})).contains(INDEX));
    let many: serde_json::Map<_, _> =
        (0..10_001).map(|n| (format!("w{n}"), json!(format!("s{n}")))).collect();
    assert!(message(json!({"weight_map": many})).contains("more than 10000 shards"));
}

#[test]
fn answers_without_end() {
    for (claimed, what) in [(None, "spaces"), (Some(1 << 40), "a claimed terabyte")] {
        let server = Server::new(move |_| Reply {
            status: 200,
            headers: Vec::new(),
            body: Body::Endless(b"{".to_vec(), claimed),
        });
        let message = said(&estimate(&server, &[]));
        assert!(
            message.contains("the list of files of org/model has more than 16777216 bytes"),
            "{what}: {message}"
        );
        assert!(server.sent() < 96 << 20, "{what}: {}", server.sent());
    }
}

#[test]
fn servers_that_do_not_answer() {
    for body in [|| Body::Silence, || Body::Drip] {
        let server = Server::new(move |_| Reply { status: 200, headers: Vec::new(), body: body() });
        let short = ("HF_HUB_DOWNLOAD_TIMEOUT", "1");
        let message = said(&estimate_with(&server.url(), "org/model", &[short], &[]));
        assert!(
            message.contains("took too long") && message.contains("more than 1 s"),
            "{message}"
        );
    }
}

/// The model as the Hub's own software keeps it: links to blobs.
fn cached(home: &Path, model: &Path) {
    let folder = home.join("hub/models--org--model");
    let snapshot = folder.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), COMMIT).unwrap();
    for name in files(model).keys() {
        fs::copy(model.join(name), snapshot.join(name)).unwrap();
    }
}

#[test]
fn what_is_in_the_cache_is_not_asked_for() {
    let dir = folder();
    let model = model(&dir, "50KB");
    let home = dir.path().join("home");
    cached(&home, &model);
    let server = Server::of_folder(&model);
    let home_variable = ("HF_HOME", path(&home));
    for offline in ["0", "1"] {
        let variables = [home_variable, ("HF_HUB_OFFLINE", offline)];
        let output = estimate_with(&server.url(), "org/model", &variables, &[]);
        let text = done(&output);
        assert!(text.contains(&format!("from the Hub's cache at commit {COMMIT}")), "{text}");
    }
    assert!(server.asked().is_empty());
    // One that has the configuration alone is asked for more, if that is allowed.
    let snapshot = home.join("hub/models--org--model/snapshots").join(COMMIT);
    for name in files(&model).keys().filter(|name| name.contains(SINGLE) || name.contains("model-"))
    {
        fs::remove_file(snapshot.join(name)).unwrap();
    }
    let offline = [home_variable, ("HF_HUB_OFFLINE", "yes")];
    let text = done(&estimate_with(&server.url(), "org/model", &offline, &[]));
    assert!(
        text.contains("by its config\n") && text.contains("which has no weights of it"),
        "{text}"
    );
    assert!(server.asked().is_empty());
    let text = done(&estimate_with(&server.url(), "org/model", &[home_variable], &[]));
    assert!(text.replace('\n', " ").contains("by its config and headers "), "{text}");
    assert!(!server.asked().is_empty());
    let nothing = said(&estimate_with(&server.url(), "org/other", &offline, &[]));
    assert!(
        nothing.contains("org/other is not in the Hub's cache")
            && nothing.contains("HF_HUB_OFFLINE"),
        "{nothing}"
    );
}

#[test]
fn paths_go_before_names_on_the_hub() {
    let dir = folder();
    let model = model(&dir, "5GB");
    let server = Server::of_folder(&model);
    let run = |model: &str| {
        Command::new(env!("CARGO_BIN_EXE_outsize"))
            .args(["estimate", model])
            .current_dir(dir.path())
            .env("HF_ENDPOINT", server.url())
            .env("HF_HOME", dir.path().join("none"))
            .env("NO_PROXY", "127.0.0.1")
            .env_remove("HF_HUB_CACHE")
            .env_remove("HF_HUB_OFFLINE")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    fs::create_dir(dir.path().join("org")).unwrap();
    std::fs::rename(&model, dir.path().join("org/model")).unwrap();
    done(&run("org/model"));
    // A slip is no reason to tell the Hub.
    let message = failed(&run("org/modle"), 2);
    assert!(
        message.contains("org/ is a folder here") && message.contains("hf://org/modle"),
        "{message}"
    );
    assert!(server.asked().is_empty());
    assert!(done(&run("hf://org/modle")).contains("read on the Hub"));
    assert!(!server.asked().is_empty());
    let message = failed(&run("gpt2"), 2);
    assert!(
        message.contains("gpt2: no such file or folder") && message.contains("org/name"),
        "{message}"
    );
    let message = failed(&run("\u{1b}[2J"), 2);
    assert!(!message.contains('\u{1b}'), "{message:?}");
    assert_eq!(text(&run("org/model").stderr), "");
}
