//! The command in a process of its own, whose memory the kernel counts.

use crate::cgroup::Cgroup;
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};

/// What one run of the command came to.
pub struct Run {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Bytes.
    pub peak_rss: u64,
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
pub fn measure(folder: &Path, arguments: &[&str], cgroup: Option<&Cgroup>) -> Run {
    let result = folder.join("measured.json");
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "measured::measured_child"])
        .env(ARGUMENTS, arguments.join("\n"))
        .env(RESULT, &result)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Some(cgroup) = cgroup {
        child.env(CGROUP, cgroup.folder());
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
