//! Runs the model in a process of its own, so that its memory is its own.

use crate::error::Failure;
use crate::interrupt;
use outsize::bench::{BudgetCase, RunReport};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the child's end and an interrupt are checked for.
const LOOK: Duration = Duration::from_millis(50);

/// The arguments of a run that generates `new_tokens` tokens after a prompt of `prompt` tokens of a
/// vocabulary: any will do, as matmuls take the same time for each.
pub fn arguments([prompt, new_tokens]: [u32; 2], vocabulary: usize) -> Vec<String> {
    let ids = (0..u64::from(prompt)).map(|at| (300 + 7 * at) % vocabulary.max(1) as u64);
    let ids = ids.map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let new_tokens = new_tokens.to_string();
    ["--ids", &ids, "--max-new-tokens", &new_tokens, "--ignore-eos", "--generation-config", "none"]
        .map(String::from)
        .to_vec()
}

/// Runs the model once, with `arguments` for `new_tokens` tokens and in a budget. The inner error
/// is the child's; the outer one ends the command.
pub fn run(
    model: &Path,
    arguments: &[String],
    case: &BudgetCase,
    new_tokens: u32,
) -> Result<Result<RunReport, String>, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::Failed(format!("cannot find this program's own path: {error}"))
    })?;
    let child = Command::new(&program)
        .args(["run", "--json"])
        .args(arguments)
        .args((case.batch > 1).then(|| format!("--copies={}", case.batch)))
        .args(case.max_memory.iter().map(|budget| format!("--max-memory={budget}")))
        .arg("--")
        .arg(model)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::Failed(format!("cannot start {}: {error}", program.display())))?;
    let (status, out, messages) = wait(child)?;
    if !status {
        return Ok(Err(reason(&messages)));
    }
    let report: RunReport = serde_json::from_str(&out)?;
    Ok(match report.tokens.len() {
        made if made == new_tokens as usize => Ok(report),
        made => Err(format!("it generated {made} tokens instead of {new_tokens}")),
    })
}

/// Waits for a child: returns whether it succeeded, and its output. Kills it on an interrupt.
fn wait(mut child: Child) -> Result<(bool, String, String), Failure> {
    // Both are read as they come: a full pipe would stop the child.
    let (out, messages) = (child.stdout.take(), child.stderr.take());
    let out = std::thread::spawn(move || text(out));
    let messages = std::thread::spawn(move || text(messages));
    let failed = |error| Failure::Failed(format!("cannot wait for a run of the model: {error}"));
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if interrupt::asked() {
            // It writes nothing that could be left half done.
            let _ = child.kill();
        }
        std::thread::sleep(LOOK);
    };
    interrupt::check()?;
    let read = |pipe: JoinHandle<String>| pipe.join().unwrap_or_default();
    Ok((status.success(), read(out), read(messages)))
}

/// Everything from a pipe.
fn text(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What came before an error is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The error among a child's messages.
fn reason(messages: &str) -> String {
    let error = messages.lines().rev().find_map(|line| line.strip_prefix("error: "));
    match error.or(messages.lines().last()) {
        Some(line) => line.to_string(),
        None => {
            "it ended without saying why: it may have been killed for want of memory".to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_of_the_vocabulary() {
        assert_eq!(arguments([3, 1], 32_000)[1], "300,307,314");
        assert_eq!(arguments([3, 1], 10)[1], "0,7,4");
        assert_eq!(arguments([2, 1], 0)[1], "0,0");
    }

    #[test]
    fn the_error_is_what_counts() {
        assert_eq!(reason("note: x\nerror: too small\n"), "too small");
        assert_eq!(reason("thread panicked\nat y\n"), "at y");
        assert!(reason("").contains("without saying why"));
    }
}
