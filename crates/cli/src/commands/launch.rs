//! `outsize launch`: starts a program, shows what its ranks write, and ends as it does.

use crate::args::{LaunchArgs, SettingArgs};
use crate::error::Failure;
use crate::interrupt;
use crate::views::output::{print, say};
use outsize::launch::{
    Allocation, Event, Job, Layers, OutputStream, Program, RankFailure, Settings, build,
    read_config,
};
use outsize::machine::Machine;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Runs the command.
pub fn launch(args: &LaunchArgs) -> Result<(), Failure> {
    let job = job(&args.settings, |_| program(args))?;
    if args.dry_run {
        say(format!("would start {}", job.describe()));
        return print(&(job.command_line() + "\n"));
    }
    run(&job)
}

/// What is started of a program with the settings that hold, and these.
pub fn job(
    args: &SettingArgs,
    program: impl FnOnce(&Settings) -> Result<Program, Failure>,
) -> Result<Job, Failure> {
    if let Some(flag) = args.started_by_hand() {
        return Err(Failure::usage(format!(
            "{flag} is not needed: name the machines in a file, a line each as `node1 slots=2`, and give it as \
             --hostfile on one of them; mpirun starts the others"
        )));
    }
    let mut layers = layers(args.config_file.as_deref())?;
    layers.flags = args.given();
    let (settings, allocation) = resolve(&layers, &Machine::detect())?;
    let program = program(&settings)?;
    Ok(Job::new(program, settings, allocation.as_ref(), &layers.environment)?)
}

/// Starts a job, shows what its ranks write, and fails as it does.
pub fn run(job: &Job) -> Result<(), Failure> {
    say(format!("starts {}", job.describe()));
    let ended = job.run(interrupt::times, &Mutex::new(show))?;
    if let Err(error) = &ended.logs {
        say(format!("warning: {error}"));
    }
    if ended.interrupted {
        return Err(Failure::Interrupted);
    }
    match &ended.failure {
        None => Ok(()),
        Some(failure) => {
            say_failure("error: the first failure:", failure);
            Err(Failure::Status(u8::try_from(ended.status).unwrap_or(1)))
        }
    }
}

/// The settings that hold here and now, and the allocation that this process is in.
pub fn resolve(
    layers: &Layers,
    machine: &Machine,
) -> Result<(Settings, Option<Allocation>), Failure> {
    let allocation = Allocation::detect(&layers.environment)?;
    let settings = Settings::resolve(layers, machine, allocation.as_ref())?;
    Ok((settings, allocation))
}

/// Where values come from, but for flags: the environment, and the file if there is one.
pub fn layers(config_file: Option<&Path>) -> Result<Layers, Failure> {
    let mut layers = Layers::of_environment(std::env::vars_os());
    let path = config_path(config_file)?;
    // One that was named has to be there.
    if config_file.is_some() || path.exists() {
        let values = read_config(&path)?;
        layers.file = Some((path, values));
    }
    Ok(layers)
}

/// The configuration file: as given, `$OUTSIZE_CONFIG`, or in the user's folder.
pub fn config_path(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let variable = || std::env::var_os("OUTSIZE_CONFIG").filter(|path| !path.is_empty());
    let own = || Some(dirs::config_dir()?.join("outsize").join("config.yaml"));
    let found = given.map(Path::to_owned).or_else(|| variable().map(PathBuf::from)).or_else(own);
    found.ok_or_else(|| {
        Failure::usage("there is no folder for the configuration: name a file with --config-file")
    })
}

fn program(args: &LaunchArgs) -> Result<Program, Failure> {
    let words = args.words.clone();
    if let Some(target) = args.target() {
        return Ok(Program { path: build(&target)?, arguments: words });
    }
    let mut words = words.into_iter();
    let name = words
        .next()
        .ok_or_else(|| Failure::usage("name a program to start, or --cargo to build one"))?;
    Ok(Program::find(Path::new(&name), words.collect())?)
}

/// Says how a rank failed, a line at a time: they are of another program.
fn say_failure(what: &str, failure: &RankFailure) {
    say(what);
    failure.to_string().lines().for_each(say);
}

/// Shows a line with its rank, on the stream that it was written to.
fn show(event: Event<'_>) {
    match event {
        Event::Line { stream, rank, text } => {
            let prefix = rank.map_or(String::new(), |rank| format!("[rank {rank}] "));
            match stream {
                // A reader who has gone does not end the training.
                OutputStream::Out => drop(print(&format!("{prefix}{text}\n"))),
                OutputStream::Err => say(format!("{prefix}{text}")),
            }
        }
        Event::Restart { failure, count, most } => {
            say_failure("failed:", failure);
            say(format!("starts again ({count} of {most})"));
        }
    }
}
