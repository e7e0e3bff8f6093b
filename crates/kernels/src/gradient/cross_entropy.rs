//! Cross-entropy of logits and the tokens that were to come, and its backward pass.

use crate::Isa;
use crate::exp::exp;
use crate::loops::{share, share_size};
use crate::simd::for_each_isa;

/// The mean over all rows of `logits [rows, vocabulary]` of `-ln(softmax(logits)[target])`, in f32
/// but for the sum over rows, which is f64; and of each row `ln(Σ e^logit)`. Rows whose target is
/// negative count for nothing; without any other row the mean is 0.
///
/// # Panics
///
/// If a target is not below the vocabulary, if sizes do not fit each other, or if this processor
/// does not have `isa`.
pub fn cross_entropy(isa: Isa, logits: &[f32], targets: &[i64]) -> (f32, Vec<f32>) {
    let width = width(logits, targets);
    let mut sums = vec![0.0; targets.len()];
    let rows = share_size(logits.len(), width) / width;
    share(logits.chunks(rows * width).zip(sums.chunks_mut(rows)), |(logits, sums)| {
        log_sums(isa, logits, sums);
    });
    let counted = || targets.iter().enumerate().filter(|(_, target)| **target >= 0);
    let loss: f64 = counted()
        .map(|(row, &target)| {
            f64::from(sums[row]) - f64::from(logits[row * width + target as usize])
        })
        .sum();
    ((loss / counted().count().max(1) as f64) as f32, sums)
}

/// Writes the gradient of the logits to them: `(softmax(logits) - one at the target) · dy / n`,
/// with `n` the rows that count, and zero in rows that do not. `sums` is what [`cross_entropy`]
/// gave.
///
/// # Panics
///
/// As there.
pub fn cross_entropy_gradient_in_place(
    isa: Isa,
    logits: &mut [f32],
    sums: &[f32],
    targets: &[i64],
    dy: f32,
) {
    let width = width(logits, targets);
    assert_eq!(sums.len(), targets.len(), "each row has a sum");
    let by = dy / targets.iter().filter(|target| **target >= 0).count().max(1) as f32;
    let rows = share_size(logits.len(), width) / width;
    let of_rows = sums.chunks(rows).zip(targets.chunks(rows));
    share(logits.chunks_mut(rows * width).zip(of_rows), |(logits, (sums, targets))| {
        gradient(isa, logits, sums, targets, by);
    });
}

fn width(logits: &[f32], targets: &[i64]) -> usize {
    let width = logits.len().checked_div(targets.len()).unwrap_or(1).max(1);
    assert_eq!(logits.len(), width * targets.len(), "logits of {} targets", targets.len());
    if let Some(target) = targets.iter().find(|target| **target >= width as i64) {
        panic!("cross entropy: target {target} is not below the vocabulary of {width}");
    }
    width
}

for_each_isa! {
    fn log_sums(logits: &[f32], sums: &mut [f32]) {
        const LANES: usize = 16;
        let width = logits.len() / sums.len();
        for (logits, sum) in logits.chunks_exact(width).zip(sums) {
            let (vectors, rest) = logits.as_chunks::<LANES>();
            let mut largest = [f32::NEG_INFINITY; LANES];
            for vector in vectors {
                for (largest, x) in largest.iter_mut().zip(vector) {
                    *largest = if *x > *largest { *x } else { *largest };
                }
            }
            let largest = largest.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| a.max(*b));
            let mut totals = [0.0; LANES];
            for vector in vectors {
                for (total, x) in totals.iter_mut().zip(vector) {
                    *total += exp(x - largest);
                }
            }
            for (total, x) in totals.iter_mut().zip(rest) {
                *total += exp(x - largest);
            }
            *sum = largest + totals.iter().sum::<f32>().ln();
        }
    }
}

for_each_isa! {
    fn gradient(logits: &mut [f32], sums: &[f32], targets: &[i64], by: f32) {
        let width = logits.len() / sums.len();
        for ((logits, sum), &target) in logits.chunks_exact_mut(width).zip(sums).zip(targets) {
            let Ok(target) = usize::try_from(target) else {
                logits.fill(0.0);
                continue;
            };
            for x in logits.iter_mut() {
                *x = exp(*x - sum) * by;
            }
            logits[target] -= by;
        }
    }
}
