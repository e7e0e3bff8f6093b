//! Programs that run: what they write, how they fail, how they are ended.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use outsize_launch::{
    Ended, Event, Job, Key, Layers, OutputStream, Program, Settings, find_mpirun,
};
use outsize_machine::Machine;

/// A line that was shown: of which rank, and where it was written to.
type Line = (Option<usize>, OutputStream, String);

struct Ran {
    ended: Ended,
    lines: Vec<Line>,
    restarts: Vec<String>,
}

fn settings(given: &[(Key, &str)]) -> Settings {
    let flags = given.iter().map(|(key, value)| (*key, value.to_string())).collect();
    let layers = Layers { flags, ..Layers::default() };
    Settings::resolve(&layers, &Machine::detect(), None).unwrap()
}

fn job(folder: &Path, script: &str, given: &[(Key, &str)]) -> Job {
    let path = folder.join("program");
    std::fs::write(&path, format!("#!/bin/bash\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let program = Program::find(&path, Vec::new()).unwrap();
    Job::new(program, settings(given), None, &BTreeMap::new()).unwrap()
}

fn run(job: &Job, interrupts: impl Fn() -> usize) -> Ran {
    let (mut lines, mut restarts) = (Vec::new(), Vec::new());
    let show = Mutex::new(|event: Event<'_>| match event {
        Event::Line { rank, stream, text } => lines.push((rank, stream, text.to_string())),
        Event::Restart { failure, .. } => restarts.push(failure.to_string()),
    });
    let ended = job.run(interrupts, &show).unwrap();
    Ran { ended, lines, restarts }
}

/// Whether there is an mpirun; says so if not.
fn mpirun() -> bool {
    let found = find_mpirun("").is_ok();
    if !found {
        eprintln!("SKIPPED: there is no mpirun in PATH (Debian: openmpi-bin)");
    }
    found
}

/// Two ranks of mpirun.
const TWO: [(Key, &str); 2] = [(Key::NumProcesses, "2"), (Key::Engine, "mpi")];

/// The processes that have `word` in their command line.
fn processes(word: &str) -> usize {
    let folders = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = folders.filter_map(|folder| std::fs::read(folder.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(word)).count()
}

#[test]
fn lines_of_ranks_are_told_apart_and_stay_in_order() {
    if !mpirun() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script =
        "for i in $(seq 200); do echo line $i; printf part; sleep 0; echo s; done; echo done >&2";
    let logs = folder.path().join("logs");
    let given = [TWO[0], TWO[1], (Key::LogDir, logs.to_str().unwrap())];
    let ran = run(&job(folder.path(), script, &given), || 0);
    assert_eq!(ran.ended.status, 0, "{:?}", ran.ended);
    let mut expected: Vec<String> = Vec::new();
    (1..=200).for_each(|at| expected.extend([format!("line {at}"), "parts".to_string()]));
    for rank in [Some(0), Some(1)] {
        let of = |stream: OutputStream| {
            let own = ran.lines.iter().filter(move |line| (line.0, line.1) == (rank, stream));
            own.map(|line| line.2.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(of(OutputStream::Out), expected, "{rank:?}");
        assert_eq!(of(OutputStream::Err), ["done"]);
    }
    assert!(ran.lines.iter().all(|line| line.0.is_some()), "{:?}", ran.lines);
    let log = std::fs::read_to_string(logs.join("rank-1.log")).unwrap();
    assert_eq!(log.lines().filter(|line| *line != "done").collect::<Vec<_>>(), expected);
}

#[test]
fn the_first_rank_that_fails_is_named_and_its_status_is_the_jobs() {
    if !mpirun() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script =
        "if [ $OMPI_COMM_WORLD_RANK = 1 ]; then echo no such data >&2; exit 7; fi; sleep 31.4159";
    let ran = run(&job(folder.path(), script, &TWO), || 0);
    assert_eq!(ran.ended.status, 7);
    let failure = ran.ended.failure.unwrap();
    assert_eq!((failure.rank, failure.how.as_str()), (Some(1), "exit status 7"));
    assert!(failure.machine.is_some());
    assert_eq!(failure.last_lines, ["no such data"]);
    assert_eq!(processes("31.4159"), 0);

    let script = "if [ $OMPI_COMM_WORLD_RANK = 0 ]; then kill -9 $$; fi; sleep 31.4159";
    let ran = run(&job(folder.path(), script, &TWO), || 0);
    let failure = ran.ended.failure.unwrap();
    assert_eq!((failure.rank, failure.how.as_str()), (Some(0), "signal 9"), "{failure:?}");
    assert_eq!((ran.ended.status, processes("31.4159")), (137, 0));
}

/// Runs a job that would take long, and asks it to end after a while, `times` times.
fn interrupted(script: &str, given: &[(Key, &str)], times: usize) -> (Ran, Duration) {
    let folder = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let interrupts = move || if began.elapsed() > Duration::from_secs(1) { times } else { 0 };
    let ran = run(&job(folder.path(), script, given), interrupts);
    (ran, began.elapsed())
}

#[test]
fn an_interrupt_reaches_all_processes_and_leaves_none() {
    // A child of its own session, as a rank may have.
    let polite = "trap 'echo bye; exit 0' TERM; setsid sleep 271.828 & sleep 271.828 & wait";
    let logs = tempfile::tempdir().unwrap();
    let one = [(Key::LogDir, logs.path().to_str().unwrap())];
    let (ran, took) = interrupted(polite, &one, 1);
    assert!(ran.ended.interrupted && took < Duration::from_secs(8), "{took:?}");
    assert_eq!(ran.lines.iter().filter(|line| line.2 == "bye").count(), 1);
    assert_eq!(processes("271.828"), 0);
    if mpirun() {
        let (ran, took) = interrupted(polite, &TWO, 1);
        assert!(ran.ended.interrupted && took < Duration::from_secs(15), "{took:?}");
        assert_eq!(ran.lines.iter().filter(|line| line.2 == "bye").count(), 2, "{:?}", ran.lines);
        assert_eq!(processes("271.828"), 0);
    }
}

#[test]
fn a_second_interrupt_kills_what_does_not_listen() {
    let deaf = "trap '' TERM INT; sleep 141.421 & while true; do wait; sleep 0.1; done";
    let (ran, took) = interrupted(deaf, &[], 2);
    assert!(ran.ended.interrupted && took < Duration::from_secs(5), "{took:?}");
    assert_eq!((ran.ended.status, processes("141.421")), (137, 0));
    if mpirun() {
        let (ran, took) = interrupted(deaf, &TWO, 2);
        assert!(ran.ended.interrupted && took < Duration::from_secs(5), "{took:?}");
        assert_eq!(processes("141.421"), 0);
    }
}

#[test]
fn a_job_that_fails_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $OUTSIZE_RESTART_COUNT $OUTSIZE_STATE_DIR >> $(dirname $0)/starts; [ $OUTSIZE_RESTART_COUNT = 2 ]";
    let starts = folder.path().join("starts");
    for (most, status, times) in [("3", 0, 3), ("1", 1, 2)] {
        let given = [(Key::MaxRestarts, most), (Key::StateDir, "states")];
        let ran = run(&job(folder.path(), script, &given), || 0);
        assert_eq!((ran.ended.status, ran.restarts.len()), (status, times - 1), "{:?}", ran.ended);
        let expected: String = (0..times).map(|count| format!("{count} states\n")).collect();
        assert_eq!(std::fs::read_to_string(&starts).unwrap(), expected);
        std::fs::remove_file(&starts).unwrap();
    }
}

#[test]
fn the_programs_status_is_the_jobs() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run(&job(folder.path(), "exit 42", &[]), || 0).ended.status, 42);
    assert_eq!(run(&job(folder.path(), "kill -9 $$", &[]), || 0).ended.status, 137);
    assert_eq!(run(&job(folder.path(), "true", &[]), || 0).ended.status, 0);
}

#[test]
fn settings_reach_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    let script = "echo $OUTSIZE_MIXED_PRECISION $OUTSIZE_NUM_PROCESSES $RAYON_NUM_THREADS [$CUDA_VISIBLE_DEVICES]";
    let given = [
        (Key::NumProcesses, "2"),
        (Key::ThreadsPerProcess, "3"),
        (Key::MixedPrecision, "bf16"),
        (Key::GpuIds, "1, 3"),
        (Key::LogDir, logs.to_str().unwrap()),
    ];
    let threads = job(folder.path(), script, &given);
    assert_eq!(threads.describe(), "one process, 2 ranks as threads");
    assert_eq!(run(&threads, || 0).lines[0].2, "bf16 2 6 [1,3]");
    let line = threads.command_line();
    assert!(line.contains("OUTSIZE_MIXED_PRECISION=bf16 ") && line.ends_with("/program"), "{line}");
}
