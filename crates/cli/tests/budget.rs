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

use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const CASES: u64 = 200;

/// What one run of the command came to.
struct Run {
    status: Option<i32>,
    stdout: String,
    stderr: String,
    /// Bytes.
    peak_rss: u64,
}

/// Set for the process between the test and the command, whose only child is then the command: what
/// the kernel tells of a process's children is the largest of them.
const ARGUMENTS: &str = "OUTSIZE_MEASURED_ARGUMENTS";
const RESULT: &str = "OUTSIZE_MEASURED_RESULT";
const CGROUP: &str = "OUTSIZE_MEASURED_CGROUP";

#[test]
fn measured_child() {
    let (Ok(arguments), Ok(result)) = (std::env::var(ARGUMENTS), std::env::var(RESULT)) else {
        return;
    };
    // The shell enters the cgroup and becomes the command.
    let enter = match std::env::var(CGROUP) {
        Ok(cgroup) => format!("echo $$ > '{cgroup}/cgroup.procs' && "),
        Err(_) => String::new(),
    };
    let output = Command::new("sh")
        .args(["-c", &format!("{enter} exec \"$@\""), "sh"])
        .arg(env!("CARGO_BIN_EXE_outsize"))
        .args(arguments.lines())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let peak = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss() as u64 * 1024;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let report = json!({
        "status": output.status.code(),
        "stdout": text(&output.stdout),
        "stderr": text(&output.stderr),
        "peak_rss": peak,
    });
    std::fs::write(result, report.to_string()).unwrap();
}

/// Runs the command with `arguments`, in `cgroup` if there is one.
fn measure(folder: &Path, arguments: &[&str], cgroup: Option<&Cgroup>) -> Run {
    let result = folder.join("measured.json");
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "measured_child"])
        .env(ARGUMENTS, arguments.join("\n"))
        .env(RESULT, &result)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Some(cgroup) = cgroup {
        child.env(CGROUP, &cgroup.folder);
    }
    assert!(child.status().unwrap().success());
    let read: Value = serde_json::from_slice(&std::fs::read(result).unwrap()).unwrap();
    let text = |field: &str| read[field].as_str().unwrap().to_string();
    Run {
        status: read["status"].as_i64().map(|status| status as i32),
        stdout: text("stdout"),
        stderr: text("stderr"),
        peak_rss: read["peak_rss"].as_u64().unwrap(),
    }
}

/// A memory cgroup of this test's own; removed when dropped.
struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// A cgroup that may take `limit` bytes, if the system lets us make one.
    fn new(limit: u64) -> Option<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("outsize-budget-{}-{number}", std::process::id());
        for (root, file) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let folder = Path::new(root).join(&name);
            if !Path::new(root).is_dir() || std::fs::create_dir(&folder).is_err() {
                continue;
            }
            let cgroup = Self { folder };
            if std::fs::write(cgroup.folder.join(file), limit.to_string()).is_ok() {
                return Some(cgroup);
            }
        }
        None
    }

    /// The most that it held, page cache and the kernel's own included, in bytes.
    fn peak(&self) -> Option<u64> {
        ["memory.max_usage_in_bytes", "memory.peak"]
            .iter()
            .find_map(|file| std::fs::read_to_string(self.folder.join(file)).ok())
            .and_then(|text| text.trim().parse().ok())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Only an empty one can be removed; the command has ended, the kernel may need a moment.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Numbers from a seed (SplitMix64, Steele et al., 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.within(0, from.len() as u64 - 1) as usize]
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// One random model and what is asked of it.
struct Case {
    config: Value,
    dtype: &'static str,
    kv_dtype: &'static str,
    compute: &'static str,
    context: u64,
    prompt: u64,
    new_tokens: u64,
    weights: u64,
    vocabulary: u64,
}

impl Case {
    fn random(random: &mut Random) -> Self {
        loop {
            let case = Self::any(random);
            let values = case.weights / if case.dtype == "f32" { 4 } else { 2 };
            // Large enough to stream, small enough for hundreds of them.
            if (3_000_000..60_000_000).contains(&case.weights)
                && values * case.prompt < 3_000_000_000
            {
                return case;
            }
        }
    }

    fn any(random: &mut Random) -> Self {
        let heads: u64 = random.pick(&[1, 2, 3, 4, 6, 8, 12, 16]);
        let head_dim = random.pick(&[16, 32, 64, 128]);
        let hidden = heads * head_dim;
        let key_value_heads = (1..=heads)
            .filter(|heads_of_keys| heads.is_multiple_of(*heads_of_keys))
            .nth(random.within(0, 5) as usize)
            .unwrap_or(heads);
        let layers = random.within(1, 8);
        let intermediate = hidden * random.within(2, 8) / 2 + random.within(0, 3);
        let vocabulary = random.within(300, 20_000);
        let dtype = random.pick(&["f32", "bf16", "f16"]);
        let kv_dtype = random.pick(&["f32", "bf16", "f16"]);
        let architecture = random.pick(&[
            "llama",
            "mistral",
            "qwen2",
            "gpt2",
            "gptj",
            "qwen3",
            "olmo2",
            "phi3",
            "gemma3_text",
            "gpt_neox",
            "opt",
            "bloom",
            "falcon",
            "t5",
        ]);
        let tied = random.within(0, 1) == 1;
        let context = random.within(8, 1500);
        let new_tokens = random.within(1, 6.min(context - 1));
        let prompt = random.within(1, context - new_tokens);
        let gpt = ["gpt2", "gptj"].contains(&architecture);
        // Of two matrices in the MLP, and as many heads of keys as of queries.
        let plain = gpt || ["gpt_neox", "opt", "bloom", "falcon"].contains(&architecture);
        // As many layers in the encoder as in the decoder.
        let t5_mlps = 2 * (if tied { 2 } else { 3 }) * hidden * intermediate;
        let layer = match architecture {
            "t5" => 12 * hidden * hidden + t5_mlps,
            _ if plain => 4 * hidden * hidden + 2 * hidden * intermediate,
            _ => {
                2 * hidden * hidden
                    + 2 * hidden * key_value_heads * head_dim
                    + 3 * hidden * intermediate
            }
        };
        let tables = vocabulary * hidden * if tied { 1 } else { 2 };
        let width = if dtype == "f32" { 4 } else { 2 };
        let mut config = json!({
                "model_type": architecture, "hidden_size": hidden, "intermediate_size": intermediate,
                "num_hidden_layers": layers, "num_attention_heads": heads,
                "num_key_value_heads": key_value_heads, "vocab_size": vocabulary,
                "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": tied,
        });
        if gpt {
            // Positions are learned: as many as are needed.
            config = json!({
                "model_type": architecture, "n_embd": hidden, "n_inner": intermediate,
                "n_layer": layers, "n_head": heads, "vocab_size": vocabulary,
                "n_positions": context,
            });
            match architecture {
                "gptj" => config["rotary_dim"] = (head_dim / 2).into(),
                _ => config["tie_word_embeddings"] = tied.into(),
            }
        }
        match architecture {
            "mistral" | "phi3" => config["sliding_window"] = random.within(1, 1500).into(),
            "qwen3" => config["head_dim"] = head_dim.into(),
            "gemma3_text" => {
                config["head_dim"] = head_dim.into();
                config["sliding_window"] = random.within(1, 1500).into();
                config["sliding_window_pattern"] = random.within(1, 3).into();
            }
            "opt" => {
                config["ffn_dim"] = intermediate.into();
                config["max_position_embeddings"] = context.into();
                config["do_layer_norm_before"] = (random.within(0, 1) == 1).into();
            }
            "gpt_neox" => config["use_parallel_residual"] = (random.within(0, 1) == 1).into(),
            "falcon" => {
                config["ffn_hidden_size"] = intermediate.into();
                config["alibi"] = (random.within(0, 1) == 1).into();
                config["new_decoder_architecture"] = (random.within(0, 1) == 1).into();
                config["num_kv_heads"] = key_value_heads.into();
            }
            "t5" => {
                config = json!({
                    "model_type": architecture, "d_model": hidden, "d_ff": intermediate, "d_kv": head_dim,
                    "num_layers": layers, "num_heads": heads, "vocab_size": vocabulary,
                    "tie_word_embeddings": tied,
                    "feed_forward_proj": if tied { "relu" } else { "gated-gelu" },
                });
            }
            _ => {}
        }
        Self {
            config,
            dtype,
            kv_dtype,
            compute: random.pick(&["f32", "bf16"]),
            context,
            prompt,
            new_tokens,
            weights: (layer * layers + tables) * width,
            vocabulary,
        }
    }
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

/// A tokenizer.json of 150,000 tokens and as many merges; loading it takes more than 100 MB.
fn write_large_tokenizer(model: &str) {
    let letters: Vec<char> = ('a'..='z').collect();
    let mut words: Vec<String> = letters.iter().map(char::to_string).collect();
    let mut merges = Vec::new();
    let mut next = 0;
    while words.len() < 150_000 {
        let left = words[next].clone();
        next += 1;
        for letter in &letters {
            words.push(format!("{left}{letter}"));
            merges.push([left.clone(), letter.to_string()]);
        }
    }
    let vocab: serde_json::Map<String, Value> =
        words.into_iter().zip((0u32..).map(Value::from)).collect();
    let tokenizer = json!({"version": "1.0", "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges}});
    std::fs::write(Path::new(model).join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

#[test]
fn a_tokenizer_beyond_the_budget_is_refused_before_it_is_loaded() {
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let shape = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 151000,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
    });
    let model = model_of(dir.path(), &shape);
    write_large_tokenizer(&model);
    for input in [["--prompt", "hello world"], ["--ids", "1,2"]] {
        let run = |budget: u64| {
            let limit = format!("cpu={budget}");
            let arguments = ["run", &model, input[0], input[1], "--context", "64", "--max-memory"];
            measure(
                dir.path(),
                &[&arguments[..], &[&limit, "--max-new-tokens", "2"]].concat(),
                None,
            )
        };
        let refused = run(80_000_000);
        assert_eq!(refused.status, Some(1), "{}", refused.stderr);
        assert!(refused.peak_rss <= 80_000_000, "peak {}", refused.peak_rss);
        // A prompt that is text is longer than can be known.
        let budget = least(&refused.stderr) + 2_000_000;
        let done = run(budget);
        assert_eq!(done.status, Some(0), "{}", done.stderr);
        assert!(done.peak_rss <= budget, "peak {} of {budget}", done.peak_rss);
    }
}

#[test]
fn plans_and_estimates_count_the_tokenizer_as_runs_do() {
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let shape = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 30000,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
    });
    let model = model_of(dir.path(), &shape);
    let tokenizer = Path::new(&model).join("tokenizer.json");
    let config = format!("{model}/config.json");
    let said = |arguments: &[&str]| measure(dir.path(), arguments, None);
    let ids = vec!["5"; 256].join(",");
    for with_tokenizer in [true, false] {
        if !with_tokenizer {
            std::fs::remove_file(&tokenizer).unwrap();
        }
        let of = |place: &str| {
            let small = ["--must-fit", "--context", "512", "--max-memory", "cpu=1"];
            least(&said(&[&["plan", place][..], &small].concat()).stderr)
        };
        let planned = of(&model);
        assert_eq!(of(&config), planned);
        let run = |budget: u64| {
            let limit = format!("cpu={budget}");
            said(&[
                "run",
                &model,
                "--ids",
                &ids,
                "--context",
                "512",
                "--max-new-tokens",
                "2",
                "--must-fit",
                "--max-memory",
                &limit,
            ])
        };
        let done = run(planned);
        assert_eq!(done.status, Some(0), "{}", done.stderr);
        assert!(done.peak_rss <= planned, "peak {} of {planned}", done.peak_rss);
        let needed = least(&run(1).stderr);
        assert!(needed.abs_diff(planned) < 1 << 20, "run {needed}, plan {planned}");
        // A prompt of the whole context.
        for place in [&model, &config] {
            let told =
                said(&["estimate", place, "--context", "512", "--dtypes", "stored", "--json"]);
            let told: Value = serde_json::from_str(&told.stdout).unwrap();
            let long = vec!["5"; 511].join(",");
            for (figure, must_fit) in [("resident", &["--must-fit"][..]), ("least", &[])] {
                let budget = told["estimates"][0][figure].as_u64().unwrap();
                let limit = format!("cpu={budget}");
                let arguments = ["run", &model, "--ids", &long, "--context", "512", "--max-memory"];
                let more = [&limit, "--max-new-tokens", "1"];
                let done = said(&[&arguments[..], &more, must_fit].concat());
                assert_eq!(done.status, Some(0), "{figure} {budget}: {}", done.stderr);
                assert!(done.peak_rss <= budget, "{figure}: {} of {budget}", done.peak_rss);
            }
        }
    }
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
    let next = AtomicU64::new(seeds.start);
    let margins = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(2, usize::from).min(4);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(seed) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds.end)
                {
                    let margin = check(seed);
                    margins.lock().unwrap().push(margin);
                }
            });
        }
    });
    let margins = margins.into_inner().unwrap();
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
