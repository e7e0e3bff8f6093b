//! How a matmul in tiles is cut, so that what is read again is in a cache.
//!
//! Weights pass in panels. A panel is read from memory once, by the first row block of activations; for
//! the others it is in the second-level cache, and if they are many, as whole tiles. If rows of weights are so
//! long that a panel of all steps would be narrow, and all activations be read for each, it has a part of
//! the steps, and sums wait in memory for the others.
//!
//! Within a panel a row block's activations of some steps meet all pairs of tiles before those of the
//! next steps do, so that they are read again from the first-level cache.

use std::ops::Range;

use super::cache;
use super::pack::{Layout, ROW_BLOCK};
use super::tiles::STEP;
use super::{PAIR, SUMS};

/// The most pairs of a panel: activations, which may come from beyond the second-level cache, are read
/// again for each panel.
const PAIRS: usize = 8;

/// Steps of rounded activations, 2 KiB each, that stay in the first-level cache beside sums. A step in
/// three parts takes longer than what it reads from the second level.
const ROUNDED_STEPS: usize = 16;

/// From so many row blocks on, a panel's tiles are kept: for fewer that would take longer than what it saves.
/// If rows do not begin with a cache line, as in most files, a tile where it lies takes twice as many lines.
fn kept(aligned: bool) -> usize {
    if aligned { 12 } else { 3 }
}

/// The most row blocks whose sums wait for the next steps.
const WAITING: usize = 16;

/// Bytes of a step of a pair.
const STEP_BYTES: usize = PAIR * STEP * 2;

/// Bytes of the sums of a pair and a row block.
const SUM_BYTES: usize = 4 * SUMS * 4;

/// Sizes of the pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocking {
    /// Pairs of tiles of weights in a panel.
    pairs: usize,
    /// Steps of a panel …
    steps: usize,
    /// … and of a row of weights.
    all_steps: usize,
    /// Steps that all pairs of a panel take before they go on to the next ones.
    group_steps: usize,
    /// Row blocks that a panel meets.
    row_blocks: usize,
    /// Whether rows of weights begin with a cache line.
    aligned: bool,
}

/// Some steps of some rows of weights, and the rows of activations that they meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Panel {
    /// Rows of the weight.
    pub(super) columns: Range<usize>,
    pub(super) steps: Range<usize>,
    /// Rows of activations.
    pub(super) rows: Range<usize>,
    /// Pairs from the sums of a row block to those of the next: none if no sums wait.
    pub(super) sums_apart: usize,
    /// As in [`Blocking`].
    pub(super) group_steps: usize,
    /// As in [`Blocking`].
    pub(super) aligned: bool,
}

impl Blocking {
    /// For so many rows of activations; rows of weights begin with a cache line, or not.
    pub(super) fn new(second_level: usize, layout: &Layout, rows: usize, aligned: bool) -> Self {
        let (all_steps, row_blocks) = (layout.steps().max(1), rows.div_ceil(ROW_BLOCK));
        let panel_steps = panel_bytes(second_level) / STEP_BYTES;
        let (pairs, parts) = match (row_blocks, panel_steps / all_steps) {
            // Nothing is read again but activations.
            (..=1, _) => (1, 1),
            (2, fitting) => (fitting.clamp(1, PAIRS), 1),
            _ => (PAIRS, all_steps.div_ceil((panel_steps / PAIRS).max(1))),
        };
        let steps = all_steps.div_ceil(parts);
        Self {
            pairs,
            steps,
            all_steps,
            group_steps: if pairs > 1 && layout.parts == 1 { ROUNDED_STEPS } else { steps },
            row_blocks: if parts > 1 { WAITING.min(row_blocks) } else { row_blocks },
            aligned,
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
        pieces(columns, self.pairs * PAIR).flat_map(move |columns| {
            pieces(&all_rows, self.row_blocks * ROW_BLOCK).flat_map(move |rows| {
                let columns = columns.clone();
                pieces(&(0..all_steps), steps).map(move |some| Panel {
                    columns: columns.clone(),
                    steps: some,
                    aligned: self.aligned,
                    rows: rows.clone(),
                    sums_apart: if steps < all_steps { self.pairs } else { 0 },
                    group_steps: self.group_steps,
                })
            })
        })
    }

    /// Elements of the tiles of a panel, two for each pair and step; none if it is not kept.
    pub(super) fn panel_len(&self) -> usize {
        if self.row_blocks >= kept(self.aligned) {
            self.pairs * self.steps * STEP_BYTES / 2
        } else {
            0
        }
    }

    /// Elements of the sums of a panel and the row blocks that wait.
    pub(super) fn sums_len(&self) -> usize {
        let waiting = if self.steps < self.all_steps { self.row_blocks } else { 1 };
        self.pairs * waiting * 4 * SUMS
    }
}

impl Panel {
    /// Whether the first row block leaves the panel's tiles for the others.
    pub(super) fn is_kept(&self) -> bool {
        self.rows.len().div_ceil(ROW_BLOCK) >= kept(self.aligned)
    }
}

/// Bytes of a panel of weights, at most: as it lay in the matrix, as tiles, sums that wait, and activations
/// fit in the second-level cache.
fn panel_bytes(second_level: usize) -> usize {
    second_level / 4
}

/// The most bytes that a thread keeps for a panel and for sums.
pub(in super::super) fn most_bytes() -> usize {
    panel_bytes(cache::of_thread()) + PAIRS * WAITING * SUM_BYTES
}

/// A range in pieces of so many.
pub(super) fn pieces(all: &Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = all.end;
    all.clone().step_by(len).map(move |start| start..end.min(start + len))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ActivationDtype;

    fn blocking(compute: ActivationDtype, rows: usize, k: usize) -> Blocking {
        Blocking::new(2 << 20, &Layout::new(compute, [rows, k]), rows, true)
    }

    #[test]
    fn panels_of_long_rows_have_a_part_of_the_steps() {
        let [short, long] = [2048, 5632].map(|k| blocking(ActivationDtype::Bf16, 1000, k));
        let half = Blocking {
            pairs: 8,
            steps: 32,
            all_steps: 64,
            group_steps: 16,
            row_blocks: 16,
            aligned: true,
        };
        assert_eq!(short, half);
        assert_eq!(long, Blocking { steps: 30, all_steps: 176, ..half });
    }

    proptest! {
        /// Each step of each row of the weight meets each row block once, in order of the steps; sums
        /// that wait have places of their own; and all fits in what is said to be kept.
        #[test]
        fn panels_cover_all_steps_once(
            second_level in 256usize << 10..1 << 23,
            rows in 1usize..2000, columns in 1usize..600, k in 1usize..60_000, aligned: bool,
        ) {
            let layout = Layout::new(ActivationDtype::F32, [rows, k]);
            let blocking = Blocking::new(second_level, &layout, rows, aligned);
            let (row_blocks, column_pairs) = (rows.div_ceil(ROW_BLOCK), columns.div_ceil(PAIR));
            let mut done = vec![0; row_blocks * column_pairs];
            for panel in blocking.panels(&(0..rows), &(0..columns)) {
                let (pairs, blocks) =
                    (panel.columns.len().div_ceil(PAIR), panel.rows.len().div_ceil(ROW_BLOCK));
                if panel.is_kept() {
                    let len = pairs * panel.steps.len() * STEP_BYTES / 2;
                    prop_assert!(len <= blocking.panel_len());
                    prop_assert!(2 * len <= panel_bytes(second_level));
                }
                prop_assert!(((blocks - 1) * panel.sums_apart + pairs) * 4 * SUMS <= blocking.sums_len());
                prop_assert!(panel.sums_apart == 0 || panel.sums_apart >= pairs);
                prop_assert!(panel.sums_apart > 0 || panel.steps.len() == layout.steps());
                for row_block in 0..blocks {
                    for pair in 0..pairs {
                        let row_block = panel.rows.start / ROW_BLOCK + row_block;
                        let at = (panel.columns.start / PAIR + pair) * row_blocks + row_block;
                        prop_assert_eq!(done[at], panel.steps.start);
                        done[at] = panel.steps.end;
                    }
                }
            }
            prop_assert!(done.iter().all(|&steps| steps == layout.steps()));
            prop_assert!(blocking.sums_len() * 4 <= PAIRS * WAITING * SUM_BYTES);
        }
    }
}
