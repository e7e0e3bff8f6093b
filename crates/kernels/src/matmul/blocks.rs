//! Weights in blocks, dequantized a panel at a time into memory that stays in the second-level cache.
//!
//! The loops for f32 multiply a panel: the bits of a result are those of the weight's f32.

use std::cell::Cell;
use std::ops::Range;

use super::pack::Scratch;
use crate::{BlockWeight, Isa};

/// Bytes of a panel, about: a core's second-level cache holds it beside activations.
const BYTES: usize = 256 << 10;

/// Rows of a panel: a multiple of those that loops of one row of activations take side by side …
const UNIT: usize = 8;

/// … and no more than those of other loops need.
const MOST: usize = 24;

thread_local! {
    static PANEL: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Rows of a panel of a weight with `k` columns.
fn height(k: usize) -> usize {
    let rows = BYTES / k.saturating_mul(size_of::<f32>()).max(1);
    (rows / UNIT * UNIT).clamp(UNIT, MOST)
}

/// An upper bound on the bytes that a thread keeps for panels of weights of up to so many columns.
pub fn panel_bytes(columns: u64) -> u64 {
    let rows = height(usize::try_from(columns).unwrap_or(usize::MAX)) as u64;
    columns.saturating_mul(4 * rows).saturating_add(64)
}

/// Calls `multiply` with some rows of the weight in f32 and their numbers, until all `rows` are done.
pub(super) fn for_each_panel(
    isa: Isa,
    weight: BlockWeight<&[u8]>,
    rows: Range<usize>,
    mut multiply: impl FnMut(&[f32], Range<usize>),
) {
    let k = weight.shape()[1];
    let height = height(k);
    let mut panel = Scratch::new(height * k, &PANEL);
    for start in rows.clone().step_by(height) {
        let some = start..rows.end.min(start + height);
        let panel = &mut panel[..some.len() * k];
        weight.slice(some.clone()).dequantize_with(isa, panel);
        multiply(panel, some);
    }
}

/// The address of an output that threads write disjoint columns of.
pub(super) struct Output(pub(super) *mut f32);

// SAFETY: an address; whoever writes through it says why nobody else does.
unsafe impl Sync for Output {}

impl Output {
    /// Where the elements of a column begin.
    pub(super) fn column(&self, column: usize) -> *mut f32 {
        self.0.wrapping_add(column)
    }
}
