//! Choosing a token from logits.

use std::collections::{HashMap, HashSet};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::error::{Error, Result};

/// How a token is chosen. The default is greedy: always the likeliest token.
///
/// What is set applies in the order [biases](Sampler::bias), repetition penalty, the other
/// penalties, temperature, top-k, top-p, min-p, as in transformers, which has no other penalties.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sampling {
    /// The logits of tokens that were seen are divided by this where they are positive and
    /// multiplied where they are negative, as in [CTRL](https://arxiv.org/abs/1909.05858): above 1
    /// discourages repetition, below 1 encourages it. Applies at any temperature.
    pub repetition_penalty: Option<f32>,
    /// Taken from the logit of a token for each time that it was chosen, as OpenAI's models do; a
    /// prompt does not count. Below 0 encourages repetition. Applies at any temperature.
    pub frequency_penalty: Option<f32>,
    /// The same once, however often a token was chosen.
    pub presence_penalty: Option<f32>,
    /// Logits are divided by this before they become probabilities; 0 takes the likeliest token and
    /// only the repetition penalty matters beside it.
    pub temperature: f32,
    /// Choose among this many of the likeliest tokens, and those exactly as likely as the last of
    /// them.
    pub top_k: Option<usize>,
    /// Choose among the likeliest tokens whose probabilities first add up to this share, in [0, 1].
    /// There is always one.
    pub top_p: Option<f32>,
    /// Choose among the tokens that are at least this share as likely as the likeliest, in [0, 1].
    pub min_p: Option<f32>,
    /// Start of the random numbers: the same seed and logits give the same tokens.
    pub seed: u64,
}

/// Chooses tokens one after the other.
///
/// Random numbers come from xoshiro256++ seeded through SplitMix64, one 64-bit number for each
/// token chosen at a temperature above 0; both are fixed algorithms on integers, so the numbers are
/// the same on every platform. Probabilities are computed in double precision.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    rng: Xoshiro256PlusPlus,
    /// Tokens that the repetition penalty applies to; stays empty without one.
    seen: HashSet<u32>,
    /// What is added to the logits of tokens.
    biases: Vec<(u32, f32)>,
    /// How often tokens were chosen; stays empty without a penalty for that.
    chosen: HashMap<u32, u32>,
    scratch: SamplerScratch,
}

/// Memory that a sampler works in, as large as a few rows of logits: one sampler after the other
/// can have it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SamplerScratch {
    /// Logits after penalties.
    penalized: Vec<f32>,
    /// Logits to find the k-th largest in.
    ranked: Vec<f32>,
    /// Tokens to choose from and their weights, by ascending token.
    candidates: Vec<Candidate>,
    /// Candidates by descending weight.
    likeliest: Vec<Candidate>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: u32,
    /// Probability up to a common factor; the likeliest token has 1.
    weight: f64,
}

impl Candidate {
    /// Likelier first; of two exactly as likely, the smaller token.
    fn by_rank(&self, other: &Self) -> std::cmp::Ordering {
        other.weight.total_cmp(&self.weight).then(self.token.cmp(&other.token))
    }
}

impl Sampler {
    /// A sampler at the start of its random numbers.
    ///
    /// # Errors
    /// A temperature that is negative or not finite, a repetition penalty that is not finite and
    /// above 0, a top-k of 0, a top-p or min-p outside [0, 1].
    pub fn new(sampling: Sampling) -> Result<Self> {
        let Sampling { repetition_penalty, temperature, top_k, top_p, min_p, seed, .. } = sampling;
        let share = |value: &Option<f32>| value.is_none_or(|value| (0.0..=1.0).contains(&value));
        let check = |field, valid: bool, value: Option<f32>, expected| match valid {
            true => Ok(()),
            false => Err(Error::SamplingValue { field, value: value.unwrap_or(0.0), expected }),
        };
        let valid = temperature.is_finite() && temperature >= 0.0;
        let expected = "0 (always the likeliest token) or a finite number above it";
        check("temperature", valid, Some(temperature), expected)?;
        let valid = repetition_penalty.is_none_or(|value| value.is_finite() && value > 0.0);
        let expected =
            "a finite number above 0 (1 changes nothing, above 1 discourages repetition)";
        check("repetition_penalty", valid, repetition_penalty, expected)?;
        for (field, value) in [
            ("frequency_penalty", sampling.frequency_penalty),
            ("presence_penalty", sampling.presence_penalty),
        ] {
            let valid = value.is_none_or(|value| (-2.0..=2.0).contains(&value));
            check(field, valid, value, "a number from -2 to 2 (0 changes nothing)")?;
        }
        let expected = "at least 1, or none to choose among all tokens";
        check("top_k", top_k != Some(0), None, expected)?;
        let expected = "a number from 0 to 1";
        check("top_p", share(&top_p), top_p, expected)?;
        check("min_p", share(&min_p), min_p, expected)?;
        Ok(Self {
            sampling,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            seen: HashSet::new(),
            biases: Vec::new(),
            chosen: HashMap::new(),
            scratch: SamplerScratch::default(),
        })
    }

    /// The same as [`sample`](Self::sample), in memory that other samplers use too.
    pub(crate) fn sample_in(
        &mut self,
        scratch: &mut SamplerScratch,
        logits: &[f32],
    ) -> Result<u32> {
        std::mem::swap(&mut self.scratch, scratch);
        let token = self.sample(logits);
        std::mem::swap(&mut self.scratch, scratch);
        token
    }

    /// Counts `ids` among the tokens that the repetition penalty applies to. Each token that
    /// [`sample`](Self::sample) chooses is counted by itself; a prompt has to be told.
    pub fn see(&mut self, ids: &[u32]) {
        if self.sampling.repetition_penalty.is_some() {
            self.seen.extend(ids);
        }
    }

    /// Has a number added to the logit of each of these tokens, if there is such a token, before
    /// all else; to no others'. It should be finite: what a constraint excludes stays so.
    pub fn bias(&mut self, biases: Vec<(u32, f32)>) {
        self.biases = biases;
    }

    /// The next token, given `logits` of shape `[vocab]`. A logit of -inf excludes its token.
    ///
    /// # Errors
    /// No logits, a logit that is NaN or +inf, or only logits of -inf.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        let likeliest = self.weigh(logits)?;
        let token = match self.sampling.temperature {
            0.0 => likeliest,
            _ => self.draw(likeliest),
        };
        self.see(&[token]);
        if self.sampling.frequency_penalty.is_some() || self.sampling.presence_penalty.is_some() {
            *self.chosen.entry(token).or_default() += 1;
        }
        Ok(token)
    }

    /// The tokens that [`sample`](Self::sample) would choose from and their probabilities, by
    /// ascending token. No random number is taken, and nothing counts as seen.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn distribution(&mut self, logits: &[f32]) -> Result<Vec<(u32, f64)>> {
        let likeliest = self.weigh(logits)?;
        if self.sampling.temperature == 0.0 {
            return Ok(vec![(likeliest, 1.0)]);
        }
        let total = self.total();
        Ok(self
            .scratch
            .candidates
            .iter()
            .map(|candidate| (candidate.token, candidate.weight / total))
            .collect())
    }

    /// Fills the candidates, at a temperature above 0, with what all filters leave; returns the
    /// likeliest token.
    fn weigh(&mut self, logits: &[f32]) -> Result<u32> {
        let (mut likeliest, mut max) = first_maximum(logits)?;
        let penalized = self.penalize(logits);
        let logits = match &penalized {
            Some(penalized) => {
                (likeliest, max) = first_maximum(penalized)?;
                penalized
            }
            None => logits,
        };
        if self.sampling.temperature > 0.0 {
            self.collect_candidates(logits, max);
            if let Some(top_p) = self.sampling.top_p
                && top_p < 1.0
            {
                self.keep_top_p(f64::from(top_p));
            }
            if let Some(min_p) = self.sampling.min_p {
                // The likeliest token's weight is 1.
                self.scratch.candidates.retain(|candidate| candidate.weight >= f64::from(min_p));
            }
        }
        self.scratch.penalized = penalized.unwrap_or_default();
        Ok(likeliest)
    }

    /// The logits after penalties, in the scratch memory, if there are any. What is finite stays
    /// so.
    fn penalize(&mut self, logits: &[f32]) -> Option<Vec<f32>> {
        let Sampling { repetition_penalty, frequency_penalty, presence_penalty, .. } =
            self.sampling;
        if repetition_penalty.is_none() && self.chosen.is_empty() && self.biases.is_empty() {
            return None;
        }
        let mut penalized = std::mem::take(&mut self.scratch.penalized);
        penalized.clear();
        penalized.extend_from_slice(logits);
        for &(token, more) in &self.biases {
            if let Some(logit) = penalized.get_mut(token as usize)
                && logit.is_finite()
            {
                *logit = (*logit + more).clamp(f32::MIN, f32::MAX);
            }
        }
        for &token in &self.seen {
            // The embedding may have more rows than the head.
            if let Some(logit) = penalized.get_mut(token as usize)
                && logit.is_finite()
            {
                *logit = discouraged(*logit, repetition_penalty.unwrap_or(1.0));
            }
        }
        for (&token, &count) in &self.chosen {
            let logit = &mut penalized[token as usize];
            let taken = frequency_penalty.unwrap_or(0.0) * count as f32;
            *logit = (*logit - taken - presence_penalty.unwrap_or(0.0)).clamp(f32::MIN, f32::MAX);
        }
        Some(penalized)
    }

    /// Fills the candidates with the tokens that top-k leaves.
    fn collect_candidates(&mut self, logits: &[f32], max: f32) {
        let threshold = match self.sampling.top_k {
            Some(k) if k < logits.len() => {
                self.scratch.ranked.clear();
                self.scratch.ranked.extend_from_slice(logits);
                *self.scratch.ranked.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
            }
            _ => f32::NEG_INFINITY,
        };
        let temperature = f64::from(self.sampling.temperature);
        self.scratch.candidates.clear();
        self.scratch.candidates.extend(
            (0..).zip(logits).filter(|&(_, &logit)| logit >= threshold).map(|(token, &logit)| {
                Candidate {
                    token,
                    weight: ((f64::from(logit) - f64::from(max)) / temperature).exp(),
                }
            }),
        );
    }

    /// Drops the candidates beyond the likeliest ones that together reach the share `top_p`; one
    /// always stays.
    fn keep_top_p(&mut self, top_p: f64) {
        let wanted = top_p * self.total();
        self.scratch.likeliest.clear();
        self.scratch.likeliest.extend_from_slice(&self.scratch.candidates);
        // Few tokens carry most of the probability: rank only so many as are needed, in growing
        // batches.
        let (mut sum, mut ranked, mut batch) = (0.0, 0, 256);
        while ranked < self.scratch.likeliest.len() {
            let rest = &mut self.scratch.likeliest[ranked..];
            let count = batch.min(rest.len());
            if count < rest.len() {
                rest.select_nth_unstable_by(count - 1, Candidate::by_rank);
            }
            let rest = &mut rest[..count];
            rest.sort_unstable_by(Candidate::by_rank);
            for last in rest {
                sum += last.weight;
                if sum >= wanted {
                    let last = *last;
                    self.scratch.candidates.retain(|candidate| candidate.by_rank(&last).is_le());
                    return;
                }
            }
            ranked += count;
            batch *= 8;
        }
    }

    fn total(&self) -> f64 {
        self.scratch.candidates.iter().map(|candidate| candidate.weight).sum()
    }

    /// One candidate, each with its share of the total weight. Rounding can leave the sum short of
    /// the number drawn; then it is `likeliest`.
    fn draw(&mut self, likeliest: u32) -> u32 {
        // The top 53 bits: a multiple of 2^-53 in [0, 1).
        let uniform = (self.rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
        let mut rest = uniform * self.total();
        for candidate in &self.scratch.candidates {
            if rest < candidate.weight {
                return candidate.token;
            }
            rest -= candidate.weight;
        }
        likeliest
    }
}

/// What a repetition penalty makes of a finite logit, or log-probability.
pub(crate) fn discouraged(logit: f32, penalty: f32) -> f32 {
    let scaled = if logit < 0.0 { logit * penalty } else { logit / penalty };
    scaled.clamp(f32::MIN, f32::MAX)
}

/// The first token with the largest logit, and that logit, which is finite.
pub(crate) fn first_maximum(logits: &[f32]) -> Result<(u32, f32)> {
    let refused = |reason: String| Err(Error::BadLogits { reason });
    let (mut best, mut max) = (0, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if logit.is_nan() || logit == f32::INFINITY {
            return refused(format!(
                "the model's logit for token {token} is {logit}: the weights are damaged, or overflowed"
            ));
        }
        if logit > max {
            (best, max) = (token as u32, logit);
        }
    }
    if max == f32::NEG_INFINITY {
        return refused(match logits.len() {
            0 => "the model gave no logits: its vocabulary is empty".to_owned(),
            n => format!(
                "all {n} logits of the model are -inf: the weights are damaged, or overflowed"
            ),
        });
    }
    Ok((best, max))
}
