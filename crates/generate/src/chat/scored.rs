//! Texts whose own tokens are scored before they are gone on with.

use std::ops::ControlFlow;
use std::time::Instant;

use outsize_kernels::TokenScore;

use super::answer::{ChatAnswer, ChatOptions};
use super::answer_text::AnswerText;
use super::session::ChatSession;
use crate::error::Error;
use crate::language_model::LanguageModel;
use crate::pipeline::{Pipeline, PipelineError};
use crate::request::{GenerateError, limit};
use crate::sampling::Sampler;
use crate::text::TextGeneration;

/// What a text was gone on with, and how likely its own tokens were.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredAnswer {
    /// Of each token of the text but the first.
    pub prompt: Vec<TokenScore>,
    /// What came behind them.
    pub answer: ChatAnswer,
}

impl ChatSession {
    /// Whether a text can be [scored and gone on with](Self::complete_scored).
    ///
    /// # Errors
    /// A text without tokens or with more than the context holds, ids outside the vocabulary,
    /// sampling values out of range, and a model whose prompts an encoder reads.
    pub fn check_scored(&mut self, ids: &[u32], options: &ChatOptions) -> Result<(), Error> {
        self.pipeline.clear();
        self.held.clear();
        if self.pipeline.has_encoder() {
            return Err(Error::ReadPrompt);
        }
        self.tokenizer.check(ids, self.vocab_size)?;
        let (request, ..) = options.request(ids.to_vec(), None)?;
        Sampler::new(request.sampling)?;
        limit(&self.pipeline, &request, ids.len())?;
        Ok(())
    }

    /// Scores texts and goes on with them, all side by side: no more than the model's KV cache is
    /// made for. Each score has `top` of the likeliest tokens. `on_part` gets the number of a text
    /// and what comes behind it; a text for which it breaks ends. What the KV cache holds is
    /// forgotten before and after.
    ///
    /// # Errors
    /// Of any text what [`check_scored`](Self::check_scored) says, and what the model or a read
    /// said.
    pub fn complete_scored(
        &mut self,
        texts: &[(Vec<u32>, ChatOptions)],
        top: usize,
        mut on_part: impl FnMut(usize, &str) -> ControlFlow<()>,
    ) -> Result<Vec<ScoredAnswer>, GenerateError<PipelineError>> {
        self.held.clear();
        let began = Instant::now();
        // Those that are not gone on with come last: they leave the cache.
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|text| texts[*text].1.max_new_tokens == Some(0));
        let ids: Vec<&[u32]> = order.iter().map(|text| &*texts[*text].0).collect();
        let (mut scores, mut logits) =
            self.pipeline.begin_scored(&ids, top).map_err(GenerateError::Model)?;
        let seconds = began.elapsed().as_secs_f64();
        let goes_on = |text: &&usize| texts[**text].1.max_new_tokens != Some(0);
        let live = order.iter().filter(goes_on).count();
        logits.truncate(logits.len() / order.len() * live);
        if (1..order.len()).contains(&live) {
            self.pipeline.copy_rows(&[], live).map_err(GenerateError::Model)?;
        }
        let requests = order.iter().map(|text| {
            let (ids, options) = &texts[*text];
            let (request, text, _) = options.request(ids.clone(), None)?;
            Ok((request, text))
        });
        let requests = requests.collect::<Result<Vec<_>, Error>>()?;
        let mut model = BegunRows { pipeline: &mut self.pipeline, logits: Some(logits) };
        let mut generation = TextGeneration::new(&mut model, Some(&self.tokenizer), requests)?;
        while let Some(parts) = generation.advance()? {
            for (row, part) in parts {
                if on_part(order[row], &part).is_break() {
                    generation.end(row);
                }
            }
        }
        let outcomes = generation.into_outcomes();
        self.pipeline.clear();
        let answers =
            outcomes.into_iter().zip(&mut scores).zip(&ids).map(|((mut outcome, scores), ids)| {
                outcome.outcome.prefill_seconds += seconds;
                let answer = ChatAnswer::new(outcome, AnswerText::Plain, [ids.len(), 0]);
                ScoredAnswer { prompt: std::mem::take(scores), answer }
            });
        let mut answers: Vec<_> = order.iter().zip(answers).collect();
        answers.sort_by_key(|(text, _)| **text);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }
}

/// A pipeline as a loop sees it whose prompts are run already.
#[derive(Debug)]
struct BegunRows<'p> {
    pipeline: &'p mut Pipeline,
    /// The logits behind the prompts, until they are asked for.
    logits: Option<Vec<f32>>,
}

impl LanguageModel for BegunRows<'_> {
    type Error = PipelineError;

    fn forward_rows(&mut self, rows: &[&[u32]]) -> Result<Vec<f32>, PipelineError> {
        match self.logits.take() {
            Some(logits) => Ok(logits),
            None => self.pipeline.forward_rows(rows),
        }
    }

    fn begin_rows(&mut self, held: usize, rows: &[&[u32]]) -> Result<Vec<f32>, PipelineError> {
        match self.logits.take() {
            Some(logits) => Ok(logits),
            None => self.pipeline.begin_rows(held, rows),
        }
    }

    fn replaces_rows(&self) -> bool {
        self.pipeline.replaces_rows()
    }

    fn recomputed_beyond(&self) -> Option<usize> {
        self.pipeline.recomputed_beyond()
    }

    fn forget_rows(&mut self) {
        self.pipeline.clear();
    }

    fn copy_rows(&mut self, copies: &[(usize, usize)], rows: usize) -> Result<(), PipelineError> {
        self.pipeline.copy_rows(copies, rows)
    }

    fn context(&self) -> Option<usize> {
        self.pipeline.context()
    }

    fn position(&self) -> usize {
        if self.logits.is_some() { 0 } else { self.pipeline.position() }
    }

    fn advice(&self, needed: usize) -> String {
        self.pipeline.advice(needed)
    }

    fn is_stopped(error: &PipelineError) -> bool {
        Pipeline::is_stopped(error)
    }
}
