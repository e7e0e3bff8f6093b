//! How likely the tokens of texts are.

use outsize_kernels::TokenScore;
use outsize_models::{Batch, Scoring, WhenFull};

use super::{Pipeline, PipelineError, values};
use crate::error::Error;
use crate::language_model::LanguageModel;

/// A text whose tokens are scored.
#[derive(Debug, Clone, Copy)]
pub struct ScoredText<'a> {
    /// All of it.
    pub ids: &'a [u32],
    /// The first token that is scored. There is nothing before the very first, which never is.
    pub from: usize,
}

/// What scoring texts gives: of each text the scores of its tokens, and logits
/// `[texts, vocabulary]` behind them if they were wanted.
type ScoredTexts = (Vec<Vec<TokenScore>>, Vec<f32>);

impl Pipeline {
    /// How likely the tokens of some texts are, each behind those before it, with the `top`
    /// likeliest ones: of each text a score for every token from [`ScoredText::from`] on. They run
    /// side by side, in passes no longer than the workload
    /// [counts](crate::GenerationWorkload::scores). What the KV cache held before is forgotten.
    ///
    /// # Errors
    /// A model whose prompts an encoder reads, texts that are longer than the context or more than
    /// the cache is for, and what the model or a read said.
    pub fn score(
        &mut self,
        texts: &[ScoredText<'_>],
        top: usize,
    ) -> Result<Vec<Vec<TokenScore>>, PipelineError> {
        // Nothing comes behind the last token, and of texts of one token there is nothing to run.
        let is_run = |text: &ScoredText<'_>| text.ids.len() > 1;
        let run: Vec<_> = texts.iter().copied().filter(is_run).collect();
        let rows: Vec<_> = run.iter().map(|text| &text.ids[..text.ids.len() - 1]).collect();
        let mut scores = match rows.is_empty() {
            true => Vec::new(),
            false => self.scored(&run, &rows, top, false)?.0,
        }
        .into_iter();
        let of = |text| if is_run(text) { scores.next().unwrap_or_default() } else { Vec::new() };
        Ok(texts.iter().map(of).collect())
    }

    /// The same of all tokens of texts that go on behind it: also gives the logits
    /// `[texts, vocabulary]` of the next tokens, as [`begin_rows`](LanguageModel::begin_rows) does.
    pub(crate) fn begin_scored(
        &mut self,
        texts: &[&[u32]],
        top: usize,
    ) -> Result<ScoredTexts, PipelineError> {
        let scored: Vec<_> = texts.iter().map(|ids| ScoredText { ids, from: 1 }).collect();
        self.scored(&scored, texts, top, true)
    }

    /// Runs `rows`, which are the beginnings of `texts`.
    fn scored(
        &mut self,
        texts: &[ScoredText<'_>],
        rows: &[&[u32]],
        top: usize,
        goes_on: bool,
    ) -> Result<ScoredTexts, PipelineError> {
        if self.has_encoder() {
            return Err(Error::ReadPrompt.into());
        }
        self.clear();
        let batch = Batch::left_padded(rows)?;
        let beside = self.replaces_rows();
        let scored = self.without_drafts(rows[0], |pipeline| {
            let run = |pipeline: &mut Self| pipeline.scored_passes(texts, &batch, top, goes_on);
            match beside {
                true => pipeline.run_behind(&vec![None; rows.len()], &batch, run),
                false => run(pipeline),
            }
        });
        if scored.is_err() {
            self.clear();
        }
        scored
    }

    fn scored_passes(
        &mut self,
        texts: &[ScoredText<'_>],
        batch: &Batch,
        top: usize,
        goes_on: bool,
    ) -> Result<ScoredTexts, PipelineError> {
        let (mut scores, mut logits) = (vec![Vec::new(); texts.len()], Vec::new());
        let tokens = batch.tokens();
        self.cache.expect(tokens);
        let _reuse = self.buffer_reuse();
        let longest = self.longest_pass_of(batch.rows());
        for start in (0..tokens).step_by(longest) {
            let columns = start..tokens.min(start + longest);
            let last = goes_on && columns.end == tokens;
            let mut labels = Vec::with_capacity(batch.rows() * columns.len());
            for (ScoredText { ids, from }, padding) in texts.iter().zip(batch.padding()) {
                labels.extend(columns.clone().map(|column| {
                    let next = (column + 1).checked_sub(*padding)?;
                    ids.get(next).copied().filter(|_| next >= (*from).max(1))
                }));
            }
            let pass = batch.columns(columns);
            let scoring = Scoring { labels: &labels, top, last };
            let scored = self.model.score_batch(&pass, &mut self.cache, scoring)??;
            self.count(&pass);
            let mut tokens = scored.tokens.into_iter();
            for (scores, labels) in scores.iter_mut().zip(labels.chunks(pass.tokens())) {
                scores.extend(tokens.by_ref().take(labels.iter().flatten().count()));
            }
            if let Some(last) = scored.last {
                logits = values(last)?;
            }
        }
        Ok((scores, logits))
    }

    /// Tokens of each of so many texts that one pass takes at most.
    pub(super) fn longest_pass_of(&self, rows: usize) -> usize {
        let cache = self.cache.options();
        match cache.when_full {
            // Fewer texts than there is room for take longer passes.
            WhenFull::Replace => self.chunk * (cache.batch / rows).max(1),
            WhenFull::Refuse | WhenFull::Slide => self.chunk,
        }
    }
}
