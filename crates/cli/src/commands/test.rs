//! `outsize test`: this command, started as `launch` starts a program, tries what ranks do.

use super::launch::{job, run};
use crate::args::TestArgs;
use crate::error::Failure;
use crate::views::output::{print, print_json, say};
use crate::views::style::style;
use crate::views::table::Table;
use outsize::launch::{Key, Program};
use outsize::train::{Accelerator, Check, Error, self_check};
use std::path::{Path, PathBuf};

/// Runs the command.
pub fn test(args: &TestArgs) -> Result<(), Failure> {
    if let Some(folder) = &args.ranks {
        return ranks(folder, args.json);
    }
    let itself = std::env::current_exe().map_err(|error| {
        Failure::Failed(format!("cannot find this program's own path: {error}"))
    })?;
    let job = job(&args.settings, |settings| {
        // Beside the states, as all machines must reach it.
        let states = settings.path(Key::StateDir).map_or_else(PathBuf::new, Path::to_owned);
        let folder = states.join(format!("self-check-{}", std::process::id()));
        let folder = std::path::absolute(&folder)
            .map_err(|error| Failure::Failed(format!("{}: {error}", folder.display())))?;
        let mut arguments = vec!["test".into(), "--ranks".into(), folder.into()];
        arguments.extend(args.json.then(|| "--json".into()));
        Ok(Program { path: itself, arguments })
    })?;
    if !cfg!(feature = "mpi") {
        say("note: this build has no MPI (feature `mpi`): ranks are threads");
    }
    run(&job)
}

/// Tries it on the ranks of this process.
fn ranks(folder: &Path, json: bool) -> Result<(), Failure> {
    let checked = Accelerator::builder().run(|accelerator| {
        let checks = self_check(&accelerator, folder)?;
        let shown = accelerator.on_main_process(|| show(&checks, json));
        match checks.iter().all(|check| check.found.is_ok()) {
            true => shown.unwrap_or(Ok(())).map_err(TestFailure::Shown),
            false => Err(TestFailure::Checks),
        }
    });
    checked.map_err(|failure| match failure {
        TestFailure::Shown(failure) => failure,
        TestFailure::Checks => Failure::Failed("not all checks passed".to_string()),
        TestFailure::Ranks(error) => Failure::Failed(error.to_string()),
    })
}

/// Why a rank's test failed.
enum TestFailure {
    Ranks(Error),
    Checks,
    Shown(Failure),
}

impl From<Error> for TestFailure {
    fn from(error: Error) -> Self {
        Self::Ranks(error)
    }
}

impl std::fmt::Display for TestFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ranks(error) => error.fmt(f),
            Self::Checks => f.write_str("not all checks passed"),
            Self::Shown(_) => f.write_str("the result cannot be shown"),
        }
    }
}

fn show(checks: &[Check], json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&checks);
    }
    let mut table = Table::default();
    for check in checks {
        let (result, detail) = match &check.found {
            Ok(detail) => ("passed", detail),
            Err(fault) => ("FAILED", fault),
        };
        table.row([check.name, result, detail]);
    }
    print(&table.text(style().width))
}
