//! Vectors of f32 lanes, and code that is compiled once for each set of instructions.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(target_arch = "x86_64")]
mod transpose;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::F32x8;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::F32x16;
pub(crate) use portable::{F32x4, widen_bf16};
#[cfg(target_arch = "x86_64")]
pub(crate) use transpose::transposed;

/// Defines a function that is compiled once for each set of instructions, and takes the set before
/// its own arguments. The compiler vectorizes loops in its body; `V` is the [`Vector`] of the set.
/// What it calls must be `#[inline(always)]`.
///
/// # Safety
///
/// An unsafe function asks that this processor has the set.
///
/// # Panics
///
/// A safe function panics if this processor does not have the set.
macro_rules! for_each_isa {
    (
        $(#[$doc:meta])*
        $vis:vis unsafe fn $name:ident<V $(, $E:ident: $bound:path)?>(
            $($arg:ident: $type:ty),* $(,)?
        ) $(-> $output:ty)? $body:block
    ) => {
        $(#[$doc])*
        $vis unsafe fn $name$(<$E: $bound>)?(isa: $crate::Isa, $($arg: $type),*) $(-> $output)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2$(<$E: $bound>)?($($arg: $type),*) $(-> $output)? {
                #[allow(dead_code, reason = "plain loops name no vector")]
                type V = $crate::simd::F32x8;
                $body
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
            unsafe fn avx512$(<$E: $bound>)?($($arg: $type),*) $(-> $output)? {
                #[allow(dead_code, reason = "plain loops name no vector")]
                type V = $crate::simd::F32x16;
                $body
            }

            match isa {
                // SAFETY: the caller's promises, of which one is that the processor has the set.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx512 | $crate::Isa::Avx512Bf16 | $crate::Isa::AmxBf16 => unsafe {
                    avx512($($arg),*)
                },
                _ => {
                    #[allow(dead_code, reason = "plain loops name no vector")]
                    type V = $crate::simd::F32x4;
                    $body
                }
            }
        }
    };
    (
        $(#[$doc:meta])*
        $vis:vis fn $name:ident$(<V>)?($($arg:ident: $type:ty),* $(,)?) $(-> $output:ty)? $body:block
    ) => {
        $(#[$doc])*
        $vis fn $name(isa: $crate::Isa, $($arg: $type),*) $(-> $output)? {
            $crate::simd::for_each_isa! {
                unsafe fn compiled<V>($($arg: $type),*) $(-> $output)? $body
            }
            assert!(isa.is_available(), "this processor does not have {isa:?}");
            // SAFETY: the assertion: this processor has these instructions.
            unsafe { compiled(isa, $($arg),*) }
        }
    };
}

pub(crate) use for_each_isa;

/// What numbers of 4 bits stand for.
pub(crate) trait NumberTable {
    /// Of all sixteen.
    const VALUES: [f32; 16];

    /// Whether the last eight are the first with the sign changed.
    const IS_SYMMETRIC: bool = false;
}

/// A vector of f32 lanes, and how to fill it.
///
/// # Safety
///
/// All functions ask that the processor has the instructions that the type is for. `fma`, `sum` and
/// `sums` have the same result for the same lanes wherever they are inlined.
pub(crate) trait Vector: Copy {
    /// Lanes in a vector.
    const LANES: usize;

    /// Zero in every lane.
    unsafe fn zero() -> Self;

    /// One number in every lane.
    unsafe fn splat(value: f32) -> Self;

    /// Writes all lanes to a pointer to as many.
    unsafe fn store(self, to: *mut f32);

    /// `self + a * b`, lane by lane, fused where the instruction set has that.
    unsafe fn fma(self, a: Self, b: Self) -> Self;

    /// `self * by`, lane by lane.
    unsafe fn mul(self, by: Self) -> Self;

    /// The sum of all lanes, in a fixed order.
    unsafe fn sum(self) -> f32;

    /// The same of four vectors, bit for bit.
    #[inline(always)]
    unsafe fn sums(four: [Self; 4]) -> [f32; 4] {
        // SAFETY: the caller's promise.
        four.map(|one| unsafe { one.sum() })
    }

    /// Makes columns of the rows of sixteen by sixteen numbers.
    #[inline(always)]
    unsafe fn transpose(block: &mut [f32; 256]) {
        for i in 0..16 {
            for j in 0..i {
                block.swap(16 * i + j, 16 * j + i);
            }
        }
    }

    /// `LANES` E4M3, given as their bits and none of them a NaN, times a scale that was multiplied
    /// by 2¹²⁰: rounded once.
    unsafe fn e4m3(from: *const u8, scale: Self) -> Self;

    /// What sixteen numbers of 4 bits are worth.
    type Sixteen: Copy;

    /// `(i - LESS) * scale - offset` for every `i` from 0 to 15, where the product is exact:
    /// rounded once, fused or not.
    unsafe fn sixteen<const LESS: i32>(scale: f32, offset: f32) -> Self::Sixteen;

    /// `LANES` bytes.
    type Bytes: Copy;

    /// `LANES` bytes from a pointer to as many.
    unsafe fn bytes(from: *const u8) -> Self::Bytes;

    /// What the lower, or the `UPPER`, halves of bytes are worth.
    unsafe fn halves<const UPPER: bool, const LESS: i32>(
        bytes: Self::Bytes,
        sixteen: Self::Sixteen,
    ) -> Self;

    /// The 32 numbers of 4 bits in 16 bytes, of each byte the lower half before the upper: as the
    /// lower halves of bytes, in vectors.
    unsafe fn neighbours(from: &[u8; 16]) -> [Self::Bytes; 8];

    /// What the numbers of a [`NumberTable`] are worth, or what it takes to tell.
    type Table: Copy;

    /// All numbers times a scale: each rounded once.
    unsafe fn table<T: NumberTable>(scale: f32) -> Self::Table;

    /// What the lower, or the `UPPER`, halves of bytes are worth.
    unsafe fn look_up<T: NumberTable, const UPPER: bool>(
        bytes: Self::Bytes,
        table: Self::Table,
    ) -> Self;

    /// 128 numbers of 6 bits in the upper bits of bytes, of which the uppermost is flipped: the
    /// lower 4 bits come from the lower halves of `low`, then from the upper ones; the others from
    /// 2 bits of `high` each time, the lowest first.
    #[inline(always)]
    unsafe fn upper_six(low: &[u8; 64], high: &[u8; 32]) -> [u8; 128] {
        let mut numbers = [0; 128];
        for at in 0..32 {
            let (a, b, high) = (low[at], low[32 + at], high[at]);
            numbers[at] = ((a << 2 & 0x3c) | (high << 6)) ^ 0x80;
            numbers[32 + at] = ((b << 2 & 0x3c) | (high << 4 & 0xc0)) ^ 0x80;
            numbers[64 + at] = ((a >> 2 & 0x3c) | (high << 2 & 0xc0)) ^ 0x80;
            numbers[96 + at] = ((b >> 2 & 0x3c) | (high & 0xc0)) ^ 0x80;
        }
        numbers
    }

    /// 32 numbers of 5 bits, less something: the lower 4 bits come from the lower halves of `low`,
    /// then from the upper ones, and the fifths from `high`, the lowest first.
    #[inline(always)]
    unsafe fn five<const LESS: i8>(low: &[u8; 16], high: u32) -> [i8; 32] {
        let mut numbers = [0; 32];
        for (at, number) in numbers.iter_mut().enumerate() {
            let low = low[at % 16] >> (at / 16 * 4) & 15;
            *number = (low | ((high >> at & 1) << 4) as u8) as i8 - LESS;
        }
        numbers
    }

    /// `LANES` numbers of 8 bits with a sign.
    unsafe fn i8(from: *const u8) -> Self;

    /// `LANES` numbers of 8 bits without one.
    unsafe fn u8(from: *const u8) -> Self;

    /// One f16, given as its bits, widened.
    unsafe fn widen_f16(bits: u16) -> f32;

    /// `LANES` f32 from a pointer to as many.
    unsafe fn f32(from: *const f32) -> Self;

    /// `count < LANES` f32 from a pointer to as many; zero in the other lanes.
    #[inline(always)]
    unsafe fn f32_part(from: *const f32, count: usize) -> Self {
        // SAFETY: the caller's promise; there are as many elements as any vector has lanes that
        // comes without masked loads.
        unsafe { Self::f32(padded(from, count).as_ptr()) }
    }

    /// `LANES` bf16, given as their bits, widened.
    unsafe fn bf16(from: *const u16) -> Self;

    /// `count < LANES` bf16, widened; zero in the other lanes.
    #[inline(always)]
    unsafe fn bf16_part(from: *const u16, count: usize) -> Self {
        // SAFETY: the caller's promise; there are as many elements as any vector has lanes that
        // comes without masked loads.
        unsafe { Self::bf16(padded(from, count).as_ptr()) }
    }

    /// `LANES` f16, given as their bits, widened.
    unsafe fn f16(from: *const u16) -> Self;

    /// `count < LANES` f16, widened; zero in the other lanes.
    #[inline(always)]
    unsafe fn f16_part(from: *const u16, count: usize) -> Self {
        // SAFETY: the caller's promise; there are as many elements as any vector has lanes that
        // comes without masked loads.
        unsafe { Self::f16(padded(from, count).as_ptr()) }
    }

    /// Asks for a cache line ahead of need. Any address will do.
    fn prefetch(address: *const u8);
}

/// Sign, exponent and mantissa of an E4M3 that stand where those of an f32 end: the same number,
/// but for the difference of the biases, 127 - 7.
const E4M3_FIELDS: i32 = 0x87f0_0000_u32 as i32;

/// `count < 8` elements, and zeros after them: how to load a part where there are no masked loads.
///
/// # Safety
///
/// `from` points to `count` elements.
#[inline(always)]
unsafe fn padded<T: Copy + Default>(from: *const T, count: usize) -> [T; 8] {
    let mut all = [T::default(); 8];
    let mut done = 0;
    // Four, two and one at a time: moves of fixed size, where a copy of `count` would be a call.
    for size in [4, 2, 1] {
        if count & size != 0 {
            // SAFETY: what is read are elements `done..done + size`, of `count`; what is written
            // lies within `all`.
            unsafe { from.add(done).copy_to_nonoverlapping(all.as_mut_ptr().add(done), size) };
            done += size;
        }
    }
    all
}
