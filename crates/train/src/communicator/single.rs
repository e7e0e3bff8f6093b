//! One rank, alone.

use super::{Communicator, filled};
use crate::Error;

/// One rank: nothing is exchanged.
#[derive(Debug, Clone, Copy, Default)]
pub struct SingleRank;

impl Communicator for SingleRank {
    fn name(&self) -> &'static str {
        "single"
    }

    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn abort(&self, _reason: &str) {}

    fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        Ok(vec![bytes])
    }

    fn broadcast(&self, bytes: Vec<u8>, _from: usize) -> Result<Vec<u8>, Error> {
        Ok(bytes)
    }

    fn all_reduce(
        &self,
        lengths: &[usize],
        fill: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<Vec<Vec<f32>>, Error> {
        Ok(filled(lengths, fill))
    }

    fn barrier(&self) -> Result<(), Error> {
        Ok(())
    }
}
