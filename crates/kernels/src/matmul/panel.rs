//! Activations and weights in the order in which tiles of [outer products](super::broadcast) read
//! them.

#![allow(clippy::needless_range_loop, reason = "rows and columns are counted, and change places")]

use std::ops::Range;

use super::broadcast::{WIDTH, Word};
use super::element::Element;
use crate::cast::narrow_bf16;
use crate::simd::{Vector, for_each_isa};
use crate::{ActivationDtype, Isa};

/// Rows and columns of a block that is turned over at once.
const BLOCK: usize = 16;

type Block = [[Word; BLOCK]; BLOCK];

/// The most taps of a convolution.
const MAX_TAPS: usize = 9;

/// What the words are that a loop multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    /// f32.
    Singles,
    /// f32 that activations are rounded to bf16 for.
    Rounded,
    /// Pairs of bf16, those of a panel's outputs side by side.
    Pairs,
    /// Pairs of bf16, sixteen of an output side by side.
    Tiles,
}

impl Words {
    /// Those that are multiplied.
    pub fn of(isa: Isa, compute: ActivationDtype) -> Self {
        match (isa, compute) {
            (_, ActivationDtype::F32) => Words::Singles,
            (Isa::Avx512Bf16, ActivationDtype::Bf16) => Words::Pairs,
            (Isa::AmxBf16, ActivationDtype::Bf16) => Words::Tiles,
            (_, ActivationDtype::Bf16) => Words::Rounded,
        }
    }

    /// Values in a word.
    pub fn values(self) -> usize {
        match self {
            Words::Singles | Words::Rounded => 1,
            Words::Pairs | Words::Tiles => 2,
        }
    }

    /// Words that so many channels take.
    pub fn count(self, channels: usize) -> usize {
        let words = channels.div_ceil(self.values());
        match self {
            Words::Tiles => words.next_multiple_of(BLOCK),
            _ => words,
        }
    }
}

/// A pair of bf16.
#[inline(always)]
pub(crate) fn pair(low: f32, high: f32) -> Word {
    Word::from(narrow_bf16(low)) | Word::from(narrow_bf16(high)) << 16
}

/// Rows become columns.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn transpose<V: Vector>(block: &mut Block) {
    #[cfg(target_arch = "x86_64")]
    if V::LANES == 16 {
        // SAFETY: a block is sixteen vectors, and the processor has AVX-512.
        unsafe {
            let rows = crate::simd::transposed(std::mem::transmute_copy(block));
            *block = std::mem::transmute::<[std::arch::x86_64::__m512i; BLOCK], Block>(rows);
        }
        return;
    }
    for row in 0..BLOCK {
        for column in 0..row {
            let (upper, lower) = (block[column][row], block[row][column]);
            (block[column][row], block[row][column]) = (lower, upper);
        }
    }
}

/// Some pixels of `channels` values each, and where their words go: word `w` of pixel `i` to slot
/// `start + i` of the `slots` slots of `w`.
pub(crate) struct Pixels<'a> {
    /// From the first value of the first pixel on.
    pub values: &'a [f32],
    /// How many pixels.
    pub count: usize,
    /// From one to the next.
    pub step: usize,
    /// Values of each.
    pub channels: usize,
    /// Where the first goes.
    pub start: usize,
    /// Slots of each word.
    pub slots: usize,
}

for_each_isa! {
    /// Writes the words of the pixels to `to`.
    pub(crate) fn pack_pixels<V>(words: Words, pixels: &Pixels<'_>, to: &mut [Word]) {
        let Pixels { values, count, step, channels, start, slots } = *pixels;
        let all = words.count(channels);
        assert!(to.len() >= all * slots && start + count <= slots, "pixels must fit into the slots");
        let width = BLOCK * words.values();
        for first in (0..count).step_by(BLOCK) {
            let some = BLOCK.min(count - first);
            for (number, channel) in (0..all.max(1)).step_by(BLOCK).zip((0..).step_by(width)) {
                let mut block = [[0; BLOCK]; BLOCK];
                let there = width.min(channels.saturating_sub(channel));
                for (row, block) in block[..some].iter_mut().enumerate() {
                    let at = (first + row) * step + channel;
                    let from = &values[at..at + there];
                    match (words, <&[f32; BLOCK]>::try_from(from), <&[f32; 2 * BLOCK]>::try_from(from)) {
                        (Words::Singles, Ok(from), _) => *block = from.map(f32::to_bits),
                        (Words::Pairs | Words::Tiles, _, Ok(from)) => {
                            let halves = from.map(narrow_bf16);
                            *block = std::array::from_fn(|at| {
                                Word::from(halves[2 * at]) | Word::from(halves[2 * at + 1]) << 16
                            });
                        }
                        _ => {
                            let value = |at: usize| from.get(at).copied().unwrap_or(0.0);
                            *block = std::array::from_fn(|at| match words {
                                Words::Singles => value(at).to_bits(),
                                Words::Rounded => Word::from(narrow_bf16(value(at))) << 16,
                                Words::Pairs | Words::Tiles => pair(value(2 * at), value(2 * at + 1)),
                            });
                        }
                    }
                }
                // SAFETY: this function has the instructions of `V`.
                unsafe { transpose::<V>(&mut block) };
                for (word, block) in block.iter().enumerate().take(all - number) {
                    let at = (number + word) * slots + start + first;
                    match <&mut [Word; BLOCK]>::try_from(&mut to[at..at + some]) {
                        Ok(to) => *to = *block,
                        Err(_) => to[at..at + some].copy_from_slice(&block[..some]),
                    }
                }
            }
        }
    }
}

/// Rows of a weight `[channels, taps]` each, of which a panel has some channels.
pub(crate) struct PanelSource<'a, E> {
    /// Row after row.
    pub weight: &'a [E],
    /// How many rows there are.
    pub rows: usize,
    /// Values from one to the next.
    pub row: usize,
    /// Rows or columns of the taps: 1 or 3.
    pub side: usize,
    /// Those that are wanted. They begin with a word.
    pub channels: Range<usize>,
}

for_each_isa! {
    /// Writes the panel of some rows of a weight, no more than a tile has outputs:
    /// `[side, words of channels, side, outputs]`, or, for [`Words::Tiles`],
    /// `[side, words of channels / 16, side, outputs, 16]`. Outputs that there are no rows for are
    /// zero.
    ///
    /// # Safety
    ///
    /// The processor has the instructions.
    pub(crate) unsafe fn pack_panel<V, E: Element>(
        words: Words,
        source: &PanelSource<'_, E>,
        to: &mut [Word],
    ) {
        let PanelSource { weight, rows, row, side, ref channels } = *source;
        let (taps, outputs) = (side * side, WIDTH * V::LANES);
        let lanes = outputs.min(BLOCK);
        let all = words.count(channels.len());
        assert!(taps <= MAX_TAPS && channels.end * taps <= row && to.len() >= taps * all * outputs);
        // Where what is multiplied by a tap begins, in words or tiles of words.
        let depth = if words == Words::Tiles { all / BLOCK } else { all };
        let mut begins = [0; MAX_TAPS];
        for (tap, begin) in begins.iter_mut().enumerate() {
            *begin = (tap / side * depth * side + tap % side) * outputs;
        }
        let next = side * outputs;
        let (mut block, mut staged) = ([[0; BLOCK]; BLOCK], [[0; BLOCK]; BLOCK * MAX_TAPS]);
        for group in (0..outputs).step_by(lanes) {
            let there = rows.saturating_sub(group).min(lanes);
            for first in channels.clone().step_by(BLOCK) {
                let some = BLOCK.min(channels.end - first);
                let number = (first - channels.start) / words.values();
                let (mut channel, mut tap) = (0, 0);
                for at in (0..some * taps).step_by(BLOCK) {
                    let count = BLOCK.min(some * taps - at);
                    for (output, block) in block[..there].iter_mut().enumerate() {
                        let begin = (group + output) * row + first * taps + at;
                        // SAFETY: this function has the instructions of `V`.
                        unsafe { load::<V, E>(&weight[begin..begin + count], block) };
                    }
                    block[there..].fill([0; BLOCK]);
                    // SAFETY: as above.
                    unsafe { transpose::<V>(&mut block) };
                    if words.values() > 1 {
                        staged[at..at + BLOCK].copy_from_slice(&block);
                        continue;
                    }
                    for outputs in &block[..count] {
                        let at = begins[tap] + (number + channel) * next + group;
                        match <&mut [Word; BLOCK]>::try_from(&mut to[at..at + lanes]) {
                            Ok(to) => *to = *outputs,
                            Err(_) => to[at..at + lanes].copy_from_slice(&outputs[..lanes]),
                        }
                        tap += 1;
                        if tap == taps {
                            (channel, tap) = (channel + 1, 0);
                        }
                    }
                }
                if words.values() == 1 {
                    continue;
                }
                for tap in 0..taps {
                    block.fill([0; BLOCK]);
                    for (word, block) in block[..some.div_ceil(2)].iter_mut().enumerate() {
                        let low = &staged[2 * word * taps + tap];
                        let high = if 2 * word + 1 < some { (2 * word + 1) * taps + tap } else { NONE };
                        let high = staged.get(high).unwrap_or(&[0; BLOCK]);
                        for ((to, low), high) in block.iter_mut().zip(low).zip(high) {
                            *to = pair(f32::from_bits(*low), f32::from_bits(*high));
                        }
                    }
                    if words == Words::Pairs {
                        for (word, outputs) in block[..some.div_ceil(2)].iter().enumerate() {
                            let at = begins[tap] + (number + word) * next + group;
                            to[at..at + BLOCK].copy_from_slice(outputs);
                        }
                        continue;
                    }
                    // These sixteen channels are half of a tile's, or the last.
                    // SAFETY: as above.
                    unsafe { transpose::<V>(&mut block) };
                    let (tile, half) = (number / BLOCK, number % BLOCK);
                    let at = begins[tap] + tile * next + group;
                    for (output, words) in block.iter().enumerate() {
                        let at = (at + output) * BLOCK;
                        to[at + half..at + BLOCK].copy_from_slice(&words[..BLOCK - half]);
                    }
                }
            }
        }
    }
}

/// No place of what is staged.
const NONE: usize = usize::MAX;

/// Widens up to sixteen values, with zeros up to whole vectors.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn load<V: Vector, E: Element>(from: &[E], to: &mut [Word; BLOCK]) {
    let (count, from, to) = (from.len().min(BLOCK), from.as_ptr(), to.as_mut_ptr().cast::<f32>());
    let mut at = 0;
    // SAFETY: loads are of elements `at..count`, of `count`; each store is of a whole vector within
    // sixteen lanes, which every vector's lanes divide.
    unsafe {
        while at + V::LANES <= count {
            E::load::<V>(from.add(at)).store(to.add(at));
            at += V::LANES;
        }
        if at < count {
            E::load_part::<V>(from.add(at), count - at).store(to.add(at));
        }
    }
}
