//! What a block of columns comes to for a row of queries, and how those of several blocks are put
//! together.

use crate::exp::exp;

/// Elements that a row of a partial is padded to: lanes of the widest vector.
const PAD: usize = 16;

/// Elements of a partial: the sum of weighted values, padded; then [`Totals`], padded too.
pub(super) fn partial_len(width: usize) -> usize {
    width.next_multiple_of(PAD) + PAD
}

/// The end of a partial.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    /// The largest score.
    pub largest: f32,
    /// The sum of weights; zero if the row saw nothing.
    pub sum: f32,
}

impl Totals {
    pub fn of(partial: &[f32]) -> Totals {
        let at = partial.len() - PAD;
        Totals { largest: partial[at], sum: partial[at + 1] }
    }

    pub fn write(self, partial: &mut [f32]) {
        let at = partial.len() - PAD;
        (partial[at], partial[at + 1]) = (self.largest, self.sum);
    }
}

/// Folds the partial of a later block into that of earlier ones.
#[inline(always)]
pub(super) fn fold(earlier: &mut [f32], later: &[f32]) {
    let (old, new) = (Totals::of(earlier), Totals::of(later));
    if new.sum == 0.0 {
        return;
    }
    if old.sum == 0.0 {
        earlier.copy_from_slice(later);
        return;
    }
    let largest = match new.largest > old.largest {
        true => new.largest,
        false => old.largest,
    };
    let (by_old, by_new) = (exp(old.largest - largest), exp(new.largest - largest));
    let values = earlier.len() - PAD;
    for (earlier, later) in earlier[..values].iter_mut().zip(&later[..values]) {
        *earlier = *earlier * by_old + *later * by_new;
    }
    let sum = old.sum * by_old + new.sum * by_new;
    Totals { largest, sum }.write(earlier);
}

/// Writes the result of a row, of whose softmax a sink takes a share; zeros if it saw nothing.
#[inline(always)]
pub(super) fn finish(partial: &[f32], sink: Option<f32>, y: &mut [f32]) {
    let Totals { largest, sum } = Totals::of(partial);
    if sum == 0.0 {
        y.fill(0.0);
        return;
    }
    // Above all scores by more than an f32 can hold, it leaves nothing to them: the weight is
    // infinite.
    let sum = sink.map_or(sum, |sink| sum + exp(sink - largest));
    for (y, value) in y.iter_mut().zip(partial) {
        *y = value / sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: f32, totals: Totals) -> Vec<f32> {
        let mut row = vec![value; partial_len(5)];
        totals.write(&mut row);
        row
    }

    #[test]
    fn blocks_are_weighted_by_what_they_saw() {
        let nothing = of(9.0, Totals { largest: 50.0, sum: 0.0 });
        let (a, b) = (Totals { largest: 1.0, sum: 2.0 }, Totals { largest: 3.0, sum: 4.0 });
        // Of values 1 and 2, each times the sum of its weights.
        let (first, second) = (of(2.0, a), of(8.0, b));
        let less = (-2f32).exp();
        let expected = (2.0 * less + 8.0) / (2.0 * less + 4.0);
        for [earlier, later] in [[&first, &second], [&second, &first]] {
            let mut folded = nothing.clone();
            for later in [earlier, &nothing, later] {
                fold(&mut folded, later);
            }
            let mut y = [0.0; 5];
            finish(&folded, None, &mut y);
            assert!(y.iter().all(|y| (y - expected).abs() < 1e-6), "{y:?}");
            let with_sink = expected * (2.0 * less + 4.0) / (2.0 * less + 4.0 + 1f32.exp());
            finish(&folded, Some(4.0), &mut y);
            assert!(y.iter().all(|y| (y - with_sink).abs() < 1e-6), "{y:?}");
            finish(&folded, Some(1000.0), &mut y);
            assert_eq!(y, [0.0; 5]);
        }
        let mut y = [1.0; 5];
        finish(&nothing, Some(1.0), &mut y);
        assert_eq!(y, [0.0; 5]);
    }
}
