//! The loop with text at its end: tokens to text, stop strings.

use std::ops::ControlFlow;

use crate::constraint::{ConstrainedText, JsonConstraint};
use crate::error::Error;
use crate::generate::Generation;
use crate::language_model::LanguageModel;
use crate::request::{Finish, GenerateError, Outcome, Request};
use crate::stop::{StopScan, StopStrings};
use crate::text_stream::TextStream;
use crate::tokenizer::Tokenizer;

/// How tokens become text.
#[derive(Debug, Clone, Default)]
pub struct TextOptions {
    /// Strings that end the text; they are cut off.
    pub stop: StopStrings,
    /// Whether special tokens among the new tokens are part of the text. The token that ends a text
    /// never is.
    pub show_special_tokens: bool,
    /// Special tokens that are part of the text even if others are not, as tokenizer.json spells
    /// them.
    pub shown_tokens: Vec<String>,
    /// What the text has to be.
    pub constraint: Option<JsonConstraint>,
    /// Has [`Outcome::scores`] say how likely each token was by the model's logits, whatever
    /// sampling makes of them, with so many of the likeliest tokens. Those that a constraint
    /// excludes have no probability.
    pub logprobs: Option<usize>,
    /// What is added to the logits of tokens before one is chosen, as OpenAI's models do: see
    /// [`Sampler::bias`](crate::Sampler::bias).
    pub logit_bias: Vec<(u32, f32)>,
}

/// What was generated, as text.
#[derive(Debug, Clone, PartialEq)]
pub struct TextOutcome {
    /// The text of the new tokens, up to a stop string.
    pub text: String,
    /// The string that ended the text.
    pub stop_string: Option<String>,
    /// The tokens; those that spell the stop string are among them.
    pub outcome: Outcome,
}

/// A text that grows with its tokens.
#[derive(Debug)]
pub(crate) struct GrowingText<'t> {
    /// `None` once the text is whole.
    stream: Option<TextStream<'t>>,
    scan: StopScan,
    pub text: String,
    pub stop_string: Option<String>,
}

impl<'t> GrowingText<'t> {
    pub fn new(tokenizer: Option<&'t Tokenizer>, options: &TextOptions) -> Self {
        Self {
            stream: Some(TextStream::new(
                tokenizer,
                !options.show_special_tokens,
                &options.shown_tokens,
            )),
            scan: options.stop.scan(),
            text: String::new(),
            stop_string: None,
        }
    }

    /// Takes the next token; gives the text that is certain with it. Nothing follows a stop string.
    pub fn push(&mut self, token: u32) -> Result<String, Error> {
        let Some(stream) = &mut self.stream else {
            return Ok(String::new());
        };
        let part = match stream.push(token)? {
            None if self.scan.is_empty() => None,
            // What more tokens would make of these does not matter if a stop string is there by
            // now. What may be the beginning of a character is none.
            None => {
                let waiting = stream.waiting()?.unwrap_or_default();
                let whole = waiting.trim_end_matches(char::REPLACEMENT_CHARACTER);
                self.scan.would_end(whole).then(|| whole.to_owned())
            }
            part => part,
        };
        Ok(self.scan(&part.unwrap_or_default(), false))
    }

    /// The rest, once there are no more tokens; nothing a second time.
    pub fn finish(&mut self) -> Result<String, Error> {
        match self.stream.take() {
            Some(stream) => {
                let rest = stream.finish()?.unwrap_or_default();
                Ok(self.scan(&rest, true))
            }
            None => Ok(String::new()),
        }
    }

    fn scan(&mut self, part: &str, last: bool) -> String {
        let (mut part, found) = self.scan.push(part);
        match found {
            Some(found) => (self.stream, self.stop_string) = (None, Some(found)),
            None if last => part.push_str(&std::mem::take(&mut self.scan).finish()),
            None => {}
        }
        self.text.push_str(&part);
        part
    }
}

/// Rows and what is new of their texts.
type NewTexts = Vec<(usize, String)>;

/// Texts that grow side by side, as [`Generation`] does tokens.
#[derive(Debug)]
pub(crate) struct TextGeneration<'a, D> {
    tokens: Generation<'a, D>,
    tokenizer: Option<&'a Tokenizer>,
    rows: Vec<GrowingText<'a>>,
}

impl<'a, D: LanguageModel> TextGeneration<'a, D> {
    pub fn new(
        decoder: &'a mut D,
        tokenizer: Option<&'a Tokenizer>,
        requests: Vec<(Request, TextOptions)>,
    ) -> Result<Self, GenerateError<D::Error>> {
        let (requests, options): (_, Vec<_>) = requests.into_iter().unzip();
        let constraints = options.iter().map(|options| constrained(tokenizer, options));
        let constraints = constraints.collect::<Result<Vec<_>, Error>>()?;
        let rows = options.iter().map(|options| GrowingText::new(tokenizer, options)).collect();
        let mut tokens = Generation::new(decoder, requests)?;
        for (row, (constraint, options)) in constraints.into_iter().zip(options).enumerate() {
            tokens.constrain(row, constraint);
            tokens.score(row, options.logprobs);
            tokens.bias(row, options.logit_bias);
        }
        Ok(Self { tokens, tokenizer, rows })
    }

    /// The text that is certain by one more token of each row, or by the end of some; `None` at the
    /// end of all.
    pub fn advance(&mut self) -> Result<Option<NewTexts>, GenerateError<D::Error>> {
        let parts = self.parts();
        if parts.is_err() {
            // Nothing follows an error.
            (0..self.rows.len()).for_each(|row| self.end(row));
        }
        parts
    }

    fn parts(&mut self) -> Result<Option<NewTexts>, GenerateError<D::Error>> {
        let mut parts = Vec::new();
        for number in 0..self.rows.len() {
            let rest = self.finish(number)?;
            if !rest.is_empty() {
                parts.push((number, rest));
            }
        }
        if parts.is_empty() {
            let Some(tokens) = self.tokens.advance()? else {
                return Ok(None);
            };
            for (number, token) in tokens {
                let row = &mut self.rows[number];
                parts.push((number, row.push(token)?));
                if row.stop_string.is_some() {
                    self.tokens.end(number, Finish::StopString);
                }
            }
        }
        Ok(Some(parts))
    }

    /// The rest of the text of a row that has ended; nothing if it goes on, or a second time.
    pub fn finish(&mut self, number: usize) -> Result<String, Error> {
        if !self.tokens.has_ended(number) {
            return Ok(String::new());
        }
        let row = &mut self.rows[number];
        if self.tokens.outcome(number).finish == Finish::Stopped {
            row.stream = None;
        }
        row.finish()
    }

    /// Ends a row as its caller wishes, unless its text is whole.
    pub fn end(&mut self, row: usize) {
        if self.rows[row].stream.take().is_some() {
            self.tokens.end(row, Finish::Stopped);
        }
    }

    /// An empty batch.
    pub fn empty(
        decoder: &'a mut D,
        tokenizer: Option<&'a Tokenizer>,
    ) -> Result<Self, GenerateError<D::Error>> {
        Self::new(decoder, tokenizer, Vec::new())
    }

    /// Begins another text, as [`Generation::replace`] does.
    pub fn replace(
        &mut self,
        row: usize,
        (request, options): (Request, TextOptions),
    ) -> Result<(), GenerateError<D::Error>> {
        let text = GrowingText::new(self.tokenizer, &options);
        let constraint = constrained(self.tokenizer, &options)?;
        match self.tokens.replace(row, request)? {
            None => self.rows.push(text),
            Some(_) => self.rows[row] = text,
        }
        self.tokens.constrain(row, constraint);
        self.tokens.score(row, options.logprobs);
        self.tokens.bias(row, options.logit_bias);
        Ok(())
    }

    /// As [`LanguageModel::replaces_rows`].
    pub fn replaces_rows(&self) -> bool {
        self.tokens.decoder().replaces_rows()
    }

    /// The tokens that these are the texts of.
    pub fn tokens(&self) -> &Generation<'a, D> {
        &self.tokens
    }

    /// What there is of a row that has ended; none if it goes on.
    pub fn ended(&mut self, row: usize) -> Result<Option<TextOutcome>, Error> {
        if !self.tokens.has_ended(row) {
            return Ok(None);
        }
        self.finish(row)?;
        let text = &mut self.rows[row];
        let outcome = self.tokens.outcome(row).clone();
        let (text, stop_string) = (std::mem::take(&mut text.text), text.stop_string.take());
        Ok(Some(text_outcome(text, stop_string, outcome)))
    }

    /// What there is of all rows, in the order of the requests.
    pub fn into_outcomes(self) -> Vec<TextOutcome> {
        let rows = self.rows.into_iter().zip(self.tokens.into_outcomes());
        let outcome = |(row, outcome): (GrowingText<'_>, Outcome)| {
            text_outcome(row.text, row.stop_string, outcome)
        };
        rows.map(outcome).collect()
    }
}

/// The constraint of a text, if it has one.
fn constrained(
    tokenizer: Option<&Tokenizer>,
    options: &TextOptions,
) -> Result<Option<ConstrainedText>, Error> {
    let Some(constraint) = &options.constraint else { return Ok(None) };
    let missing = || Error::Constraint { reason: "there is no tokenizer".to_owned() };
    ConstrainedText::new(tokenizer.ok_or_else(missing)?, constraint).map(Some)
}

fn text_outcome(text: String, stop_string: Option<String>, mut outcome: Outcome) -> TextOutcome {
    if stop_string.is_some() {
        outcome.finish = Finish::StopString;
    }
    TextOutcome { text, stop_string, outcome }
}

/// The text of a prompt's answer in parts, as they become certain: an iterator that computes when
/// it is asked.
///
/// No part is empty. After an error there are none. Dropping it ends the generation.
#[derive(Debug)]
pub struct TextParts<'a, D>(TextGeneration<'a, D>);

impl<'a, D: LanguageModel> TextParts<'a, D> {
    pub(crate) fn new(
        decoder: &'a mut D,
        tokenizer: &'a Tokenizer,
        request: (Request, TextOptions),
    ) -> Result<Self, GenerateError<D::Error>> {
        Ok(Self(TextGeneration::new(decoder, Some(tokenizer), vec![request])?))
    }

    /// What was generated so far: the reason for which it ended is [`Finish::Stopped`] if it has
    /// not.
    pub fn into_outcome(mut self) -> TextOutcome {
        self.0.end(0);
        self.0.into_outcomes().remove(0)
    }
}

impl<D: LanguageModel> Iterator for TextParts<'_, D> {
    type Item = Result<String, GenerateError<D::Error>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let parts = self.0.advance().transpose()?;
            match parts.map(|parts| parts.into_iter().map(|(_, part)| part).collect::<String>()) {
                Ok(part) if part.is_empty() => {}
                part => return Some(part),
            }
        }
    }
}

/// Generates text as [`generate`](crate::generate()) does tokens, until a stop string as well.
///
/// `on_text` is called once for every token but one that ends the text, with the text that has
/// become certain by it: often none, while a character or a possible stop string is not complete;
/// and once more at the end if there is a rest. The parts together are [`TextOutcome::text`]. If it
/// breaks, what was certain until then is the text. Stop strings are looked for in the generated
/// text alone, not across the end of the prompt. Without a tokenizer the text is the tokens'
/// numbers.
///
/// # Errors
/// As [`Generation`], and tokens that the tokenizer cannot decode.
pub fn generate_text<'t, D: LanguageModel>(
    decoder: &mut D,
    tokenizer: impl Into<Option<&'t Tokenizer>>,
    request: &Request,
    options: &TextOptions,
    mut on_text: impl FnMut(&str) -> ControlFlow<()>,
) -> Result<TextOutcome, GenerateError<D::Error>> {
    let requests = vec![(request.clone(), options.clone())];
    let mut generation = TextGeneration::new(decoder, tokenizer.into(), requests)?;
    while let Some(parts) = generation.advance()? {
        for (row, part) in parts {
            if on_text(&part).is_break() {
                generation.end(row);
            }
        }
    }
    Ok(generation.into_outcomes().remove(0))
}
