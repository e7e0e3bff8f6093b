//! Gradients of all weights, in one file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outsize_checkpoint::{Checkpoint, TensorInfo};
use outsize_core::GradientSink;

use super::layout::{LearningRole, OffloadLayout};
use crate::Error;

/// Values that are read at once.
const PIECE: usize = 1 << 20;

/// Sums of gradients in f32, of tensor after tensor.
#[derive(Debug)]
pub(super) struct GradientFile {
    path: PathBuf,
    file: Mutex<File>,
    places: HashMap<String, Place>,
    /// How many gradients there are, and how many values with what statistics become.
    values: u64,
    all: u64,
}

/// Where a tensor's gradient is.
#[derive(Debug)]
struct Place {
    /// Its first value, among all.
    first: u64,
    values: u64,
    /// Where the tensor begins in its file, and the bytes of one of its values.
    offset: u64,
    size: u64,
}

impl GradientFile {
    /// The file at `path` for the tensors of `weights`; what is in it stays.
    pub fn open(path: PathBuf, layout: &OffloadLayout, weights: &Checkpoint) -> io::Result<Self> {
        let options = &mut File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path)?;
        let places = layout.of_role(LearningRole::Learns).filter_map(|tensor| {
            let info = weights.get(&tensor.info.name)?;
            let place = Place {
                first: tensor.gradient,
                values: tensor.values(),
                offset: info.offset,
                size: info.dtype.size() as u64,
            };
            Some((info.name.clone(), place))
        });
        let places = places.collect();
        Ok(Self {
            path,
            file: Mutex::new(file),
            places,
            values: layout.values(),
            all: layout.changing(),
        })
    }

    fn file(&self) -> MutexGuard<'_, File> {
        // What a thread that panicked left is a file all the same.
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes all gradients zero. What nobody adds to takes no room on the disk.
    pub fn clear(&self) -> io::Result<()> {
        let file = self.file();
        file.set_len(0)?;
        file.set_len(self.all * 4)
    }

    /// Whether it has as many gradients as there are.
    pub fn is_whole(&self) -> io::Result<bool> {
        Ok(self.file().metadata()?.len() == self.all * 4)
    }

    /// Waits until all of it is on the disk.
    pub fn sync(&self) -> io::Result<()> {
        self.file().sync_data()
    }

    /// Fills `out` with gradients from one on.
    pub fn read(&self, first: u64, out: &mut [f32]) -> io::Result<()> {
        read_values(&mut self.file(), first, out)
    }

    /// Writes what values become from one on.
    pub fn write(&self, first: u64, values: &[f32]) -> io::Result<()> {
        let mut file = self.file();
        file.seek(SeekFrom::Start(first * 4))?;
        file.write_all(bytemuck::cast_slice(values))
    }

    /// The sum of the squares of all gradients.
    pub fn squared_norm(&self) -> io::Result<f64> {
        let mut values = vec![0.0; PIECE.min(self.values as usize)];
        let mut sum = 0.0;
        for first in (0..self.values).step_by(PIECE) {
            values.truncate((self.values - first) as usize);
            self.read(first, &mut values)?;
            sum += values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
        }
        Ok(sum)
    }

    /// An error with the file's name.
    pub fn failed(&self, source: io::Error) -> Error {
        failed(&self.path, source)
    }
}

/// An error of a file of states.
pub(super) fn failed(path: &Path, source: io::Error) -> Error {
    Error::OffloadedFile { path: path.to_owned(), source }
}

impl GradientSink for GradientFile {
    fn add(&self, tensor: &TensorInfo, start: u64, gradient: &[f32]) -> io::Result<()> {
        // What does not learn needs no gradient.
        let Some(place) = self.places.get(&tensor.name) else { return Ok(()) };
        let first = tensor.offset.saturating_sub(place.offset) / place.size + start;
        if first.saturating_add(gradient.len() as u64) > place.values {
            return Err(io::Error::other("it has more values than its tensor"));
        }
        let mut file = self.file();
        let mut values = vec![0.0; PIECE.min(gradient.len())];
        for (piece, gradient) in gradient.chunks(PIECE).enumerate() {
            let first = place.first + first + (piece * PIECE) as u64;
            let values = &mut values[..gradient.len()];
            read_values(&mut file, first, values)?;
            values.iter_mut().zip(gradient).for_each(|(sum, more)| *sum += more);
            file.seek(SeekFrom::Start(first * 4))?;
            file.write_all(bytemuck::cast_slice(values))?;
        }
        Ok(())
    }
}

fn read_values(file: &mut File, first: u64, out: &mut [f32]) -> io::Result<()> {
    file.seek(SeekFrom::Start(first * 4))?;
    file.read_exact(bytemuck::cast_slice_mut(out))
}
