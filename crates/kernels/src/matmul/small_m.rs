//! small-M matmuls of activations, such as one token's: what counts is that weights come from
//! memory as fast as it gives them.
//!
//! Each thread claims runs of the weight's rows, long ones first and short ones last, so that all
//! end together; within a run weights are fetched in the order they lie in memory. Activations are
//! packed, so that a row block of them stands in the first levels of the cache without conflicts.

use std::ops::Range;

use super::blocks::{FEW, OutputPtr, for_each_panel, height};
use super::claims::Claims;
use super::pack::{Packed, RowBlocks, Scratch};
use super::tile::{self, Kernel, Prefetch, RowBlock};
use super::{Element, Matmul, MatmulLoops, Operands, Size, Widened, few_rows_of_blocks, pack};
use crate::{Isa, Weight};

/// Matmuls of fewer rows of activations than this are computed here.
pub(super) const ROWS: usize = 16;

/// Rows of a row block if there are several. Two row blocks of four rows pass the same few rows of
/// weights one after the other; one of eight would read twice as many activations for each weight
/// from the second-level cache, which has its hands full with what comes from memory.
const HEIGHT: usize = 4;

/// The row blocks that `m` rows are cut into, if a kernel takes up to `max_rows`.
#[inline(always)]
fn row_blocks(m: usize, max_rows: usize) -> RowBlocks {
    RowBlocks::new(m, if m <= max_rows { max_rows } else { HEIGHT })
}

/// `x [m, k]` as a kernel of so many rows and lanes reads it.
pub(super) fn packed<X: Packed>(
    x: &[f32],
    [m, k]: [usize; 2],
    max_rows: usize,
    lanes: usize,
) -> Scratch<X> {
    pack::packed(x, [m, k], row_blocks(m, max_rows), lanes)
}

/// Computes `y[.., columns]` from packed activations.
///
/// # Safety
///
/// That of [`MatmulLoops::small_m`](super::MatmulLoops::small_m), with the instructions of `K`.
#[inline(always)]
pub(super) unsafe fn columns<K: Kernel<E>, E>(operands: &Operands<K::X, E>, columns: Range<usize>) {
    let Size { m, k, .. } = operands.size;
    let several = m > K::MAX_ROWS;
    let panel = if several { K::PANEL } else { columns.len() };
    let weight = |index| operands.weight.wrapping_add(index).cast();
    let mut start = columns.start;
    while start < columns.end {
        let end = columns.end.min(start.saturating_add(panel));
        for (row_block, rows) in row_blocks(m, K::MAX_ROWS).all().enumerate() {
            // Two row blocks fetch half of the next panel each, or rather as much as they read; one
            // fetches all.
            let prefetch = match (several, row_block) {
                (false, _) => Prefetch::Far,
                (true, at @ 0..2) if end < columns.end => {
                    Prefetch::Eighths(4, weight(end * k + at * (end - start) * k / 2))
                }
                _ => Prefetch::None,
            };
            let block =
                RowBlock { row: rows.start, height: rows.len(), columns: start..end, prefetch };
            // SAFETY: the caller's promises, for rows and columns within its own.
            unsafe { tile::row_block::<K, E, _>(operands, tile::Packed, block) };
        }
        start = end;
    }
}

/// What a run of rows of weights is a multiple of, for `m` rows of activations: the tiles' widths,
/// see `Kernel::row_block`.
pub(super) fn unit(m: usize) -> usize {
    match m {
        1 => 8,
        2 => 24,
        _ => 12,
    }
}

/// Computes matmuls of fewer than [`ROWS`](super::small_m::ROWS) rows, or in tiles (AMX) of any
/// number, run by run, on as many threads as they are worth. `x` is packed as the loops read it.
/// Weights must be of type `E`; the rows of all of them are shared as if they were those of one.
pub(super) fn share<X: Sync + 'static, E: Element>(
    loops: impl MatmulLoops<X, E>,
    x: &[X],
    [m, k]: [usize; 2],
    matmuls: &mut [Matmul],
) {
    // Each row of each has its own elements of `y`: so many of them can be counted.
    let n = matmuls.iter().map(|matmul| matmul.n).sum();
    let size = Size { m, n, k };
    let rows: Vec<usize> = matmuls.iter().map(|matmul| matmul.n).collect();
    let jobs: Vec<Operands<X, E>> = matmuls
        .iter_mut()
        .map(|matmul| Operands {
            x: x.as_ptr(),
            weight: E::of(matmul.weight).expect("weights of one dtype").as_ptr(),
            y: matmul.y.as_mut_ptr(),
            size: Size { m, n: matmul.stride, k },
        })
        .collect();
    let claims = loops.claims(size, size_of::<E>(), rayon::current_num_threads());
    share_rows(claims, rows.into_iter(), |job, rows| {
        // SAFETY: `MatmulActivations` checked that `isa`, which chose these loops, is
        // available, and that the slices have the lengths that their sizes ask for; `x` was packed
        // for them. All are borrowed until `share` returns. What is left of a run lies within the
        // rows of the weight, and no row is in two runs, so that no element of `y` is written by
        // two calls; nothing reads `y`.
        unsafe { loops.small_m(&jobs[job], rows) };
    });
}

/// The same for weights in blocks: a few rows at a time are dequantized, and multiplied as f32.
pub(super) fn share_blocks(isa: Isa, x: &[f32], [m, k]: [usize; 2], matmuls: &mut [Matmul]) {
    let loops = Widened(isa);
    let rows: Vec<usize> = matmuls.iter().map(|matmul| matmul.n).collect();
    let size = Size { m, n: rows.iter().sum(), k };
    let jobs: Vec<_> = matmuls
        .iter_mut()
        .map(|matmul| match matmul.weight {
            Weight::Blocks(weight) => (weight, OutputPtr(matmul.y.as_mut_ptr()), matmul.stride),
            _ => unreachable!("weights of one kind"),
        })
        .collect();
    // Most of the work is to dequantize: a run is as long as one of f32.
    let claims = Claims::new(size, size_of::<f32>(), rayon::current_num_threads(), unit(m));
    share_rows(claims, rows.into_iter(), |job, rows| {
        let (weight, output, stride) = &jobs[job];
        let panels = |rows| {
            for_each_panel(isa, *weight, rows, height(k), |panel, rows| {
                let operands = Operands {
                    x: x.as_ptr(),
                    weight: panel.as_ptr(),
                    y: output.column(rows.start),
                    size: Size { m, n: *stride, k },
                };
                // SAFETY: as in `share`; the panel holds as many rows of the weight, and `y` is
                // where the first of them goes.
                unsafe { loops.small_m(&operands, 0..rows.len()) };
            });
        };
        if m > FEW {
            return panels(rows);
        }
        let first = rows.start;
        let others = |rows: Range<usize>| panels(first + rows.start..first + rows.end);
        // SAFETY: as above; the rows of `x`, no more than any row block has, are packed as one.
        unsafe {
            let (x, y) = (x.as_ptr(), output.column(first));
            few_rows_of_blocks(isa, m, x, weight.slice(rows), y, *stride, &others);
        }
    });
}

/// Calls `compute` with the number of a matmul and some of its weight's rows, until all rows of
/// all, of which each has so many, are done: on as many threads as they are worth.
pub(super) fn share_rows(
    claims: Claims,
    rows: impl Iterator<Item = usize>,
    compute: impl Fn(usize, Range<usize>) + Sync,
) {
    let rows: Vec<usize> = rows.collect();
    claims.share(|run| {
        let mut first = 0;
        for (job, rows) in rows.iter().enumerate() {
            let some = run.start.max(first)..run.end.min(first + rows);
            if !some.is_empty() {
                compute(job, some.start - first..some.end - first);
            }
            first += rows;
        }
    });
}
