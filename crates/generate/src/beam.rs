//! Beam search: the likeliest sequences rather than the likeliest tokens.

mod hypotheses;

use std::collections::HashSet;

pub use self::hypotheses::{BeamSearch, EarlyStopping, Hypothesis};
use self::hypotheses::{Beams, Continuation, Likeliest};
use crate::error::Error;
use crate::language_model::LanguageModel;
use crate::request::{Finish, GenerateError, Request, limit, longest};
use crate::sampling::{Sampler, Sampling, discouraged, first_maximum};

/// Searches for the likeliest answers to each prompt, as transformers does: of every text
/// `num_beams` sequences go on side by side, and those that end are ranked by their score. Gives
/// the best of each text, the best first.
///
/// `ends` says whether a text, by its index, ends with these new tokens, beside tokens that end it.
/// The decoder must be able to hold as many sequences as there are texts times beams; it runs each
/// prompt once. It counts nothing as seen but for the repetition penalty, which is applied to
/// log-probabilities, as in transformers.
///
/// # Errors
/// A search that is impossible, sampling at a temperature above 0, and what
/// [`Generation`](crate::Generation) refuses; what the model returns, and what `ends` says.
pub fn beam_search<D: LanguageModel>(
    decoder: &mut D,
    requests: &[Request],
    search: &BeamSearch,
    mut ends: impl FnMut(usize, &[u32]) -> Result<bool, Error>,
) -> Result<Vec<Vec<Hypothesis>>, GenerateError<D::Error>> {
    check(search)?;
    let longest = longest(decoder, requests);
    let (mut texts, mut rows) = (Vec::with_capacity(requests.len()), 0);
    for request in requests {
        // For its checks.
        Sampler::new(request.sampling)?;
        let Sampling { temperature, frequency_penalty, presence_penalty, .. } = request.sampling;
        if temperature > 0.0 || frequency_penalty.is_some() || presence_penalty.is_some() {
            return Err(Error::BeamSampling.into());
        }
        let (limit, at_limit) = limit(decoder, request, longest)?;
        let seen = decoder.beginning(&request.ids).to_vec();
        let beams = Beams::new(*search, limit, rows);
        rows += beams.running.len();
        texts.push(Text { request, seen, limit, at_limit, beams });
    }
    while rows > 0 {
        let anew = texts.iter().any(|text| {
            let (prompt, mut running) = (text.request.ids.len(), text.beams.running.iter());
            running.any(|beam| decoder.recomputes(prompt, beam.tokens.len()))
        });
        if anew {
            decoder.forget_rows();
        }
        let mut ids: Vec<Vec<u32>> = vec![Vec::new(); rows];
        for text in &texts {
            for beam in &text.beams.running {
                ids[beam.row] = match beam.tokens.last() {
                    Some(last) if !anew => vec![*last],
                    _ => [&text.request.ids, &*beam.tokens].concat(),
                };
            }
        }
        let ids: Vec<&[u32]> = ids.iter().map(|ids| &**ids).collect();
        let mut logits = match decoder.forward_rows(&ids) {
            Err(error) if D::is_stopped(&error) => {
                texts.iter_mut().for_each(|text| text.beams.end(Finish::Stopped));
                break;
            }
            logits => logits.map_err(GenerateError::Model)?,
        };
        let vocabulary = logits.len() / rows;
        let mut moves = Moves { copies: Vec::new(), rows, vacant: Vec::new() };
        for (index, text) in texts.iter_mut().enumerate() {
            if text.beams.running.is_empty() {
                continue;
            }
            let continuations = text.continuations(search, &mut logits, vocabulary)?;
            let held: Vec<usize> = text.beams.running.iter().map(|beam| beam.row).collect();
            let Text { request, limit, at_limit, .. } = *text;
            text.beams.advance(&continuations, |tokens| {
                Ok::<_, Error>(match tokens.last() {
                    Some(last) if request.eos.contains(last) => Some(Finish::Eos),
                    _ if ends(index, tokens)? => Some(Finish::StopString),
                    _ if tokens.len() >= limit => Some(at_limit),
                    _ => None,
                })
            })?;
            if text.beams.are_done() {
                text.beams.running.clear();
            }
            moves.assign(held, &mut text.beams);
        }
        moves.close_gaps(&mut texts);
        let changed = !moves.copies.is_empty() || moves.rows != rows;
        rows = moves.rows;
        if changed && rows > 0 {
            decoder.copy_rows(&moves.copies, rows).map_err(GenerateError::Model)?;
        }
    }
    Ok(texts.into_iter().map(|text| text.beams.into_hypotheses()).collect())
}

fn check(search: &BeamSearch) -> Result<(), Error> {
    let BeamSearch { num_beams, length_penalty, num_return_sequences, .. } = *search;
    let refused = |field, value: String, expected| Err(Error::BeamValue { field, value, expected });
    if num_beams == 0 {
        return refused("num_beams", num_beams.to_string(), "at least 1");
    }
    if !(1..=num_beams).contains(&num_return_sequences) {
        let expected = "at least 1, and no more than num_beams";
        return refused("num_return_sequences", num_return_sequences.to_string(), expected);
    }
    if !length_penalty.is_finite() {
        return refused("length_penalty", length_penalty.to_string(), "a finite number");
    }
    Ok(())
}

/// One of the texts.
struct Text<'r> {
    request: &'r Request,
    /// What a repetition penalty counts, beside new tokens.
    seen: Vec<u32>,
    limit: usize,
    /// Why a sequence of that length ends.
    at_limit: Finish,
    beams: Beams,
}

impl Text<'_> {
    /// The likeliest continuations of all beams, by logits `[rows, vocabulary]`: enough for all
    /// beams to go on, however many end.
    fn continuations(
        &self,
        search: &BeamSearch,
        logits: &mut [f32],
        vocabulary: usize,
    ) -> Result<Vec<Continuation>, Error> {
        let most = search.num_beams * (1 + self.request.eos.len()).max(2);
        let mut likeliest = Likeliest::new(most);
        for (index, beam) in self.beams.running.iter().enumerate() {
            let scores = &mut logits[beam.row * vocabulary..][..vocabulary];
            log_softmax(scores)?;
            if let Some(penalty) = self.request.sampling.repetition_penalty {
                let seen: HashSet<u32> = self.seen.iter().chain(&beam.tokens).copied().collect();
                for token in seen {
                    if let Some(score) = scores.get_mut(token as usize)
                        && score.is_finite()
                    {
                        *score = discouraged(*score, penalty);
                    }
                }
            }
            for (token, &score) in (0..).zip(scores.iter()) {
                let sum = beam.sum + f64::from(score);
                likeliest.offer(Continuation { beam: index, token, sum });
            }
        }
        Ok(likeliest.ranked())
    }
}

/// Logits to log-probabilities, in place.
fn log_softmax(logits: &mut [f32]) -> Result<(), Error> {
    let (_, max) = first_maximum(logits)?;
    let max = f64::from(max);
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    let shift = max + sum.ln();
    for logit in logits {
        *logit = (f64::from(*logit) - shift) as f32;
    }
    Ok(())
}

/// How the decoder's sequences become those of the next pass.
struct Moves {
    copies: Vec<(usize, usize)>,
    /// Sequences by then.
    rows: usize,
    /// Those that nobody goes on from, and nobody took.
    vacant: Vec<usize>,
}

impl Moves {
    /// Gives each beam of a text, whose row is still that of the beam it goes on from, a row of its
    /// own: that one for the first that goes on from it, a copy for others. `held` are the text's
    /// rows so far.
    fn assign(&mut self, held: Vec<usize>, beams: &mut Beams) {
        let mut taken = HashSet::new();
        let went_on: HashSet<usize> = beams.running.iter().map(|beam| beam.row).collect();
        self.vacant.extend(held.into_iter().filter(|row| !went_on.contains(row)));
        for beam in &mut beams.running {
            if taken.insert(beam.row) {
                continue;
            }
            let to = self.vacant.pop().unwrap_or(self.rows);
            self.rows = self.rows.max(to + 1);
            self.copies.push((beam.row, to));
            beam.row = to;
        }
    }

    /// Moves the last sequences to where none is.
    fn close_gaps(&mut self, texts: &mut [Text<'_>]) {
        self.vacant.sort_unstable();
        while let Some(gap) = self.vacant.pop() {
            self.rows -= 1;
            if gap < self.rows {
                self.copies.push((self.rows, gap));
                let beams = texts.iter_mut().flat_map(|text| &mut text.beams.running);
                for beam in beams.filter(|beam| beam.row == self.rows) {
                    beam.row = gap;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
