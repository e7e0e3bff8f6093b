//! Files of weights to read: those of a model, or a temporary one.

use std::path::{Path, PathBuf};

use burn::tensor::DType;
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_machine::{Scratch, volume};
use outsize_stream::Source;

use crate::Error;
use crate::layers::Random;
use crate::options::{CalibrateOptions, DiskToMeasure, LEAST_CALIBRATION_BYTES, Stop};
use crate::samples::Pace;

/// Columns of the matrices in the temporary file.
const WIDTH: usize = 2048;

/// The most bytes of a tile, as models stream their matrices.
const TILE: u64 = 4 << 20;

/// The least number of tiles: the ring holds some of them, and those are not read again.
const TILES: u64 = 32;

/// The most to write or to read in one pass, in bytes.
const MOST: u64 = 384 << 20;

/// Bytes written at once.
const WRITE: usize = 8 << 20;

/// How long the file is written at most, in seconds; the bytes written by then must do.
const WRITING: f64 = 3.0;

/// Rows of a matrix that are streamed as one chunk.
#[derive(Debug, Clone)]
pub(crate) struct Tile {
    pub file: usize,
    pub offset: u64,
    pub len: u64,
    /// `[out, in]`.
    pub dims: [usize; 2],
    pub dtype: DType,
}

/// The files to read.
#[derive(Debug)]
pub(crate) enum Files {
    /// A temporary one, and its bytes.
    Made(Scratch, u64),
    /// Those of a checkpoint.
    Model(Checkpoint),
}

impl Files {
    /// Writes a file, or takes those of a checkpoint; returns their folder, too.
    pub fn new(options: &CalibrateOptions, stop: &Stop) -> Result<(PathBuf, Self), Error> {
        match &options.disk {
            DiskToMeasure::Folder(folder) => {
                let most = options.bytes.clamp(LEAST_CALIBRATION_BYTES, MOST);
                let (scratch, bytes) = write(folder, most, stop)?;
                Ok((folder.clone(), Self::Made(scratch, bytes)))
            }
            DiskToMeasure::Checkpoint(checkpoint) => {
                let folder = checkpoint.folder().to_path_buf();
                Ok((folder, Self::Model(checkpoint.clone())))
            }
        }
    }

    /// The paths of all of them.
    pub fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::Made(scratch, _) => vec![scratch.path().to_path_buf()],
            Self::Model(checkpoint) => {
                checkpoint.files().iter().map(|file| file.path().to_path_buf()).collect()
            }
        }
    }

    /// The files, open to be streamed.
    pub fn sources(&self) -> Vec<Source> {
        match self {
            Self::Made(scratch, _) => vec![Source::new(scratch.path(), scratch.file().clone())],
            Self::Model(checkpoint) => checkpoint
                .files()
                .iter()
                .map(|file| Source::new(file.path(), file.file().clone()).since(file.opened()))
                .collect(),
        }
    }

    /// Up to about `most` bytes of them in tiles.
    pub fn tiles(&self, most: u64) -> Vec<Tile> {
        let most = most.clamp(LEAST_CALIBRATION_BYTES, MOST);
        match self {
            Self::Made(_, bytes) => tiles_of_file(most.min(*bytes)),
            Self::Model(checkpoint) => tiles_of(checkpoint, most),
        }
    }

    /// What they are, for a report.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Made(..) => "a file made for it",
            Self::Model(_) => "the model's own tensors",
        }
    }
}

/// Writes up to `most` bytes of weights on the file system of a folder: less if it is slow or
/// nearly full.
fn write(folder: &Path, most: u64, stop: &Stop) -> Result<(Scratch, u64), Error> {
    let free = volume(folder).free.map_or(u64::MAX, |free| free.value);
    // Half of the room stays free.
    let most = most.min(free / 2) / WRITE as u64 * WRITE as u64;
    if most < LEAST_CALIBRATION_BYTES {
        return Err(Error::NoRoom {
            folder: folder.to_path_buf(),
            free,
            needed: 2 * LEAST_CALIBRATION_BYTES,
        });
    }
    let mut scratch = Scratch::new(folder)?;
    let failed = |source| Error::Write { folder: folder.to_path_buf(), source };
    let mut random = Random::new(7);
    let mut buffer = vec![0; WRITE];
    let least = (LEAST_CALIBRATION_BYTES / WRITE as u64) as u32;
    let mut bytes = 0;
    for _ in Pace::new(least, (most / WRITE as u64) as u32, WRITING) {
        stop.check()?;
        random.fill(&mut buffer);
        scratch.write(&buffer).map_err(failed)?;
        bytes += WRITE as u64;
        // Synced, so that the time is the disk's.
        if bytes.is_multiple_of(8 * WRITE as u64) {
            scratch.settle().map_err(failed)?;
        }
    }
    scratch.settle().map_err(failed)?;
    Ok((scratch, bytes))
}

pub(crate) fn bytes_of(tiles: &[Tile]) -> u64 {
    tiles.iter().map(|tile| tile.len).sum()
}

/// The largest tile where there are `bytes` in all.
fn tile_bytes(bytes: u64) -> u64 {
    (bytes / TILES).clamp(1, TILE)
}

/// A file of bf16 weights in tiles.
fn tiles_of_file(bytes: u64) -> Vec<Tile> {
    let row = 2 * WIDTH as u64;
    let rows = (tile_bytes(bytes) / row).max(1);
    let len = rows * row;
    (0..bytes / len)
        .map(|at| Tile {
            file: 0,
            offset: at * len,
            len,
            dims: [rows as usize, WIDTH],
            dtype: DType::BF16,
        })
        .collect()
}

/// The matrices of a checkpoint in tiles of whole rows, up to about `most` bytes.
fn tiles_of(checkpoint: &Checkpoint, most: u64) -> Vec<Tile> {
    let tile = tile_bytes(most.min(checkpoint.total_bytes()));
    let mut tiles = Vec::new();
    let mut bytes = 0;
    for tensor in checkpoint.tensors() {
        let dtype = match tensor.dtype {
            Dtype::BF16 => DType::BF16,
            Dtype::F16 => DType::F16,
            Dtype::F32 => DType::F32,
            // As good as any other bytes, of which all rows have an even number.
            quantized if quantized.block().elements > 1 => DType::BF16,
            _ => continue,
        };
        let [out, _] = tensor.shape[..] else {
            continue;
        };
        let row = tensor.len / (out as u64).max(1);
        let width = row as usize / dtype.size();
        if out == 0 || row == 0 || row > TILE {
            continue;
        }
        let rows = (tile / row).max(1) as usize;
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

/// The longest of some files.
pub(crate) fn longest(paths: &[PathBuf]) -> PathBuf {
    let len = |path: &&PathBuf| path.metadata().map_or(0, |data| data.len());
    paths.iter().max_by_key(len).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_always_many_tiles() {
        for bytes in [LEAST_CALIBRATION_BYTES, 17_000_000, 50 << 20, MOST] {
            let tiles = tiles_of_file(bytes);
            assert!(tiles.len() as u64 >= TILES, "{bytes}");
            assert!(bytes_of(&tiles) <= bytes && bytes_of(&tiles) > bytes - TILE);
            for (at, tile) in tiles.iter().enumerate() {
                assert_eq!(tile.len, 2 * (tile.dims[0] * tile.dims[1]) as u64);
                assert_eq!(tile.offset, at as u64 * tile.len);
                assert!(tile.len <= TILE);
            }
        }
    }
}
