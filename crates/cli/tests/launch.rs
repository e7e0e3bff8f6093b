//! `outsize launch` and `outsize config`: what they say, and how they end.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

fn command(folder: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outsize"));
    for (name, _) in std::env::vars() {
        if ["OUTSIZE_", "SLURM_", "OMPI_", "PMI"].iter().any(|start| name.starts_with(start)) {
            command.env_remove(name);
        }
    }
    command
        .args(args)
        .env("OUTSIZE_CONFIG", folder.path().join("config.yaml"))
        .stdin(Stdio::null());
    command
}

fn outsize(folder: &TempDir, args: &[&str]) -> Output {
    command(folder, args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A folder with a program that does what `script` says.
fn program(script: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    std::fs::write(&path, format!("#!/bin/bash\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    (folder, path)
}

fn word(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_first_failure_is_said_last_and_its_status_is_the_commands() {
    let (folder, path) = program("echo out; echo $1 >&2; exit 9");
    let logs = folder.path().join("logs");
    let output = outsize(&folder, &["launch", "--log-dir", word(&logs), word(&path), "--bad"]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(9), "out\n"));
    let messages = text(&output.stderr);
    assert!(messages.starts_with("starts one process, one rank\n--bad\n"), "{messages}");
    assert!(messages.ends_with("  --bad\nthe job ended with exit status 9\n"), "{messages}");
    assert_eq!(std::fs::read_to_string(logs.join("output.log")).unwrap().lines().count(), 2);
}

#[test]
fn an_interrupt_ends_the_program() {
    let (folder, path) = program("echo begun; sleep 57.72156 & wait");
    let mut child = command(&folder, &["launch", word(&path)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let began = Instant::now();
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(began.elapsed() < Duration::from_secs(8));
    let left = std::fs::read_dir("/proc").unwrap().flatten().filter(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("57.72156")
    });
    assert_eq!(left.count(), 0);
}

#[test]
fn what_accelerate_starts_by_hand_is_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    for flag in ["--num-machines", "--machine-rank", "--main-process-ip", "--main-process-port"] {
        let output = outsize(&folder, &["launch", flag, "1", "true"]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(flag) && message.contains("--hostfile"), "{message}");
    }
}

#[test]
fn what_cannot_start_is_said() {
    let (folder, path) = program("true");
    let missing = folder.path().join("none");
    for (args, status, part) in [
        (&["launch"][..], 2, "name a program"),
        (&["launch", "no-such-program"], 1, "no such program"),
        (&["launch", "--num-processes", "0", "true"], 1, "--num-processes): it has to be"),
        (&["launch", "--mixed-precision", "fp8", "true"], 1, "no fp8"),
        (&["launch", "--hostfile", word(&missing), "true"], 1, "none: "),
        (&["launch", "--config-file", word(&missing), "true"], 1, "none: "),
        (
            &["launch", "--num-processes", "2", "--hostfile", word(&path), "true"],
            1,
            "not linked with MPI",
        ),
    ] {
        let output = outsize(&folder, args);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {message}");
        assert!(message.contains(part), "{args:?}: {message}");
    }
}

/// The line that `--dry-run` prints in an environment.
fn dry_run(environment: &[(&str, &str)], args: &[&str]) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let args = [&["launch", "--dry-run"], args, &["sh", "train.sh", "a b"]].concat();
    let output = command(&folder, &args).envs(environment.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_dry_run_prints_the_command() {
    let (line, said) = dry_run(&[], &["--num-processes", "2", "--mixed-precision", "bf16"]);
    assert_eq!(said, "would start one process, 2 ranks as threads\n");
    assert!(
        line.contains("OUTSIZE_MIXED_PRECISION=bf16 ") && line.contains("OUTSIZE_NUM_PROCESSES=2 ")
    );
    assert!(line.ends_with("sh train.sh 'a b'\n"), "{line}");
}

#[test]
fn ranks_of_a_cluster_are_taken() {
    if outsize::launch::find_mpirun("").is_err() {
        eprintln!("SKIPPED: there is no mpirun in PATH (Debian: openmpi-bin)");
        return;
    }
    let mpi = ["--engine", "mpi"];
    // In the script of a job by sbatch, with two nodes of two tasks.
    let slurm = [
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_JOB_NUM_NODES", "2"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_PROCID", "0"),
        ("SLURM_NODELIST", "node[1-2]"),
        ("SLURM_TASKS_PER_NODE", "2(x2)"),
        ("SLURM_NODEID", "0"),
    ];
    let (line, said) = dry_run(&slurm, &mpi);
    assert!(said.starts_with("would start 4 ranks, started by "), "{said}");
    assert!(line.contains(" -n 4 ") && !line.contains("--oversubscribe"), "{line}");
    // The launcher of an MPIJob.
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hostfile");
    std::fs::write(&hosts, "job-worker-0.job slots=2\njob-worker-1.job slots=1\n").unwrap();
    let job = [("OMPI_MCA_orte_default_hostfile", word(&hosts)), ("K_MPI_JOB_ROLE", "launcher")];
    assert!(dry_run(&job, &mpi).0.contains(" -n 3 "));
    // By srun, each launcher is a rank already.
    let started =
        [slurm[0], ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "2"), ("PMIX_RANK", "2")];
    let (line, said) = dry_run(&started, &mpi);
    assert_eq!(said, "would start one of 4 ranks that are started already\n");
    assert!(!line.contains("mpirun"), "{line}");
}

#[test]
fn settings_are_kept_and_shown_with_their_source() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let done = |args: &[&str]| {
        let output = outsize(&folder, args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    done(&["config", "default"]);
    let again = outsize(&folder, &["config", "default"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("--force"));
    done(&[
        "config",
        "update",
        "num_processes=3",
        "mixed_precision=bf16",
        "log_dir=a b",
        "state_dir=",
    ]);
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(
        written.contains("\nnum_processes: 3\n") && written.contains("\n# state_dir:\n"),
        "{written}"
    );
    let shown = command(&folder, &["config", "show", "--json"]).env("OUTSIZE_DEBUG", "1").output();
    let shown: BTreeMap<String, Value> = serde_json::from_slice(&shown.unwrap().stdout).unwrap();
    let of = |name: &str| {
        (shown[name]["value"].as_str().unwrap(), shown[name]["source"].as_str().unwrap())
    };
    assert_eq!(of("num_processes"), ("3", word(&file)));
    assert_eq!(of("log_dir"), ("a b", word(&file)));
    assert_eq!(of("debug"), ("true", "OUTSIZE_DEBUG"));
    assert_eq!(of("max_restarts"), ("0", word(&file)));
    assert_eq!(of("state_dir"), ("outsize-state", "default"));
    assert!(done(&["config", "show"]).contains("num_processes"));
    assert!(done(&["env"]).contains("num_processes"));

    for (setting, part) in [
        ("num_processes=none", "whole number"),
        ("colour=red", "the settings are"),
        ("cpu", "as num_processes=2"),
    ] {
        let output = outsize(&folder, &["config", "update", setting]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), written);
    // Without a terminal nobody can answer.
    let output = outsize(&folder, &["config"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("config default"));
}

#[test]
fn shells_and_man_know_the_command() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        assert!(text(&outsize(&folder, &["completions", shell]).stdout).contains("launch"));
    }
    let pages = folder.path().join("man/man1");
    assert!(outsize(&folder, &["man", word(&pages)]).status.success());
    let page = std::fs::read_to_string(pages.join("outsize-launch.1")).unwrap();
    assert!(page.contains("num\\-processes"), "{page}");
}

#[test]
fn a_self_check_passes_on_threads() {
    let folder = tempfile::tempdir().unwrap();
    for (ranks, precision, steps) in [("1", "no", "1"), ("3", "bf16", "2"), ("2", "fp16", "3")] {
        let settings = ["test", "--num-processes", ranks, "--mixed-precision", precision];
        let args = [&settings[..], &["--gradient-accumulation-steps", steps]].concat();
        let output = command(&folder, &args).current_dir(folder.path()).output().unwrap();
        let (table, messages) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{table}{messages}");
        assert_eq!(table.lines().filter(|line| line.contains(" passed ")).count(), 5, "{table}");
        assert!(table.contains(&format!("{ranks} ranks")) && table.contains(precision), "{table}");
        assert_eq!(messages.contains("ranks are threads"), !cfg!(feature = "mpi"), "{messages}");
    }
    let left = folder.path().join("outsize-state").read_dir().map_or(0, |entries| entries.count());
    assert_eq!(left, 0, "the state is removed");
}
