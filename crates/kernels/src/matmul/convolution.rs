//! Convolutions of pictures `[batch, rows, columns, channels]`, of 3x3 and of 1x1 pixels, on tiles
//! of [outer products](super::broadcast).
//!
//! The picture is copied once, with the zeros around it, so that each channel's pixels of a row lie
//! side by side: a tile reads those that its outputs see where they lie, for each of the nine taps
//! of a 3x3 convolution. There is no im2col. A convolution of 1x1 is a matmul, and runs the same
//! way.
//!
//! A checkpoint stores a row of the weight as `[channels, 3, 3]`. Some rows and channels at a time
//! are widened, or rounded to bf16, and turned over, into memory that stays in the second-level
//! cache while many outputs pass it.

use std::cell::Cell;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::blocks::OutputPtr;
use super::broadcast::{self, Destination, MAX_COLUMNS, Seen, WIDTH, Word};
use super::claims::Claims;
use super::element::Element;
use super::pack::{RowBlocks, Scratch};
use super::panel::{PanelSource, Pixels, Words, pack_panel, pack_pixels};
use crate::buffer::Buffer;
use crate::simd::{Vector, for_each_isa};
use crate::{ActivationDtype, Isa, Weight, buffer, loops};

/// Rows and columns that an output of the larger kind sees.
const SIDE: usize = 3;

/// A thread takes so many outputs of a channel at least through a panel, if there are as many, so
/// that it is worth turning over.
const MIN_PIXELS: usize = 1024;

/// Blocks of outputs that each thread takes, about: so that all end together.
const BLOCKS: usize = 8;

/// A panel has at most so many words of each output, so that it stays in the second-level cache
/// beside the pixels.
const PANEL_WORDS: usize = 2880;

/// Pixels of a line of a convolution of 1x1, at most.
const LINE: usize = 28;

/// Words behind the last line: tiles of sixteen pixels read what lies beyond the last pixel, and
/// make nothing of it.
const SLACK: usize = 32;

thread_local! {
    static PANEL: Cell<Vec<Word>> = const { Cell::new(Vec::new()) };
}

/// What is convolved: `[batch, rows, columns, channels]`, of which, for 3x3 pixels, each row has a
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
    /// Which pixels outputs see.
    pub window: ConvolutionWindow,
}

impl ConvolutionShape {
    /// Rows and columns of the output.
    pub fn output(&self) -> [usize; 2] {
        self.window.output(self.rows, self.columns)
    }
}

/// Which pixels the outputs of a convolution see, and which outputs there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvolutionWindow {
    /// One pixel each.
    One,
    /// Three rows of three pixels each.
    Three {
        /// Pixels from what one output sees to what the next one does, in either direction; at
        /// least one.
        stride: usize,
        /// Whether there is a row of zeros above the first row; if not, outputs begin below it: it
        /// is the end of a band.
        above: bool,
        /// Whether there is a row of zeros below the last row; if not, outputs end above it.
        below: bool,
    },
}

impl ConvolutionWindow {
    /// Three rows of three pixels each of a whole picture.
    pub fn three(stride: usize) -> Self {
        Self::Three { stride, above: true, below: true }
    }

    /// Rows and columns of what comes of a picture of so many.
    pub fn output(&self, rows: usize, columns: usize) -> [usize; 2] {
        match *self {
            Self::One => [rows, columns],
            Self::Three { stride, above, below } => {
                let around = usize::from(above) + usize::from(below);
                [rows.saturating_add(around), columns.saturating_add(2)].map(|side| {
                    match side.checked_sub(SIDE) {
                        Some(more) => more / stride + 1,
                        None => 0,
                    }
                })
            }
        }
    }

    /// Pixels that an output sees.
    pub fn taps(&self) -> usize {
        match self {
            Self::One => 1,
            Self::Three { .. } => SIDE * SIDE,
        }
    }
}

/// What a convolution gives, or some of its output channels.
#[derive(Debug)]
pub struct ConvolutionOutputs<'a> {
    /// `[outputs, channels, 3, 3]`, or `[outputs, channels]`; not in blocks.
    pub weight: Weight<'a>,
    /// What is added to each of the outputs; nothing if empty. If there is none at all, they are
    /// added to what `y` holds.
    pub bias: Option<&'a [f32]>,
    /// `[batch, rows, columns, n]`.
    pub y: &'a mut [f32],
    /// Values of an output pixel.
    pub n: usize,
    /// Which of them the weight gives.
    pub outputs: Range<usize>,
}

/// Pictures to be convolved, rounded and packed once for any number of weights.
#[derive(Debug)]
pub struct PackedPictures {
    isa: Isa,
    words: Words,
    lines: Lines,
    packed: Buffer,
}

/// An upper bound on the bytes that each thread keeps for convolutions.
pub fn convolution_bytes() -> u64 {
    // Chunks of channels are rounded up to tiles of sixteen words.
    (4 * MAX_COLUMNS * (PANEL_WORDS + 16 * SIDE * SIDE) + 64) as u64
}

impl PackedPictures {
    /// Pictures `x`, as `shape` says.
    ///
    /// # Panics
    ///
    /// If they do not fill that shape, or if this processor does not have `isa`.
    pub fn new(isa: Isa, compute: ActivationDtype, x: &[f32], shape: ConvolutionShape) -> Self {
        assert!(isa.is_available(), "this processor does not have {isa:?}");
        let ConvolutionShape { batch, rows, columns, channels, .. } = shape;
        let len = product([batch, rows, columns, channels]);
        assert_eq!(Some(x.len()), len, "x must fill {shape:?}");
        let words = Words::of(isa, compute);
        let lines = Lines::new(words, &shape);
        let packed = lines.pack(isa, words, x);
        Self { isa, words, lines, packed }
    }

    /// Writes the convolution's outputs.
    ///
    /// As for [matmuls](crate#the-contract), the bits of an output depend on what it sees, on the
    /// weight's row, the bias or what `y` held, the [`Isa`] and the [`ActivationDtype`], and on
    /// nothing else: not on the picture's size, nor on the rows or outputs that are computed in the
    /// same call.
    ///
    /// # Accuracy
    ///
    /// With `k` products of an output, whose magnitudes add up to `s`: the error is at most that of
    /// `min(k,
    /// 3000) + k / 1500 + 2` roundings of `2⁻²⁴ ·
    ///       s` each, twice as many where multiply-adds are not fused. Under
    ///       [`ActivationDtype::Bf16`] activations are rounded to bf16 first; where the processor
    ///       multiplies pairs or tiles of bf16, weights in f16 and f32 are too, and subnormal
    ///       numbers count as zero: that is off by at most `2⁻⁷ · s`, and by `2⁻⁸ · s` with weights
    ///       in bf16.
    ///
    /// # Panics
    ///
    /// If sizes do not fit each other, or if the weight is in blocks.
    pub fn convolve_into(&mut self, to: ConvolutionOutputs<'_>) {
        let ConvolutionOutputs { weight, bias, ref y, n, ref outputs } = to;
        let ConvolutionShape { batch, channels, window, .. } = self.lines.shape;
        let [height, width] = self.lines.shape.output();
        let len = product([batch, height, width, n]);
        assert_eq!(Some(y.len()), len, "y must fill {height} x {width}");
        assert!(outputs.start <= outputs.end && outputs.end <= n, "outputs {outputs:?} of {n}");
        assert_eq!(
            Some(weight.len()),
            product([outputs.len(), channels, window.taps(), 1]),
            "weight must hold {} rows of {channels} channels",
            outputs.len()
        );
        let biases = bias.map_or(0, <[f32]>::len);
        assert!(biases == 0 || biases == outputs.len(), "each output has a bias");
        if batch * height * width * outputs.len() == 0 {
            return;
        }
        match weight {
            Weight::Bf16(weight) => self.convolve(weight, to),
            Weight::F16(weight) => self.convolve(weight, to),
            Weight::F32(weight) => self.convolve(weight, to),
            Weight::Blocks(_) => panic!("a convolution's weight must not be in blocks"),
        }
    }

    fn convolve<E: Element>(
        &mut self,
        weight: &[E],
        ConvolutionOutputs { bias, y, n, outputs, .. }: ConvolutionOutputs<'_>,
    ) {
        let Self { isa, words, ref lines, ref mut packed } = *self;
        let shape = &lines.shape;
        let packed: &[Word] = packed.words();
        let (taps, side) = (shape.window.taps(), lines.side);
        let (row, panel) = (taps * shape.channels, columns_of_panel(isa));
        let chunks = Chunks::new(words, shape.channels, taps);
        let panels = outputs.len().div_ceil(panel);
        let wanted = (BLOCKS * crate::threads()).div_ceil(panels);
        let group =
            lines.count.div_ceil(wanted).max(MIN_PIXELS.div_ceil(lines.width)).min(lines.count);
        let groups = lines.count.div_ceil(group);
        let claims = Claims::of(panels * groups, crate::threads());
        let output = OutputPtr(y.as_mut_ptr());
        claims.share(|run| {
            let mut memory = Scratch::new(panel * taps * words.count(chunks.size), &PANEL);
            let mut held = None;
            for block in run {
                let (index, group_index) = (block / groups, block % groups);
                let some = index * panel..outputs.len().min((index + 1) * panel);
                let mut beginning = [0.0; MAX_COLUMNS];
                if let Some(bias) = bias.filter(|bias| !bias.is_empty()) {
                    beginning[..some.len()].copy_from_slice(&bias[some.clone()]);
                }
                for channels in chunks.all() {
                    if held != Some((index, channels.start)) {
                        held = Some((index, channels.start));
                        let weight = &weight[some.start * row..some.end * row];
                        let (rows, channels) = (some.len(), channels.clone());
                        let source = PanelSource { weight, rows, row, side, channels };
                        // SAFETY: the assertions: the processor has the instructions.
                        unsafe { pack_panel(isa, words, &source, &mut memory) };
                    }
                    let depth = words.count(channels.len());
                    let word = channels.start / words.values() * lines.slots;
                    for line in group_index * group..lines.count.min((group_index + 1) * group) {
                        let (at, pixels) = lines.line(line);
                        let to = Destination {
                            y: output.column(line * lines.width * n + outputs.start + some.start),
                            n,
                            columns: some.len(),
                            bias: (channels.start == 0 && bias.is_some()).then_some(&beginning),
                        };
                        // SAFETY: the assertions: the processor has the instructions, and the
                        // slices have the lengths that the shape asks for. The pixels that a line
                        // of outputs sees begin in line `at` of the packed ones and end `side`
                        // lines below; the panel has weights for `depth` words. No two blocks have
                        // a line and an output in common, so that no element of `y` is written by
                        // two calls; nobody else reads `y`.
                        unsafe {
                            let x = packed.as_ptr().add(at * lines.words + word);
                            lines.multiply((isa, words), x, (memory.as_ptr(), depth), pixels, to);
                        }
                    }
                }
            }
        });
    }
}

/// The product of sides, if it is a number.
fn product(sides: [usize; 4]) -> Option<usize> {
    sides.into_iter().try_fold(1, usize::checked_mul)
}

/// How channels are cut, so that the panels of their weights stay in the cache.
#[derive(Clone, Copy)]
struct Chunks {
    channels: usize,
    size: usize,
}

impl Chunks {
    fn new(words: Words, channels: usize, taps: usize) -> Self {
        let most = PANEL_WORDS / taps * words.values();
        let count = channels.div_ceil(most).max(1);
        // Of whole tiles of words.
        let size = channels.div_ceil(count).next_multiple_of(16 * words.values());
        Self { channels, size: size.max(1) }
    }

    /// One, with no channels, if there are none.
    fn all(self) -> impl Iterator<Item = Range<usize>> {
        let Self { channels, size } = self;
        (0..channels.max(1)).step_by(size).map(move |start| start..channels.min(start + size))
    }
}

/// The lines of outputs of a convolution, and how the pixels lie that they see.
#[derive(Debug)]
struct Lines {
    shape: ConvolutionShape,
    side: usize,
    /// How many lines there are, and pixels in each but the last.
    count: usize,
    width: usize,
    /// Pixels in all.
    pixels: usize,
    /// Slots for the pixels of a line, and how many words they all have.
    slots: usize,
    words: usize,
    /// Of the slots: those of pixels that are as far apart as neighbouring outputs lie side by
    /// side.
    part: usize,
}

impl Lines {
    fn new(words: Words, shape: &ConvolutionShape) -> Self {
        let [height, width] = shape.output();
        let pixels = shape.batch * height * width;
        let (side, count, width, part, slots) = match shape.window {
            ConvolutionWindow::One => {
                let count = RowBlocks::new(pixels, LINE).len();
                let width = pixels.div_ceil(count.max(1)).max(1);
                (1, pixels.div_ceil(width), width, width, width)
            }
            ConvolutionWindow::Three { stride, .. } => {
                let part = (shape.columns + 2).div_ceil(stride);
                (SIDE, shape.batch * height, width, part, part * stride)
            }
        };
        Self {
            shape: *shape,
            side,
            count,
            width,
            pixels,
            slots,
            words: words.count(shape.channels) * slots,
            part,
        }
    }

    /// Of a line of outputs: which line of pixels is the first that it sees, and how many outputs
    /// there are.
    fn line(&self, line: usize) -> (usize, usize) {
        match self.shape.window {
            ConvolutionWindow::One => (line, self.width.min(self.pixels - line * self.width)),
            ConvolutionWindow::Three { stride, .. } => {
                let [height, width] = self.shape.output();
                (line / height * self.padded_rows() + line % height * stride, width)
            }
        }
    }

    /// Rows of a picture with the zeros around them.
    fn padded_rows(&self) -> usize {
        match self.shape.window {
            ConvolutionWindow::One => self.count,
            ConvolutionWindow::Three { above, below, .. } => {
                self.shape.rows + usize::from(above) + usize::from(below)
            }
        }
    }

    /// The picture as it is multiplied, with the zeros around it.
    fn pack(&self, isa: Isa, words: Words, x: &[f32]) -> Buffer {
        let ConvolutionShape { batch, rows, columns, channels, window } = self.shape;
        match window {
            ConvolutionWindow::One => {
                let mut packed = buffer::take(self.count * self.words + SLACK);
                let lines =
                    packed.words().chunks_exact_mut(self.words.max(1)).take(self.count).enumerate();
                loops::share(lines, |(line, to)| {
                    let (line, count) = self.line(line);
                    let values = &x[line * self.width * channels..][..count * channels];
                    let slots = self.slots;
                    let pixels =
                        Pixels { values, count, step: channels, channels, start: 0, slots };
                    pack_pixels(isa, words, &pixels, to);
                });
                packed
            }
            ConvolutionWindow::Three { stride, above, .. } => {
                let (padded, above) = (self.padded_rows(), usize::from(above));
                let mut packed = buffer::take(batch * padded * self.words + SLACK);
                let lines = packed
                    .words()
                    .chunks_exact_mut(self.words.max(1))
                    .take(batch * padded)
                    .enumerate();
                loops::share(lines, |(line, to)| {
                    let (picture, row) = (line / padded, line % padded);
                    let Some(row) = row.checked_sub(above).filter(|row| *row < rows) else {
                        return to.fill(0);
                    };
                    let from = &x[(picture * rows + row) * columns * channels..];
                    let slot = |column: usize| column % stride * self.part + column / stride;
                    for to in to.chunks_exact_mut(self.slots) {
                        (to[0], to[slot(columns + 1)]) = (0, 0);
                    }
                    // The pixels that lie side by side, counted with the zero on the left.
                    for first in 1..=stride.min(columns) {
                        let values = &from[(first - 1) * channels..columns * channels];
                        let count = (columns + 1 - first).div_ceil(stride);
                        let (step, start, slots) = (stride * channels, slot(first), self.slots);
                        let pixels = Pixels { values, count, step, channels, start, slots };
                        pack_pixels(isa, words, &pixels, to);
                    }
                });
                packed
            }
        }
    }

    /// Computes a line of so many outputs, for a panel of so many words of each.
    ///
    /// # Safety
    ///
    /// That of [`broadcast::rows`], with `isa`, which multiplies such words.
    unsafe fn multiply(
        &self,
        (isa, words): (Isa, Words),
        x: *const Word,
        (panel, depth): (*const Word, usize),
        pixels: usize,
        to: Destination<'_>,
    ) {
        let (line, word) = (self.words, self.slots);
        // SAFETY: the caller's promises.
        unsafe {
            match self.shape.window {
                ConvolutionWindow::One => {
                    let seen = Seen { line, depth, word, taps: [0] };
                    match words {
                        #[cfg(target_arch = "x86_64")]
                        Words::Tiles => amx::rows(x, seen, panel, pixels, to),
                        #[cfg(target_arch = "x86_64")]
                        Words::Pairs => pairs_of_one(x, seen, panel, pixels, to),
                        _ => singles_of_one(isa, x, seen, panel, pixels, to),
                    }
                }
                ConvolutionWindow::Three { stride, .. } => {
                    let tap = |tap: usize| tap % stride * self.part + tap / stride;
                    let taps = [tap(0), tap(1), tap(2)];
                    let seen = Seen { line, depth, word, taps };
                    match words {
                        #[cfg(target_arch = "x86_64")]
                        Words::Tiles => amx::rows(x, seen, panel, pixels, to),
                        #[cfg(target_arch = "x86_64")]
                        Words::Pairs => pairs_of_three(x, seen, panel, pixels, to),
                        _ => singles_of_three(isa, x, seen, panel, pixels, to),
                    }
                }
            }
        }
    }
}

for_each_isa! {
    /// Outputs of a panel.
    fn columns_of_panel<V>() -> usize {
        WIDTH * V::LANES
    }
}

/// [`broadcast::rows`] for an instruction set: of words of one kind, with one number of lines.
macro_rules! rows_of {
    ($singles:ident, $pairs:ident, $side:expr) => {
        for_each_isa! {
            /// # Safety
            ///
            /// That of [`broadcast::rows`].
            unsafe fn $singles<V>(
                x: *const Word,
                seen: Seen<$side, 1>,
                panel: *const Word,
                rows: usize,
                to: Destination<'_>,
            ) {
                // SAFETY: the caller's promises.
                unsafe { broadcast::rows::<broadcast::Singles<V>, $side, 1>(x, seen, panel, rows, to) }
            }
        }

        /// # Safety
        ///
        /// That of [`broadcast::rows`].
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
        unsafe fn $pairs(
            x: *const Word,
            seen: Seen<$side, 1>,
            panel: *const Word,
            rows: usize,
            to: Destination<'_>,
        ) {
            // SAFETY: the caller's promises.
            unsafe { broadcast::rows::<broadcast::Pairs, $side, 1>(x, seen, panel, rows, to) }
        }
    };
}

rows_of!(singles_of_one, pairs_of_one, 1);
rows_of!(singles_of_three, pairs_of_three, SIDE);
