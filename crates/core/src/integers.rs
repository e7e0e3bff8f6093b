//! Weights of integers: how they get from the tensors of a checkpoint to where they lie in memory,
//! which is [row after row](outsize_checkpoint::Integers::in_memory).

mod place;

use half::{bf16, f16};
use outsize_checkpoint::{Checkpoint, Dtype, Integers, StoredWeight, TensorInfo, ZeroPoints};
use outsize_kernels::{BlockWeight, integer_value};
use outsize_stream::Convert;

use self::place::{Lines, numbers, place};
use crate::Error;
use crate::loaded_scales::{LoadedScales, Scales};

/// Which of a weight's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Data,
    Scales,
    Zeros,
}

/// The tensors of a weight, each with what it is.
pub(crate) fn parts(weight: &StoredWeight) -> impl Iterator<Item = (&TensorInfo, Part)> {
    weight.tensors().zip([Part::Data, Part::Scales, Part::Zeros])
}

/// The conversion of one of a weight's tensors to its place in memory; none of what is read
/// straight there.
pub(crate) fn convert(weight: &StoredWeight, tensor: &TensorInfo, part: Part) -> Option<Convert> {
    let integers = weight.format().as_integers()?;
    let is_packed = part == Part::Zeros && tensor.dtype == Dtype::I32;
    if !integers.is_turned() && !is_packed {
        return None;
    }
    let (lines, first) = (Lines::of(weight)?, tensor.offset);
    let len = weight.bytes_in_memory()[part as usize];
    Some(Convert::scattered(tensor.dtype.size(), len, move |offset, raw, to| {
        place(&lines, part, (offset - first) as usize, raw, to);
    }))
}

/// One of a weight's tensors, as it lies in memory.
fn load_part(
    checkpoint: &Checkpoint,
    weight: &StoredWeight,
    wanted: Part,
) -> Result<Vec<u8>, Error> {
    let Some((tensor, part)) = parts(weight).find(|(_, part)| *part == wanted) else {
        return Ok(Vec::new());
    };
    let raw = checkpoint.read(tensor)?;
    let Some(convert) = convert(weight, tensor, part) else {
        return Ok(raw);
    };
    let mut to = vec![0; weight.bytes_in_memory()[part as usize] as usize];
    convert.run(tensor.offset, &raw, &mut to);
    Ok(to)
}

/// Scales and zero points, as they lie in memory.
pub(crate) fn load_scales(
    checkpoint: &Checkpoint,
    weight: &StoredWeight,
) -> Result<LoadedScales, Error> {
    let part = |part| load_part(checkpoint, weight, part);
    Ok(LoadedScales { scales: part(Part::Scales)?, zeros: part(Part::Zeros)? })
}

/// All of a weight.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    weight: &StoredWeight,
) -> Result<BlockWeight<Vec<u8>>, Error> {
    check_order(checkpoint, weight)?;
    let data = load_part(checkpoint, weight, Part::Data)?;
    let LoadedScales { scales, zeros } = load_scales(checkpoint, weight)?;
    block_weight(&weight.data().name, weight, data, scales, zeros)
}

/// Rows in blocks, of whatever format, over what they are in memory.
pub(crate) fn block_weight<B: AsRef<[u8]> + Default>(
    name: &str,
    rows: &StoredWeight,
    data: B,
    scales: B,
    zeros: B,
) -> Result<BlockWeight<B>, Error> {
    let columns = rows.data().shape.last().copied().unwrap_or(0);
    let (format, skipped) = (rows.format().in_memory(), rows.skipped_rows());
    let blocks = BlockWeight::new(format, [rows.rows(), columns], data, scales, skipped);
    let blocks = match has_zeros(rows) {
        true => blocks.and_then(|blocks| blocks.with_zeros(zeros)),
        false => blocks,
    };
    blocks.ok_or_else(|| Error::Value {
        name: name.to_string(),
        reason: "its storage format is not built in".to_string(),
    })
}

fn has_zeros(weight: &StoredWeight) -> bool {
    let integers = weight.format().as_integers();
    integers.is_some_and(|integers| integers.zeros != ZeroPoints::Middle)
}

/// Refuses columns whose groups are not those of their neighbours.
pub(crate) fn check_order(checkpoint: &Checkpoint, weight: &StoredWeight) -> Result<(), Error> {
    let (Some(order), Some(grid)) = (weight.order(), weight.format().scales) else {
        return Ok(());
    };
    let raw = checkpoint.read(order)?;
    let groups = raw.as_chunks().0.iter().map(|group| i32::from_le_bytes(*group));
    let wanted = (0..).map(|column: usize| column / grid.block[1].max(1));
    let mut wrong =
        groups.zip(wanted).filter(|(group, wanted)| i64::from(*group) != *wanted as i64);
    if wrong.next().is_none() {
        return Ok(());
    }
    Err(Error::Value {
        name: order.name.clone(),
        reason: "its groups are not of neighbouring columns (`desc_act`, `actorder`: \"group\"), which is not built in: take a \
                 version of the model that was quantised without that, or a GGUF file of it"
            .to_string(),
    })
}

/// The conversion of a weight to floats of a type that `narrow` makes of f32, which needs its
/// scales.
pub(crate) fn dequantize(
    weight: &StoredWeight,
    size: usize,
    narrow: Option<Convert>,
    scales: &Scales,
) -> Option<Convert> {
    let (integers, lines) = (weight.format().as_integers()?, Lines::of(weight)?);
    let dtype = weight.format().scales?.dtype;
    let (tensor, scales) = (weight.data().clone(), scales.clone());
    let len = (lines.rows as u64).saturating_mul(lines.columns as u64).saturating_mul(size as u64);
    Some(Convert::scattered(integers.width.stored().size(), len, move |offset, raw, held| {
        // They are read before anything else.
        let Some(LoadedScales { scales, zeros }) = scales.get() else { return };
        let at = (offset - tensor.offset) as usize;
        numbers(&lines, at, raw, |row, column, number| {
            let group = row * lines.groups + column / lines.group_columns;
            let value = worth(integers, dtype, (scales, zeros), group, number);
            let to = &mut held[(row * lines.columns + column) * size..][..size];
            match &narrow {
                None => to.copy_from_slice(&value.to_le_bytes()),
                Some(narrow) => narrow.run(0, &value.to_le_bytes(), to),
            }
        });
    }))
}

fn worth(
    integers: Integers,
    dtype: Dtype,
    (scales, zeros): (&[u8], &[u8]),
    group: usize,
    number: u8,
) -> f32 {
    let two = |at: usize| [scales[2 * at], scales[2 * at + 1]];
    let scale = match dtype {
        Dtype::F16 => f16::from_le_bytes(two(group)).to_f32(),
        Dtype::BF16 => bf16::from_le_bytes(two(group)).to_f32(),
        _ => f32::from_le_bytes(scales[4 * group..].as_chunks().0[0]),
    };
    let zero = if zeros.is_empty() { integers.width.middle() } else { zeros[group] };
    integer_value(integers.width, dtype, number, zero, scale)
}
