//! The exponential function, as plain arithmetic: loops over it are vectorized by the compiler, and
//! all instruction sets give the same bits.

/// `eˣ`, off by at most 2⁻²² of it. Zero where the result is below the least normal number,
/// infinite above `e^88.37`; a NaN stays one.
///
/// Cephes' polynomial: `eˣ = 2ⁿ · eʳ` with `n` the integer nearest to `x / ln 2`.
#[inline(always)]
#[allow(clippy::excessive_precision, reason = "the constants as they are published")]
pub(crate) fn exp(x: f32) -> f32 {
    // Between them `n` is an exponent of an f32.
    const LEAST: f32 = -87.336_54;
    const MOST: f32 = 88.7;
    /// Adding this leaves the nearest integer in the low bits.
    const TO_INTEGER: f32 = 12_582_912.0;
    /// ln 2 in two parts; `n` times the first is exact.
    const LN_2: [f32; 2] = [0.693_359_375, -2.121_944_4e-4];
    // Comparisons, unlike `clamp`, keep NaN on every target without a branch.
    let bounded = if x > MOST { MOST } else { x };
    let bounded = if bounded < LEAST { LEAST } else { bounded };
    let shifted = bounded * std::f32::consts::LOG2_E + TO_INTEGER;
    let n = shifted - TO_INTEGER;
    let r = (bounded - n * LN_2[0]) - n * LN_2[1];
    let mut p = 1.987_569_15e-4;
    p = p * r + 1.398_199_95e-3;
    p = p * r + 8.333_451_9e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_55e-1;
    p = p * r + 5.000_000_1e-1;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    let result = (p * (r * r) + r + 1.0) * power;
    if x < LEAST { 0.0 } else { result }
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
