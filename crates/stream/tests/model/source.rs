//! Files in memory that fail on demand, in place of the crate's real ones.

use crate::{Error, sync};
use shuttle::rand::{Rng, thread_rng};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The byte at an offset of every file.
pub(crate) fn byte(at: u64) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 7) as u8
}

/// How often reads fail: the next so many, or so many in a hundred.
#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) next: AtomicU32,
    pub(crate) percent: AtomicU32,
    /// Reads so far.
    pub(crate) reads: AtomicU32,
}

impl Faults {
    pub(crate) fn heal(&self) {
        self.next.store(0, Ordering::Relaxed);
        self.percent.store(0, Ordering::Relaxed);
    }

    fn strike(&self) -> bool {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let percent = self.percent.load(Ordering::Relaxed);
        let next = self.next.load(Ordering::Relaxed);
        if next > 0 {
            self.next.store(next - 1, Ordering::Relaxed);
        }
        next > 0 || (percent > 0 && thread_rng().gen_ratio(percent, 100))
    }
}

/// A file in memory.
pub struct Source {
    pub(crate) faults: Arc<Faults>,
}

impl Source {
    pub(crate) fn new(faults: &Arc<Faults>) -> Self {
        Self { faults: faults.clone() }
    }

    pub(crate) fn is_direct(&self) -> bool {
        true
    }

    pub(crate) fn read(
        &self,
        chunk: &str,
        offset: u64,
        target: &mut [u8],
        need: usize,
    ) -> Result<usize, Error> {
        sync::switch();
        let fault = self.faults.strike();
        let (first, second) = target.split_at_mut(need / 2);
        let middle = offset + first.len() as u64;
        for (at, byte_there) in (offset..).zip(first) {
            *byte_there = byte(at);
        }
        sync::switch();
        let path = Path::new("in memory").to_path_buf();
        if fault {
            return Err(match offset % 3 {
                0 => Error::Read {
                    chunk: chunk.into(),
                    path,
                    source: Arc::new(io::ErrorKind::Other.into()),
                },
                1 => Error::Truncated { chunk: chunk.into(), path, end: offset + need as u64 },
                _ => Error::Changed { chunk: chunk.into(), path },
            });
        }
        for (at, byte_there) in (middle..).zip(second) {
            *byte_there = byte(at);
        }
        sync::switch();
        Ok(target.len())
    }
}
