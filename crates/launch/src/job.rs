//! A program that runs, from its start to the end of its last process.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::allocation::{Allocation, ranks_around};
use crate::environment::{JOB, program_environment};
use crate::error::Error;
use crate::event::{Event, OutputStream};
use crate::failure::{LastWords, RankFailure};
use crate::key::Key;
use crate::mpirun::{arguments, find_mpirun};
use crate::output::Output;
use crate::process_tree::JobMark;
use crate::program::Program;
use crate::settings::Settings;

/// How often the end of a process and an interrupt are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// How long processes have to end after they were asked to.
const GRACE: Duration = Duration::from_secs(10);

/// What starts the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Engine {
    /// The program is one rank.
    One,
    /// The program starts a thread for each rank.
    Threads,
    /// mpirun starts a process for each rank.
    Mpi {
        /// Where it is.
        mpirun: PathBuf,
    },
    /// srun or mpirun started this process as one of many ranks.
    Started {
        /// All of them.
        ranks: usize,
    },
}

/// How a job ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit status of the program: 128 and the number of a signal that ended it.
    pub status: i32,
    /// The first rank that failed; none if none did.
    pub failure: Option<RankFailure>,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// Whether a file of output could not be written.
    pub logs: Result<(), Error>,
}

/// A program that is to be started.
#[derive(Debug)]
pub struct Job {
    program: Program,
    settings: Settings,
    engine: Engine,
    allocated: bool,
}

impl Job {
    /// Decides how `program` is started. `environment` is that of this process.
    ///
    /// # Errors
    /// Several machines for a program without MPI; no mpirun where one is needed.
    pub fn new(
        program: Program,
        settings: Settings,
        allocation: Option<&Allocation>,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        let ranks = settings.count(Key::NumProcesses);
        let places = [
            settings.path(Key::Hostfile).map(|file| format!("the machines in {}", file.display())),
            allocation.map(|allocation| allocation.name.clone()),
        ];
        let place = places.into_iter().flatten().next();
        let is_mpi = match settings.text(Key::Engine) {
            "mpi" => true,
            "threads" => false,
            _ => program.is_mpi(),
        };
        let engine = match (ranks_around(environment), is_mpi, place) {
            (Some(ranks), _, _) => Engine::Started { ranks },
            (None, false, Some(place)) if ranks > 1 => {
                return Err(Error::NotMpi { program: program.path, place });
            }
            (None, true, place) if ranks > 1 || place.is_some() => {
                let reason = format!("{} is to run as processes of MPI", program.path.display());
                Engine::Mpi { mpirun: find_mpirun(&reason)? }
            }
            (None, _, _) if ranks > 1 => Engine::Threads,
            (None, _, _) => Engine::One,
        };
        Ok(Self { program, settings, engine, allocated: allocation.is_some() })
    }

    /// What starts the ranks.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// How it is started, in a sentence without a full stop.
    pub fn describe(&self) -> String {
        let ranks = self.settings.count(Key::NumProcesses);
        match &self.engine {
            Engine::One => "one process, one rank".to_string(),
            Engine::Threads => format!("one process, {ranks} ranks as threads"),
            Engine::Mpi { mpirun } => format!("{ranks} ranks, started by {}", mpirun.display()),
            Engine::Started { ranks } => format!("one of {ranks} ranks that are started already"),
        }
    }

    /// Whether there may be ranks on other machines.
    fn is_spread(&self) -> bool {
        self.allocated || self.settings.path(Key::Hostfile).is_some()
    }

    /// The variables of the program's environment beside those of this process.
    fn variables(&self, restarts: usize) -> BTreeMap<String, String> {
        let in_process = match self.engine {
            Engine::Threads => self.settings.count(Key::NumProcesses),
            _ => 1,
        };
        program_environment(&self.settings, in_process, restarts)
    }

    fn command(&self, restarts: usize, mark: &JobMark) -> Command {
        let variables = self.variables(restarts);
        let mut command = match &self.engine {
            Engine::Mpi { mpirun } => {
                let mut command = Command::new(mpirun);
                let hostfile = self.settings.path(Key::Hostfile);
                let ranks = self.settings.count(Key::NumProcesses);
                let names = variables.keys().map(String::as_str).chain([JOB]);
                command.args(arguments(&self.program, ranks, hostfile, self.is_spread(), names));
                command
            }
            _ => {
                let mut command = Command::new(&self.program.path);
                command.args(&self.program.arguments);
                command
            }
        };
        command.envs(variables);
        mark.mark(&mut command);
        command
    }

    /// The command line, as a shell would take it, with the variables before it.
    pub fn command_line(&self) -> String {
        let command = self.command(0, &JobMark::new());
        let mut line = String::new();
        for (name, value) in self.variables(0) {
            let _ = write!(line, "{name}={} ", quoted(&value));
        }
        line += &quoted(&command.get_program().to_string_lossy());
        for argument in command.get_args() {
            let _ = write!(line, " {}", quoted(&argument.to_string_lossy()));
        }
        line
    }

    /// Runs the job, again after failures if that is set, until its last process has ended.
    /// `interrupts` is how often an end was asked for: after the first time the processes are asked
    /// to end, after the second or ten seconds later they are killed. `show` gets lines and other
    /// events, one at a time.
    ///
    /// # Errors
    /// A process cannot be started or waited for; the folder of its output cannot be made.
    pub fn run(
        &self,
        interrupts: impl Fn() -> usize,
        show: &Mutex<dyn FnMut(Event<'_>) + Send + '_>,
    ) -> Result<Ended, Error> {
        let most = self.settings.count(Key::MaxRestarts);
        let mut restarts = 0;
        loop {
            let ended = self.attempt(restarts, &interrupts, show)?;
            match &ended.failure {
                Some(failure) if restarts < most && !ended.interrupted => {
                    restarts += 1;
                    if let Ok(mut show) = show.lock() {
                        show(Event::Restart { failure, count: restarts, most });
                    }
                }
                _ => return Ok(ended),
            }
        }
    }

    fn attempt(
        &self,
        restarts: usize,
        interrupts: &impl Fn() -> usize,
        show: &Mutex<dyn FnMut(Event<'_>) + Send + '_>,
    ) -> Result<Ended, Error> {
        let mark = JobMark::new();
        let marked = matches!(self.engine, Engine::Mpi { .. });
        let logs = self.settings.path(Key::LogDir);
        let output = Output::new(show, marked, LastWords::new(mark.value()), logs)?;
        let mut command = self.command(restarts, &mark);
        // Without files to write, the output of one process is its own, with the terminal that it
        // may be on.
        let pipe = || if marked || logs.is_some() { Stdio::piped() } else { Stdio::inherit() };
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdout(pipe())
            .stderr(pipe())
            .spawn()
            .map_err(Error::system(format!("cannot start {name}")))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (status, interrupted) = std::thread::scope(|scope| {
            let output = &output;
            scope.spawn(move || out.map(|pipe| output.read(OutputStream::Out, pipe)));
            scope.spawn(move || err.map(|pipe| output.read(OutputStream::Err, pipe)));
            // On one machine, mpirun ends when its ranks do; it gives them no time if it is asked
            // to end.
            let spared = marked && !self.is_spread();
            let ended = wait(&mut child, &mark, spared, interrupts);
            // Whoever is left would keep the pipes open.
            mark.kill();
            ended
        })
        .map_err(Error::system(format!("cannot wait for {name}")))?;
        let (words, logs) = output.end();
        let signal = ExitStatusExt::signal(&status).map(|signal| 128 + signal);
        let status = status.code().or(signal).unwrap_or(1);
        let failure = (status != 0).then(|| words.failure(status));
        Ok(Ended { status, failure, interrupted, logs })
    }
}

/// Waits for a process; ends it and all its own if that is asked for: itself at first only if it is
/// not `spared`. Returns whether it was asked for.
fn wait(
    child: &mut Child,
    mark: &JobMark,
    spared: bool,
    interrupts: &impl Fn() -> usize,
) -> std::io::Result<(ExitStatus, bool)> {
    let mut asked: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, asked.is_some()));
        }
        let times = interrupts();
        match asked {
            None if times > 0 => {
                mark.ask(spared.then(|| child.id()));
                asked = Some(Instant::now());
            }
            Some(since) if times > 1 || since.elapsed() > GRACE => mark.kill(),
            _ => {}
        }
        std::thread::sleep(LOOK);
    }
}

/// A word of a command line.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@%+".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}
