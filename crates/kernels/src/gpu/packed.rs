//! A weight on a GPU, as stored.

use std::ops::Range;

use burn::backend::{Dispatch, TensorMetadata};
use burn::tensor::{Bytes, DType, Device, Int, Tensor, TensorData};

use super::extension::{PackedRows, PackedWeightOps};
use super::products::{GEMV_ROWS, WordFormat};

/// A matrix of bf16, f16 or f32 on a GPU, in words of 32 bits; or some of its rows.
#[derive(Clone, Debug)]
pub struct PackedWeight {
    words: Tensor<1, Int>,
    rows: PackedRows,
}

impl PackedWeight {
    /// Bytes that a matrix of so many elements takes on a device; none if its dtype is another.
    pub fn bytes(dtype: DType, elements: u64) -> Option<u64> {
        let bytes = elements.checked_mul(dtype.size() as u64)?;
        WordFormat::of(dtype).map(|_| bytes.next_multiple_of(4))
    }

    /// Copies the bytes of a matrix to a device, as they are. The copy may still be under way when this
    /// returns; it keeps `bytes` for as long.
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
        let words = Tensor::from_data(data, (device, DType::U32));
        Ok(Self { words, rows: PackedRows { format, first: 0, count, width } })
    }

    /// Memory for such a matrix; none for other types.
    pub fn empty(dtype: DType, [count, width]: [usize; 2], device: &Device) -> Option<Self> {
        let format = WordFormat::of(dtype)?;
        let words = (count * width * dtype.size()).div_ceil(4);
        let words = Tensor::empty([words], (device, DType::U32));
        Some(Self { words, rows: PackedRows { format, first: 0, count, width } })
    }

    /// The same with other rows from `start` on, which begin with a whole word; in place where it has
    /// no other owner.
    pub fn with_rows(self, start: usize, rows: Self) -> Self {
        let per_word = if self.rows.format == WordFormat::F32 { 1 } else { 2 };
        let from = start * self.rows.width / per_word;
        let [count] = rows.words.dims();
        let words = self.words.slice_assign(from..from + count, rows.words);
        Self { words, ..self }
    }

    /// Rows and columns.
    pub fn dims(&self) -> [usize; 2] {
        [self.rows.count, self.rows.width]
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
        let (first, count) = (self.rows.first + rows.start, rows.len());
        Self { words: self.words.clone(), rows: PackedRows { first, count, ..self.rows } }
    }

    /// Its values, f32.
    pub fn floats(&self) -> Tensor<2> {
        let words = self.words.clone().into_dispatch();
        Tensor::from_dispatch(Dispatch::packed_floats(words, self.rows))
    }

    /// Rows of these ids: `[ids.len(), width]` f32.
    pub fn select(&self, ids: &[u32]) -> Tensor<2> {
        let ids: Vec<u32> = ids.iter().map(|id| id + self.rows.first as u32).collect();
        let count = ids.len();
        let ids = TensorData::new(ids, [count]);
        let ids = Tensor::<1, Int>::from_data(ids, (&self.device(), DType::U32));
        let words = self.words.clone().into_dispatch();
        Tensor::from_dispatch(Dispatch::packed_select(words, ids.into_dispatch(), self.rows))
    }

    /// `x · Wᵀ`: `x [m, width]` f32 on the same device, to `[m, rows]` f32.
    ///
    /// Few rows of `x` are multiplied with the words as they are. For more of them the rows of the
    /// weight are unpacked, all at once, and multiplied by Burn: slice a large weight.
    pub fn linear(&self, x: Tensor<2>) -> Tensor<2> {
        let [m, _] = x.dims();
        let whole_words = self.rows.width.is_multiple_of(2) || self.rows.format == WordFormat::F32;
        if m <= GEMV_ROWS && whole_words {
            let words = self.words.clone().into_dispatch();
            let y = Dispatch::packed_gemv(x.into_dispatch(), words, self.rows);
            return Tensor::from_dispatch(y);
        }
        x.matmul(self.floats().transpose())
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
