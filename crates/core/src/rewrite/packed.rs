//! Weights that are written as packed bf16.

use half::bf16;
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_kernels::{PackedBf16Scan, pack_bf16};

use super::{Rewrite, Source};
use crate::Error;

impl Rewrite {
    /// What looks at the values of one matrix that becomes bf16; none for other weights.
    pub(super) fn scan(&self) -> Option<PackedBf16Scan> {
        let is_one = matches!(self.source, Source::Weight(..)) && self.dtype == Dtype::BF16;
        match &self.spec().shape[..] {
            &[_, columns] if is_one => PackedBf16Scan::new(columns),
            _ => None,
        }
    }

    /// Bytes of bf16 that [`pack`](Self::pack) looks at; zero if it would change nothing.
    pub fn bytes_to_pack(&self) -> u64 {
        let bytes = |_| {
            let spec = self.spec();
            spec.shape.iter().fold(2, |bytes: u64, n| bytes.saturating_mul(*n as u64))
        };
        self.scan().map_or(0, bytes)
    }

    /// The same written as packed bf16, if it is a matrix of bf16 that takes less so: reads all of
    /// it. `go_on` is told how many bytes more it has looked at.
    ///
    /// # Errors
    /// If reading fails; [`Error::Stopped`] if `go_on` said no.
    pub fn pack(
        mut self,
        checkpoint: &Checkpoint,
        mut go_on: impl FnMut(u64) -> bool,
    ) -> Result<Self, Error> {
        if let Source::Weight(weight, change) = &self.source
            && let Some(mut scan) = self.scan()
        {
            self.for_each_piece(weight, *change, checkpoint, &mut |bytes| {
                scan.add(&values(&bytes));
                if go_on(bytes.len() as u64) { Ok(()) } else { Err(Error::Stopped) }
            })?;
            self.packed = scan.finish();
        }
        Ok(self)
    }

    /// Whether it is written as packed bf16.
    pub fn is_packed(&self) -> bool {
        self.packed.is_some() || matches!(self.dtype, Dtype::PackedBf16(_))
    }

    /// Some rows as they are written.
    pub(super) fn with_packed(&self, bytes: Vec<u8>) -> Vec<u8> {
        match self.packed {
            Some(packed) => pack_bf16(packed, &values(&bytes)),
            None => bytes,
        }
    }
}

fn values(bytes: &[u8]) -> Vec<bf16> {
    bytes.as_chunks().0.iter().map(|bits| bf16::from_le_bytes(*bits)).collect()
}
