//! The command as a person or a script meets it: each test runs the binary.

use crate::common::{done, failed, folder, model, outsize, path, report, run, text};
use outsize_checkpoint::{Checkpoint, Dtype};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn a_budget_changes_memory_and_nothing_else() {
    let dir = folder();
    let model = model(&dir);
    let more = ["--max-new-tokens", "8", "--ignore-eos"];
    let resident = report(&run(&model, &more));
    assert_eq!(resident["tokens"].as_array().unwrap().len(), 8);
    assert_eq!(resident["placement"]["streamed_bytes"], 0);

    let message = failed(&run(&model, &["--max-memory", "cpu=1MB"]), 1);
    let least: u64 = {
        let (_, rest) = message.split_once("at least cpu=").unwrap();
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_else(|_| panic!("{message}"))
    };
    // What the message asks for does.
    for budget in [least, least + (10 << 20)] {
        let limit = format!("cpu={budget}");
        let mut args = more.to_vec();
        args.extend(["--max-memory", &limit]);
        let streamed = report(&run(&model, &args));
        assert_eq!(streamed["tokens"], resident["tokens"]);
        assert_eq!(streamed["text"], resident["text"]);
        assert!(streamed["placement"]["streamed_bytes"].as_u64().unwrap() > 10_000_000);
        let peak = streamed["peak_rss_bytes"].as_u64().unwrap();
        assert!(peak <= budget, "peak {peak} > budget {budget}");
        for field in [
            "load_seconds",
            "prefill_seconds",
            "first_token_seconds",
            "seconds_per_token",
            "link_bytes_per_second",
        ] {
            assert!(streamed[field].as_f64().unwrap() > 0.0, "{field}");
        }
        assert!(
            streamed["bytes_read"].as_u64().unwrap()
                > 6 * streamed["placement"]["streamed_bytes"].as_u64().unwrap() / 2
        );
    }
}

#[test]
fn text_streams_and_the_seed_decides() {
    let dir = folder();
    let model = model(&dir);
    let sampled = |seed: &str| {
        let output = outsize(&[
            "run",
            path(&model),
            "--prompt",
            "Hello, wörld",
            "--max-new-tokens",
            "12",
            "--temperature",
            "1",
            "--top-k",
            "50",
            "--top-p",
            "0.95",
            "--seed",
            seed,
            "--ignore-eos",
        ]);
        let shown = text(&output.stderr);
        assert!(shown.contains("resident") && shown.contains("tokens/s"), "{shown}");
        assert!(shown.contains("peak memory"), "{shown}");
        done(&output)
    };
    let first = sampled("1");
    assert!(first.trim().len() > 12, "{first:?}");
    assert!(first.ends_with('\n'));
    assert_eq!(sampled("1"), first);
    assert_ne!(sampled("2"), first);
}

#[test]
fn logits_are_the_same_streamed_or_not() {
    let dir = folder();
    let model = model(&dir);
    let logits = |name: &str, more: &[&str]| {
        let out = dir.path().join(name);
        let mut args = vec!["logits", path(&model), "--ids", "1,2,3,4,5", "--output", path(&out)];
        args.extend(more);
        done(&outsize(&args));
        let file = Checkpoint::open(&out).unwrap();
        let tensor = file.get("logits").unwrap();
        assert_eq!((tensor.dtype, &tensor.shape[..]), (Dtype::F32, &[1, 5, 3000][..]));
        file.read(tensor).unwrap()
    };
    let resident = logits("a.safetensors", &[]);
    let streamed = logits("b.safetensors", &["--max-memory", "cpu=75MB"]);
    assert!(resident == streamed);
    // Never over a file of the user's unless told so.
    let again = outsize(&[
        "logits",
        path(&model),
        "--ids",
        "1",
        "--output",
        path(&dir.path().join("a.safetensors")),
    ]);
    assert!(failed(&again, 2).contains("--force"));
    assert!(resident == logits("a.safetensors", &["--force"]));
}

#[test]
fn synth_is_decided_by_the_seed_and_leaves_nothing_when_interrupted() {
    let dir = folder();
    let model = model(&dir);
    let config = dir.path().join("wide.json");
    let read = |folder: &Path, tensor: &str| {
        let checkpoint = Checkpoint::open(folder).unwrap();
        checkpoint.read(checkpoint.get(tensor).unwrap()).unwrap()
    };
    let name = "model.layers.1.mlp.up_proj.weight";
    for (seed, same) in [("5", true), ("6", false)] {
        let out = dir.path().join(format!("seed-{seed}"));
        done(&outsize(&["synth", path(&config), path(&out), "--seed", seed]));
        assert_eq!(read(&model, name) == read(&out, name), same);
    }
    // Taken already.
    let message = failed(&outsize(&["synth", "llama-demo", path(&model)]), 1);
    assert!(message.contains("model"), "{message}");

    #[cfg(unix)]
    {
        let before = dir.path().read_dir().unwrap().count();
        let out = dir.path().join("large");
        let mut child = Command::new(env!("CARGO_BIN_EXE_outsize"))
            .args(["synth", "llama-7b", path(&out)])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Long enough to have begun, far too short to be done with 13.5 GB.
        while dir.path().read_dir().unwrap().count() == before {
            std::thread::sleep(Duration::from_millis(10));
        }
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(dir.path().read_dir().unwrap().count(), before);
    }
}

#[test]
fn bad_usage_is_said_in_one_line() {
    let dir = folder();
    let model = model(&dir);
    let model = path(&model);
    let cases: [(&[&str], i32, &[&str]); 18] = [
        (&["run", "/no/such/folder", "--ids", "1"], 2, &["/no/such/folder"]),
        (&["run", model, "--ids", "1,x"], 2, &["--ids", "\"x\""]),
        (&["run", model, "--ids", "3000"], 2, &["3000"]),
        (&["run", model, "--ids", "1", "--max-memory", "600MB"], 2, &["--max-memory", "cpu=600MB"]),
        (&["run", model, "--ids", "1", "--max-memory", "cpu=lots"], 2, &["--max-memory", "lots"]),
        (&["run", model, "--ids", "1", "--max-memory", "gpu0=8GB"], 2, &["gpu0"]),
        (&["run", model, "--ids", "1", "--max-memory", "gpu3=1GB,cpu=2GB"], 2, &["gpu3"]),
        (&["run", model, "--ids", "1", "--context", "100000"], 2, &["--context", "512"]),
        (&["run", model, "--ids", "1", "--temperature", "-1"], 2, &["--temperature"]),
        (&["run", model, "--ids", "1", "--temperature", "inf"], 2, &["--temperature", "finite"]),
        (&["run", model, "--ids", "1", "--top-p", "1.5"], 2, &["--top-p", "0 to 1"]),
        (&["run", model, "--ids", "1", "--min-p", "nan"], 2, &["--min-p", "0 to 1"]),
        (&["run", model, "--ids", "1", "--repetition-penalty", "0"], 2, &["above 0"]),
        (&["run", model, "--ids", "1", "--context", "0"], 2, &["--context"]),
        (&["logits", model, "--ids", "1", "--output", "/x", "--context", "513"], 2, &["512"]),
        (&["run", model, "--prompt", ""], 2, &["--prompt"]),
        (&["synth", "llama-1b", "/tmp/never", "--max-shard-size", "0"], 2, &["--max-shard-size"]),
        (&["synth", "llama-9b", "/tmp/never"], 2, &["llama-9b", "llama-1b"]),
    ];
    for (args, status, parts) in cases {
        let message = failed(&outsize(args), status);
        for part in parts {
            assert!(message.contains(part), "{args:?}: {part} is not in: {message}");
        }
        // It is found before anything is planned.
        assert!(status == 1 || !message.contains("resident"), "{args:?}: {message}");
    }
    assert_eq!(outsize(&["run", model]).status.code(), Some(2));
    assert!(done(&outsize(&["--version"])).starts_with("outsize 0"));
}

/// As in a plan: what is no map is bad usage, what is none of this model was tried; and the report
/// names who chose.
#[test]
fn a_device_map_of_the_users_own_is_taken_and_named() {
    let dir = folder();
    let model = model(&dir);
    let map = dir.path().join("map.json");
    let run = |text: &str| {
        std::fs::write(&map, text).unwrap();
        run(&model, &["--max-new-tokens", "2", "--device-map", path(&map)])
    };
    let taken = report(&run(r#"{"": "cpu", "lm_head": "disk"}"#));
    assert_eq!(taken["placement"]["strategy"], "manual");
    assert_eq!(taken["placement"]["tensors"]["lm_head.weight"], "streamed");
    for (text, status, part) in [
        ("[1, 2", 2, "map.json"),
        (r#"{"": "gpu"}"#, 2, "gpu"),
        (r#"{"": "cpu", "model.layer.0": "disk"}"#, 1, "model.layer.0"),
    ] {
        let message = failed(&run(text), status);
        assert!(message.contains(part), "{text}: {message}");
    }
    let missing = dir.path().join("none.json");
    let args = ["run", path(&model), "--ids", "1"];
    let message = failed(&outsize(&[&args[..], &["--device-map", path(&missing)]].concat()), 2);
    assert!(message.contains("none.json"), "{message}");
}

#[test]
fn a_broken_checkpoint_is_named() {
    let dir = folder();
    let model = model(&dir);
    let shard = model.join("model-00002-of-00004.safetensors");
    let whole = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &whole[..whole.len() / 2]).unwrap();
    let message = failed(&run(&model, &[]), 1);
    assert!(message.contains("model-00002-of-00004.safetensors"), "{message}");
    std::fs::remove_file(&shard).unwrap();
    let message = failed(&run(&model, &[]), 1);
    assert!(message.contains("model-00002-of-00004.safetensors"), "{message}");
    std::fs::write(model.join("config.json"), "{").unwrap();
    let message = failed(&run(&model, &[]), 1);
    assert!(message.contains("config.json"), "{message}");
    std::fs::remove_file(model.join("config.json")).unwrap();
    let message = failed(&run(&model, &[]), 1);
    assert!(message.contains("config.json"), "{message}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = folder();
    let model = model(&dir);
    let mut child = Command::new(env!("CARGO_BIN_EXE_outsize"))
        .args(["run", path(&model), "--prompt", "a", "--ignore-eos"])
        .args(["--max-new-tokens", "400"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(failed(&output, 0).matches("error").count(), 0);
}

/// What is asked for and has no effect is mentioned in one line.
#[test]
fn what_has_no_effect_is_mentioned() {
    let dir = folder();
    let model = model(&dir);
    let note = |args: &[&str], parts: &[&str]| {
        let shown = outsize(&[&["run", path(&model), "--max-new-tokens", "2"], args].concat());
        done(&shown);
        let message = text(&shown.stderr);
        let notes: Vec<_> = message.lines().filter(|line| line.starts_with("note: ")).collect();
        assert_eq!(notes.len(), usize::from(!parts.is_empty()), "{args:?}: {message}");
        for part in parts {
            assert!(notes[0].contains(part), "{args:?}: {part} is not in: {message}");
        }
    };
    note(&["--ids", "1"], &[]);
    note(&["--prompt", "-hello", "--top-k", "3", "--temperature", "1"], &[]);
    note(&["--ids", "1", "--max-memory", "gpu0=0,cpu=2GB"], &[]);
    note(&["--ids", "1", "--top-k", "3"], &["--top-k", "--temperature"]);
    note(&["--ids", "1", "--top-p", "0.3", "--min-p", "0.1"], &["--top-p, --min-p"]);
    note(&["--ids", "1,2,3", "--context", "4", "--ignore-eos"], &["--context", "--when-full"]);
    let fields = r#"{"do_sample": false, "use_cache": true, "_note": 1, "top_kk": 3, "warp": [1]}"#;
    std::fs::write(model.join("generation_config.json"), fields).unwrap();
    note(&["--ids", "1"], &["generation_config.json", "top_kk, warp"]);
}

#[test]
#[cfg(unix)]
fn what_is_read_is_not_written_over() {
    let dir = folder();
    let model = model(&dir);
    let link = dir.path().join("link.safetensors");
    let shard = model.join("model-00001-of-00004.safetensors");
    std::os::unix::fs::symlink(&shard, &link).unwrap();
    let before = std::fs::read(&shard).unwrap();
    for file in [&shard, &link, &model.join("config.json")] {
        for args in [
            &["logits", path(&model), "--ids", "1", "--force", "--output", path(file)][..],
            &["plan", path(&model), "--force", "--svg", path(file)],
        ] {
            assert!(failed(&outsize(args), 2).contains("of the model itself"), "{args:?}");
        }
    }
    assert!(std::fs::read(&shard).unwrap() == before);
    // Another file in its folder is the user's.
    let own = model.join("logits.safetensors");
    std::fs::write(&own, "").unwrap();
    done(&outsize(&["logits", path(&model), "--ids", "1", "--force", "--output", path(&own)]));
}

#[test]
fn nothing_takes_no_time() {
    let dir = folder();
    let one =
        outsize(&["run", path(&model(&dir)), "--ids", "1", "--max-new-tokens", "1", "--json"]);
    assert!(done(&one).contains("\"decode_seconds\":0.0"), "{}", done(&one));
}

#[test]
fn what_is_no_checkpoint_is_told_what_it_is() {
    let dir = folder();
    let model = model(&dir);
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let cached = dir.path().join("hub/models--org--x");
    std::fs::create_dir_all(cached.join("refs")).unwrap();
    std::fs::create_dir_all(cached.join("snapshots")).unwrap();
    std::fs::write(cached.join("refs/main"), commit).unwrap();
    std::fs::rename(&model, cached.join("snapshots").join(commit)).unwrap();
    let adapter = dir.path().join("adapter");
    std::fs::create_dir(&adapter).unwrap();
    std::fs::write(adapter.join("adapter_config.json"), "{}").unwrap();
    let run = |model: &str| {
        Command::new(env!("CARGO_BIN_EXE_outsize"))
            .args(["run", model, "--ids", "1", "--max-new-tokens", "1"])
            .env("HF_HUB_CACHE", dir.path().join("hub"))
            .env("HF_HUB_OFFLINE", "1")
            .current_dir(dir.path())
            .output()
            .unwrap()
    };
    for found in ["org/x", path(&cached)] {
        done(&run(found));
    }
    for (model, part) in [
        ("llama-1b", "outsize synth llama-1b"),
        ("adapter", "is an adapter of another model: give that, and `--adapter adapter`"),
        ("nothing", "does not exist"),
    ] {
        let message = failed(&run(model), 2);
        assert!(message.contains(part), "{model}: {message}");
    }
}
