//! How well a model predicts a text.

use std::ops::{ControlFlow, Range};

use serde::Serialize;

use crate::pipeline::{Pipeline, PipelineError, ScoredText};

/// How a text is cut into windows, each of which is scored by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoreWindows {
    /// Tokens of a window, at least 2.
    pub context: usize,
    /// Tokens from the beginning of one window to that of the next. If it is less than the context,
    /// windows overlap, and of each only those tokens are scored that none before it has.
    pub stride: usize,
    /// Windows that run side by side.
    pub batch: usize,
}

/// How well a model predicted tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Perplexity {
    /// Tokens that were predicted.
    pub tokens: u64,
    /// The negative natural logarithms of their probabilities, added up.
    pub nats: f64,
    /// The same of their squares.
    squares: f64,
}

impl Perplexity {
    fn add(&mut self, logprob: f32) {
        let nats = -f64::from(logprob);
        self.tokens += 1;
        self.nats += nats;
        self.squares += nats * nats;
    }

    /// The mean of the logarithms, in nats: the cross-entropy of a token.
    pub fn loss(&self) -> f64 {
        self.nats / self.tokens as f64
    }

    /// The perplexity: e to the loss.
    pub fn value(&self) -> f64 {
        self.loss().exp()
    }

    /// The standard error of the perplexity, as if tokens were independent; 0 of fewer than two
    /// tokens.
    pub fn standard_error(&self) -> f64 {
        let tokens = self.tokens as f64;
        let variance = (self.squares / tokens - self.loss().powi(2)).max(0.0);
        let of_loss = (variance / (tokens - 1.0).max(1.0)).sqrt();
        self.value() * of_loss
    }
}

impl ScoreWindows {
    /// The windows of a text of so many tokens, and of each the first token that is scored.
    pub fn of(self, tokens: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
        let Self { context, stride, .. } = self;
        let mut next = (tokens > 1).then_some(0_usize);
        let mut scored = 0;
        std::iter::from_fn(move || {
            let start = next?;
            let end = tokens.min(start.saturating_add(context));
            let from = scored.max(start + 1);
            scored = end;
            next = (end < tokens).then(|| start + stride.min(context).max(1));
            Some((start..end, from))
        })
    }
}

impl Pipeline {
    /// How well the model predicts a text: [windows](ScoreWindows) of it are [scored](Self::score),
    /// each token by those before it in its window. That is how transformers' documentation
    /// measures it. `observe` is told after each pass how many tokens there are so far, and may end
    /// it.
    ///
    /// # Errors
    /// As [`score`](Self::score).
    pub fn perplexity(
        &mut self,
        ids: &[u32],
        windows: ScoreWindows,
        mut observe: impl FnMut(&Perplexity) -> ControlFlow<()>,
    ) -> Result<Perplexity, PipelineError> {
        let mut sum = Perplexity::default();
        let windows_of_text: Vec<_> = windows.of(ids.len()).collect();
        for side_by_side in windows_of_text.chunks(windows.batch.max(1)) {
            let text = |(range, from): &(Range<usize>, usize)| ScoredText {
                ids: &ids[range.clone()],
                from: from - range.start,
            };
            let texts: Vec<_> = side_by_side.iter().map(text).collect();
            let scores = self.score(&texts, 0)?;
            scores.iter().flatten().for_each(|score| sum.add(score.logprob));
            if observe(&sum).is_break() {
                break;
            }
        }
        self.clear();
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(context: usize, stride: usize, tokens: usize) -> Vec<(Range<usize>, usize)> {
        ScoreWindows { context, stride, batch: 1 }.of(tokens).collect()
    }

    #[test]
    fn every_token_is_scored_once_behind_as_many_as_there_are() {
        assert_eq!(windows(4, 4, 10), [(0..4, 1), (4..8, 5), (8..10, 9)]);
        assert_eq!(windows(4, 2, 9), [(0..4, 1), (2..6, 4), (4..8, 6), (6..9, 8)]);
        assert_eq!(windows(4, 9, 8), [(0..4, 1), (4..8, 5)]);
        assert_eq!(windows(9, 3, 5), [(0..5, 1)]);
        assert_eq!((windows(4, 4, 1), windows(4, 4, 0)), (vec![], vec![]));
        // One token is left over: there is nothing before it.
        assert_eq!(windows(4, 4, 5), [(0..4, 1), (4..5, 5)]);
    }

    #[test]
    fn the_error_is_that_of_a_mean() {
        let mut sum = Perplexity::default();
        [-1.0, -3.0].into_iter().for_each(|logprob| sum.add(logprob));
        assert_eq!((sum.tokens, sum.loss()), (2, 2.0));
        assert!((sum.value() - 2f64.exp()).abs() < 1e-12);
        assert!((sum.standard_error() - 2f64.exp()).abs() < 1e-12);
    }
}
