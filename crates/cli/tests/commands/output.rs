//! Output that nobody reads, or that cannot be written.
#![cfg(target_os = "linux")]

use crate::common::{folder, path, text, tiny};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn command(cache: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outsize"));
    command.args(args).env("OUTSIZE_CACHE", cache).stdin(Stdio::null());
    command
}

/// A pipe whose reader is gone.
fn closed() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

/// A device that is always full.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// The output of a command whose standard output goes elsewhere: never a panic.
#[track_caller]
fn ended(mut command: Command, stdout: Stdio, status: i32) -> String {
    let Output { status: ended, stderr, .. } = command.stdout(stdout).output().unwrap();
    let message = text(&stderr);
    assert_eq!(ended.code(), Some(status), "{command:?}: {message}");
    assert!(!message.contains("panicked"), "{command:?}: {message}");
    message
}

#[test]
fn a_closed_pipe_ends_quietly_and_a_full_device_is_one_error() {
    let dir = folder();
    let model = tiny(&dir);
    let (model, out) = (path(&model), dir.path().join("made"));
    let made = ["synth", &format!("{model}/config.json"), path(&out), "--json"];
    for args in [
        &["--help"][..],
        &["--version"],
        &["demo"],
        &["env"],
        &["env", "--json"],
        &["estimate", model],
        &["estimate", model, "--json"],
        &["plan", model],
        &["plan", model, "--json"],
        &["run", model, "--ids", "1,2"],
        &["run", model, "--ids", "1,2", "--json"],
        &["bench", "--json", "--size", "17MB", "--rounds", "1"],
        &made,
    ] {
        let message = ended(command(dir.path(), args), closed(), 0);
        assert!(!message.contains("error"), "{args:?}: {message}");
        let _ = std::fs::remove_dir_all(&out);
        let message = ended(command(dir.path(), args), full(), 1);
        let errors = message.lines().filter(|line| line.starts_with("error: ")).count();
        assert_eq!(errors, 1, "{args:?}: {message}");
        assert!(message.contains("cannot write"), "{args:?}: {message}");
        let _ = std::fs::remove_dir_all(&out);
    }
}

#[test]
fn notes_that_cannot_be_written_are_dropped() {
    let dir = folder();
    let model = tiny(&dir);
    let (model, logits) = (path(&model), dir.path().join("logits.safetensors"));
    let (made, svg) = (dir.path().join("made"), dir.path().join("plan.svg"));
    for args in [
        &["run", model, "--ids", "1,2"][..],
        &["logits", model, "--ids", "1,2", "--output", path(&logits)],
        &["synth", &format!("{model}/config.json"), path(&made)],
        &["plan", model, "--svg", path(&svg)],
    ] {
        for stderr in [closed(), full()] {
            let output = command(dir.path(), args).stderr(stderr).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{args:?}");
            assert_eq!(!output.stdout.is_empty(), ["run", "plan"].contains(&args[0]), "{args:?}");
            for file in [&logits, &svg] {
                let _ = std::fs::remove_file(file);
            }
            let _ = std::fs::remove_dir_all(&made);
        }
    }
    // An error has its status, read or not.
    let status = command(dir.path(), &["run", "/none", "--ids", "1"]).stderr(full()).status();
    assert_eq!(status.unwrap().code(), Some(2));
}

/// Where the locale has nothing but ASCII, so has what is said beside the answer; and a line has at
/// most 80 columns where no terminal says otherwise.
#[test]
fn notes_suit_the_locale_and_the_width() {
    let dir = folder();
    let model = tiny(&dir);
    let model = path(&model);
    for (locale, ascii) in [("C", true), ("C.UTF-8", false)] {
        let run = ["run", model, "--ids", "1,2", "--ignore-eos", "--max-new-tokens", "3"];
        let output = command(dir.path(), &run).env("LC_ALL", locale).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(said.is_ascii(), ascii, "{said}");
        assert!(said.contains("predicted"), "{said}");
        for args in [&["env"][..], &["estimate", model], &run] {
            let output = command(dir.path(), args).env("LC_ALL", locale).output().unwrap();
            let shown = text(&output.stdout) + &text(&output.stderr);
            // A table in a pipe is as wide as it is.
            let table = |line: &str| args[0] == "estimate" && line.contains("  ");
            for line in shown.lines().filter(|line| !table(line)) {
                assert!(line.chars().count() <= 80, "{args:?}: {line}");
            }
        }
    }
}
