//! Matmuls with packed bf16: the bits of a result are those that the same weight has unpacked.
//!
//! A panel of rows at a time is unpacked into memory that stays in the second-level cache, and the
//! loops for bf16 multiply that. A few rows of activations need no panel where there are
//! instructions to unpack in registers: each weight is used once.

use std::cell::Cell;
use std::ops::Range;

use half::bf16;

use super::blocks::OutputPtr;
use super::gemm::share_panels;
use super::pack::{RowBlocks, Scratch};
use super::panels::Panels;
use super::small_m::share_rows;
use super::{Matmul, MatmulLoops, Operands, Size};
use crate::packed_bf16::unpack;
use crate::{BlockWeight, Isa, Weight};

/// Bytes of a panel, about.
const BYTES: usize = 192 << 10;

/// Rows of a panel are a multiple of these, which loops take side by side …
const UNIT: usize = 24;

/// … and no more than these, but for AMX …
const MOST: usize = 2 * UNIT;

/// … whose loops take so many side by side.
const WIDEST: usize = 128;

thread_local! {
    static PANEL: Cell<Vec<bf16>> = const { Cell::new(Vec::new()) };
}

/// Loops that multiply a few rows of activations by packed weights in registers.
pub(super) trait PackedLoops<X: 'static>: MatmulLoops<X, bf16> {
    /// Computes `y` of `m` rows for rows of a packed weight, if there are loops for so many:
    /// whether it has.
    ///
    /// # Safety
    ///
    /// That of [`MatmulLoops::small_m`] for all rows of the weight, the first of which is for the
    /// element at `y`; rows of `y` are `stride` elements apart.
    unsafe fn few_rows(
        self,
        m: usize,
        x: *const X,
        weight: BlockWeight<&[u8]>,
        y: *mut f32,
        stride: usize,
    ) -> bool;
}

/// The packed weight of a matmul.
fn packed(weight: Weight<'_>) -> BlockWeight<&[u8]> {
    match weight {
        Weight::Blocks(weight) => weight,
        _ => unreachable!("weights of one kind"),
    }
}

/// Calls `multiply` with some rows of the weight and their numbers, until all `rows` are done: at
/// most so many at a time.
fn for_each_panel(
    isa: Isa,
    weight: BlockWeight<&[u8]>,
    rows: Range<usize>,
    height: usize,
    mut multiply: impl FnMut(&[bf16], Range<usize>),
) {
    let packed = weight.packed_bf16().expect("packed bf16");
    let k = weight.shape()[1];
    let mut panel = Scratch::new(height.min(rows.len()) * k, &PANEL);
    for start in rows.clone().step_by(height) {
        let some = start..rows.end.min(start + height);
        let panel = &mut panel[..some.len() * k];
        unpack(isa, packed, weight.slice(some.clone()).data(), panel);
        multiply(panel, some);
    }
}

/// Calls `take` with some rows of a packed weight after the other, unpacked.
///
/// # Panics
///
/// If the weight is none.
#[cfg(target_arch = "x86_64")]
pub(crate) fn for_each_unpacked(weight: Weight<'_>, mut take: impl FnMut(&[bf16])) {
    let weight = packed(weight);
    let [rows, k] = weight.shape();
    for_each_panel(Isa::detected(), weight, 0..rows, height(k), |rows, _| take(rows));
}

/// As [`blocks::panel_bytes`](super::blocks::panel_bytes).
pub(super) fn panel_bytes(columns: u64) -> u64 {
    let most = if Isa::detected() == Isa::AmxBf16 { WIDEST } else { MOST };
    columns.saturating_mul((size_of::<bf16>() * most) as u64).saturating_add(64)
}

/// Rows of a panel of a weight with `k` columns.
fn height(k: usize) -> usize {
    let rows = BYTES / (k * size_of::<bf16>()).max(1);
    (rows / UNIT * UNIT).clamp(UNIT, MOST)
}

/// As [`small_m::share`](super::small_m::share).
pub(super) fn share<X: Sync + 'static>(
    isa: Isa,
    loops: impl PackedLoops<X>,
    x: &[X],
    [m, k]: [usize; 2],
    matmuls: &mut [Matmul],
) {
    let rows: Vec<usize> = matmuls.iter().map(|matmul| matmul.n).collect();
    let size = Size { m, n: rows.iter().sum(), k };
    let jobs: Vec<_> = matmuls
        .iter_mut()
        .map(|matmul| (packed(matmul.weight), OutputPtr(matmul.y.as_mut_ptr()), matmul.stride))
        .collect();
    let unit = loops.small_m_unit(m);
    let claims = loops.claims(size, size_of::<bf16>(), rayon::current_num_threads());
    debug_assert!(unit <= WIDEST, "{unit} rows side by side");
    let height = height(k).next_multiple_of(unit);
    share_rows(claims, rows.into_iter(), |job, rows| {
        let (weight, output, stride) = &jobs[job];
        let (some, y) = (weight.slice(rows.clone()), output.column(rows.start));
        // SAFETY: as in `small_m::share`: `y` is where the first of these rows goes.
        if unsafe { loops.few_rows(m, x.as_ptr(), some, y, *stride) } {
            return;
        }
        for_each_panel(isa, *weight, rows, height, |panel, rows| {
            let y = output.column(rows.start);
            let size = Size { m, n: *stride, k };
            let operands = Operands { x: x.as_ptr(), weight: panel.as_ptr(), y, size };
            // SAFETY: as above; the panel holds as many rows of the weight.
            unsafe { loops.small_m(&operands, 0..rows.len()) };
        });
    });
}

/// As [`gemm::share`](super::gemm::share).
pub(super) fn share_many<X: Sync + 'static>(
    isa: Isa,
    loops: impl MatmulLoops<X, bf16>,
    row_blocks: RowBlocks,
    x: &[X],
    [m, k]: [usize; 2],
    matmuls: &mut [Matmul],
) {
    for Matmul { weight, n, y, stride } in matmuls {
        let weight = packed(*weight);
        let size = Size { m, n: *stride, k };
        let output = OutputPtr(y.as_mut_ptr());
        let sizes = [size_of::<bf16>(), size_of::<X>()];
        let parts = Panels::parts(Size { n: *n, ..size }, sizes, row_blocks);
        share_panels(parts, |rows, columns| {
            for_each_panel(isa, weight, columns, height(k), |panel, columns| {
                let (weight, y) = (panel.as_ptr(), output.column(columns.start));
                let operands = Operands { x: x.as_ptr(), weight, y, size };
                // SAFETY: as in `gemm::share`; the panel holds as many rows as there are columns,
                // and `y` is where the first of them goes.
                unsafe { loops.region(&operands, rows.clone(), 0..columns.len()) };
            });
        });
    }
}
