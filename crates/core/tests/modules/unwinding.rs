//! `panic = "abort"` is refused when outsize is built, with an explanation.

use std::process::Command;

/// Compiles the file that refuses, with the given strategy; what the compiler said if it failed.
fn compile(panic: &str) -> Result<(), String> {
    let out = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let done = Command::new(compiler)
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata"])
        .args(["-C", &format!("panic={panic}"), "--out-dir"])
        .arg(out.path())
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/src/unwinding.rs"))
        .output()
        .unwrap();
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}

#[test]
fn aborting_is_refused_and_unwinding_is_not() {
    assert_eq!(compile("unwind"), Ok(()));
    let message = compile("abort").unwrap_err();
    for part in ["panic = \"unwind\"", "Dispatched::run", "Cargo profile"] {
        assert!(message.contains(part), "{message}");
    }
}
