//! How a matmul in tiles is cut, so that what is read again is in a cache.
//!
//! Weights pass in panels. Few row blocks of activations stay in the second-level cache and meet
//! weights where they lie in memory ([`in_place`](super::in_place)). For more, a panel is copied:
//! it has a part of the steps if rows of weights are so long that one of all steps would be narrow,
//! and all activations be read for each; sums then wait in memory for the other parts.
//!
//! Within a panel a row block's activations of some steps meet all pairs of tiles before those of
//! the next steps do, so that they are read again from the first-level cache.

use std::ops::Range;

use half::bf16;

use super::cache;
use super::pack::{Layout, ROW_BLOCK};
use super::tiles::{COLUMNS, ROWS, STEP};
use super::{PAIR, SUMS};

/// The most pairs of a panel: activations, which may come from beyond the second-level cache, are
/// read again for each panel.
pub(super) const PAIRS: usize = 8;

/// Bytes of activations that stay in the first-level cache beside sums.
const GROUP_BYTES: usize = 32 << 10;

/// The most row blocks that meet weights where they lie: more are worth a copy.
const IN_PLACE: usize = 4;

/// The most row blocks whose sums wait for the next steps.
const WAITING: usize = 64;

/// Bytes of a step of a pair.
const STEP_BYTES: usize = PAIR * STEP * size_of::<bf16>();

/// Bytes of the sums of a pair and a row block.
const SUM_BYTES: usize = 4 * SUMS * 4;

/// Elements of the outputs of sixteen rows of activations by a panel, apart by one tile more.
pub(super) const TURNED: usize = COLUMNS * (PAIRS * PAIR + ROWS);

/// Sizes of the pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocking {
    /// Whether weights are read where they lie.
    in_place: bool,
    /// Steps of a panel …
    steps: usize,
    /// … and of a row of weights.
    all_steps: usize,
    /// Steps that all pairs of a panel take before they go on to the next ones.
    group_steps: usize,
    /// Row blocks that a panel meets.
    row_blocks: usize,
    /// Weights that it has rows of.
    sides: usize,
}

/// Some steps of some rows of weights, and the rows of activations that they meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Panel {
    /// Rows of the weight.
    pub(super) columns: Range<usize>,
    pub(super) steps: Range<usize>,
    /// Weights that it has these of, one or two, which share what a panel has at most.
    pub(super) sides: usize,
    /// Rows of activations.
    pub(super) rows: Range<usize>,
    /// Row blocks whose sums have places of their own.
    waiting: usize,
    /// As in [`Blocking`].
    pub(super) group_steps: usize,
}

impl Blocking {
    /// For so many rows of activations, and one weight or two.
    pub(super) fn new(second_level: usize, layout: &Layout, rows: usize, sides: usize) -> Self {
        let (all_steps, row_blocks) = (layout.steps().max(1), rows.div_ceil(ROW_BLOCK));
        if is_in_place(second_level, layout, rows) {
            let steps = all_steps;
            return Self {
                in_place: true,
                steps,
                all_steps,
                group_steps: steps,
                row_blocks,
                sides,
            };
        }
        let most_steps = (panel_bytes(second_level) / STEP_BYTES / PAIRS).max(1);
        let steps = all_steps.div_ceil(all_steps.div_ceil(most_steps));
        Self {
            in_place: false,
            steps,
            all_steps,
            group_steps: (GROUP_BYTES / (layout.step(ROW_BLOCK) * size_of::<bf16>())).max(1),
            row_blocks: if steps < all_steps { row_blocks.min(WAITING) } else { row_blocks },
            sides,
        }
    }

    /// All panels for some rows of activations and of the weight, in order.
    pub(super) fn panels(
        self,
        rows: &Range<usize>,
        columns: &Range<usize>,
    ) -> impl Iterator<Item = Panel> {
        let Self { steps, all_steps, .. } = self;
        let all_rows = rows.clone();
        // What is in place is written as soon as it is there.
        let pairs = if self.in_place { 1 } else { PAIRS / self.sides };
        pieces(columns, pairs * PAIR).flat_map(move |columns| {
            pieces(&all_rows, self.row_blocks * ROW_BLOCK).flat_map(move |rows| {
                let columns = columns.clone();
                pieces(&(0..all_steps), steps).map(move |some| Panel {
                    columns: columns.clone(),
                    steps: some,
                    sides: self.sides,
                    rows: rows.clone(),
                    waiting: self.waiting(),
                    group_steps: self.group_steps,
                })
            })
        })
    }

    /// Whether weights are read where they lie.
    pub(super) fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// Elements of the tiles of a panel, two for each pair and step; none if it is not copied.
    pub(super) fn panel_len(&self) -> usize {
        if self.in_place { 0 } else { PAIRS * self.steps * STEP_BYTES / 2 }
    }

    /// Row blocks whose sums are kept at once.
    fn waiting(&self) -> usize {
        match self.in_place || self.steps < self.all_steps {
            true => kept(self.row_blocks),
            false => 1,
        }
    }

    /// Elements of the sums of a panel and the row blocks that wait.
    pub(super) fn sums_len(&self) -> usize {
        PAIRS * self.waiting() * 4 * SUMS
    }
}

/// Whether weights are read where they lie: for few rows of activations, which the second-level
/// cache holds.
pub(super) fn is_in_place(second_level: usize, layout: &Layout, rows: usize) -> bool {
    let bytes = layout.step(rows).saturating_mul(layout.steps() * size_of::<bf16>());
    rows <= IN_PLACE * ROW_BLOCK && bytes <= second_level / 3 * 2
}

/// Places for the sums of so many row blocks: in place, two are computed at once.
fn kept(row_blocks: usize) -> usize {
    row_blocks.next_multiple_of(2)
}

impl Panel {
    /// Pairs of tiles of each weight.
    pub(super) fn pairs(&self) -> usize {
        self.columns.len().div_ceil(PAIR)
    }

    /// How many row blocks there are.
    pub(super) fn row_blocks(&self) -> usize {
        self.rows.len().div_ceil(ROW_BLOCK)
    }

    /// The rows of activations of one.
    pub(super) fn row_block(&self, index: usize) -> Range<usize> {
        let start = self.rows.start + index * ROW_BLOCK;
        start..self.rows.end.min(start + ROW_BLOCK)
    }

    /// Which sums are those of a row block and a pair, of the first weight's or the next one's.
    pub(super) fn sums(&self, row_block: usize, pair: usize) -> usize {
        row_block % self.waiting * PAIRS + pair
    }
}

/// Bytes of a panel of weights, at most: as it lay in the matrix, as tiles, sums that wait, and
/// activations fit in the second-level cache.
fn panel_bytes(second_level: usize) -> usize {
    second_level / 4
}

/// The most bytes that a thread keeps for a panel, sums and outputs, for so many rows of
/// activations.
pub(in super::super) fn most_bytes(rows: usize) -> usize {
    let row_blocks = kept(rows.div_ceil(ROW_BLOCK)).min(WAITING);
    panel_bytes(cache::of_thread()) + PAIRS * row_blocks * SUM_BYTES + TURNED * size_of::<f32>()
}

/// A range in pieces of so many.
pub(super) fn pieces(all: &Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = all.end;
    all.clone().step_by(len).map(move |start| start..end.min(start + len))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::ActivationDtype;

    fn blocking(compute: ActivationDtype, rows: usize, k: usize) -> Blocking {
        Blocking::new(2 << 20, &Layout::new(compute, [rows, k]), rows, 1)
    }

    #[test]
    fn panels_of_long_rows_have_a_part_of_the_steps() {
        let [short, long] = [2048, 5632].map(|k| blocking(ActivationDtype::Bf16, 1000, k));
        let half = Blocking {
            in_place: false,
            steps: 32,
            all_steps: 64,
            group_steps: 16,
            row_blocks: 32,
            sides: 1,
        };
        assert_eq!(short, half);
        assert_eq!(long, Blocking { steps: 30, all_steps: 176, ..half });
    }

    #[test]
    fn few_rows_meet_weights_where_they_lie() {
        for (compute, rows, k, in_place) in [
            (ActivationDtype::Bf16, 128, 4096, true),
            (ActivationDtype::Bf16, 129, 64, false),
            (ActivationDtype::Bf16, 128, 8192, false),
            (ActivationDtype::F32, 128, 2048, false),
            (ActivationDtype::F32, 96, 2048, true),
            (ActivationDtype::F32, 1, 60_000, true),
        ] {
            assert_eq!(blocking(compute, rows, k).in_place, in_place, "{compute:?} [{rows}, {k}]");
        }
    }

    proptest! {
        /// Each step of each row of the weight meets each row block once, in order of the steps;
        /// sums that wait have places of their own; and all fits in what is said to be kept.
        #[test]
        fn panels_cover_all_steps_once(
            second_level in 256usize << 10..1 << 23,
            rows in 1usize..5000, columns in 1usize..600, k in 1usize..60_000, sides in 1usize..3,
        ) {
            let layout = Layout::new(ActivationDtype::F32, [rows, k]);
            let blocking = Blocking::new(second_level, &layout, rows, sides);
            let (row_blocks, column_pairs) = (rows.div_ceil(ROW_BLOCK), columns.div_ceil(PAIR));
            let mut done = vec![0; sides * row_blocks * column_pairs];
            for panel in blocking.panels(&(0..rows), &(0..columns)) {
                let pairs = sides * panel.pairs();
                if !blocking.is_in_place() {
                    let len = pairs * panel.steps.len() * STEP_BYTES / 2;
                    prop_assert!(len <= blocking.panel_len());
                    prop_assert!(2 * len <= panel_bytes(second_level).max(PAIRS * STEP_BYTES));
                }
                let mut places = HashSet::new();
                for row_block in 0..panel.row_blocks() {
                    for pair in 0..pairs {
                        let sums = panel.sums(row_block, pair);
                        prop_assert!((sums + 1) * 4 * SUMS <= blocking.sums_len());
                        // Only sums of all steps at once, of copied panels, give up their place at
                        // once.
                        let waits = blocking.is_in_place() || panel.steps.len() < layout.steps();
                        prop_assert!(places.insert(sums) || !waits);
                        let row_block = panel.rows.start / ROW_BLOCK + row_block;
                        let (side, pair) = (pair / panel.pairs(), pair % panel.pairs());
                        let pair = side * column_pairs + panel.columns.start / PAIR + pair;
                        let at = pair * row_blocks + row_block;
                        prop_assert_eq!(done[at], panel.steps.start);
                        done[at] = panel.steps.end;
                    }
                }
            }
            prop_assert!(done.iter().all(|&steps| steps == layout.steps()));
            let kept = blocking.sums_len() * 4;
            prop_assert!(kept <= PAIRS * kept_sums(rows) * SUM_BYTES);
        }
    }

    /// Places for sums that are said to be kept.
    fn kept_sums(rows: usize) -> usize {
        kept(rows.div_ceil(ROW_BLOCK)).min(WAITING)
    }
}
