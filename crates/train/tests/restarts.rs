//! A rank that is killed in mid-training: the launcher starts the job again, and it ends with the
//! same bits.
#![cfg(unix)]

mod common;
mod state_common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use outsize_launch::{Event, Job, Key, Layers, Program, RESTART_COUNT, Settings, find_mpirun};
use outsize_machine::Machine;
use outsize_train::{Accelerator, Error};
use state_common::Training;

/// The file that the program writes its weights to; unset for the tests.
const RESULT: &str = "OUTSIZE_TEST_RESULT";

/// Whether the last rank is killed on the way, the first time.
const KILLED: &str = "OUTSIZE_TEST_KILLED";

/// Batches of each rank.
const BATCHES: u64 = 20;

/// Not a test of its own: the program that is started.
#[test]
fn program() {
    let Ok(result) = std::env::var(RESULT) else { return };
    let first = std::env::var(RESTART_COUNT).is_ok_and(|count| count == "0");
    let is_killed = first && std::env::var(KILLED).is_ok();
    let builder = Accelerator::builder().gradient_accumulation_steps(3).seed(11);
    let trained = builder.run(|accelerator| -> Result<(), Error> {
        let mut training = Training::new(accelerator.clone(), true, 1);
        let loaded = accelerator.resume(training.state())?;
        assert_eq!(loaded.is_some(), !first, "a state is there after a restart");
        training.train_to_with(BATCHES, |training| {
            let taken = accelerator.batches_taken();
            if taken.is_multiple_of(4) {
                training.save();
            }
            // Not right after a state: what came since is trained again.
            if is_killed && taken == 14 && accelerator.is_last_process() {
                let own = std::process::id().to_string();
                Command::new("kill").args(["-9", &own]).status().unwrap();
            }
        });
        let weights = training.outcome();
        accelerator.on_main_process(|| std::fs::write(&result, format!("{weights:?}")).unwrap());
        Ok(())
    });
    trained.unwrap();
}

/// What a job of two ranks writes, and how often it was started again.
fn result(engine: &str, folder: &Path, killed: bool) -> (String, usize) {
    let program = folder.join("program");
    let result = folder.join("result");
    let mut script = format!("#!/bin/sh\nexport {RESULT}='{}'\n", result.display());
    if killed {
        script += &format!("export {KILLED}=1\n");
    }
    let itself = std::env::current_exe().unwrap();
    script += &format!("exec '{}' --exact program --nocapture\n", itself.display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let states = folder.join("states");
    let flags = [
        (Key::NumProcesses, "2"),
        (Key::Engine, engine),
        (Key::MaxRestarts, "2"),
        (Key::ThreadsPerProcess, "1"),
        (Key::StateDir, states.to_str().unwrap()),
    ];
    let flags = flags.into_iter().map(|(key, value)| (key, value.to_string())).collect();
    let layers = Layers { flags, ..Layers::default() };
    let settings = Settings::resolve(&layers, &Machine::detect(), None).unwrap();
    let program = Program::find(&program, Vec::new()).unwrap();
    let job = Job::new(program, settings, None, &BTreeMap::new()).unwrap();
    let mut restarts = 0;
    let mut said = String::new();
    let ended = job.run(
        || 0,
        &Mutex::new(|event: Event<'_>| match event {
            Event::Restart { .. } => restarts += 1,
            Event::Line { text, .. } => said += &format!("{text}\n"),
        }),
    );
    let ended = ended.unwrap();
    assert_eq!(ended.status, 0, "{:?}\n{said}", ended.failure);
    (std::fs::read_to_string(&result).unwrap(), restarts)
}

fn restarted_is_uninterrupted(engine: &str) {
    let [whole, killed] = [false, true].map(|killed| {
        let folder = tempfile::tempdir().unwrap();
        result(engine, folder.path(), killed)
    });
    assert_eq!((whole.1, killed.1), (0, 1));
    assert_eq!(whole.0, killed.0);
}

#[test]
fn a_killed_thread_rank_ends_with_the_same_weights() {
    restarted_is_uninterrupted("threads");
}

#[test]
fn a_killed_rank_of_mpi_ends_with_the_same_weights() {
    if !cfg!(feature = "mpi") || find_mpirun("").is_err() {
        eprintln!("SKIPPED: it takes `--features outsize/mpi` and mpirun (Debian: openmpi-bin)");
        return;
    }
    restarted_is_uninterrupted("mpi");
}
