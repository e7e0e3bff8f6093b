//! Floats as the nearest of few bits.

use crate::quants::E8M0;

/// Numbers of 4 bits, two in a byte, and the E8M0 that they are multiplied by: the power of two by
/// which the largest is from 4 on, and below 8.
pub(super) fn narrow_mx(values: &[f32; 32]) -> ([u8; 16], u8) {
    let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    // The exponents of 4 and of a scale of one.
    let scale = (largest.to_bits() >> 23 & 0xff).saturating_sub(2) as u8;
    let by = E8M0[usize::from(scale)].recip();
    let (pairs, _) = values.as_chunks::<2>();
    let mut pairs = pairs.iter().map(|[a, b]| narrow_e2m1(a * by) | narrow_e2m1(b * by) << 4);
    (std::array::from_fn(|_| pairs.next().unwrap_or(0)), scale)
}

/// The E8M0 of the least power of two that is not less than a scale.
pub(super) fn power_from(scale: f32) -> u8 {
    let bits = scale.to_bits();
    let is_between = bits & 0x7f_ffff != 0;
    ((bits >> 23 & 0xff) as u8).saturating_add(u8::from(is_between)).min(254)
}

/// The E2M1 nearest to an f32, ties to even; what is too large becomes the largest.
pub(super) fn narrow_e2m1(value: f32) -> u8 {
    let magnitude = value.abs();
    let above = [0.25, 1.25, 2.5, 5.0].iter().filter(|middle| magnitude > **middle).count();
    let from = [0.75, 1.75, 3.5].iter().filter(|middle| magnitude >= **middle).count();
    u8::from(value.is_sign_negative()) << 3 | (above + from) as u8
}

/// The largest E4M3.
pub(super) const MAX_E4M3: f32 = 448.0;

/// The E4M3 nearest to an f32, ties to even; what is too large becomes the largest.
pub(super) fn narrow_e4m3(value: f32) -> u8 {
    let sign = u8::from(value.is_sign_negative()) << 7;
    let magnitude = value.abs();
    if value.is_nan() {
        return sign | 0x7f;
    }
    // Eighths of the least normal number, 2⁻⁶, below which all steps are the same.
    if magnitude < 1.0 / 64.0 {
        return sign | (magnitude * 512.0).round_ties_even() as u8;
    }
    let bits = magnitude.min(MAX_E4M3).to_bits();
    let rounded = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
    sign | (rounded - (120 << 3)) as u8
}
