//! GGUF's blocks: elements that follow one another in a row, with their scales among them.
//!
//! The layouts are [ggml's](https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). An
//! element is the f32 that its own reference gives: its products are exact in f32, and the last
//! operation is rounded once, so that neither order nor fused operations change it. Loops are plain,
//! for the compiler to vectorize.

use std::ops::Range;

use outsize_checkpoint::Dtype;

use crate::simd::widen_f16;

/// Whether a type is one of these blocks.
pub(crate) fn is_quantized(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Q8_0 | Dtype::Q4_0 | Dtype::Q4K | Dtype::Q6K)
}

/// Writes the f32 of every element of some blocks, of which there are as many as `to` has room for.
#[inline(always)]
pub(crate) fn dequantize(dtype: Dtype, data: &[u8], to: &mut [f32]) {
    match dtype {
        Dtype::Q8_0 => each::<34, 32>(data, to, q8_0),
        Dtype::Q4_0 => each::<18, 32>(data, to, q4_0),
        Dtype::Q4K => each::<144, 256>(data, to, q4_k),
        Dtype::Q6K => each::<210, 256>(data, to, q6_k),
        _ => to.fill(f32::NAN),
    }
}

#[inline(always)]
fn each<const BYTES: usize, const ELEMENTS: usize>(
    data: &[u8],
    to: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let (data, to) = (data.as_chunks().0, to.as_chunks_mut().0);
    data.iter().zip(to).for_each(|(data, to)| block(data, to));
}

/// The f16 that begins at a byte.
#[inline(always)]
fn f16_at<const BYTES: usize>(block: &[u8; BYTES], at: usize) -> f32 {
    widen_f16(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// A scale, and 32 numbers of 8 bits.
#[inline(always)]
fn q8_0(block: &[u8; 34], to: &mut [f32; 32]) {
    let scale = f16_at(block, 0);
    for (to, byte) in to.iter_mut().zip(&block[2..]) {
        *to = f32::from(*byte as i8) * scale;
    }
}

/// A scale, and 16 bytes: in the lower half of each the first 16 numbers plus 8, in the upper half
/// the others.
#[inline(always)]
fn q4_0(block: &[u8; 18], to: &mut [f32; 32]) {
    let scale = f16_at(block, 0);
    let (low, high) = to.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(&block[2..]) {
        *low = (i32::from(byte & 15) - 8) as f32 * scale;
        *high = (i32::from(byte >> 4) - 8) as f32 * scale;
    }
}

/// Two f16 by which scales and offsets are multiplied; eight scales and eight offsets of 6 bits; and
/// 128 bytes: in each 32 of them the next 32 numbers in the lower halves, and 32 more in the upper.
#[inline(always)]
fn q4_k(block: &[u8; 144], to: &mut [f32; 256]) {
    let words = block[4..16].as_chunks().0;
    let [a, b, c] = [0, 1, 2].map(|at: usize| u32::from_le_bytes(words[at]));
    // Four at a time: the lower 6 bits of the first ones; of the others 4 bits here and 2 there.
    let six = |word: u32| word & 0x3f3f_3f3f;
    let rest = |low: u32, high: u32| (low & 0x0f0f_0f0f) | (high >> 6 & 0x0303_0303) << 4;
    let eight = |low: u32, high: u32, factor: f32| {
        let mut values = [0.0; 8];
        let bytes = u64::from(low) | u64::from(high) << 32;
        for (value, byte) in values.iter_mut().zip(bytes.to_le_bytes()) {
            *value = f32::from(byte) * factor;
        }
        values
    };
    let scales = eight(six(a), rest(c, a), f16_at(block, 0));
    let offsets = eight(six(b), rest(c >> 4, b), f16_at(block, 2));
    let (pairs, bytes) = (to.as_chunks_mut::<64>().0, block[16..].as_chunks::<32>().0);
    for (pair, (to, bytes)) in pairs.iter_mut().zip(bytes).enumerate() {
        let (low, high) = to.split_at_mut(32);
        let [first, second] = [2 * pair, 2 * pair + 1];
        for (to, byte) in low.iter_mut().zip(bytes) {
            *to = f32::from(byte & 15) * scales[first] - offsets[first];
        }
        for (to, byte) in high.iter_mut().zip(bytes) {
            *to = f32::from(byte >> 4) * scales[second] - offsets[second];
        }
    }
}

/// 128 bytes of the lower 4 bits, 64 of the upper 2 bits, 16 scales of 8 bits for 16 numbers each, and
/// an f16 by which these are multiplied. Each half of the numbers has half of the bytes: a byte holds
/// parts of numbers that are 64, or 32, apart.
#[inline(always)]
fn q6_k(block: &[u8; 210], to: &mut [f32; 256]) {
    let factor = f16_at(block, 208);
    for (half, to) in to.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let (low, high) = (&block[64 * half..][..64], &block[128 + 32 * half..][..32]);
        let scales = &block[192 + 8 * half..][..8];
        for (part, to) in to.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = f32::from(scales[part] as i8) * factor;
            let low = &low[part * 16 % 64..][..16];
            let high = &high[part * 16 % 32..][..16];
            for ((to, low), high) in to.iter_mut().zip(low).zip(high) {
                let value = (low >> (part / 4 * 4) & 15) | (high >> (part / 2 * 2) & 3) << 4;
                *to = (i32::from(value) - 32) as f32 * scale;
            }
        }
    }
}

/// Where some elements of a row lie in its bytes; both begin and end with blocks.
pub(crate) fn bytes_of(dtype: Dtype, elements: Range<usize>) -> Range<usize> {
    let block = dtype.block();
    let at = |element: usize| element / block.elements * block.bytes;
    at(elements.start)..at(elements.end)
}
