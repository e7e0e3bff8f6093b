//! Vectors of f32 lanes.

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

    /// The sum of all lanes, in a fixed order.
    unsafe fn sum(self) -> f32;

    /// The same of four vectors, bit for bit.
    #[inline(always)]
    unsafe fn sums(four: [Self; 4]) -> [f32; 4] {
        // SAFETY: the caller's promise.
        four.map(|one| unsafe { one.sum() })
    }

    /// `LANES` E4M3, given as their bits and none of them a NaN, times a scale that was multiplied by
    /// 2¹²⁰: rounded once.
    unsafe fn e4m3(from: *const u8, scale: Self) -> Self;

    /// `LANES` f32 from a pointer to as many.
    unsafe fn f32(from: *const f32) -> Self;

    /// `count < LANES` f32 from a pointer to as many; zero in the other lanes.
    unsafe fn f32_part(from: *const f32, count: usize) -> Self;

    /// `LANES` bf16, given as their bits, widened.
    unsafe fn bf16(from: *const u16) -> Self;

    /// `count < LANES` bf16, widened; zero in the other lanes.
    unsafe fn bf16_part(from: *const u16, count: usize) -> Self;

    /// `LANES` f16, given as their bits, widened.
    unsafe fn f16(from: *const u16) -> Self;

    /// `count < LANES` f16, widened; zero in the other lanes.
    unsafe fn f16_part(from: *const u16, count: usize) -> Self;

    /// Asks for a cache line ahead of need. Any address will do.
    fn prefetch(address: *const u8);
}

/// Sign, exponent and mantissa of an E4M3 that stand where those of an f32 end: the same number, but
/// for the difference of the biases, 127 - 7.
pub(super) const E4M3_FIELDS: i32 = 0x87f0_0000_u32 as i32;

/// `count < N` elements, and zeros after them, for `N` up to 8: how to load a part where there are
/// no masked loads.
///
/// # Safety
///
/// `from` points to `count` elements.
#[inline(always)]
pub(super) unsafe fn padded<T: Copy + Default, const N: usize>(
    from: *const T,
    count: usize,
) -> [T; N] {
    const { assert!(N <= 8) };
    let mut all = [T::default(); N];
    let mut done = 0;
    // Four, two and one at a time: moves of fixed size, where a copy of `count` would be a call.
    for size in [4, 2, 1] {
        if count & size != 0 && done + size <= N {
            // SAFETY: what is read are elements `done..done + size`, of `count`; what is written
            // lies within `all`.
            unsafe { from.add(done).copy_to_nonoverlapping(all.as_mut_ptr().add(done), size) };
            done += size;
        }
    }
    all
}
