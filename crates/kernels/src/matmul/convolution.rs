//! 3x3 convolutions of pictures `[batch, rows, columns, channels]`, on the tiles of matmuls.
//!
//! Pixels that are neighbours in a row lie one behind the other, so what an output sees of a row is
//! one run of three pixels' channels. An output is the dot product of three such runs, one behind the
//! other, with a row of the weight in their order. Neighbouring outputs read overlapping runs where
//! they lie: there is no im2col. The picture is copied once, with the zeros around it.
//!
//! A checkpoint stores a row of the weight as `[channels, 3, 3]`. A few rows at a time are widened
//! and reordered to `[3, 3, channels]`, into memory that stays in the second-level cache while many
//! outputs pass it.

use std::cell::Cell;
use std::ops::Range;

use half::bf16;

use super::blocks::OutputPtr;
use super::claims::Claims;
use super::pack::{RowBlocks, Scratch};
use super::tile::{self, Prefetch, RowBlock, RowLayout, RowSteps};
use super::{Operands, Size, blocking, panels};
use crate::simd::for_each_isa;
use crate::zeroed::zeroed;
use crate::{ActivationDtype, Isa, Weight, loops};

/// Rows and columns that an output sees.
const SIDE: usize = 3;

/// A thread takes so many outputs of a channel at least through a panel, so that it is worth
/// reordering.
const MIN_PIXELS: usize = 512;

thread_local! {
    static PANEL: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    static WIDE: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// What is convolved: `[batch, rows, columns, channels]`, of which each column of the picture has a
/// zero on its left and on its right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionShape {
    /// Pictures.
    pub batch: usize,
    /// Rows of each.
    pub rows: usize,
    /// Pixels of a row.
    pub columns: usize,
    /// Values of a pixel.
    pub channels: usize,
    /// Pixels from what one output sees to what the next one does; at least one.
    pub stride: usize,
    /// Whether there is a row of zeros above the first row; if not, outputs begin below it.
    pub above: bool,
    /// Whether there is a row of zeros below the last row; if not, outputs end above it.
    pub below: bool,
}

impl ConvolutionShape {
    /// Rows and columns of the output.
    pub fn output(&self) -> [usize; 2] {
        let [rows, columns] = self.padded();
        [rows, columns].map(|side| match side.checked_sub(SIDE) {
            Some(more) => more / self.stride + 1,
            None => 0,
        })
    }

    /// Rows and columns with the zeros around them.
    fn padded(&self) -> [usize; 2] {
        let around = usize::from(self.above) + usize::from(self.below);
        [self.rows.saturating_add(around), self.columns.saturating_add(2)]
    }
}

/// Which rows a 3x3 convolution gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionRows {
    /// Pixels from what one output sees to what the next one does, in either direction.
    pub stride: usize,
    /// Whether there is a row of zeros above the first row: not if it is the end of a band.
    pub above: bool,
    /// Whether there is a row of zeros below the last row.
    pub below: bool,
}

impl ConvolutionRows {
    /// Of a whole picture.
    pub fn whole(stride: usize) -> Self {
        Self { stride, above: true, below: true }
    }

    /// Rows and columns of what comes of a picture of so many.
    pub fn output(&self, rows: usize, columns: usize) -> [usize; 2] {
        let Self { stride, above, below } = *self;
        ConvolutionShape { batch: 1, rows, columns, channels: 1, stride, above, below }.output()
    }
}

/// A convolution, or some of its output channels.
#[derive(Debug)]
pub struct Convolution<'a> {
    /// As [`shape`](Self::shape) says.
    pub x: &'a [f32],
    /// What is convolved.
    pub shape: ConvolutionShape,
    /// `[outputs, channels, 3, 3]`; not in blocks.
    pub weight: Weight<'a>,
    /// What is added to each of the outputs; nothing if empty.
    pub bias: &'a [f32],
    /// `[batch, rows, columns, n]`.
    pub y: &'a mut [f32],
    /// Values of an output pixel.
    pub n: usize,
    /// Which of them the weight gives.
    pub outputs: Range<usize>,
}

/// An upper bound on the bytes that each thread keeps for convolutions of so many channels.
pub fn convolution_bytes(channels: u64) -> u64 {
    let k = channels.saturating_mul((SIDE * SIDE) as u64);
    let width = panels::width(usize::try_from(k).unwrap_or(usize::MAX), size_of::<f32>()) as u64;
    k.saturating_mul(4 * (width + 1)).saturating_add(128)
}

/// Writes the convolution's outputs.
///
/// As for [matmuls](crate#the-contract), the bits of an output depend on what it sees, on the
/// weight's row, the bias, the [`Isa`] and the [`ActivationDtype`], and on nothing else: not on the
/// picture's size, nor on the rows or outputs that are computed in the same call. The error is at
/// most that of a matmul of `k = 9 · channels`, and one rounding of the bias.
///
/// # Panics
///
/// If sizes do not fit each other, if the weight is in blocks, or if this processor does not have
/// `isa`.
pub fn convolve_into(isa: Isa, compute: ActivationDtype, convolution: Convolution<'_>) {
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    let Convolution { x, shape, weight, bias, y, n, outputs } = convolution;
    let ConvolutionShape { batch, rows, columns, channels, stride, .. } = shape;
    let [height, width] = shape.output();
    let len = |sides: [usize; 4]| sides.into_iter().try_fold(1, usize::checked_mul);
    assert_eq!(Some(x.len()), len([batch, rows, columns, channels]), "x must fill {shape:?}");
    assert_eq!(Some(y.len()), len([batch, height, width, n]), "y must fill {height} x {width}");
    assert!(outputs.start <= outputs.end && outputs.end <= n, "outputs {outputs:?} of {n}");
    assert_eq!(
        Some(weight.len()),
        len([outputs.len(), channels, SIDE, SIDE]),
        "weight must hold {} rows of {channels} channels",
        outputs.len()
    );
    assert!(!matches!(weight, Weight::Blocks(_)), "a convolution's weight must not be in blocks");
    assert!(bias.is_empty() || bias.len() == outputs.len(), "each output has a bias");
    let k = SIDE * SIDE * channels;
    let lines = batch * height;
    if lines * width * outputs.len() == 0 {
        return;
    }
    let padded = padded(compute, x, &shape);
    let [padded_rows, padded_columns] = shape.padded();
    let layout = Runs { row: stride * channels, part: padded_columns * channels };
    let row_blocks = RowBlocks::of_many(width, blocking(isa)[0]);
    let panel = panels::width(k, size_of::<f32>());
    let group = MIN_PIXELS.div_ceil(width).min(lines);
    let groups = lines.div_ceil(group);
    let claims = Claims::of(outputs.len().div_ceil(panel) * groups, crate::threads());
    let output = OutputPtr(y.as_mut_ptr());
    claims.share(|run| {
        let mut reordered = Scratch::new(panel * k, &PANEL);
        let mut held = None;
        for block in run {
            let (index, group_index) = (block / groups, block % groups);
            let some = index * panel..outputs.len().min((index + 1) * panel);
            if held != Some(index) {
                reorder(weight.slice(some.start * k, some.end * k), channels, &mut reordered);
                held = Some(index);
            }
            let bias = if bias.is_empty() { bias } else { &bias[some.clone()] };
            for line in group_index * group..lines.min((group_index + 1) * group) {
                let row = line / height * padded_rows + line % height * stride;
                for block in row_blocks.all() {
                    let at = (row * padded_columns + block.start * stride) * channels;
                    let pixel = (line * width + block.start) * n;
                    let operands = Operands {
                        x: padded[at..].as_ptr(),
                        weight: reordered.as_ptr(),
                        y: output.column(pixel + outputs.start + some.start),
                        size: Size { m: block.len(), n, k },
                    };
                    // SAFETY: the assertions: the processor has the instructions, and the slices
                    // have the lengths that the shape asks for. The rows of a row block are inside
                    // of one row of the padded picture, and two more rows follow it; the panel has
                    // `some.len()` rows of `k`. No two blocks have a line and an output in common,
                    // so that no element of `y` is written by two calls; nobody else reads `y`.
                    unsafe { pixels(isa, &operands, layout, block.len(), some.len(), bias) };
                }
            }
        }
    });
}

/// Three runs of pixels, one in each of three rows.
#[derive(Clone, Copy)]
struct Runs {
    /// From what one output sees to what the next one does.
    row: usize,
    /// From one run to the next.
    part: usize,
}

impl RowLayout for Runs {
    const PARTS: usize = SIDE;

    #[inline(always)]
    fn steps(self, _k: usize, lanes: usize, _height: usize) -> RowSteps {
        RowSteps { start: 0, row: self.row, vector: lanes, part: self.part }
    }
}

for_each_isa! {
    /// Computes `columns` outputs of `height` pixels, side by side in `y`, and adds the bias.
    ///
    /// # Safety
    ///
    /// The processor has the instructions; the operands point to what so many outputs and pixels of
    /// that layout need, and nothing else reads or writes these elements of `y`.
    unsafe fn pixels<V>(
        operands: &Operands<f32, f32>,
        layout: Runs,
        height: usize,
        columns: usize,
        bias: &[f32],
    ) {
        let block = RowBlock { row: 0, height, columns: 0..columns, prefetch: Prefetch::None };
        // SAFETY: the caller's promise.
        unsafe {
            tile::row_block::<V, f32, _>(operands, layout, block);
            for pixel in 0..height {
                let y = operands.y.add(pixel * operands.size.n);
                for (column, bias) in bias.iter().enumerate() {
                    *y.add(column) += bias;
                }
            }
        }
    }
}

/// The picture as it is multiplied, with the zeros around it.
fn padded(compute: ActivationDtype, x: &[f32], shape: &ConvolutionShape) -> Vec<f32> {
    let [rows, columns] = shape.padded();
    let (above, len) = (usize::from(shape.above), shape.columns * shape.channels);
    let mut padded = zeroed(shape.batch * rows * columns * shape.channels);
    loops::share(padded.chunks_mut(columns * shape.channels).enumerate(), |(index, to)| {
        let (picture, row) = (index / rows, index % rows);
        let Some(row) = row.checked_sub(above).filter(|row| *row < shape.rows) else {
            return;
        };
        let from = &x[(picture * shape.rows + row) * len..][..len];
        let to = &mut to[shape.channels..][..len];
        match compute {
            ActivationDtype::F32 => to.copy_from_slice(from),
            ActivationDtype::Bf16 => {
                to.iter_mut().zip(from).for_each(|(to, x)| *to = bf16::from_f32(*x).to_f32());
            }
        }
    });
    padded
}

/// Rows of a weight, `[channels, 3, 3]` each, widened and reordered to `[3, 3, channels]`.
fn reorder(rows: Weight<'_>, channels: usize, to: &mut [f32]) {
    const TAPS: usize = SIDE * SIDE;
    let k = TAPS * channels;
    let mut wide = Scratch::new(k, &WIDE);
    for (row, to) in to.chunks_exact_mut(k).take(rows.len() / k).enumerate() {
        rows.slice(row * k, (row + 1) * k).widen(&mut wide);
        for (channel, taps) in wide.as_chunks::<TAPS>().0.iter().enumerate() {
            for (tap, value) in taps.iter().enumerate() {
                to[tap * channels + channel] = *value;
            }
        }
    }
}
