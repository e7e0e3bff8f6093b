//! How likely a token is, by the logits before it.

use std::ops::Range;

use crate::exp::exp;

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
    /// That of a token by all logits `[vocabulary]`, with the `top` likeliest tokens. A logit of -inf is a probability of 0.
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

/// What one row's logits have come to so far, taken one after the other.
#[derive(Debug, Clone)]
pub(crate) struct LogitSum {
    largest: f32,
    /// Of `exp(logit - largest)`.
    exponentials: f64,
    target: f32,
}

impl Default for LogitSum {
    fn default() -> Self {
        Self { largest: f32::NEG_INFINITY, exponentials: 0.0, target: 0.0 }
    }
}

impl LogitSum {
    /// Takes the logits of some tokens.
    pub(crate) fn add(&mut self, logits: &[f32], tokens: &Range<usize>, target: u32) {
        for &logit in logits {
            if logit > self.largest {
                self.exponentials *= f64::from(exp(self.largest - logit));
                self.largest = logit;
            }
            if logit > f32::NEG_INFINITY {
                self.exponentials += f64::from(exp(logit - self.largest));
            }
        }
        if let Some(at) = (target as usize).checked_sub(tokens.start)
            && let Some(logit) = logits.get(at)
        {
            self.target = *logit;
        }
    }

    /// The logarithm of the sum of all exponentials.
    pub(crate) fn normalizer(&self) -> f64 {
        f64::from(self.largest) + self.exponentials.ln()
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
}
