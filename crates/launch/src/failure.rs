//! How the first rank failed.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Display, Formatter};

/// The most lines of a rank's errors that are kept.
const KEPT: usize = 20;

/// The first rank that failed, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankFailure {
    /// The rank; none if it is not known.
    pub rank: Option<usize>,
    /// Its machine; none if it is this one.
    pub machine: Option<String>,
    /// How it ended, as `exit status 3`.
    pub how: String,
    /// The last lines that it wrote to standard error.
    pub last_lines: Vec<String>,
}

impl Display for RankFailure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for line in &self.last_lines {
            writeln!(f, "  {line}")?;
        }
        match self.rank {
            Some(rank) => write!(f, "rank {rank}")?,
            None => write!(f, "the job")?,
        }
        if let Some(machine) = &self.machine {
            write!(f, " on {machine}")?;
        }
        write!(f, " ended with {}", self.how)
    }
}

/// What is kept of the errors of each rank, and how the first one failed.
#[derive(Debug)]
pub(crate) struct LastWords {
    job: String,
    /// The last lines of each rank; of `None`, what nobody else wrote.
    lines: BTreeMap<Option<usize>, VecDeque<String>>,
    /// With its exit status.
    first: Option<(i32, RankFailure)>,
}

/// The exit status of a rank that mpirun has asked to end, as another one failed before.
const ASKED_TO_END: i32 = 143;

impl LastWords {
    /// Listens to a job, whose ranks tell how they failed as [`REPORT`] does.
    pub fn new(job: &str) -> Self {
        Self { job: job.to_string(), lines: BTreeMap::new(), first: None }
    }

    /// Takes a line that was written to standard error. Returns whether it is for us alone.
    pub fn take(&mut self, rank: Option<usize>, line: &str) -> bool {
        if let Some(report) = line.strip_prefix(&self.job) {
            let (status, machine) = report.trim().split_once(' ').unwrap_or((report.trim(), ""));
            let last_lines = self.lines.remove(&rank).unwrap_or_default().into();
            let status = status.parse().unwrap_or(1);
            let machine = Some(machine.to_string());
            let failure = RankFailure { rank, machine, how: how(status), last_lines };
            if self.first.as_ref().is_none_or(|(first, _)| *first == ASKED_TO_END) {
                self.first = Some((status, failure));
            }
            return true;
        }
        let lines = self.lines.entry(rank).or_default();
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(line.to_string());
        false
    }

    /// The first failure; if no rank told of one, that of a job which ended with `status`. What
    /// mpirun says comes before ranks that it asked to end.
    pub fn failure(mut self, status: i32) -> RankFailure {
        let own = self.lines.remove(&None).unwrap_or_default();
        match self.first {
            Some((first, failure)) if first != ASKED_TO_END || own.is_empty() => failure,
            _ => {
                RankFailure { rank: None, machine: None, how: how(status), last_lines: own.into() }
            }
        }
    }
}

/// A shell's script that runs its arguments, and tells of a failure: the job, the exit status, the
/// machine.
pub(crate) const REPORT: &str = "trap : TERM INT; \"$@\"; s=$?; \
     [ $s = 0 ] || echo \"$OUTSIZE_JOB $s $(uname -n)\" >&2; exit $s";

/// An exit status, as a shell counts it, in words.
fn how(status: i32) -> String {
    match status {
        129.. => format!("signal {}", status - 128),
        _ => format!("exit status {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_report_counts() {
        let mut words = LastWords::new("job-1");
        (0..30).for_each(|at| assert!(!words.take(Some(1), &format!("line {at}"))));
        assert!(words.take(Some(2), "job-1 143 node1"));
        assert!(words.take(Some(1), "job-1 3 node1"));
        assert!(words.take(Some(0), "job-1 4 node0"));
        let found = words.failure(9);
        assert_eq!((found.rank, found.last_lines.len()), (Some(1), 20));
        assert!(found.to_string().ends_with("  line 29\nrank 1 on node1 ended with exit status 3"));

        let mut words = LastWords::new("job-1");
        words.take(None, "no such host");
        assert_eq!(
            words.failure(1).to_string(),
            "  no such host\nthe job ended with exit status 1"
        );
        let mut words = LastWords::new("job-1");
        words.take(Some(0), "job-1 137 b");
        assert_eq!(words.failure(1).to_string(), "rank 0 on b ended with signal 9");

        let mut words = LastWords::new("job-1");
        words.take(Some(0), "job-1 143 a");
        words.take(None, "lost a machine");
        assert_eq!(
            words.failure(1).to_string(),
            "  lost a machine\nthe job ended with exit status 1"
        );
    }
}
