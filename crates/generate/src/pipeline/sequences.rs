//! A pipeline as the loops see it: sequences that tokens are appended to.

use outsize_models::{Batch, MAX_CONTEXT, RowPrefix, WhenFull};

use super::drafts::Drafts;
use super::{Pipeline, PipelineError};
use crate::language_model::LanguageModel;

impl LanguageModel for Pipeline {
    type Error = PipelineError;

    fn forward_rows(&mut self, rows: &[&[u32]]) -> Result<Vec<f32>, PipelineError> {
        if let [ids] = rows
            && let Some(mut drafts) = self.drafts.take()
        {
            let logits = self.run_drafting(&mut drafts, ids);
            self.drafts = Some(drafts);
            return logits;
        }
        let batch = Batch::left_padded(rows)?;
        let Some(start) = self.start.filter(|_| !self.cache.has_prompt()) else {
            return self.run(&batch);
        };
        let starts = Batch::left_padded(&vec![start; rows.len()])?;
        self.encode_batch(&batch)?;
        let logits = self.run(&starts);
        if logits.is_err() {
            // The text has not begun.
            self.cache.clear();
        }
        logits
    }

    fn begin_rows(&mut self, held: usize, rows: &[&[u32]]) -> Result<Vec<f32>, PipelineError> {
        let replaces = self.cache.options().when_full == WhenFull::Replace;
        if held == 0 && replaces && !self.cache.rests() {
            self.cache.clear();
        }
        if !self.replaces_rows() {
            return self.forward_rows(rows);
        }
        self.begin_behind(&vec![None; rows.len()], rows)
    }

    fn replaces_rows(&self) -> bool {
        // Columns end somewhere: then all texts end, and new ones begin in an empty cache.
        let room = self.cache.position() < MAX_CONTEXT / 2;
        room && self.start.is_none() && self.cache.options().when_full == WhenFull::Replace
    }

    fn recomputed_beyond(&self) -> Option<usize> {
        self.spec.recomputed_beyond()
    }

    fn forget_rows(&mut self) {
        self.clear();
    }

    fn copy_rows(&mut self, copies: &[(usize, usize)], rows: usize) -> Result<(), PipelineError> {
        Ok(self.cache.copy_rows(copies, rows)?)
    }

    fn beginning<'a>(&'a self, prompt: &'a [u32]) -> &'a [u32] {
        let replaces = self.cache.options().when_full == WhenFull::Replace;
        match &self.start {
            Some(start) if replaces || !self.cache.has_prompt() => start,
            _ => prompt,
        }
    }

    fn context(&self) -> Option<usize> {
        match self.cache.options().when_full {
            WhenFull::Refuse | WhenFull::Replace => Some(self.cache.capacity()),
            WhenFull::Slide => None,
        }
    }

    fn position(&self) -> usize {
        match self.cache.options().when_full {
            // New texts begin in places of their own.
            WhenFull::Replace => 0,
            WhenFull::Refuse | WhenFull::Slide => {
                self.cache.position() - self.drafts.as_ref().map_or(0, Drafts::ahead)
            }
        }
    }

    fn advice(&self, needed: usize) -> String {
        let most = self.spec.longest_context;
        let mut advice = match needed < most {
            true => format!("raise the context above {needed}, or shorten the prompt"),
            false => format!("this model's context is {most} at most, so shorten the prompt"),
        };
        if self.can_slide() {
            advice.push_str(", or let the context slide");
        }
        advice
    }

    fn is_stopped(error: &PipelineError) -> bool {
        matches!(error, PipelineError::Core(outsize_core::Error::Stopped))
    }
}

/// Texts that rest, where they [are replaced](LanguageModel::replaces_rows).
impl Pipeline {
    /// As [`KvCache::rest`](outsize_models::KvCache::rest).
    pub(crate) fn rest(&mut self, rows: usize) {
        self.cache.rest(rows);
    }

    /// As [`KvCache::swap_rows`](outsize_models::KvCache::swap_rows).
    pub(crate) fn swap_rows(&mut self, one: usize, other: usize) -> Result<(), PipelineError> {
        Ok(self.cache.swap_rows(one, other)?)
    }

    /// As [`KvCache::holds`](outsize_models::KvCache::holds).
    pub(crate) fn holds(&self, place: usize, tokens: usize) -> bool {
        self.cache.holds(place, tokens)
    }

    /// Begins texts as [`begin_rows`](LanguageModel::begin_rows) does, each behind its
    /// [prefix](outsize_models::KvCache::begin_behind).
    pub(crate) fn begin_behind(
        &mut self,
        prefixes: &[Option<RowPrefix>],
        rows: &[&[u32]],
    ) -> Result<Vec<f32>, PipelineError> {
        let batch = Batch::left_padded(rows)?;
        self.run_behind(prefixes, &batch, |pipeline| pipeline.run(&batch))
    }

    /// Has `run` run the texts of a batch, each behind its prefix; they join those that are there
    /// if nothing fails.
    pub(super) fn run_behind<T>(
        &mut self,
        prefixes: &[Option<RowPrefix>],
        batch: &Batch,
        run: impl FnOnce(&mut Self) -> Result<T, PipelineError>,
    ) -> Result<T, PipelineError> {
        self.cache.begin_behind(prefixes, batch)?;
        let done = run(self);
        match &done {
            Ok(_) => self.cache.join(),
            Err(_) => self.cache.forget_new(),
        }
        done
    }
}
