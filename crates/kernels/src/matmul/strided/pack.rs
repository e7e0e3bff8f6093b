//! Rows and columns in the order in which tiles read them.
//!
//! A packed number is as many consecutive ones of a row of `a`, or of a column of `b`, as
//! [`Pack::DEEP`] says. What the last one lacks is zero.

use std::ops::Range;

use super::{COLUMNS, Strided, TALL};
#[cfg(target_arch = "x86_64")]
use crate::simd::F32x16;
use crate::simd::Vector;

/// Packed numbers that are made of some rows of `a` before the next rows' turn: what they are read
/// from stays in the first-level cache.
const TURN: usize = 8;

/// Packed numbers of as many columns that are transposed at once.
const BLOCK: usize = 16;

/// What is multiplied at once in a lane of a vector.
///
/// # Safety
///
/// All functions ask that the processor has the instructions of `V`, and those that the type is
/// for.
pub(super) trait Pack<V: Vector> {
    /// Numbers in a packed one.
    const DEEP: usize;

    /// One packed number; the second is left out if a packed one is single.
    unsafe fn one(numbers: [f32; 2]) -> f32;

    /// The same in each lane.
    unsafe fn lanes(first: V, second: V) -> V;

    /// Packed numbers of as many consecutive ones as they take.
    unsafe fn consecutive(from: *const f32) -> V;

    /// `sum + b * a` in each lane.
    unsafe fn fma(sum: V, b: V, a: V) -> V;
}

/// Numbers as they are.
pub(super) struct Single;

impl<V: Vector> Pack<V> for Single {
    const DEEP: usize = 1;

    #[inline(always)]
    unsafe fn one([number, _]: [f32; 2]) -> f32 {
        number
    }

    #[inline(always)]
    unsafe fn lanes(first: V, _: V) -> V {
        first
    }

    #[inline(always)]
    unsafe fn consecutive(from: *const f32) -> V {
        // SAFETY: the caller's promise, here and below.
        unsafe { V::f32(from) }
    }

    #[inline(always)]
    unsafe fn fma(sum: V, b: V, a: V) -> V {
        // SAFETY: as above.
        unsafe { sum.fma(b, a) }
    }
}

/// Pairs rounded to bf16, to nearest and ties to even, the first in the lower half of the bits.
/// Numbers too small for a normal bf16 become zero, as products of pairs take them.
#[cfg(target_arch = "x86_64")]
pub(super) struct Pairs;

#[cfg(target_arch = "x86_64")]
impl Pack<F32x16> for Pairs {
    const DEEP: usize = 2;

    #[inline(always)]
    unsafe fn one(numbers: [f32; 2]) -> f32 {
        let [first, second] = numbers.map(|number| {
            // SAFETY: the processor has AVX-512 with bf16, the promise of every function here.
            unsafe { F32x16::splat(number) }
        });
        // SAFETY: as above; the vector has a first lane.
        unsafe { std::arch::x86_64::_mm512_cvtss_f32(Self::lanes(first, second).0) }
    }

    #[inline(always)]
    unsafe fn lanes(first: F32x16, second: F32x16) -> F32x16 {
        use std::arch::x86_64::*;
        // SAFETY: as above; a vector of bf16 is a vector of bits.
        unsafe {
            let wide = |x: F32x16| {
                _mm512_cvtepu16_epi32(std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(
                    x.0,
                )))
            };
            let second = _mm512_slli_epi32::<16>(wide(second));
            F32x16(_mm512_castsi512_ps(_mm512_or_si512(wide(first), second)))
        }
    }

    #[inline(always)]
    unsafe fn consecutive(from: *const f32) -> F32x16 {
        use std::arch::x86_64::*;
        // SAFETY: as above; `from` points to thirty-two numbers.
        unsafe {
            let (first, second) = (_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(16)));
            let pairs: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(second, first));
            F32x16(_mm512_castsi512_ps(pairs))
        }
    }

    #[inline(always)]
    unsafe fn fma(sum: F32x16, b: F32x16, a: F32x16) -> F32x16 {
        use std::arch::x86_64::*;
        // SAFETY: as above.
        unsafe {
            let pairs = |vector: F32x16| {
                std::mem::transmute::<__m512i, __m512bh>(_mm512_castps_si512(vector.0))
            };
            F32x16(_mm512_dpbf16_ps(sum.0, pairs(b), pairs(a)))
        }
    }
}

/// Where a packed number of `a` lies.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    /// From one row of a tile to the next.
    pub row: usize,
    /// From one packed number of a row to the next.
    pub depth: usize,
}

/// Packs some rows of `a`, [`TALL`] after [`TALL`], each as many packed numbers deep: as they lie,
/// or the rows of a tile side by side where those of `a` are. Rows beyond the last are zero. Says
/// how they lie within a tile.
///
/// # Safety
///
/// As for [`Pack`].
#[inline(always)]
pub(super) unsafe fn left<V: Vector, P: Pack<V>>(
    a: Strided<'_>,
    rows: Range<usize>,
    depth: Range<usize>,
    to: &mut [f32],
) -> Steps {
    let packed = depth.len().div_ceil(P::DEEP);
    let count = |row: usize| TALL.min(rows.end - row);
    if a.row != 1 {
        for (row, to) in rows.clone().step_by(TALL).zip(to.chunks_exact_mut(TALL * packed)) {
            for (i, to) in to.chunks_exact_mut(packed).enumerate() {
                match i < count(row) {
                    // SAFETY: the caller's promise.
                    true => unsafe { line::<V, P>(a, row + i, depth.clone(), to) },
                    false => to.fill(0.0),
                }
            }
        }
        return Steps { row: packed, depth: 1 };
    }
    let zeros = [0.0; TALL];
    for turn in (0..packed).step_by(TURN) {
        for (row, to) in rows.clone().step_by(TALL).zip(to.chunks_exact_mut(TALL * packed)) {
            let count = count(row);
            let column = |l: usize| match l < depth.end {
                true => &a.elements[row + l * a.column..][..count],
                false => &zeros[..count],
            };
            for at in turn..packed.min(turn + TURN) {
                let l = depth.start + at * P::DEEP;
                let (first, last) = (column(l), column(l + P::DEEP - 1));
                let to = &mut to[at * TALL..];
                // SAFETY: the caller's promise; `count` numbers are read, fewer than lanes, and
                // `to` has room for all lanes. Those beyond the tile's rows are written anew later.
                unsafe {
                    if V::LANES > TALL && to.len() >= V::LANES {
                        let part = |from: &[f32]| V::f32_part(from.as_ptr(), count);
                        P::lanes(part(first), part(last)).store(to.as_mut_ptr());
                        continue;
                    }
                    let at = |i: usize| if i < count { P::one([first[i], last[i]]) } else { 0.0 };
                    to.iter_mut().zip(0..TALL).for_each(|(to, i)| *to = at(i));
                }
            }
        }
    }
    Steps { row: 1, depth: TALL }
}

/// Packs a line of `depth` numbers of row `row`.
///
/// # Safety
///
/// As for [`Pack`].
#[inline(always)]
unsafe fn line<V: Vector, P: Pack<V>>(
    a: Strided<'_>,
    row: usize,
    depth: Range<usize>,
    to: &mut [f32],
) {
    let numbers = &a.elements[row * a.row..];
    let mut done = 0;
    if a.column == 1 {
        let numbers = &numbers[depth.clone()];
        while numbers.len() - done * P::DEEP >= V::LANES * P::DEEP {
            // SAFETY: the caller's promise; there are as many numbers, and as many packed ones.
            unsafe {
                let packed = P::consecutive(numbers.as_ptr().add(done * P::DEEP));
                packed.store(to[done..][..V::LANES].as_mut_ptr());
            }
            done += V::LANES;
        }
    }
    let at = |l: usize| if l < depth.end { numbers[l * a.column] } else { 0.0 };
    for (done, to) in to.iter_mut().enumerate().skip(done) {
        let l = depth.start + done * P::DEEP;
        // SAFETY: the caller's promise.
        *to = unsafe { P::one([at(l), at(l + P::DEEP - 1)]) };
    }
}

/// Packs some columns of `b` in rows of `width`, a multiple of a vector's lanes, of which the last
/// elements may be zero.
///
/// # Safety
///
/// As for [`Pack`].
#[inline(always)]
pub(super) unsafe fn right<V: Vector, P: Pack<V>>(
    b: Strided<'_>,
    depth: Range<usize>,
    columns: Range<usize>,
    width: usize,
    to: &mut [f32],
) {
    let to = &mut to[..depth.len().div_ceil(P::DEEP) * width];
    if b.column != 1 {
        let packed = depth.len().div_ceil(P::DEEP);
        for start in (0..width).step_by(BLOCK) {
            let first = columns.start + start;
            let count = columns.end.saturating_sub(first).min(BLOCK);
            for done in (0..packed).step_by(BLOCK) {
                let part = done..packed.min(done + BLOCK);
                let numbers = depth.start + part.start * P::DEEP
                    ..depth.end.min(depth.start + part.end * P::DEEP);
                let mut block = [0.0; BLOCK * BLOCK];
                // Columns of `b` are rows of what it is the transpose of.
                let rows = block.chunks_exact_mut(BLOCK).take(count);
                for (column, row) in (first..).zip(rows) {
                    // SAFETY: the caller's promise.
                    unsafe {
                        line::<V, P>(
                            b.transposed(),
                            column,
                            numbers.clone(),
                            &mut row[..part.len()],
                        );
                    }
                }
                // SAFETY: the processor has the instructions.
                unsafe { V::transpose(&mut block) };
                for (l, row) in part.zip(block.as_chunks::<BLOCK>().0) {
                    let to = &mut to[l * width + start..];
                    let lanes = BLOCK.min(width - start);
                    to[..lanes].copy_from_slice(&row[..lanes]);
                }
            }
        }
        return;
    }
    let zeros = [0.0; COLUMNS];
    let row = |l: usize| match l < depth.end {
        true => &b.elements[l * b.row + columns.start..][..columns.len()],
        false => &zeros[..columns.len()],
    };
    for (l, to) in depth.clone().step_by(P::DEEP).zip(to.chunks_exact_mut(width)) {
        let (first, last) = (row(l), row(l + P::DEEP - 1));
        for (done, to) in to.chunks_exact_mut(V::LANES).enumerate() {
            let done = (done * V::LANES).min(columns.len());
            // SAFETY: the caller's promise; as many numbers are read as the rows have, and lanes
            // written.
            unsafe {
                let part = |from: &[f32]| match from.len() - done {
                    0 => V::zero(),
                    count if count < V::LANES => V::f32_part(from[done..].as_ptr(), count),
                    _ => V::f32(from[done..].as_ptr()),
                };
                P::lanes(part(first), part(last)).store(to.as_mut_ptr());
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;
    use crate::Isa;

    /// Both ways to pack pairs.
    ///
    /// # Safety
    ///
    /// The processor has the instructions.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn packed(numbers: &[f32; 32]) -> [[u32; 16]; 2] {
        let [even, odd] = [0, 1].map(|odd| std::array::from_fn(|i| numbers[2 * i + odd]));
        let mut packed = [[0.0; 16]; 2];
        // SAFETY: the caller's promise; all arrays are as long as what is read and written.
        unsafe {
            let both: [[f32; 16]; 2] = [even, odd];
            let [even, odd] = both.map(|numbers| F32x16::f32(numbers.as_ptr()));
            Pairs::lanes(even, odd).store(packed[0].as_mut_ptr());
            <Pairs as Pack<F32x16>>::consecutive(numbers.as_ptr()).store(packed[1].as_mut_ptr());
        }
        packed.map(|packed| packed.map(f32::to_bits))
    }

    proptest! {
        #[test]
        fn pairs_are_rounded_as_bf16_is(bits in any::<[u32; 32]>()) {
            if !Isa::Avx512Bf16.is_available() {
                eprintln!("SKIPPED: this processor does not have {:?}", Isa::Avx512Bf16);
                return Ok(());
            }
            let numbers = bits.map(f32::from_bits);
            // SAFETY: the processor has the instructions.
            for packed in unsafe { packed(&numbers) } {
                let found = packed.into_iter().flat_map(|pair| [pair as u16, (pair >> 16) as u16]);
                for (found, number) in found.map(bf16::from_bits).zip(numbers) {
                    let want = match number.is_subnormal() {
                        true => bf16::ZERO,
                        false => bf16::from_f32(number),
                    };
                    prop_assert!(found == want || found.is_nan() && want.is_nan());
                }
            }
        }
    }
}
