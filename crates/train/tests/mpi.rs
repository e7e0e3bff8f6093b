//! Ranks that are processes of an MPI world: this test's own binary, started by `mpirun`.
//!
//! Needs `mpirun` and the feature `mpi`: `cargo test --release --workspace --features
//! outsize/mpi --test mpi`. Says so and passes without.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Run, difference, train};
use outsize_train::{Accelerator, AcceleratorBuilder, Error};

/// What the worker is to do.
const JOB: &str = "OUTSIZE_MPI_TEST_JOB";

fn builder(run: &Run) -> AcceleratorBuilder {
    let builder = Accelerator::builder().split_batches(true).debug(true).bucket_bytes(200);
    builder.gradient_accumulation_steps(run.accumulation).seed(3)
}

/// This binary's worker on `ranks` ranks; nothing if that cannot be done here.
fn start(ranks: usize, job: &str) -> Option<Command> {
    if !cfg!(feature = "mpi") {
        eprintln!("SKIPPED: build with `--features outsize/mpi` to test ranks of MPI");
        return None;
    }
    let found = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: there is no mpirun here (Debian: apt install openmpi-bin)");
        return None;
    }
    let mut command = Command::new("mpirun");
    command
        .args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "worker", "--nocapture", "--test-threads", "1"])
        .env(JOB, job);
    Some(command)
}

/// The same, to its end.
fn mpirun(ranks: usize, job: &str) -> Option<(Output, Duration)> {
    let began = Instant::now();
    let output = start(ranks, job)?.output().unwrap();
    Some((output, began.elapsed()))
}

/// Not a test of its own: what a rank does.
#[test]
fn worker() {
    let Ok(job) = std::env::var(JOB) else { return };
    let (job, argument) = job.split_once(' ').unwrap_or((&job, ""));
    let short = || Accelerator::builder().timeout(Duration::from_secs(2)).build().unwrap();
    match job {
        "train" => {
            let run: Run = serde_json::from_str(argument).unwrap();
            let accelerator = builder(&run).build().unwrap();
            let weights = train(&accelerator, &run).unwrap();
            let all = accelerator.gather_object(&weights).unwrap();
            assert!(all.iter().all(|other| *other == weights), "ranks differ");
            accelerator.on_main_process(|| {
                println!("\nRESULT {}", serde_json::to_string(&weights).unwrap());
            });
        }
        "objects" => {
            let accelerator = builder(&Run::PLAIN).build().unwrap();
            let rank = accelerator.process_index();
            // Parts of different lengths, one of them empty.
            let parts = accelerator.communicator().all_gather(vec![rank as u8; rank]).unwrap();
            assert_eq!(parts, (0..3_u8).map(|rank| vec![rank; rank.into()]).collect::<Vec<_>>());
            let own = vec![vec![1], vec![2, 2], vec![]];
            let part = accelerator.communicator().scatter(own, 0).unwrap();
            assert_eq!(part, [vec![1], vec![2, 2], vec![]][rank]);
            accelerator.wait_for_everyone().unwrap();
            accelerator.on_main_process(|| println!("\nRESULT true"));
        }
        "panic" | "kill" | "error" | "late" => {
            let run = |accelerator: Accelerator| {
                if accelerator.process_index() == 1 {
                    match job {
                        "panic" => panic!("a rank that panics"),
                        "kill" => drop(Command::new("kill").arg("-9").arg(id()).status()),
                        "error" => return Err(Error::Setting("a rank that fails".to_owned())),
                        _ => std::thread::sleep(Duration::from_secs(60)),
                    }
                }
                accelerator.gather_object(&1).map(drop)
            };
            match job {
                "error" => Accelerator::builder().run(run).unwrap(),
                "late" => run(short()).unwrap(),
                _ => run(Accelerator::builder().build().unwrap()).unwrap(),
            }
        }
        "sleep" => {
            let accelerator = Accelerator::builder().build().unwrap();
            let ids = accelerator.gather_object(&id()).unwrap();
            accelerator.on_main_process(|| println!("\nRESULT {}", ids.join(" ")));
            std::thread::sleep(Duration::from_secs(60));
        }
        "differ" => {
            let accelerator = builder(&Run::PLAIN).build().unwrap();
            if accelerator.process_index() == 1 {
                accelerator.wait_for_everyone().unwrap_or_else(|fault| panic!("{fault}"));
            } else {
                accelerator.gather_object(&1).unwrap_or_else(|fault| panic!("{fault}"));
            }
        }
        other => panic!("unknown job {other}"),
    }
}

fn id() -> String {
    std::process::id().to_string()
}

fn result<T: serde::de::DeserializeOwned>(output: &Output) -> T {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("RESULT "));
    let line = line.unwrap_or_else(|| panic!("no result: {text}\n{}", errors(output)));
    serde_json::from_str(line).unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn processes_learn_the_same_weights_as_one() {
    let mixed = Run { items: 41, accumulation: 4, clip: Some(0.05), ..Run::PLAIN };
    let runs = [
        (2, Run::PLAIN),
        (3, mixed),
        (4, Run { items: 37, ..Run::PLAIN }),
        (2, Run { adam: true, ..mixed }),
        (1, mixed),
    ];
    for (ranks, run) in runs {
        let job = format!("train {}", serde_json::to_string(&run).unwrap());
        let Some((output, _)) = mpirun(ranks, &job) else { return };
        let weights: Vec<f32> = result(&output);
        let alone = train(&builder(&run).build().unwrap(), &run).unwrap();
        let difference = difference(&alone, &weights);
        let bound = if run.adam { 1e-5 } else { 1e-6 };
        assert!(output.status.success(), "{}", errors(&output));
        assert!(difference <= bound, "{ranks} ranks, {run:?}: {difference:e}");
    }
}

#[test]
fn processes_repeat_a_run_with_dropout() {
    let run = |dropout| {
        let run = Run { dropout, ..Run::PLAIN };
        let (output, _) = mpirun(2, &format!("train {}", serde_json::to_string(&run).unwrap()))?;
        Some(result::<Vec<f32>>(&output))
    };
    let Some(first) = run(0.5) else { return };
    assert_eq!(Some(&first), run(0.5).as_ref());
    assert_ne!(Some(first), run(0.0));
}

#[test]
fn bytes_of_different_lengths_reach_all() {
    let Some((output, _)) = mpirun(3, "objects") else { return };
    assert!(result::<bool>(&output) && output.status.success(), "{}", errors(&output));
}

#[test]
fn a_rank_that_fails_ends_the_job() {
    for (job, said) in [
        ("panic", "a rank that panics"),
        ("kill", "signal 9"),
        ("error", "a rank that fails"),
        ("late", "did not reach"),
        ("differ", "rank 1 calls wait_for_everyone"),
    ] {
        let Some((output, time)) = mpirun(2, job) else { return };
        let text = errors(&output) + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "{job}: {text}");
        assert!(time < Duration::from_secs(10), "{job} took {time:?}: {text}");
        assert!(text.contains(said), "{job}: {text}");
    }
}

#[test]
fn a_killed_mpirun_leaves_no_rank_behind() {
    let Some(mut command) = start(2, "sleep") else { return };
    let mut mpirun = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(mpirun.stdout.take().unwrap()).lines().map_while(Result::ok);
    let ids = lines.find_map(|line| Some(line.strip_prefix("RESULT ")?.to_owned())).unwrap();
    mpirun.kill().unwrap();
    mpirun.wait().unwrap();
    let lives = |id: &str| Path::new("/proc").join(id).join("exe").read_link().is_ok();
    let killed = Instant::now();
    while ids.split(' ').any(lives) {
        assert!(killed.elapsed() < Duration::from_secs(10), "ranks {ids} outlive mpirun");
        std::thread::sleep(Duration::from_millis(50));
    }
}
