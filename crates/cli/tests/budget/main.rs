//! The promise of `--max-memory`: whatever the model, the budget, the context and the prompt, the
//! process never holds more.
//!
//! Each case makes a random model, asks the command for the least budget, takes one between that
//! and all of the weights, and measures the peak resident set of the command as the kernel counted
//! it. Where a memory cgroup can be made, the command also runs inside one that is as large as the
//! budget, page cache included.
//!
//! `OUTSIZE_BUDGET_CASES=1000` runs more cases, `OUTSIZE_BUDGET_SEED=17` the one of that number.
#![cfg(target_os = "linux")]

mod case;
mod cgroup;
mod measured;
mod random;
mod tokenizer;

use case::Case;
use cgroup::Cgroup;
use measured::measure;
use random::Random;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const CASES: u64 = 200;

/// What `work` gives of each of `all`, in no order.
fn side_by_side<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(2, usize::from).min(4);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(one);
                    done.lock().unwrap().push(result);
                }
            });
        }
    });
    done.into_inner().unwrap()
}

/// The least budget that a refusal names, in bytes.
fn least(message: &str) -> u64 {
    let named = message.split_once("at least cpu=").or_else(|| message.split_once("give cpu="));
    let (_, rest) = named.unwrap_or_else(|| panic!("{message}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{message}"))
}

/// What was left of the budget in a case: in the resident set, and in the cgroup if there was one.
struct Margin {
    rss: i64,
    cgroup: Option<i64>,
}

fn check(seed: u64) -> Margin {
    let mut random = Random(seed);
    let case = Case::random(&mut random);
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (config, model) = (path("shape.json"), path("model"));
    std::fs::write(&config, case.config.to_string()).unwrap();
    let seed_text = seed.to_string();
    let made = measure(
        dir.path(),
        &["synth", &config, &model, "--dtype", case.dtype, "--seed", &seed_text],
        None,
    );
    assert_eq!(made.status, Some(0), "seed {seed}: {}", made.stderr);

    let ids: Vec<String> =
        (0..case.prompt).map(|_| random.within(0, case.vocabulary - 1).to_string()).collect();
    let (ids, context, new_tokens) =
        (ids.join(","), case.context.to_string(), case.new_tokens.to_string());
    let arguments = |limit: &str| {
        [
            "run",
            &model,
            "--json",
            "--ignore-eos",
            "--ids",
            &ids,
            "--context",
            &context,
            "--max-new-tokens",
            &new_tokens,
            "--kv-dtype",
            case.kv_dtype,
            "--compute",
            case.compute,
            "--max-memory",
            limit,
        ]
        .map(String::from)
    };
    let run = |limit: u64, cgroup: Option<&Cgroup>| {
        let arguments = arguments(&format!("cpu={limit}"));
        measure(dir.path(), &arguments.each_ref().map(String::as_str), cgroup)
    };
    let refused_run = least(&run(1 << 20, None).stderr);
    let plan = [
        "plan",
        &model,
        "--context",
        &context,
        "--prompt-tokens",
        &case.prompt.to_string(),
        "--kv-dtype",
        case.kv_dtype,
        "--compute",
        case.compute,
        "--max-memory",
        "cpu=1",
    ];
    let refused_plan = least(&measure(dir.path(), &plan, None).stderr);
    let apart = refused_plan.abs_diff(refused_run);
    assert!(
        apart <= 1 << 20,
        "seed {seed}: plan asks for {refused_plan} bytes, run for {refused_run}"
    );
    let least = refused_run;
    // Half of the cases as tight as can be, the others anywhere up to more than enough.
    let budget = match random.within(0, 1) {
        0 => least,
        _ => least + (random.share() * (case.weights as f64 + 8e6)) as u64,
    };
    let cgroup = Cgroup::new(budget);
    let done = run(budget, cgroup.as_ref());
    let told = format!(
        "seed {seed}: {} of {} bytes of weights, cache in {}, products in {}, context {}, prompt {}, budget {budget} (least {least})",
        case.config, case.weights, case.kv_dtype, case.compute, case.context, case.prompt
    );
    assert_eq!(done.status, Some(0), "{told}: {}", done.stderr);
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(report["tokens"].as_array().unwrap().len() as u64, case.new_tokens);
    assert!(done.peak_rss <= budget, "{told}: peak {}", done.peak_rss);
    Margin {
        rss: budget as i64 - done.peak_rss as i64,
        cgroup: cgroup.and_then(|cgroup| cgroup.peak()).map(|peak| budget as i64 - peak as i64),
    }
}

/// Makes a model of a shape in a folder, in bf16; its path.
fn model_of(dir: &Path, shape: &Value) -> String {
    let path = |name: &str| dir.join(name).to_str().unwrap().to_string();
    let (config, model) = (path("shape.json"), path("model"));
    std::fs::write(&config, shape.to_string()).unwrap();
    let made = measure(dir, &["synth", &config, &model, "--dtype", "bf16"], None);
    assert_eq!(made.status, Some(0), "{}", made.stderr);
    model
}

/// The disk's speed is measured after a run, in memory of the size of the ring: what the model held
/// must be gone by then.
#[test]
fn what_a_run_held_is_gone_when_the_disk_is_measured() {
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let shape = json!({
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 8,
        "vocab_size": 1000, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true,
    });
    let model = model_of(dir.path(), &shape);
    // What Accelerate keeps back for the largest layer becomes the ring's.
    let budget: u64 = 300_000_000;
    let limit = format!("cpu={budget}");
    let arguments = [
        "run",
        &model,
        "--json",
        "--ignore-eos",
        "--ids",
        "1,2,3",
        "--max-new-tokens",
        "3",
        "--max-memory",
        &limit,
        "--strategy",
        "sequential",
    ];
    let done = measure(dir.path(), &arguments, None);
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    let ring = report["placement"]["ring_bytes"].as_u64().unwrap();
    // More than the slack for the process: else this test could not fail.
    assert!(ring > 25_000_000, "ring {ring}");
    assert!(done.peak_rss <= budget, "peak {}, ring {ring}", done.peak_rss);
}

/// What streams needs no more memory for being large: one layer of the shape of a model of 1.1
/// billion values, with its tables of 131 MB each, runs in what the whole model is promised to run
/// in.
#[test]
fn a_wide_model_runs_in_120_mb() {
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let shape = json!({
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 4,
        "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
    });
    let model = model_of(dir.path(), &shape);
    let budget: u64 = 120_000_000;
    let limit = format!("cpu={budget}");
    let arguments = [
        "run",
        &model,
        "--json",
        "--ignore-eos",
        "--ids",
        "1,2,3,4",
        "--context",
        "64",
        "--max-new-tokens",
        "3",
        "--max-memory",
        &limit,
    ];
    let cgroup = Cgroup::new(budget);
    if cgroup.is_none() {
        eprintln!("SKIPPED: no memory cgroup can be made here, so the page cache was not counted");
    }
    let done = measure(dir.path(), &arguments, cgroup.as_ref());
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    assert!(done.peak_rss <= budget, "peak {}", done.peak_rss);
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(report["tokens"].as_array().unwrap().len(), 3);
    let streamed = report["placement"]["streamed_bytes"].as_u64().unwrap();
    assert!(streamed > 131_000_000, "streamed {streamed}");
}

/// Names, configurations and layers differ among architectures, and so does what a process holds
/// beside weights.
#[test]
fn each_model_type_keeps_to_the_least_budget_that_it_names() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures");
    let models = std::fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path());
    // What is behind a dash is another checkpoint of a type.
    let is_first = |path: &PathBuf| !path.file_name().unwrap().to_string_lossy().contains('-');
    let models: Vec<_> = models.filter(|path| path.is_dir() && is_first(path)).collect();
    assert!(models.len() > 90, "{} models", models.len());
    let over = side_by_side(&models, |model| {
        let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let name = model.to_str().unwrap();
        let run = |budget: u64| {
            let limit = format!("cpu={budget}");
            let ids = ["--ids", "3,1,4,1,5,9,2,6,5,3", "--max-new-tokens", "4"];
            let arguments = [&["run", name, "--json", "--max-memory", &limit], &ids[..]].concat();
            measure(dir.path(), &arguments, None)
        };
        let budget = least(&run(1).stderr);
        let done = run(budget);
        assert_eq!(done.status, Some(0), "{name}: {}", done.stderr);
        (done.peak_rss > budget).then(|| format!("{name}: peak {} of {budget}", done.peak_rss))
    });
    let over: Vec<_> = over.into_iter().flatten().collect();
    assert!(over.is_empty(), "{}", over.join("\n"));
}

#[test]
fn the_budget_is_kept_in_every_random_case() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("OUTSIZE_BUDGET_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("OUTSIZE_BUDGET_CASES").unwrap_or(CASES),
    };
    if Cgroup::new(1 << 30).is_none() {
        eprintln!("SKIPPED: no memory cgroup can be made here, so the page cache was not counted");
    }
    let margins = side_by_side(&seeds.clone().collect::<Vec<_>>(), |seed| check(*seed));
    assert_eq!(margins.len() as u64, seeds.end - seeds.start);
    let tightest = margins.iter().map(|margin| margin.rss).min();
    let in_cgroup = margins.iter().filter_map(|margin| margin.cgroup);
    println!(
        "{} cases; least left of a budget: {tightest:?} bytes of resident set, {:?} bytes of cgroup in {} cases",
        margins.len(),
        in_cgroup.clone().min(),
        in_cgroup.count(),
    );
}
