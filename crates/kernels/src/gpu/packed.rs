//! A weight on a GPU, as stored.

use std::ops::Range;

use burn::backend::{Dispatch, TensorMetadata};
use burn::tensor::{Bytes, DType, Device, Int, Tensor, TensorData};
use outsize_checkpoint::StorageFormat;

use super::block_elements::BlockFormat;
use super::blocks::{BlockRows, BlockWeightOps};
use super::extension::{PackedRows, PackedWeightOps};
use super::products::{GEMV_ROWS, WordFormat};
use crate::BlockWeight;
use crate::blocks::widen_scale;

/// Bound on what is unpacked at once for products of many rows, in bytes; one row may be larger.
const FLOAT_BYTES: usize = 4 << 20;

/// Fewer bytes are copied by wgpu itself, which takes one call.
#[cfg(any(feature = "vulkan", feature = "metal", feature = "wgpu"))]
const LEAST_STAGED: usize = 64 << 10;

/// A matrix of bf16, f16 or f32, or in blocks, on a GPU, in words of 32 bits; or some of its rows.
#[derive(Clone, Debug)]
pub struct PackedWeight {
    words: Tensor<1, Int>,
    rows: Rows,
}

/// How elements lie in the words.
#[derive(Clone, Debug)]
enum Rows {
    Floats(PackedRows),
    /// With scales in f32; of blocks that hold theirs one that is not used.
    Blocks(Box<Tensor<1>>, BlockRows),
}

impl PackedWeight {
    /// Copies the bytes of a matrix to a device, as they are. The copy may still be under way when
    /// this returns; it keeps `bytes` for as long.
    ///
    /// # Errors
    /// Bytes that are not those of such a matrix.
    pub fn upload(
        bytes: Bytes,
        dtype: DType,
        [count, width]: [usize; 2],
        device: &Device,
    ) -> Result<Self, String> {
        let format = WordFormat::of(dtype).ok_or_else(|| format!("{dtype:?} is not packed"))?;
        let rows = Rows::Floats(PackedRows { format, first: 0, count, width });
        Ok(Self { words: words_of(bytes, device)?, rows })
    }

    /// The same of a matrix in blocks.
    ///
    /// # Errors
    /// A format that is not known here.
    pub fn upload_blocks(
        weight: &BlockWeight<bytes::Bytes>,
        device: &Device,
    ) -> Result<Self, String> {
        let (format, shape) = (weight.format(), weight.shape());
        let rows = Rows::blocks(format, shape, weight.scales(), weight.skipped_rows(), device)?;
        let data = Bytes::from_shared(weight.bytes(), burn::tensor::AllocationProperty::Other);
        Ok(Self { words: words_of(data, device)?, rows })
    }

    /// Memory for such a matrix; none for other types.
    pub fn empty(dtype: DType, [count, width]: [usize; 2], device: &Device) -> Option<Self> {
        let format = WordFormat::of(dtype)?;
        let rows = Rows::Floats(PackedRows { format, first: 0, count, width });
        Some(Self { words: empty_words(count * width * dtype.size(), device), rows })
    }

    /// Memory for a matrix in blocks, whose scales are known; its first row of scales is also for
    /// `skipped` rows that are not here.
    ///
    /// # Errors
    /// A format that is not known here.
    pub fn empty_blocks(
        format: StorageFormat,
        shape: [usize; 2],
        scales: &[u8],
        skipped: usize,
        device: &Device,
    ) -> Result<Self, String> {
        let rows = Rows::blocks(format, shape, scales, skipped, device)?;
        let row = format.encoding.block().row_bytes(shape[1]).unwrap_or(0) as usize;
        Ok(Self { words: empty_words(row * shape[0], device), rows })
    }

    /// The same with other rows from `start` on, which begin with a whole word; in place where it
    /// has no other owner.
    pub fn with_rows(self, start: usize, rows: Self) -> Self {
        let from = self.rows.bytes(start) / size_of::<u32>();
        let [count] = rows.words.dims();
        let words = self.words.slice_assign(from..from + count, rows.words);
        Self { words, ..self }
    }

    /// Rows and columns.
    pub fn dims(&self) -> [usize; 2] {
        match &self.rows {
            Rows::Floats(rows) => [rows.count, rows.width],
            Rows::Blocks(_, rows) => [rows.count, rows.width],
        }
    }

    /// Where it is.
    pub fn device(&self) -> Device {
        self.words.device()
    }

    /// Whether nobody else holds its memory.
    pub fn is_alone(self) -> (Self, bool) {
        let words = self.words.into_dispatch();
        let alone = words.can_mut();
        (Self { words: Tensor::from_dispatch(words), ..self }, alone)
    }

    /// Some of its rows: the same memory.
    pub fn slice(&self, rows: Range<usize>) -> Self {
        let mut some = self.clone();
        let (first, count) = match &mut some.rows {
            Rows::Floats(rows) => (&mut rows.first, &mut rows.count),
            Rows::Blocks(_, rows) => (&mut rows.first, &mut rows.count),
        };
        *first += rows.start;
        *count = rows.len();
        some
    }

    /// Its values, f32.
    pub fn floats(&self) -> Tensor<2> {
        let words = self.words.clone().into_dispatch();
        Tensor::from_dispatch(match &self.rows {
            Rows::Floats(rows) => Dispatch::packed_floats(words, *rows),
            Rows::Blocks(scales, rows) => {
                let scales = Tensor::clone(scales).into_dispatch();
                Dispatch::block_floats(words.clone(), scales, words, *rows, false)
            }
        })
    }

    /// Rows of these ids: `[ids.len(), width]` f32.
    pub fn select(&self, ids: &[u32]) -> Tensor<2> {
        let first = match &self.rows {
            Rows::Floats(rows) => rows.first,
            Rows::Blocks(_, rows) => rows.first,
        };
        let ids: Vec<u32> = ids.iter().map(|id| id + first as u32).collect();
        let count = ids.len();
        let ids = TensorData::new(ids, [count]);
        let ids = Tensor::<1, Int>::from_data(ids, (&self.device(), DType::U32)).into_dispatch();
        let words = self.words.clone().into_dispatch();
        Tensor::from_dispatch(match &self.rows {
            Rows::Floats(rows) => Dispatch::packed_select(words, ids, *rows),
            Rows::Blocks(scales, rows) => {
                let rows = BlockRows { count, ..*rows };
                Dispatch::block_floats(
                    words,
                    Tensor::clone(scales).into_dispatch(),
                    ids,
                    rows,
                    true,
                )
            }
        })
    }

    /// `x · Wᵀ`: `x [m, width]` f32 on the same device, to `[m, rows]` f32.
    ///
    /// Few rows of `x` are multiplied with the words as they are. For more of them the rows of the
    /// weight are unpacked, some at a time, and multiplied by Burn.
    pub fn linear(&self, x: Tensor<2>) -> Tensor<2> {
        let ([m, _], [count, width]) = (x.dims(), self.dims());
        if m <= GEMV_ROWS && self.rows.has_gemv() {
            let (x, words) = (x.into_dispatch(), self.words.clone().into_dispatch());
            return Tensor::from_dispatch(match &self.rows {
                Rows::Floats(rows) => Dispatch::packed_gemv(x, words, *rows),
                Rows::Blocks(scales, rows) => {
                    Dispatch::block_gemv(x, words, Tensor::clone(scales).into_dispatch(), *rows)
                }
            });
        }
        if let Rows::Floats(rows) = &self.rows {
            let (x, words) = (x.into_dispatch(), self.words.clone().into_dispatch());
            return Tensor::from_dispatch(Dispatch::packed_gemm(x, words, *rows));
        }
        let step = (FLOAT_BYTES / (width * size_of::<f32>()).max(1)).max(1);
        let part = |start: usize| {
            let rows = self.slice(start..count.min(start + step));
            let (x, weight) = (x.clone().into_dispatch(), rows.floats().into_dispatch());
            Tensor::from_dispatch(Dispatch::float_gemm(x, weight))
        };
        match count <= step {
            true => part(0),
            false => Tensor::cat((0..count).step_by(step).map(part).collect(), 1),
        }
    }

    /// [`linear`](Self::linear) of three weights in one launch, if there is one for them: few rows
    /// of `x`, and weights as wide and of one type of floats.
    pub fn linear_three(x: &Tensor<2>, weights: [&Self; 3]) -> Option<[Tensor<2>; 3]> {
        let [Rows::Floats(first), Rows::Floats(second), Rows::Floats(third)] =
            weights.map(|weight| &weight.rows)
        else {
            return None;
        };
        let rows = [*first, *second, *third];
        let alike = |one: &PackedRows| (one.width, one.format) == (first.width, first.format);
        if x.dims()[0] > GEMV_ROWS || !weights[0].rows.has_gemv() || !rows.iter().all(alike) {
            return None;
        }
        let [first, second, third] = weights.map(|weight| weight.words.clone().into_dispatch());
        let x = x.clone().into_dispatch();
        let (a, b, c) = Dispatch::packed_gemv_three(x, first, second, third, rows);
        Some([a, b, c].map(Tensor::from_dispatch))
    }
}

impl Rows {
    fn blocks(
        format: StorageFormat,
        [count, width]: [usize; 2],
        scales: &[u8],
        skipped: usize,
        device: &Device,
    ) -> Result<Self, String> {
        let known = BlockFormat::of(format.encoding.dtype());
        let known = known.ok_or_else(|| {
            let dtype = format.encoding.dtype();
            format!("GPUs do not multiply weights of type {dtype}: keep the model in main memory")
        })?;
        let scales = match format.scales {
            Some(grid) => scales.chunks_exact(grid.dtype.size()).map(widen_scale).collect(),
            None => vec![1.0],
        };
        let data = TensorData::new(scales.clone(), [scales.len()]);
        let scales = Tensor::from_data(data, (device, DType::F32));
        // No matrix has more rows or columns than the kernels count.
        let block = format.scales.map_or([1, 1], |grid| grid.block.map(|n| n.min(1 << 30)));
        let rows = BlockRows { format: known, first: 0, count, width, block, skipped };
        Ok(Self::Blocks(Box::new(scales), rows))
    }

    /// Bytes of so many rows.
    fn bytes(&self, count: usize) -> usize {
        match self {
            Self::Floats(rows) => {
                let size = if rows.format == WordFormat::F32 { 4 } else { 2 };
                count * rows.width * size
            }
            Self::Blocks(_, rows) => {
                let block = rows.format.dtype().block();
                count * block.row_bytes(rows.width).unwrap_or(0) as usize
            }
        }
    }

    /// Whether rows can be multiplied as they are.
    fn has_gemv(&self) -> bool {
        match self {
            Self::Floats(rows) => rows.width.is_multiple_of(2) || rows.format == WordFormat::F32,
            Self::Blocks(_, rows) => rows.width.is_multiple_of(4),
        }
    }
}

impl WordFormat {
    fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::BF16 => Some(Self::Bf16),
            DType::F16 => Some(Self::F16),
            DType::F32 => Some(Self::F32),
            _ => None,
        }
    }
}

/// Bytes on a device, in whole words.
fn words_of(bytes: Bytes, device: &Device) -> Result<Tensor<1, Int>, String> {
    #[cfg(any(feature = "vulkan", feature = "metal", feature = "wgpu"))]
    if bytes.len() >= LEAST_STAGED {
        let words = empty_words(bytes.len(), device);
        if let Some(copied) = super::staging::upload(&bytes, &words) {
            return copied.map(|()| words);
        }
    }
    let words = bytes.len().div_ceil(4);
    let bytes = match bytes.len().is_multiple_of(4) {
        true => bytes,
        false => {
            let mut padded = bytes.to_vec();
            padded.resize(words * 4, 0);
            Bytes::from_bytes_vec(padded)
        }
    };
    let data = TensorData::try_from_bytes(bytes, [words], DType::U32);
    let data = data.map_err(|error| error.to_string())?;
    Ok(Tensor::from_data(data, (device, DType::U32)))
}

fn empty_words(bytes: usize, device: &Device) -> Tensor<1, Int> {
    Tensor::empty([bytes.div_ceil(4)], (device, DType::U32))
}
