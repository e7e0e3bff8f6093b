//! How the output of a matmul of many rows is cut, and claimed by threads.
//!
//! A panel of the weight's rows is read from memory once and then stands in the second-level cache
//! while all row blocks of activations pass it. A panel is cut in blocks of row blocks, so that
//! threads end together even if there are few panels: a thread claims a run of blocks, panel after
//! panel, most of them whole.

use std::ops::Range;

use super::Size;
use super::pack::RowBlocks;

/// Rows of the weight in a panel, which every blocking of weight rows (3, 4, 6, 8) divides.
const WIDTH: usize = 24;

/// A panel of weights takes at most about this many bytes, so that it, the next one and rows of `x`
/// fit in the second-level cache of a core.
const BYTES: usize = 384 << 10;

/// So many bytes of activations pass all panels before the next ones do: they come from memory
/// once, and then from a cache that cores share.
const CACHED: usize = 8 << 20;

/// A block makes at least this many multiply-adds, about 5 to 10 µs, if there are as many.
const MIN_MULTIPLY_ADDS: usize = 512 << 10;

/// The most rows of the weight in a panel.
pub(super) const MOST: usize = 4 * WIDTH;

/// Rows in a panel of a weight of `element` bytes and rows of `k` elements.
#[inline(always)]
pub(super) fn width(k: usize, element: usize) -> usize {
    let fits = |width: &usize| k.saturating_mul(element * width) <= BYTES;
    [MOST, 2 * WIDTH, WIDTH].into_iter().find(fits).unwrap_or(WIDTH / 2)
}

/// A partition of the output `[m, n]` into blocks, numbered panel by panel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panels {
    size: Size,
    row_blocks: RowBlocks,
    /// The row blocks of this part.
    part: (usize, usize),
    /// Rows of the weight in a panel, but for the last.
    width: usize,
    /// Row blocks in a block, but for the last of a panel.
    height: usize,
}

impl Panels {
    /// For weights of `element` bytes, and row blocks of activations of `value` bytes each: a
    /// partition of each part of the output whose activations stay in a cache.
    pub(super) fn parts(
        size: Size,
        [element, value]: [usize; 2],
        row_blocks: RowBlocks,
    ) -> impl Iterator<Item = Panels> {
        let width = width(size.k, element);
        let rows = size.m.div_ceil(row_blocks.len().max(1));
        // Weights of fewer rows than a panel may have are shared as those of the narrowest.
        let columns = width.min(size.n.max(WIDTH));
        let matmuls = rows.saturating_mul(columns).saturating_mul(size.k).max(1);
        let bytes = size.m.saturating_mul(size.k).saturating_mul(value);
        let each = row_blocks.len().div_ceil(bytes.div_ceil(CACHED).max(1)).max(1);
        (0..row_blocks.len().max(1)).step_by(each).map(move |first| {
            let count = each.min(row_blocks.len() - first);
            let height = MIN_MULTIPLY_ADDS.div_ceil(matmuls).min(count).max(1);
            Panels { size, row_blocks, part: (first, count), width, height }
        })
    }

    /// The number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.size.n.div_ceil(self.width) * self.blocks_of_panel()
    }

    /// The regions that a run of blocks makes up, rows of `y` and columns of `y`: panels of which
    /// it has all blocks are one region together.
    pub(super) fn regions(
        self,
        run: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let each = self.blocks_of_panel();
        let mut at = run.start;
        std::iter::from_fn(move || {
            let left = run.end.checked_sub(at).filter(|&left| left > 0)?;
            let (panel, first) = (at / each, at % each);
            let (panels, last) = match first == 0 && left >= each {
                true => (left / each, each),
                false => (1, each.min(first + left)),
            };
            at += (panels - 1) * each + last - first;
            Some((self.rows(first..last), self.columns(panel..panel + panels)))
        })
    }

    fn blocks_of_panel(&self) -> usize {
        self.part.1.div_ceil(self.height)
    }

    fn rows(&self, blocks: Range<usize>) -> Range<usize> {
        let (first, count) = self.part;
        let start = |block: usize| self.row_blocks.start(first + (block * self.height).min(count));
        start(blocks.start)..start(blocks.end)
    }

    fn columns(&self, panels: Range<usize>) -> Range<usize> {
        let start = |panel: usize| (panel * self.width).min(self.size.n);
        start(panels.start)..start(panels.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::matmul::claims::Claims;

    proptest! {
        /// The promise that sharing rests on: every output is in exactly one region, and regions
        /// begin and end with row blocks.
        #[test]
        fn regions_cover_the_output_once(
            m in 0usize..300, n in 0usize..300, k in 0usize..9000, element in 1usize..=4, value in 1usize..4000, max_rows in 1usize..9, threads in 1usize..20,
        ) {
            let row_blocks = RowBlocks::new(m, max_rows);
            let mut seen = vec![0u8; m * n];
            for panels in Panels::parts(Size { m, n, k }, [element, value], row_blocks) {
                let claims = Claims::of(panels.blocks(), threads);
                while let Some(run) = claims.claim() {
                    for (rows, columns) in panels.regions(run) {
                        prop_assert!(row_blocks.all().any(|block| block.start == rows.start));
                        prop_assert!(row_blocks.all().any(|block| block.end == rows.end));
                        prop_assert_eq!(columns.start % width(k, element), 0);
                        for row in rows {
                            for column in columns.clone() {
                                seen[row * n + column] += 1;
                            }
                        }
                    }
                }
            }
            prop_assert!(seen.iter().all(|&times| times == 1));
        }
    }

    /// That of a product whose activations stay in a cache.
    fn only(m: usize, n: usize, k: usize) -> Panels {
        let mut parts = Panels::parts(Size { m, n, k }, [2, 4], RowBlocks::new(m, 6));
        let first = parts.next().unwrap();
        assert!(parts.next().is_none());
        first
    }

    #[test]
    fn a_run_of_whole_panels_is_one_region() {
        let (m, n, k) = (512, 2048, 2048);
        let panels = only(m, n, k);
        let regions: Vec<_> = panels.regions(0..panels.blocks()).collect();
        assert_eq!(regions, [(0..512, 0..2048)]);
    }

    #[test]
    fn few_weight_rows_and_many_tokens_are_shared_by_tokens() {
        let (m, n, k) = (512, 8, 2048);
        let panels = only(m, n, k);
        assert!(panels.blocks() >= 16);
        let (rows, columns) = panels.regions(1..2).next().unwrap();
        assert_eq!(columns, 0..8);
        assert!(rows.start > 0 && rows.len() < 64, "{rows:?}");
    }

    #[test]
    fn small_products_are_not_shared() {
        let (m, n, k) = (16, 24, 512);
        let panels = only(m, n, k);
        assert_eq!(panels.blocks(), 1);
    }
}
