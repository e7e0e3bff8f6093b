//! Four lanes, of the vector instructions that every processor of a target has: SSE2, NEON,
//! SIMD128, or plain arithmetic where there are none.

use wide::f32x4;

use super::{E4M3_FIELDS, NumberTable, Vector};

/// Four f32.
#[derive(Clone, Copy)]
pub(crate) struct F32x4(pub(crate) f32x4);

impl Vector for F32x4 {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(f32x4::ZERO)
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(f32x4::splat(value))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: `to` points to four elements.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0.to_array()) };
    }

    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // Fused where the target has the instruction.
        Self(a.0.mul_add(b.0, self.0))
    }

    #[inline(always)]
    unsafe fn mul(self, by: Self) -> Self {
        Self(self.0 * by.0)
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let [a, b, c, d] = self.0.to_array();
        (a + c) + (b + d)
    }

    #[inline(always)]
    unsafe fn e4m3(from: *const u8, scale: Self) -> Self {
        // SAFETY: `from` points to four bytes.
        let bytes = unsafe { from.cast::<[i8; 4]>().read_unaligned() };
        let wide = bytes.map(|byte| {
            let bits = (i32::from(byte) << 20) & E4M3_FIELDS;
            f32::from_bits(bits as u32)
        });
        Self(f32x4::from(wide) * scale.0)
    }

    /// The scale and the offset.
    type Sixteen = [Self; 2];
    type Bytes = [u8; 4];

    #[inline(always)]
    unsafe fn sixteen<const LESS: i32>(scale: f32, offset: f32) -> [Self; 2] {
        [Self(f32x4::splat(scale)), Self(f32x4::splat(offset))]
    }

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> [u8; 4] {
        // SAFETY: `from` points to four bytes.
        unsafe { from.cast::<[u8; 4]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn halves<const UPPER: bool, const LESS: i32>(
        bytes: [u8; 4],
        [scale, offset]: [Self; 2],
    ) -> Self {
        let half = |byte: u8| if UPPER { byte >> 4 } else { byte & 15 };
        let numbers = bytes.map(|byte| (i32::from(half(byte)) - LESS) as f32);
        Self(f32x4::new(numbers) * scale.0 - offset.0)
    }

    #[inline(always)]
    unsafe fn neighbours(from: &[u8; 16]) -> [[u8; 4]; 8] {
        std::array::from_fn(|at| {
            let [a, b] = [from[2 * at], from[2 * at + 1]];
            [a, a >> 4, b, b >> 4]
        })
    }

    /// The scale.
    type Table = Self;

    #[inline(always)]
    unsafe fn table<T: NumberTable>(scale: f32) -> Self {
        Self(f32x4::splat(scale))
    }

    #[inline(always)]
    unsafe fn look_up<T: NumberTable, const UPPER: bool>(bytes: [u8; 4], scale: Self) -> Self {
        let half = |byte: u8| if UPPER { byte >> 4 } else { byte & 15 };
        Self(f32x4::new(bytes.map(|byte| T::VALUES[usize::from(half(byte))])) * scale.0)
    }

    #[inline(always)]
    unsafe fn i8(from: *const u8) -> Self {
        // SAFETY: `from` points to four bytes.
        let bytes = unsafe { from.cast::<[i8; 4]>().read_unaligned() };
        Self(f32x4::new(bytes.map(f32::from)))
    }

    #[inline(always)]
    unsafe fn u8(from: *const u8) -> Self {
        // SAFETY: `from` points to four bytes.
        let bytes = unsafe { from.cast::<[u8; 4]>().read_unaligned() };
        Self(f32x4::new(bytes.map(f32::from)))
    }

    #[inline(always)]
    unsafe fn widen_f16(bits: u16) -> f32 {
        widen_f16(bits)
    }

    #[inline(always)]
    unsafe fn f32(from: *const f32) -> Self {
        // SAFETY: `from` points to four elements.
        Self(f32x4::new(unsafe { from.cast::<[f32; 4]>().read() }))
    }

    #[inline(always)]
    unsafe fn bf16(from: *const u16) -> Self {
        // SAFETY: `from` points to four elements.
        Self(f32x4::new(unsafe { four(from) }.map(widen_bf16)))
    }

    #[inline(always)]
    unsafe fn f16(from: *const u16) -> Self {
        // SAFETY: `from` points to four elements.
        Self(f32x4::new(unsafe { four(from) }.map(widen_f16)))
    }

    #[inline(always)]
    fn prefetch(_address: *const u8) {}
}

/// Four elements, read one by one: the compiler makes that one vector load, where an array would go
/// through a scalar register.
///
/// # Safety
///
/// `from` points to four elements.
#[inline(always)]
unsafe fn four(from: *const u16) -> [u16; 4] {
    // SAFETY: the caller's promise.
    std::array::from_fn(|i| unsafe { from.add(i).read() })
}

/// The f32 of a bf16: its upper half.
#[inline(always)]
pub(crate) fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The f32 of an f16, without branches, so that loops over it vectorize.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    // The fields in place, the exponent is too small by the difference of the biases, 127 - 15.
    // Multiplying by that power of two is exact, for subnormal numbers too.
    let magnitude = f32::from_bits(rest << 13) * f32::from_bits((127 + 112) << 23);
    // The largest exponent stands for infinity and NaN: again the largest.
    let special = if rest >= 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | sign)
}
