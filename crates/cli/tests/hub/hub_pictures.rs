//! Models of pictures on a Hub: of their many files only what a run reads is downloaded, and of
//! their weights nothing to describe them.

use crate::common::{done, failed, folder, path};
use crate::server::{COMMIT, Server, files, outsize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

type Files = BTreeMap<String, Vec<u8>>;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../diffuse/tests/fixtures").join(name)
}

/// A repository as on the Hub: with what nobody here needs. Its plain weights are those of `fp16`
/// in another folder.
fn repository() -> Files {
    let mut repository = files(&fixture("pipeline"));
    repository.retain(|name, _| !name.starts_with("expected."));
    for (file, plain) in [
        ("unet/diffusion_pytorch_model", "unet/diffusion_pytorch_model.safetensors"),
        ("vae/diffusion_pytorch_model", "vae/diffusion_pytorch_model.safetensors"),
        ("text_encoder/model", "text_encoder/model.safetensors"),
    ] {
        let half = repository[&format!("{file}.fp16.safetensors")].clone();
        repository.insert(plain.to_owned(), half);
        repository.insert(format!("{file}.bin"), b"not needed".to_vec());
    }
    for name in [
        "README.md",
        "v1-5-pruned-emaonly.ckpt",
        "v1-5-pruned-emaonly.safetensors",
        "safety_checker/config.json",
        "safety_checker/model.safetensors",
        "feature_extractor/preprocessor_config.json",
        "unet/diffusion_pytorch_model.non_ema.safetensors",
        "tokenizer/added_tokens.json",
        "vae/diffusion_flax_model.msgpack",
    ] {
        repository.insert(name.to_owned(), b"not needed".to_vec());
    }
    repository
}

fn snapshot(home: &Path) -> PathBuf {
    home.join("hub/models--org--model/snapshots").join(COMMIT)
}

const SMALL: [&str; 9] = [
    "model_index.json",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "tokenizer/merges.txt",
    "tokenizer/special_tokens_map.json",
    "tokenizer/tokenizer_config.json",
    "tokenizer/vocab.json",
    "unet/config.json",
    "vae/config.json",
];

fn with_small(weights: [&str; 3]) -> Vec<String> {
    let mut names: Vec<_> = SMALL.into_iter().chain(weights).map(str::to_owned).collect();
    names.sort();
    names
}

fn image(home: &Path, endpoint: Option<&str>, more: &[&str]) -> Output {
    let args = ["image", "org/model", "--prompt", "a cat", "--output", "a.png", "--steps", "2"];
    outsize(home, endpoint, &[&args, more].concat())
}

#[test]
fn a_picture_is_made_of_what_a_pipeline_needs() {
    let home = folder();
    let server = Server::of(repository(), |_, reply| reply);
    done(&image(home.path(), Some(&server.url()), &[]));
    let names: Vec<_> = files(&snapshot(home.path())).into_keys().collect();
    let plain = [
        "text_encoder/model.safetensors",
        "unet/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
    ];
    assert_eq!(names, with_small(plain));
    let asked = server.asked().len();
    // Again, and without the Hub.
    let picture = fs::read(home.path().join("a.png")).unwrap();
    done(&image(home.path(), Some(&server.url()), &["--force"]));
    done(&image(home.path(), None, &["--force"]));
    assert_eq!(fs::read(home.path().join("a.png")).unwrap(), picture);
    assert_eq!(server.asked().len(), asked);
    // A variant that is not in the cache is downloaded beside the others.
    done(&image(home.path(), Some(&server.url()), &["--force", "--variant", "fp16"]));
    assert!(snapshot(home.path()).join("unet/diffusion_pytorch_model.fp16.safetensors").exists());
    let error = failed(&image(home.path(), None, &["--force", "--variant", "ema"]), 1);
    assert!(error.contains("text_encoder/model.ema.safetensors"), "{error}");
    let listed = done(&outsize(home.path(), None, &["list"]));
    assert!(listed.contains("StableDiffusionPipeline") && listed.contains("a picture"), "{listed}");
}

#[test]
fn a_variant_and_files_of_torch_are_fetched() {
    let home = folder();
    let server = Server::of(repository(), |_, reply| reply);
    let said = done(&outsize(
        home.path(),
        Some(&server.url()),
        &["fetch", "org/model", "--variant", "fp16"],
    ));
    assert_eq!(said.trim(), path(&snapshot(home.path())));
    let names: Vec<_> = files(&snapshot(home.path())).into_keys().collect();
    let halves = [
        "text_encoder/model.fp16.safetensors",
        "unet/diffusion_pytorch_model.fp16.safetensors",
        "vae/diffusion_pytorch_model.fp16.safetensors",
    ];
    assert_eq!(names, with_small(halves));
    let mut second = files(&fixture("pipeline-v2"));
    second.insert("768-v-ema.ckpt".to_owned(), b"not needed".to_vec());
    let (home, server) = (folder(), Server::of(second, |_, reply| reply));
    done(&outsize(home.path(), Some(&server.url()), &["fetch", "org/model"]));
    let names: Vec<_> = files(&snapshot(home.path())).into_keys().collect();
    let mixed = [
        "text_encoder/pytorch_model.bin",
        "unet/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.bin",
    ];
    assert_eq!(names, with_small(mixed));
    done(&image(home.path(), None, &[]));
}

#[test]
fn a_base_is_fetched_without_weights_and_an_adapter_by_its_name() {
    let home = folder();
    let server = Server::of(repository(), |_, reply| reply);
    let file = fixture("pipeline").join("single.safetensors");
    let run = |endpoint: Option<&str>, more: &[&str]| {
        let args = ["image", path(&file), "--base", "org/model", "--prompt", "a cat", "--force"];
        let rest = ["--output", "a.png", "--steps", "2"];
        outsize(home.path(), endpoint, &[&args[..], &rest, more].concat())
    };
    let url = server.url();
    done(&run(Some(&url), &[]));
    let names = || files(&snapshot(home.path())).into_keys().collect::<Vec<_>>();
    assert_eq!(names(), SMALL);
    let plain = fs::read(home.path().join("a.png")).unwrap();
    let adapter = ["--adapter", "org/model/kohya.safetensors"];
    done(&run(Some(&url), &adapter));
    assert_ne!(fs::read(home.path().join("a.png")).unwrap(), plain);
    assert_eq!(names().len(), SMALL.len() + 1);
    // Again, and without the Hub.
    let asked = server.asked().len();
    done(&run(None, &adapter));
    done(&run(Some(&url), &adapter));
    assert_eq!(server.asked().len(), asked);
    for (adapter, named) in [
        ("org/model", "give org/model/FILE"),
        ("org/model/none.safetensors", "org/model has no file none.safetensors"),
    ] {
        let error = failed(&run(Some(&url), &["--adapter", adapter]), 1);
        assert!(error.contains(named), "{error}");
    }
    // The only one of a repository is taken without its name.
    let one = fixture("pipeline").join("peft.safetensors");
    let only = BTreeMap::from([("style.safetensors".to_owned(), fs::read(one).unwrap())]);
    let (home, server) = (folder(), Server::of(only, |_, reply| reply));
    let model = fixture("pipeline");
    let args = ["image", path(&model), "--prompt", "a cat", "--output", "a.png", "--steps", "2"];
    done(&outsize(
        home.path(),
        Some(&server.url()),
        &[&args[..], &["--adapter", "org/model"]].concat(),
    ));
}

#[test]
fn a_transformer_in_a_file_of_the_hub_takes_all_else_of_its_base() {
    let mut base = files(&fixture("pipeline-flux"));
    let wide = base["wide.json"].clone();
    let file = base["wide.gguf"].clone();
    base.insert("transformer/config.json".to_owned(), wide);
    base.retain(|name, _| name.contains('/') || name == "model_index.json");
    let needed = base.len() - 1;
    // Both in one repository: what is asked for by a path, or by what its name ends in.
    base.insert("flux1-dev-Q8_0.gguf".to_owned(), file.clone());
    base.insert("small/flux1-dev-Q4_K_S.gguf".to_owned(), file.clone());
    let (home, server) = (folder(), Server::of(base, |_, reply| reply));
    let url = server.url();
    let run = |endpoint: Option<&str>, model: &str| {
        let args = ["image", model, "--base", "org/model", "--prompt", "a cat", "--force"];
        let sizes = ["--output", "a.png", "--steps", "20", "--width", "16", "--height", "16"];
        outsize(home.path(), endpoint, &[&args[..], &sizes].concat())
    };
    done(&run(Some(&url), "org/model/flux1-dev-Q8_0.gguf"));
    let names = || files(&snapshot(home.path())).into_keys().collect::<Vec<_>>();
    assert_eq!(names().len(), needed + 1);
    assert!(!names().contains(&"transformer/diffusion_pytorch_model.safetensors".to_owned()));
    done(&run(None, "org/model/flux1-dev-Q8_0.gguf"));
    done(&run(Some(&url), "hf://org/model/small/flux1-dev-Q4_K_S.gguf"));
    let error = failed(&run(Some(&url), "org/model/none.gguf"), 1);
    assert!(error.contains("org/model has no file none.gguf"), "{error}");
    // A repository of nothing but such files.
    let others = ["flux1-dev-Q8_0.gguf", "flux1-dev-Q4_0.gguf"];
    let others = others.map(|name| (name.to_owned(), file.clone()));
    let (quantized, local) = (Server::of(others.into(), |_, reply| reply), folder());
    let base = fixture("pipeline-flux");
    let run = |model: &str| {
        let args = ["image", model, "--base", path(&base), "--prompt", "a cat"];
        let rest = ["--output", "a.png", "--steps", "20"];
        outsize(local.path(), Some(&quantized.url()), &[&args[..], &rest].concat())
    };
    let error = failed(&run("org/model"), 2);
    assert!(error.contains("has its weights as several GGUF files"), "{error}");
    // It is fetched, and is wider than this base.
    let error = failed(&run("org/model:Q4_0"), 1);
    assert!(error.contains("is the base another model?"), "{error}");
}

#[test]
fn headers_and_configurations_are_enough_to_plan() {
    for (name, folder_name) in [("pipeline", "pipeline"), ("second", "pipeline-v2")] {
        let home = folder();
        let files = files(&fixture(folder_name));
        let weights: usize = files
            .iter()
            .filter(|(name, _)| name.ends_with(".safetensors") || name.ends_with(".bin"))
            .map(|(_, bytes)| bytes.len())
            .sum();
        let server = Server::of(files, |_, reply| reply);
        for command in ["estimate", "plan"] {
            let args = [command, "org/model", "--json"];
            let on_hub = done(&outsize(home.path(), Some(&server.url()), &args));
            let local = fixture(folder_name);
            let local = done(&outsize(home.path(), None, &[command, path(&local), "--json"]));
            let [on_hub, local]: [Value; 2] =
                [on_hub, local].map(|json| serde_json::from_str(&json).unwrap());
            for part in 0..3 {
                for key in ["parameters", "weights", "activations", "largest_block"] {
                    let key = |report: &Value| report["parts"][part]["estimate"][key].clone();
                    assert_eq!(key(&on_hub), key(&local), "{name}");
                }
            }
            assert_eq!(on_hub["prediction"]["steps"], local["prediction"]["steps"]);
            let notes = on_hub["notes"].to_string();
            assert!(notes.contains("bytes of headers, and no weights"), "{notes}");
        }
        if folder_name == "pipeline" {
            // Files of torch.save are so small here that their directory is most of them.
            let asked = server.asked();
            let sent = asked.iter().filter(|asked| asked.file().ends_with(".safetensors"));
            let sent: u64 = sent.map(|asked| asked.sent).sum();
            assert!(sent < weights as u64, "{sent} of {weights}");
        }
        assert!(!snapshot(home.path()).exists());
    }
}

#[test]
fn what_is_asked_of_the_wrong_kind_of_model_downloads_nothing() {
    let home = folder();
    let server = Server::of(repository(), |_, reply| reply);
    let run = outsize(home.path(), Some(&server.url()), &["run", "org/model", "--prompt", "x"]);
    assert!(failed(&run, 2).contains("`outsize image` runs it"));
    assert_eq!(server.asked().len(), 1);
    let text = [("config.json", "{}"), ("model.safetensors", "x")];
    let text = text.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
    let server = Server::of(text.into(), |_, reply| reply);
    let error = failed(&image(home.path(), Some(&server.url()), &[]), 2);
    assert!(error.contains("org/model has no model_index.json"), "{error}");
    assert_eq!(server.asked().len(), 1);
    // Nor pipelines that cannot be run.
    let mut other = repository();
    let index = String::from_utf8(other["model_index.json"].clone()).unwrap();
    let index = index.replace("StableDiffusionPipeline", "StableCascadeDecoderPipeline");
    other.insert("model_index.json".to_owned(), index.into_bytes());
    let server = Server::of(other, |_, reply| reply);
    for command in [&["fetch", "org/model"][..], &["estimate", "org/model"]] {
        let error = failed(&outsize(home.path(), Some(&server.url()), command), 1);
        assert!(error.contains("org/model/model_index.json: `_class_name`"), "{error}");
    }
    assert_eq!(server.asked().len(), 4);
    let mut without = repository();
    without.retain(|name, _| !name.starts_with("vae/diffusion"));
    let server = Server::of(without, |_, reply| reply);
    let error = failed(&image(home.path(), Some(&server.url()), &[]), 1);
    assert!(error.contains("vae/diffusion_pytorch_model.safetensors"), "{error}");
    assert!(!snapshot(home.path()).exists());
}

#[test]
fn of_a_processor_the_file_of_pictures_is_fetched() {
    let home = folder();
    let mut repository = files(&fixture("pipeline-qwen-edit"));
    repository.retain(|name, _| !name.starts_with("expected.") && !name.ends_with(".png"));
    let needed: Vec<_> = repository.keys().cloned().collect();
    for name in
        ["processor/tokenizer.json", "processor/vocab.json", "processor/chat_template.jinja"]
    {
        repository.insert(name.to_owned(), b"not needed".to_vec());
    }
    let server = Server::of(repository, |_, reply| reply);
    let plan = done(&outsize(home.path(), Some(&server.url()), &["plan", "org/model"]));
    assert!(plan.contains("vision_encoder"), "{plan}");
    let picture = fixture("pipeline-qwen-edit").join("other.png");
    let small = ["--image", path(&picture), "--width", "16", "--height", "16"];
    done(&image(home.path(), Some(&server.url()), &small));
    let names: Vec<_> = files(&snapshot(home.path())).into_keys().collect();
    assert_eq!(names, needed);
}
