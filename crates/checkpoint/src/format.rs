//! Storage formats: which tensors of a checkpoint make one weight, and what its elements take in
//! them.

use std::ops::Range;

use crate::checkpoint::TensorInfo;
use crate::dtype::{Dtype, ElementBlock};

/// Elements that share a scale in microscaling formats …
const MX_BLOCK: usize = 32;

/// … and the bytes that they take in 4 bits each.
const MX_BYTES: usize = MX_BLOCK / 2;

/// How a weight is stored: its elements in one tensor, and perhaps scales in another.
///
/// | format | data | scales |
/// |---|---|---|
/// | [`plain`](Self::plain) | any [`Dtype`] | |
/// | `plain` of GGUF's blocks | one of [`Dtype::GGUF_BLOCKS`] | in each block of the data |
/// | [`fp8`](Self::fp8), as DeepSeek-V3 is published | `F8_E4M3` | `F32`, one per block of rows and columns, `weight_scale_inv` |
/// | [`compressed_fp8`](Self::compressed_fp8), of compressed-tensors | `F8_E4M3` | `F32` or `BF16`, one per row or one, `weight_scale` |
/// | [`mxfp4`](Self::mxfp4), as gpt-oss is published | `F4`, `weight_blocks` | `F8_E8M0`, one per 32 elements of a row, `weight_scales` |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StorageFormat {
    /// How elements lie in the data tensor.
    pub encoding: Encoding,
    /// What is appended to the weight's name in that of the data tensor.
    pub data_suffix: &'static str,
    /// The scales that elements are multiplied by, if they have a tensor of their own.
    pub scales: Option<ScaleGrid>,
}

/// How the elements of a row lie in the data tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// One after the other, in the tensor's own type.
    Elements(Dtype),
}

/// One scale for each block of a matrix; blocks at the right and lower edges may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScaleGrid {
    /// What is appended to the weight's name in theirs.
    pub suffix: &'static str,
    /// The type of a scale.
    pub dtype: Dtype,
    /// Rows and columns that one scale is for; each at least one.
    pub block: [usize; 2],
}

impl Encoding {
    /// The type of the data tensor.
    pub const fn dtype(self) -> Dtype {
        match self {
            Self::Elements(dtype) => dtype,
        }
    }

    /// What is stored together.
    pub const fn block(self) -> ElementBlock {
        match self {
            Self::Elements(dtype) => dtype.block(),
        }
    }
}

impl ScaleGrid {
    /// Rows and columns of the scales of a matrix of this shape.
    pub fn shape(&self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        let [height, width] = self.block;
        [rows.div_ceil(height.max(1)), columns.div_ceil(width.max(1))]
    }
}

impl StorageFormat {
    /// Elements one after the other, without scales.
    pub const fn plain(dtype: Dtype) -> Self {
        Self { encoding: Encoding::Elements(dtype), data_suffix: "", scales: None }
    }

    /// Numbers of 8 bits (E4M3) with a 32-bit scale for each block of so many rows and columns.
    pub const fn fp8(block: [usize; 2]) -> Self {
        Self {
            scales: Some(ScaleGrid { suffix: "_scale_inv", dtype: Dtype::F32, block }),
            ..Self::plain(Dtype::F8E4M3)
        }
    }

    /// Numbers of 8 bits (E4M3) as compressed-tensors writes them: with one scale for each row, or one for all.
    pub const fn compressed_fp8(each_row: bool) -> Self {
        /// More than a matrix has, and a multiple of the lanes of any vector.
        const ALL: usize = 1 << 30;
        let block = [if each_row { 1 } else { ALL }, ALL];
        Self {
            scales: Some(ScaleGrid { suffix: "_scale", dtype: Dtype::F32, block }),
            ..Self::plain(Dtype::F8E4M3)
        }
    }

    /// Numbers of 4 bits with a power of two for each 32 of a row, both as bytes: `[.., n, 16]` and `[.., n]` for rows of
    /// `32 · n` elements ([OCP microscaling formats](https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf)).
    pub const fn mxfp4() -> Self {
        let block = [1, MX_BLOCK];
        Self {
            data_suffix: "_blocks",
            scales: Some(ScaleGrid { suffix: "_scales", dtype: Dtype::F8E8M0, block }),
            ..Self::plain(Dtype::F4)
        }
    }

    /// The same with scales in bf16, if these are and may be.
    #[must_use]
    pub fn with_scales(mut self, found: Dtype) -> Self {
        if let Some(grid) = &mut self.scales
            && found == Dtype::BF16
        {
            grid.dtype = found;
        }
        self
    }

    /// Whether elements are numbers that need neither scales nor neighbours.
    pub const fn is_plain(&self) -> bool {
        self.scales.is_none() && self.encoding.block().elements == 1
    }

    /// The name of the scales that belong to the data tensor of this name.
    pub fn scales_name(&self, data: &str) -> Option<String> {
        let weight = data.strip_suffix(self.data_suffix).unwrap_or(data);
        self.scales.map(|grid| format!("{weight}{}", grid.suffix))
    }

    /// Name, type and shape of the tensors that a weight of this shape is stored in: data, then scales. The name is the
    /// weight's or that of the data.
    pub fn tensors(&self, name: &str, shape: [usize; 2]) -> Vec<(String, Dtype, Vec<usize>)> {
        let weight = name.strip_suffix(self.data_suffix).unwrap_or(name);
        let data = format!("{weight}{}", self.data_suffix);
        let grid = self.scales.map(|grid| (grid.dtype, grid.shape(shape)));
        let scales = self.scales_name(&data).zip(grid);
        match (self.encoding.dtype(), scales) {
            (Dtype::F4, Some((scales, (_, [rows, blocks])))) => vec![
                (data, Dtype::U8, vec![rows, blocks, MX_BYTES]),
                (scales, Dtype::U8, vec![rows, blocks]),
            ],
            (dtype, scales) => {
                let scales = scales.map(|(name, (dtype, shape))| (name, dtype, shape.to_vec()));
                std::iter::once((data, dtype, shape.to_vec())).chain(scales).collect()
            }
        }
    }

    /// A tensor of bytes as the matrix of numbers of 4 bits that it is, if it has the name and the shape of one.
    fn numbers_of(&self, data: &TensorInfo) -> Option<TensorInfo> {
        let [leading @ .., blocks, MX_BYTES] = &data.shape[..] else {
            return None;
        };
        let rows = leading.iter().product();
        let is_it = data.dtype == Dtype::U8
            && self.encoding.dtype() == Dtype::F4
            && data.name.ends_with(self.data_suffix);
        let shape = vec![rows, blocks.checked_mul(MX_BLOCK)?];
        is_it.then(|| TensorInfo { dtype: Dtype::F4, shape, ..data.clone() })
    }
}

/// A weight, or some of its rows: where its data and scales lie, checked against each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWeight {
    format: StorageFormat,
    data: TensorInfo,
    scales: Option<TensorInfo>,
    /// Rows between the beginning of the first row of scales and the first row of the data.
    skipped_rows: usize,
}

impl StoredWeight {
    /// A weight without scales.
    pub fn plain(data: TensorInfo) -> Self {
        Self { format: StorageFormat::plain(data.dtype), data, scales: None, skipped_rows: 0 }
    }

    /// The weight that a tensor is the data of: as blocks if its type is one of those, in `format` if its elements are of that
    /// type, and plain otherwise. `find` gives the tensor of the scales by its name.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_data(
        data: &TensorInfo,
        format: Option<StorageFormat>,
        find: impl FnOnce(&str) -> Option<TensorInfo>,
    ) -> Result<Self, FormatFault> {
        let numbers = format.and_then(|format| format.numbers_of(data));
        let (data, is_of_bytes) = (numbers.as_ref().unwrap_or(data), numbers.is_some());
        // Some types are blocks by themselves, with their scales in them.
        let own = StorageFormat::plain(data.dtype);
        let format = if own.is_plain() || is_of_bytes { format } else { Some(own) };
        let Some(format) = format.filter(|format| format.encoding.dtype() == data.dtype) else {
            return Ok(Self::plain(data.clone()));
        };
        let mut scales = format.scales_name(&data.name).and_then(|name| find(&name));
        if let Some(scales) =
            scales.as_mut().filter(|scales| is_of_bytes && scales.dtype == Dtype::U8)
            && let Some(blocks) = scales.shape.pop()
        {
            scales.dtype = Dtype::F8E8M0;
            scales.shape = vec![scales.shape.iter().product(), blocks];
        }
        let format = scales.as_ref().map_or(format, |scales| format.with_scales(scales.dtype));
        Self::new(format, data.clone(), scales)
    }

    /// A weight of these tensors.
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
        let wanted = format.encoding.block().row_bytes(columns);
        let wanted = wanted.and_then(|row| row.checked_mul(rows as u64));
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
            let wanted = grid.shape([rows, columns]);
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
        Ok(Self {
            format,
            data,
            scales: scales.filter(|_| format.scales.is_some()),
            skipped_rows: 0,
        })
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

    /// How many rows the first of the scales covers before the first of these rows.
    pub fn skipped_rows(&self) -> usize {
        self.skipped_rows
    }

    /// The tensors that it is made of: data, then scales.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        std::iter::once(&self.data).chain(&self.scales)
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
        self.data.len / (self.rows() as u64).max(1)
    }

    /// Some of the rows, in order; what lies beyond the last is left out.
    pub fn slice(&self, rows: Range<usize>) -> Self {
        let end = rows.end.min(self.rows());
        let start = rows.start.min(end);
        let mut some = self.clone();
        cut(&mut some.data, start..end);
        if let (Some(grid), Some(scales)) = (self.format.scales, &mut some.scales) {
            let height = grid.block[0].max(1);
            let (first, last) = (self.skipped_rows + start, self.skipped_rows + end);
            let last = if start == end { first } else { last };
            cut(scales, first / height..last.div_ceil(height).max(first / height));
            some.skipped_rows = first % height;
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

/// Why tensors do not make a weight of a format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatFault {
    /// A tensor is of another type.
    #[error("`{tensor}` is of type {found}, but its format stores {wanted}")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: Dtype,
        /// That of the format.
        wanted: Dtype,
    },
    /// Formats of blocks are for matrices.
    #[error("`{tensor}` has the shape {shape:?}, but its format is for matrices")]
    NotAMatrix {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Rows do not end with a block, or bytes are missing.
    #[error(
        "`{tensor}` of shape {shape:?} has {bytes} bytes, which its format cannot divide into rows"
    )]
    Length {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its length.
        bytes: u64,
    },
    /// The scales are missing.
    #[error("`{tensor}` needs its scales, `{scales}`, which the checkpoint does not have")]
    NoScales {
        /// The tensor.
        tensor: String,
        /// The name of its scales.
        scales: String,
    },
    /// There are more or fewer scales than blocks.
    #[error(
        "the scales `{tensor}` have the shape {found:?}, but blocks of {block:?} of a weight of shape {shape:?} need \
         {wanted:?}"
    )]
    ScaleShape {
        /// The scales.
        tensor: String,
        /// Their shape.
        found: Vec<usize>,
        /// The shape they should have.
        wanted: Vec<usize>,
        /// Rows and columns that one scale is for.
        block: [usize; 2],
        /// The shape of the weight.
        shape: Vec<usize>,
    },
}

#[cfg(test)]
mod tests;
