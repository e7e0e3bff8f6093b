//! Activations in the order in which the loops read them.
//!
//! Rows of a matrix whose width is a power of two begin at the same place of every cache set, so
//! that a row block of more rows than the cache has ways would evict itself. Packed, a row block of
//! `height` rows is read from its first byte to its last:
//!
//! ```text
//! row 0, lanes 0..L | row 1, lanes 0..L | … | row 0, lanes L..2L | row 1, lanes L..2L | …
//! ```
//!
//! with zeros up to a multiple of the lanes. Row blocks follow one another, so that the one that
//! begins with row `r` begins `r` padded rows from the start. The first begins at a cache line: a
//! vector that lies across two lines is read at half the speed.

use std::cell::Cell;
use std::ops::{Deref, DerefMut, Range};
use std::thread::LocalKey;

use half::bf16;

use crate::{buffer, cast, loops};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Elements of a row that are converted at once, a multiple of the lanes of every vector.
const PIECE: usize = 512;

/// Up to so many rows, row blocks of four are faster than taller ones: weights just come from
/// memory, and taller row blocks, of which there are too few to fetch the next ones evenly, read
/// more activations for each weight.
const SHORT: usize = 32;

/// What packing takes at least, in elements, to be worth sharing among threads.
pub(super) const SHARED: usize = 128 << 10;

// Memory is kept from one matmul to the next: pages that are fresh each time would cost more than
// the packing.
thread_local! {
    static PACKED: Cell<Vec<bf16>> = const { Cell::new(Vec::new()) };
    static ROUNDED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    static ROW_BLOCKS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Memory that goes back to its thread.
pub(crate) struct Scratch<X: 'static> {
    values: Vec<X>,
    block: Range<usize>,
    home: &'static LocalKey<Cell<Vec<X>>>,
}

impl<X: Copy + Default> Scratch<X> {
    /// Room for `len` values, which begin at a cache line.
    pub(crate) fn new(len: usize, home: &'static LocalKey<Cell<Vec<X>>>) -> Self {
        let mut values = home.take();
        let gap = LINE / size_of::<X>();
        if values.len() < len + gap {
            drop(values);
            values = buffer::with_capacity(len + gap);
            values.resize(len + gap, X::default());
        }
        // In theory nobody may say where a line begins; the values then begin anywhere, which is
        // slower and not wrong.
        let start = values.as_ptr().align_offset(LINE).min(gap);
        Self { values, block: start..start + len, home }
    }
}

impl<X> Deref for Scratch<X> {
    type Target = [X];

    fn deref(&self) -> &[X] {
        &self.values[self.block.clone()]
    }
}

impl<X> DerefMut for Scratch<X> {
    fn deref_mut(&mut self) -> &mut [X] {
        &mut self.values[self.block.clone()]
    }
}

impl<X> Drop for Scratch<X> {
    fn drop(&mut self) {
        self.home.set(std::mem::take(&mut self.values));
    }
}

/// `x` rounded to bf16, and widened again.
pub(super) fn rounded(x: &[f32]) -> Scratch<f32> {
    let mut rounded = Scratch::new(x.len(), &ROUNDED);
    for (to, from) in rounded.iter_mut().zip(x) {
        *to = bf16::from_f32(*from).to_f32();
    }
    rounded
}

/// Room for so many values in bf16.
pub(super) fn bf16s(len: usize) -> Scratch<bf16> {
    Scratch::new(len, &PACKED)
}

/// Room for so many in f32.
pub(super) fn f32s(len: usize) -> Scratch<f32> {
    Scratch::new(len, &ROW_BLOCKS)
}

/// An activation as some loops read it.
pub(super) trait Packed: Copy + Default + Send + 'static {
    /// Where the memory for packed ones is kept.
    const HOME: &'static LocalKey<Cell<Vec<Self>>>;

    /// Makes as many of them, in `buffer` if they have to be made.
    fn from_f32<'a>(from: &'a [f32], buffer: &'a mut [Self; PIECE]) -> &'a [Self];
}

impl Packed for f32 {
    const HOME: &'static LocalKey<Cell<Vec<f32>>> = &ROW_BLOCKS;

    fn from_f32<'a>(from: &'a [f32], _buffer: &'a mut [f32; PIECE]) -> &'a [f32] {
        from
    }
}

impl Packed for bf16 {
    const HOME: &'static LocalKey<Cell<Vec<bf16>>> = &PACKED;

    fn from_f32<'a>(from: &'a [f32], buffer: &'a mut [bf16; PIECE]) -> &'a [bf16] {
        let made = &mut buffer[..from.len()];
        cast::f32_to_bf16(from, made);
        made
    }
}

/// `x [m, k]` packed for row blocks of all rows, and vectors of `lanes` elements.
pub(super) fn packed<X: Packed>(
    x: &[f32],
    [m, k]: [usize; 2],
    row_blocks: RowBlocks,
    lanes: usize,
) -> Scratch<X> {
    let mut packed = Scratch::new(m * k.next_multiple_of(lanes), X::HOME);
    pack(x, k, row_blocks, lanes, &mut packed);
    packed
}

/// The row blocks that some rows are cut into: as few as can be of at most so many rows, and as
/// equal as can be: 8 rows are 4 and 4 rather than 6 and 2.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowBlocks {
    rows: usize,
    count: usize,
}

impl RowBlocks {
    /// For matmuls of many rows, of loops that take at most `max_rows` in a row block.
    #[inline(always)]
    pub(super) fn of_many(rows: usize, max_rows: usize) -> RowBlocks {
        RowBlocks::new(rows, max_rows.min(if rows <= SHORT { 4 } else { usize::MAX }))
    }

    /// For `rows` rows, at most `max_rows` in a row block.
    #[inline(always)]
    pub(super) fn new(rows: usize, max_rows: usize) -> RowBlocks {
        RowBlocks { rows, count: rows.div_ceil(max_rows) }
    }

    /// How many there are.
    #[inline(always)]
    pub(super) fn len(self) -> usize {
        self.count
    }

    /// The row that row block `index` begins with; with their number, the number of rows.
    #[inline(always)]
    pub(super) fn start(self, index: usize) -> usize {
        let count = self.count.max(1);
        // Those that are a row taller come first.
        self.rows / count * index + index.min(self.rows % count)
    }

    /// All, in order.
    #[inline(always)]
    pub(super) fn all(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.count).map(move |index| self.start(index)..self.start(index + 1))
    }
}

/// Copies the lanes there are, and zeros for the others.
fn put<X: Packed>(from: &[X], to: &mut [X]) {
    // Moves of a fixed size, where a copy of any size would be a call.
    if let (Ok(from), Ok(to)) = (<&[X; 16]>::try_from(from), <&mut [X; 16]>::try_from(&mut *to)) {
        *to = *from;
    } else if let (Ok(from), Ok(to)) =
        (<&[X; 32]>::try_from(from), <&mut [X; 32]>::try_from(&mut *to))
    {
        *to = *from;
    } else {
        let (to, rest) = to.split_at_mut(from.len());
        to.copy_from_slice(from);
        rest.fill(X::default());
    }
}

/// Writes `x [m, k]` to the beginning of `packed`, for row blocks of all rows and vectors of
/// `lanes` elements.
fn pack<X: Packed>(x: &[f32], k: usize, row_blocks: RowBlocks, lanes: usize, packed: &mut [X]) {
    if k == 0 {
        return;
    }
    let fill = |(row_block, block): (Range<usize>, &mut [X])| {
        let height = row_block.len();
        let mut buffer = [X::default(); PIECE];
        for (i, row) in x[row_block.start * k..row_block.end * k].chunks(k).enumerate() {
            for (piece, from) in row.chunks(PIECE).enumerate() {
                let first = piece * (PIECE / lanes);
                let made = X::from_f32(from, &mut buffer);
                for (step, from) in made.chunks(lanes).enumerate() {
                    let to = &mut block[((first + step) * height + i) * lanes..][..lanes];
                    put(from, to);
                }
            }
        }
    };
    let mut rest = packed;
    let ring = row_blocks.all().map(|row_block| {
        let len = row_block.len() * k.next_multiple_of(lanes);
        let (block, after) = std::mem::take(&mut rest).split_at_mut(len);
        rest = after;
        (row_block, block)
    });
    if x.len() < SHARED {
        return ring.for_each(fill);
    }
    loops::share(ring, fill);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_are_few_and_equal() {
        let row_blocks = |rows| RowBlocks::new(rows, 6).all().collect::<Vec<_>>();
        assert_eq!(row_blocks(0), [0..0; 0]);
        assert_eq!(row_blocks(7), [0..4, 4..7]);
        assert_eq!(row_blocks(8), [0..4, 4..8]);
        assert_eq!(row_blocks(13), [0..5, 5..9, 9..13]);
    }

    #[test]
    fn values_begin_at_a_cache_line() {
        for len in [0, 1, 100, 5000, 3] {
            let mut scratch = Scratch::<f32>::new(len, &ROW_BLOCKS);
            scratch.fill(1.0);
            assert_eq!(scratch.len(), len);
            assert_eq!(scratch.as_ptr().align_offset(LINE), 0);
        }
    }

    #[test]
    fn lanes_of_a_strip_stand_side_by_side() {
        let x: Vec<f32> = (0..15).map(|n| n as f32).collect();
        let mut packed = vec![bf16::ONE; 20];
        pack(&x, 3, RowBlocks::new(5, 2), 2, &mut packed);
        let packed: Vec<f32> = packed.into_iter().map(bf16::to_f32).collect();
        let first = [0.0, 1.0, 3.0, 4.0, 2.0, 0.0, 5.0, 0.0];
        let second = [6.0, 7.0, 9.0, 10.0, 8.0, 0.0, 11.0, 0.0];
        let third = [12.0, 13.0, 14.0, 0.0];
        assert_eq!(packed, [&first[..], &second, &third].concat());
    }
}
