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

/// What every run does.
#[derive(Debug, Clone)]
pub struct ChildTask {
    /// The prompt, as `outsize run` takes it.
    pub ids: String,
    /// Tokens to generate.
    pub new_tokens: u32,
    /// Tokens of the context, if given.
    pub context: Option<usize>,
    /// The dtype that activations are multiplied in, as `outsize run` takes it.
    pub compute: &'static str,
    /// How many times the prompt is run again.
    pub again: u32,
}

impl ChildTask {
    /// A prompt of `tokens` tokens of a vocabulary: any will do, as matmuls take the same time for
    /// each.
    pub fn prompt(tokens: u32, vocabulary: usize) -> String {
        let ids = (0..u64::from(tokens)).map(|at| (300 + 7 * at) % vocabulary.max(1) as u64);
        ids.map(|id| id.to_string()).collect::<Vec<_>>().join(",")
    }
}

/// Runs the model once. The inner error is the child's; the outer one ends the command.
pub fn run(
    model: &Path,
    case: &BudgetCase,
    task: &ChildTask,
) -> Result<Result<RunReport, String>, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::Failed(format!("cannot find this program's own path: {error}"))
    })?;
    let mut command = Command::new(&program);
    command
        .arg("run")
        .arg(model)
        .args(["--json", "--ignore-eos", "--generation-config", "none"])
        .args(["--ids", &task.ids])
        .args(["--max-new-tokens", &task.new_tokens.to_string()])
        .args(["--prompt-again", &task.again.to_string()])
        .args(["--compute", task.compute])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(budget) = &case.max_memory {
        command.args(["--max-memory", budget]);
    }
    if let Some(context) = task.context {
        command.args(["--context", &context.to_string()]);
    }
    let child = command
        .spawn()
        .map_err(|error| Failure::Failed(format!("cannot start {}: {error}", program.display())))?;
    let (status, out, messages) = wait(child)?;
    if !status {
        return Ok(Err(reason(&messages)));
    }
    let report: RunReport = serde_json::from_str(&out)?;
    if report.tokens.len() != task.new_tokens as usize {
        return Ok(Err(format!(
            "it generated {} tokens instead of {}",
            report.tokens.len(),
            task.new_tokens
        )));
    }
    Ok(Ok(report))
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
        assert_eq!(ChildTask::prompt(3, 32_000), "300,307,314");
        assert_eq!(ChildTask::prompt(3, 10), "0,7,4");
        assert_eq!(ChildTask::prompt(2, 0), "0,0");
    }

    #[test]
    fn the_error_is_what_counts() {
        assert_eq!(reason("note: x\nerror: too small\n"), "too small");
        assert_eq!(reason("thread panicked\nat y\n"), "at y");
        assert!(reason("").contains("without saying why"));
    }
}
