//! From tiles of sums to `y`.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::{Operands, Size, region};
use super::block::PanelMemory;
use super::blocking::Panel;
use super::tiles::{COLUMNS, ROWS};
use super::{Amx, Gate, PAIR, SUMS};
use crate::Isa;
use crate::activation::gate_each;
use crate::simd::transposed;

impl Amx<'_> {
    /// What becomes of the sums of a row block that has all steps.
    ///
    /// # Safety
    ///
    /// As for [`Amx::row_blocks`].
    #[inline(always)]
    pub(super) unsafe fn end_row_block<const PARTS: usize>(
        &self,
        operands: &Operands<bf16, bf16>,
        panel: &Panel,
        row_block: usize,
        memory: &mut PanelMemory,
    ) {
        // SAFETY: the caller's promises.
        unsafe {
            match self.gate {
                Some(Gate { function, weight: Some(_), made: Some(made) }) => {
                    self.make_row_block::<PARTS>(function, made, operands, panel, row_block, memory)
                }
                _ => self.write_row_block(operands, panel, row_block, memory),
            }
        }
    }

    /// Turns the sums of a row block over into `y`, which is written along its rows.
    ///
    /// # Safety
    ///
    /// As for [`Amx::row_block`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn write_row_block(
        &self,
        operands: &Operands<bf16, bf16>,
        panel: &Panel,
        row_block: usize,
        memory: &mut PanelMemory,
    ) {
        let Range { start, end } = panel.row_block(row_block);
        let (n, columns) = (operands.size.n, &panel.columns);
        let width = panel.pairs() * PAIR;
        // Rows a power of two apart would be in the same few lines of the first-level cache.
        let apart = panel.sides * width + ROWS;
        for (right, first) in (start..end).step_by(COLUMNS).enumerate() {
            let rows = first..end.min(first + COLUMNS);
            for at in 0..panel.sides * width / ROWS {
                let tile = at % 2 * 2 + right;
                // SAFETY: four tiles of sums.
                let sums = memory.sums(panel.sums(row_block, at / 2)).wrapping_add(tile * SUMS);
                let to = &mut memory.turned[at * ROWS..];
                // SAFETY: a tile of sums has sixteen vectors, and sixteen rows have room for as
                // many from here on.
                unsafe {
                    let tile = std::array::from_fn(|row| {
                        _mm512_loadu_si512(sums.add(row * COLUMNS).cast())
                    });
                    for (row, sums) in transposed(tile).into_iter().take(rows.len()).enumerate() {
                        _mm512_storeu_si512(to.as_mut_ptr().wrapping_add(row * apart).cast(), sums);
                    }
                }
            }
            for (row, outputs) in rows.zip(memory.turned.chunks_exact_mut(apart)) {
                for (operands, outputs) in self.each_side(operands).zip(outputs.chunks_mut(width)) {
                    let outputs = &mut outputs[..columns.len()];
                    // Of all, as a loop that ends early looks at one at a time.
                    let is_any_nan =
                        || outputs.iter().fold(false, |any, output| any | output.is_nan());
                    if self.layout.parts > 1 && is_any_nan() {
                        let mut x = None;
                        for (column, output) in columns.clone().zip(outputs) {
                            // SAFETY: the caller's promises.
                            unsafe { self.again(&operands, [row, column], &mut x, output) };
                        }
                    }
                }
                let (outputs, gate) = outputs.split_at_mut(width);
                let outputs = &outputs[..columns.len()];
                // SAFETY: the caller's promises: `y` has these rows and columns, which nothing else
                // reads or writes meanwhile.
                let y = unsafe {
                    std::slice::from_raw_parts_mut(
                        operands.y.add(row * n + columns.start),
                        columns.len(),
                    )
                };
                match self.gate {
                    Some(Gate { function, weight: None, .. }) => {
                        gate_each(Isa::AmxBf16, function, y, outputs);
                    }
                    Some(Gate { function, weight: Some(_), .. }) => {
                        let gate = &mut gate[..columns.len()];
                        gate_each(Isa::AmxBf16, function, gate, outputs);
                        y.copy_from_slice(gate);
                    }
                    None => y.copy_from_slice(outputs),
                }
            }
        }
    }

    /// Computes an output again with fused multiply-adds if it is not a number. `x` is the row of
    /// activations, once it is unpacked.
    ///
    /// # Safety
    ///
    /// That of [`MatmulLoops::region`], for this one output.
    #[cold]
    pub(super) unsafe fn again(
        &self,
        operands: &Operands<bf16, bf16>,
        [row, column]: [usize; 2],
        x: &mut Option<Vec<f32>>,
        output: &mut f32,
    ) {
        if !output.is_nan() {
            return;
        }
        let k = operands.size.k;
        // SAFETY: activations are packed for the layout; the row is in the weight; all sets of
        // instructions up to AMX are there.
        unsafe {
            let packed = std::slice::from_raw_parts(operands.x, self.layout.len());
            let one = Operands {
                x: x.get_or_insert_with(|| self.layout.row(packed, row)).as_ptr(),
                weight: operands.weight.add(column * k),
                y: output,
                size: Size { m: 1, n: 1, k },
            };
            region(Isa::Avx512, &one, 0..1, 0..1);
        }
    }
}
