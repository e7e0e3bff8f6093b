//! Models downloaded from a Hub: only what is needed, whole or not at all, and run from the cache.

use crate::common::{done, failed, folder, path, tiny};
use crate::server::{Asked, Body, COMMIT, Reply, Server, files, list, outsize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

const SINGLE: &str = "model.safetensors";

type Files = BTreeMap<String, Vec<u8>>;

fn fetch(home: &Path, server: &Server) -> Output {
    outsize(home, Some(&server.url()), &["fetch", "org/model"])
}

/// A model in shards, and files beside it that nobody needs.
fn repository(dir: &TempDir) -> Files {
    let config = dir.path().join("config.json");
    fs::write(&config, crate::common::CONFIG.replace("768", "96").replace("2048", "128")).unwrap();
    let out = dir.path().join("model");
    let args = ["synth", path(&config), path(&out), "--max-shard-size", "400KB"];
    done(&crate::common::outsize(&args));
    let mut files = files(&out);
    for name in ["README.md", "consolidated.safetensors", "pytorch_model.bin", "tf_model.h5"] {
        files.insert(name.to_owned(), b"not needed".to_vec());
    }
    for name in
        ["tokenizer_config.json", "chat_template.jinja", "modules.json", "1_Pooling/config.json"]
    {
        files.insert(name.to_owned(), format!("{{\"{name}\": 1}}").into_bytes());
    }
    files
}

fn snapshot(home: &Path) -> PathBuf {
    home.join("hub/models--org--model/snapshots").join(COMMIT)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = files(folder).into_keys().collect();
    names.sort();
    names
}

fn run(home: &Path, endpoint: Option<&str>) -> Output {
    outsize(home, endpoint, &["run", "org/model", "--ids", "5,6", "--max-new-tokens", "2"])
}

#[test]
fn only_what_is_needed_is_downloaded_and_once() {
    let (dir, home) = (folder(), folder());
    let files = repository(&dir);
    let server = Server::of(files.clone(), |_, reply| reply);
    let said = done(&fetch(home.path(), &server));
    let folder = snapshot(home.path());
    assert_eq!(said.trim(), path(&folder));
    let shards = files.keys().filter(|name| name.starts_with("model-")).count();
    assert!(shards > 2);
    for (name, bytes) in crate::server::files(&folder) {
        assert!(bytes == files[&name], "{name}");
    }
    assert_eq!(names(&folder).len(), shards + 7, "{:?}", names(&folder));
    let model = home.path().join("hub/models--org--model");
    assert_eq!(fs::read_to_string(model.join("refs/main")).unwrap(), COMMIT);
    // Blobs have the names that other programs look for, and nothing else is beside them.
    let listed = list(&files).to_string();
    let blobs = names(&model.join("blobs"));
    assert_eq!(blobs.len(), shards + 7);
    assert!(blobs.iter().all(|name| listed.contains(name)));
    #[cfg(unix)]
    assert!(fs::read_link(folder.join("config.json")).unwrap().starts_with("../../blobs"));
    let asked = server.asked().len();
    done(&fetch(home.path(), &server));
    assert_eq!(server.asked().len(), asked + 2, "the list and the index");
    // And run without the Hub, whether it could be asked or not.
    done(&run(home.path(), None));
    done(&run(home.path(), Some("http://127.0.0.1:9")));
    assert!(done(&outsize(home.path(), None, &["estimate", "org/model"])).contains("Hub's cache"));
}

#[test]
fn run_downloads_what_is_not_there() {
    let (dir, home) = (folder(), folder());
    let server = Server::of_folder(&tiny(&dir));
    let offline = failed(&run(home.path(), None), 1);
    assert!(offline.contains("org/model is not in the Hub's cache"), "{offline}");
    assert!(offline.contains("HF_HUB_OFFLINE"), "{offline}");
    let first = done(&run(home.path(), Some(&server.url())));
    let asked = server.asked().len();
    assert_eq!(done(&run(home.path(), Some(&server.url()))), first);
    assert_eq!(server.asked().len(), asked);
    // What is there in part is completed.
    fs::remove_file(snapshot(home.path()).join(SINGLE)).unwrap();
    assert_eq!(done(&run(home.path(), Some(&server.url()))), first);
    assert_eq!(server.asked().len(), asked + 1, "the blob was there: {:?}", server.asked());
}

/// How many bytes of a file were sent.
fn sent(server: &Server, name: &str) -> u64 {
    server.asked().iter().filter(|asked| asked.file() == name).map(|asked| asked.sent).sum()
}

#[test]
fn cut_connections_are_resumed() {
    let (dir, home) = (folder(), folder());
    let files = files(&tiny(&dir));
    let len = files[SINGLE].len();
    let server = Server::of(files, |asked, reply| match reply.body {
        Body::Bytes(bytes) if asked.file() == SINGLE => {
            Reply { body: Body::Cut(bytes, 70_000), ..reply }
        }
        _ => reply,
    });
    done(&fetch(home.path(), &server));
    assert_eq!(sent(&server, SINGLE), len as u64, "nothing twice");
    assert!(server.asked().iter().filter(|asked| asked.file() == SINGLE).count() > 3);
    done(&run(home.path(), None));
}

#[test]
fn what_a_broken_download_left_is_used() {
    let (dir, home) = (folder(), folder());
    let files = files(&tiny(&dir));
    let len = files[SINGLE].len() as u64;
    let count = AtomicUsize::new(0);
    let broken = Server::of(files.clone(), move |asked, reply| match reply.body {
        Body::Bytes(bytes) if asked.file() == SINGLE => {
            let first = count.fetch_add(1, Ordering::Relaxed) == 0;
            Reply { body: Body::Cut(bytes, if first { 50_000 } else { 0 }), ..reply }
        }
        _ => reply,
    });
    let said = failed(&fetch(home.path(), &broken), 1);
    assert!(said.contains("model.safetensors of org/model"), "{said}");
    // A branch that is not all there is not noted.
    assert!(!home.path().join("hub/models--org--model/refs/main").exists());
    let server = Server::of(files.clone(), |_, reply| reply);
    done(&fetch(home.path(), &server));
    assert_eq!(sent(&server, SINGLE), len - 50_000);
    // A server that knows no ranges sends all of it.
    let again = folder();
    failed(&fetch(again.path(), &broken_once(&files)), 1);
    let whole = files[SINGLE].clone();
    let without_ranges = Server::of(files, move |asked, reply| match asked.file() {
        SINGLE => Reply::new(200, &[], &whole),
        _ => reply,
    });
    done(&fetch(again.path(), &without_ranges));
    done(&run(again.path(), None));
}

/// A server that breaks off after 50 000 bytes of the weights.
fn broken_once(files: &Files) -> Server {
    Server::of(files.clone(), |asked, reply| match (asked.range(), reply.body) {
        (None, Body::Bytes(bytes)) if asked.file() == SINGLE => {
            Reply { body: Body::Cut(bytes, 50_000), ..reply }
        }
        (Some(_), _) => Reply::new(500, &[], b""),
        (_, body) => Reply { body, ..reply },
    })
}

#[test]
fn damaged_files_are_not_kept() {
    let (dir, home) = (folder(), folder());
    let files = files(&tiny(&dir));
    for name in ["config.json", SINGLE] {
        let server = Server::of(files.clone(), move |asked, mut reply| {
            if let (true, Body::Bytes(bytes)) = (asked.file() == name, &mut reply.body) {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
            reply
        });
        let said = failed(&fetch(home.path(), &server), 1);
        assert!(said.contains(&format!("{name} of org/model arrived damaged")), "{said}");
        let blobs = names(&home.path().join("hub/models--org--model/blobs"));
        assert!(blobs.iter().all(|name| !name.contains("incomplete")), "{blobs:?}");
        assert!(failed(&run(home.path(), None), 1).contains("not in the Hub's cache"));
    }
    // Nor those that are shorter than promised.
    let short = files[SINGLE][..1000].to_vec();
    let server = Server::of(files.clone(), move |asked, reply| match asked.file() {
        SINGLE => Reply::file(&short, asked.range()),
        _ => reply,
    });
    let said = failed(&fetch(home.path(), &server), 1);
    assert!(said.contains("model.safetensors"), "{said}");
    done(&fetch(home.path(), &Server::of(files, |_, reply| reply)));
    done(&run(home.path(), None));
}

#[test]
fn refusals_of_files_say_what_to_do() {
    let dir = folder();
    let files = files(&tiny(&dir));
    let said = |status: u16, line: &'static str, is_refused: fn(&Asked) -> bool| {
        let home = folder();
        let server = Server::of(files.clone(), move |asked, reply| match is_refused(asked) {
            true => Reply::new(status, &[line], b""),
            false => reply,
        });
        failed(&fetch(home.path(), &server), 1)
    };
    let is_file: fn(&Asked) -> bool = |asked| !asked.is_list();
    let gated = said(401, "X-Error-Code: GatedRepo", is_file);
    assert!(gated.contains("org/model is gated: ask for access at"), "{gated}");
    let gone = said(404, "X-Error-Code: EntryNotFound", is_file);
    assert!(gone.contains("org/model has no config.json"), "{gone}");
    let missing = said(404, "X-Error-Code: RepoNotFound", Asked::is_list);
    assert!(missing.contains("there is no model org/model"), "{missing}");
    let limited = said(429, "Retry-After: 12", is_file);
    assert!(limited.contains("rate limit") && limited.contains("in 12 s"), "{limited}");
}

#[test]
fn lists_that_lie_write_nothing() {
    let dir = folder();
    let files = files(&tiny(&dir));
    let said = |change: &dyn Fn(&mut Value)| {
        let home = folder();
        let mut list = list(&files);
        for file in list["siblings"].as_array_mut().unwrap() {
            if file["rfilename"] == SINGLE {
                change(file);
            }
        }
        let list = Arc::new(list.to_string());
        let server = Server::of(files.clone(), move |asked, reply| match asked.is_list() {
            true => Reply::new(200, &[], list.as_bytes()),
            false => reply,
        });
        let said = failed(&fetch(home.path(), &server), 1);
        assert!(!home.path().join("hub/models--org--model/refs").exists());
        said
    };
    for hash in ["../../../../x".to_owned(), "f".repeat(63), "/".repeat(64), String::new()] {
        let said = said(&|file| file["lfs"]["sha256"] = json!(hash));
        assert!(said.contains("does not say size and hash of model.safetensors"), "{said}");
    }
    let unknown = said(&|file| file["size"] = Value::Null);
    assert!(unknown.contains("does not say size and hash"), "{unknown}");
    let huge = said(&|file| file["size"] = json!(1u64 << 60));
    assert!(huge.contains("org/model needs 1.15 EB more") && huge.contains("make room"), "{huge}");
    let long = said(&|file| file["size"] = json!(files[SINGLE].len() + 5));
    assert!(long.contains("model.safetensors"), "{long}");
}

#[test]
fn what_cannot_be_run_is_not_downloaded() {
    for (name, part) in [
        ("adapter_config.json", "adapter of another model"),
        ("tf_model.h5", "no config.json with weights beside it"),
    ] {
        let home = folder();
        let files = [(name, "x"), ("config.json", "{}")];
        let files = files.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
        let server = Server::of(files.into(), |_, reply| reply);
        let said = failed(&fetch(home.path(), &server), 1);
        assert!(said.contains("org/model") && said.contains(part), "{said}");
        assert_eq!(server.asked().len(), 1);
    }
    let home = folder();
    let said = failed(&outsize(home.path(), None, &["fetch", "./x"]), 2);
    assert!(said.contains("./x is no name on the Hub"), "{said}");
}

#[test]
fn a_gguf_file_is_a_model_by_its_name_on_the_hub() {
    let home = folder();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures");
    let file = |name: &str| fs::read(fixtures.join(name).join("model.gguf")).unwrap();
    let files = [("m-Q8_0.gguf", file("gguf-llama-q8_0")), ("m-F16.gguf", file("gguf-llama-f16"))];
    let files: Files = files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    let server = Server::of(files.clone(), |_, reply| reply);
    let ask = |endpoint: Option<&str>, command: &str, model: &str| {
        let more = match command {
            "run" => &["--ids", "5,6", "--max-new-tokens", "2"][..],
            _ => &[],
        };
        outsize(home.path(), endpoint, &[&[command, model], more].concat())
    };
    let url = server.url();
    let said = failed(&ask(Some(&url), "run", "org/model"), 2);
    assert!(
        said.contains("several GGUF files") && said.contains("m-F16.gguf, m-Q8_0.gguf"),
        "{said}"
    );
    let said = failed(&ask(Some(&url), "estimate", "org/model"), 2);
    assert!(said.contains("several GGUF files"), "{said}");
    let text = done(&ask(Some(&url), "run", "org/model:q8_0"));
    let path = snapshot(home.path()).join("m-Q8_0.gguf");
    assert_eq!(names(&snapshot(home.path())), ["m-Q8_0.gguf"]);
    // And without the Hub, by that name or as the only one.
    assert_eq!(done(&ask(None, "run", "org/model:Q8_0")), text);
    assert_eq!(done(&ask(None, "run", "org/model")), text);
    assert_eq!(
        done(&ask(Some(&url), "fetch", "org/model:Q8_0")).trim(),
        crate::common::path(&path)
    );
    done(&ask(None, "estimate", "org/model:Q8_0"));
    failed(&ask(None, "run", "org/model:F16"), 1);
    let list = || done(&outsize(home.path(), None, &["list"]));
    assert!(list().contains("org/model  ") && list().contains("fits in memory"), "{}", list());
    done(&ask(Some(&url), "fetch", "org/model:f16"));
    for name in ["org/model:m-Q8_0.gguf", "org/model:m-F16.gguf"] {
        assert!(list().contains(name), "{}", list());
    }
}

#[test]
fn a_gguf_file_comes_with_its_vision_encoder() {
    let home = folder();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures");
    let file = |name: &str| fs::read(fixtures.join("vision-gguf-gemma3").join(name)).unwrap();
    let names_on_hub = ["Q8_0/m-Q8_0.gguf", "mmproj-F32.gguf", "mmproj-F16.gguf"];
    let files = names_on_hub.into_iter().zip(["model.gguf", "mmproj.gguf", "mmproj.gguf"]);
    let files: Files = files.map(|(name, from)| (name.to_owned(), file(from))).collect();
    let server = Server::of(files, |_, reply| reply);
    let image = fixtures.join("vision-gemma3/image-1.png");
    let image = ["--image", crate::common::path(&image), "--max-new-tokens", "2"];
    let args = ["run", "org/model", "--prompt", "What?"];
    let said = outsize(home.path(), Some(&server.url()), &[&args[..], &image].concat());
    done(&said);
    assert!(crate::common::message(&said).contains("seen as 24 x 24"));
    assert_eq!(names(&snapshot(home.path())), ["Q8_0/m-Q8_0.gguf", "mmproj-F16.gguf"]);
}

#[test]
fn the_cache_is_listed_with_what_runs() {
    let (dir, home) = (folder(), folder());
    let list = || done(&outsize(home.path(), None, &["list"]));
    assert!(list().contains("no models in") && list().contains("outsize fetch org/name"));
    done(&fetch(home.path(), &Server::of_folder(&tiny(&dir))));
    let other = home.path().join("hub/models--a--b").join("snapshots").join(COMMIT);
    fs::create_dir_all(&other).unwrap();
    fs::write(other.join("config.json"), r#"{"model_type": "rwkv"}"#).unwrap();
    let text = list();
    assert!(text.contains("org/model") && text.contains("fits in memory"), "{text}");
    assert!(text.contains("a/b@") && text.contains("does not run"), "{text}");
    let report: Value =
        serde_json::from_str(&done(&outsize(home.path(), None, &["list", "--json"]))).unwrap();
    let model = &report["models"][1];
    assert_eq!(model["model"], "org/model");
    assert_eq!((&model["architecture"], &model["streamed_bytes"]), (&json!("llama"), &json!(0)));
    let bytes: usize = files(&snapshot(home.path())).values().map(Vec::len).sum();
    assert_eq!(model["bytes"], bytes);
    assert!(model["seconds_per_token"].as_f64().unwrap() > 0.0);
    assert_eq!(report["models"][0]["streamed_bytes"], Value::Null);
}

#[test]
fn weights_of_pytorch_are_described_by_their_ends() {
    let dir = folder();
    let model = tiny(&dir);
    let bin = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../checkpoint/tests/fixtures/torch/read/module.bin");
    let mut files = files(&model);
    files.remove(SINGLE);
    files.insert("pytorch_model.bin".to_owned(), fs::read(bin).unwrap());
    files.insert("config.json".to_owned(), br#"{"model_type": "rwkv"}"#.to_vec());
    let home = folder();
    let server = Server::of(files, |_, reply| reply);
    let args = ["estimate", "org/model", "--json"];
    let report: Value =
        serde_json::from_str(&done(&outsize(home.path(), Some(&server.url()), &args))).unwrap();
    assert_eq!(report["source"], "headers");
    assert!(report["notes"].to_string().contains("bytes of headers, and no weights"));
    assert!(report["tensors"].as_u64().unwrap() > 1);
}

#[test]
fn adapters_are_downloaded_for_a_model() {
    let home = folder();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let base = crates.join("models/tests/fixtures/gqa");
    let server = Server::of(files(&crates.join("lora/tests/fixtures/llama")), |_, reply| reply);
    let run = |endpoint: Option<&str>, more: &[&str]| {
        let run = ["run", path(&base), "--ids", "5,6,7", "--max-new-tokens", "8"];
        outsize(home.path(), endpoint, &[&run[..], more].concat())
    };
    let with = ["--adapter", "org/model"];
    let offline = failed(&run(None, &with), 1);
    assert!(offline.contains("org/model is not in the Hub's cache"), "{offline}");
    let adapted = done(&run(Some(&server.url()), &with));
    assert_eq!(names(&snapshot(home.path())), ["adapter_config.json", "adapter_model.safetensors"]);
    let asked = server.asked().len();
    assert_eq!(done(&run(None, &with)), adapted);
    assert_eq!(server.asked().len(), asked);
    assert_ne!(done(&run(None, &[])), adapted);
    let server = Server::of(files(&base), |_, reply| reply);
    let other = folder();
    let run = ["run", path(&base), "--ids", "5", "--adapter", "org/model"];
    let message = failed(&outsize(other.path(), Some(&server.url()), &run), 1);
    assert!(message.contains("org/model is no LoRA adapter"), "{message}");
}
