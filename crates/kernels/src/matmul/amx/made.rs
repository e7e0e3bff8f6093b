//! Outputs that are the activations of the next matmul, from tiles of sums to tiles of these.
//!
//! Sums have a row of weights in each of their rows and a row of activations in each column, and so
//! have tiles of activations, but for pairs. So nothing is turned over, and no number waits in
//! memory in f32.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::Operands;
use super::block::PanelMemory;
use super::blocking::{Panel, pieces};
use super::pack::{Layout, cut};
use super::tiles::{COLUMNS, ROW_BYTES, ROWS, STEP};
use super::{Amx, PAIR, SUMS};
use crate::activation::gate_each;
use crate::{ActivationDtype, ActivationFunction, Isa};

/// What a gated matmul makes: activations of as many rows, which are packed.
#[derive(Clone, Copy)]
pub(in super::super) struct Made {
    layout: Layout,
    /// The element of a row that the weight's first row makes.
    first: usize,
}

impl Made {
    /// Activations `[m, k]` of which a weight makes those from `first` on; there are at least
    /// sixteen rows.
    pub(in super::super) fn new(compute: ActivationDtype, size: [usize; 2], first: usize) -> Self {
        Self { layout: Layout::new(compute, size), first }
    }
}

/// Packed activations `[m, k]` as numbers, row after row.
pub(in super::super) fn made_rows(
    compute: ActivationDtype,
    size @ [m, _]: [usize; 2],
    packed: &[bf16],
) -> impl Iterator<Item = Vec<f32>> {
    let layout = Layout::new(compute, size);
    (0..m).map(move |row| layout.row(packed, row))
}

/// Sums of a pair of weights' tiles by sixteen rows of activations.
struct PairSums {
    /// The first of four tiles.
    first: *mut f32,
    /// Which of the two columns of tiles.
    right: usize,
}

impl PairSums {
    /// The sums of a row of weights.
    fn row(&self, row: usize) -> *mut f32 {
        let tile = row / ROWS * 2 + self.right;
        self.first.wrapping_add(tile * SUMS + row % ROWS * COLUMNS)
    }
}

impl Amx<'_> {
    /// Puts the sums of a row block through the gate, and packs what comes.
    ///
    /// # Safety
    ///
    /// As for [`Amx::row_blocks`], of a gate with a weight; instead of outputs, `y` has room for
    /// what is made.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
    pub(super) unsafe fn make_row_block<const PARTS: usize>(
        &self,
        function: ActivationFunction,
        made: Made,
        operands: &Operands<bf16, bf16>,
        panel: &Panel,
        row_block: usize,
        memory: &mut PanelMemory,
    ) {
        let rows = panel.row_block(row_block);
        for (pair, columns) in pieces(&panel.columns, PAIR).enumerate() {
            let [up, gate] =
                [0, 1].map(|side| memory.sums(panel.sums(row_block, side * panel.pairs() + pair)));
            for (right, some) in pieces(&rows, COLUMNS).enumerate() {
                let [up, gate] = [up, gate].map(|first| PairSums { first, right });
                // SAFETY: the caller's promises: both places have the sums of these rows of the
                // weights, each apart.
                unsafe {
                    if PARTS > 1 {
                        for (operands, sums) in self.each_side(operands).zip([&up, &gate]) {
                            self.again_of_pair(&operands, &some, &columns, sums);
                        }
                    }
                    for at in (0..columns.len()).step_by(ROWS) {
                        let len = ROWS.min(columns.len() - at) * COLUMNS;
                        let gate = std::slice::from_raw_parts_mut(gate.row(at), len);
                        let up = std::slice::from_raw_parts(up.row(at), len);
                        gate_each(Isa::AmxBf16, function, gate, up);
                    }
                    self.pack_pair::<PARTS>(made, operands, [&rows, &some], &columns, &gate);
                }
            }
        }
    }

    /// Packs what a pair of weights' tiles and sixteen rows of activations, some of a row block,
    /// have come to.
    ///
    /// # Safety
    ///
    /// As for [`Amx::make_row_block`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    #[allow(clippy::needless_range_loop, reason = "parts are counted")]
    unsafe fn pack_pair<const PARTS: usize>(
        &self,
        Made { layout, first }: Made,
        operands: &Operands<bf16, bf16>,
        [rows, some]: [&Range<usize>; 2],
        columns: &Range<usize>,
        sums: &PairSums,
    ) {
        let (start, count) = (first + columns.start, columns.len());
        let to = operands.y.cast::<bf16>().wrapping_add(layout.start(rows.start));
        // A step of its own, or one with elements that other rows of the weight make.
        if start.is_multiple_of(STEP) && (count == STEP || start + count == layout.k()) {
            let [place, apart] = layout.place(some.start, start, rows.len());
            // The even lanes of the first sixteen numbers, the odd ones of the others.
            let pairs = _mm512_set_epi16(
                31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                20, 4, 19, 3, 18, 2, 17, 1, 16, 0,
            );
            for pair in 0..STEP / 2 {
                // What is not there is zero.
                let [low, high] = [2 * pair, 2 * pair + 1].map(|row| match row < count {
                    // SAFETY: the sums of a row of weights.
                    true => unsafe { _mm512_loadu_ps(sums.row(row)) },
                    false => _mm512_setzero_ps(),
                });
                let parts: [_; PARTS] = cut(low, high);
                for part in 0..PARTS {
                    let to =
                        to.wrapping_add(place + part * apart).wrapping_byte_add(pair * ROW_BYTES);
                    // SAFETY: a row of a tile of what is made.
                    unsafe {
                        _mm512_storeu_si512(
                            to.cast(),
                            _mm512_permutexvar_epi16(pairs, parts[part]),
                        );
                    }
                }
            }
            return;
        }
        for row in 0..count {
            // SAFETY: the sums of a row of weights.
            let numbers = unsafe { _mm512_loadu_ps(sums.row(row)) };
            let parts: [_; PARTS] = cut(numbers, _mm512_setzero_ps());
            for (lane, token) in some.clone().enumerate() {
                let [place, apart] = layout.place(token, start + row, rows.len());
                for part in 0..PARTS {
                    // SAFETY: a vector has 32 numbers in bf16; an element of what is made, which
                    // nobody else writes.
                    unsafe {
                        let number = *std::ptr::from_ref(&parts[part]).cast::<bf16>().add(lane);
                        to.wrapping_add(place + part * apart).write(number);
                    }
                }
            }
        }
    }

    /// Computes the sums of a pair again that are no numbers.
    ///
    /// # Safety
    ///
    /// As for [`Amx::make_row_block`]; the sums are those of this weight.
    unsafe fn again_of_pair(
        &self,
        operands: &Operands<bf16, bf16>,
        rows: &Range<usize>,
        columns: &Range<usize>,
        sums: &PairSums,
    ) {
        // SAFETY: there are sums of each row of weights, one for each row of activations.
        let row = |at| unsafe { std::slice::from_raw_parts_mut(sums.row(at), COLUMNS) };
        // Of all, as a loop that ends early looks at one at a time.
        let is_nan = |at| row(at).iter().fold(false, |any, sum| any | sum.is_nan());
        if !(0..columns.len()).fold(false, |any, at| any | is_nan(at)) {
            return;
        }
        for (lane, token) in rows.clone().enumerate() {
            let mut x = None;
            for (at, column) in columns.clone().enumerate() {
                // SAFETY: the caller's promises.
                unsafe { self.again(operands, [token, column], &mut x, &mut row(at)[lane]) };
            }
        }
    }
}
