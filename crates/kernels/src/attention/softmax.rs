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
    let visible = || seen.iter().filter(|seen| !seen.is_empty());
    let Some(start) = visible().map(|seen| seen.start).min() else {
        return [NONE; MOST_LANES];
    };
    let end = visible().map(|seen| seen.end).max().unwrap_or(start);
    // Pairs of columns, counted from the start of the block: sums are of every other column,
    // whoever else sees what.
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
    let (pairs, _) = scores[from * ROWS..to * ROWS].as_chunks_mut::<PAIR>();

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows side by side see different columns; what they do not see is what it should not be.
    #[test]
    fn weights_are_of_what_is_seen() {
        let seen = [3..8, 0..0, 5..6, 0..9, 8..9];
        let score = |column: usize, row: usize| (column * 7 % 5) as f32 - row as f32;
        for rows in [8, 16] {
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
