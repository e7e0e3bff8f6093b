//! A weight of a checkpoint: the tensors that it is made of.

use std::ops::Range;

use crate::checkpoint::TensorInfo;
use crate::dtype::Dtype;
use crate::format::StorageFormat;
use crate::format_fault::FormatFault;
use crate::integers::Integers;

/// A weight, or some of its rows: where its data and scales lie, checked against each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWeight {
    format: StorageFormat,
    data: TensorInfo,
    scales: Option<TensorInfo>,
    zeros: Option<TensorInfo>,
    /// Which group each column belongs to, if the checkpoint says it.
    order: Option<TensorInfo>,
    /// Rows between the beginning of the first row of scales and the first row of the data.
    skipped_rows: usize,
    /// The number of the first row among those of the tensors.
    first_row: usize,
}

impl StoredWeight {
    /// A weight without scales.
    pub fn plain(data: TensorInfo) -> Self {
        Self {
            format: StorageFormat::plain(data.dtype),
            data,
            scales: None,
            zeros: None,
            order: None,
            skipped_rows: 0,
            first_row: 0,
        }
    }

    /// The weight that a tensor is the data of: as blocks if its type is one of those, in `format`
    /// if its elements are of that type, and plain otherwise. `find` gives the tensors that go with
    /// it, by their names. Words may hold a few more columns than there are: the weight has so many
    /// `columns`, if it may have them.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_data(
        data: &TensorInfo,
        format: Option<StorageFormat>,
        columns: Option<usize>,
        mut find: impl FnMut(&str) -> Option<TensorInfo>,
    ) -> Result<Self, FormatFault> {
        let format = format.map(|format| format.of_tensor(data.dtype));
        let numbers = format.and_then(|format| format.numbers_of(data, columns));
        let (data, is_of_bytes) = (numbers.as_ref().unwrap_or(data), numbers.is_some());
        // Some types are blocks by themselves, with their scales in them.
        let own = StorageFormat::plain(data.dtype);
        let format = if own.is_plain() || is_of_bytes { format } else { Some(own) };
        let Some(format) = format.filter(|format| {
            let is_words = format.as_integers().is_some();
            format.encoding.dtype() == data.dtype && (is_of_bytes || !is_words)
        }) else {
            return Ok(Self::plain(data.clone()));
        };
        let mut scales = format.scales_name(&data.name).and_then(|name| find(&name));
        if let Some(scales) =
            scales.as_mut().filter(|scales| is_of_bytes && scales.dtype == Dtype::U8)
            && format.as_integers().is_none()
            && let Some(blocks) = scales.shape.pop()
        {
            scales.dtype = Dtype::F8E8M0;
            scales.shape = vec![scales.shape.iter().product(), blocks];
        }
        let format = scales.as_ref().map_or(format, |scales| format.with_scales(scales.dtype));
        let [zeros, order] =
            [format.zeros_name(&data.name), format.order_name(&data.name)].map(|name| find(&name?));
        Self::new(format, data.clone(), scales)?.with_zeros(zeros)?.with_order(order)
    }

    /// A weight of these tensors, and of zero points that may come yet.
    ///
    /// # Errors
    /// If types or shapes are not what the format and each other ask for.
    pub fn new(
        format: StorageFormat,
        data: TensorInfo,
        scales: Option<TensorInfo>,
    ) -> Result<Self, FormatFault> {
        let typed = |tensor: &TensorInfo, wanted| {
            if tensor.dtype == wanted {
                return Ok(());
            }
            Err(FormatFault::Dtype { tensor: tensor.name.clone(), found: tensor.dtype, wanted })
        };
        typed(&data, format.encoding.dtype())?;
        if format.is_plain() {
            return Ok(Self::plain(data));
        }
        let [rows, columns] = data.shape[..] else {
            return Err(FormatFault::NotAMatrix { tensor: data.name, shape: data.shape });
        };
        let wanted = format.data_bytes([rows, columns]);
        if wanted != Some(data.len) {
            return Err(FormatFault::Length {
                tensor: data.name,
                shape: data.shape,
                bytes: data.len,
            });
        }
        if let Some(grid) = format.scales {
            let Some(scales) = &scales else {
                return Err(FormatFault::NoScales {
                    scales: format.scales_name(&data.name).unwrap_or_default(),
                    tensor: data.name,
                });
            };
            typed(scales, grid.dtype)?;
            let mut wanted = grid.shape([rows, columns]);
            if format.as_integers().is_some_and(Integers::is_turned) {
                wanted.reverse();
            }
            // One alone need not be a matrix.
            let is_one = wanted == [1, 1] && scales.shape.iter().all(|size| *size == 1);
            if scales.shape != wanted && !is_one || grid.block.contains(&0) {
                return Err(FormatFault::ScaleShape {
                    tensor: scales.name.clone(),
                    found: scales.shape.clone(),
                    wanted: wanted.to_vec(),
                    block: grid.block,
                    shape: data.shape,
                });
            }
        }
        let scales = scales.filter(|_| format.scales.is_some());
        Ok(Self { format, scales, ..Self::plain(data) })
    }

    /// The same with these zero points.
    ///
    /// # Errors
    /// If it needs some and these are none, or not of the right type and shape.
    pub fn with_zeros(mut self, zeros: Option<TensorInfo>) -> Result<Self, FormatFault> {
        let (Some(integers), Some(name)) =
            (self.format.as_integers(), self.format.zeros_name(&self.data.name))
        else {
            return Ok(self);
        };
        let Some(zeros) = zeros else {
            return Err(FormatFault::NoZeroPoints { tensor: self.data.name, zeros: name });
        };
        let wanted = integers.zeros_shape(self.groups());
        companion(&zeros, integers.width.stored(), &wanted, &self.data)?;
        self.zeros = Some(zeros);
        Ok(self)
    }

    /// The same with what says which group each column belongs to.
    ///
    /// # Errors
    /// If it is not of the right type and shape.
    fn with_order(mut self, order: Option<TensorInfo>) -> Result<Self, FormatFault> {
        if let Some(order) = &order {
            let columns = self.data.shape.get(1).copied().unwrap_or(0);
            companion(order, Dtype::I32, &[columns], &self.data)?;
        }
        self.order = order;
        Ok(self)
    }

    /// Rows, and groups of one.
    fn groups(&self) -> [usize; 2] {
        match (self.format.scales, &self.data.shape[..]) {
            (Some(grid), &[rows, columns]) => grid.shape([rows, columns]),
            _ => [self.rows(), 0],
        }
    }

    /// How it is stored.
    pub fn format(&self) -> StorageFormat {
        self.format
    }

    /// The elements: of these rows only, `shape`, `offset` and `len` too.
    pub fn data(&self) -> &TensorInfo {
        &self.data
    }

    /// The rows of scales that these rows need.
    pub fn scales(&self) -> Option<&TensorInfo> {
        self.scales.as_ref()
    }

    /// The zero points that these rows need, perhaps of some rows before and behind too.
    pub fn zeros(&self) -> Option<&TensorInfo> {
        self.zeros.as_ref()
    }

    /// What says which group each column belongs to; without it, neighbours make a group.
    pub fn order(&self) -> Option<&TensorInfo> {
        self.order.as_ref()
    }

    /// The number of the first of these rows among those that the tensors hold: that of the data
    /// and the scales if they lie [column after column](Integers::is_turned), and that of the zero
    /// points, of which there are whole words.
    pub fn first_row(&self) -> usize {
        self.first_row
    }

    /// Whether rows of the weight are columns of its tensors, which are read as a whole.
    pub fn is_turned(&self) -> bool {
        self.format.as_integers().is_some_and(Integers::is_turned)
    }

    /// How many rows the first of the scales covers before the first of these rows.
    pub fn skipped_rows(&self) -> usize {
        self.skipped_rows
    }

    /// The tensors that it is made of: data, then scales, then zero points.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        std::iter::once(&self.data).chain(&self.scales).chain(&self.zeros)
    }

    /// Bytes of all that it is made of.
    pub fn bytes(&self) -> u64 {
        let bytes = self.tensors().map(|tensor| tensor.len);
        bytes.fold(0, u64::saturating_add)
    }

    /// Rows: the first dimension, one for a scalar.
    pub fn rows(&self) -> usize {
        self.data.shape.first().copied().unwrap_or(1)
    }

    /// Bytes of one row of data.
    pub fn row_bytes(&self) -> u64 {
        let of_integers = self.format.as_integers().zip(self.data.shape.get(1));
        match of_integers.and_then(|(integers, columns)| integers.width.row_bytes(*columns)) {
            Some(row) => row,
            None => self.data.len / (self.rows() as u64).max(1),
        }
    }

    /// Bytes that data, scales and zero points take [in memory](Integers::in_memory).
    pub fn bytes_in_memory(&self) -> [u64; 3] {
        let Some(grid) = self.format.scales.filter(|_| self.format.as_integers().is_some()) else {
            return [self.data.len, self.scales.as_ref().map_or(0, |scales| scales.len), 0];
        };
        let data = self.row_bytes().saturating_mul(self.rows() as u64);
        let [rows, groups] = self.groups().map(|n| n as u64);
        let scales = rows.saturating_mul(groups);
        let zeros = if self.zeros.is_some() { scales } else { 0 };
        [data, scales.saturating_mul(grid.dtype.size() as u64), zeros]
    }

    /// Some of the rows, in order; what lies beyond the last is left out.
    pub fn slice(&self, rows: Range<usize>) -> Self {
        let end = rows.end.min(self.rows());
        let start = rows.start.min(end);
        let mut some = self.clone();
        some.first_row += start;
        if self.is_turned() {
            some.data.shape[0] = end - start;
            return some;
        }
        cut(&mut some.data, start..end);
        if let (Some(grid), Some(scales)) = (self.format.scales, &mut some.scales) {
            let height = grid.block[0].max(1);
            let (first, last) = (self.skipped_rows + start, self.skipped_rows + end);
            let last = if start == end { first } else { last };
            cut(scales, first / height..last.div_ceil(height).max(first / height));
            some.skipped_rows = first % height;
        }
        if let (Some(integers), Some(zeros)) = (self.format.as_integers(), &mut some.zeros) {
            let rows = integers.width.per_word();
            let before = self.first_row / rows;
            let (first, last) = (self.first_row + start, self.first_row + end);
            cut(zeros, first / rows - before..last.div_ceil(rows).max(first / rows) - before);
        }
        some
    }
}

/// Keeps some rows of a tensor, which it has.
fn cut(tensor: &mut TensorInfo, rows: Range<usize>) {
    let Some(count) = tensor.shape.first_mut() else {
        return;
    };
    let row = tensor.len / (*count as u64).max(1);
    *count = rows.len();
    tensor.offset += row * rows.start as u64;
    tensor.len = row * rows.len() as u64;
}

/// Refuses a tensor that goes with the data of a weight, and is not of this type and shape.
fn companion(
    tensor: &TensorInfo,
    wanted: Dtype,
    shape: &[usize],
    data: &TensorInfo,
) -> Result<(), FormatFault> {
    let name = tensor.name.clone();
    if tensor.dtype != wanted {
        return Err(FormatFault::Dtype { tensor: name, found: tensor.dtype, wanted });
    }
    if tensor.shape != shape {
        return Err(FormatFault::Shape {
            tensor: name,
            found: tensor.shape.clone(),
            wanted: shape.to_vec(),
            shape: data.shape.clone(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
