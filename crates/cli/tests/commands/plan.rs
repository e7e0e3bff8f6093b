//! `outsize plan` as a person or a script meets it.

use crate::common::{CONFIG, done, failed, folder, model, outsize, path, text};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The command with an environment that says nothing of colours or character sets, but for
/// `variables`.
fn plan(model: &Path, more: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outsize"));
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "LC_ALL", "LC_CTYPE", "LANG"] {
        command.env_remove(name);
    }
    command
        .arg("plan")
        .arg(model)
        .args(more)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn json(model: &Path, more: &[&str]) -> Value {
    let mut more = more.to_vec();
    more.push("--json");
    serde_json::from_str(&done(&plan(model, &more, &[]))).unwrap()
}

/// A folder with nothing but a configuration.
fn bare(dir: &tempfile::TempDir) -> std::path::PathBuf {
    let folder = dir.path().join("bare");
    std::fs::create_dir(&folder).unwrap();
    let config = CONFIG.replacen('{', "{\"torch_dtype\": \"bfloat16\",", 1);
    std::fs::write(folder.join("config.json"), config).unwrap();
    folder
}

/// The least budget that a refusal names.
#[track_caller]
fn least(message: &str) -> u64 {
    let (_, rest) = message.split_once("at least cpu=").unwrap_or_else(|| panic!("{message}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn weights_are_not_needed() {
    let dir = folder();
    let (bare, whole) = (bare(&dir), model(&dir));
    let budget = ["--max-memory", "gpu0=0,cpu=90MB"];
    // A configuration by its own path.
    let by_path = json(&bare.join("config.json"), &budget);
    assert_eq!(by_path["blocks"], json(&bare, &budget)["blocks"]);
    assert_eq!(by_path["model"]["name"], "bare");
    // A run's tokenizer takes memory, which a plan counts.
    std::fs::copy(whole.join("tokenizer.json"), bare.join("tokenizer.json")).unwrap();
    let (mut without, mut with) = (json(&bare, &budget), json(&whole, &budget));
    assert_eq!(without["model"]["name"], "bare");
    assert!(with["blocks"].as_array().unwrap().len() > 5);
    for plan in [&mut without, &mut with] {
        plan["model"]["name"] = Value::Null;
        // The disk is another one, perhaps.
        plan["figures_source"] = Value::Null;
        plan["notes"] = Value::Null;
    }
    assert_eq!(without, with);
    // A preset.
    let preset = done(&plan(Path::new("llama-1b"), &["--max-memory", "gpu0=0,cpu=1GB"], &[]));
    assert!(preset.starts_with("llama-1b · llama · 1.1 billion parameters"), "{preset}");
}

#[test]
fn the_drawing_keeps_to_its_width_and_colours_are_for_those_who_want_them() {
    let dir = folder();
    let bare = bare(&dir);
    let budget = ["--max-memory", "gpu0=0,cpu=90MB"];
    let drawn = |variables: &[(&str, &str)]| done(&plan(&bare, &budget, variables));
    let plain = drawn(&[]);
    assert!(plain.lines().all(|line| line.chars().count() <= 80), "{plain}");
    for part in
        ["cpu  ▕", "model.layers.", "per token", "+25 % memory:", "-25 % memory:", "Figures"]
    {
        assert!(plain.contains(part), "{part}: {plain}");
    }
    assert!(!plain.contains('\u{1b}'));
    let coloured = drawn(&[("CLICOLOR_FORCE", "1")]);
    assert!(coloured.contains("\u{1b}[34m"), "{coloured}");
    assert_eq!(drawn(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]), plain);
    assert_eq!(drawn(&[("LANG", "de_DE.UTF-8")]), plain);
    let ascii = drawn(&[("LC_ALL", "C")]);
    assert!(ascii.is_ascii() && ascii.contains("cpu  [#"), "{ascii}");
}

#[test]
fn too_small_a_budget_says_what_would_do_and_that_does() {
    let dir = folder();
    let bare = bare(&dir);
    let small = failed(&plan(&bare, &["--max-memory", "gpu0=0,cpu=1MB"], &[]), 1);
    assert!(small.contains("(--max-memory, --context)"), "{small}");
    let enough = format!("gpu0=0,cpu={}", least(&small));
    let planned = json(&bare, &["--max-memory", &enough]);
    let less = &planned["what_if"][1];
    assert_eq!(less["fits"], false);
    assert_eq!(less["least"]["tier"], "cpu");
    let drawn = done(&plan(&bare, &["--max-memory", &enough], &[]));
    assert!(drawn.contains("does not fit: least is cpu="), "{drawn}");
}

#[test]
fn what_is_asked_for_counts() {
    let dir = folder();
    let bare = bare(&dir);
    let of = |more: &[&str]| {
        let mut args = vec!["--max-memory", "gpu0=0,cpu=500MB"];
        args.extend(more);
        json(&bare, &args)
    };
    let kv = |plan: &Value| plan["tiers"][0]["kv_cache"].as_u64().unwrap();
    let plain = of(&[]);
    assert_eq!(plain["workload"]["position"], 512);
    assert_eq!(plain["workload"]["prompt"], 256);
    // 2 × 4 layers × 4 heads of 64 values × 512 tokens, in f32.
    assert_eq!(kv(&plain), 2 * 4 * 4 * 64 * 512 * 4);
    assert_eq!(kv(&of(&["--kv-dtype", "bf16"])) * 2, kv(&plain));
    assert_eq!(kv(&of(&["--batch", "3"])), 3 * kv(&plain));
    let short = of(&["--context", "100", "--prompt-tokens", "30"]);
    assert_eq!(kv(&short) * 512, kv(&plain) * 100);
    assert_eq!(short["workload"]["prompt"], 30);
    assert_eq!(of(&["--context", "100"])["workload"]["prompt"], 50);
    let bytes = |plan: &Value| plan["model"]["bytes"].as_u64().unwrap();
    let wide = of(&["--dtype", "f32"]);
    assert_eq!(bytes(&wide), 2 * bytes(&plain));
    assert_eq!(
        (&wide["model"]["dtype"], &wide["model"]["stored_dtype"]),
        (&"f32".into(), &"bf16".into())
    );
    let head = of(&["--special-dtype", "lm_head.weight=f32"]);
    assert_eq!(bytes(&head), bytes(&plain) + 2 * 3000 * 768);
    let kept = of(&["--dtype", "int8", "--keep-in-fp32", "lm_head"]);
    assert_eq!(bytes(&kept), bytes(&of(&["--dtype", "int8"])) + 3 * 3000 * 768);
    let reserved = of(&["--reserve", "400MB"]);
    assert!(reserved["tiers"][1]["weights"].as_u64() > plain["tiers"][1]["weights"].as_u64());
    let none_on_disk =
        failed(&plan(&bare, &["--max-memory", "gpu0=0,cpu=90MB", "--must-fit"], &[]), 1);
    for part in ["does not fit", "lacking", "(--max-memory, --must-fit)"] {
        assert!(none_on_disk.contains(part), "{none_on_disk}");
    }
}

#[test]
fn gpus_of_another_machine_are_planned_for() {
    let dir = folder();
    let bare = bare(&dir);
    let figures = dir.path().join("figures.json");
    let own = json(&bare, &["--max-memory", "gpu0=0,cpu=1GB"]);
    let mut other = own["figures"].clone();
    other["disk"]["bytes_per_second"] = 5e8.into();
    other["gpus"]["0"] = serde_json::json!({
        "processor": {
            "memory_bytes_per_second": 1e12, "product_bytes_per_second": 9e11, "product_flops": 1e14,
            "cache_bytes_per_second": 5e11, "block_seconds": 5e-5
        },
        "upload": { "bytes_per_second": 2e10, "latency_seconds": 1e-5 }
    });
    std::fs::write(&figures, other.to_string()).unwrap();
    for strategy in ["auto", "sequential", "balanced", "balanced_low_0"] {
        let args = [
            "--max-memory",
            "gpu0=45MB,cpu=200MB",
            "--figures",
            path(&figures),
            "--strategy",
            strategy,
        ];
        let planned = json(&bare, &args);
        assert_eq!(planned["strategy"], strategy);
        assert_eq!(planned["figures"], other);
        assert!(planned["figures_source"].as_str().unwrap().contains("figures.json"));
        let tiers = planned["tiers"].as_array().unwrap();
        for tier in tiers {
            if let Some(budget) = tier["budget"].as_u64() {
                let held = ["weights", "ring", "kv_cache", "activations", "other"]
                    .map(|key| tier[key].as_u64().unwrap());
                assert!(held.iter().sum::<u64>() <= budget, "{strategy}: {tier}");
            }
        }
        let map = planned["device_map"].as_object().unwrap();
        assert!(!map.is_empty());
        let drawn = done(&plan(&bare, &args, &[]));
        assert!(drawn.contains("gpu0"), "{drawn}");
    }
}

#[test]
fn an_svg_is_written_whole_or_not_at_all() {
    let dir = folder();
    let bare = bare(&dir);
    let args = |file: &Path| {
        ["--max-memory", "gpu0=0,cpu=90MB", "--svg", path(file)].map(String::from).to_vec()
    };
    let run =
        |args: &[String]| plan(&bare, &args.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let svg = dir.path().join("plan.svg");
    let drawn = done(&run(&args(&svg)));
    assert!(drawn.contains("per token"));
    let first = std::fs::read_to_string(&svg).unwrap();
    assert!(first.starts_with("<?xml") && first.ends_with("</svg>\n"));
    // Never over a file of the user's unless told so.
    let message = failed(&run(&args(&svg)), 2);
    assert!(message.contains("--force"), "{message}");
    let mut forced = args(&svg);
    forced.push("--force".to_string());
    done(&run(&forced));
    assert_eq!(std::fs::read_to_string(&svg).unwrap(), first);
    let before = dir.path().read_dir().unwrap().count();
    let nowhere = dir.path().join("none").join("plan.svg");
    let message = failed(&run(&args(&nowhere)), 1);
    assert!(message.contains("plan.svg"), "{message}");
    assert_eq!(dir.path().read_dir().unwrap().count(), before);
    // A plan that fails leaves no file.
    let other = dir.path().join("other.svg");
    let failing = ["--max-memory", "gpu0=0,cpu=1MB", "--svg", path(&other)];
    failed(&plan(&bare, &failing, &[]), 1);
    assert_eq!(dir.path().read_dir().unwrap().count(), before);
}

#[test]
fn device_maps_are_taken_and_checked() {
    let dir = folder();
    let bare = bare(&dir);
    let map = dir.path().join("map");
    let planned = |text: &str, budget: &str| {
        std::fs::write(&map, text).unwrap();
        plan(&bare, &["--max-memory", budget, "--device-map", path(&map), "--json"], &[])
    };
    let roomy = "gpu0=200MB,cpu=500MB";
    let layers = r#"{"model.embed_tokens": "cpu", "model.layers.0": 0, "model.layers": "cpu", "model.norm": "cpu",
        "model.rotary_emb": "cpu", "lm_head": "disk"}"#;
    let taken: Value = serde_json::from_str(&done(&planned(layers, roomy))).unwrap();
    assert_eq!(taken["strategy"], "manual");
    let shares = |plan: &Value, block: usize| plan["blocks"][block]["shares"].clone();
    assert_eq!(shares(&taken, 1).as_object().unwrap().keys().collect::<Vec<_>>(), ["gpu0"]);
    assert_eq!(shares(&taken, 2).as_object().unwrap().keys().collect::<Vec<_>>(), ["cpu"]);
    assert_eq!(taken["device_map"]["lm_head"], "disk");
    let yaml = "# by hand\nmodel: cpu\nlm_head: 0\n";
    let taken: Value = serde_json::from_str(&done(&planned(yaml, roomy))).unwrap();
    assert_eq!(taken["device_map"]["lm_head"], 0);
    // What a plan writes, a plan takes.
    let own = json(&bare, &["--max-memory", "gpu0=0,cpu=90MB"]);
    let again = done(&planned(&own["device_map"].to_string(), "gpu0=0,cpu=90MB"));
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(again["device_map"], own["device_map"]);
    // What is no map is bad usage; what is none of this model, or does not fit, was tried.
    for (text, budget, part, status) in [
        (r#"{"model.layers": 0}"#, roomy, "model.embed_tokens", 1),
        (r#"{"": "cpu", "model.layer.0": 0}"#, roomy, "model.layer.0", 1),
        (r#"{"": "gpu"}"#, roomy, "gpu", 2),
        (r#"{"": "cpu"}"#, "gpu0=0,cpu=60MB", "cpu", 1),
        (r#"{"": 0}"#, "gpu0=20MB,cpu=60MB", "gpu0", 1),
        ("[1, 2", roomy, "map", 2),
        ("", roomy, "map", 2),
    ] {
        let message = failed(&planned(text, budget), status);
        assert!(message.contains(part), "{text}: {message}");
    }
}

#[test]
fn bad_usage_is_said_in_one_line() {
    let dir = folder();
    let bare = bare(&dir);
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let bare = path(&bare);
    let cases: [(&[&str], i32, &[&str]); 16] = [
        (&["/no/such/model"], 2, &["/no/such/model", "config.json"]),
        (&[path(&empty)], 1, &["config.json"]),
        (&[bare, "--max-memory", "8GB"], 2, &["--max-memory", "cpu=600MB"]),
        (&[bare, "--max-memory", "tpu0=8GB"], 2, &["--max-memory", "tpu0"]),
        (&[bare, "--strategy", "best"], 2, &["balanced_low_0"]),
        (&[bare, "--context", "0"], 2, &["--context"]),
        (&[bare, "--context", "513"], 2, &["--context", "512"]),
        (&[bare, "--context", "10", "--prompt-tokens", "11"], 2, &["--prompt-tokens", "10"]),
        (&[bare, "--batch", "0"], 2, &["--batch"]),
        (&[bare, "--batch", "5000"], 2, &["--batch", "4096"]),
        (&[bare, "--reserve", "much"], 2, &["--reserve", "much"]),
        (&[bare, "--dtype", "f7"], 2, &["--dtype", "f7", "bf16"]),
        (&[bare, "--special-dtype", "lm_head.weight"], 2, &["--special-dtype", "="]),
        (
            &[bare, "--special-dtype", "lm_haed.weight=f32"],
            1,
            &["lm_haed.weight", "lm_head.weight"],
        ),
        (&[bare, "--figures", "/no/such/file"], 2, &["--figures", "/no/such/file"]),
        (&[bare, "--device-map", "x.json", "--strategy", "auto"], 2, &["--device-map"]),
    ];
    for (args, status, parts) in cases {
        let mut all = vec!["plan"];
        all.extend(args);
        let message = failed(&outsize(&all), status);
        for part in parts {
            assert!(message.contains(part), "{args:?}: {part} is not in: {message}");
        }
    }
}

#[test]
fn a_name_of_a_stranger_does_not_reach_the_terminal() {
    let dir = folder();
    let evil = dir.path().join("\u{1b}]0;owned\u{7}\u{202e}");
    std::fs::create_dir(&evil).unwrap();
    std::fs::write(evil.join("config.json"), CONFIG).unwrap();
    let drawn = done(&plan(&evil, &["--max-memory", "gpu0=0,cpu=1GB"], &[]));
    assert!(!drawn.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{drawn:?}");
    assert!(drawn.contains("owned"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = folder();
    let bare = bare(&dir);
    for more in [&["--json"][..], &[]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_outsize"))
            .args(["plan", path(&bare), "--max-memory", "gpu0=0,cpu=1GB"])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(text(&output.stderr), "");
        failed(&output, 0);
    }
}

/// An option of several values leaves MODEL alone, and what matches nothing is mentioned.
#[test]
fn classes_and_patterns_are_those_of_the_model() {
    let dir = folder();
    let bare = bare(&dir);
    let bare = path(&bare);
    for (args, notes) in [
        (&["plan", bare, "--no-split", "LlamaDecoderLayer"][..], 0),
        (&["plan", "--no-split", "LlamaDecoderLayer", bare], 0),
        (&["plan", "--no-split", "LlamaDecoderLayer,GPT2Block", bare], 1),
        (&["plan", bare, "--keep-in-fp32", "lm_head", "--keep-in-fp32", "layers.0"], 0),
        (&["plan", bare, "--keep-in-fp32", "head"], 1),
        (&["estimate", "--dtypes", "bf16", "int4", bare], 0),
        (&["estimate", bare, "--dtypes", "bf16", "int4"], 0),
    ] {
        let shown = done(&outsize(args)).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(shown.matches("matches nothing").count(), notes, "{args:?}: {shown}");
        assert_eq!(shown.contains("int4"), args[0] == "estimate", "{args:?}: {shown}");
    }
    for args in [&["estimate", "--dtypes", "bf16"][..], &["plan", "--no-split", "X"]] {
        assert!(failed(&outsize(args), 2).contains("MODEL"));
    }
}

#[test]
fn the_entry_of_the_whole_model_has_a_name() {
    let dir = folder();
    let bare = bare(&dir);
    let map = dir.path().join("map.json");
    std::fs::write(&map, r#"{"": "disk"}"#).unwrap();
    let args = ["plan", path(&bare), "--must-fit", "--device-map", path(&map)];
    let message = failed(&outsize(&args), 1);
    assert!(message.contains("the model as a whole does not fit"), "{message}");
}

/// A file's name is bytes.
#[test]
#[cfg(target_os = "linux")]
fn a_path_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let dir = folder();
    let odd = dir.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9\x1b[31m\n"));
    std::fs::rename(bare(&dir), &odd).unwrap();
    let drawn = done(&plan(&odd, &[], &[]));
    assert!(drawn.starts_with("caf\u{fffd}\\u{1b}[31m\\n"), "{drawn:?}");
    let output = Command::new(env!("CARGO_BIN_EXE_outsize"))
        .args(["run", "--ids", "1"])
        .arg(&odd)
        .output()
        .unwrap();
    let message = failed(&output, 1);
    assert!(!message.contains('\u{1b}') && message.lines().count() == 1, "{message:?}");
}
