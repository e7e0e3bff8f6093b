//! The beams of one text: which go on, and which have ended.

use crate::request::{Finish, text_tokens};

/// When a beam search ends that has found as many ended sequences as beams; `early_stopping` in
/// transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EarlyStopping {
    /// Once no beam, at its present length, scores above the worst of them: `false`.
    #[default]
    Unlikely,
    /// At once: `true`.
    AtOnce,
    /// Once no beam could score above the worst of them at any length: `"never"`.
    Never,
}

/// How beam search goes. Fields carry the names of transformers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamSearch {
    /// Sequences that each text is continued by at once; at least 1.
    pub num_beams: usize,
    /// The exponent of the length that sums of log-probabilities are divided by: above 0 favours
    /// long sequences. Finite.
    pub length_penalty: f32,
    /// When the search ends.
    pub early_stopping: EarlyStopping,
    /// The most sequences to return of each text: at least 1, and no more than beams.
    pub num_return_sequences: usize,
}

impl BeamSearch {
    /// As many beams, without a preference but for the mean log-probability of a token; the best
    /// sequence.
    pub fn new(num_beams: usize) -> Self {
        Self {
            num_beams,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::default(),
            num_return_sequences: 1,
        }
    }
}

/// A sequence that a beam search found.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// The new tokens, with the one that ended the text.
    pub tokens: Vec<u32>,
    /// The sum of the tokens' log-probabilities, divided by their number to the power of the length
    /// penalty.
    pub score: f64,
    /// Why it ended.
    pub finish: Finish,
}

impl Hypothesis {
    /// The new tokens that are text: all but the one that ended it.
    pub fn text_tokens(&self) -> &[u32] {
        text_tokens(&self.tokens, self.finish)
    }
}

/// A sequence that goes on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Beam {
    /// The new tokens.
    pub tokens: Vec<u32>,
    /// The sum of their log-probabilities.
    pub sum: f64,
    /// The decoder's sequence.
    pub row: usize,
}

/// A beam and a token that it could go on with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Continuation {
    /// The beam's index.
    pub beam: usize,
    pub token: u32,
    /// The sum of log-probabilities with the token.
    pub sum: f64,
}

impl Continuation {
    /// Likelier first; else in order of beams and tokens.
    fn by_rank(&self, other: &Self) -> std::cmp::Ordering {
        let order = other.sum.total_cmp(&self.sum);
        order.then((self.beam, self.token).cmp(&(other.beam, other.token)))
    }
}

/// The likeliest continuations of those that are offered.
#[derive(Debug)]
pub(super) struct Likeliest {
    most: usize,
    kept: Vec<Continuation>,
    /// What another one has to be above.
    least: f64,
}

impl Likeliest {
    pub fn new(most: usize) -> Self {
        Self { most, kept: Vec::new(), least: f64::NEG_INFINITY }
    }

    pub fn offer(&mut self, continuation: Continuation) {
        if continuation.sum > self.least {
            self.kept.push(continuation);
            if self.kept.len() >= 2 * self.most {
                self.prune();
            }
        }
    }

    /// The likeliest first.
    pub fn ranked(mut self) -> Vec<Continuation> {
        self.prune();
        self.kept
    }

    fn prune(&mut self) {
        self.kept.sort_unstable_by(Continuation::by_rank);
        self.kept.truncate(self.most);
        if self.kept.len() == self.most {
            self.least = self.kept.last().map_or(self.least, |last| last.sum);
        }
    }
}

/// The beams of one text.
#[derive(Debug)]
pub(super) struct Beams {
    search: BeamSearch,
    /// The most new tokens.
    limit: usize,
    /// In no particular order. Empty if none can go on.
    pub running: Vec<Beam>,
    /// The best first, at most as many as beams.
    ended: Vec<Hypothesis>,
}

impl Beams {
    /// A text that the decoder's sequence `row` begins, unless it may have no tokens.
    pub fn new(search: BeamSearch, limit: usize, row: usize) -> Self {
        let mut beams = Self { search, limit, running: Vec::new(), ended: Vec::new() };
        beams.running.push(Beam { tokens: Vec::new(), sum: 0.0, row });
        if limit == 0 {
            beams.end(Finish::Length);
        }
        beams
    }

    /// Goes on with the likeliest continuations, the likeliest first. `ends` says for what reason a
    /// sequence ends, if it does. A beam's row is that of the one it goes on from.
    pub fn advance<E>(
        &mut self,
        continuations: &[Continuation],
        mut ends: impl FnMut(&[u32]) -> Result<Option<Finish>, E>,
    ) -> Result<(), E> {
        let BeamSearch { num_beams, .. } = self.search;
        let mut running = Vec::with_capacity(num_beams);
        for (rank, continuation) in continuations.iter().enumerate() {
            let beam = &self.running[continuation.beam];
            let mut tokens = beam.tokens.clone();
            tokens.push(continuation.token);
            match ends(&tokens)? {
                // The others are there to go on, should these all end.
                Some(finish) if rank < num_beams => {
                    let score = self.score(continuation.sum, tokens.len());
                    self.ended.push(Hypothesis { tokens, score, finish });
                }
                None if running.len() < num_beams => {
                    running.push(Beam { tokens, sum: continuation.sum, row: beam.row });
                }
                _ => {}
            }
        }
        self.running = running;
        self.rank();
        Ok(())
    }

    /// Ends all beams where they are.
    pub fn end(&mut self, finish: Finish) {
        for beam in std::mem::take(&mut self.running) {
            let score = self.score(beam.sum, beam.tokens.len().max(1));
            self.ended.push(Hypothesis { tokens: beam.tokens, score, finish });
        }
        self.rank();
    }

    fn rank(&mut self) {
        self.ended.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.ended.truncate(self.search.num_beams);
    }

    fn score(&self, sum: f64, length: usize) -> f64 {
        sum / (length as f64).powf(f64::from(self.search.length_penalty))
    }

    /// Whether going on cannot, or need not, make the result better.
    pub fn are_done(&self) -> bool {
        let sums = self.running.iter().map(|beam| beam.sum);
        let Some(best) = sums.reduce(f64::max) else {
            return true;
        };
        let Some(worst) = self.ended.get(self.search.num_beams - 1) else {
            return false;
        };
        let length = self.running[0].tokens.len();
        let length = match self.search.early_stopping {
            EarlyStopping::AtOnce => return true,
            EarlyStopping::Never if self.search.length_penalty > 0.0 => self.limit,
            _ => length,
        };
        self.score(best, length) <= worst.score
    }

    /// The best sequences, the best first.
    pub fn into_hypotheses(mut self) -> Vec<Hypothesis> {
        self.ended.truncate(self.search.num_return_sequences);
        self.ended
    }
}
