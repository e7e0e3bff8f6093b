//! GGUF's blocks: elements that follow one another in a row, with their scales among them.
//!
//! The layouts are [ggml's](https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). An
//! element is the f32 that its own reference gives: its products are exact in f32, and the last
//! operation is rounded once, so that neither order nor fused operations change it.
//!
//! Nothing here takes a closure: the compiler keeps some of them apart, without the instructions of
//! the function that they are called in.

use std::hint::black_box;

use outsize_checkpoint::Dtype;

use crate::simd::Vector;

/// Whether a type is one of these blocks.
pub(crate) fn is_quantized(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Q8_0 | Dtype::Q4_0 | Dtype::Q4K | Dtype::Q6K)
}

/// A format of blocks.
pub(crate) trait Quants {
    /// The bytes of a block.
    type Block;

    /// What elements are multiplied by, and what is subtracted.
    type Scales: Copy + Default;

    /// Elements of a block.
    const ELEMENTS: usize;

    /// Elements that are decoded at a time: a multiple of any vector's lanes.
    const STEP: usize;

    /// The scales of a block.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    unsafe fn scales<V: Vector>(block: &Self::Block) -> Self::Scales;

    /// Gives the elements of a step to `sink`, from the first on.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`; the block has this step, and `sink` may be given
    /// its elements.
    unsafe fn decode<V: Vector>(
        block: &Self::Block,
        scales: &Self::Scales,
        step: usize,
        sink: &mut impl Sink<V>,
    );
}

/// What is done with decoded elements.
pub(crate) trait Sink<V> {
    /// Takes the elements that begin with number `at` of a step.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`; what else is asked says who made this.
    unsafe fn take(&mut self, at: usize, elements: V);
}

/// Runs code with the [`Quants`] of a type.
macro_rules! with_quants {
    ($dtype:expr, $Q:ident => $body:expr) => {
        match $dtype {
            Dtype::Q4_0 => {
                type $Q = $crate::quants::Q4_0;
                $body
            }
            Dtype::Q4K => {
                type $Q = $crate::quants::Q4K;
                $body
            }
            Dtype::Q6K => {
                type $Q = $crate::quants::Q6K;
                $body
            }
            // The only other that `is_quantized` knows.
            _ => {
                type $Q = $crate::quants::Q8_0;
                $body
            }
        }
    };
}

pub(crate) use with_quants;

/// Where the elements of a step are written.
struct Store(*mut f32);

impl<V: Vector> Sink<V> for Store {
    #[inline(always)]
    unsafe fn take(&mut self, at: usize, elements: V) {
        // SAFETY: the caller's promise; there is room for a step.
        unsafe { elements.store(self.0.add(at)) };
    }
}

/// Writes the f32 of every element of some blocks, of which there are as many as `to` has room for.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn dequantize<V: Vector, Q: Quants>(data: &[u8], to: &mut [f32]) {
    let blocks = data.chunks_exact(size_of::<Q::Block>());
    for (block, to) in blocks.zip(to.chunks_exact_mut(Q::ELEMENTS)) {
        // SAFETY: the caller's promise; a block is bytes, and this has as many; `to` has room for
        // its steps.
        unsafe {
            let block = &*block.as_ptr().cast::<Q::Block>();
            let scales = &Q::scales::<V>(block);
            for (step, to) in to.chunks_exact_mut(Q::STEP).enumerate() {
                Q::decode::<V>(block, scales, step, &mut Store(to.as_mut_ptr()));
            }
        }
    }
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

/// Numbers of 8 bits times a factor.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn products<V: Vector>(numbers: [u8; 16], factor: f32) -> [f32; 16] {
    let mut products = [0.0; 16];
    for at in (0..16).step_by(V::LANES) {
        // SAFETY: the caller's promise; both have elements for these lanes.
        unsafe {
            let vector = V::i8(numbers.as_ptr().add(at)).mul(V::splat(factor));
            vector.store(products.as_mut_ptr().add(at));
        }
    }
    products
}

/// Gives `2 * N` elements to `sink`: those in the lower halves of bytes, then those in the upper.
///
/// # Safety
///
/// That of [`Quants::decode`].
#[inline(always)]
unsafe fn halves<V: Vector, const N: usize, const LESS: i32>(
    bytes: &[u8; N],
    sixteen: [V::Sixteen; 2],
    sink: &mut impl Sink<V>,
) {
    // SAFETY: the caller's promise; `N` is a multiple of the lanes.
    unsafe {
        let mut upper = [V::zero(); N];
        for at in (0..N).step_by(V::LANES) {
            let [low, high] = V::halves::<LESS>(bytes.as_ptr().add(at), sixteen);
            sink.take(at, low);
            upper[at] = high;
        }
        for at in (0..N).step_by(V::LANES) {
            sink.take(N + at, upper[at]);
        }
    }
}

/// A scale, and 32 numbers of 8 bits.
pub(crate) struct Q8_0;

impl Quants for Q8_0 {
    type Block = [u8; 34];
    type Scales = f32;
    const ELEMENTS: usize = 32;
    const STEP: usize = 32;

    #[inline(always)]
    unsafe fn scales<V: Vector>(block: &[u8; 34]) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { f16_at::<V>(block, 0) }
    }

    #[inline(always)]
    unsafe fn decode<V: Vector>(
        block: &[u8; 34],
        scale: &f32,
        _step: usize,
        sink: &mut impl Sink<V>,
    ) {
        for at in (0..32).step_by(V::LANES) {
            // SAFETY: the caller's promise; a block has these numbers.
            unsafe { sink.take(at, V::i8(block[2 + at..].as_ptr()).mul(V::splat(*scale))) };
        }
    }
}

/// A scale, and 16 bytes: in the lower half of each the first 16 numbers plus 8, in the upper half
/// the others.
pub(crate) struct Q4_0;

impl Quants for Q4_0 {
    type Block = [u8; 18];
    type Scales = f32;
    const ELEMENTS: usize = 32;
    const STEP: usize = 32;

    #[inline(always)]
    unsafe fn scales<V: Vector>(block: &[u8; 18]) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { f16_at::<V>(block, 0) }
    }

    #[inline(always)]
    unsafe fn decode<V: Vector>(
        block: &[u8; 18],
        scale: &f32,
        _step: usize,
        sink: &mut impl Sink<V>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let sixteen = V::sixteen::<8>(*scale, 0.0);
            halves::<V, 16, 8>(&block[2..].as_chunks().0[0], [sixteen; 2], sink);
        }
    }
}

/// Two f16 by which scales and offsets are multiplied; eight scales and eight offsets of 6 bits; and
/// 128 bytes: in each 32 of them the next 32 numbers in the lower halves, and 32 more in the upper.
pub(crate) struct Q4K;

impl Quants for Q4K {
    type Block = [u8; 144];
    type Scales = [[f32; 16]; 2];
    const ELEMENTS: usize = 256;
    const STEP: usize = 64;

    #[inline(always)]
    unsafe fn scales<V: Vector>(block: &[u8; 144]) -> [[f32; 16]; 2] {
        let words = block[4..16].as_chunks().0;
        let a = u32::from_le_bytes(words[0]);
        let b = u32::from_le_bytes(words[1]);
        let c = u32::from_le_bytes(words[2]);
        // Four at a time: the lower 6 bits of the first ones; of the others 4 bits here and 2 there.
        let scales = eight(a, (c & 0x0f0f_0f0f) | (a >> 6 & 0x0303_0303) << 4);
        let offsets = eight(b, (c >> 4 & 0x0f0f_0f0f) | (b >> 6 & 0x0303_0303) << 4);
        // SAFETY: the caller's promise.
        unsafe {
            [
                products::<V>(scales, f16_at::<V>(block, 0)),
                products::<V>(offsets, f16_at::<V>(block, 2)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn decode<V: Vector>(
        block: &[u8; 144],
        [scales, offsets]: &[[f32; 16]; 2],
        step: usize,
        sink: &mut impl Sink<V>,
    ) {
        let bytes = &block[16 + 32 * step..].as_chunks().0[0];
        let (low, high) = (2 * step, 2 * step + 1);
        // SAFETY: the caller's promise.
        unsafe {
            let low = V::sixteen::<0>(scales[low], offsets[low]);
            let high = V::sixteen::<0>(scales[high], offsets[high]);
            halves::<V, 32, 0>(bytes, [low, high], sink);
        }
    }
}

/// The lower 6 bits of four bytes, four bytes more, and zeros.
#[inline(always)]
fn eight(first: u32, rest: u32) -> [u8; 16] {
    (u128::from(first & 0x3f3f_3f3f) | u128::from(rest) << 32).to_le_bytes()
}

/// 128 bytes of the lower 4 bits, 64 of the upper 2 bits, 16 scales of 8 bits for 16 numbers each, and
/// an f16 by which these are multiplied. Each half of the numbers, which are plus 32, has half of the
/// bytes: a byte holds parts of numbers that are 64, or 32, apart.
pub(crate) struct Q6K;

impl Quants for Q6K {
    type Block = [u8; 210];
    type Scales = [f32; 16];
    const ELEMENTS: usize = 256;
    const STEP: usize = 128;

    #[inline(always)]
    unsafe fn scales<V: Vector>(block: &[u8; 210]) -> [f32; 16] {
        // A quarter: numbers are taken four times.
        // SAFETY: the caller's promise.
        unsafe { products::<V>(block[192..].as_chunks().0[0], f16_at::<V>(block, 208) * 0.25) }
    }

    #[inline(always)]
    unsafe fn decode<V: Vector>(
        block: &[u8; 210],
        scales: &[f32; 16],
        step: usize,
        sink: &mut impl Sink<V>,
    ) {
        let low = block[64 * step..].as_chunks().0;
        let high = block[128 + 32 * step..].as_chunks().0;
        // SAFETY: the caller's promise.
        let numbers = unsafe { V::upper_six([&low[0], &low[1]], &high[0]) };
        // With the first bit flipped that is four times the number less 32. Loads widen what is in
        // memory; the compiler would shuffle registers first.
        let numbers = black_box(&numbers).as_ptr().cast::<u8>();
        for at in (0..128).step_by(V::LANES) {
            // SAFETY: the caller's promise; there are these numbers.
            unsafe {
                let scale = V::splat(scales[8 * step + at / 16]);
                sink.take(at, V::i8(numbers.add(at)).mul(scale));
            }
        }
    }
}
