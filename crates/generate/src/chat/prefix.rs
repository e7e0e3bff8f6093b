//! A text that keeps what of it the KV cache holds.

use crate::language_model::LanguageModel;
use crate::pipeline::{Pipeline, PipelineError};

/// A pipeline as a loop over one text sees it that begins anew: of the prompt only that is run
/// which comes after what the KV cache holds already.
#[derive(Debug)]
pub(super) struct PrefixCache<'s> {
    pipeline: &'s mut Pipeline,
    /// The tokens that the KV cache holds.
    held: &'s mut Vec<u32>,
    /// The token of the prompt that the text may later have to go back to.
    snapshot: usize,
    begun: bool,
    /// Tokens of the prompt that were held.
    pub reused: usize,
}

impl<'s> PrefixCache<'s> {
    /// A text whose prompt will begin with its first `snapshot` tokens when the conversation goes
    /// on.
    pub fn new(pipeline: &'s mut Pipeline, held: &'s mut Vec<u32>, snapshot: usize) -> Self {
        Self { pipeline, held, snapshot, begun: false, reused: 0 }
    }

    /// Goes back to where the prompt differs from what is held, the token before a new one at
    /// least, or to the snapshot before that; gives how many are held.
    fn go_back(&mut self, prompt: &[u32]) -> usize {
        let longest = prompt.len().max(self.held.len());
        let same = self.held.iter().zip(prompt).take_while(|(held, new)| held == new).count();
        let same = match self.pipeline.keeps_keys(longest) {
            true => same.min(prompt.len().saturating_sub(1)),
            false => 0,
        };
        let mut held = self.pipeline.go_back(same);
        // With windows in all layers, fewer tokens may be run of a text that begins.
        if prompt.len() - held > self.pipeline.tokens_to_run(prompt.len()) {
            self.pipeline.clear();
            held = 0;
        }
        self.held.truncate(held);
        held
    }
}

impl LanguageModel for PrefixCache<'_> {
    type Error = PipelineError;

    fn forward_rows(&mut self, rows: &[&[u32]]) -> Result<Vec<f32>, PipelineError> {
        let mut ids = rows.concat();
        if !self.begun {
            self.reused = self.go_back(&ids);
            ids.drain(..self.reused);
            self.begun = true;
            self.pipeline.snapshot_at(self.snapshot);
        }
        self.held.extend(&ids);
        let logits = self.pipeline.forward_rows(&[&ids]);
        if logits.is_err() {
            // Some of its passes may have been made.
            self.held.truncate(self.pipeline.position());
        }
        logits
    }

    fn recomputed_beyond(&self) -> Option<usize> {
        self.pipeline.recomputed_beyond()
    }

    fn forget_rows(&mut self) {
        self.pipeline.clear();
        self.held.clear();
    }

    fn copy_rows(&mut self, copies: &[(usize, usize)], rows: usize) -> Result<(), PipelineError> {
        self.pipeline.copy_rows(copies, rows)
    }

    fn beginning<'a>(&'a self, prompt: &'a [u32]) -> &'a [u32] {
        self.pipeline.beginning(prompt)
    }

    fn context(&self) -> Option<usize> {
        self.pipeline.context()
    }

    fn position(&self) -> usize {
        if self.begun { self.pipeline.position() } else { 0 }
    }

    fn advice(&self, needed: usize) -> String {
        format!("begin the conversation anew, or {}", self.pipeline.advice(needed))
    }

    fn is_stopped(error: &PipelineError) -> bool {
        Pipeline::is_stopped(error)
    }
}
