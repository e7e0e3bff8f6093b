//! Programs that Cargo builds.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::error::Error;

/// What is built of a Rust project; what is `None` is left to Cargo.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CargoTarget {
    /// The package.
    pub package: Option<String>,
    /// An example.
    pub example: Option<String>,
    /// A program.
    pub bin: Option<String>,
    /// Features, with commas between.
    pub features: Option<String>,
}

impl CargoTarget {
    /// The arguments of Cargo.
    pub fn arguments(&self) -> Vec<String> {
        let given = [
            ("--package", &self.package),
            ("--example", &self.example),
            ("--bin", &self.bin),
            ("--features", &self.features),
        ];
        let mut arguments = vec!["build".to_string(), "--release".to_string()];
        for (flag, value) in given {
            arguments.extend(value.iter().flat_map(|value| [flag.to_string(), value.clone()]));
        }
        arguments
    }
}

/// Builds `target` in release mode, with Cargo's own messages on standard error, and returns the
/// program.
///
/// # Errors
/// Cargo is not there, the build fails, or it makes another number of programs than one.
pub fn build(target: &CargoTarget) -> Result<PathBuf, Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let started = Command::new(cargo)
        .args(target.arguments())
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = started.map_err(Error::system("cannot start cargo"))?;
    let mut programs = Vec::new();
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line.map_err(Error::system("cannot read what cargo says"))?;
        programs.extend(executable(&line));
    }
    let status = child.wait().map_err(Error::system("cannot wait for cargo"))?;
    match &programs[..] {
        _ if !status.success() => {
            Err(Error::Cargo("cargo could not build the program".to_string()))
        }
        [program] => Ok(program.clone()),
        [] => Err(Error::Cargo(
            "cargo built no program: name one with --bin or --example".to_string(),
        )),
        several => {
            let names = several.iter().filter_map(|path| path.file_name()?.to_str());
            let names = names.collect::<Vec<_>>().join(", ");
            Err(Error::Cargo(format!(
                "cargo built several programs ({names}): name one with --bin or --example"
            )))
        }
    }
}

/// The program that a message of Cargo tells of.
fn executable(line: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let program = message.get("executable")?.as_str()?;
    Some(PathBuf::from(program))
}
