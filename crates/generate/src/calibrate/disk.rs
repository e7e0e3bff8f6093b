//! The disk, as streaming gets it and as plain reads do.

use std::collections::HashMap;
use std::hint::black_box;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::tensor::{AllocationProperty, Bytes, DType, Device, Tensor, TensorData};
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_machine::{DiskFigures, Scratch, direct_read_speed, now, read_latency, volume};
use outsize_plan::{Link, format_size};
use outsize_stream::{Lease, Options, Source, Stream, Unit};

use super::layers::Random;
use super::samples::{Pace, Samples};
use super::{
    CalibrateError, CalibrateOptions, DiskToMeasure, LEAST_CALIBRATION_BYTES, Measured, Stop,
};

const STREAMED: &str = "disk, streaming";
const PLAIN: &str = "disk, plain reads";
const LATENCY: &str = "disk, one page";

/// Columns of the matrices in a file that was made to be read.
const WIDTH: usize = 2048;

/// The most bytes of a tile, as models stream their matrices.
const TILE: u64 = 4 << 20;

/// Bytes written at once.
const PIECE: usize = 8 << 20;

/// The longest that writing the file takes, in seconds; what is written by then must do.
const WRITING: f64 = 3.0;

/// How long reading everything once should take at most, in seconds.
const PASS: f64 = 0.5;

/// Memory that plain reads go into, in bytes: more than stays in a cache.
const PLAIN_MEMORY: u64 = 64 << 20;

/// If computing waits for data for less than this share of a pass, it is not the disk that bounds it.
const WAITING: f64 = 0.1;

/// A part of a matrix that streams as one.
#[derive(Debug, Clone)]
struct Tile {
    file: usize,
    offset: u64,
    len: u64,
    /// `[out, in]`.
    dims: [usize; 2],
    dtype: DType,
}

/// What is read to measure a disk.
pub(super) struct Probe {
    /// Whose disk it is.
    folder: PathBuf,
    scratch: Option<Scratch>,
    checkpoint: Option<Checkpoint>,
    tiles: Vec<Tile>,
    name: String,
}

impl Probe {
    /// Writes a file, or picks what to read of a checkpoint.
    pub fn new(options: &CalibrateOptions, stop: &Stop) -> Result<Self, CalibrateError> {
        let most = options.bytes.max(LEAST_CALIBRATION_BYTES);
        match &options.disk {
            DiskToMeasure::Folder(folder) => {
                let (scratch, bytes) = write(folder, most, stop)?;
                Ok(Self {
                    folder: folder.clone(),
                    scratch: Some(scratch),
                    checkpoint: None,
                    tiles: tiles_of_file(bytes),
                    name: "a file made for it".to_string(),
                })
            }
            DiskToMeasure::Checkpoint(checkpoint) => {
                let tiles = tiles_of(checkpoint, most);
                let bytes = tiles.iter().map(|tile| tile.len).sum();
                if bytes < LEAST_CALIBRATION_BYTES {
                    return Err(CalibrateError::Small {
                        folder: checkpoint.folder().to_path_buf(),
                        bytes,
                        needed: LEAST_CALIBRATION_BYTES,
                    });
                }
                Ok(Self {
                    folder: checkpoint.folder().to_path_buf(),
                    scratch: None,
                    checkpoint: Some(checkpoint.clone()),
                    tiles,
                    name: "the model's own tensors".to_string(),
                })
            }
        }
    }

    /// Reads it in both ways.
    pub fn measure(
        mut self,
        measured: &mut Measured,
        stop: &Stop,
    ) -> Result<DiskFigures, CalibrateError> {
        let (path, range) = self.longest_range();
        // A slow disk is measured with less.
        let first = range.start..range.end.min(range.start + 2 * LEAST_CALIBRATION_BYTES);
        let rough = direct_read_speed(&path, first, PLAIN_MEMORY)?;
        let span = (rough.bytes_per_second * PASS) as u64;
        let span = span.max(LEAST_CALIBRATION_BYTES);
        self.cut(span);
        let range = range.start..range.end.min(range.start + span);
        stop.check()?;

        let latency = Samples::from_iter(read_latency(&path, range.clone(), 64)?);
        let mut plain = Samples::default();
        for _ in Pace::new(2, 4, PASS) {
            stop.check()?;
            plain.push(direct_read_speed(&path, range.clone(), PLAIN_MEMORY)?.bytes_per_second);
        }
        let (streamed, beside) = self.stream(stop)?;
        for _ in Pace::new(1, 3, PASS) {
            stop.check()?;
            plain.push(direct_read_speed(&path, range.clone(), PLAIN_MEMORY)?.bytes_per_second);
        }
        let how = |text: String| match rough.direct {
            true => text,
            false => text + ", through the page cache",
        };
        let size = format_size(self.tiles.iter().map(|tile| tile.len).sum());
        let readers = Options::default().readers;
        measured.add(
            STREAMED,
            "B/s",
            &streamed,
            how(format!(
                "{size} of {} with {readers} readers, {beside}",
                self.name
            )),
        );
        measured.add(
            PLAIN,
            "B/s",
            &plain,
            how(format!(
                "{} of it, {} reads of {} in flight",
                format_size(range.end - range.start),
                rough.threads,
                format_size(rough.block as u64)
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
            streamed: Link {
                bytes_per_second: measured.of(STREAMED)?,
                latency_seconds: latency.median(),
            },
            plain_bytes_per_second: measured.of(PLAIN)?,
            direct: rough.direct,
        })
    }

    /// The file of which most is read, and the range of it.
    fn longest_range(&self) -> (PathBuf, Range<u64>) {
        let mut ranges: HashMap<usize, (u64, Range<u64>)> = HashMap::new();
        for tile in &self.tiles {
            let end = tile.offset + tile.len;
            let (bytes, range) = ranges.entry(tile.file).or_insert((0, tile.offset..end));
            *bytes += tile.len;
            *range = range.start.min(tile.offset)..range.end.max(end);
        }
        let longest = ranges
            .into_iter()
            .max_by_key(|(file, (bytes, _))| (*bytes, std::cmp::Reverse(*file)));
        let (file, range) = longest.map_or((0, 0..0), |(file, (_, range))| (file, range));
        (self.path(file), range)
    }

    fn path(&self, file: usize) -> PathBuf {
        match (&self.scratch, &self.checkpoint) {
            (Some(scratch), _) => scratch.path().to_path_buf(),
            (None, Some(checkpoint)) => checkpoint.files()[file].path().to_path_buf(),
            (None, None) => PathBuf::new(),
        }
    }

    fn sources(&self) -> Vec<Source> {
        match (&self.scratch, &self.checkpoint) {
            (Some(scratch), _) => vec![Source::new(scratch.path(), scratch.file().clone())],
            (None, Some(checkpoint)) => checkpoint
                .files()
                .iter()
                .map(|file| Source::new(file.path(), file.file().clone()).since(file.opened()))
                .collect(),
            (None, None) => Vec::new(),
        }
    }

    /// Leaves tiles of about `bytes` bytes.
    fn cut(&mut self, bytes: u64) {
        let mut sum = 0;
        self.tiles.retain(|tile| {
            let stays = sum < bytes;
            sum += tile.len;
            stays
        });
    }

    /// Streams all tiles several times, as a pass over a model does, and multiplies one row by each. Gives the bytes per
    /// second of each time, and what was done beside.
    fn stream(&self, stop: &Stop) -> Result<(Samples, String), CalibrateError> {
        let units = self.tiles.iter().enumerate().map(|(at, tile)| Unit {
            name: format!("part {at}").into(),
            source: tile.file,
            offset: tile.offset,
            len: tile.len,
            align: tile.dtype.size().next_power_of_two(),
            convert: None,
            keep: false,
        });
        let all: u64 = self.tiles.iter().map(|tile| tile.len).sum();
        let largest = self.tiles.iter().map(|tile| tile.len).max().unwrap_or(0);
        let ring = Options::default()
            .ring_bytes
            // What the ring holds is not read.
            .min(all / 4)
            .max(outsize_stream::footprint(largest) * 4);
        let options = Options {
            ring_bytes: ring,
            ..Options::default()
        };
        let order = (0..self.tiles.len()).collect();
        let stream = Stream::start(self.sources(), units.collect(), order, options)?;
        let inputs = self.inputs();
        let mut multiply = true;
        // The first pass begins with an empty ring, and ends with a full one.
        self.pass(&stream, Some(&inputs))?;
        let mut rate = Samples::default();
        for _ in Pace::new(3, 6, 4.0 * PASS) {
            stop.check()?;
            let (mut bytes_per_second, waited) = self.pass(&stream, multiply.then_some(&inputs))?;
            if multiply && waited < WAITING {
                // Computing was the limit, so this says nothing of the disk.
                multiply = false;
                rate = Samples::default();
                (bytes_per_second, _) = self.pass(&stream, None)?;
            }
            rate.push(bytes_per_second);
        }
        let beside = match multiply {
            true => "products beside it",
            false => "nothing beside it, as products are slower than this disk",
        };
        Ok((rate, beside.to_string()))
    }

    /// One pass: bytes read per second, and the share of it that was spent waiting for data.
    fn pass(
        &self,
        stream: &Stream,
        inputs: Option<&HashMap<usize, Tensor<2>>>,
    ) -> Result<(f64, f64), CalibrateError> {
        let (before, began) = (stream.stats(), Instant::now());
        for (unit, tile) in self.tiles.iter().enumerate() {
            let lease = stream.lease(unit)?;
            if let Some(x) = inputs.and_then(|inputs| inputs.get(&tile.dims[1])) {
                multiply(x, lease, tile);
            }
        }
        let seconds = began.elapsed().as_secs_f64().max(1e-9);
        let stats = stream.stats().since(&before);
        stream.end_pass();
        Ok((
            stats.bytes_read as f64 / seconds,
            stats.waiting_for_data.as_secs_f64() / seconds,
        ))
    }

    /// One row of activations for each width.
    fn inputs(&self) -> HashMap<usize, Tensor<2>> {
        self.tiles
            .iter()
            .map(|tile| {
                let width = tile.dims[1];
                let data = TensorData::new(vec![0.5f32; width], [1, width]);
                let tensor = Tensor::from_data(data, (&Device::flex(), DType::F32));
                (width, tensor)
            })
            .collect()
    }
}

/// A row times the leased matrix. Nothing happens with bytes that are no matrix.
fn multiply(x: &Tensor<2>, lease: Lease, tile: &Tile) {
    let bytes = Bytes::from_shared(bytes::Bytes::from_owner(lease), AllocationProperty::Other);
    if let Ok(data) = TensorData::try_from_bytes(bytes, tile.dims.to_vec(), tile.dtype) {
        let weight = Tensor::from_data(data, (&Device::flex(), tile.dtype));
        black_box(outsize_kernels::linear(x.clone(), weight));
    }
}

/// Writes up to `most` bytes of weights on the file system of a folder: less if it is slow or nearly full.
fn write(folder: &Path, most: u64, stop: &Stop) -> Result<(Scratch, u64), CalibrateError> {
    let free = volume(folder).free.map_or(u64::MAX, |free| free.value);
    // Half of the room stays for others.
    let most = most.min(free / 2) / PIECE as u64 * PIECE as u64;
    if most < LEAST_CALIBRATION_BYTES {
        return Err(CalibrateError::NoRoom {
            folder: folder.to_path_buf(),
            free,
            needed: 2 * LEAST_CALIBRATION_BYTES,
        });
    }
    let mut scratch = Scratch::new(folder)?;
    let failed = |source| CalibrateError::Write {
        folder: folder.to_path_buf(),
        source,
    };
    let mut random = Random::new(7);
    let mut piece = vec![0; PIECE];
    let least = (LEAST_CALIBRATION_BYTES / PIECE as u64) as u32;
    let mut bytes = 0;
    for _ in Pace::new(least, (most / PIECE as u64) as u32, WRITING) {
        stop.check()?;
        random.fill(&mut piece);
        scratch.write(&piece).map_err(failed)?;
        bytes += PIECE as u64;
        // So that the time is that of the disk.
        if bytes.is_multiple_of(8 * PIECE as u64) {
            scratch.settle().map_err(failed)?;
        }
    }
    scratch.settle().map_err(failed)?;
    Ok((scratch, bytes))
}

/// A file of bf16 weights in tiles.
fn tiles_of_file(bytes: u64) -> Vec<Tile> {
    (0..bytes / TILE)
        .map(|at| Tile {
            file: 0,
            offset: at * TILE,
            len: TILE,
            dims: [TILE as usize / 2 / WIDTH, WIDTH],
            dtype: DType::BF16,
        })
        .collect()
}

/// The matrices of a checkpoint in tiles of whole rows, up to about `most` bytes.
fn tiles_of(checkpoint: &Checkpoint, most: u64) -> Vec<Tile> {
    let mut tiles = Vec::new();
    let mut bytes = 0;
    for tensor in checkpoint.tensors() {
        let dtype = match tensor.dtype {
            Dtype::BF16 => DType::BF16,
            Dtype::F16 => DType::F16,
            Dtype::F32 => DType::F32,
            _ => continue,
        };
        let [out, width] = tensor.shape[..] else {
            continue;
        };
        let row = (width * dtype.size()) as u64;
        if out == 0 || row == 0 || row > TILE {
            continue;
        }
        let rows = (TILE / row) as usize;
        for first in (0..out).step_by(rows) {
            if bytes >= most {
                return tiles;
            }
            let count = rows.min(out - first);
            let len = count as u64 * row;
            tiles.push(Tile {
                file: tensor.file,
                offset: tensor.offset + first as u64 * row,
                len,
                dims: [count, width],
                dtype,
            });
            bytes += len;
        }
    }
    tiles
}
