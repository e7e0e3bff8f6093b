//! Matmuls of many rows of activations, shared among threads panel by panel.

use std::ops::Range;

use super::blocks::{OutputPtr, for_each_panel};
use super::claims::Claims;
use super::pack::RowBlocks;
use super::panels::{self, Panels};
use super::{Element, Matmul, MatmulLoops, Operands, Size, Widened};
use crate::{Isa, Weight};

/// Computes matmuls of many rows, panel by panel, on as many threads as each is worth. Weights must
/// be of type `E`; `x` is as the loops read it, which cut it into these row blocks.
pub(super) fn share<X: Sync + 'static, E: Element>(
    loops: impl MatmulLoops<X, E>,
    row_blocks: RowBlocks,
    x: &[X],
    [m, k]: [usize; 2],
    matmuls: &mut [Matmul],
) {
    for Matmul { weight, n, y, stride } in matmuls {
        let size = Size { m, n: *stride, k };
        let weight = E::of(*weight).expect("weights of one dtype").as_ptr();
        let operands = Operands { x: x.as_ptr(), weight, y: y.as_mut_ptr(), size };
        let sizes = [size_of::<E>(), size_of::<X>()];
        let parts = Panels::parts(Size { n: *n, ..size }, sizes, row_blocks);
        share_panels(parts, |rows, columns| {
            // SAFETY: `MatmulActivations` checked that `isa`, which chose these loops, is
            // available, and that the slices have the lengths that `size` asks for; `x` was packed
            // for these row blocks, or needs none. All are borrowed until `share` returns. Regions
            // lie within the output, begin and end with row blocks and do not overlap, so that no
            // element of `y` is written by two calls; nothing reads `y`.
            unsafe { loops.region(&operands, rows, columns) };
        });
    }
}

/// The same with weights in blocks: a panel at a time is dequantized, and multiplied as f32.
pub(super) fn share_blocks(
    isa: Isa,
    row_blocks: RowBlocks,
    x: &[f32],
    [m, k]: [usize; 2],
    matmuls: &mut [Matmul],
) {
    for Matmul { weight, n, y, stride } in matmuls {
        let Weight::Blocks(weight) = *weight else { unreachable!("weights of one kind") };
        let size = Size { m, n: *stride, k };
        let output = OutputPtr(y.as_mut_ptr());
        let parts = Panels::parts(Size { n: *n, ..size }, [size_of::<f32>(); 2], row_blocks);
        share_panels(parts, |rows, columns| {
            let height = panels::width(k, size_of::<f32>());
            for_each_panel(isa, weight, columns, height, |panel, columns| {
                let (weight, y) = (panel.as_ptr(), output.column(columns.start));
                let operands = Operands { x: x.as_ptr(), weight, y, size };
                // SAFETY: as in `share`; the panel holds as many rows as there are columns, and `y`
                // is where the first of them goes.
                unsafe { Widened(isa).region(&operands, rows.clone(), 0..columns.len()) };
            });
        });
    }
}

/// Computes every region of the output, part by part, on as many threads as each is worth.
pub(super) fn share_panels(
    parts: impl Iterator<Item = Panels>,
    region: impl Fn(Range<usize>, Range<usize>) + Sync,
) {
    for panels in parts {
        let compute = |run| {
            for (rows, columns) in panels.regions(run) {
                region(rows, columns);
            }
        };
        let claims = Claims::of(panels.blocks(), rayon::current_num_threads());
        match claims.are_many() {
            true => claims.share(compute),
            false => compute(0..panels.blocks()),
        }
    }
}
