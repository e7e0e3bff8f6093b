//! The product of bf16 weights in AMX: sixteen by sixteen outputs a tile, thirty-two products of
//! each in one instruction.
//!
//! What is computed is `yᵀ = W · xᵀ`. Weights are the first operand, which the tile registers take
//! row by row as they lie in memory; activations are the second, which wants pairs of elements of a
//! row side by side: they are few, and packed that way (see `pack`). Sums stay in tile registers,
//! two by two, and are turned over as they are written to `y`.
//!
//! # In which order
//!
//! An output takes `k` in steps of 32, zeros beyond its end. In a step each part of the activations
//! is multiplied, the smallest first: the processor adds the sixteen even products in order, and
//! the sixteen odd ones, then both, then what it had; subnormal numbers, given or made, are zero.
//! So the bits of an output depend on its two rows alone: a single row of activations comes to what
//! it does as a column among others.
//!
//! # Exactness
//!
//! Three parts of eight bits make up an activation exactly, products of two bf16 are exact in f32,
//! and the parts have one sign, so that an output's error is at most that of `16 + 3 · ⌈k / 32⌉`
//! roundings: within what the [crate](crate#accuracy) promises for all. Two parts would keep
//! sixteen bits of an activation's twenty-four.
//!
//! A part of zero times an infinite weight is not a number, where the activation times the weight
//! is infinite. What comes out as NaN is therefore computed again with fused multiply-adds: so what
//! is not finite comes out as there.

mod block;
mod blocking;
mod broadcast;
mod cache;
mod in_place;
mod made;
mod output;
mod pack;
mod product;
mod rounds;
mod tiles;
mod weights;

use std::ops::Range;

use half::bf16;

use super::pack::Scratch;
use super::packed::PackedLoops;
use super::{Claims, Matmul, MatmulLoops, Operands, Size};
use crate::{ActivationDtype, ActivationFunction, BlockWeight, Isa};
use block::PanelMemory;
pub(super) use blocking::most_bytes;
use blocking::{Blocking, PAIRS, is_in_place};
pub(super) use broadcast::rows;
pub(super) use made::{Made, made_rows};
use pack::Layout;
pub(crate) use pack::cut;
pub(super) use pack::room;
pub(crate) use product::{TileProducts, TileRows, TileSums};
pub(crate) use rounds::rounds;
use tiles::{COLUMNS, ROWS, Tiles};

/// Rows of weights in two tiles.
const PAIR: usize = 2 * ROWS;

/// Packed rows of weights that are unpacked at once at least, if they are copied to tiles: all
/// activations are read for them.
const BROAD: usize = 4 * PAIR;

/// Elements of a tile of sums.
const SUMS: usize = ROWS * COLUMNS;

/// `x [m, k]` as [`matmuls`] want it, `beside` what is made of it or other activations.
///
/// # Safety
///
/// [`Isa::AmxBf16`](crate::Isa::AmxBf16) is available.
pub(super) unsafe fn packed(
    compute: ActivationDtype,
    x: &[f32],
    size: [usize; 2],
    beside: bool,
) -> Scratch<bf16> {
    // SAFETY: the caller's promise.
    unsafe { pack::packed(&Layout::new(compute, size), x, beside) }
}

/// Computes matmuls of activations `[m, k]` with weights in bf16, as they are or all packed; all
/// slices have the lengths that the sizes ask for. With a `gate` outputs are what goes through it,
/// as [`gate_in_place`](crate::activation::gate_in_place) computes that.
///
/// # Safety
///
/// [`Isa::AmxBf16`](crate::Isa::AmxBf16) is available, and `x` is [`packed`] for that type and
/// size.
pub(super) unsafe fn matmuls(
    compute: ActivationDtype,
    x: &[bf16],
    [m, k]: [usize; 2],
    gate: Option<Gate>,
    matmuls: &mut [Matmul],
) {
    let layout = Layout::new(compute, [m, k]);
    let loops = Amx { layout, gate };
    if k == 0 {
        let rows = matmuls.iter_mut().flat_map(|Matmul { n, y, stride, .. }| {
            y.chunks_mut((*stride).max(1)).map(|row| &mut row[..*n])
        });
        return rows.for_each(|row| row.fill(0.0));
    }
    match matmuls[0].weight.is_packed_bf16() {
        true => super::packed::share(Isa::AmxBf16, loops, x, [m, k], matmuls),
        false => super::small_m::share::<_, bf16>(loops, x, [m, k], matmuls),
    }
}

/// A gate that outputs go through as they are written.
#[derive(Clone, Copy)]
pub(super) struct Gate<'a> {
    pub(super) function: ActivationFunction,
    /// The weight that it is made with, of as many rows as the other; without one, it is in their
    /// place.
    pub(super) weight: Option<&'a [bf16]>,
    /// What is made of the outputs, instead of rows of numbers, if it is made with a weight.
    pub(super) made: Option<Made>,
}

/// Loops over tiles.
#[derive(Clone, Copy)]
struct Amx<'a> {
    layout: Layout,
    gate: Option<Gate<'a>>,
}

impl MatmulLoops<bf16, bf16> for Amx<'_> {
    unsafe fn region(
        self,
        operands: &Operands<bf16, bf16>,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        // SAFETY: the caller's promises.
        unsafe { self.walk(operands, rows, columns) }
    }

    unsafe fn small_m(self, operands: &Operands<bf16, bf16>, columns: Range<usize>) {
        // SAFETY: the caller's promises.
        unsafe { self.region(operands, 0..operands.size.m, columns) }
    }

    fn small_m_unit(self, m: usize) -> usize {
        if is_in_place(cache::of_thread(), &self.layout, m) { ROWS } else { BROAD }
    }

    fn claims(self, size: Size, element: usize, threads: usize) -> Claims {
        match is_in_place(cache::of_thread(), &self.layout, size.m) {
            true => Claims::new(size, element, threads, ROWS),
            // All activations are read for each run: as few as there can be.
            false => Claims::alike(size.n, threads, PAIRS / self.sides() * PAIR, PAIR),
        }
    }
}

impl PackedLoops<bf16> for Amx<'_> {
    unsafe fn few_rows(
        self,
        _m: usize,
        _x: *const bf16,
        _weight: BlockWeight<&[u8]>,
        _y: *mut f32,
        _stride: usize,
    ) -> bool {
        // Tiles are read from memory.
        false
    }
}

impl Amx<'_> {
    /// Weights that are multiplied at once: two if the gate has one.
    fn sides(&self) -> usize {
        1 + usize::from(self.gate.is_some_and(|gate| gate.weight.is_some()))
    }

    /// The operands of the weight, and of the gate's if it has one.
    fn each_side(
        &self,
        operands: &Operands<bf16, bf16>,
    ) -> impl Iterator<Item = Operands<bf16, bf16>> {
        let gate = self.gate.and_then(|gate| gate.weight);
        let gate = gate.map(|weight| Operands { weight: weight.as_ptr(), ..*operands });
        std::iter::once(*operands).chain(gate)
    }

    /// Computes `y[rows, columns]`: panel by panel of weights, in each row block by row block of
    /// activations.
    ///
    /// # Safety
    ///
    /// That of [`MatmulLoops::region`], on a processor that has
    /// [`Isa::AmxBf16`](crate::Isa::AmxBf16); and `rows` begin with a row block.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    unsafe fn walk(
        self,
        operands: &Operands<bf16, bf16>,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        if rows.is_empty() || columns.is_empty() {
            return;
        }
        let blocking = Blocking::new(cache::of_thread(), &self.layout, rows.len(), self.sides());
        let mut memory = PanelMemory::new(&blocking);
        // SAFETY: the processor has AMX, and there is one such loop on a thread at a time.
        let _tiles = unsafe { Tiles::configure(self.layout.columns) };
        for panel in blocking.panels(&rows, &columns) {
            // SAFETY: the caller's promises, for rows and columns within its own; the memory is for
            // these panels.
            unsafe {
                match (blocking.is_in_place(), self.layout.parts) {
                    (true, 1) => self.in_place::<1>(operands, &panel, &mut memory),
                    (true, _) => self.in_place::<3>(operands, &panel, &mut memory),
                    (false, 1) => self.row_blocks::<1>(operands, &panel, &mut memory),
                    (false, _) => self.row_blocks::<3>(operands, &panel, &mut memory),
                }
            }
        }
    }
}
