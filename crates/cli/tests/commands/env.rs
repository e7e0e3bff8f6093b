//! `outsize env`: all of it, and never a failure because something is missing.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

fn outsize(cache: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outsize"))
        .args(args)
        .env("OUTSIZE_CACHE", cache)
        .env_remove("RAYON_NUM_THREADS")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn json(cache: &Path) -> Value {
    let output = outsize(cache, &["env", "--json"]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_keys_stay_as_they_are() {
    let dir = folder();
    let env = json(dir.path());
    let keys: Vec<&str> = env.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = [
        "version",
        "target",
        "backends",
        "instructions",
        "product_threads",
        "gpus",
        "machine",
        "budget",
        "cache",
        "current",
        "calibration",
        "training",
        "mpi",
    ];
    expected.sort_unstable();
    let mut found = keys.clone();
    found.sort_unstable();
    assert_eq!(found, expected);
    for path in [
        "/machine/processors/name/value",
        "/machine/processors/threads/source",
        "/machine/gpus/found",
        "/machine/gpus/notes",
        "/instructions/value",
        "/product_threads/value",
        "/cache/path",
        "/calibration/provenance/note",
        "/calibration/figures/disk/bytes_per_second",
        "/calibration/figures/cpu/block_seconds",
        "/calibration/disks",
    ] {
        assert!(env.pointer(path).is_some(), "{path}: {env:#}");
    }
    assert_eq!(env["calibration"]["provenance"]["measured"], false);
    assert_eq!(env["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
#[cfg(target_os = "linux")]
fn each_figure_says_where_it_came_from() {
    let dir = folder();
    let env = json(dir.path());
    let ram = &env["machine"]["ram"];
    assert_eq!(ram["total"]["source"], "/proc/meminfo MemTotal");
    let (total, available) = (&ram["total"]["value"], &ram["available"]["value"]);
    assert!(available.as_u64().unwrap() <= total.as_u64().unwrap());
    assert!(env["cache"]["free"]["value"].as_u64().unwrap() > 0);
    assert!(env["cache"]["mount"]["value"]["device"].is_string());
    let share = &env["budget"]["cpu"];
    let source = ram["available"]["source"].as_str().unwrap();
    assert_eq!(share["source"], format!("nine tenths of {source}"));
}

#[test]
fn text_is_for_people_and_pipes() {
    let dir = folder();
    let output = outsize(dir.path(), &["env"]);
    assert!(output.status.success(), "{output:?}");
    let text = text(&output);
    for part in [
        "outsize ",
        "Processors",
        "Memory",
        "GPUs",
        "Disk",
        "Default budget",
        "Speed, for predictions",
        "outsize bench --calibrate",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // No colours, nothing that a terminal would obey.
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn what_is_missing_or_damaged_is_no_failure() {
    let dir = folder();
    let missing = dir.path().join("not/there");
    let env = json(&missing);
    assert_eq!(env["calibration"]["provenance"]["measured"], false);
    assert!(!missing.exists(), "looking makes nothing");
    for (damage, said) in
        [("", "damaged"), ("{\"version\": 99}", "version 99"), ("\u{1b}[2J", "damaged")]
    {
        std::fs::write(dir.path().join("machine.json"), damage).unwrap();
        let output = outsize(dir.path(), &["env"]);
        assert!(output.status.success(), "{output:?}");
        let text = text(&output);
        assert!(text.contains(said), "{said}: {text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
    // A cache folder that is a file, and one of no name at all.
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(outsize(&file, &["env"]).status.success());
    let nameless =
        Command::new(env!("CARGO_BIN_EXE_outsize")).arg("env").env_clear().output().unwrap();
    assert!(nameless.status.success(), "{nameless:?}");
}

#[test]
fn a_pipe_that_closes_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_outsize"))
        .arg("env")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && message.is_empty(), "{message}");
}

#[test]
fn threads_are_as_many_as_are_asked_for() {
    let output = Command::new(env!("CARGO_BIN_EXE_outsize"))
        .args(["env", "--json"])
        .env("RAYON_NUM_THREADS", "3")
        .output()
        .unwrap();
    let env: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(env["product_threads"]["value"], 3);
    assert_eq!(env["product_threads"]["source"], "RAYON_NUM_THREADS");
}

/// A memory cgroup of this test's own; removed when dropped.
#[cfg(target_os = "linux")]
struct Cgroup(std::path::PathBuf);

#[cfg(target_os = "linux")]
impl Cgroup {
    /// One that may take `limit` bytes, if the system lets us make one, and the file that says so.
    fn new(limit: u64) -> Option<(Self, std::path::PathBuf)> {
        let name = format!("outsize-env-{}", std::process::id());
        for (root, file) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let folder = Path::new(root).join(&name);
            if !Path::new(root).is_dir() || std::fs::create_dir(&folder).is_err() {
                continue;
            }
            let (cgroup, file) = (Self(folder.clone()), folder.join(file));
            if std::fs::write(&file, limit.to_string()).is_ok() {
                return Some((cgroup, file));
            }
        }
        None
    }
}

#[cfg(target_os = "linux")]
impl Drop for Cgroup {
    fn drop(&mut self) {
        // Only an empty one can be removed; the command has ended, the kernel may need a moment.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn in_a_cgroup_its_file_is_what_bounds_memory() {
    const LIMIT: u64 = 300 << 20;
    let Some((cgroup, file)) = Cgroup::new(LIMIT) else {
        eprintln!("SKIPPED: no memory cgroup can be made here");
        return;
    };
    let dir = folder();
    let run = |args: &[&str]| {
        // The shell enters the cgroup and becomes the command.
        let enter = format!("echo $$ > '{}/cgroup.procs' && exec \"$@\"", cgroup.0.display());
        let output = Command::new("sh")
            .args(["-c", &enter, "sh", env!("CARGO_BIN_EXE_outsize")])
            .args(args)
            .env("OUTSIZE_CACHE", dir.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output)
    };
    let env: Value = serde_json::from_str(&run(&["env", "--json"])).unwrap();
    let ram = &env["machine"]["ram"];
    let said = file.to_str().unwrap();
    assert_eq!(ram["available"]["source"], said, "{ram:#}");
    assert_eq!(ram["cgroup"]["limit"], LIMIT);
    let available = ram["available"]["value"].as_u64().unwrap();
    assert!(available <= LIMIT && available > LIMIT / 2, "{available}");
    assert!(ram["system_available"]["value"].as_u64().unwrap() > available);
    let budget = env["budget"]["cpu"]["value"].as_u64().unwrap();
    assert!(budget <= LIMIT, "{budget}");
    assert!(run(&["env"]).contains(said));
}
