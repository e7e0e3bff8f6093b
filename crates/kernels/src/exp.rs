//! The exponential function, as plain arithmetic: loops over it are vectorized by the compiler, and
//! all instruction sets give the same bits.

/// What `x` is multiplied by to be in powers of two, and ln 2 in two parts; `n` times the first of
/// these is exact.
#[allow(clippy::excessive_precision, reason = "the constants as they are published")]
pub(crate) const EXP_PARTS: [f32; 3] = [std::f32::consts::LOG2_E, 0.693_359_375, -2.121_944_4e-4];

/// The polynomial's factors, that of the highest power first, down to the square.
#[allow(clippy::excessive_precision, reason = "the constants as they are published")]
pub(crate) const EXP_TERMS: [f32; 6] = [
    1.987_569_15e-4,
    1.398_199_95e-3,
    8.333_451_9e-3,
    4.166_579_6e-2,
    1.666_666_55e-1,
    5.000_000_1e-1,
];

/// Below this the result counts as zero.
pub(crate) const EXP_LEAST: f32 = -87.336_54;

/// `eˣ`, off by at most 2⁻²² of it. Zero where the result is below the least normal number,
/// infinite above `e^88.37`; a NaN stays one.
///
/// Cephes' polynomial: `eˣ = 2ⁿ · eʳ` with `n` the integer nearest to `x / ln 2`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Between this and the least `n` is an exponent of an f32.
    const MOST: f32 = 88.7;
    /// Adding this leaves the nearest integer in the low bits.
    const TO_INTEGER: f32 = 12_582_912.0;
    // Comparisons, unlike `clamp`, keep NaN on every target without a branch.
    let bounded = if x > MOST { MOST } else { x };
    let bounded = if bounded < EXP_LEAST { EXP_LEAST } else { bounded };
    let [log2_e, upper, lower] = EXP_PARTS;
    let shifted = bounded * log2_e + TO_INTEGER;
    let n = shifted - TO_INTEGER;
    let r = (bounded - n * upper) - n * lower;
    let [first, rest @ ..] = EXP_TERMS;
    let mut p = first;
    for term in rest {
        p = p * r + term;
    }
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    let result = (p * (r * r) + r + 1.0) * power;
    if x < EXP_LEAST { 0.0 } else { result }
}

/// The hyperbolic tangent, off by at most 2⁻²² in all, also as part of a loop over vectors.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (1.0 + exp(2.0 * x))
}

/// `ln(1 + eˣ)`, off by at most 2⁻²⁰ of it, also as part of a loop over vectors; `x` itself
/// above 20.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    let bounded = if x > 20.0 { 20.0 } else { x };
    let softened = ln_1p(exp(bounded));
    if x > 20.0 { x } else { softened }
}

/// `ln(1 + x)` of what is not negative.
///
/// Cephes' polynomial of a mantissa around one.
#[inline(always)]
#[allow(clippy::excessive_precision, reason = "the constants as they are published")]
fn ln_1p(x: f32) -> f32 {
    // That of the highest power first, down to the cube.
    const TERMS: [f32; 9] = [
        7.037_683_63e-2,
        -1.151_461_03e-1,
        1.167_699_87e-1,
        -1.242_014_08e-1,
        1.424_932_28e-1,
        -1.666_805_77e-1,
        2.000_071_48e-1,
        -2.499_999_40e-1,
        3.333_333_12e-1,
    ];
    /// The root of one half.
    const LEAST: u32 = 0x3f35_04f3;
    let sum = 1.0 + x;
    let above = sum.to_bits().wrapping_sub(LEAST);
    let power = (above >> 23) as i32 as f32;
    let mantissa = f32::from_bits((above & 0x007f_ffff).wrapping_add(LEAST));
    let r = mantissa - 1.0;
    let [first, rest @ ..] = TERMS;
    let mut p = first;
    for term in rest {
        p = p * r + term;
    }
    let [_, upper, lower] = EXP_PARTS;
    let square = r * r;
    let log = r + (p * r * square + power * lower - 0.5 * square) + power * upper;
    // What the sum lost of a small `x`.
    let held = sum - 1.0;
    if held > 0.0 { log * (x / held) } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_function() {
        let step = 1e-3;
        for i in -88_000..=88_300 {
            let x = i as f32 * step;
            let (found, expected) = (f64::from(exp(x)), f64::from(x).exp());
            if expected < f64::from(f32::MIN_POSITIVE) {
                assert!(found <= f64::from(f32::MIN_POSITIVE) * 1.001, "{x}");
                continue;
            }
            let off = (found - expected).abs() / expected;
            assert!(off <= 2f64.powi(-22), "exp({x}) is {found}, not {expected}");
        }
    }

    #[test]
    fn softplus_follows_the_function() {
        for i in -87_000..=30_000 {
            let x = i as f32 * 1e-3;
            let (found, expected) = (f64::from(softplus(x)), f64::from(x).exp().ln_1p());
            let off = (found - expected).abs() / expected;
            assert!(off <= 2f64.powi(-20), "softplus({x}) is {found}, not {expected}");
        }
        assert_eq!(softplus(f32::INFINITY), f32::INFINITY);
        assert_eq!(softplus(f32::NEG_INFINITY), 0.0);
        assert!(softplus(f32::NAN).is_nan());
    }

    #[test]
    fn ends_are_as_they_should_be() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(1e30), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}
