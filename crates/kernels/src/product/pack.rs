//! Activations in the order in which the loops read them.
//!
//! Rows of a matrix whose width is a power of two begin at the same place of every cache set, so that a strip of more rows than the
//! cache has ways would evict itself. Packed, a strip of `height` rows is read from its first byte to its last:
//!
//! ```text
//! row 0, lanes 0..L | row 1, lanes 0..L | … | row 0, lanes L..2L | row 1, lanes L..2L | …
//! ```
//!
//! with zeros up to a multiple of the lanes. Strips follow one another, so that the one that begins with row `r` begins `r` padded
//! rows from the start.

use std::cell::Cell;
use std::ops::{Deref, Range};
use std::thread::LocalKey;

use half::bf16;
use rayon::prelude::*;

use super::grid::Grid;
use super::tile::Kernel;
use crate::cast;

/// What packing takes at least, in elements, to be worth sharing among threads.
const SHARED: usize = 128 << 10;

// Memory is kept from one product to the next: pages that are fresh each time would cost more than the packing.
thread_local! {
    static PACKED: Cell<Vec<bf16>> = const { Cell::new(Vec::new()) };
    static ROUNDED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Memory that goes back to its thread.
pub(super) struct Scratch<X: 'static> {
    values: Vec<X>,
    len: usize,
    home: &'static LocalKey<Cell<Vec<X>>>,
}

impl<X: Copy + Default> Scratch<X> {
    /// Memory for so many values; what they are is left from before.
    pub(super) fn new(len: usize, home: &'static LocalKey<Cell<Vec<X>>>) -> Self {
        let mut values = home.take();
        if values.len() < len {
            values.resize(len, X::default());
        }
        Self { values, len, home }
    }

    /// The values.
    pub(super) fn values_mut(&mut self) -> &mut [X] {
        &mut self.values[..self.len]
    }
}

impl<X> Deref for Scratch<X> {
    type Target = [X];

    fn deref(&self) -> &[X] {
        &self.values[..self.len]
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
    for (to, from) in rounded.values.iter_mut().zip(x) {
        *to = bf16::from_f32(*from).to_f32();
    }
    rounded
}

/// `x [m, k]` rounded to bf16 and packed for kernel `K` on a grid.
pub(super) fn packed<K: Kernel<bf16, X = bf16>>(x: &[f32], grid: &Grid) -> Scratch<bf16> {
    let size = grid.size();
    let mut packed = Scratch::new(size.m * size.k.next_multiple_of(K::LANES), &PACKED);
    let strips = grid.row_blocks().flat_map(|rows| strips(rows, K::TALLEST));
    pack(x, size.k, strips, K::LANES, &mut packed.values);
    packed
}

/// The strips that a block of rows is cut into: as few as can be of at most `tallest` rows, and as equal as can be: 8 rows are 4
/// and 4 rather than 6 and 2.
#[inline(always)]
pub(super) fn strips(rows: Range<usize>, tallest: usize) -> impl Iterator<Item = Range<usize>> {
    let strips = rows.len().div_ceil(tallest);
    let mut row = rows.start;
    (0..strips).map(move |strip| {
        let start = row;
        row += (rows.end - row).div_ceil(strips - strip);
        start..row
    })
}

/// Writes `x [m, k]` to the beginning of `packed`, for strips that cover all rows in order and vectors of `lanes` elements.
fn pack(
    x: &[f32],
    k: usize,
    strips: impl Iterator<Item = Range<usize>>,
    lanes: usize,
    packed: &mut [bf16],
) {
    if k == 0 {
        return;
    }
    let fill = |(strip, place): (Range<usize>, &mut [bf16])| {
        let height = strip.len();
        for (i, row) in x[strip.start * k..strip.end * k].chunks(k).enumerate() {
            for (step, from) in row.chunks(lanes).enumerate() {
                let to = &mut place[(step * height + i) * lanes..][..lanes];
                let (to, rest) = to.split_at_mut(from.len());
                cast::f32_to_bf16(from, to);
                rest.fill(bf16::ZERO);
            }
        }
    };
    let mut rest = packed;
    let places = strips.map(|strip| {
        let len = strip.len() * k.next_multiple_of(lanes);
        let (place, after) = std::mem::take(&mut rest).split_at_mut(len);
        rest = after;
        (strip, place)
    });
    match x.len() < SHARED {
        true => places.for_each(fill),
        false => places.collect::<Vec<_>>().into_par_iter().for_each(fill),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_are_few_and_equal() {
        let heights = |rows| strips(rows, 6).map(|strip| strip.len()).collect::<Vec<_>>();
        assert_eq!(heights(0..0), [0usize; 0]);
        assert_eq!(heights(3..4), [1]);
        assert_eq!(heights(0..8), [4, 4]);
        assert_eq!(heights(5..18), [5, 4, 4]);
    }

    #[test]
    fn lanes_of_a_strip_stand_side_by_side() {
        let x: Vec<f32> = (0..15).map(|n| n as f32).collect();
        let mut packed = vec![bf16::ONE; 20];
        pack(&x, 3, strips(0..5, 2), 2, &mut packed);
        let packed: Vec<f32> = packed.into_iter().map(bf16::to_f32).collect();
        let first = [0.0, 1.0, 3.0, 4.0, 2.0, 0.0, 5.0, 0.0];
        let second = [6.0, 7.0, 9.0, 10.0, 8.0, 0.0, 11.0, 0.0];
        let third = [12.0, 13.0, 14.0, 0.0];
        assert_eq!(packed, [&first[..], &second, &third].concat());
    }
}
