//! How a program finds its ranks: this test's own binary, started as launchers start programs.

use std::process::Command;

use outsize_train::{Accelerator, Error};

const STARTED: &str = "OUTSIZE_TEST_STARTED";

/// Not a test of its own: the program that is started.
#[test]
fn program() {
    let say = |accelerator: &Accelerator| {
        println!("\nSAID {} ranks", accelerator.num_processes());
        println!("\nSAID {} micro-batches", accelerator.gradient_accumulation_steps());
    };
    let result = match std::env::var(STARTED).as_deref() {
        Ok("build") => Accelerator::builder().build().map(|accelerator| say(&accelerator)),
        Ok("run") => Accelerator::builder().run(|accelerator| -> Result<(), Error> {
            accelerator.on_last_process(|| say(&accelerator));
            accelerator.wait_for_everyone()
        }),
        Ok("fail") => Accelerator::builder().run(|accelerator| {
            if accelerator.is_last_process() {
                return Err(Error::Setting("the last rank fails".to_owned()));
            }
            accelerator.wait_for_everyone()
        }),
        _ => return,
    };
    if let Err(fault) = result {
        println!("\nSAID {fault}");
    }
}

fn start(how: &str, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "program", "--nocapture"]).env(STARTED, how);
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("SAID ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn one_rank_or_as_many_threads_as_the_launcher_asks_for() {
    assert_eq!(start("build", &[]), "1 ranks\n1 micro-batches");
    assert_eq!(start("run", &[]), "1 ranks\n1 micro-batches");
    let launched = [("OUTSIZE_NUM_PROCESSES", "3"), ("OUTSIZE_GRADIENT_ACCUMULATION_STEPS", "2")];
    assert_eq!(start("run", &launched), "3 ranks\n2 micro-batches");
    let said = start("build", &launched);
    assert!(said.contains("Accelerator::builder().run(train)"), "{said}");
    let said = start("fail", &launched);
    assert!(said.contains("the last rank fails"), "{said}");
}

#[test]
fn ranks_that_cannot_be_reached_are_refused() {
    let said = start("build", &[("RANK", "0"), ("WORLD_SIZE", "2")]);
    assert!(said.contains("WORLD_SIZE=2") && said.contains("mpirun -n 2 PROGRAM"), "{said}");
    let said = start("run", &[("PMI_SIZE", "3")]);
    let advice = if cfg!(feature = "mpi") { "mpirun -n 3" } else { "--features mpi" };
    assert!(said.contains("PMI_SIZE=3") && said.contains(advice), "{said}");
}

#[test]
fn invalid_settings_of_the_environment_are_refused() {
    let said = start("build", &[("OUTSIZE_MIXED_PRECISION", "fp8")]);
    assert!(said.contains("OUTSIZE_MIXED_PRECISION=fp8") && said.contains("use bf16"), "{said}");
    let said = start("run", &[("OUTSIZE_GRADIENT_ACCUMULATION_STEPS", "0")]);
    assert!(said.contains("OUTSIZE_GRADIENT_ACCUMULATION_STEPS=0"), "{said}");
}
