//! Weights in blocks: encoded elements, and scales for blocks of them.

mod narrow;

use std::ops::Range;

use bytes::Bytes;
use outsize_checkpoint::{Dtype, IntegerOrder, PackedBf16, ScaleGrid, StorageFormat, ZeroPoints};
use rayon::prelude::*;

use self::narrow::{MAX_E4M3, narrow_e4m3, narrow_mx, power_from};
use crate::Isa;
use crate::integer_rounding::IntegerRounding;
use crate::integers::{Groups, dequantize_integers};
use crate::packed_bf16;
use crate::quants::{self, E8M0, is_quantized, with_any_quants};
use crate::simd::{Vector, for_each_isa};

/// A weight `[out, in]`, or some of its rows, as [`StorageFormat`] stores it: `B` holds the bytes,
/// shared ([`bytes::Bytes`]) or borrowed.
///
/// An element is worth its encoded value times its scale, and less its offset in formats that have
/// one, rounded once to f32.
///
/// | format | an element | scales |
/// |---|---|---|
/// | GGUF's `Q2_K` to `Q8_0` | an integer of 2 to 8 bits | in blocks of 32 or 256 elements |
/// | GGUF's `IQ4_NL`, `IQ4_XS` | one of 16 integers | in blocks of 32 or 256 elements |
/// | GGUF's `IQ1_S` to `IQ3_S` | of a codebook, 4 or 8 at a time | in blocks of 256 elements |
/// | GGUF's `TQ1_0`, `TQ2_0` | -1, 0 or 1 | in blocks of 256 elements |
/// | GGUF's `MXFP4` | E2M1, 4 bits | E8M0, in blocks of 32 elements |
/// | [`PackedBf16`](outsize_checkpoint::PackedBf16) | bf16, in fewer bits | |
/// | [`deepseek_v4_fp8`](StorageFormat::deepseek_v4_fp8) | E4M3, 8 bits | E8M0, one per block of rows and columns |
/// | [`mxfp4`](StorageFormat::mxfp4), [`deepseek_v4_fp4`](StorageFormat::deepseek_v4_fp4) | E2M1, 4 bits | E8M0, `[out, in / 32]` |
/// | [`fp8`](StorageFormat::fp8), [`compressed_fp8`](StorageFormat::compressed_fp8) | E4M3, 8 bits | f32 or bf16, one for each block of rows and columns |
/// | [`Integers`](outsize_checkpoint::Integers), as they are [in memory](outsize_checkpoint::Integers::in_memory) | an integer of 4 or 8 bits, less a zero point | f32, f16 or bf16, one for each group of a row |
///
/// An E8M0 byte `e` is 2^(`e` - 127), and 255 is taken for infinity.
#[derive(Clone, Copy, Debug)]
pub struct BlockWeight<B> {
    format: StorageFormat,
    shape: [usize; 2],
    data: B,
    scales: B,
    /// Of integers, a byte for each scale, or none.
    zeros: B,
    /// Rows between the first that the first row of scales is for and the first of the weight.
    skipped_rows: usize,
}

impl<B: AsRef<[u8]> + Default> BlockWeight<B> {
    /// A weight of `shape` whose rows of elements and of scales follow one another without gaps.
    /// The first row of scales is also for `skipped_rows` rows that are not here.
    ///
    /// Integers have the zero point in the middle until [others](Self::with_zeros) are given.
    ///
    /// `None` if the format is not one that is built in, or if there are more or fewer bytes.
    pub fn new(
        format: StorageFormat,
        shape: [usize; 2],
        data: B,
        scales: B,
        skipped_rows: usize,
    ) -> Option<Self> {
        let dtype = format.encoding.dtype();
        let (known, scale_bytes) = match format.scales {
            None => {
                let is_packed = matches!(dtype, Dtype::PackedBf16(_));
                ((is_gguf(dtype) || is_packed) && skipped_rows == 0, 0)
            }
            Some(grid) => {
                let known = match dtype {
                    Dtype::F8E4M3 => {
                        [Dtype::F32, Dtype::BF16, Dtype::F8E8M0].contains(&grid.dtype)
                            && !grid.block.contains(&0)
                    }
                    Dtype::F4 => {
                        (grid.dtype, grid.block) == (Dtype::F8E8M0, [1, 32]) && skipped_rows == 0
                    }
                    _ => format.as_integers().is_some_and(|integers| {
                        integers.order == IntegerOrder::Rows
                            && [Dtype::F32, Dtype::F16, Dtype::BF16].contains(&grid.dtype)
                            && (grid.block[0], skipped_rows) == (1, 0)
                            && grid.block[1] > 0
                    }),
                };
                let [height, width] = grid.shape([shape[0].checked_add(skipped_rows)?, shape[1]]);
                (known, height.checked_mul(width)?.checked_mul(grid.dtype.size())?)
            }
        };
        let row = usize::try_from(format.encoding.row_bytes(shape[1])?).ok()?;
        let fits = data.as_ref().len() == shape[0].checked_mul(row)?
            && scales.as_ref().len() >= scale_bytes;
        let zeros = B::default();
        (known && fits).then_some(Self { format, shape, data, scales, zeros, skipped_rows })
    }
}

impl<B: AsRef<[u8]>> BlockWeight<B> {
    /// The same integers with these zero points, a byte for each scale.
    ///
    /// `None` if the format has none, or if there are more or fewer.
    pub fn with_zeros(mut self, zeros: B) -> Option<Self> {
        let count: usize = self.format.scales?.shape(self.shape).iter().product();
        let has_zeros = self.format.as_integers()?.zeros == ZeroPoints::Stored;
        self.zeros = zeros;
        (has_zeros && self.zeros.as_ref().len() == count).then_some(self)
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The elements, row after row.
    pub fn data(&self) -> &[u8] {
        self.data.as_ref()
    }

    /// The scales, row after row.
    pub fn scales(&self) -> &[u8] {
        self.scales.as_ref()
    }

    /// The zero points of integers, row after row; none if they are in the middle.
    pub fn zeros(&self) -> &[u8] {
        self.zeros.as_ref()
    }

    /// How it is stored.
    pub fn format(&self) -> StorageFormat {
        self.format
    }

    /// Rows between the first that the first row of scales is for and the first of the weight.
    pub fn skipped_rows(&self) -> usize {
        self.skipped_rows
    }

    /// The same weight, borrowed.
    pub fn view(&self) -> BlockWeight<&[u8]> {
        BlockWeight {
            format: self.format,
            shape: self.shape,
            data: self.data.as_ref(),
            scales: self.scales.as_ref(),
            zeros: self.zeros.as_ref(),
            skipped_rows: self.skipped_rows,
        }
    }

    /// The f32 that some rows are worth.
    ///
    /// # Panics
    ///
    /// If it does not have these rows, or `to` not room for as many elements.
    pub fn dequantize(&self, rows: Range<usize>, to: &mut [f32]) {
        self.view().slice(rows).dequantize_with(Isa::detected(), to);
    }
}

impl BlockWeight<Bytes> {
    /// The elements, row after row, shared.
    pub fn bytes(&self) -> Bytes {
        self.data.clone()
    }

    /// Some of the rows: the same memory.
    ///
    /// # Panics
    ///
    /// If it does not have them.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let some = self.view().slice(rows);
        Self {
            format: some.format,
            shape: some.shape,
            data: self.data.slice_ref(some.data),
            scales: self.scales.slice_ref(some.scales),
            zeros: self.zeros.slice_ref(some.zeros),
            skipped_rows: some.skipped_rows,
        }
    }
}

impl BlockWeight<Vec<u8>> {
    /// The weight that comes close to `values`, `shape` of them: in fp8 the largest of a block is
    /// encoded as the largest number there is, in MXFP4 as one from 4 on; integers are
    /// [rounded](IntegerRounding).
    ///
    /// `None` if the format is not MXFP4, integers row after row without zero points, or one of fp8
    /// with scales in f32 or E8M0, or if there are more or fewer values.
    pub fn quantize(format: StorageFormat, shape: [usize; 2], values: &[f32]) -> Option<Self> {
        let grid = format.scales?;
        let [height, width] = grid.block;
        if values.len() != shape[0].checked_mul(shape[1])? || height == 0 || width == 0 {
            return None;
        }
        if format.as_integers().is_some() {
            let rounding = IntegerRounding::of(format)?;
            let [data, scales] = rounding.round(values, shape[1]);
            return Self::new(format, shape, data, scales, 0);
        }
        if format.encoding.dtype() == Dtype::F4 {
            let (blocks, _) = values.as_chunks();
            let (data, scales): (Vec<_>, Vec<_>) = blocks.par_iter().map(narrow_mx).unzip();
            return Self::new(format, shape, data.concat(), scales, 0);
        }
        let mut scales = vec![0f32; grid.shape(shape).iter().product()];
        let across = shape[1].div_ceil(width);
        let scale_of = |at: usize| at / shape[1] / height * across + at % shape[1] / width;
        for (at, value) in values.iter().enumerate() {
            let largest = &mut scales[scale_of(at)];
            *largest = largest.max(value.abs() / MAX_E4M3);
        }
        let powers: Option<Vec<u8>> = (grid.dtype == Dtype::F8E8M0)
            .then(|| scales.iter().map(|scale| power_from(*scale)).collect());
        if let Some(powers) = &powers {
            scales = powers.iter().map(|power| E8M0[usize::from(*power)]).collect();
        }
        let encoded = values.iter().enumerate().map(|(at, value)| {
            let scale = scales[scale_of(at)];
            narrow_e4m3(if scale > 0.0 { value / scale } else { 0.0 })
        });
        let data = encoded.collect();
        let scales =
            powers.unwrap_or_else(|| scales.iter().flat_map(|scale| scale.to_le_bytes()).collect());
        Self::new(format, shape, data, scales, 0)
    }
}

impl BlockWeight<&[u8]> {
    /// Some of the rows.
    ///
    /// # Panics
    ///
    /// If it does not have them.
    pub fn slice(&self, rows: Range<usize>) -> Self {
        let row = self.row_bytes();
        let (height, width) = (self.block()[0], self.scale_row_bytes());
        let first = self.skipped_rows + rows.start;
        Self {
            shape: [rows.len(), self.shape[1]],
            data: &self.data[rows.start * row..rows.end * row],
            scales: &self.scales[first / height * width..],
            zeros: match self.zeros {
                [] => &[],
                zeros => &zeros[first * self.groups()..(first + rows.len()) * self.groups()],
            },
            skipped_rows: first % height,
            ..*self
        }
    }

    /// Rows and columns that a scale is for.
    pub(crate) fn block(&self) -> [usize; 2] {
        self.format.scales.map_or([1, 1], |grid| grid.block)
    }

    /// The scales of a row, from left to right.
    pub(crate) fn scales_of(&self, row: usize) -> impl Iterator<Item = f32> + use<'_> {
        self.scale_row(row).chunks_exact(self.scale_bytes().max(1)).map(widen_scale)
    }

    /// The same as they are stored.
    pub(crate) fn scale_row(&self, row: usize) -> &[u8] {
        let width = self.scale_row_bytes();
        let start = (self.skipped_rows + row) / self.block()[0] * width;
        &self.scales[start..start + width]
    }

    /// Whether no element of some rows is a NaN, and no scale becomes infinite by [`E4M3_BIAS`]:
    /// what [`Vector::e4m3`] asks.
    #[inline(always)]
    pub(crate) fn is_biasable(&self, rows: Range<usize>) -> bool {
        let row = self.row_bytes();
        if has_nan(&self.data[rows.start * row..rows.end * row]) {
            return false;
        }
        // Rows of one block have the same scales.
        let (height, mut last) = (self.block()[0], usize::MAX);
        for row in rows {
            let block = (self.skipped_rows + row) / height;
            if block != last && !self.scales_of(row).all(is_biasable) {
                return false;
            }
            last = block;
        }
        true
    }

    /// Bytes of a scale; none in blocks that hold theirs.
    pub(crate) fn scale_bytes(&self) -> usize {
        self.format.scales.map_or(0, |grid| grid.dtype.size())
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.data.len() / self.shape[0].max(1)
    }

    fn scale_row_bytes(&self) -> usize {
        self.groups() * self.scale_bytes()
    }

    /// Scales of a row.
    pub(crate) fn groups(&self) -> usize {
        let scales = |grid: ScaleGrid| self.shape[1].div_ceil(grid.block[1]);
        self.format.scales.map_or(0, scales)
    }

    /// Scales and zero points, if elements are integers.
    pub(crate) fn integer_groups(&self) -> Option<Groups<'_>> {
        let (integers, grid) = (self.format.as_integers()?, self.format.scales?);
        Some(Groups {
            width: integers.width,
            dtype: grid.dtype,
            columns: grid.block[1],
            count: self.groups(),
            scales: self.scales,
            zeros: self.zeros,
        })
    }

    /// How it is packed, if it is packed bf16.
    pub(crate) fn packed_bf16(&self) -> Option<PackedBf16> {
        match self.format.encoding.dtype() {
            Dtype::PackedBf16(packed) => Some(packed),
            _ => None,
        }
    }

    /// The type of elements, if it is one of [`quants`].
    pub(crate) fn quantized(&self) -> Option<Dtype> {
        let is_other = self.format.as_integers().is_some() || self.packed_bf16().is_some();
        let elements = (!is_other).then(|| self.format.encoding.dtype());
        elements.filter(|dtype| is_quantized(*dtype))
    }

    /// The f32 that all rows are worth.
    ///
    /// # Panics
    ///
    /// If `to` does not have room for exactly as many, or the processor not these instructions.
    pub(crate) fn dequantize_with(&self, isa: Isa, to: &mut [f32]) {
        let [rows, columns] = self.shape;
        assert_eq!(to.len(), rows * columns, "a weight of {rows} x {columns}");
        if let Some(packed) = self.packed_bf16() {
            return packed_bf16::widen(isa, packed, self.data, to);
        }
        match self.quantized() {
            _ if to.is_empty() => {}
            Some(Dtype::F4) if !columns.is_multiple_of(self.block()[1]) => {
                self.dequantize_cut(isa, to);
            }
            Some(dtype) => dequantize_quantized(isa, dtype, self.data, self.scales, to),
            None => match self.integer_groups() {
                Some(groups) => {
                    dequantize_integers(isa, self.data, [self.row_bytes(), columns], groups, to);
                }
                None => dequantize_e4m3(isa, *self, to),
            },
        }
    }

    /// The same of rows whose last block of F4 is cut: as if zeros filled it.
    fn dequantize_cut(&self, isa: Isa, to: &mut [f32]) {
        let columns = self.shape[1];
        let whole = columns.next_multiple_of(self.block()[1]);
        let (mut data, mut wide) = (vec![0; whole / 2], vec![0.0; whole]);
        for (row, to) in to.chunks_exact_mut(columns).enumerate() {
            let row = self.slice(row..row + 1);
            data[..row.data.len()].copy_from_slice(row.data);
            dequantize_quantized(isa, Dtype::F4, &data, row.scales, &mut wide);
            to.copy_from_slice(&wide[..columns]);
        }
    }
}

/// Whether elements of a type hold their scales.
fn is_gguf(dtype: Dtype) -> bool {
    Dtype::GGUF_BLOCKS.contains(&dtype)
}

/// The f32 of a scale that has these bytes.
#[inline(always)]
pub(crate) fn widen_scale(scale: &[u8]) -> f32 {
    // Of known lengths: nothing is copied.
    match *scale {
        [power] => E8M0[usize::from(power)],
        // A bf16 is the upper half of an f32.
        [low, high] => f32::from_le_bytes([0, 0, low, high]),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        _ => unreachable!("scales of 8, 16 or 32 bits"),
    }
}

for_each_isa! {
    /// Writes the f32 of every element of whole blocks of one of [`quants`].
    fn dequantize_quantized<V>(dtype: Dtype, data: &[u8], scales: &[u8], to: &mut [f32]) {
        // SAFETY: this is compiled for the instructions of `V`.
        unsafe { with_any_quants!(dtype, Q => quants::dequantize::<V, Q>(data, scales, to)) };
    }
}

for_each_isa! {
    /// Writes the f32 of every element, of which there are as many as `to` has.
    fn dequantize_e4m3<V>(weight: BlockWeight<&[u8]>, to: &mut [f32]) {
        let columns = weight.shape[1];
        let width = weight.block()[1];
        let rows = weight.data.chunks_exact(columns).zip(to.chunks_exact_mut(columns));
        for (at, (data, to)) in rows.enumerate() {
            let blocks = data.chunks(width).zip(to.chunks_mut(width));
            for ((data, to), scale) in blocks.zip(weight.scales_of(at)) {
                // SAFETY: this is compiled for the instructions of `V`.
                unsafe { widen_block::<V>(data, scale, to) };
            }
        }
    }
}

/// Widens elements that share a scale.
///
/// # Safety
///
/// This processor has the instructions of `V`.
#[inline(always)]
unsafe fn widen_block<V: Vector>(data: &[u8], scale: f32, to: &mut [f32]) {
    // One by one is as fast where the compiler vectorizes it for four lanes.
    let whole = match V::LANES == 4 || !is_biasable(scale) || has_nan(data) {
        true => 0,
        false => data.len() / V::LANES * V::LANES,
    };
    let (steps, rest) = data.split_at(whole);
    let (wide, wide_rest) = to.split_at_mut(whole);
    for (data, to) in steps.chunks_exact(V::LANES).zip(wide.chunks_exact_mut(V::LANES)) {
        // SAFETY: the caller's promise; these are as many elements as there are lanes, and no NaN.
        unsafe { V::e4m3(data.as_ptr(), V::splat(scale * E4M3_BIAS)).store(to.as_mut_ptr()) };
    }
    for (to, byte) in wide_rest.iter_mut().zip(rest) {
        *to = widen_e4m3(*byte) * scale;
    }
}

/// What a scale is multiplied by for [`Vector::e4m3`].
pub(crate) const E4M3_BIAS: f32 = f32::from_bits((127 + 120) << 23);

/// Whether a scale does not become infinite by [`E4M3_BIAS`].
fn is_biasable(scale: f32) -> bool {
    scale.abs() < 128.0
}

/// Whether any E4M3 is a NaN.
#[inline(always)]
fn has_nan(data: &[u8]) -> bool {
    let mut nan = false;
    for byte in data {
        nan |= byte & 0x7f == 0x7f;
    }
    nan
}

/// The f32 of an E4M3 (4 bits of exponent, of bias 7, and 3 of mantissa; no infinity, one NaN of
/// each sign), without branches, so that loops over it vectorize.
#[inline(always)]
pub fn widen_e4m3(byte: u8) -> f32 {
    let magnitude = i32::from(byte & 0x7f);
    // The fields in place, the exponent is too small by the difference of the biases, 127 - 7.
    let normal = f32::from_bits((magnitude << 20) as u32 + (120 << 23));
    // Eighths of the least normal number, 2⁻⁶. Not by the same addition: processors are slow at
    // subnormal f32.
    let subnormal = magnitude as f32 * (1.0 / 512.0);
    let value = if magnitude < 8 { subnormal } else { normal };
    let value = if magnitude == 0x7f { f32::NAN } else { value };
    f32::from_bits(value.to_bits() | u32::from(byte & 0x80) << 24)
}

#[cfg(test)]
mod tests;
