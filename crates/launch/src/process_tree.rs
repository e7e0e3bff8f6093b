//! The processes of a job, found by a variable in their environment: they may have lost their
//! parents.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::environment::JOB;

/// A mark that the processes of one job have, and no others.
#[derive(Debug, Clone)]
pub(crate) struct JobMark {
    value: String,
}

impl JobMark {
    /// A mark that no other job has.
    pub fn new() -> Self {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let (number, time) =
            (NEXT.fetch_add(1, Ordering::Relaxed), since.unwrap_or_default().as_nanos());
        Self { value: format!("{}-{number}-{time}", std::process::id()) }
    }

    /// The value of the variable.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Marks what `command` starts, and gives it a group of its own: an interrupt from the keyboard
    /// comes through us.
    pub fn mark(&self, command: &mut Command) {
        command.env(JOB, &self.value);
        std::os::unix::process::CommandExt::process_group(command, 0);
    }

    /// Asks the processes to end, but for `leader`.
    pub fn ask(&self, leader: Option<u32>) {
        self.signal(leader, Signal::TERM);
    }

    /// Kills the processes.
    pub fn kill(&self) {
        self.signal(None, Signal::KILL);
    }

    fn signal(&self, spared: Option<u32>, signal: Signal) {
        let asked = self.processes().into_iter().filter(|process| Some(*process) != spared);
        for process in asked.filter_map(|process| Pid::from_raw(process.try_into().ok()?)) {
            // One that is gone has ended.
            let _ = kill_process(process, signal);
        }
    }

    /// The processes on this machine that have the mark; none where there is no `/proc`.
    pub fn processes(&self) -> Vec<u32> {
        let wanted = format!("{JOB}={}", self.value);
        let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = folders.filter_map(|folder| folder.file_name().to_str()?.parse::<u32>().ok());
        ids.filter(|id| {
            let variables = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            variables.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        })
        .collect()
    }
}
