//! Where numbers of a weight's tensors go in memory.

#![allow(clippy::needless_range_loop, reason = "rows and columns are counted, and change places")]

use std::ops::Range;

use outsize_checkpoint::{
    INTERLEAVED, IntegerOrder, IntegerWidth, Integers, StoredWeight, ZeroPoints,
};

use super::Part;

/// Words, or groups of rows of them, that are turned over at once: those of a cache line.
const TILE: usize = 16;

/// Some rows of a weight, and the lines of its tensors that they are in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lines {
    integers: Integers,
    /// The number of the first row among those of the tensors.
    first: usize,
    /// How many are wanted.
    pub(crate) rows: usize,
    /// How many a turned tensor has.
    all_rows: usize,
    pub(crate) columns: usize,
    /// Groups of a row.
    pub(crate) groups: usize,
    /// Columns of a group.
    pub(crate) group_columns: usize,
    /// Bytes of a row in memory.
    row_bytes: usize,
    /// Bytes of a scale.
    scale_bytes: usize,
}

impl Lines {
    /// Those of a weight of integers.
    pub(crate) fn of(weight: &StoredWeight) -> Option<Self> {
        let (format, &[rows, columns]) = (weight.format(), &weight.data().shape[..]) else {
            return None;
        };
        let (integers, grid) = (format.as_integers()?, format.scales?);
        Some(Self {
            integers,
            first: weight.first_row(),
            rows,
            all_rows: weight.scales()?.shape.last().copied()?,
            columns,
            groups: grid.shape([rows, columns])[1],
            group_columns: grid.block[1].max(1),
            row_bytes: usize::try_from(weight.row_bytes()).ok()?,
            scale_bytes: grid.dtype.size(),
        })
    }

    /// The number of a row of the tensors among those that are wanted.
    fn row(&self, of_all: usize) -> Option<usize> {
        of_all.checked_sub(self.first).filter(|row| *row < self.rows)
    }

    /// Row `at` of those that a word of zero points or of [`IntegerOrder::Interleaved`] is for.
    fn of_word(&self, at: usize) -> usize {
        match self.integers.order {
            IntegerOrder::Interleaved => INTERLEAVED[at],
            _ => at,
        }
    }

    /// The number that a word of zero points has one of at `at`.
    fn zero(&self, word: u32, at: usize) -> u8 {
        let ones = match (self.integers.zeros, self.integers.width) {
            (ZeroPoints::StoredLessOne, IntegerWidth::U4) => 0x1111_1111,
            (ZeroPoints::StoredLessOne, IntegerWidth::U8) => 0x0101_0101,
            _ => 0,
        };
        self.integers.width.number(word.wrapping_add(ones), at)
    }
}

/// The words that bytes are, with their numbers from that of the first on.
fn words(at: usize, raw: &[u8]) -> impl Iterator<Item = (usize, u32)> {
    let words = raw.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
    (at / 4..).zip(words)
}

/// Puts the bytes of a tensor, from byte `at` of it on, to where they lie in the memory of its
/// part.
pub(crate) fn place(lines: &Lines, part: Part, at: usize, raw: &[u8], to: &mut [u8]) {
    if raw.is_empty() {
        // There may be no lines.
        return;
    }
    match (part, lines.integers.order) {
        (Part::Data, IntegerOrder::Columns) => columns(lines, at, raw, to),
        (Part::Data, IntegerOrder::Interleaved) => interleaved(lines, at, raw, to),
        (Part::Scales, IntegerOrder::Columns | IntegerOrder::Interleaved) => {
            let size = lines.scale_bytes;
            for (number, scale) in (at / size..).zip(raw.chunks_exact(size)) {
                let (group, row) = (number / lines.all_rows, number % lines.all_rows);
                if let Some(row) = lines.row(row) {
                    to[(row * lines.groups + group) * size..][..size].copy_from_slice(scale);
                }
            }
        }
        (Part::Zeros, order) => {
            let per_word = lines.integers.width.per_word();
            let across = match order {
                IntegerOrder::Rows => lines.groups,
                _ => lines.all_rows.div_ceil(per_word),
            };
            for (number, word) in words(at, raw) {
                let (line, place) = (number / across, number % across);
                let (group, rows) = match order {
                    IntegerOrder::Rows => (place, line + lines.first / per_word),
                    _ => (line, place),
                };
                for at in 0..per_word {
                    if let Some(row) = lines.row(rows * per_word + lines.of_word(at)) {
                        to[row * lines.groups + group] = lines.zero(word, at);
                    }
                }
            }
        }
        (Part::Data | Part::Scales, IntegerOrder::Rows) => {
            to[at..at + raw.len()].copy_from_slice(raw);
        }
    }
}

/// The whole lines, of so many words each, that words from number `start` up to `end` have: their
/// numbers.
fn whole_lines(start: usize, end: usize, across: usize) -> Range<usize> {
    let first = start.div_ceil(across);
    first..(end / across).max(first)
}

/// Words that are neighbours of a row, line after line: one word of each row.
fn columns(lines: &Lines, at: usize, raw: &[u8], to: &mut [u8]) {
    let across = lines.all_rows;
    let (from, start) = (raw.as_chunks::<4>().0, at / 4);
    let end = start + from.len();
    let whole = whole_lines(start, end, across);
    let mut one = |number: usize| {
        if let Some(row) = lines.row(number % across) {
            let place = row * lines.row_bytes + number / across * 4;
            to[place..place + 4].copy_from_slice(&from[number - start]);
        }
    };
    (start..end.min(whole.start * across)).for_each(&mut one);
    (end.min(whole.end * across).max(end.min(whole.start * across))..end).for_each(&mut one);
    let mut tile = [[[0; 4]; TILE]; TILE];
    for first_row in (lines.first..lines.first + lines.rows).step_by(TILE) {
        let rows = TILE.min(lines.first + lines.rows - first_row);
        for first in whole.clone().step_by(TILE) {
            let count = TILE.min(whole.end - first);
            for (line, tile) in (first..).zip(&mut tile[..count]) {
                let place = line * across + first_row - start;
                tile[..rows].copy_from_slice(&from[place..place + rows]);
            }
            for row in 0..rows {
                let place = (first_row - lines.first + row) * lines.row_bytes + first * 4;
                let (to, _) = to[place..place + count * 4].as_chunks_mut::<4>();
                for (to, tile) in to.iter_mut().zip(&tile) {
                    *to = tile[row];
                }
            }
        }
    }
}

/// Numbers of 4 bits that are neighbours of a column, line after line: eight rows of one column in
/// each word.
fn interleaved(lines: &Lines, at: usize, raw: &[u8], to: &mut [u8]) {
    let across = (lines.all_rows / 8).max(1);
    let (from, start) = (raw.as_chunks::<4>().0, at / 4);
    let end = start + from.len();
    // Eight lines are words of a row.
    let all = whole_lines(start, end, across);
    let whole = whole_lines(all.start, all.end, 8);
    let mut one = |number: usize| {
        let (column, word) = (number / across, u32::from_le_bytes(from[number - start]));
        for at in 0..8 {
            if let Some(row) = lines.row(number % across * 8 + INTERLEAVED[at]) {
                let byte = &mut to[row * lines.row_bytes + column / 2];
                let shift = column % 2 * 4;
                *byte = *byte & !(15 << shift) | IntegerWidth::U4.number(word, at) << shift;
            }
        }
    };
    let first = end.min(whole.start * 8 * across);
    (start..first).for_each(&mut one);
    (end.min(whole.end * 8 * across).max(first)..end).for_each(&mut one);
    // Of each row the words of a tile.
    let mut tile = [[[0; 4]; TILE]; 8 * TILE];
    for first_place in (0..across).step_by(TILE) {
        let places = TILE.min(across - first_place);
        for first in whole.clone().step_by(TILE) {
            let count = TILE.min(whole.end - first);
            for group in 0..count {
                let mut eight = [[0; TILE]; 8];
                for (line, eight) in eight.iter_mut().enumerate() {
                    let place = ((first + group) * 8 + line) * across + first_place - start;
                    for (to, word) in eight.iter_mut().zip(&from[place..place + places]) {
                        *to = u32::from_le_bytes(*word);
                    }
                }
                turn(&mut eight);
                for (at, words) in eight.iter().enumerate() {
                    for (place, word) in words.iter().enumerate() {
                        tile[place * 8 + INTERLEAVED[at]][group] = word.to_le_bytes();
                    }
                }
            }
            for (row, tile) in tile[..places * 8].iter().enumerate() {
                if let Some(row) = lines.row(first_place * 8 + row) {
                    let place = row * lines.row_bytes + first * 4;
                    let to = &mut to[place..place + count * 4];
                    to.copy_from_slice(tile[..count].as_flattened());
                }
            }
        }
    }
}

/// Of eight words of eight numbers of 4 bits, makes number `i` of word `j` number `j` of word `i`:
/// of many at once.
fn turn(words: &mut [[u32; TILE]; 8]) {
    for (apart, mask) in [(4, 0x0000_ffff), (2, 0x00ff_00ff), (1, 0x0f0f_0f0f)] {
        for first in 0..8 {
            if first & apart != 0 {
                continue;
            }
            for lane in 0..TILE {
                let (low, high) = (words[first][lane], words[first + apart][lane]);
                let shift = 4 * apart as u32;
                words[first][lane] = low & mask | (high & mask) << shift;
                words[first + apart][lane] = low >> shift & mask | high & !mask;
            }
        }
    }
}

/// Calls `write` with row, column and number of each number of the data, from byte `at` of the
/// tensor on.
pub(crate) fn numbers(
    lines: &Lines,
    at: usize,
    raw: &[u8],
    mut write: impl FnMut(usize, usize, u8),
) {
    let width = lines.integers.width;
    let per_word = width.per_word();
    let mut of_word = |number: usize, word: u32| {
        let across = match lines.integers.order {
            IntegerOrder::Rows => lines.columns.div_ceil(per_word),
            IntegerOrder::Columns => lines.all_rows,
            IntegerOrder::Interleaved => lines.all_rows / per_word,
        };
        let (line, place) = (number / across, number % across);
        for at in 0..per_word {
            let (row, column) = match lines.integers.order {
                // The tensor has no other rows.
                IntegerOrder::Rows => (Some(line), place * per_word + at),
                IntegerOrder::Columns => (lines.row(place), line * per_word + at),
                IntegerOrder::Interleaved => (lines.row(place * per_word + INTERLEAVED[at]), line),
            };
            if let Some(row) = row.filter(|_| column < lines.columns) {
                write(row, column, width.number(word, at));
            }
        }
    };
    match width {
        IntegerWidth::I8 => {
            (at..).zip(raw).for_each(|(number, byte)| of_word(number, u32::from(*byte)));
        }
        _ => words(at, raw).for_each(|(number, word)| of_word(number, word)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_turned_over() {
        let mut words = [[0; TILE]; 8];
        let number = |word: u32, at: u32| (word * 5 + at * 3 + word * at) & 15;
        for (word, lanes) in (0..).zip(&mut words) {
            lanes.fill((0..8).map(|at| number(word, at) << (4 * at)).sum::<u32>());
        }
        turn(&mut words);
        for (word, lanes) in (0..).zip(&words) {
            let wanted: u32 = (0..8).map(|at| number(at, word) << (4 * at)).sum();
            assert_eq!(*lanes, [wanted; TILE], "word {word}");
        }
    }

    #[test]
    fn of_nothing_there_is_nothing() {
        for (order, width) in [
            (IntegerOrder::Columns, IntegerWidth::U8),
            (IntegerOrder::Interleaved, IntegerWidth::U4),
            (IntegerOrder::Rows, IntegerWidth::U4),
        ] {
            let integers = Integers { width, order, zeros: ZeroPoints::Stored };
            let (rows, columns) = (0, 0);
            let lines = Lines {
                integers,
                first: 0,
                rows,
                all_rows: 0,
                columns,
                groups: 0,
                group_columns: 1,
                row_bytes: 0,
                scale_bytes: 2,
            };
            for part in [Part::Data, Part::Scales, Part::Zeros] {
                place(&lines, part, 0, &[], &mut []);
            }
            numbers(&lines, 0, &[], |_, _, _| panic!("no number"));
        }
    }

    proptest! {
        /// Every number of the tensor is at its row and column, however the tensor is read.
        #[test]
        fn numbers_come_to_their_rows(
            kind in prop::sample::select(vec![
                (IntegerOrder::Columns, IntegerWidth::U4),
                (IntegerOrder::Columns, IntegerWidth::U8),
                (IntegerOrder::Interleaved, IntegerWidth::U4),
            ]),
            outputs in 1usize..300, columns in 1usize..300, some in any::<bool>(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5), seed in any::<u32>(),
        ) {
            let (order, width) = kind;
            let outputs = match order {
                IntegerOrder::Interleaved => outputs.next_multiple_of(8),
                _ => outputs,
            };
            let integers = Integers { width, order, zeros: ZeroPoints::Stored };
            let count = match order {
                IntegerOrder::Interleaved => columns * outputs / 8,
                _ => columns.div_ceil(width.per_word()) * outputs,
            };
            let (first, rows) = if some { (outputs / 3, outputs / 2) } else { (0, outputs) };
            let row_bytes = width.row_bytes(columns).unwrap() as usize;
            let lines = Lines {
                integers, first, rows, all_rows: outputs, columns, groups: 1, group_columns: columns,
                row_bytes, scale_bytes: 2,
            };
            let raw: Vec<u8> = (0..4 * count as u32)
                .map(|at| (at.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 24) as u8)
                .collect();
            let mut ends: Vec<_> = cuts.iter().map(|cut| 4 * cut.index(count)).collect();
            ends.extend([0, raw.len()]);
            ends.sort_unstable();
            let mut to = vec![0xaa; rows * row_bytes];
            for cut in ends.windows(2).rev() {
                place(&lines, Part::Data, cut[0], &raw[cut[0]..cut[1]], &mut to);
            }
            let mut seen = 0;
            numbers(&lines, 0, &raw, |row, column, number| {
                seen += 1;
                let bits = 32 / width.per_word();
                let byte = to[row * row_bytes + column * bits / 8];
                let found = byte >> (column * bits % 8) & ((1u32 << bits) - 1) as u8;
                assert_eq!(found, number, "{row} {column}");
            });
            prop_assert_eq!(seen, rows * columns);
        }
    }
}
