//! How the output of a matmul in tiles is cut into regions for threads.

use std::ops::Range;

use rayon::prelude::*;

use super::super::{MatmulLoops, Operands, Size};

/// A region reads at least this many bytes of weights, about 5 µs of memory bandwidth …
const MIN_WEIGHT_BYTES: usize = 64 << 10;

/// … or makes at least this many multiply-adds, about as long in compute.
const MIN_MULTIPLY_ADDS: usize = 256 << 10;

/// Regions per thread: a few, so that a thread which another program holds up does not hold up the
/// matmul.
const REGIONS_PER_THREAD: usize = 4;

/// A partition of the output `[m, n]` into rectangles of equal size, but for the last in each
/// direction.
///
/// Regions run over the weight's rows first and over all activation rows each, so that each weight
/// is read from memory once; activation rows are divided only when there are too few weight rows to
/// occupy the threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    size: Size,
    /// Rows of `y` in a region.
    height: usize,
    /// Columns of `y`, rows of `W`, in a region.
    width: usize,
}

impl Grid {
    /// A partition for weights of `element` bytes and as many `threads`, with activation rows and
    /// weight rows in multiples of two numbers.
    pub(super) fn in_units(
        size: Size,
        element: usize,
        threads: usize,
        [height_unit, row_unit]: [usize; 2],
    ) -> Grid {
        let Size { m, n, k } = size;
        let whole = Grid { size, height: m.max(1), width: n.max(1) };
        if threads <= 1 || m == 0 || n == 0 || k == 0 {
            return whole;
        }
        let wanted = threads * REGIONS_PER_THREAD;
        let by_bytes = MIN_WEIGHT_BYTES.div_ceil(k.saturating_mul(element));
        let by_multiply_adds = MIN_MULTIPLY_ADDS.div_ceil(k.saturating_mul(m));
        let width = n
            .div_ceil(wanted)
            .max(by_bytes.min(by_multiply_adds))
            .next_multiple_of(row_unit)
            .min(n);
        let across = n.div_ceil(width);
        if across >= threads {
            return Grid { width, ..whole };
        }
        let by_multiply_adds = MIN_MULTIPLY_ADDS.div_ceil(k.saturating_mul(width));
        let height =
            m.div_ceil(wanted / across).max(by_multiply_adds).next_multiple_of(height_unit).min(m);
        Grid { size, height, width }
    }

    /// The number of regions; at least one.
    pub(super) fn regions(&self) -> usize {
        self.across() * self.size.m.div_ceil(self.height).max(1)
    }

    /// Region `index`: rows of `y`, columns of `y`.
    pub(super) fn region(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let (down, right) = (index / self.across(), index % self.across());
        let Size { m, n, .. } = self.size;
        let cut =
            |at: usize, step: usize, end: usize| (at * step).min(end)..((at + 1) * step).min(end);
        (cut(down, self.height, m), cut(right, self.width, n))
    }

    /// The sizes that it cuts.
    pub(super) fn size(&self) -> Size {
        self.size
    }

    fn across(&self) -> usize {
        self.size.n.div_ceil(self.width).max(1)
    }
}

/// Computes each region of the grid on some thread. `x` is as the loops read it.
pub(super) fn share<X: Sync + 'static, E: Sync>(
    loops: impl MatmulLoops<X, E>,
    grid: &Grid,
    x: &[X],
    weight: &[E],
    (y, stride): (&mut [f32], usize),
) {
    let size = grid.size();
    let operands = Operands {
        x: x.as_ptr(),
        weight: weight.as_ptr(),
        y: y.as_mut_ptr(),
        size: Size { n: stride, ..size },
    };
    if grid.regions() == 1 {
        // SAFETY: as below, with one region.
        unsafe { loops.region(&operands, 0..size.m, 0..size.n) };
        return;
    }
    (0..grid.regions()).into_par_iter().with_max_len(1).for_each(|index| {
        let (rows, columns) = grid.region(index);
        // SAFETY: `MatmulActivations` checked that `isa`, which chose these loops, is available,
        // and that the three slices have the lengths that `size` asks for; what is packed was
        // packed for this grid. All are borrowed until `for_each` returns. The regions of a
        // grid lie within the output and do not overlap, so that no element of `y` is written
        // by two calls; nothing reads `y`.
        unsafe { loops.region(&operands, rows, columns) };
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The promise that `share` rests on: every output is in exactly one region.
        #[test]
        fn regions_cover_the_output_once(
            m in 0usize..200, n in 0usize..600, k in 0usize..9000, element in 1usize..=4, threads in 0usize..20,
            height_unit in 1usize..40, row_unit in 1usize..200,
        ) {
            let size = Size { m, n, k };
            let grid = Grid::in_units(size, element, threads, [height_unit, row_unit]);
            let mut seen = vec![0u8; m * n];
            for index in 0..grid.regions() {
                let (rows, columns) = grid.region(index);
                for row in rows {
                    for column in columns.clone() {
                        seen[row * n + column] += 1;
                    }
                }
            }
            prop_assert!(seen.iter().all(|&times| times == 1));
        }
    }

    #[test]
    fn small_products_are_not_shared() {
        assert_eq!(Grid::in_units(Size { m: 1, n: 64, k: 512 }, 2, 8, [24, 24],).regions(), 1);
        assert_eq!(Grid::in_units(Size { m: 16, n: 24, k: 512 }, 2, 8, [24, 24],).regions(), 1);
    }

    #[test]
    fn a_large_weight_is_shared_by_rows() {
        let grid = Grid::in_units(Size { m: 1, n: 2048, k: 2048 }, 2, 2, [24, 24]);
        assert_eq!(grid.regions(), 8);
        assert_eq!(grid.region(1), (0..1, 264..528));
    }

    #[test]
    fn few_weight_rows_and_many_tokens_are_shared_by_tokens() {
        let grid = Grid::in_units(Size { m: 512, n: 8, k: 2048 }, 2, 4, [24, 24]);
        assert!(grid.regions() >= 4);
        assert_eq!(grid.region(0).1, 0..8);
    }
}
