//! Checkpoints made to do harm, given to the command: it says in one error which file is at fault
//! and why, at once, and takes little memory for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

const INDEX: &str = "model.safetensors.index.json";
const FIRST: &str = "model-00001-of-00002.safetensors";
/// A command that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of memory that the command may take for a checkpoint that it refuses.
const MOST: u64 = 200 << 20;

/// A model of some 100 KB in two shards.
const CONFIG: &str = r#"{
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64, "tie_word_embeddings": false, "eos_token_id": 2
}"#;

struct Ended {
    status: ExitStatus,
    stderr: String,
    /// The peak of its memory in bytes, as far as seen; 0 where the system does not say.
    peak: u64,
}

fn outsize(args: &[&str]) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_outsize"))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let mut peak = 0;
    let status = loop {
        let status = format!("/proc/{}/status", child.id());
        peak = peak.max(fs::read_to_string(status).map_or(0, |status| peak_of(&status)));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{args:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let stderr = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    Ended { status, stderr, peak }
}

fn peak_of(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a model, and then asks for its logits.
fn both(model: &Path) -> (Ended, Ended, TempDir) {
    let run =
        outsize(&["run", path(model), "--ids", "5,6", "--max-new-tokens", "2", "--ignore-eos"]);
    let place = tempfile::tempdir().unwrap();
    let output = place.path().join("out.safetensors");
    let logits = outsize(&["logits", path(model), "--ids", "5,6", "--output", path(&output)]);
    (run, logits, place)
}

/// What both commands say of a model that they refuse.
#[track_caller]
fn refused(model: &Path) -> String {
    let (run, logits, place) = both(model);
    assert!(place.path().read_dir().unwrap().next().is_none(), "an output stays");
    assert_eq!(run.stderr, logits.stderr);
    let said = run.stderr.clone();
    for ended in [run, logits] {
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(said.starts_with("error: "), "{said}");
        assert_eq!(said.matches("error: ").count(), 1, "{said}");
        assert!(!said.contains("panicked"), "{said}");
        let is_text = |char: char| char == '\n' || !char.is_control();
        assert!(said.chars().all(is_text), "{said:?}");
        assert!(said.len() < 4000, "{} bytes: {said}", said.len());
        assert!(ended.peak < MOST, "{} bytes for: {said}", ended.peak);
        assert!(said.contains(path(model)), "the folder is not named: {said}");
    }
    said
}

/// Makes the model once, and gives a copy of it to each case.
struct Model {
    place: TempDir,
}

impl Model {
    fn make() -> Self {
        let place = tempfile::tempdir().unwrap();
        let config = place.path().join("tiny.json");
        fs::write(&config, CONFIG).unwrap();
        let whole = place.path().join("whole");
        let made = outsize(&["synth", path(&config), path(&whole), "--max-shard-size", "40KB"]);
        assert!(made.status.success(), "{}", made.stderr);
        assert!(whole.join(FIRST).exists(), "{:?}", names(&whole));
        Self { place }
    }

    fn copy(&self) -> PathBuf {
        let copy = self.place.path().join("copy");
        let _ = fs::remove_dir_all(&copy);
        fs::create_dir(&copy).unwrap();
        for entry in self.place.path().join("whole").read_dir().unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        copy
    }

    /// What is said of a copy that `harm` was done to, all `parts` of which must be in it.
    #[track_caller]
    fn refused(&self, harm: impl FnOnce(&Path), parts: &[&str]) {
        let copy = self.copy();
        harm(&copy);
        let said = refused(&copy);
        for part in parts {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
    }
}

fn names(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let names = folder.read_dir().unwrap().map(name);
    names.map(|name| name.into_string().unwrap()).collect()
}

/// Puts `json` in the place of a shard's header, the data as it is.
fn replace_header(shard: &Path, json: &str) {
    let bytes = fs::read(shard).unwrap();
    let old = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let length = (json.len() as u64).to_le_bytes();
    fs::write(shard, [&length[..], json.as_bytes(), &bytes[8 + old..]].concat()).unwrap();
}

fn header(shard: &Path) -> Value {
    let bytes = fs::read(shard).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    serde_json::from_slice(&bytes[8..8 + len]).unwrap()
}

/// Changes the header of the first shard.
fn change_header(folder: &Path, change: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    let shard = folder.join(FIRST);
    let mut header = header(&shard);
    change(header.as_object_mut().unwrap());
    replace_header(&shard, &header.to_string());
}

/// Changes the weight map of the index.
fn change_index(folder: &Path, change: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    let path = folder.join(INDEX);
    let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(index["weight_map"].as_object_mut().unwrap());
    fs::write(&path, index.to_string()).unwrap();
}

const EMBED: &str = "model.embed_tokens.weight";

#[test]
fn damaged_shards() {
    let model = Model::make();
    let cut = |len: u64| {
        move |folder: &Path| {
            let file = fs::File::options().write(true).open(folder.join(FIRST)).unwrap();
            file.set_len(len).unwrap();
        }
    };
    model.refused(cut(0), &[FIRST, "the file has 0 bytes"]);
    model.refused(cut(100), &[FIRST, "it is cut short; download it again"]);
    model.refused(cut(5000), &[FIRST, "it is cut short; download it again"]);
    let start =
        |bytes: &'static [u8]| move |folder: &Path| fs::write(folder.join(FIRST), bytes).unwrap();
    model.refused(
        start(b"\xff\xff\xff\x7f\0\0\0\0{}"),
        &[FIRST, "the header claims 2147483647 bytes, over the format's limit"],
    );
    model.refused(start(b"\x09\0\0\0\0\0\0\0{}"), &[FIRST, "the header claims 9 bytes"]);
    model.refused(start(b"\x02\0\0\0\0\0\0\0{]"), &[FIRST, "the header is not valid"]);
    model.refused(
        start(b"\x80\x02}q\0(X\x05\0\0\0"),
        &[FIRST, "this is a Python pickle", "convert it to safetensors"],
    );
    model.refused(
        start(b"PK\x03\x04\0\0\x08\x08\0\0"),
        &[FIRST, "a zip archive, as torch.save writes it"],
    );
}

#[test]
fn headers_that_lie() {
    let model = Model::make();
    let embed = |member: &'static str, value: Value| {
        move |folder: &Path| change_header(folder, |header| header[EMBED][member] = value)
    };
    let quoted = &*format!("{EMBED:?}");
    model.refused(
        embed("data_offsets", json!([0, 1u64 << 62])),
        &[FIRST, quoted, "should have 19200 bytes"],
    );
    model.refused(embed("shape", json!([300, 33])), &[FIRST, quoted, "should have 19800 bytes"]);
    model.refused(
        embed("shape", json!([1u64 << 40, 1u64 << 40])),
        &[FIRST, quoted, "too large to be real"],
    );
    model
        .refused(embed("shape", json!(vec![1; 1000])), &[FIRST, quoted, "more than 64 dimensions"]);
    model.refused(embed("dtype", json!("F4")), &[FIRST, quoted, "dtype \"F4\" is not supported"]);
    model.refused(
        |folder| {
            change_header(folder, |header| {
                let whole = header[EMBED]["data_offsets"].clone();
                let end = whole[1].as_u64().unwrap();
                header.insert(
                    "evil".into(),
                    json!({"dtype": "U8", "shape": [end], "data_offsets": whole}),
                );
            })
        },
        &[FIRST, "starts inside tensor"],
    );
    model.refused(
        |folder| change_header(folder, |header| {
            header.insert("evil".into(), json!({"dtype": "U8", "shape": [9], "data_offsets": [1u64 << 40, (1u64 << 40) + 9]}));
        }),
        &[FIRST, "\"evil\" ends at byte 1099511627785 of the data", "it is cut short"],
    );
    model.refused(
        |folder| {
            let shard = folder.join(FIRST);
            let text = header(&shard).to_string();
            let entry = header(&shard)[EMBED].to_string();
            replace_header(&shard, &format!("{{{quoted}:{entry},{}", &text[1..]));
        },
        &[FIRST, quoted, "is defined twice"],
    );
    model.refused(
        |folder| {
            change_header(folder, |header| {
                let entry = header.remove(EMBED).unwrap();
                header.insert("\u{1b}[2J\u{1b}]0;owned\u{7}".into(), entry);
            })
        },
        &[FIRST, r"\u{1b}[2J\u{1b}]0;owned\u{7}", "control characters"],
    );
}

#[test]
fn indexes_that_lie() {
    let model = Model::make();
    let place = |file: &'static str| {
        move |folder: &Path| change_index(folder, |map| map[EMBED] = json!(file))
    };
    model.refused(
        place("model-00009.safetensors"),
        &[INDEX, "1 of 3 shards are missing, \"model-00009.safetensors\" first"],
    );
    for file in
        ["../whole/model-00001-of-00002.safetensors", "/etc/passwd", "x/../../y", "..", "C:x"]
    {
        model.refused(
            place(file),
            &[
                INDEX,
                EMBED,
                &format!("{file:?}, which is not the name of a file inside the folder"),
            ],
        );
    }
    model.refused(
        place("model-00002-of-00002.safetensors"),
        &[INDEX, EMBED, "which does not hold it"],
    );
    model.refused(
        |folder| change_index(folder, |map| drop(map.insert("evil".into(), json!(FIRST)))),
        &[INDEX, "\"evil\" is said to be in"],
    );
    model.refused(
        |folder| {
            let text = fs::read_to_string(folder.join(INDEX)).unwrap();
            let twice =
                text.replace("\"weight_map\": {", &format!("\"weight_map\": {{ {EMBED:?}: \"x\","));
            fs::write(folder.join(INDEX), twice).unwrap();
        },
        &[INDEX, EMBED, "is defined twice"],
    );
    for text in ["", "{", "[]", "{}", "\u{feff}{}"] {
        model.refused(
            |folder| fs::write(folder.join(INDEX), text).unwrap(),
            &[INDEX, "the index is not valid"],
        );
    }
    model.refused(
        |folder| fs::File::create(folder.join(INDEX)).unwrap().set_len(200 << 20).unwrap(),
        &[INDEX, "over the limit of 100000000"],
    );
}

#[test]
fn folders_without_weights() {
    let model = Model::make();
    let only_config = |folder: &Path| {
        for name in names(folder) {
            if name != "config.json" {
                fs::remove_file(folder.join(name)).unwrap();
            }
        }
    };
    model.refused(only_config, &["found only \"config.json\""]);
    model.refused(
        |folder| {
            only_config(folder);
            fs::write(folder.join("consolidated.00.pth"), b"PK\x03\x04").unwrap();
        },
        &["only in consolidated.00.pth", "convert it with transformers"],
    );
    model.refused(
        |folder| {
            only_config(folder);
            fs::write(folder.join("pytorch_model.bin"), b"PK\x03\x04").unwrap();
        },
        &["pytorch_model.bin: this is no zip archive of torch.save, or not a whole one"],
    );
    let pickle = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../checkpoint/tests/fixtures/torch/refused/os_system.bin");
    model.refused(
        |folder| {
            only_config(folder);
            fs::copy(&pickle, folder.join("pytorch_model.bin")).unwrap();
        },
        &["pytorch_model.bin: data.pkl refers to \"posix.system\"", "is never run"],
    );
    model.refused(
        |folder| fs::remove_file(folder.join(INDEX)).unwrap(),
        &["2 other .safetensors files", "download the index of the shards too"],
    );
    model.refused(
        |folder| {
            only_config(folder);
            fs::remove_file(folder.join("config.json")).unwrap();
        },
        &["config.json"],
    );
}

/// A tensor that nobody asks for, of a terabyte that the disk does not have.
#[cfg(unix)]
#[test]
fn a_sparse_file_takes_no_memory() {
    let model = Model::make();
    let copy = model.copy();
    change_header(&copy, |header| {
        let ends = header.values().filter_map(|entry| entry["data_offsets"][1].as_u64());
        let start = ends.max().unwrap();
        let offsets = [start, start + (1 << 40)];
        header.insert(
            "evil".into(),
            json!({"dtype": "U8", "shape": [1u64 << 40], "data_offsets": offsets}),
        );
    });
    let file = fs::File::options().write(true).open(copy.join(FIRST)).unwrap();
    let len = file.metadata().unwrap().len();
    if file.set_len(len + (1 << 40)).is_err() {
        println!("SKIPPED: this file system has no files of a terabyte");
        return;
    }
    // As the index does not name it, it is none of the checkpoint's.
    let (run, logits, _place) = both(&copy);
    for ended in [run, logits] {
        assert!(ended.status.success(), "{}", ended.stderr);
        assert!(ended.peak < MOST, "{}", ended.peak);
    }
    change_index(&copy, |map| drop(map.insert("evil".into(), json!(FIRST))));
    assert!(refused(&copy).contains("evil"));
}

/// The only legal oddity among them: a header of odd length, so that no tensor lies at a multiple
/// of its elements' size. The logits are the same bit for bit.
#[test]
fn misaligned_tensors_are_right() {
    let model = Model::make();
    let copy = model.copy();
    for name in names(&copy).iter().filter(|name| name.ends_with(".safetensors")) {
        let shard = copy.join(name);
        let mut text = header(&shard).to_string();
        if text.len().is_multiple_of(2) {
            text.push(' ');
        }
        replace_header(&shard, &text);
    }
    let logits = |model: &Path| {
        let (run, logits, place) = both(model);
        assert!(run.status.success() && logits.status.success(), "{}", logits.stderr);
        fs::read(place.path().join("out.safetensors")).unwrap()
    };
    assert!(logits(&copy) == logits(&model.place.path().join("whole")));
}

#[cfg(unix)]
#[test]
fn odd_files() {
    use std::os::unix::fs::symlink;
    let model = Model::make();
    for name in [FIRST, INDEX] {
        let instead = |make: &'static dyn Fn(&Path)| {
            move |folder: &Path| {
                fs::remove_file(folder.join(name)).unwrap();
                make(&folder.join(name));
            }
        };
        model.refused(
            instead(&|path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success())),
            &[name, "is not a regular file"],
        );
        model.refused(
            instead(&|path| symlink("/dev/zero", path).unwrap()),
            &[name, "is not a regular file"],
        );
        model.refused(
            instead(&|path| fs::create_dir(path).unwrap()),
            &[name, "is not a regular file"],
        );
        model.refused(
            instead(&|path| symlink(path.file_name().unwrap(), path).unwrap()),
            &[name, "symbolic links"],
        );
    }
    // Links as the cache of the Hub has them are fine.
    let copy = model.copy();
    let blobs = model.place.path().join("blobs");
    fs::create_dir(&blobs).unwrap();
    for name in names(&copy) {
        fs::rename(copy.join(&name), blobs.join(&name)).unwrap();
        symlink(Path::new("../blobs").join(&name), copy.join(&name)).unwrap();
    }
    let (run, logits, _place) = both(&copy);
    assert!(run.status.success(), "{}", run.stderr);
    assert!(logits.status.success(), "{}", logits.stderr);
}

/// `outsize synth` on a disk that is too small, and a checkpoint of the user's beside it.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk() {
    let place = tempfile::tempdir().unwrap();
    let script = r#"
        mount -t tmpfs -o size=1m tmpfs "$0" && mkdir "$0/mine" && echo precious > "$0/mine/file" || exit 99
        "$1" synth llama-demo "$0/out" --max-shard-size 300KB
        echo "status $?"; ls -A "$0"; cat "$0/mine/file"
    "#;
    for unshare in ["-m", "-rm"] {
        let output = Command::new("unshare")
            .args([unshare, "sh", "-c", script])
            .arg(place.path())
            .arg(env!("CARGO_BIN_EXE_outsize"))
            .stdin(Stdio::null())
            .output();
        let Some(output) = output.ok().filter(|output| output.status.success()) else {
            continue;
        };
        let shown = String::from_utf8(output.stdout).unwrap();
        assert_eq!(shown, "status 1\nmine\nprecious\n");
        let said = String::from_utf8(output.stderr).unwrap();
        let file = format!("cannot write {}/out/model-0000", place.path().display());
        assert!(said.contains(&file), "{said}");
        assert!(said.contains("No space left on device"), "{said}");
        return;
    }
    println!("SKIPPED: no small disk can be mounted here");
}

/// A limit on the size of files is an error like a full disk, not the signal that it is by default.
#[cfg(unix)]
#[test]
fn a_limit_on_the_size_of_files() {
    let place = tempfile::tempdir().unwrap();
    let script = r#"ulimit -f 100; "$1" synth llama-demo "$0/out"; echo "status $?"; ls -A "$0""#;
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(place.path())
        .arg(env!("CARGO_BIN_EXE_outsize"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "status 1\n");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("cannot write") && said.contains("File too large"), "{said}");
}
