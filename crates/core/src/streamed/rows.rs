//! Single rows of a matrix, read by themselves.

use super::Inner;
use crate::Error;
use burn::tensor::{Bytes, Tensor};
use outsize_checkpoint::TensorInfo;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Reads in flight. A disk takes about as long for a row as for a few of them, and several at once
/// hardly longer.
const READS_AT_ONCE: usize = 8;

/// Bytes of neighbouring rows that are read in one go, unless a single row has more.
const RUN_BYTES: usize = 64 << 10;

/// A row that is asked for, and where its values go.
type Wanted<'a> = (usize, &'a mut [u8]);

impl Inner {
    /// As [`Streamed::rows`](super::Streamed::rows): each distinct row is read once.
    pub(super) fn rows(&self, ids: &[usize]) -> Result<Tensor<2>, Error> {
        self.pass.check(&self.path);
        let [height, width] = self.weight.data().shape[..] else {
            return Err(self.refuse("single rows"));
        };
        if let Some(row) = ids.iter().find(|row| **row >= height) {
            return Err(Error::Row { path: self.path.to_string(), row: *row, rows: height });
        }
        let row_bytes = (width * self.dtype.size()).max(1);
        let mut held = vec![0; ids.len() * width * self.dtype.size()];
        let mut wanted: Vec<Wanted<'_>> =
            ids.iter().copied().zip(held.chunks_exact_mut(row_bytes)).collect();
        wanted.sort_unstable_by_key(|(row, _)| *row);
        let most = (RUN_BYTES / row_bytes).max(1);
        let runs = wanted.chunk_by_mut(|(one, _), (next, _)| {
            one == next || one + 1 == *next && !next.is_multiple_of(most)
        });
        self.stream.waiting(|| self.read_runs(runs.collect()))?;
        self.tensor_of(Bytes::from_bytes_vec(held), &[ids.len(), width])
    }

    /// Reads the rows of each run, several runs at once.
    fn read_runs(&self, runs: Vec<&mut [Wanted<'_>]>) -> Result<(), Error> {
        let others = READS_AT_ONCE.min(runs.len()).saturating_sub(1);
        let runs = Mutex::new(runs.into_iter());
        let next = || runs.lock().unwrap_or_else(PoisonError::into_inner).next();
        let read = || std::iter::from_fn(next).try_for_each(|run| self.read_run(run));
        thread::scope(|scope| {
            // Threads that cannot be had are made up for by this one.
            let others: Vec<_> = (0..others)
                .map_while(|_| thread::Builder::new().spawn_scoped(scope, read).ok())
                .collect();
            let own = read();
            let joined = others
                .into_iter()
                .map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
            joined.fold(own, Result::and)
        })
    }

    /// Reads the rows from the first to the last of these, in one go.
    fn read_run(&self, run: &mut [Wanted<'_>]) -> Result<(), Error> {
        let [(first, one), ..] = run else { return Ok(()) };
        let (first, row_bytes) = (*first, one.len());
        if let [(_, values)] = run {
            return self.read_rows(first..first + 1, values);
        }
        let end = run.last().map_or(first, |(last, _)| last + 1);
        let mut values = vec![0; (end - first) * row_bytes];
        self.read_rows(first..end, &mut values)?;
        for (row, to) in run {
            to.copy_from_slice(&values[(*row - first) * row_bytes..][..row_bytes]);
        }
        Ok(())
    }

    /// Reads neighbouring rows, as their value is.
    fn read_rows(&self, rows: Range<usize>, held: &mut [u8]) -> Result<(), Error> {
        let count = rows.len();
        let rows = self.weight.slice(rows);
        let read = |tensor: &TensorInfo, raw: &mut [u8]| {
            self.stream.read(&self.path, tensor.file, tensor.offset, raw)
        };
        let info = rows.data();
        if !self.in_blocks && self.convert.is_none() {
            return Ok(read(info, held)?);
        }
        let mut raw = vec![0; info.len as usize];
        read(info, &mut raw)?;
        if let Some(convert) = &self.convert {
            convert.run(info.offset, &raw, held);
            return Ok(());
        }
        let mut scales = vec![0; rows.scales().map_or(0, |scales| scales.len as usize)];
        if let Some(info) = rows.scales() {
            read(info, &mut scales)?;
        }
        let mut values = vec![0.0; info.shape.iter().product()];
        let parts = [raw.into(), scales.into(), Default::default()];
        self.block_weight(&rows, parts)?.dequantize(0..count, &mut values);
        for (to, value) in held.as_chunks_mut::<4>().0.iter_mut().zip(values) {
            *to = value.to_le_bytes();
        }
        Ok(())
    }
}
