//! Disk bandwidth: with streaming, and with plain reads.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Instant;

use burn::tensor::{AllocationProperty, Bytes, Device, Tensor, TensorData};
use outsize_machine::{DiskFigures, now, read_latency, volume};
use outsize_plan::{Bandwidth, format_size};
use outsize_stream::{Chunk, Lease, Options, Segment, Stream};

use crate::Error;
use crate::compute::{inputs_of, product};
use crate::files::{Files, Tile, bytes_of, longest};
use crate::measured::Measured;
use crate::options::{CalibrateOptions, LEAST_CALIBRATION_BYTES, Stop};
use crate::plain_reads::PlainReads;
use crate::samples::{Pace, Samples, seconds};

const STREAMED: &str = "disk, streaming";
const PLAIN: &str = "disk, plain reads";
const LATENCY: &str = "disk, one page";

/// How long reading everything once should take at most, in seconds.
const PASS: f64 = 0.5;

/// How long it is streamed, in seconds, if that takes more than a few passes.
const STREAMING: f64 = 5.0;

/// A pass that waits for data for less than this share of its time is not bound by the disk.
const WAITING: f64 = 0.1;

/// What is read to measure a disk.
pub(crate) struct Probe {
    /// Whose disk it is.
    folder: PathBuf,
    files: Files,
    tiles: Vec<Tile>,
}

impl Probe {
    /// Writes a file, or picks what to read of a checkpoint.
    pub fn new(options: &CalibrateOptions, stop: &Stop) -> Result<Self, Error> {
        let (folder, files) = Files::new(options, stop)?;
        let tiles = files.tiles(options.bytes);
        let bytes = bytes_of(&tiles);
        if bytes < LEAST_CALIBRATION_BYTES {
            return Err(Error::Small { folder, bytes, needed: LEAST_CALIBRATION_BYTES });
        }
        Ok(Self { folder, files, tiles })
    }

    /// Reads it both ways.
    pub fn measure(mut self, measured: &mut Measured, stop: &Stop) -> Result<DiskFigures, Error> {
        let paths = self.files.paths();
        let mut reads = PlainReads::new(&paths, stop)?;
        let mut plain = Samples::from_iter([reads.sample(stop)?]);
        // A slow disk is measured with less.
        let span = ((plain.median() * PASS) as u64).max(LEAST_CALIBRATION_BYTES);
        if span < bytes_of(&self.tiles) {
            self.tiles = self.files.tiles(span);
        }
        let path = longest(&paths);
        let len = std::fs::metadata(&path).map_or(0, |data| data.len());
        let latency = Samples::from_iter(read_latency(&path, 0..len, 64)?);
        let (streamed, beside) = self.stream(stop)?;
        plain.push(reads.sample(stop)?);
        let how = |text: String| match reads.direct {
            true => text,
            false => text + ", through the page cache",
        };
        let size = format_size(bytes_of(&self.tiles));
        let readers = Options::default().readers;
        // A disk has better and worse seconds, and a long pass has both.
        measured.add_value(
            STREAMED,
            "B/s",
            streamed.overall(),
            &streamed,
            how(format!("{size} of {} with {readers} readers, {beside}", self.files.name())),
        );
        measured.add(
            PLAIN,
            "B/s",
            &plain,
            how(format!(
                "{}, {} reads of {} in flight",
                self.files.name(),
                reads.shapes[0].in_flight,
                format_size(reads.shapes[0].block as u64)
            )),
        );
        measured.add(
            LATENCY,
            "s",
            &latency,
            how("single reads of 4096 bytes, one after the other".to_string()),
        );
        let volume = volume(&self.folder);
        let (device, file_system) = match volume.mount {
            Some(mount) => (mount.value.device, mount.value.file_system),
            None => (String::new(), String::new()),
        };
        Ok(DiskFigures {
            device,
            file_system,
            date: now(),
            streamed: Bandwidth {
                bytes_per_second: measured.of(STREAMED)?,
                latency_seconds: latency.median(),
            },
            plain_bytes_per_second: measured.of(PLAIN)?,
            direct: reads.direct,
        })
    }

    /// Streams all tiles several times, as passes over a model do, and multiplies one row by each.
    /// Returns the bytes per second of each pass, and what was done beside reading.
    fn stream(&self, stop: &Stop) -> Result<(Samples, String), Error> {
        let units = self.tiles.iter().enumerate().map(|(at, tile)| Chunk {
            name: format!("part {at}").into(),
            segments: vec![Segment {
                source: tile.file,
                offset: tile.offset,
                len: tile.len,
                align: tile.dtype.size().next_power_of_two(),
                convert: None,
            }],
            keep: false,
            occasional: false,
        });
        let largest = self.tiles.iter().map(|tile| tile.len).max().unwrap_or(0);
        let ring = Options::default()
            .ring_bytes
            // Chunks that stay in the ring are not read again.
            .min(bytes_of(&self.tiles) / 4)
            .max(outsize_stream::footprint(largest) * 4);
        let options = Options { ring_bytes: ring, ..Options::default() };
        let order = (0..self.tiles.len()).collect();
        let stream = Stream::start(self.files.sources(), units.collect(), order, options)?;
        let inputs = inputs_of(self.tiles.iter().map(|tile| tile.dims[1]), 1);
        // A warm-up pass: it begins with an empty ring and ends with a full one.
        self.pass(&stream, Some(&inputs))?;
        let (mut multiply, mut unhindered) = (true, 0);
        let mut rate = Samples::default();
        for _ in Pace::new(3, 60, STREAMING) {
            stop.check()?;
            let (bytes_per_second, waited) = self.pass(&stream, multiply.then_some(&inputs))?;
            rate.push(bytes_per_second);
            unhindered = match waited < WAITING {
                true => unhindered + 1,
                false => 0,
            };
            if multiply && unhindered == 2 {
                // Compute was the limit twice running, so these samples say nothing of the disk.
                multiply = false;
                rate = Samples::default();
            }
        }
        if rate.count() == 0 {
            rate.push(self.pass(&stream, None)?.0);
        }
        let beside = match multiply {
            true => "products beside it",
            false => "nothing beside it, as products are slower than this disk",
        };
        Ok((rate, beside.to_string()))
    }

    /// Runs one pass; returns the bytes read per second and the share of time spent waiting for
    /// data.
    fn pass(
        &self,
        stream: &Stream,
        inputs: Option<&HashMap<usize, Tensor<2>>>,
    ) -> Result<(f64, f64), Error> {
        let (before, began) = (stream.stats(), Instant::now());
        for (unit, tile) in self.tiles.iter().enumerate() {
            let lease = stream.lease(unit)?;
            if let Some(inputs) = inputs {
                multiply(inputs, lease, tile);
            }
        }
        let seconds = seconds(began);
        let stats = stream.stats().since(&before);
        stream.end_pass();
        Ok((stats.bytes_read as f64 / seconds, stats.waiting_for_data.as_secs_f64() / seconds))
    }
}

/// Multiplies a row with the leased matrix. Bytes that are no matrix are skipped.
fn multiply(inputs: &HashMap<usize, Tensor<2>>, lease: Lease, tile: &Tile) {
    let bytes = Bytes::from_shared(bytes::Bytes::from_owner(lease), AllocationProperty::Other);
    if let Ok(data) = TensorData::try_from_bytes(bytes, tile.dims.to_vec(), tile.dtype) {
        product(inputs, &Tensor::from_data(data, (&Device::flex(), tile.dtype)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::DiskToMeasure;

    #[test]
    fn what_fits_the_ring_is_not_all_that_is_read() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let options = CalibrateOptions {
            disk: DiskToMeasure::Folder(folder.path().to_path_buf()),
            bytes: LEAST_CALIBRATION_BYTES,
            stop: None,
        };
        let probe = Probe::new(&options, &Stop(None)).unwrap();
        let (rates, beside) = probe.stream(&Stop(None)).unwrap();
        assert!(rates.overall() > 0.0 && beside.contains("beside"));
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        drop(probe);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
