//! Ranks that are processes of an MPI world.
//!
//! Collectives are the non-blocking ones, polled until a deadline: a rank that waits too long ends
//! the whole job, as does one that panics. A rank that is killed is noticed by `mpirun`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use mpi::collective::{CommunicatorCollectives, Root, SystemOperation};
use mpi::datatype::PartitionMut;
use mpi::environment::{Threading, Universe, initialize_with_threading};
use mpi::request::{Request, Scope, scope};
use mpi::topology::{Communicator as _, SimpleCommunicator};

use super::Communicator;
use crate::Error;

/// Bytes of one call, well below what MPI can count (2 GiB).
const CHUNK: usize = 1 << 30;

/// MPI is initialized once a process, and finalized when the last handle is dropped.
static UNIVERSE: Mutex<Weak<Universe>> = Mutex::new(Weak::new());

/// One process of an MPI world.
pub struct MpiRanks {
    rank: usize,
    local_rank: usize,
    world_size: usize,
    timeout: Duration,
    /// Calls come from one thread at a time.
    turn: Mutex<()>,
    // Last, so that MPI is finalized last.
    _universe: Arc<Universe>,
}

impl MpiRanks {
    /// Joins the world that the process was started in.
    ///
    /// # Errors
    ///
    /// MPI cannot be initialized, or cannot be called from several threads in turn.
    pub fn join(timeout: Duration) -> Result<Self, Error> {
        let mut known = UNIVERSE.lock().unwrap_or_else(PoisonError::into_inner);
        let universe = match known.upgrade() {
            Some(universe) => universe,
            None => {
                let fault = |reason: &str| Error::Setting(format!("MPI cannot be used: {reason}"));
                let (universe, threading) = initialize_with_threading(Threading::Serialized)
                    .ok_or_else(|| {
                        fault("it was initialized before by another part of the program")
                    })?;
                if threading < Threading::Serialized {
                    return Err(fault("this MPI library does not support threads"));
                }
                Arc::new(universe)
            }
        };
        *known = Arc::downgrade(&universe);
        let world = SimpleCommunicator::world();
        Ok(Self {
            rank: world.rank() as usize,
            local_rank: world.split_shared(world.rank()).rank() as usize,
            world_size: world.size() as usize,
            timeout,
            turn: Mutex::new(()),
            _universe: universe,
        })
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a request; ends the job if it takes too long, as nothing else frees its buffers.
    fn wait<'a, D: ?Sized, S: Scope<'a>>(&self, mut request: Request<'a, D, S>, operation: &str) {
        let began = Instant::now();
        let mut polls = 0_u32;
        while let Err(unfinished) = request.test() {
            request = unfinished;
            if began.elapsed() > self.timeout {
                let (operation, missing) = (operation.to_owned(), Vec::new());
                let fault = Error::Timeout { operation, missing, timeout: self.timeout };
                self.abort(&fault.to_string());
            }
            polls += 1;
            match polls {
                ..1000 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }
}

impl Drop for MpiRanks {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Finalizing would wait for ranks that wait for this one.
            self.abort("it panicked");
        }
    }
}

impl Communicator for MpiRanks {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn local_rank(&self) -> usize {
        self.local_rank
    }

    fn abort(&self, reason: &str) {
        eprintln!("rank {} ends the job: {reason}", self.rank);
        SimpleCommunicator::world().abort(1);
    }

    fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        let _turn = self.turn();
        let world = SimpleCommunicator::world();
        let own = bytes.len() as u64;
        let mut lengths = vec![0_u64; self.world_size];
        scope(|scope| {
            let request = world.immediate_all_gather_into(scope, &own, &mut lengths[..]);
            self.wait(request, "all_gather");
        });
        let mut parts: Vec<Vec<u8>> = vec![Vec::new(); self.world_size];
        let chunk = CHUNK / self.world_size;
        let longest = lengths.iter().max().copied().unwrap_or_default() as usize;
        for start in (0..longest).step_by(chunk) {
            let here = |length: &u64| (*length as usize).saturating_sub(start).min(chunk);
            let counts: Vec<i32> = lengths.iter().map(|length| here(length) as i32).collect();
            let starts = counts.iter().scan(0, |sum, count| {
                *sum += count;
                Some(*sum - count)
            });
            let starts: Vec<i32> = starts.collect();
            let mut all = vec![0_u8; counts.iter().sum::<i32>() as usize];
            let sent = &bytes[start.min(bytes.len())..][..counts[self.rank] as usize];
            let mut partition = PartitionMut::new(&mut all[..], &counts[..], &starts[..]);
            scope(|scope| {
                let request = world.immediate_all_gather_varcount_into(scope, sent, &mut partition);
                self.wait(request, "all_gather");
            });
            for ((part, count), start) in parts.iter_mut().zip(&counts).zip(&starts) {
                part.extend_from_slice(&all[*start as usize..][..*count as usize]);
            }
        }
        Ok(parts)
    }

    fn broadcast(&self, mut bytes: Vec<u8>, from: usize) -> Result<Vec<u8>, Error> {
        let _turn = self.turn();
        let world = SimpleCommunicator::world();
        let root = world.process_at_rank(from as i32);
        let mut length = bytes.len() as u64;
        scope(|scope| {
            let request = root.immediate_broadcast_into(scope, &mut length);
            self.wait(request, "broadcast");
        });
        bytes.resize(length as usize, 0);
        for chunk in bytes.chunks_mut(CHUNK) {
            scope(|scope| {
                let request = root.immediate_broadcast_into(scope, chunk);
                self.wait(request, "broadcast");
            });
        }
        Ok(bytes)
    }

    fn all_reduce(
        &self,
        lengths: &[usize],
        fill: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<Vec<Vec<f32>>, Error> {
        let _turn = self.turn();
        let world = SimpleCommunicator::world();
        let zeros = || lengths.iter().map(|&length| vec![0.0_f32; length]).collect::<Vec<_>>();
        let (mut own, mut sums) = (zeros(), zeros());
        scope(|scope| {
            let mut requests = Vec::new();
            for (index, (own, sum)) in own.iter_mut().zip(&mut sums).enumerate() {
                fill(index, own);
                // MPI counts elements in an i32.
                for (own, sum) in own.chunks(CHUNK).zip(sum.chunks_mut(CHUNK)) {
                    let add = SystemOperation::sum();
                    requests.push(world.immediate_all_reduce_into(scope, own, sum, add));
                }
            }
            requests.into_iter().for_each(|request| self.wait(request, "all_reduce"));
        });
        Ok(sums)
    }

    fn barrier(&self) -> Result<(), Error> {
        let _turn = self.turn();
        self.wait(SimpleCommunicator::world().immediate_barrier(), "wait_for_everyone");
        Ok(())
    }
}
