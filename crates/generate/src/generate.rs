//! The loop: prompts in, one token after the other out.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::time::Instant;

use outsize_kernels::TokenScore;

use crate::constraint::{Constrained, ConstrainedText};
use crate::error::Error;
use crate::language_model::LanguageModel;
use crate::request::{Finish, GenerateError, Outcome, Request, limit, longest};
use crate::sampling::{Sampler, SamplerScratch};

/// Rows and their new tokens.
pub type NewTokens = Vec<(usize, u32)>;

/// Texts that grow side by side, each as it would alone, by a token at every
/// [`advance`](Self::advance). One that ends leaves the others.
#[derive(Debug)]
pub struct Generation<'d, D> {
    decoder: &'d mut D,
    rows: Vec<GenerationRow>,
    /// The rows that the decoder's sequences are, in its order.
    live: Vec<usize>,
    /// Those that have not begun, or begin anew.
    new: Vec<usize>,
    scratch: SamplerScratch,
}

/// One of the texts.
#[derive(Debug)]
struct GenerationRow {
    request: Request,
    sampler: Sampler,
    constraint: Option<ConstrainedText>,
    /// The likeliest tokens that each score has, if tokens are scored.
    scored: Option<usize>,
    limit: usize,
    outcome: Outcome,
    ended: bool,
}

impl<'d, D: LanguageModel> Generation<'d, D> {
    /// Texts that go on from the prompts of `requests`. Nothing is computed yet.
    ///
    /// The prompts and the new tokens together never exceed [`LanguageModel::context`], if there is
    /// one. Of several texts each counts as long as the longest prompt and its own new tokens.
    ///
    /// # Errors
    /// An empty prompt, a prompt that leaves no room in the context, sampling values out of range.
    pub fn new(
        decoder: &'d mut D,
        requests: Vec<Request>,
    ) -> Result<Self, GenerateError<D::Error>> {
        let longest = longest(decoder, &requests);
        let rows =
            requests.into_iter().map(|request| GenerationRow::new(decoder, request, longest));
        let rows = rows.collect::<Result<Vec<_>, Error>>()?;
        let new = (0..rows.len()).filter(|row| !rows[*row].ended).collect();
        Ok(Self { decoder, rows, live: Vec::new(), new, scratch: SamplerScratch::default() })
    }

    /// Begins another text, in the place of one that has ended or as a further row, where texts
    /// [are replaced](LanguageModel::replaces_rows) or all have ended. Gives what the one before
    /// has.
    ///
    /// # Errors
    /// As [`new`](Self::new); the row stays as it was.
    ///
    /// # Panics
    /// If there is no such row, and it is not the next one either, or if its text has not ended.
    pub fn replace(
        &mut self,
        row: usize,
        request: Request,
    ) -> Result<Option<Outcome>, GenerateError<D::Error>> {
        self.leave().map_err(GenerateError::Model)?;
        let longest = self.decoder.beginning(&request.ids).len();
        let new = GenerationRow::new(self.decoder, request, longest)?;
        if !new.ended {
            self.new.push(row);
        }
        if row == self.rows.len() {
            self.rows.push(new);
            return Ok(None);
        }
        assert!(self.rows[row].ended, "a text that has not ended is not replaced");
        Ok(Some(std::mem::replace(&mut self.rows[row], new).outcome))
    }

    /// Has a text that has not begun be what a constraint asks for.
    pub(crate) fn constrain(&mut self, row: usize, constraint: Option<ConstrainedText>) {
        self.rows[row].constraint = constraint;
    }

    /// Has the tokens of a text that has not begun be scored, each with so many of the likeliest
    /// ones.
    pub(crate) fn score(&mut self, row: usize, top: Option<usize>) {
        self.rows[row].scored = top;
    }

    /// Has numbers added to the logits of tokens of a text that has not begun: as
    /// [`Sampler::bias`].
    pub(crate) fn bias(&mut self, row: usize, biases: Vec<(u32, f32)>) {
        self.rows[row].sampler.bias(biases);
    }

    /// What generates.
    pub(crate) fn decoder(&self) -> &D {
        self.decoder
    }

    /// Which of the decoder's sequences a row is, from its first pass on until another one begins
    /// or ends.
    pub(crate) fn sequence(&self, row: usize) -> Option<usize> {
        self.live.iter().position(|live| *live == row)
    }

    /// Runs one pass. Gives the row and the new token of each text that has one, except tokens that
    /// end a text; `None` if all have ended. The last new token of a text is not given to the
    /// model.
    ///
    /// # Errors
    /// What the model returns, and logits that are not numbers. All texts have then ended.
    pub fn advance(&mut self) -> Result<Option<NewTokens>, GenerateError<D::Error>> {
        let pass = self.pass();
        if pass.is_err() {
            self.live.clear();
            self.new.clear();
        }
        pass
    }

    fn pass(&mut self) -> Result<Option<NewTokens>, GenerateError<D::Error>> {
        self.leave().map_err(GenerateError::Model)?;
        self.begin_anew();
        let started = Instant::now();
        let (running, logits) = match (self.new.is_empty(), self.live.is_empty()) {
            (true, true) => return Ok(None),
            (true, false) => {
                let last = |row: &usize| self.rows[*row].last();
                let ids: Vec<&[u32]> = self.live.iter().map(last).collect();
                (self.live.clone(), self.decoder.forward_rows(&ids))
            }
            (false, _) => {
                let texts: Vec<_> = self.new.iter().map(|row| self.rows[*row].text()).collect();
                let ids: Vec<&[u32]> = texts.iter().map(|text| &**text).collect();
                (self.new.clone(), self.decoder.begin_rows(self.live.len(), &ids))
            }
        };
        let mut logits = match logits {
            Err(error) if D::is_stopped(&error) => {
                let live = std::mem::take(&mut self.live);
                for row in live.into_iter().chain(std::mem::take(&mut self.new)) {
                    self.end(row, Finish::Stopped);
                }
                return Ok(None);
            }
            logits => logits.map_err(GenerateError::Model)?,
        };
        self.live.append(&mut self.new);
        let vocabulary = logits.len() / running.len();
        let mut chosen = Vec::with_capacity(running.len());
        for (index, number) in running.into_iter().enumerate() {
            let row = &mut self.rows[number];
            let logits = &mut logits[index * vocabulary..][..vocabulary];
            if !row.constrain(logits) {
                continue;
            }
            let token = row.sampler.sample_in(&mut self.scratch, logits)?;
            if let Some(top) = row.scored {
                row.outcome.scores.push(TokenScore::of_logits(logits, token, top));
            }
            if !row.push(token, started) {
                chosen.push((number, token));
            }
        }
        Ok(Some(chosen))
    }

    /// Takes the rows that ended, or that begin anew beside others, out of the decoder. The last
    /// ones take their places.
    fn leave(&mut self) -> Result<(), D::Error> {
        let beside = self.decoder.replaces_rows();
        let leaves = |row: &GenerationRow| row.ended || beside && row.is_recomputed(&*self.decoder);
        let (held, mut copies, mut at) = (self.live.len(), Vec::new(), 0);
        while at < self.live.len() {
            if !leaves(&self.rows[self.live[at]]) {
                at += 1;
                continue;
            }
            self.new.push(self.live.swap_remove(at));
            if self.live.get(at).is_some_and(|moved| !leaves(&self.rows[*moved])) {
                copies.push((self.live.len(), at));
            }
        }
        self.new.retain(|row| !self.rows[*row].ended);
        match (1..held).contains(&self.live.len()) {
            true => self.decoder.copy_rows(&copies, self.live.len()),
            false => Ok(()),
        }
    }

    /// Begins all rows anew if one has to and cannot beside others.
    fn begin_anew(&mut self) {
        if self.live.iter().any(|row| self.rows[*row].is_recomputed(&*self.decoder)) {
            self.decoder.forget_rows();
            self.new.append(&mut self.live);
        }
    }

    /// Whether a row has ended.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn has_ended(&self, row: usize) -> bool {
        self.rows[row].ended || !self.live.contains(&row) && !self.new.contains(&row)
    }

    /// Ends a row, for that reason.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn end(&mut self, row: usize, finish: Finish) {
        let row = &mut self.rows[row];
        (row.ended, row.outcome.finish) = (true, finish);
    }

    /// What a row has by now. Why it ended is only right if it has.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn outcome(&self, row: usize) -> &Outcome {
        &self.rows[row].outcome
    }

    /// What all rows have, in the order of the requests.
    pub fn into_outcomes(self) -> Vec<Outcome> {
        self.rows.into_iter().map(|row| row.outcome).collect()
    }
}

impl GenerationRow {
    /// A text that has not begun, beside others of which the longest begins with `longest` tokens.
    fn new<D: LanguageModel>(decoder: &D, request: Request, longest: usize) -> Result<Self, Error> {
        let mut sampler = Sampler::new(request.sampling)?;
        let own = decoder.beginning(&request.ids);
        sampler.see(own);
        let longest = if decoder.replaces_rows() { own.len() } else { longest };
        let (limit, finish) = limit(decoder, &request, longest)?;
        let ended = limit == 0;
        let outcome = Outcome::new(Vec::new(), finish);
        Ok(Self { request, sampler, constraint: None, scored: None, limit, outcome, ended })
    }

    /// The last new token.
    fn last(&self) -> &[u32] {
        let tokens = &self.outcome.tokens;
        &tokens[tokens.len().saturating_sub(1)..]
    }

    /// All tokens so far.
    fn text(&self) -> Cow<'_, [u32]> {
        match self.outcome.tokens.as_slice() {
            [] => Cow::Borrowed(&self.request.ids),
            tokens => Cow::Owned([&self.request.ids, tokens].concat()),
        }
    }

    /// As [`LanguageModel::recomputes`].
    fn is_recomputed<D: LanguageModel>(&self, decoder: &D) -> bool {
        decoder.recomputes(self.request.ids.len(), self.outcome.tokens.len())
    }

    /// Excludes the tokens that the constraint does not allow; without any left the text ends.
    fn constrain(&mut self, logits: &mut [f32]) -> bool {
        let Some(constraint) = &mut self.constraint else { return true };
        let open = constraint.mask(logits, &self.request.eos) == Constrained::Open;
        if !open {
            (self.ended, self.outcome.finish) = (true, Finish::Stuck);
        }
        open
    }

    /// Adds a token of a pass that began then; whether it is one that ends the text.
    fn push(&mut self, token: u32, started: Instant) -> bool {
        let outcome = &mut self.outcome;
        let seconds = started.elapsed().as_secs_f64();
        match outcome.tokens.is_empty() {
            true => outcome.prefill_seconds = seconds,
            false => outcome.token_seconds.push(seconds),
        }
        outcome.tokens.push(token);
        let ends = self.request.eos.contains(&token);
        if ends {
            outcome.finish = Finish::Eos;
        }
        self.ended = ends || outcome.tokens.len() >= self.limit;
        match self.constraint.as_mut().filter(|_| !ends).map(|text| text.push(token)) {
            None | Some(Constrained::Open) => {}
            Some(Constrained::Complete) => (self.ended, outcome.finish) = (true, Finish::Complete),
            Some(Constrained::Stuck) => (self.ended, outcome.finish) = (true, Finish::Stuck),
        }
        ends
    }
}

/// Generates tokens until the text ends, the request's or the context's limit is reached, or
/// `on_token` breaks.
///
/// `on_token` gets each new token as soon as it is chosen, except a token that ends the text. The
/// prompt and the new tokens together never exceed [`LanguageModel::context`], if there is one. The
/// last new token is not given to the model, so the decoder's position ends one short of the text.
/// Nothing is computed if `max_new_tokens` is 0.
///
/// # Errors
/// As [`Generation`].
pub fn generate<D: LanguageModel>(
    decoder: &mut D,
    request: &Request,
    mut on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Outcome, GenerateError<D::Error>> {
    let mut generation = Generation::new(decoder, vec![request.clone()])?;
    while let Some(tokens) = generation.advance()? {
        for (row, token) in tokens {
            if on_token(token).is_break() {
                generation.end(row, Finish::Stopped);
            }
        }
    }
    Ok(generation.into_outcomes().remove(0))
}
