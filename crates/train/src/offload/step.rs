//! A step of AdamW, from files to files: some values of a tensor are in memory at a time.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use half::{bf16, f16};
use outsize_checkpoint::{Checkpoint, Dtype, TensorInfo};

use super::adamw::{AdamWStep, Values};
use super::gradient_file::{GradientFile, failed};
use super::layout::{
    FIRST_MOMENT, LearningRole, LearningTensor, OffloadLayout, SECOND_MOMENT, step_name,
};
use crate::Error;

/// Values of a tensor that are in memory at once.
const PIECE: u64 = 1 << 18;

/// What a step takes in memory, in bytes: of each value the weight, two moments, the gradient, and
/// the weight as passes read it.
pub const OFFLOADED_STEP_BYTES: u64 = PIECE * 20;

/// The file in which a group's next state is written.
const NEXT: &str = ".next";

/// Writes the next state of a group in place of its last one.
pub(super) struct GroupStep<'a> {
    /// The group's file alone: once it is replaced, nobody holds its bytes on the disk.
    pub weights: &'a Checkpoint,
    pub layout: &'a OffloadLayout,
    pub gradients: &'a GradientFile,
    pub adamw: AdamWStep,
    /// How many steps it will have made.
    pub step: u64,
}

impl GroupStep<'_> {
    /// Makes the step of a group, unless it was made before: then nothing is changed.
    pub fn make(&self, group: usize) -> Result<(), Error> {
        let marker = info(self.weights, &step_name(group))?;
        if steps(self.weights, marker)? == self.step {
            return Ok(());
        }
        let path = self.weights.files()[marker.file].path();
        let next = path.with_file_name(NEXT);
        let write = || {
            let mut out = File::create(&next)?;
            // The header, which stays as it is.
            let offsets = self.weights.tensors().iter().map(|tensor| tensor.offset);
            let head = offsets.min().unwrap_or(0);
            io::copy(&mut io::Read::take(File::open(path)?, head), &mut out)?;
            Ok(out)
        };
        let mut out =
            NextFile { file: write().map_err(|cause| failed(&next, cause))?, path: &next };
        for tensor in &self.layout.tensors[self.layout.groups[group].clone()] {
            match tensor.role {
                LearningRole::Learns => self.change(tensor, &mut out)?,
                LearningRole::Statistic => self.replace(tensor, &mut out)?,
                LearningRole::Fixed => self.copy(tensor, &mut out)?,
            }
        }
        out.write(marker.offset, &self.step.to_le_bytes())?;
        out.file.sync_all().map_err(|cause| failed(&next, cause))?;
        drop(out);
        fs::rename(&next, path).map_err(|cause| failed(path, cause))
    }

    fn change(&self, tensor: &LearningTensor, out: &mut NextFile<'_>) -> Result<(), Error> {
        let (name, master) = (&tensor.info.name, tensor.master());
        let names = [master.clone(), tensor.named(FIRST_MOMENT), tensor.named(SECOND_MOMENT)];
        let [weight, first, second] = names.map(|name| info(self.weights, &name));
        let stored = [weight?, first?, second?];
        let narrow = match master == *name {
            true => None,
            false => Some(info(self.weights, name)?),
        };
        for start in (0..tensor.values()).step_by(PIECE as usize) {
            let count = PIECE.min(tensor.values() - start) as usize;
            let mut gradients = vec![0.0; count];
            let read = self.gradients.read(tensor.gradient + start, &mut gradients);
            read.map_err(|cause| self.gradients.failed(cause))?;
            let mut pieces = [const { Vec::new() }; 3];
            for (piece, info) in pieces.iter_mut().zip(stored) {
                *piece = vec![0.0f32; count];
                let bytes = bytemuck::cast_slice_mut(piece);
                self.weights.read_at(info, start * 4, bytes).map_err(outsize_core::Error::from)?;
            }
            let [weights, first_moments, second_moments] = &mut pieces;
            let gradients = &gradients;
            self.adamw.apply(Values { weights, first_moments, second_moments, gradients });
            for (piece, info) in pieces.iter().zip(stored) {
                out.write(info.offset + start * 4, bytemuck::cast_slice(piece))?;
            }
            if let Some(info) = narrow {
                let bytes = narrowed(&pieces[0], info.dtype);
                out.write(info.offset + start * 2, &bytes)?;
            }
        }
        Ok(())
    }

    /// Writes what a statistic has become.
    fn replace(&self, tensor: &LearningTensor, out: &mut NextFile<'_>) -> Result<(), Error> {
        let info = info(self.weights, &tensor.info.name)?;
        for start in (0..tensor.values()).step_by(PIECE as usize) {
            let mut values = vec![0.0; PIECE.min(tensor.values() - start) as usize];
            let read = self.gradients.read(tensor.gradient + start, &mut values);
            read.map_err(|cause| self.gradients.failed(cause))?;
            let offset = info.offset + start * info.dtype.size() as u64;
            match info.dtype {
                Dtype::F32 => out.write(offset, bytemuck::cast_slice(&values))?,
                narrow => out.write(offset, &narrowed(&values, narrow))?,
            }
        }
        Ok(())
    }

    fn copy(&self, tensor: &LearningTensor, out: &mut NextFile<'_>) -> Result<(), Error> {
        let info = info(self.weights, &tensor.info.name)?;
        for start in (0..info.len).step_by(PIECE as usize) {
            let mut bytes = vec![0; PIECE.min(info.len - start) as usize];
            self.weights.read_at(info, start, &mut bytes).map_err(outsize_core::Error::from)?;
            out.write(info.offset + start, &bytes)?;
        }
        Ok(())
    }
}

/// A file that will take a group's place.
struct NextFile<'a> {
    file: File,
    path: &'a Path,
}

impl NextFile<'_> {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let moved = self.file.seek(SeekFrom::Start(offset));
        let written = moved.and_then(|_| self.file.write_all(bytes));
        written.map_err(|cause| failed(self.path, cause))
    }
}

/// A tensor that the layout says.
pub(super) fn info<'c>(weights: &'c Checkpoint, name: &str) -> Result<&'c TensorInfo, Error> {
    weights.get(name).ok_or_else(|| Error::OffloadedStates {
        folder: weights.folder().to_owned(),
        reason: format!("it has no tensor {name:?}"),
    })
}

/// The number of steps that a group has made.
pub(super) fn steps(weights: &Checkpoint, marker: &TensorInfo) -> Result<u64, Error> {
    let mut bytes = [0; 8];
    weights.read_at(marker, 0, &mut bytes).map_err(outsize_core::Error::from)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Values in a narrower type, rounded to the nearest, ties to even.
pub(super) fn narrowed(values: &[f32], dtype: Dtype) -> Vec<u8> {
    let narrow = |value: &f32| match dtype {
        Dtype::F16 => f16::from_f32(*value).to_le_bytes(),
        _ => bf16::from_f32(*value).to_le_bytes(),
    };
    values.iter().flat_map(narrow).collect()
}
