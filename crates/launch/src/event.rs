//! What happens while a job runs.

use crate::failure::RankFailure;

/// Where a line was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// What happens while a job runs.
#[derive(Debug)]
pub enum Event<'a> {
    /// A process wrote a line.
    Line {
        /// Where to.
        stream: OutputStream,
        /// The rank, if it is a process of its own.
        rank: Option<usize>,
        /// The line without its end.
        text: &'a str,
    },
    /// The job failed and starts again.
    Restart {
        /// What failed.
        failure: &'a RankFailure,
        /// How often it was started again, with this time.
        count: usize,
        /// How often it may be.
        most: usize,
    },
}
