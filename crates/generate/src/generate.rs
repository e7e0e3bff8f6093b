//! The loop: prompts in, one token after the other out.

use std::ops::ControlFlow;
use std::time::Instant;

use crate::language_model::LanguageModel;
use crate::request::{Finish, GenerateError, Outcome, Request, limit, longest};
use crate::sampling::{Sampler, SamplerScratch};

/// Rows and their new tokens.
pub type NewTokens = Vec<(usize, u32)>;

/// Texts that grow side by side, each as it would alone, by a token at every [`advance`](Self::advance). One that ends leaves
/// the others.
#[derive(Debug)]
pub struct Generation<'d, D> {
    decoder: &'d mut D,
    rows: Vec<GenerationRow>,
    /// The rows that the decoder's sequences are, in its order.
    live: Vec<usize>,
    scratch: SamplerScratch,
}

/// One of the texts.
#[derive(Debug)]
struct GenerationRow {
    request: Request,
    sampler: Sampler,
    limit: usize,
    outcome: Outcome,
    ended: bool,
}

impl<'d, D: LanguageModel> Generation<'d, D> {
    /// Texts that go on from the prompts of `requests`. Nothing is computed yet.
    ///
    /// The prompts and the new tokens together never exceed [`LanguageModel::context`], if there is one. Of several texts each
    /// counts as long as the longest prompt and its own new tokens.
    ///
    /// # Errors
    /// An empty prompt, a prompt that leaves no room in the context, sampling values out of range.
    pub fn new(
        decoder: &'d mut D,
        requests: Vec<Request>,
    ) -> Result<Self, GenerateError<D::Error>> {
        let longest = longest(decoder, &requests);
        let row = |request: Request| {
            let mut sampler = Sampler::new(request.sampling)?;
            sampler.see(decoder.beginning(&request.ids));
            let (limit, finish) = limit(decoder, &request, longest)?;
            let outcome = Outcome {
                tokens: Vec::new(),
                finish,
                prefill_seconds: 0.0,
                token_seconds: Vec::new(),
            };
            Ok(GenerationRow { request, sampler, limit, outcome, ended: limit == 0 })
        };
        let rows = requests.into_iter().map(row).collect::<Result<Vec<_>, GenerateError<_>>>()?;
        let live = (0..rows.len()).filter(|row| !rows[*row].ended).collect();
        Ok(Self { decoder, rows, live, scratch: SamplerScratch::default() })
    }

    /// Runs one pass. Gives the row and the new token of each text that has one, except tokens that end a text; `None` if all
    /// have ended. The last new token of a text is not given to the model.
    ///
    /// # Errors
    /// What the model returns, and logits that are not numbers. All texts have then ended.
    pub fn advance(&mut self) -> Result<Option<NewTokens>, GenerateError<D::Error>> {
        let pass = self.pass();
        if pass.is_err() {
            self.live.clear();
        }
        pass
    }

    fn pass(&mut self) -> Result<Option<NewTokens>, GenerateError<D::Error>> {
        self.leave().map_err(GenerateError::Model)?;
        if self.live.is_empty() {
            return Ok(None);
        }
        let started = Instant::now();
        let ids: Vec<&[u32]> = self.live.iter().map(|row| self.rows[*row].next_ids()).collect();
        let logits = match self.decoder.forward_rows(&ids) {
            Err(error) if D::is_stopped(&error) => {
                for row in std::mem::take(&mut self.live) {
                    self.end(row, Finish::Stopped);
                }
                return Ok(None);
            }
            logits => logits.map_err(GenerateError::Model)?,
        };
        let vocabulary = logits.len() / self.live.len();
        let mut chosen = Vec::with_capacity(self.live.len());
        for (index, &number) in self.live.iter().enumerate() {
            let row = &mut self.rows[number];
            let logits = &logits[index * vocabulary..][..vocabulary];
            let token = row.sampler.sample_in(&mut self.scratch, logits)?;
            if !row.push(token, started) {
                chosen.push((number, token));
            }
        }
        Ok(Some(chosen))
    }

    /// Takes the rows that ended out of the decoder. The last ones take their places.
    fn leave(&mut self) -> Result<(), D::Error> {
        let (held, mut copies, mut at) = (self.live.len(), Vec::new(), 0);
        while at < self.live.len() {
            if !self.rows[self.live[at]].ended {
                at += 1;
                continue;
            }
            self.live.swap_remove(at);
            if self.live.get(at).is_some_and(|moved| !self.rows[*moved].ended) {
                copies.push((self.live.len(), at));
            }
        }
        let begun = self.rows.iter().any(|row| !row.outcome.tokens.is_empty());
        match begun && (1..held).contains(&self.live.len()) {
            true => self.decoder.copy_rows(&copies, self.live.len()),
            false => Ok(()),
        }
    }

    /// Whether a row has ended.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn has_ended(&self, row: usize) -> bool {
        self.rows[row].ended || !self.live.contains(&row)
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
    fn next_ids(&self) -> &[u32] {
        match self.outcome.tokens.as_slice() {
            [] => &self.request.ids,
            [.., last] => std::slice::from_ref(last),
        }
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
        ends
    }
}

/// Generates tokens until the text ends, the request's or the context's limit is reached, or `on_token` breaks.
///
/// `on_token` gets each new token as soon as it is chosen, except a token that ends the text. The prompt and the new tokens
/// together never exceed [`LanguageModel::context`], if there is one. The last new token is not given to the model, so the
/// decoder's position ends one short of the text. Nothing is computed if `max_new_tokens` is 0.
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
