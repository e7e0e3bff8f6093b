//! Conversions between bf16, f16 and f32 over slices, with the vector instructions at hand.
//!
//! Widening is exact. Narrowing rounds to nearest, ties to even; what is too large becomes
//! infinite, and a NaN stays a NaN of the same sign. All instruction sets give the same bits, but
//! for the payload of a NaN.
//!
//! Each function runs on the calling thread: whoever streams has threads of its own.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::Isa;
use crate::simd::{for_each_isa, widen_bf16};

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
    from.convert_to_f32_slice(to);
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
    to.convert_from_f32_slice(from);
}

for_each_isa! {
    fn bf16_to_f32_with(from: &[bf16], to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "a cast needs slices of one length");
        for (to, from) in to.iter_mut().zip(from) {
            *to = widen_bf16(from.to_bits());
        }
    }
}

for_each_isa! {
    fn f32_to_bf16_with(from: &[f32], to: &mut [bf16]) {
        assert_eq!(from.len(), to.len(), "a cast needs slices of one length");
        for (to, from) in to.iter_mut().zip(from) {
            *to = bf16::from_bits(narrow_bf16(*from));
        }
    }
}

/// The bf16 nearest to an f32.
#[inline(always)]
pub(crate) fn narrow_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    // Half a unit in the last place that stays, less one where that place is even, carries exactly
    // when it should.
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // A NaN's payload may lie in the bits that go, or carry into the sign: keep it a quiet NaN.
    let quiet = bits >> 16 | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
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
            f16_to_f32(&halves, &mut wide);
            for (&wide, half) in wide.iter().zip(&halves) {
                assert_eq!(
                    canonical(wide),
                    canonical(half.to_f32_const()),
                    "{isa:?} {:#x}",
                    half.to_bits()
                );
            }
            bf16_to_f32(&brains, &mut wide);
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
            f32_to_f16(&values, &mut halves);
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
                f32_to_f16(values, &mut halves);
                f32_to_bf16_with(isa, values, &mut brains);
                for ((&value, half), brain) in values.iter().zip(&halves).zip(&brains) {
                    prop_assert_eq!(canonical(half.to_f32()), canonical(f16::from_f32_const(value).to_f32()));
                    prop_assert_eq!(canonical(brain.to_f32()), canonical(bf16::from_f32(value).to_f32()));
                }
                let mut wide = vec![0.0; values.len()];
                bf16_to_f32(&brains, &mut wide);
                prop_assert!(wide.iter().zip(&brains).all(|(&w, b)| canonical(w) == canonical(b.to_f32())));
                f16_to_f32(&halves, &mut wide);
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
