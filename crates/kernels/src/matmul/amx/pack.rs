//! Activations as tiles: pairs of neighbouring elements of a row side by side, one column a row of
//! activations.
//!
//! A row block of up to 32 rows of `x` is read from its first byte to its last, step by step of 32
//! elements of `k`:
//!
//! ```text
//! step 0: part 0: rows 0..16, rows 16..32 | part 1: …  then step 1 …
//! ```
//!
//! A tile is `[16, columns, 2]`: element pair, row of `x`, element of the pair. There are zeros
//! beyond the last row and the last element.
//!
//! # Parts
//!
//! Rounded to bf16, an activation is one part. To keep it as it is, it is cut in three: its upper
//! eight bits of precision, those of what remains, and the last eight, which add up to it exactly
//! and have its sign. What lies below the least normal number, and so the last parts of numbers
//! under `2⁻¹⁰³`, counts as zero. Of what is not finite the first part is all. The smallest comes
//! first.

use std::arch::x86_64::*;
use std::cell::Cell;

use half::bf16;

use super::super::pack::{SHARED, Scratch};
use super::tiles::{COLUMNS, ROWS, STEP};
use crate::simd::transposed;
use crate::{ActivationDtype, loops};

/// Rows of `x` in a row block: two tiles of them.
pub(super) const ROW_BLOCK: usize = 2 * COLUMNS;

thread_local! {
    static PACKED: Cell<Vec<bf16>> = const { Cell::new(Vec::new()) };
    /// For the inputs of a gated block, while there is what it makes of them.
    static BESIDE: Cell<Vec<bf16>> = const { Cell::new(Vec::new()) };
}

/// How the activations of a matmul are packed.
#[derive(Clone, Copy)]
pub(in super::super) struct Layout {
    /// Rows of `x`.
    rows: usize,
    /// Elements of a row of `x`.
    k: usize,
    /// Parts of each activation.
    pub(super) parts: usize,
    /// Columns of a tile.
    pub(super) columns: usize,
}

impl Layout {
    pub(super) fn new(compute: ActivationDtype, [rows, k]: [usize; 2]) -> Self {
        Self { rows, k, parts: compute.parts(), columns: rows.min(COLUMNS) }
    }

    /// Elements of a row.
    pub(super) fn k(&self) -> usize {
        self.k
    }

    /// Steps of a row.
    pub(super) fn steps(&self) -> usize {
        self.k.div_ceil(STEP)
    }

    /// Elements of a tile.
    pub(super) fn tile(&self) -> usize {
        ROWS * self.columns * 2
    }

    /// Elements of a step of a row block of so many rows.
    pub(super) fn step(&self, rows: usize) -> usize {
        self.parts * rows.div_ceil(COLUMNS) * self.tile()
    }

    /// Where the row block begins whose first row is this one, a multiple of [`ROW_BLOCK`].
    pub(super) fn start(&self, row: usize) -> usize {
        row / ROW_BLOCK * self.steps() * self.step(ROW_BLOCK)
    }

    /// Where an element of a row lies in the row block of so many rows that the row is in: in its
    /// first part; and how far the parts are apart.
    pub(super) fn place(&self, row: usize, at: usize, rows: usize) -> [usize; 2] {
        let tile = row % ROW_BLOCK / COLUMNS * self.tile();
        let pair = (at % STEP / 2 * self.columns + row % COLUMNS) * 2 + at % 2;
        [at / STEP * self.step(rows) + tile + pair, rows.div_ceil(COLUMNS) * self.tile()]
    }

    /// The numbers of a row of what is packed, but for those that count as zero.
    pub(super) fn row(&self, packed: &[bf16], row: usize) -> Vec<f32> {
        let rows = ROW_BLOCK.min(self.rows - row / ROW_BLOCK * ROW_BLOCK);
        let block = &packed[self.start(row)..];
        let number = |at| {
            let [first, apart] = self.place(row, at, rows);
            (0..self.parts).map(|part| block[first + part * apart].to_f32()).sum()
        };
        (0..self.k).map(number).collect()
    }

    /// Elements of all row blocks.
    pub(super) fn len(&self) -> usize {
        let whole = self.rows / ROW_BLOCK * ROW_BLOCK;
        self.start(whole) + self.steps() * self.step(self.rows - whole)
    }
}

/// Room for activations `[m, k]`, in which are zeros where none are made.
pub(in super::super) fn room(compute: ActivationDtype, size: [usize; 2]) -> Scratch<bf16> {
    let layout = Layout::new(compute, size);
    let mut room = Scratch::new(layout.len(), &PACKED);
    if !layout.k.is_multiple_of(STEP) {
        room.fill(bf16::ZERO);
    }
    room
}

/// Packs `x [m, k]`; the first tile begins with a cache line, and so do all rows if there are
/// sixteen columns. `beside` others if that is said.
///
/// # Safety
///
/// The processor has [`Isa::Avx512Bf16`](crate::Isa::Avx512Bf16).
pub(super) unsafe fn packed(layout: &Layout, x: &[f32], beside: bool) -> Scratch<bf16> {
    let home = if beside { &BESIDE } else { &PACKED };
    let mut packed = Scratch::new(layout.len(), home);
    let mut rest = &mut packed[..];
    let (k, steps) = (layout.k, layout.steps());
    let row_blocks = x.chunks((ROW_BLOCK * k).max(1)).map(|x| {
        let len = steps * layout.step(x.len() / k);
        let (row_block, after) = std::mem::take(&mut rest).split_at_mut(len);
        rest = after;
        (x, row_block)
    });
    let fill = |(x, row_block): (&[f32], &mut [bf16])| {
        // SAFETY: the caller's promise; the slices hold whole rows, and the steps of these.
        unsafe {
            match layout.parts {
                1 => fill::<1>(layout, x, row_block),
                _ => fill::<3>(layout, x, row_block),
            }
        }
    };
    match x.len() < SHARED {
        true => row_blocks.for_each(fill),
        false => loops::share(row_blocks, fill),
    }
    packed
}

/// Packs one row block.
///
/// # Safety
///
/// The processor has [`Isa::Avx512Bf16`](crate::Isa::Avx512Bf16); `x` holds rows of `layout.k`
/// elements, at most [`ROW_BLOCK`], and `row_block` all tiles of so many; `PARTS` are the layout's.
#[allow(clippy::needless_range_loop, reason = "parts are counted, and each indexes several things")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn fill<const PARTS: usize>(layout: &Layout, x: &[f32], row_block: &mut [bf16]) {
    let (k, tile) = (layout.k, layout.tile());
    let blocks = x.chunks(COLUMNS * k);
    let part = blocks.len() * tile;
    for (block, x) in blocks.enumerate() {
        let rows = x.len() / k;
        // Rows that are not there stay zero.
        let mut parts = [[_mm512_setzero_si512(); ROWS]; PARTS];
        for step in 0..layout.steps() {
            let at = step * STEP;
            let count = STEP.min(k - at);
            // Loops, not closures: those are called where they are not compiled for the processor.
            for row in 0..rows {
                let x = x[row * k + at..][..count].as_ptr();
                // SAFETY: masked loads of the first `count` elements touch no others.
                let (low, high) = unsafe {
                    (
                        _mm512_maskz_loadu_ps(mask(count), x),
                        _mm512_maskz_loadu_ps(mask(count.saturating_sub(16)), x.wrapping_add(16)),
                    )
                };
                let cut: [_; PARTS] = cut(low, high);
                for part in 0..PARTS {
                    parts[part][row] = cut[part];
                }
            }
            for index in 0..PARTS {
                let start = (step * PARTS + index) * part + block * tile;
                let to = &mut row_block[start..start + tile];
                // SAFETY: the processor has AVX-512.
                let pairs = unsafe { transposed(parts[index]) };
                for (to, pairs) in to.chunks_mut(2 * layout.columns).zip(pairs) {
                    // SAFETY: a masked store of so many pairs of bf16 touches no others.
                    unsafe {
                        _mm512_mask_storeu_epi32(
                            to.as_mut_ptr().cast(),
                            mask(layout.columns),
                            pairs,
                        );
                    }
                }
            }
        }
    }
}

/// The first `count` lanes of sixteen.
#[inline(always)]
fn mask(count: usize) -> __mmask16 {
    ((1u32 << count.min(16)) - 1) as u16
}

/// Thirty-two numbers in three parts, the smallest first; or in one, rounded to bf16: to nearest,
/// ties to even, subnormal ones to zero.
#[inline]
#[allow(clippy::needless_range_loop, reason = "parts are counted, and each indexes several things")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(crate) fn cut<const PARTS: usize>(low: __m512, high: __m512) -> [__m512i; PARTS] {
    if PARTS == 1 {
        // SAFETY: a vector of bf16 is a vector of bits.
        let rounded =
            unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) };
        return [rounded; PARTS];
    }
    let (low, high) = (thirds(low), thirds(high));
    // The upper halves of all lanes, those of `low` first.
    let upper = _mm512_set_epi16(
        63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23, 21, 19,
        17, 15, 13, 11, 9, 7, 5, 3, 1,
    );
    let mut parts = [_mm512_setzero_si512(); PARTS];
    for part in 0..PARTS {
        parts[part] = _mm512_permutex2var_epi16(low[part], upper, high[part]);
    }
    parts
}

/// Sixteen numbers in three parts, the smallest first, each in the upper half of its lane with
/// zeros below.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn thirds(x: __m512) -> [__m512i; 3] {
    let upper = |x: __m512| _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(!0xffff));
    let magnitude = _mm512_abs_ps(x);
    let finite = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(magnitude, _mm512_set1_ps(f32::INFINITY));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    // Where a NaN says so only in its lower half, the upper one alone would be infinite.
    let quiet = _mm512_set1_epi32(0x0040_0000);
    let first = upper(x);
    let first = _mm512_mask_or_epi32(first, nan, first, quiet);
    // Both differences are exact.
    let rest = _mm512_maskz_sub_ps(finite, x, _mm512_castsi512_ps(first));
    let second = upper(rest);
    let last = _mm512_sub_ps(rest, _mm512_castsi512_ps(second));
    [_mm512_castps_si512(last), second, first]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tiles::ROW_BYTES;
    use super::*;
    use crate::Isa;
    use crate::matmul::packed_bytes_with;

    proptest! {
        #[test]
        fn strips_follow_one_another_within_what_is_said(m in 0usize..200, k in 0usize..200) {
            for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
                let layout = Layout::new(compute, [m, k]);
                for row in (0..m).step_by(ROW_BLOCK) {
                    let end = layout.start(row) + layout.steps() * layout.step(ROW_BLOCK.min(m - row));
                    let next = match row + ROW_BLOCK < m {
                        true => layout.start(row + ROW_BLOCK),
                        false => layout.len(),
                    };
                    prop_assert_eq!(end, next);
                }
                let bytes = (layout.len() * size_of::<bf16>() + ROW_BYTES) as u64;
                prop_assert!(bytes <= packed_bytes_with(Isa::AmxBf16, compute, m as u64, k as u64));
            }
        }
    }

    /// Every element is found again where the tile says, in parts that add up to it.
    #[test]
    fn parts_of_a_tile_add_up() {
        if !Isa::Avx512Bf16.is_available() {
            eprintln!("SKIPPED: this processor does not have AVX-512 with bf16");
            return;
        }
        for (m, k) in [(1, 1), (3, 40), (16, 64), (17, 33), (40, 95), (64, 32)] {
            let x: Vec<f32> = (0..m * k).map(|i| (i as f32 + 0.1).sin()).collect();
            for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
                let layout = Layout::new(compute, [m, k]);
                // SAFETY: the processor has the instructions.
                let tiles = unsafe { packed(&layout, &x, false) };
                assert_eq!(tiles.as_ptr().align_offset(ROW_BYTES), 0);
                for (row, x) in x.chunks(k).enumerate() {
                    let tokens = ROW_BLOCK.min(m - row / ROW_BLOCK * ROW_BLOCK);
                    for at in 0..layout.steps() * STEP {
                        let [first, apart] = layout.place(row, at, tokens);
                        let place = |part| layout.start(row) + first + part * apart;
                        let sum: f32 =
                            (0..layout.parts).map(|part| tiles[place(part)].to_f32()).sum();
                        let x = x.get(at).copied().unwrap_or(0.0);
                        let want = match compute {
                            ActivationDtype::F32 => x,
                            ActivationDtype::Bf16 => bf16::from_f32(x).to_f32(),
                        };
                        assert_eq!(sum, want, "{compute:?} [{m}, {k}] row {row} element {at}");
                    }
                }
            }
        }
    }
}
