//! Guesses of the tokens that come next. Several are verified in one pass, so that a text takes
//! fewer of them ([Leviathan et al., 2023](https://arxiv.org/abs/2211.17192)).
//!
//! A draft counts if it is the token that is chosen anyway. As the logits behind a token do not
//! depend on how a text is cut into passes, the text has the tokens that it has without drafts,
//! greedy or sampled.

use outsize_models::{
    Batch, CacheLayer, CacheOptions, CacheSpec, FIRST_IMAGE_ID, Logits, MAX_CONTEXT, WhenFull,
};
use serde::Serialize;

use super::{Pipeline, PipelineError, values};
use crate::language_model::LanguageModel;
use crate::prompt_lookup::look_up;
use crate::sampling::first_maximum;

/// Passes without a guess after those that were wrong.
const PAUSE: usize = 8;

/// What guesses the tokens that come next.
#[derive(Debug)]
pub(super) enum Drafter {
    /// What came after the same tokens earlier in the text.
    PromptLookup,
    /// A smaller model.
    Model(DraftModel),
}

/// How many drafts were right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DraftStats {
    /// Passes over one token and its drafts, if there were any.
    pub passes: u64,
    /// Tokens that were drafted and run.
    pub drafted: u64,
    /// Of these, those that the text went on with.
    pub accepted: u64,
}

/// A text, and what is guessed to come next.
#[derive(Debug)]
pub(super) struct Drafts {
    drafter: Drafter,
    /// The most tokens to guess at once.
    most: usize,
    /// How many to guess next time.
    next: usize,
    /// How many were guessed in the last pass; and passes without a guess since.
    guessed: usize,
    pause: usize,
    /// Tokens that the model knows.
    vocabulary: usize,
    /// The tokens of the text that the KV cache holds.
    text: Vec<u32>,
    /// Drafts that the KV cache holds behind it, each with the logits behind it; the last one
    /// first.
    ahead: Vec<(u32, Vec<f32>)>,
    stats: DraftStats,
}

impl Drafts {
    /// At most `most` at once, of a model that knows `vocabulary` tokens.
    pub fn new(drafter: Drafter, most: usize, vocabulary: usize) -> Self {
        let (text, ahead, stats) = (Vec::new(), Vec::new(), DraftStats::default());
        let (guessed, pause) = (0, 0);
        Self { drafter, most, next: most, guessed, pause, vocabulary, text, ahead, stats }
    }

    /// How many of the tokens that the KV cache holds are drafts.
    pub fn ahead(&self) -> usize {
        self.ahead.len()
    }

    pub fn stats(&self) -> DraftStats {
        self.stats
    }

    /// Follows the KV cache, which holds `position` tokens now, perhaps some of `ids` behind those
    /// before.
    pub fn follow(&mut self, position: usize, ids: &[u32]) {
        let more = position.saturating_sub(self.text.len()).min(ids.len());
        self.text.truncate(position);
        self.text.extend(&ids[..more]);
    }

    /// Guesses what comes after the text and `last`.
    fn guess(&mut self, last: u32, room: usize) -> Result<Vec<u32>, PipelineError> {
        let count = room.min(self.next);
        if count == 0 {
            return Ok(Vec::new());
        }
        self.text.push(last);
        let guess = match &mut self.drafter {
            Drafter::PromptLookup => Ok(look_up(&self.text, count)),
            Drafter::Model(model) => model.guess(&self.text, count),
        };
        self.text.pop();
        let mut guess = guess?;
        // Another model may know more tokens.
        let known = guess.iter().take_while(|id| (**id as usize) < self.vocabulary).count();
        guess.truncate(known);
        Ok(guess)
    }

    /// Keeps drafts that were run, and the logits behind each, `[drafts, vocabulary]`.
    fn keep(&mut self, guess: &[u32], logits: &[f32]) {
        let behind = logits.chunks(logits.len() / guess.len().max(1)).map(<[f32]>::to_vec);
        self.ahead = guess.iter().copied().zip(behind).rev().collect();
        self.stats.drafted += guess.len() as u64;
        self.guessed = guess.len();
    }

    /// Learns from the last drafts how many to make: as transformers' heuristic schedule, but that
    /// guesses which are all wrong end soon, for a while.
    fn adapt(&mut self) {
        let wrong = self.ahead.len();
        (self.next, self.pause) = match std::mem::take(&mut self.guessed) {
            0 if self.next == 0 && self.pause == PAUSE => (1, 0),
            0 => (self.next, self.pause + 1),
            guessed if wrong == guessed => (self.next / 2, 0),
            _ if wrong > 0 => (self.next.saturating_sub(1), 0),
            _ => ((self.next + 2).min(self.most), 0),
        };
    }
}

/// A smaller model that knows the same tokens.
#[derive(Debug)]
pub(super) struct DraftModel {
    pipeline: Box<Pipeline>,
    /// The tokens that its KV cache holds.
    held: Vec<u32>,
}

impl DraftModel {
    pub fn new(pipeline: Pipeline) -> Self {
        Self { pipeline: Box::new(pipeline), held: Vec::new() }
    }

    /// The likeliest tokens after `text`, at most `count`, and no more than there is room for.
    fn guess(&mut self, text: &[u32], count: usize) -> Result<Vec<u32>, PipelineError> {
        let capacity = self.pipeline.cache_options().context;
        // What it cannot see it guesses without.
        let text: Vec<u32> =
            text.iter().map(|id| if *id < FIRST_IMAGE_ID { *id } else { 0 }).collect();
        let text = &*text;
        let count = count.min(capacity.saturating_sub(text.len()));
        if count == 0 {
            return Ok(Vec::new());
        }
        let same = self.held.iter().zip(text).take_while(|(held, new)| held == new).count();
        let same = self.pipeline.go_back(same.min(text.len() - 1));
        self.held.truncate(same);
        let (mut guess, mut next) = (Vec::with_capacity(count), text[same..].to_vec());
        loop {
            let logits = self.pipeline.forward(&next)?;
            self.held.extend(&next);
            let Ok((token, _)) = first_maximum(&logits) else {
                return Ok(guess);
            };
            guess.push(token);
            if guess.len() == count {
                return Ok(guess);
            }
            next = vec![token];
        }
    }
}

/// Why a model cannot make or verify drafts in such a cache, if it cannot: "they are …".
pub(super) fn cannot_draft(spec: &CacheSpec, options: &CacheOptions) -> Option<&'static str> {
    let is_recurrent = |layer: &CacheLayer| layer.recurrent().is_some();
    if options.sequences() > 1 || options.when_full == WhenFull::Replace {
        Some("they are of one text, and several would run side by side")
    } else if spec.layers.iter().any(is_recurrent) {
        Some("a state of linear attention or of a convolution cannot forget those that are wrong")
    } else if !spec.cross.is_empty() {
        Some("they are for models without an encoder")
    } else {
        None
    }
}

impl Pipeline {
    /// How many drafts were right so far, if tokens are drafted.
    pub fn draft_stats(&self) -> Option<DraftStats> {
        self.drafts.as_ref().map(Drafts::stats)
    }

    /// Appends `ids` to the one text; gives the logits behind it.
    pub(super) fn run_drafting(
        &mut self,
        drafts: &mut Drafts,
        ids: &[u32],
    ) -> Result<Vec<f32>, PipelineError> {
        if let Some((_, logits)) = drafts.ahead.pop_if(|(draft, _)| ids == [*draft]) {
            drafts.stats.accepted += 1;
            drafts.text.extend(ids);
            return Ok(logits);
        }
        let mut guess = Vec::new();
        let goes_on = ids.len() == 1 && !drafts.text.is_empty();
        if goes_on {
            drafts.adapt();
        }
        self.take_back(drafts)?;
        if goes_on {
            guess = drafts.guess(ids[0], self.room_for_drafts())?;
            drafts.stats.passes += 1;
        }
        let logits = self.run_with_guess(ids, &guess);
        drafts.follow(self.cache.position(), ids);
        let mut logits = logits?;
        if !guess.is_empty() {
            let vocabulary = logits.len() / (1 + guess.len());
            drafts.keep(&guess, &logits[vocabulary..]);
            logits.truncate(vocabulary);
        }
        Ok(logits)
    }

    /// The logits behind `ids`, and behind each token of the guess.
    fn run_with_guess(&mut self, ids: &[u32], guess: &[u32]) -> Result<Vec<f32>, PipelineError> {
        let batch = Batch::left_padded(&[[ids, guess].concat()])?;
        if guess.is_empty() {
            return self.run(&batch);
        }
        let _reuse = self.buffer_reuse();
        values(self.pass(&batch, Logits::All)?)
    }

    /// Takes drafts out of the KV cache, so that it holds the text alone.
    fn take_back(&mut self, drafts: &mut Drafts) -> Result<(), PipelineError> {
        if !drafts.ahead.is_empty() {
            drafts.ahead.clear();
            self.cache.truncate(drafts.text.len())?;
        }
        Ok(())
    }

    /// Does something to the KV cache that holds the text alone, and follows what becomes of it:
    /// `ids` may be behind it then.
    pub(super) fn without_drafts<T>(
        &mut self,
        ids: &[u32],
        change: impl FnOnce(&mut Self) -> Result<T, PipelineError>,
    ) -> Result<T, PipelineError> {
        let Some(mut drafts) = self.drafts.take() else {
            return change(self);
        };
        let done = self.take_back(&mut drafts).and_then(|()| change(self));
        drafts.follow(self.cache.position(), ids);
        self.drafts = Some(drafts);
        done
    }

    /// How many drafts may follow one more token: none that the text has no room for, and none that
    /// change the keys of others.
    fn room_for_drafts(&self) -> usize {
        let context = self.context().unwrap_or(MAX_CONTEXT);
        let most = self.spec.rescaled_beyond.unwrap_or(context).min(context);
        let room = most.saturating_sub(self.cache.position() + 1);
        room.min(self.cache.options().draft_tokens)
    }
}
