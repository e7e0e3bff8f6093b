//! How likely a token is, by the logits before it.

use std::f64::consts::{LN_2, LOG2_E};
use std::ops::Range;

use crate::Isa;
use crate::exp::EXP_TERMS;
use crate::simd::for_each_isa;

/// How likely a token is, and which ones are the likeliest.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenScore {
    /// The token.
    pub token: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The likeliest tokens with theirs, the likeliest first; of equals the smaller token.
    pub top: Vec<(u32, f32)>,
}

impl TokenScore {
    /// That of a token by all logits `[vocabulary]`, with the `top` likeliest tokens. A logit
    /// of -inf is a probability of 0.
    ///
    /// # Panics
    ///
    /// If there is no logit of the token.
    pub fn of_logits(logits: &[f32], token: u32, top: usize) -> Self {
        assert!((token as usize) < logits.len(), "score: no such token");
        let mut scorer = TokenScorer::new(top);
        scorer.add(logits, &(0..logits.len()), token);
        scorer.score(token)
    }
}

/// Sums of exponentials that are apart, by the number of the token: as many as a vector has at
/// most.
const LANES: usize = 8;

/// What one row's logits have come to so far, taken one after the other.
///
/// Sums are kept as multiples of a power of two, which another one changes exactly: they do not
/// depend by a bit on how logits are cut.
#[derive(Debug, Clone)]
pub(crate) struct LogitSum {
    /// Of `exp(logit) / 2^scale`.
    exponentials: [f64; LANES],
    /// A whole number.
    scale: f64,
    target: f32,
}

impl Default for LogitSum {
    fn default() -> Self {
        Self { exponentials: [0.0; LANES], scale: f64::NEG_INFINITY, target: 0.0 }
    }
}

impl LogitSum {
    /// Takes the logits of some tokens.
    pub(crate) fn add(&mut self, logits: &[f32], tokens: &Range<usize>, target: u32) {
        add_exponentials(
            Isa::detected(),
            &mut self.exponentials,
            &mut self.scale,
            tokens.start % LANES,
            logits,
        );
        if let Some(at) = (target as usize).checked_sub(tokens.start)
            && let Some(logit) = logits.get(at)
        {
            self.target = *logit;
        }
    }

    /// The logarithm of the sum of all exponentials.
    pub(crate) fn normalizer(&self) -> f64 {
        self.scale * LN_2 + self.exponentials.iter().sum::<f64>().ln()
    }

    /// The negative logarithm of the target's probability.
    pub(crate) fn loss(&self) -> f64 {
        self.normalizer() - f64::from(self.target)
    }
}

/// The same with the likeliest tokens.
#[derive(Debug, Clone)]
pub(crate) struct TokenScorer {
    sum: LogitSum,
    most: usize,
    /// Tokens and their logits, the likeliest first.
    top: Vec<(u32, f32)>,
}

impl TokenScorer {
    pub(crate) fn new(most: usize) -> Self {
        Self { sum: LogitSum::default(), most, top: Vec::with_capacity(most) }
    }

    /// Takes the logits of some tokens, which come behind those before.
    pub(crate) fn add(&mut self, logits: &[f32], tokens: &Range<usize>, target: u32) {
        self.sum.add(logits, tokens, target);
        if self.most == 0 {
            return;
        }
        for (token, &logit) in (tokens.start as u32..).zip(logits) {
            let full = self.top.len() == self.most;
            if full && self.top.last().is_none_or(|(_, least)| logit <= *least) {
                continue;
            }
            let place = self.top.partition_point(|(_, other)| *other >= logit);
            if full {
                self.top.pop();
            }
            self.top.insert(place, (token, logit));
        }
    }

    pub(crate) fn score(&self, token: u32) -> TokenScore {
        let normalizer = self.sum.normalizer();
        let logprob = |logit: f32| (f64::from(logit) - normalizer) as f32;
        let top = self.top.iter().map(|&(token, logit)| (token, logprob(logit))).collect();
        TokenScore { token, logprob: logprob(self.sum.target), top }
    }
}

for_each_isa! {
    /// Adds exponentials to the sums, the first one to that of lane `first`.
    fn add_exponentials(
        sums: &mut [f64; LANES],
        scale: &mut f64,
        first: usize,
        logits: &[f32],
    ) {
        // No exponential is more than twice the scale.
        let largest = logits.iter().fold(f32::NEG_INFINITY, |all, &logit| if logit > all { logit } else { all });
        let larger = scale.max(nearest_power(bounded(largest)));
        sums.iter_mut().for_each(|sum| *sum *= power_of_two(*scale - larger));
        *scale = larger;
        let (before, logits) = logits.split_at(logits.len().min((LANES - first) % LANES));
        let add = |sums: &mut [f64], logits: &[f32]| {
            for (sum, logit) in sums.iter_mut().zip(logits) {
                *sum += exponential(*logit, larger);
            }
        };
        add(&mut sums[first..], before);
        let (whole, rest) = logits.as_chunks::<LANES>();
        for logits in whole {
            add(sums, logits);
        }
        add(sums, rest);
    }
}

/// A number to which this is added has its nearest integer in its low bits.
const TO_INTEGER: f64 = 6_755_399_441_055_744.0;

/// A logit as a number that is not too large for what is done with it.
#[inline(always)]
fn bounded(logit: f32) -> f64 {
    // Beyond these neighbours are a quarter apart.
    const MOST: f64 = 4e6;
    let x = f64::from(logit);
    // Comparisons keep NaN.
    let x = if x > MOST { MOST } else { x };
    if x < -MOST { -MOST } else { x }
}

/// The power of two that is nearest to `eˣ`.
#[inline(always)]
fn nearest_power(x: f64) -> f64 {
    (x * LOG2_E + TO_INTEGER) - TO_INTEGER
}

/// `2ⁿ` of a whole number up to 1023; of one below -1022 as of that.
#[inline(always)]
fn power_of_two(n: f64) -> f64 {
    let n = if n < -1022.0 { -1022.0 } else { n };
    f64::from_bits(((n + TO_INTEGER).to_bits() << 52).wrapping_add(1023 << 52))
}

/// `exp(logit) / 2^scale`, as near as [`exp`](crate::exp::exp).
#[inline(always)]
fn exponential(logit: f32, scale: f64) -> f64 {
    let x = bounded(logit);
    let n = nearest_power(x);
    let r = x - n * LN_2;
    let [first, rest @ ..] = EXP_TERMS.map(f64::from);
    let mut p = first;
    for term in rest {
        p = p * r + term;
    }
    (p * (r * r) + r + 1.0) * power_of_two(n - scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_first_and_probabilities_add_up() {
        let logits = [0.0, 2.0, f32::NEG_INFINITY, 2.0, -1.0];
        let score = TokenScore::of_logits(&logits, 3, 5);
        let tokens: Vec<u32> = score.top.iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, [1, 3, 0, 4, 2]);
        assert_eq!(score.logprob, score.top[1].1);
        assert_eq!(score.top[4].1, f32::NEG_INFINITY);
        let sum: f32 = score.top.iter().map(|(_, logprob)| logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        let e = |x: f64| x.exp();
        let exact = 2.0 - (e(0.0) + 2.0 * e(2.0) + e(-1.0)).ln();
        assert!((f64::from(score.logprob) - exact).abs() < 1e-6);
        assert_eq!(TokenScore::of_logits(&logits, 3, 2).top, score.top[..2]);
        assert_eq!(TokenScore::of_logits(&logits, 3, 0).top, []);
    }

    #[test]
    fn it_does_not_matter_how_logits_are_cut() {
        let logits: Vec<f32> = (0..500u32).map(|i| (i * 7919 % 97) as f32 / 9.0 - 4.0).collect();
        let whole = TokenScore::of_logits(&logits, 123, 9);
        for piece in [1, 7, 64, 499] {
            let mut scorer = TokenScorer::new(9);
            for (index, logits) in logits.chunks(piece).enumerate() {
                scorer.add(logits, &(index * piece..index * piece + logits.len()), 123);
            }
            assert_eq!(scorer.score(123), whole);
        }
    }

    #[test]
    fn large_and_small_logits_lose_nothing() {
        for (logits, expected) in [
            (vec![-9e3, -1e30, 2e4, 2e4 - 1.0], -(1.0 + (-1f64).exp()).ln()),
            (vec![-2e3, f32::NEG_INFINITY, -2e3, f32::NEG_INFINITY], -2f64.ln()),
            (
                vec![88.0, 0.0, 88.0, 87.0, 88.5],
                -0.5 - (1.0 + 2.0 * (-0.5f64).exp() + (-1.5f64).exp()).ln(),
            ),
        ] {
            for piece in 1..=logits.len() {
                let mut sum = LogitSum::default();
                for (index, logits) in logits.chunks(piece).enumerate() {
                    sum.add(logits, &(index * piece..index * piece + logits.len()), 2);
                }
                assert!(
                    (-sum.loss() - expected).abs() < 1e-6,
                    "{logits:?}: {} {expected}",
                    sum.loss()
                );
            }
        }
        let mut sum = LogitSum::default();
        sum.add(&[1.0, f32::NAN], &(0..2), 0);
        assert!(sum.loss().is_nan());
    }
}
