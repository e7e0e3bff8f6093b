//! Ranks that are threads of one process.
//!
//! Every collective is one round of an exchange: each rank puts its part on the table; when the
//! last part lies there, the round ends and all take the whole table. A rank that ends or panics
//! says so, and those that wait for it get an error at once.

use std::any::Any;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Communicator, filled};
use crate::Error;

type Part = Arc<dyn Any + Send + Sync>;

/// One of several ranks that are threads of this process.
pub struct ThreadRanks {
    rank: usize,
    table: Arc<Table>,
}

struct Table {
    ranks: usize,
    timeout: Duration,
    round: Mutex<Round>,
    changed: Condvar,
}

struct Round {
    number: u64,
    /// What each rank calls, and its part, in the round that goes on.
    parts: Vec<Option<(String, Part)>>,
    /// The parts of the round before, until all ranks have put down their next.
    finished: Arc<Vec<Part>>,
    /// Ranks that have returned.
    ended: Vec<bool>,
    failure: Option<Failure>,
}

/// Why no round ends any more.
#[derive(Clone)]
enum Failure {
    Failed { rank: usize, reason: String },
    Ended { rank: usize },
    Late { operation: String, missing: Vec<usize> },
    Differs { rank: usize, found: String, expected: String },
}

impl ThreadRanks {
    /// Connects `size` ranks; each goes to a thread of its own.
    #[must_use]
    pub fn connect(size: usize, timeout: Duration) -> Vec<Self> {
        let round = Round {
            number: 0,
            parts: vec![None; size],
            finished: Arc::default(),
            ended: vec![false; size],
            failure: None,
        };
        let table = Arc::new(Table {
            ranks: size,
            timeout,
            round: Mutex::new(round),
            changed: Condvar::new(),
        });
        (0..size).map(|rank| Self { rank, table: table.clone() }).collect()
    }

    /// A handle that tells the other ranks when this one is over.
    pub(crate) fn end(&self) -> RankEnd {
        RankEnd { rank: self.rank, table: self.table.clone() }
    }

    /// One round: this rank's part for those of all ranks.
    fn exchange<T: Any + Send + Sync>(&self, call: String, part: T) -> Result<Vec<Arc<T>>, Error> {
        let table = &self.table;
        let deadline = Instant::now() + table.timeout;
        let mut round = table.round.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = &round.failure {
            return Err(failure.error(table.timeout));
        }
        let number = round.number;
        round.parts[self.rank] = Some((call.clone(), Arc::new(part)));
        if round.parts.iter().all(Option::is_some) {
            round.finish();
            table.changed.notify_all();
        }
        while round.number == number {
            if round.failure.is_none() {
                // Nobody who has ended can put a part down.
                let ended = (0..round.ended.len()).find(|&rank| round.ended[rank]);
                round.failure = ended.map(|rank| Failure::Ended { rank });
            }
            if let Some(failure) = &round.failure {
                table.changed.notify_all();
                return Err(failure.error(table.timeout));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing = (0..round.parts.len()).filter(|&rank| round.parts[rank].is_none());
                let missing = missing.collect();
                round.failure = Some(Failure::Late { operation: call.clone(), missing });
                continue;
            }
            round =
                table.changed.wait_timeout(round, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let parts = round.finished.iter().map(|part| {
            part.clone().downcast().expect("ranks that make the same call exchange the same type")
        });
        Ok(parts.collect())
    }
}

impl Round {
    /// Ends the round if all ranks made the same call; names one that did not otherwise.
    fn finish(&mut self) {
        let parts: Vec<_> = self.parts.iter_mut().flat_map(Option::take).collect();
        let expected = &parts[0].0;
        match parts.iter().position(|(call, _)| call != expected) {
            Some(rank) => {
                let (found, expected) = (parts[rank].0.clone(), expected.clone());
                self.failure = Some(Failure::Differs { rank, found, expected });
            }
            None => {
                self.finished = Arc::new(parts.into_iter().map(|(_, part)| part).collect());
                self.number += 1;
            }
        }
    }
}

impl Failure {
    fn error(&self, timeout: Duration) -> Error {
        match self.clone() {
            Self::Failed { rank, reason } => Error::RankFailed { rank, reason },
            Self::Ended { rank } => Error::RankFailed {
                rank,
                reason: "it returned while other ranks still wait for it".to_owned(),
            },
            Self::Late { operation, missing } => Error::Timeout { operation, missing, timeout },
            Self::Differs { rank, found, expected } => {
                Error::RankDiffers { rank, found, reference: 0, expected }
            }
        }
    }
}

/// Tells the other ranks that this one is over, on drop or by [`failed`](Self::failed).
pub(crate) struct RankEnd {
    rank: usize,
    table: Arc<Table>,
}

impl RankEnd {
    pub(crate) fn failed(&self, reason: String) {
        let mut round = self.table.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.failure.get_or_insert(Failure::Failed { rank: self.rank, reason });
    }
}

impl Drop for RankEnd {
    fn drop(&mut self) {
        let mut round = self.table.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.ended[self.rank] = true;
        self.table.changed.notify_all();
    }
}

impl Communicator for ThreadRanks {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.table.ranks
    }

    fn abort(&self, reason: &str) {
        self.end().failed(reason.to_owned());
    }

    fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        let parts = self.exchange("all_gather".to_owned(), bytes)?;
        Ok(parts.iter().map(|part| part.to_vec()).collect())
    }

    fn broadcast(&self, bytes: Vec<u8>, from: usize) -> Result<Vec<u8>, Error> {
        let bytes = if self.rank == from { bytes } else { Vec::new() };
        let parts = self.exchange(format!("broadcast from rank {from}"), bytes)?;
        Ok(parts[from].to_vec())
    }

    fn scatter(&self, parts: Vec<Vec<u8>>, from: usize) -> Result<Vec<u8>, Error> {
        let ranks = self.exchange(format!("scatter from rank {from}"), parts)?;
        Ok(ranks[from].get(self.rank).cloned().unwrap_or_default())
    }

    fn all_reduce(
        &self,
        lengths: &[usize],
        fill: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<Vec<Vec<f32>>, Error> {
        let call = format!("all_reduce of {lengths:?} values");
        let parts = self.exchange(call.clone(), filled(lengths, fill))?;
        // Each rank sums its stretch of every bucket over the ranks in their order.
        let ranks = parts.len();
        let stretch =
            |length: usize, rank: usize| length * rank / ranks..length * (rank + 1) / ranks;
        let sum = |(bucket, &length): (usize, &usize)| {
            let own = stretch(length, self.rank);
            let mut sum = parts[0][bucket][own.clone()].to_vec();
            for part in &parts[1..] {
                sum.iter_mut()
                    .zip(&part[bucket][own.clone()])
                    .for_each(|(sum, value)| *sum += value);
            }
            sum
        };
        let own: Vec<_> = lengths.iter().enumerate().map(sum).collect();
        let sums = self.exchange(call, own)?;
        let join =
            |bucket: usize| sums.iter().flat_map(|part| part[bucket].iter().copied()).collect();
        Ok((0..lengths.len()).map(join).collect())
    }

    fn barrier(&self) -> Result<(), Error> {
        self.exchange("wait_for_everyone".to_owned(), ()).map(drop)
    }
}
