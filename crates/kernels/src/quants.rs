//! Elements that follow one another in a row, in blocks with scales: GGUF's, which hold theirs, and
//! MXFP4 with scales apart.
//!
//! The layouts are [ggml's](https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h), and
//! gpt-oss's as OpenAI publishes it. An element is the f32 that its own reference gives: its
//! products are exact in f32, and the last operation is rounded once, so that neither order nor
//! fused operations change it.
//!
//! Nothing here takes a closure: the compiler keeps some of them apart, without the instructions of
//! the function that they are called in.

mod codebook;
mod halves;
mod iq4;
mod mxfp4;
mod ternary;
mod unpacked;

use std::hint::black_box;

use outsize_checkpoint::Dtype;

use crate::simd::Vector;
pub(crate) use codebook::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
pub(crate) use halves::{Q4_0, Q4_1, Q4K};
pub(crate) use iq4::{Iq4Nl, Iq4Xs};
pub(crate) use mxfp4::{E8M0, Mxfp4, Mxfp4Apart};
pub(crate) use ternary::{Tq1_0, Tq2_0};
pub(crate) use unpacked::{Q2K, Q3K, Q5_0, Q5_1, Q5K, Q6K};

/// Whether a type is one of these blocks.
pub(crate) fn is_quantized(dtype: Dtype) -> bool {
    dtype.block().elements > 1
}

/// A format of blocks.
pub(crate) trait Quants {
    /// The bytes of a block.
    type Block;

    /// What elements are multiplied by, and what is subtracted.
    type Scales: Copy + Default;

    /// A step of a block, from which elements are decoded.
    type Step<V: Vector>: Copy;

    /// Elements of a block.
    const ELEMENTS: usize;

    /// Elements of a step: a multiple of any vector's lanes.
    const STEP: usize;

    /// Whether a step holds unpacked numbers.
    const UNPACKED: bool = false;

    /// Bytes of a block's scales that lie apart, block after block.
    const SCALE_BYTES: usize = 0;

    /// The scales of a block.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`; `apart` points to the scales that lie apart.
    unsafe fn scales<V: Vector>(block: &Self::Block, apart: *const u8) -> Self::Scales;

    /// A step of a block, which has to live as long.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    unsafe fn step<V: Vector>(
        block: &Self::Block,
        scales: &Self::Scales,
        step: usize,
    ) -> Self::Step<V>;

    /// As many elements of a step as a vector has lanes, from number `at` on.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`; the step has these elements.
    unsafe fn elements<V: Vector>(step: &Self::Step<V>, at: usize) -> V;
}

/// Runs code with the [`Quants`] of a type, or other code if it is one of those that are only
/// dequantized.
macro_rules! with_quants {
    ($dtype:expr, $Q:ident => $body:expr, $other:expr) => {
        $crate::quants::with_quants!(
            $dtype, $Q => $body, $other,
            Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2K, Q3K, Q4K, Q5K, Q6K, Iq4Nl, Iq4Xs, Mxfp4
        )
    };
    ($dtype:expr, $Q:ident => $body:expr, $other:expr, $($name:ident),*) => {
        match $dtype {
            $(Dtype::$name => {
                type $Q = $crate::quants::$name;
                $body
            })*
            Dtype::F4 => {
                type $Q = $crate::quants::Mxfp4Apart;
                $body
            }
            _ => $other,
        }
    };
}

/// Runs code with the [`Quants`] of any type.
macro_rules! with_any_quants {
    ($dtype:expr, $Q:ident => $body:expr) => {
        $crate::quants::with_quants!(
            $dtype,
            $Q => $body,
            $crate::quants::with_quants!(
                $dtype, $Q => $body, unreachable!("types of blocks"),
                Iq1S, Iq1M, Iq2Xxs, Iq2Xs, Iq2S, Iq3Xxs, Iq3S, Tq1_0, Tq2_0
            )
        )
    };
}

pub(crate) use with_any_quants;
pub(crate) use with_quants;

/// Writes the f32 of every element of some blocks, of which there are as many as `to` has room for.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn dequantize<V: Vector, Q: Quants>(data: &[u8], apart: &[u8], to: &mut [f32]) {
    assert!(apart.len() >= to.len() / Q::ELEMENTS * Q::SCALE_BYTES, "scales of all blocks");
    let blocks = data.chunks_exact(size_of::<Q::Block>());
    for (at, (block, to)) in blocks.zip(to.chunks_exact_mut(Q::ELEMENTS)).enumerate() {
        // SAFETY: the caller's promise; a block is bytes, and this has as many; `to` has room for
        // its steps; as was checked, there are its scales.
        unsafe {
            let block = &*block.as_ptr().cast::<Q::Block>();
            let scales = &Q::scales::<V>(block, apart.as_ptr().add(at * Q::SCALE_BYTES));
            for (index, to) in to.chunks_exact_mut(Q::STEP).enumerate() {
                let step = Q::step::<V>(block, scales, index);
                let step = in_memory(Q::UNPACKED, &step);
                for at in (0..Q::STEP).step_by(V::LANES) {
                    Q::elements::<V>(step, at).store(to.as_mut_ptr().add(at));
                }
            }
        }
    }
}

/// What is in memory from now on, if it should be: instructions broadcast and widen what is there,
/// where the compiler would shuffle registers first.
#[inline(always)]
pub(crate) fn in_memory<T>(should: bool, value: &T) -> &T {
    if should { black_box(value) } else { value }
}

/// The f16 that begins at a byte.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn f16_at<V: Vector>(block: &[u8], at: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { V::widen_f16(u16::from_le_bytes([block[at], block[at + 1]])) }
}

/// Numbers of 8 bits times factors.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn products<V: Vector>(numbers: [u8; 16], factors: [f32; 16]) -> [f32; 16] {
    let mut products = factors;
    for at in (0..16).step_by(V::LANES) {
        // SAFETY: the caller's promise; both have elements for these lanes.
        unsafe {
            let product = products.as_mut_ptr().add(at);
            V::i8(numbers.as_ptr().add(at)).mul(V::f32(product)).store(product);
        }
    }
    products
}

/// Up to 32 bytes, in vectors.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn bytes<V: Vector>(from: &[u8]) -> [V::Bytes; 8] {
    // SAFETY: the caller's promise; these are whole vectors.
    unsafe {
        let mut bytes = [V::bytes(from.as_ptr()); 8];
        for (bytes, from) in bytes.iter_mut().zip(from.chunks_exact(V::LANES)) {
            *bytes = V::bytes(from.as_ptr());
        }
        bytes
    }
}

/// A scale, and 32 numbers of 8 bits.
pub(crate) struct Q8_0;

impl Quants for Q8_0 {
    type Block = [u8; 34];
    type Scales = f32;
    type Step<V: Vector> = (V, *const u8);
    const ELEMENTS: usize = 32;
    const STEP: usize = 32;

    #[inline(always)]
    unsafe fn scales<V: Vector>(block: &[u8; 34], _apart: *const u8) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { f16_at::<V>(block, 0) }
    }

    #[inline(always)]
    unsafe fn step<V: Vector>(block: &[u8; 34], scale: &f32, _step: usize) -> (V, *const u8) {
        // SAFETY: the caller's promise.
        unsafe { (V::splat(*scale), block[2..].as_ptr()) }
    }

    #[inline(always)]
    unsafe fn elements<V: Vector>((scale, numbers): &(V, *const u8), at: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::i8(numbers.add(at)).mul(*scale) }
    }
}
