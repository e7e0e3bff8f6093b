//! A checkpoint of any format, written anew as safetensors.

use crate::common::{
    assert_alike, assert_close, done, failed, folder, message, model, outsize, path, read_logits,
    report, tiny,
};
use outsize::checkpoint::{Checkpoint, Dtype};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Beyond the process itself: pieces, a file's buffer, headers.
const PEAK: u64 = 40_000_000;

/// GGUF files and others that transformers computed logits from.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures").join(name)
}

fn values(checkpoint: &Checkpoint) -> Vec<(String, Dtype, Vec<usize>, Vec<u8>)> {
    let mut values: Vec<_> = (checkpoint.tensors().iter())
        .map(|tensor| {
            let bytes = checkpoint.read(tensor).unwrap();
            (tensor.name.clone(), tensor.dtype, tensor.shape.clone(), bytes)
        })
        .collect();
    values.sort();
    values
}

fn logits(model: &Path, ids: &str) -> Vec<f32> {
    let out = folder();
    let file = out.path().join("logits.safetensors");
    done(&outsize(&["logits", path(model), "--ids", ids, "--output", path(&file)]));
    read_logits(&file)
}

fn config(model: &Path) -> Value {
    serde_json::from_slice(&fs::read(model.join("config.json")).unwrap()).unwrap()
}

#[test]
fn shards_are_merged_and_divided_anew_byte_by_byte() {
    let dir = folder();
    let model = model(&dir);
    fs::write(model.join("LICENSE"), "free").unwrap();
    fs::write(model.join("optimizer.pt"), "not a small file").unwrap();
    let (merged, shards) = (dir.path().join("merged"), dir.path().join("shards"));
    let said = report(&outsize(&["merge", path(&model), path(&merged), "--json"]));
    assert_eq!(said["shards"], 1);
    let peak = said["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak < PEAK && said["bytes"].as_u64().unwrap() > PEAK, "{said}");
    let mut names: Vec<_> =
        fs::read_dir(&merged).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let kept = [
        "LICENSE",
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names, kept);
    let shard = ["shard", path(&merged), path(&shards), "--max-shard-size", "7MB"];
    let told = message(&outsize(&shard));
    assert!(told.contains("made ") && told.contains(" files in "), "{told}");
    assert!(shards.join("model.safetensors.index.json").exists());
    // One of them is not the whole.
    let mut files = shards.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let one = files.find(|file| path(file).contains("-00001-of-")).unwrap();
    let told = message(&outsize(&["merge", path(&one), path(&dir.path().join("part"))]));
    assert!(told.contains("files of a checkpoint"), "{told}");
    let original = values(&Checkpoint::open(&model).unwrap());
    for out in [merged, shards] {
        assert!(values(&Checkpoint::open(&out).unwrap()) == original, "{}", out.display());
        for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
            assert_eq!(fs::read(out.join(name)).unwrap(), fs::read(model.join(name)).unwrap());
        }
    }
}

#[test]
fn rows_in_an_order_that_cannot_be_undone_are_refused() {
    let (dir, file) = (folder(), fixture("vision-gguf-glm4v").join("model.gguf"));
    let out = dir.path().join("out");
    let said = failed(&outsize(&["shard", path(&file), path(&out)]), 1);
    assert!(said.contains("rope_interleaved") && said.contains("it was made of"), "{said}");
    assert!(!out.exists());
}

#[test]
fn gguf_files_become_checkpoints_of_transformers() {
    for entry in fs::read_dir(fixture("")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if !name.starts_with("gguf-") {
            continue;
        }
        let (dir, file) = (folder(), entry.path().join("model.gguf"));
        let out = dir.path().join("out");
        done(&outsize(&["shard", path(&file), path(&out)]));
        let config = config(&out);
        let own =
            ["rope_interleaved", "rms_norm_add_unit_offset", "experts_gate_apart", "kv_b_apart"];
        for own in own.into_iter().chain(["quantization_config"]) {
            assert_eq!(config.get(own), None, "{name}");
        }
        assert_eq!(config["torch_dtype"], "float32", "{name}");
        assert_same_logits(&out, &file, &name);
    }
}

fn assert_same_logits(found: &Path, wanted: &Path, name: &str) {
    let ids = "5,3,9,1,7,2,8,4,6,10";
    assert_close(&logits(found, ids), &logits(wanted, ids), name);
}

/// Of which transformers has the axes the other way round.
#[test]
fn experts_in_four_bits_become_stacks_of_floats() {
    let (dir, model) = (folder(), fixture("gpt_oss-published-mxfp4"));
    let [kept, floats] = ["kept", "floats"].map(|name| dir.path().join(name));
    done(&outsize(&["shard", path(&model), path(&kept)]));
    let all = |model: &Path| values(&Checkpoint::open(model).unwrap());
    assert!(all(&kept) == all(&model));
    assert_eq!(config(&kept)["quantization_config"], config(&model)["quantization_config"]);
    done(&outsize(&["shard", path(&model), path(&floats), "--dtype", "bf16"]));
    assert_eq!(config(&floats).get("quantization_config"), None);
    let checkpoint = Checkpoint::open(&floats).unwrap();
    let stack = checkpoint.get("model.layers.1.mlp.experts.gate_up_proj").unwrap();
    assert_eq!((stack.dtype, &*stack.shape), (Dtype::BF16, &[4, 64, 64][..]));
    assert_same_logits(&floats, &model, "bf16");
}

/// Of compressed-tensors, AWQ and GPTQ.
#[test]
fn integers_become_floats_or_stay() {
    let mut found = 0;
    for entry in fs::read_dir(fixture("")).unwrap() {
        let model = entry.unwrap().path();
        let name = path(&model);
        if !["-compressed-", "-awq-", "-gptq-"].iter().any(|method| name.contains(method)) {
            continue;
        }
        found += 1;
        let dir = folder();
        let [kept, floats] = ["kept", "floats"].map(|name| dir.path().join(name));
        done(&outsize(&["shard", name, path(&kept)]));
        let all = |model: &Path| values(&Checkpoint::open(model).unwrap());
        assert!(all(&kept) == all(&model), "{name}");
        assert_eq!(config(&kept), config(&model), "{name}");
        done(&outsize(&["shard", name, path(&floats), "--dtype", "f32"]));
        assert_eq!(config(&floats).get("quantization_config"), None, "{name}");
        let checkpoint = Checkpoint::open(&floats).unwrap();
        assert!(checkpoint.tensors().iter().all(|tensor| tensor.dtype == Dtype::F32), "{name}");
        let ids = "5,3,9,1,7,2,8,4,6,10";
        assert_alike(&logits(&floats, ids), &logits(&model, ids), name);
    }
    assert!(found > 15, "{found} fixtures");
}

#[test]
fn floats_become_the_type_that_is_asked_for() {
    let dir = folder();
    let model = tiny(&dir);
    let [wide, narrow] = ["wide", "narrow"].map(|name| dir.path().join(name));
    done(&outsize(&["shard", path(&model), path(&wide), "--dtype", "f32"]));
    assert_eq!(config(&wide)["torch_dtype"], "float32");
    assert!(Checkpoint::open(&wide).unwrap().tensors().iter().all(|one| one.dtype == Dtype::F32));
    assert_alike(&logits(&wide, "1,2,3"), &logits(&model, "1,2,3"), "f32");
    // A bf16 survives being an f32.
    done(&outsize(&["merge", path(&wide), path(&narrow), "--dtype", "bf16"]));
    let [found, wanted] = [&narrow, &model].map(|model| values(&Checkpoint::open(model).unwrap()));
    assert!(found == wanted);
    assert_eq!(config(&narrow)["torch_dtype"], "bfloat16");
}

#[test]
fn files_of_pytorch_become_safetensors() {
    for name in ["gpt2", "relu2-tied"] {
        let model = fixture("../../../generate/tests/fixtures/torch").join(name);
        let dir = folder();
        let out = dir.path().join("out");
        done(&outsize(&["shard", path(&model), path(&out)]));
        assert_eq!(logits(&out, "1,2,3"), logits(&model, "1,2,3"), "{name}");
        assert!(out.join("model.safetensors").exists());
    }
}

#[test]
fn what_lies_beside_a_file_of_weights_alone_stays_there() {
    let dir = folder();
    let (model, downloads) = (tiny(&dir), dir.path().join("downloads"));
    fs::create_dir(&downloads).unwrap();
    let file = downloads.join("some.safetensors");
    fs::copy(model.join("model.safetensors"), &file).unwrap();
    fs::write(downloads.join("letter.txt"), "Dear").unwrap();
    let out = dir.path().join("out");
    done(&outsize(&["shard", path(&file), path(&out)]));
    let made: Vec<_> = fs::read_dir(&out).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(made, ["model.safetensors"]);
    assert_eq!(values(&Checkpoint::open(&file).unwrap()), values(&Checkpoint::open(&out).unwrap()));
}

#[test]
fn what_cannot_be_done_is_said_and_leaves_nothing() {
    let dir = folder();
    let model = tiny(&dir);
    let out = dir.path().join("out");
    let said = failed(&outsize(&["shard", path(&model), path(&model)]), 1);
    assert!(said.contains("is a folder that is not empty"), "{said}");
    let said = failed(&outsize(&["merge", "no/such/model", path(&out)]), 2);
    assert!(said.contains("does not exist"), "{said}");
    // Weights of a kind that nothing here dequantises are copied, but not turned to floats.
    let mut quantised = config(&model);
    quantised["quantization_config"] = serde_json::json!({ "quant_method": "hqq", "bits": 4 });
    fs::write(model.join("config.json"), quantised.to_string()).unwrap();
    let said = failed(&outsize(&["shard", path(&model), path(&out), "--dtype", "f32"]), 1);
    assert!(said.contains("hqq"), "{said}");
    assert!(!out.exists());
    done(&outsize(&["shard", path(&model), path(&out)]));
    assert_eq!(config(&out), quantised);
}

#[cfg(unix)]
#[test]
fn links_that_lead_elsewhere_are_not_followed() {
    let dir = folder();
    let model = tiny(&dir);
    let secret = dir.path().join("secret");
    fs::write(&secret, "a key").unwrap();
    std::os::unix::fs::symlink(&secret, model.join("notes.txt")).unwrap();
    std::os::unix::fs::symlink(model.join("config.json"), model.join("again.json")).unwrap();
    let out = dir.path().join("out");
    let told = outsize(&["shard", path(&model), path(&out)]);
    done(&told);
    assert!(message(&told).contains("not copied: notes.txt"), "{}", message(&told));
    assert!(!out.join("notes.txt").exists() && out.join("again.json").exists());
}
