//! Matmuls with weights that come tile by tile, on Flex.

use std::ops::Range;

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;

use crate::buffer::{self, Buffer};
use crate::extension::{contiguous, contiguous_rows, f32_elements, matrix, operand, result, sizes};
use crate::matmul::MatmulActivations;
use crate::{ActivationDtype, ActivationFunction, Isa, Weight, WeightOperand};

/// [`linear_tiles`](crate::linear_tiles) on Flex.
pub(crate) fn stored_linear_tiles<const N: usize>(
    compute: ActivationDtype,
    x: FlexTensor,
    weights: [(usize, impl Tiles); N],
) -> [FlexTensor; N] {
    let x = contiguous(x);
    let (shape, size) = sizes(&x);
    let x = f32_elements(&x, "linear: x");
    let mut activations = MatmulActivations::new(Isa::detected(), compute, x, size);
    weights
        .map(|(out, tiles)| (out, multiply_tiles(&mut activations, size, out, tiles)))
        .map(|y| result(y, shape.clone()))
}

/// [`gated_linear_tiles`](crate::gated_linear_tiles) on Flex.
pub(crate) fn stored_gated_linear_tiles(
    compute: ActivationDtype,
    act: ActivationFunction,
    x: FlexTensor,
    out: usize,
    [gate, up]: [impl Tiles; 2],
) -> FlexTensor {
    let x = contiguous(x);
    let (shape, size) = sizes(&x);
    let x = f32_elements(&x, "linear: x");
    let mut activations = MatmulActivations::new(Isa::detected(), compute, x, size);
    let mut y = buffer::take(size[0] * out);
    for_each_two_tiles([gate, up], [out, size[1]], |rows, weights| {
        activations.multiply_gated(act, weights, rows, out, &mut y);
    });
    result((out, y), shape)
}

/// [`linear_two_tiles`](crate::linear_two_tiles) on Flex.
pub(crate) fn stored_linear_two_tiles(
    compute: ActivationDtype,
    x: FlexTensor,
    out: usize,
    weights: [impl Tiles; 2],
) -> [FlexTensor; 2] {
    let x = contiguous(x);
    let (shape, size) = sizes(&x);
    let x = f32_elements(&x, "linear: x");
    let mut activations = MatmulActivations::new(Isa::detected(), compute, x, size);
    let mut ys = [0, 1].map(|_| buffer::take(size[0] * out));
    for_each_two_tiles(weights, [out, size[1]], |rows, weights| {
        for (y, weight) in ys.iter_mut().zip(weights) {
            activations.multiply_rows(weight, rows.clone(), out, y);
        }
    });
    ys.map(|y| result((out, y), shape.clone()))
}

/// [`gated_mlp_tiles`](crate::gated_mlp_tiles) on Flex.
pub(crate) fn stored_gated_mlp_tiles(
    compute: ActivationDtype,
    act: ActivationFunction,
    x: FlexTensor,
    [inner, out]: [usize; 2],
    gated: [impl Tiles; 2],
    down: impl Tiles,
) -> FlexTensor {
    let x = contiguous(x);
    let (shape, size @ [m, _]) = sizes(&x);
    let isa = Isa::detected();
    let mut activations = MatmulActivations::new(isa, compute, f32_elements(&x, "mlp: x"), size);
    let mut made = MatmulActivations::to_be_made(isa, compute, [m, inner]);
    for_each_two_tiles(gated, [inner, size[1]], |rows, weights| {
        activations.multiply_gated_to(act, weights, rows, &mut made);
    });
    drop(activations);
    drop(x);
    let y = multiply_tiles(&mut made, [m, inner], out, down);
    result((out, y), shape)
}

/// Rows of a weight, one after the other.
pub(crate) trait Tiles: Iterator<Item = (Range<usize>, WeightOperand<Flex>)> {}

impl<T: Iterator<Item = (Range<usize>, WeightOperand<Flex>)>> Tiles for T {}

/// Activations `[m, k]` by a weight of `out` rows.
fn multiply_tiles(
    activations: &mut MatmulActivations,
    [m, k]: [usize; 2],
    out: usize,
    tiles: impl Tiles,
) -> Buffer {
    let mut y = buffer::take(m * out);
    for_each_tile(tiles, [out, k], |rows, tile| {
        activations.multiply_rows(tile, rows, out, &mut y);
    });
    y
}

/// All rows of a weight of that shape, tile by tile.
fn for_each_tile(
    tiles: impl Tiles,
    shape @ [out, _]: [usize; 2],
    mut take: impl FnMut(Range<usize>, Weight),
) {
    let mut next = 0;
    for tile in tiles {
        let tile = Tile::new(tile, shape, next);
        next = tile.rows.end;
        take(tile.rows.clone(), tile.weight(&tile.rows));
    }
    assert_eq!(next, out, "linear: tiles must be all of a weight of {out} rows");
}

/// All rows of two weights of that shape, as far as tiles of both go at a time. Of each, one tile
/// is held, and the first one's asked for first.
fn for_each_two_tiles(
    mut tiles: [impl Tiles; 2],
    shape @ [out, _]: [usize; 2],
    mut take: impl FnMut(Range<usize>, [Weight; 2]),
) {
    let mut held = [None, None];
    let mut next = 0;
    while next < out {
        for held in &mut held {
            // What is over goes before the next comes, which may need its memory.
            _ = held.take_if(|tile: &mut Tile| tile.rows.end == next);
        }
        for (held, tiles) in held.iter_mut().zip(&mut tiles) {
            held.get_or_insert_with(|| {
                let tile = tiles.next().expect("linear: tiles must be all of a weight");
                Tile::new(tile, shape, next)
            });
        }
        let [Some(first), Some(second)] = &held else { unreachable!("both were asked for") };
        let rows = next..first.rows.end.min(second.rows.end);
        take(rows.clone(), [first, second].map(|tile| tile.weight(&rows)));
        next = rows.end;
    }
    let more = tiles.into_iter().flatten().any(|(rows, _)| !rows.is_empty());
    assert!(!more, "linear: tiles must be all of a weight of {out} rows");
}

/// Some rows of a weight.
struct Tile {
    rows: Range<usize>,
    operand: WeightOperand<Flex>,
}

impl Tile {
    /// The rows from `next` on of a weight of that shape.
    fn new(
        (rows, tile): (Range<usize>, WeightOperand<Flex>),
        [out, k]: [usize; 2],
        next: usize,
    ) -> Self {
        let operand = contiguous_rows(tile);
        assert_eq!(
            ([rows.len(), k], rows.start),
            (matrix(&operand, "linear: tile"), next),
            "linear: tiles must be rows of a weight [{out}, {k}], one after the other"
        );
        Self { rows, operand }
    }

    /// Some of its rows, as the whole weight counts them.
    fn weight(&self, rows: &Range<usize>) -> Weight<'_> {
        let weight = operand(&self.operand, "linear: tile");
        let k = weight.len() / self.rows.len().max(1);
        let [start, end] = [rows.start, rows.end].map(|row| (row - self.rows.start) * k);
        weight.slice(start, end)
    }
}
