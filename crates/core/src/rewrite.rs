//! A weight of a checkpoint written to another, in another type or order.

mod added;
mod order;
mod packed;
mod quantized;

use self::added::matrix_rows;
use self::order::{grouped, halves, in_turns};
use self::quantized::Quantized;
use crate::convert::{NoConversion, burn_type, dequantize, float};
use crate::integers;
use crate::loaded_scales::{LoadedScales, Scales};
use crate::{Error, LowRank};
use outsize_checkpoint::{
    Checkpoint, Dtype, PackedBf16, ShardWriter, StoredWeight, TensorInfo, TensorSpec,
};
use outsize_kernels::BlockWeight;
use outsize_stream::Convert;
use std::ops::Range;

/// Bytes that are read at a time, about.
const PIECE: u64 = 4 << 20;

/// What rows of floats become: the bytes of integers, and of their scales.
pub type RoundRows<'a> = dyn Fn(&[f32]) -> [Vec<u8>; 2] + 'a;

/// What a weight's values become on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Within each head of so many rows, those that are rotated together come from places beside
    /// each other, and go to the two halves.
    Halves(usize),
    /// One is taken away, of floats.
    MinusOne,
    /// Floats below zero become the logarithms of what they are without their sign.
    LogOfNegated,
    /// Within each row, columns of so many heads, which have so many groups in turns, go to their
    /// groups.
    Groups {
        /// Heads.
        heads: usize,
        /// Groups; divides the heads.
        groups: usize,
    },
}

/// A weight of a checkpoint on its way to another.
#[derive(Debug, Clone)]
pub struct Rewrite {
    source: Source,
    dtype: Dtype,
    /// What is added to it, from which row of all of its matrices on.
    added: Vec<(usize, LowRank)>,
    /// How its values are packed, if they are.
    packed: Option<PackedBf16>,
    /// Which integers its values become, if they do.
    quantized: Option<Quantized>,
}

#[derive(Debug, Clone)]
enum Source {
    Weight(Box<StoredWeight>, Option<Change>),
    /// Rows of weights below one another, with the shape of all.
    Rows(String, Vec<usize>, Vec<(StoredWeight, Option<Change>)>),
    /// Of each module the weights whose columns it takes, in turns or not.
    Stack(String, bool, Vec<Vec<StoredWeight>>),
    /// Of each module a weight that is turned, and one below it.
    Turned(String, Vec<Vec<StoredWeight>>),
}

impl Rewrite {
    /// A weight that keeps its type and values.
    pub fn kept(weight: StoredWeight) -> Self {
        let dtype = weight.data().dtype;
        Self::of(Source::Weight(weight.into(), None), dtype)
    }

    /// A weight that becomes floats of `dtype`, dequantised if it is in blocks.
    ///
    /// # Errors
    /// If it is stored as something that cannot become that, or has not as many rows as `change`
    /// needs.
    pub fn new(weight: StoredWeight, dtype: Dtype, change: Option<Change>) -> Result<Self, Error> {
        let rows = weight.rows();
        if let Some(Change::Halves(head)) = change
            && (head == 0 || !head.is_multiple_of(2) || !rows.is_multiple_of(head))
        {
            let reason = format!("its {rows} rows are no whole heads of {head}");
            return Err(Error::Rewrite { tensor: weight.data().name.clone(), reason });
        }
        if let Some(Change::Groups { heads, groups }) = change {
            let columns = weight.data().shape.get(1).copied().unwrap_or(0);
            let divides = |part: usize, all: usize| part > 0 && all.is_multiple_of(part);
            if !divides(heads, columns) || !divides(groups, heads) {
                let reason = format!("its {columns} columns are not those of {heads} heads");
                return Err(Error::Rewrite { tensor: weight.data().name.clone(), reason });
            }
        }
        let rewrite = Self::of(Source::Weight(weight.into(), change), dtype);
        rewrite.check()?;
        Ok(rewrite)
    }

    /// Rows of weights that become the tensor `name` of floats of `dtype`, below one another;
    /// elements may change one by one.
    ///
    /// # Errors
    /// If there are none, if they are not equally wide, or if they are stored as something that
    /// cannot become that.
    pub fn rows(
        name: String,
        parts: Vec<(StoredWeight, Option<Change>)>,
        dtype: Dtype,
    ) -> Result<Self, Error> {
        let width = |weight: &StoredWeight| weight.data().shape.get(1..).map(<[usize]>::to_vec);
        let first = parts.first().and_then(|(weight, _)| width(weight));
        let Some(rest) = first
            .filter(|first| parts.iter().all(|(weight, _)| width(weight).as_ref() == Some(first)))
        else {
            let reason = "its parts do not fit each other".to_string();
            return Err(Error::Rewrite { tensor: name, reason });
        };
        let rows: usize = parts.iter().map(|(weight, _)| weight.rows()).sum();
        let shape = std::iter::once(rows).chain(rest).collect();
        let rewrite = Self::of(Source::Rows(name, shape, parts), dtype);
        rewrite.check()?;
        Ok(rewrite)
    }

    /// The same as a stack of so many matrices `[rows, columns]`.
    ///
    /// # Errors
    /// If its rows are not as many in each.
    pub fn in_stack(mut self, count: usize) -> Result<Self, Error> {
        if let Source::Rows(name, shape, _) = &mut self.source {
            let rows = shape.first().copied().unwrap_or(0);
            if count == 0 || !rows.is_multiple_of(count) {
                let reason = format!("its {rows} rows are not those of {count} matrices");
                return Err(Error::Rewrite { tensor: name.clone(), reason });
            }
            shape.splice(..1, [count, rows / count]);
        }
        Ok(self)
    }

    /// A stack of modules that becomes the tensor `name` of floats of `dtype`: of each the weights
    /// `[out, in]`, all of one shape, become `[in, weights · out]`, with the outputs of the weights
    /// in turns or behind one another. Of biases `[out]` there is no `in`.
    ///
    /// # Errors
    /// If there are none, if their shapes differ, or if they are stored as something that cannot
    /// become that.
    pub fn stacked(
        name: String,
        modules: Vec<Vec<StoredWeight>>,
        in_turns: bool,
        dtype: Dtype,
    ) -> Result<Self, Error> {
        let first = modules.first().and_then(|weights| Some((weights.len(), weights.first()?)));
        let alike = first.is_some_and(|(count, first)| {
            let (shape, mut all) = (&first.data().shape, modules.iter().flatten());
            let is_full = modules.iter().all(|weights| weights.len() == count);
            is_full && shape.len() <= 2 && all.all(|weight| weight.data().shape == *shape)
        });
        if !alike {
            let reason = "its parts are not all there, or are not of one shape".to_string();
            return Err(Error::Rewrite { tensor: name, reason });
        }
        let rewrite = Self::of(Source::Stack(name, in_turns, modules), dtype);
        rewrite.check()?;
        Ok(rewrite)
    }

    /// Modules below one another that become the tensor `name` of floats of `dtype`: of each a
    /// weight `[in, out]`, which becomes `[out, in]`, and below it one `[more, in]`.
    ///
    /// # Errors
    /// If there are none, if their shapes do not fit each other, or if they are stored as something
    /// that cannot become that.
    pub fn turned(
        name: String,
        modules: Vec<[StoredWeight; 2]>,
        dtype: Dtype,
    ) -> Result<Self, Error> {
        let shapes = |[one, other]: &[StoredWeight; 2]| match (
            &one.data().shape[..],
            &other.data().shape[..],
        ) {
            (&[inputs, outputs], &[more, columns]) if inputs == columns => {
                Some([inputs, outputs, more])
            }
            _ => None,
        };
        let first = modules.first().and_then(shapes);
        if first.is_none() || modules.iter().any(|module| shapes(module) != first) {
            let reason = "its parts do not fit each other".to_string();
            return Err(Error::Rewrite { tensor: name, reason });
        }
        let modules = modules.into_iter().map(Vec::from).collect();
        let rewrite = Self::of(Source::Turned(name, modules), dtype);
        rewrite.check()?;
        Ok(rewrite)
    }

    fn of(source: Source, dtype: Dtype) -> Self {
        Self { source, dtype, added: Vec::new(), packed: None, quantized: None }
    }

    /// Refuses what cannot become its type.
    fn check(&self) -> Result<(), Error> {
        for (weight, change) in self.weights() {
            if self.converts(weight, change, &Scales::default()).is_err() {
                let data = weight.data();
                let reason =
                    format!("{} cannot become {}; leave the type as it is", data.dtype, self.dtype);
                return Err(Error::Rewrite { tensor: data.name.clone(), reason });
            }
        }
        Ok(())
    }

    fn weights(&self) -> impl Iterator<Item = (&StoredWeight, Option<Change>)> {
        let (one, rows, modules) = match &self.source {
            Source::Weight(weight, change) => (Some((&**weight, *change)), &[][..], &[][..]),
            Source::Rows(.., parts) => (None, &parts[..], &[][..]),
            Source::Stack(.., modules) | Source::Turned(_, modules) => {
                (None, &[][..], &modules[..])
            }
        };
        (one.into_iter())
            .chain(rows.iter().map(|(weight, change)| (weight, *change)))
            .chain(modules.iter().flatten().map(|weight| (weight, None)))
    }

    /// How the tensors that it is written as are declared to a [`ShardWriter`], in the order in
    /// which they come.
    pub fn specs(&self) -> Vec<TensorSpec> {
        let spec = self.spec();
        let kept = match self.dtype {
            Dtype::PackedBf16(packed) => Some(packed),
            _ => self.packed,
        };
        match (kept, &self.quantized, &spec.shape[..]) {
            (Some(packed), _, &[rows, columns]) => {
                let (name, shape) = packed.stored(&spec.name, [rows, columns]);
                vec![TensorSpec::new(name, Dtype::U8, shape)]
            }
            (_, Some(quantized), &[rows, columns]) => quantized.specs(&spec.name, [rows, columns]),
            _ => vec![spec],
        }
    }

    /// The weight: its name, its shape, and the type that its values have before they are packed or
    /// quantised.
    pub fn spec(&self) -> TensorSpec {
        match &self.source {
            Source::Weight(weight, _) => {
                let data = weight.data();
                let name = match self.dtype == data.dtype {
                    true => data.name.clone(),
                    false => weight.format().weight_name(&data.name),
                };
                TensorSpec::new(name, self.dtype, data.shape.clone())
            }
            Source::Rows(name, shape, _) => TensorSpec::new(name, self.dtype, shape.clone()),
            Source::Stack(name, _, modules) => {
                let (count, shape) = (modules[0].len(), &modules[0][0].data().shape);
                let columns = shape.get(1).copied();
                let outputs = count * shape.first().copied().unwrap_or(1);
                let shape = std::iter::once(modules.len()).chain(columns).chain([outputs]);
                TensorSpec::new(name, self.dtype, shape.collect::<Vec<_>>())
            }
            Source::Turned(name, modules) => {
                let [one, other] = [0, 1].map(|at| &modules[0][at].data().shape);
                let rows = modules.len() * (one[1] + other[0]);
                TensorSpec::new(name, self.dtype, vec![rows, one[0]])
            }
        }
    }

    /// The type of its elements in the new checkpoint.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Writes the weight, a few megabytes at a time, of which two copies are in memory; of one
    /// whose rows change places, at least a head, and of a stack a module. `go_on` is asked before
    /// each is written.
    ///
    /// # Errors
    /// If reading or writing fails; [`Error::Stopped`] if `go_on` said no.
    pub fn write(
        &self,
        checkpoint: &Checkpoint,
        writer: &mut ShardWriter,
        go_on: impl FnMut(&ShardWriter) -> bool,
    ) -> Result<(), Error> {
        let round = self.quantized.as_ref().map(Quantized::rounding);
        self.write_with(checkpoint, writer, go_on, round.as_deref())
    }

    /// The same of one that [becomes integers](Self::quantize), which `round` chooses.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_rounded(
        &self,
        checkpoint: &Checkpoint,
        writer: &mut ShardWriter,
        go_on: impl FnMut(&ShardWriter) -> bool,
        round: &RoundRows<'_>,
    ) -> Result<(), Error> {
        self.write_with(checkpoint, writer, go_on, Some(round))
    }

    fn write_with(
        &self,
        checkpoint: &Checkpoint,
        writer: &mut ShardWriter,
        mut go_on: impl FnMut(&ShardWriter) -> bool,
        round: Option<&RoundRows<'_>>,
    ) -> Result<(), Error> {
        let whole = |weight: &StoredWeight| {
            let converts = self.read_scales(weight, None, checkpoint)?;
            if weight.format().as_integers().is_some() {
                let blocks = integers::load(checkpoint, weight)?;
                return Ok(through(floats(&blocks, 0..weight.rows()), 0, &converts));
            }
            converted(checkpoint, weight.data().clone(), &converts)
        };
        let specs = self.specs();
        let (name, mut scales) = (&specs[0].name, Vec::new());
        let mut take = |bytes: Vec<u8>| {
            if !go_on(writer) {
                return Err(Error::Stopped);
            }
            let bytes = match round.filter(|_| self.quantized.is_some()) {
                Some(round) => {
                    let [data, more] = self.rounded(bytes, round)?;
                    scales.extend(more);
                    data
                }
                None => self.with_packed(bytes),
            };
            Ok(writer.write(name, &bytes)?)
        };
        let written = match &self.source {
            Source::Weight(weight, change) => {
                self.for_each_piece(weight, *change, checkpoint, &mut take)
            }
            Source::Rows(.., parts) => parts.iter().try_for_each(|(weight, change)| {
                self.for_each_piece(weight, *change, checkpoint, &mut take)
            }),
            Source::Stack(name, _, modules) | Source::Turned(name, modules) => {
                for weights in modules {
                    if !go_on(writer) {
                        return Err(Error::Stopped);
                    }
                    let parts = weights.iter().map(whole).collect::<Result<Vec<_>, Error>>()?;
                    // As the rows of one.
                    let parts = match self.source {
                        Source::Stack(_, false, _) => vec![parts.concat()],
                        _ => parts,
                    };
                    let (turned, below) = match self.source {
                        Source::Turned(..) => parts.split_at(1),
                        _ => parts.split_at(parts.len()),
                    };
                    let rows = match self.source {
                        Source::Turned(..) => weights[0].rows(),
                        _ => weights.iter().map(StoredWeight::rows).sum::<usize>() / parts.len(),
                    };
                    writer.write(name, &in_turns(turned, rows, self.dtype.size()))?;
                    for part in below {
                        writer.write(name, part)?;
                    }
                }
                Ok(())
            }
        };
        written?;
        if let [_, of_scales, more @ ..] = &specs[..] {
            writer.write(&of_scales.name, &scales)?;
            if let [of_shape, ..] = more {
                let shape = self.spec().shape;
                let shape = shape.iter().flat_map(|size| (*size as i64).to_le_bytes());
                writer.write(&of_shape.name, &shape.collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }

    /// Gives a weight's bytes in the new type to `take`, some rows or blocks at a time.
    fn for_each_piece(
        &self,
        weight: &StoredWeight,
        change: Option<Change>,
        checkpoint: &Checkpoint,
        take: &mut impl FnMut(Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let data = weight.data();
        let converts = self.read_scales(weight, change, checkpoint)?;
        if weight.format().as_integers().is_some() {
            let blocks = integers::load(checkpoint, weight)?;
            let row = data.shape.last().map_or(1, |columns| columns * size_of::<f32>()).max(1);
            let (rows, head) =
                (weight.rows(), if let Some(Change::Halves(head)) = change { head } else { 1 });
            let piece = (PIECE as usize / row).max(1).next_multiple_of(head);
            for start in (0..rows).step_by(piece) {
                let some = start..rows.min(start + piece);
                let count = some.len();
                let bytes = through(floats(&blocks, some), 0, &converts);
                take(changed(self.with_added(start, bytes), count, change))?;
            }
            return Ok(());
        }
        let unit = match change {
            Some(Change::Halves(head)) => weight.row_bytes() * head as u64,
            Some(Change::Groups { .. }) => weight.row_bytes(),
            _ if self.is_written_by_rows() => weight.row_bytes(),
            _ => weight.format().encoding.block().bytes as u64,
        };
        let piece = (PIECE / unit.max(1)).max(1) * unit.max(1);
        for start in (0..data.len).step_by(piece as usize) {
            let mut part = data.clone();
            part.offset += start;
            part.len = piece.min(data.len - start);
            let rows = part.len / weight.row_bytes().max(1);
            let bytes = converted(checkpoint, part, &converts)?;
            let start = (start / weight.row_bytes().max(1)) as usize;
            let bytes = self.with_added(start * matrix_rows(&data.shape), bytes);
            take(changed(bytes, rows as usize, change))?;
        }
        Ok(())
    }

    fn is_written_by_rows(&self) -> bool {
        !self.added.is_empty() || self.quantized.is_some() || self.scan().is_some()
    }

    /// What the bytes of a weight go through one after the other.
    fn read_scales(
        &self,
        weight: &StoredWeight,
        change: Option<Change>,
        checkpoint: &Checkpoint,
    ) -> Result<Vec<Convert>, Error> {
        let scales = Scales::default();
        if weight.format().as_integers().is_none()
            && let Some(stored) = weight.scales()
        {
            // Nobody else has set them.
            let loaded =
                LoadedScales { scales: checkpoint.read(stored)?, ..LoadedScales::default() };
            let _ = scales.set(loaded);
        }
        Ok(self.converts(weight, change, &scales).unwrap_or_default())
    }

    /// The same with scales that may come yet.
    fn converts(
        &self,
        weight: &StoredWeight,
        change: Option<Change>,
        scales: &Scales,
    ) -> Result<Vec<Convert>, NoConversion> {
        let (to, stored) = (self.converted_type(), weight.data().dtype);
        let is_integers = weight.format().as_integers().is_some();
        // Burn has no floats of 8 bits: those that stay such go through none.
        let is_same = self.dtype == stored && self.added.is_empty() && change.is_none();
        if is_same && weight.format().is_plain() {
            return Ok(Vec::new());
        }
        let via = |to| match weight.format().is_plain() {
            true => float(stored, to),
            // What is loaded is f32.
            false if is_integers => float(Dtype::F32, to),
            false => dequantize(weight, to, scales).map(Some),
        };
        let wide = burn_type(Dtype::F32);
        let each = match change {
            Some(Change::MinusOne) => Some(of_each(|x| x - 1.0)),
            Some(Change::LogOfNegated) => Some(of_each(|x| (-x).ln())),
            _ => None,
        };
        let converts = match each {
            Some(each) => [via(wide)?, Some(each), float(Dtype::F32, to)?],
            None => [via(to)?, None, None],
        };
        Ok(converts.into_iter().flatten().collect())
    }
}

/// The bytes of a part of a weight, after all conversions.
fn converted(
    checkpoint: &Checkpoint,
    part: TensorInfo,
    converts: &[Convert],
) -> Result<Vec<u8>, Error> {
    Ok(through(checkpoint.read(&part)?, part.offset, converts))
}

/// What becomes of bytes that begin at `offset` of their file.
fn through(mut bytes: Vec<u8>, offset: u64, converts: &[Convert]) -> Vec<u8> {
    for convert in converts {
        let mut to = vec![0; bytes.len() / convert.from * convert.to];
        convert.run(offset, &bytes, &mut to);
        bytes = to;
    }
    bytes
}

/// The bytes of the f32 that some rows are worth.
fn floats(weight: &BlockWeight<Vec<u8>>, rows: Range<usize>) -> Vec<u8> {
    let mut values = vec![0.0; rows.len() * weight.shape()[1]];
    weight.dequantize(rows, &mut values);
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Rows after the change that concerns where their values are.
fn changed(bytes: Vec<u8>, rows: usize, change: Option<Change>) -> Vec<u8> {
    match change {
        Some(Change::Halves(head)) => halves(&bytes, rows, head),
        Some(Change::Groups { heads, groups }) => grouped(&bytes, rows, heads, groups),
        _ => bytes,
    }
}

fn of_each(function: fn(f32) -> f32) -> Convert {
    Convert::new(4, 4, move |_, from, to| {
        for (to, from) in to.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
            *to = function(f32::from_le_bytes(*from)).to_le_bytes();
        }
    })
}
