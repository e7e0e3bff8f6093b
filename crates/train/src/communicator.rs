//! How ranks exchange bytes and sum gradients.
//!
//! [`Communicator`] is the seam to the engines: [`SingleRank`], [`ThreadRanks`] and, with the
//! feature `mpi`, `MpiRanks`. Burn's own all-reduce (NCCL, one process, CUDA only) would be one
//! more.

mod environment;
#[cfg(feature = "mpi")]
mod mpi;
mod single;
mod threads;

pub(crate) use environment::from_environment;
#[cfg(feature = "mpi")]
pub use mpi::MpiRanks;
pub use single::SingleRank;
pub use threads::ThreadRanks;

use crate::Error;

/// An engine that connects ranks. All ranks make the same calls in the same order.
///
/// Every call waits for all ranks, and ends with an error when one of them failed or does not
/// come in time.
pub trait Communicator: Send + Sync {
    /// The engine: `single`, `threads`, `mpi`.
    fn name(&self) -> &'static str;

    /// This rank, below [`world_size`](Self::world_size).
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn world_size(&self) -> usize;

    /// This rank among those of the same machine.
    fn local_rank(&self) -> usize {
        self.rank()
    }

    /// Ends the job of all ranks, as this one cannot go on.
    fn abort(&self, reason: &str);

    /// Gives every rank the bytes of all ranks, in their order. Lengths may differ.
    ///
    /// # Errors
    ///
    /// A rank failed, calls something else, or is late.
    fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, Error>;

    /// Gives every rank the bytes of rank `from`; those of the others are dropped.
    ///
    /// # Errors
    ///
    /// A rank failed, calls something else, or is late.
    fn broadcast(&self, bytes: Vec<u8>, from: usize) -> Result<Vec<u8>, Error>;

    /// Gives each rank its part of what rank `from` has; those of the others are dropped.
    ///
    /// # Errors
    ///
    /// A rank failed, calls something else, or is late.
    fn scatter(&self, parts: Vec<Vec<u8>>, from: usize) -> Result<Vec<u8>, Error> {
        let lengths = parts.iter().flat_map(|part| (part.len() as u64).to_le_bytes());
        let sent: Vec<u8> = lengths.chain(parts.iter().flatten().copied()).collect();
        let sent = self.broadcast(sent, from)?;
        let (lengths, mut rest) = sent.split_at(8 * self.world_size());
        for (rank, length) in lengths.as_chunks().0.iter().enumerate() {
            let (part, after) = rest.split_at(u64::from_le_bytes(*length) as usize);
            if rank == self.rank() {
                return Ok(part.to_vec());
            }
            rest = after;
        }
        Ok(Vec::new())
    }

    /// Sums buckets of values over all ranks, each bucket in the same order of ranks on every
    /// rank, so that all get the same bits.
    ///
    /// `fill(index, bucket)` writes this rank's values over the zeros of a bucket of
    /// `lengths[index]` values. An engine may send one bucket while the next is filled.
    ///
    /// # Errors
    ///
    /// A rank failed, has other lengths, or is late.
    fn all_reduce(
        &self,
        lengths: &[usize],
        fill: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<Vec<Vec<f32>>, Error>;

    /// Waits until every rank is here.
    ///
    /// # Errors
    ///
    /// A rank failed, calls something else, or is late.
    fn barrier(&self) -> Result<(), Error>;
}

/// Buckets of zeros, each filled with this rank's values.
fn filled(lengths: &[usize], fill: &mut dyn FnMut(usize, &mut [f32])) -> Vec<Vec<f32>> {
    let bucket = |(index, &length): (usize, &usize)| {
        let mut bucket = vec![0.0; length];
        fill(index, &mut bucket);
        bucket
    };
    lengths.iter().enumerate().map(bucket).collect()
}
