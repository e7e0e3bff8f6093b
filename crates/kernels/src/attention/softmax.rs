//! The softmax of a block's scores, but for the division by the sum.

use std::ops::Range;

use super::lanes::MOST_LANES;
use super::partial::Totals;
use crate::exp::exp;

/// What a row's softmax comes to if it sees nothing.
const NONE: Totals = Totals { largest: 0.0, sum: 0.0 };

/// As [`softmax_rows`] with a known number of rows.
#[inline(always)]
pub(super) fn softmax(
    rows: usize,
    scores: &mut [f32],
    seen: &[Range<usize>],
    scale: f32,
) -> [Totals; MOST_LANES] {
    match rows {
        4 => softmax_rows::<4, 8>(scores, seen, scale),
        8 => softmax_rows::<8, 16>(scores, seen, scale),
        16 => softmax_rows::<16, 32>(scores, seen, scale),
        _ => unreachable!("vectors have 4, 8 or 16 lanes"),
    }
}

/// Turns scores, those of `ROWS` rows for each column one behind the other, into weights: `exp` of
/// what each, scaled, is below the row's largest. `PAIR` is twice `ROWS`. `seen` are the columns
/// that each row sees, and the rest of the columns that any of them sees get no weight. The rows
/// beyond those of `seen` come to something that means nothing.
#[inline(always)]
fn softmax_rows<const ROWS: usize, const PAIR: usize>(
    scores: &mut [f32],
    seen: &[Range<usize>],
    scale: f32,
) -> [Totals; MOST_LANES] {
    const { assert!(PAIR == 2 * ROWS && ROWS <= MOST_LANES) };
    let Some(columns) = hidden::<ROWS>(scores, seen) else {
        return [NONE; MOST_LANES];
    };
    let (pairs, _) = scores[columns.start * ROWS..columns.end * ROWS].as_chunks_mut::<PAIR>();

    let mut largest = [f32::NEG_INFINITY; PAIR];
    for pair in pairs.iter() {
        for (score, largest) in pair.iter().zip(&mut largest) {
            *largest = if *score > *largest { *score } else { *largest };
        }
    }
    // The scale is positive: the largest stays the largest.
    let largest: [f32; ROWS] = std::array::from_fn(|row| {
        let (even, odd) = (largest[row], largest[row + ROWS]);
        let sees = seen.get(row).is_some_and(|seen| !seen.is_empty());
        match sees {
            true => scale * if odd > even { odd } else { even },
            false => 0.0,
        }
    });
    let both: [f32; PAIR] = std::array::from_fn(|row| largest[row % ROWS]);
    let mut sums = [0.0f32; PAIR];
    for pair in pairs.iter_mut() {
        for ((score, sum), largest) in pair.iter_mut().zip(&mut sums).zip(&both) {
            *score = exp(*score * scale - largest);
            *sum += *score;
        }
    }
    let mut totals = [NONE; MOST_LANES];
    for (row, totals) in totals[..ROWS].iter_mut().enumerate() {
        *totals = Totals { largest: largest[row], sum: sums[row] + sums[row + ROWS] };
    }
    totals
}

/// Gives what a row does not see of the columns that any of them sees the least score, and says
/// which these are: pairs of columns, counted from the start of the block, as sums are of every
/// other column, whoever else sees what. None if no row sees anything.
#[inline(always)]
fn hidden<const ROWS: usize>(scores: &mut [f32], seen: &[Range<usize>]) -> Option<Range<usize>> {
    let visible = || seen.iter().filter(|seen| !seen.is_empty());
    let start = visible().map(|seen| seen.start).min()?;
    let end = visible().map(|seen| seen.end).max().unwrap_or(start);
    let (from, to) = (start / 2 * 2, end.next_multiple_of(2));
    for (row, seen) in seen.iter().enumerate() {
        let (until, after) = match seen.is_empty() {
            true => (to, to),
            false => (seen.start, seen.end),
        };
        for column in (from..until).chain(after..to) {
            scores[column * ROWS + row] = f32::NEG_INFINITY;
        }
    }
    Some(from..to)
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::softmax_in_vectors;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::*;
    use crate::exp::{EXP_LEAST, EXP_PARTS, EXP_TERMS};

    /// [`softmax`] of sixteen rows with instructions that only some processors have: half of them,
    /// and other bits.
    ///
    /// # Safety
    ///
    /// The processor has AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(in super::super) unsafe fn softmax_in_vectors(
        scores: &mut [f32],
        seen: &[Range<usize>],
        scale: f32,
    ) -> [Totals; MOST_LANES] {
        const ROWS: usize = MOST_LANES;
        let Some(columns) = hidden::<ROWS>(scores, seen) else {
            return [NONE; ROWS];
        };
        let (pairs, _) =
            scores[columns.start * ROWS..columns.end * ROWS].as_chunks_mut::<{ 2 * ROWS }>();
        // SAFETY: a pair is two vectors, and arrays of `ROWS` are one.
        unsafe {
            let mut largest = [_mm512_set1_ps(f32::NEG_INFINITY); 2];
            for pair in pairs.iter() {
                // Of a NaN and another number the other one: the second operand.
                for (half, largest) in largest.iter_mut().enumerate() {
                    let score = _mm512_loadu_ps(pair.as_ptr().add(half * ROWS));
                    *largest = _mm512_max_ps(score, *largest);
                }
            }
            let sees = (0..seen.len()).filter(|&row| !seen[row].is_empty());
            let sees = sees.fold(0, |mask: __mmask16, row| mask | 1 << row);
            let scale = _mm512_set1_ps(scale);
            // The scale is positive: the largest stays the largest.
            let largest = _mm512_maskz_mul_ps(sees, scale, _mm512_max_ps(largest[1], largest[0]));
            let mut sums = [_mm512_setzero_ps(); 2];
            for pair in pairs.iter_mut() {
                for (half, sum) in sums.iter_mut().enumerate() {
                    let at = pair.as_mut_ptr().add(half * ROWS);
                    let weight = exp(_mm512_fmsub_ps(_mm512_loadu_ps(at), scale, largest));
                    _mm512_storeu_ps(at, weight);
                    *sum = _mm512_add_ps(*sum, weight);
                }
            }
            let [mut of_rows, mut of_sums] = [[0.0; ROWS]; 2];
            _mm512_storeu_ps(of_rows.as_mut_ptr(), largest);
            _mm512_storeu_ps(of_sums.as_mut_ptr(), _mm512_add_ps(sums[0], sums[1]));
            std::array::from_fn(|row| Totals { largest: of_rows[row], sum: of_sums[row] })
        }
    }

    /// [`exp`](crate::exp::exp) of what is not above zero by more than roundings.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn exp(x: __m512) -> __m512 {
        let [log2_e, upper, lower] = EXP_PARTS.map(|part| _mm512_set1_ps(part));
        let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(
            _mm512_mul_ps(x, log2_e),
        );
        let r = _mm512_fnmadd_ps(n, lower, _mm512_fnmadd_ps(n, upper, x));
        let [first, rest @ ..] = EXP_TERMS.map(|term| _mm512_set1_ps(term));
        let p = rest.into_iter().fold(first, |p, term| _mm512_fmadd_ps(p, r, term));
        let p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
        let p = _mm512_add_ps(p, _mm512_set1_ps(1.0));
        // Zero where the function's result would be below the least normal number; NaN is not.
        let there = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(EXP_LEAST));
        _mm512_maskz_scalef_ps(there, p, n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows side by side see different columns; what they do not see is what it should not be.
    #[test]
    fn weights_are_of_what_is_seen() {
        each_way(softmax, &[8, 16]);
        #[cfg(target_arch = "x86_64")]
        if crate::Isa::Avx512.is_available() {
            // SAFETY: the processor has the instructions.
            each_way(
                |_, scores, seen, scale| unsafe { softmax_in_vectors(scores, seen, scale) },
                &[16],
            );
        }
    }

    fn each_way(
        softmax: impl Fn(usize, &mut [f32], &[Range<usize>], f32) -> [Totals; MOST_LANES],
        rows: &[usize],
    ) {
        let seen = [3..8, 0..0, 5..6, 0..9, 8..9];
        let score = |column: usize, row: usize| (column * 7 % 5) as f32 - row as f32;
        for &rows in rows {
            let mut scores = vec![f32::NAN; 12 * rows];
            for (row, seen) in seen.iter().enumerate() {
                for column in seen.clone() {
                    scores[column * rows + row] = score(column, row);
                }
            }
            let totals = softmax(rows, &mut scores, &seen, 0.5);
            for (row, seen) in seen.iter().enumerate() {
                let expected = |column| f64::from(score(column, row)) / 2.0;
                let largest = seen.clone().map(expected).fold(f64::MIN, f64::max);
                let weight = |column| (expected(column) - largest).exp();
                let sum: f64 = seen.clone().map(weight).sum();
                assert!((f64::from(totals[row].sum) - sum).abs() < 1e-5, "row {row}");
                if !seen.is_empty() {
                    assert_eq!(f64::from(totals[row].largest), largest, "row {row}");
                }
                for column in 0..10 {
                    let found = f64::from(scores[column * rows + row]);
                    let expected = match seen.contains(&column) {
                        true => weight(column),
                        false => 0.0,
                    };
                    assert!((found - expected).abs() < 1e-6, "row {row}, column {column}");
                }
            }
        }
    }
}
