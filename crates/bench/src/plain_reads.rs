//! The disk by itself: what streaming is compared with.

use std::path::PathBuf;

use outsize_machine::{ReadShape, SequentialReads};

use crate::Error;
use crate::options::Stop;

/// How long the disk is read one way, in seconds: long enough for some of its slow moments.
const SECONDS: f64 = 0.5;

/// How many ways of reading, the fastest at first, each sample tries. The best counts.
const WAYS: usize = 3;

/// How long each way of reading is tried at first, in seconds.
const CHOICE: f64 = 0.08;

/// Files read from one end to the other past the page cache, with nothing beside it.
#[derive(Debug)]
pub(crate) struct PlainReads {
    reads: SequentialReads,
    /// The fastest first.
    pub shapes: Vec<ReadShape>,
    /// Whether the reads bypass the page cache. If not, they may measure memory.
    pub direct: bool,
}

impl PlainReads {
    /// Finds the fastest ways to read the files.
    pub fn new(paths: &[PathBuf], stop: &Stop) -> Result<Self, Error> {
        let mut reads = SequentialReads::new(paths)?;
        stop.check()?;
        let mut shapes = reads.fastest(CHOICE)?;
        shapes.truncate(WAYS);
        let direct = reads.read(shapes[0], 0.0)?.direct;
        stop.check()?;
        Ok(Self { reads, shapes, direct })
    }

    /// Bytes per second of the fastest way of the moment, from where the last sample ended.
    pub fn sample(&mut self, stop: &Stop) -> Result<f64, Error> {
        let mut best: f64 = 0.0;
        for shape in &self.shapes {
            let speed = self.reads.read(*shape, SECONDS)?;
            self.direct &= speed.direct;
            best = best.max(speed.bytes_per_second);
            stop.check()?;
        }
        Ok(best)
    }
}
