//! Answers that are waited for.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::job::Job;

/// Requests that wait at most; further ones are told to try again.
pub(crate) const WAITING: usize = 64;

/// How often somebody who waits looks whether the server ends.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Answers that are waited for, in the order in which they were asked for. Those whose prompts are
/// scored wait apart.
#[derive(Debug)]
pub(crate) struct Queue<'a> {
    jobs: &'a Receiver<Vec<Job>>,
    others: VecDeque<Job>,
    scored: VecDeque<Job>,
    is_closed: bool,
}

impl<'a> Queue<'a> {
    /// What comes from there.
    pub fn new(jobs: &'a Receiver<Vec<Job>>) -> Self {
        Self { jobs, others: VecDeque::new(), scored: VecDeque::new(), is_closed: false }
    }

    fn add(&mut self, jobs: Vec<Job>) {
        for job in jobs {
            if job.is_scored() { self.scored.push_back(job) } else { self.others.push_back(job) }
        }
    }

    /// The next one that somebody waits for; if there is none, waits a moment for one or not. None
    /// as long as prompts wait to be scored, which is done between answers.
    pub fn next(&mut self, waits: bool) -> Option<Job> {
        loop {
            if self.has_scored() {
                return None;
            }
            match self.others.pop_front() {
                Some(job) if job.listener.is_gone() => continue,
                Some(job) => return Some(job),
                None => {}
            }
            let jobs = match waits {
                true => self.jobs.recv_timeout(LOOK),
                false => self.jobs.try_recv().map_err(|_| RecvTimeoutError::Timeout),
            };
            match jobs {
                Ok(jobs) => self.add(jobs),
                Err(error) => {
                    self.is_closed = error == RecvTimeoutError::Disconnected;
                    return None;
                }
            }
        }
    }

    /// Whether nothing comes any more.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether prompts wait to be scored.
    pub fn has_scored(&mut self) -> bool {
        self.scored.retain(|job| !job.listener.is_gone());
        !self.scored.is_empty()
    }

    /// Up to so many of those whose prompts are scored.
    pub fn scored(&mut self, most: usize) -> Vec<Job> {
        if !self.has_scored() {
            return Vec::new();
        }
        while self.scored.len() < most
            && self.others.len() < WAITING
            && let Ok(jobs) = self.jobs.try_recv()
        {
            self.add(jobs);
        }
        self.scored.drain(..most.min(self.scored.len())).collect()
    }
}
