//! A few rows of activations by packed bf16, unpacked in registers.

use std::arch::x86_64::*;

use half::bf16;
use outsize_checkpoint::PackedBf16;

use super::avx512bf16::Bf16x32;
use super::blocks::{FAR, FEW, LINE};
use super::tile::Kernel;
use crate::BlockWeight;
use crate::packed_bf16::avx512::Block;
use crate::simd::{F32x16, Vector};

const GROUP: usize = PackedBf16::GROUP;

/// How the elements of a group are multiplied.
pub(super) trait Products {
    /// An element of activations.
    type X;

    /// A vector of elements of a group.
    type Vector: Copy;

    /// Elements of such a vector.
    const LANES: usize;

    /// The elements of a group, in order.
    ///
    /// # Safety
    ///
    /// As for [`Block::halves`].
    unsafe fn elements<const BITS: usize>(
        block: &mut Block<BITS>,
        group: usize,
    ) -> impl AsRef<[Self::Vector]>;

    /// Adds products with as many activations.
    ///
    /// # Safety
    ///
    /// This processor has the instructions; `x` points to as many.
    unsafe fn fma(sum: F32x16, weight: Self::Vector, x: *const Self::X) -> F32x16;
}

impl Products for F32x16 {
    type X = f32;
    type Vector = __m512;
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn elements<const BITS: usize>(
        block: &mut Block<BITS>,
        group: usize,
    ) -> impl AsRef<[__m512]> {
        // SAFETY: the caller's promises.
        unsafe { block.singles(group) }
    }

    #[inline(always)]
    unsafe fn fma(sum: F32x16, weight: __m512, x: *const f32) -> F32x16 {
        // SAFETY: the caller's promises.
        unsafe { Vector::fma(sum, F32x16(weight), F32x16::f32(x)) }
    }
}

impl Products for Bf16x32 {
    type X = bf16;
    type Vector = __m512i;
    const LANES: usize = 32;

    #[inline(always)]
    unsafe fn elements<const BITS: usize>(
        block: &mut Block<BITS>,
        group: usize,
    ) -> impl AsRef<[__m512i]> {
        // SAFETY: the caller's promises.
        unsafe { block.words(group) }
    }

    #[inline(always)]
    unsafe fn fma(sum: F32x16, weight: __m512i, x: *const bf16) -> F32x16 {
        // SAFETY: the caller's promises.
        unsafe { <Self as Kernel<bf16>>::fma(sum, weight, Self::x(x)) }
    }
}

/// [`few_rows`] of weights widened to f32.
///
/// # Safety
///
/// As there.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi2,popcnt")]
pub(super) unsafe fn singles(
    m: usize,
    x: *const f32,
    weight: BlockWeight<&[u8]>,
    y: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's promises.
    unsafe { few_rows::<F32x16>(m, x, weight, y, stride) }
}

/// [`few_rows`] of weights in pairs.
///
/// # Safety
///
/// As there.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16,avx512vbmi2,popcnt")]
pub(super) unsafe fn pairs(
    m: usize,
    x: *const bf16,
    weight: BlockWeight<&[u8]>,
    y: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's promises.
    unsafe { few_rows::<Bf16x32>(m, x, weight, y, stride) }
}

/// Computes `y` of `m` rows, at most [`FEW`], for all rows of a weight.
///
/// # Safety
///
/// This processor has the instructions of `P` and [those to unpack](super::packed); `x` is packed
/// for `P`, and `y` points to an element for each row of the weight, and so does, `stride` elements
/// further, that of each other row of activations; nothing else reads or writes these during the
/// call.
#[inline(always)]
unsafe fn few_rows<P: Products>(
    m: usize,
    x: *const P::X,
    weight: BlockWeight<&[u8]>,
    y: *mut f32,
    stride: usize,
) {
    debug_assert!((1..=FEW).contains(&m), "{m} rows");
    let packed = weight.packed_bf16().expect("packed bf16");
    // SAFETY: the caller's promises.
    unsafe {
        match (packed.exponent_bits(), m) {
            (3, 1) => rows::<P, 3, 1, 2>(x, weight, packed, y, stride),
            (3, 2) => rows::<P, 3, 2, 2>(x, weight, packed, y, stride),
            (3, 3) => rows::<P, 3, 3, 2>(x, weight, packed, y, stride),
            (3, _) => rows::<P, 3, FEW, 2>(x, weight, packed, y, stride),
            (_, 1) => rows::<P, 4, 1, 2>(x, weight, packed, y, stride),
            (_, 2) => rows::<P, 4, 2, 2>(x, weight, packed, y, stride),
            (_, 3) => rows::<P, 4, 3, 2>(x, weight, packed, y, stride),
            (..) => rows::<P, 4, FEW, 2>(x, weight, packed, y, stride),
        }
    }
}

/// [`few_rows`] with so many bits for an exponent, `M` rows of activations, and `N` rows of the
/// weight side by side.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn rows<P: Products, const BITS: usize, const M: usize, const N: usize>(
    x: *const P::X,
    weight: BlockWeight<&[u8]>,
    packed: PackedBf16,
    y: *mut f32,
    stride: usize,
) {
    let [n, k] = weight.shape();
    let row = weight.row_bytes();
    let blocks = k / (GROUP * packed.groups());
    let ahead = FAR.next_multiple_of((N * row).max(1));
    // SAFETY: the caller's promises; a weight has as many bytes as its rows take.
    unsafe {
        for start in (0..n).step_by(N) {
            let rows = weight.data().as_ptr().add(start * row);
            let ahead = rows.wrapping_add(ahead);
            if start + N <= n {
                tile::<P, BITS, M, N>(x, rows, [row, blocks], packed, ahead, y.add(start), stride);
                continue;
            }
            for at in start..n {
                let rows = rows.add((at - start) * row);
                tile::<P, BITS, M, 1>(x, rows, [row, blocks], packed, ahead, y.add(at), stride);
            }
        }
    }
}

/// The products of `N` rows of the weight with the rows of `x`, each one chain as of the weight
/// unpacked. As many bytes as are read are fetched from `ahead` on, in the order in which they lie
/// in memory.
///
/// # Safety
///
/// As for [`few_rows`]; and there are `N` rows, `row` bytes each, of so many blocks.
#[inline(always)]
unsafe fn tile<P: Products, const BITS: usize, const M: usize, const N: usize>(
    x: *const P::X,
    rows: *const u8,
    [row, blocks]: [usize; 2],
    packed: PackedBf16,
    ahead: *const u8,
    y: *mut f32,
    stride: usize,
) {
    let groups = packed.groups();
    let block_bytes = row / blocks.max(1);
    let group_bytes = block_bytes / groups;
    // SAFETY: the caller's promises. What is fetched ahead of need may be any address.
    unsafe {
        let mut sums = [[F32x16::zero(); M]; N];
        let mut x = x;
        let mut ahead = ahead;
        for block in 0..blocks {
            let first = rows.add(block * block_bytes);
            let mut unpacked = [Block::<BITS>::at(packed, first); N];
            for (at, unpacked) in unpacked.iter_mut().enumerate() {
                *unpacked = Block::at(packed, first.add(at * row));
            }
            for group in 0..groups {
                for line in 0..(N * group_bytes).div_ceil(LINE) {
                    F32x16::prefetch(ahead.wrapping_add(line * LINE));
                }
                ahead = ahead.wrapping_add(N * group_bytes);
                for row in 0..N {
                    let elements = P::elements(&mut unpacked[row], group);
                    for (at, elements) in elements.as_ref().iter().enumerate() {
                        for (i, sum) in sums[row].iter_mut().enumerate() {
                            *sum = P::fma(*sum, *elements, x.add((M * at + i) * P::LANES));
                        }
                    }
                }
                x = x.add(M * GROUP);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                y.add(i * stride + row).write(sum.sum());
            }
        }
    }
}
