//! Conversions between bf16, f16 and f32 over slices, with the vector instructions at hand.
//!
//! Widening is exact. Narrowing rounds to nearest, ties to even; what is too large becomes
//! infinite, and a NaN stays a NaN of the same sign. All instruction sets give the same bits, but
//! for the payload of a NaN.
//!
//! Each function runs on the calling thread: whoever streams has threads of its own.

use half::{bf16, f16};

use crate::Isa;

/// Widens each element of `from` into `to`.
///
/// # Panics
///
/// If the slices differ in length.
pub fn bf16_to_f32(from: &[bf16], to: &mut [f32]) {
    bf16_to_f32_with(Isa::detected(), from, to);
}

/// Widens each element of `from` into `to`.
///
/// # Panics
///
/// If the slices differ in length.
pub fn f16_to_f32(from: &[f16], to: &mut [f32]) {
    f16_to_f32_with(Isa::detected(), from, to);
}

/// Rounds each element of `from` into `to`.
///
/// # Panics
///
/// If the slices differ in length.
pub fn f32_to_bf16(from: &[f32], to: &mut [bf16]) {
    f32_to_bf16_with(Isa::detected(), from, to);
}

/// Rounds each element of `from` into `to`.
///
/// # Panics
///
/// If the slices differ in length.
pub fn f32_to_f16(from: &[f32], to: &mut [f16]) {
    f32_to_f16_with(Isa::detected(), from, to);
}

/// A function that compiles one plain loop for each instruction set and calls the one asked for.
/// The loop itself is vectorized by the compiler.
macro_rules! for_each_isa {
    ($name:ident, $narrow:ident, $from:ty, $to:ty) => {
        fn $name(isa: Isa, from: &[$from], to: &mut [$to]) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2(from: &[$from], to: &mut [$to]) {
                $narrow(from, to);
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
            fn avx512(from: &[$from], to: &mut [$to]) {
                $narrow(from, to);
            }

            assert_eq!(from.len(), to.len(), "a cast needs slices of one length");
            assert!(isa.is_available(), "this processor does not have {isa:?}");
            match isa {
                // SAFETY: the assertion above: this processor has these instructions.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => unsafe { avx2(from, to) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::AmxBf16 => unsafe { avx512(from, to) },
                _ => $narrow(from, to),
            }
        }
    };
}

for_each_isa!(bf16_to_f32_with, widen_each_bf16, bf16, f32);
for_each_isa!(f32_to_bf16_with, narrow_each_bf16, f32, bf16);

#[inline(always)]
fn widen_each_bf16(from: &[bf16], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = widen_bf16(from.to_bits());
    }
}

#[inline(always)]
fn narrow_each_bf16(from: &[f32], to: &mut [bf16]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = bf16::from_bits(narrow_bf16(*from));
    }
}

fn f16_to_f32_with(isa: Isa, from: &[f16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "a cast needs slices of one length");
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    let (from, to) = match isa {
        Isa::Portable => (from, to),
        // SAFETY: the assertion above: this processor has F16C, which all other sets include.
        #[cfg(target_arch = "x86_64")]
        _ => unsafe { f16c::widen(from, to) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => (from, to),
    };
    for (to, from) in to.iter_mut().zip(from) {
        *to = widen_f16(from.to_bits());
    }
}

fn f32_to_f16_with(isa: Isa, from: &[f32], to: &mut [f16]) {
    assert_eq!(from.len(), to.len(), "a cast needs slices of one length");
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    let (from, to) = match isa {
        Isa::Portable => (from, to),
        // SAFETY: the assertion above: this processor has F16C, which all other sets include.
        #[cfg(target_arch = "x86_64")]
        _ => unsafe { f16c::narrow(from, to) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => (from, to),
    };
    for (to, from) in to.iter_mut().zip(from) {
        *to = f16::from_f32_const(*from);
    }
}

/// The f32 of a bf16: its upper half.
#[inline(always)]
pub(crate) fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The bf16 nearest to an f32.
#[inline(always)]
fn narrow_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    // Half a unit in the last place that stays, less one where that place is even, carries exactly
    // when it should.
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // A NaN's payload may lie in the bits that go, or carry into the sign: keep it a quiet NaN.
    let quiet = bits >> 16 | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}

/// The f32 of an f16, without branches, so that loops over it vectorize.
#[inline(always)]
pub(crate) fn widen_f16(bits: u16) -> f32 {
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    // The fields in place, the exponent is too small by the difference of the biases, 127 - 15.
    // Multiplying by that power of two is exact, for subnormal numbers too.
    let magnitude = f32::from_bits(rest << 13) * f32::from_bits((127 + 112) << 23);
    // The largest exponent stands for infinity and NaN: again the largest.
    let special = if rest >= 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | sign)
}

/// Conversions in F16C, eight at a time.
#[cfg(target_arch = "x86_64")]
mod f16c {
    use std::arch::x86_64::*;

    use half::f16;

    /// Widens all but fewer than eight elements; gives back the rest.
    #[target_feature(enable = "avx,f16c")]
    pub(super) fn widen<'a, 'b>(from: &'a [f16], to: &'b mut [f32]) -> (&'a [f16], &'b mut [f32]) {
        let (eights, rest) = from.as_chunks::<8>();
        let (to, to_rest) = to.split_at_mut(eights.len() * 8);
        for (to, eight) in to.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
            // SAFETY: `eight` is 16 bytes and `to` is 32; neither access asks for alignment.
            unsafe {
                let wide = _mm256_cvtph_ps(_mm_loadu_si128(eight.as_ptr().cast()));
                _mm256_storeu_ps(to.as_mut_ptr(), wide);
            }
        }
        (rest, to_rest)
    }

    /// Rounds all but fewer than eight elements; gives back the rest.
    #[target_feature(enable = "avx,f16c")]
    pub(super) fn narrow<'a, 'b>(from: &'a [f32], to: &'b mut [f16]) -> (&'a [f32], &'b mut [f16]) {
        let (eights, rest) = from.as_chunks::<8>();
        let (to, to_rest) = to.split_at_mut(eights.len() * 8);
        for (to, eight) in to.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
            // SAFETY: `eight` is 32 bytes and `to` is 16; neither access asks for alignment.
            unsafe {
                let narrow =
                    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(eight.as_ptr()));
                _mm_storeu_si128(to.as_mut_ptr().cast(), narrow);
            }
        }
        (rest, to_rest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The sets to test here; says which are left out.
    fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| {
            if !isa.is_available() {
                eprintln!("SKIPPED: this processor does not have {isa:?}");
            }
            isa.is_available()
        })
    }

    /// Bits, with one NaN of each sign.
    fn canonical(value: f32) -> u32 {
        if value.is_nan() { value.to_bits() & 0x8000_0000 | 0x7fc0_0000 } else { value.to_bits() }
    }

    /// f32 around every boundary of the narrow types: each of their values, its neighbours and the
    /// ties between them.
    fn boundaries() -> Vec<f32> {
        let wide =
            |bits: u16| [f16::from_bits(bits).to_f32_const(), bf16::from_bits(bits).to_f32()];
        (0..=u16::MAX)
            .flat_map(wide)
            .flat_map(|value| {
                [-0x1000, -1, 0, 1, 0x7fff, 0x8000, 0x8001, 0x0fff, 0x1000, 0x1001]
                    .map(|step| (value, step))
            })
            .map(|(value, step)| f32::from_bits(value.to_bits().wrapping_add_signed(step)))
            .collect()
    }

    #[test]
    fn every_half_widens_exactly() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let halves: Vec<f16> = bits.iter().map(|&bits| f16::from_bits(bits)).collect();
        let brains: Vec<bf16> = bits.iter().map(|&bits| bf16::from_bits(bits)).collect();
        let mut wide = vec![0.0; bits.len()];
        for isa in available() {
            f16_to_f32_with(isa, &halves, &mut wide);
            for (&wide, half) in wide.iter().zip(&halves) {
                assert_eq!(
                    canonical(wide),
                    canonical(half.to_f32_const()),
                    "{isa:?} {:#x}",
                    half.to_bits()
                );
            }
            bf16_to_f32_with(isa, &brains, &mut wide);
            for (&wide, brain) in wide.iter().zip(&brains) {
                assert_eq!(
                    canonical(wide),
                    canonical(brain.to_f32()),
                    "{isa:?} {:#x}",
                    brain.to_bits()
                );
            }
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even_at_every_boundary() {
        let values = boundaries();
        let mut halves = vec![f16::ZERO; values.len()];
        let mut brains = vec![bf16::ZERO; values.len()];
        for isa in available() {
            f32_to_f16_with(isa, &values, &mut halves);
            f32_to_bf16_with(isa, &values, &mut brains);
            for ((&value, half), brain) in values.iter().zip(&halves).zip(&brains) {
                let bits = value.to_bits();
                let (want_half, want_brain) = (f16::from_f32_const(value), bf16::from_f32(value));
                assert_eq!(
                    canonical(half.to_f32()),
                    canonical(want_half.to_f32()),
                    "{isa:?} {bits:#x}"
                );
                assert_eq!(
                    canonical(brain.to_f32()),
                    canonical(want_brain.to_f32()),
                    "{isa:?} {bits:#x}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn any_slice_converts_alike_on_every_set(
            bits in prop::collection::vec(any::<u32>(), 0..70), skip in 0usize..9,
        ) {
            let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            let values = &values[skip.min(values.len())..];
            for isa in available() {
                let (mut halves, mut brains) = (vec![f16::ZERO; values.len()], vec![bf16::ZERO; values.len()]);
                f32_to_f16_with(isa, values, &mut halves);
                f32_to_bf16_with(isa, values, &mut brains);
                for ((&value, half), brain) in values.iter().zip(&halves).zip(&brains) {
                    prop_assert_eq!(canonical(half.to_f32()), canonical(f16::from_f32_const(value).to_f32()));
                    prop_assert_eq!(canonical(brain.to_f32()), canonical(bf16::from_f32(value).to_f32()));
                }
                let mut wide = vec![0.0; values.len()];
                bf16_to_f32_with(isa, &brains, &mut wide);
                prop_assert!(wide.iter().zip(&brains).all(|(&w, b)| canonical(w) == canonical(b.to_f32())));
                f16_to_f32_with(isa, &halves, &mut wide);
                prop_assert!(wide.iter().zip(&halves).all(|(&w, h)| canonical(w) == canonical(h.to_f32_const())));
            }
        }
    }

    #[test]
    #[should_panic(expected = "one length")]
    fn slices_of_two_lengths_are_refused() {
        bf16_to_f32(&[bf16::ONE], &mut [0.0; 2]);
    }
}
