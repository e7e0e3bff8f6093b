//! Texts side by side, each of which begins with what the KV cache holds already of another one.

use std::cmp::Reverse;

use outsize_models::RowPrefix;

use crate::language_model::LanguageModel;
use crate::pipeline::{Pipeline, PipelineError};

/// A pipeline as a loop over several texts sees it. Texts that have ended rest in the KV cache
/// until their places are needed, and of a prompt only that is run which comes after what some text
/// there begins with, too.
#[derive(Debug)]
pub(super) struct PrefixRows<'s> {
    pipeline: &'s mut Pipeline,
    /// What the places of the cache hold: first the texts that are run, in the loop's order, then
    /// those that rest.
    places: Vec<HeldText>,
    live: usize,
    passes: u64,
}

/// What one place of the cache holds.
#[derive(Debug, Default)]
struct HeldText {
    ids: Vec<u32>,
    /// The last pass that it took part in.
    used: u64,
    /// Tokens that were not run because another text had them.
    reused: usize,
}

/// Texts that begin in one pass.
#[derive(Debug)]
struct Group {
    /// What each begins with, and is not run.
    prefixes: Vec<Option<RowPrefix>>,
    /// Tokens of the pass: each text runs its last ones, as many as it has beside the prefix.
    tokens: usize,
}

impl<'s> PrefixRows<'s> {
    /// An empty batch.
    pub fn new(pipeline: &'s mut Pipeline) -> Self {
        pipeline.clear();
        let count = pipeline.cache_options().batch;
        let places = (0..count).map(|_| HeldText::default()).collect();
        Self { pipeline, places, live: 0, passes: 0 }
    }

    /// Texts that can be run side by side.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Tokens of the text that is run as number `row` which were not run because another text had
    /// them.
    pub fn reused(&self, row: usize) -> usize {
        self.places[row].reused
    }

    fn forget(&mut self) {
        self.pipeline.clear();
        self.live = 0;
        self.places.fill_with(HeldText::default);
    }

    /// Has all texts but the first ones rest.
    fn rest(&mut self, rows: usize) {
        if rows < self.live {
            self.live = rows;
            self.pipeline.rest(rows);
        }
    }

    /// The longest beginning of a prompt that the cache holds; one token is run in any case.
    fn prefix(&self, prompt: &[u32]) -> Option<RowPrefix> {
        let prefix = |place: usize| {
            let held = &self.places[place].ids;
            let tokens = same(held, prompt).min(prompt.len() - 1);
            let keeps = self.pipeline.keeps_keys(held.len().max(prompt.len()));
            let holds = tokens > 0 && keeps && self.pipeline.holds(place, tokens);
            holds.then_some(RowPrefix { place, tokens })
        };
        // Of equal ones that of which the least is lost.
        let rank = |prefix: &RowPrefix| {
            let held = self.places[prefix.place].ids.len();
            (prefix.tokens, prefix.place >= self.live, Reverse(held))
        };
        (0..self.places.len()).filter_map(prefix).max_by_key(rank)
    }

    fn begin(&mut self, held: usize, rows: &[&[u32]]) -> Result<Vec<f32>, PipelineError> {
        self.rest(held);
        if !self.pipeline.replaces_rows() {
            self.forget();
        }
        // It may have run out of columns, and has them again.
        if !self.pipeline.replaces_rows() {
            return self.pipeline.begin_rows(held, rows);
        }
        let (mut logits, mut rows) = (Vec::new(), rows);
        while !rows.is_empty() {
            let group = self.group(rows);
            let (now, later) = rows.split_at(group.prefixes.len());
            logits.extend(self.begin_group(group, now)?);
            rows = later;
        }
        Ok(logits)
    }

    /// The first rows as far as they had better begin in one pass than in two.
    fn group(&self, rows: &[&[u32]]) -> Group {
        // What a pass costs, in tokens.
        let pass = self.pipeline.tokens_of_a_pass();
        let left = |prompt: &[u32], prefix: Option<RowPrefix>| {
            prompt.len() - prefix.map_or(0, |prefix| prefix.tokens)
        };
        let first = self.prefix(rows[0]);
        let mut group = Group { prefixes: vec![first], tokens: left(rows[0], first) };
        for (index, prompt) in rows.iter().enumerate().skip(1) {
            let prefix = self.prefix(prompt);
            let own = left(prompt, prefix);
            let tokens = group.tokens.max(own);
            // All run as many tokens as the one that has the most to run.
            let aligned = (index + 1) * tokens - index * group.tokens - own;
            // What another one of them has, once it is run.
            let common = |other: &&[u32]| same(other, prompt).min(prompt.len() - 1);
            let common = match self.pipeline.can_be_cut() {
                true => rows[..index].iter().map(common).max().unwrap_or(0),
                false => 0,
            };
            let waits = aligned + common.saturating_sub(prompt.len() - own);
            let mut prefixes = group.prefixes.clone();
            prefixes.push(prefix);
            let cut = prefixes.iter().zip(rows).all(|(prefix, prompt)| {
                let kept = prompt.len().saturating_sub(tokens);
                prefix.is_none_or(|prefix| kept == 0 || self.pipeline.holds(prefix.place, kept))
            });
            if waits > pass || !cut {
                break;
            }
            group = Group { prefixes, tokens };
        }
        for (prefix, prompt) in group.prefixes.iter_mut().zip(rows) {
            let tokens = prompt.len().saturating_sub(group.tokens);
            *prefix = prefix.map(|prefix| RowPrefix { tokens, ..prefix }).filter(|_| tokens > 0);
        }
        group
    }

    fn begin_group(
        &mut self,
        Group { mut prefixes, .. }: Group,
        rows: &[&[u32]],
    ) -> Result<Vec<f32>, PipelineError> {
        for row in 0..rows.len() {
            let to = self.live + row;
            let lost = self.lost(to, prefixes[row], &prefixes[row + 1..]);
            if lost != to {
                self.pipeline.swap_rows(lost, to)?;
                self.places.swap(lost, to);
                for prefix in prefixes.iter_mut().flatten() {
                    prefix.place = match prefix.place {
                        place if place == lost => to,
                        place if place == to => lost,
                        place => place,
                    };
                }
            }
        }
        let kept = |row: usize| prefixes[row].map_or(0, |prefix| prefix.tokens);
        let left: Vec<_> = rows.iter().enumerate().map(|(row, ids)| &ids[kept(row)..]).collect();
        let logits = self.pipeline.begin_behind(&prefixes, &left)?;
        for (row, ids) in rows.iter().enumerate() {
            let place = HeldText { ids: ids.to_vec(), used: self.passes, reused: kept(row) };
            self.places[self.live] = place;
            self.live += 1;
        }
        Ok(logits)
    }

    /// The place from `to` on whose text makes way for one that begins with a prefix, if with any:
    /// none that later ones begin with.
    fn lost(&self, to: usize, prefix: Option<RowPrefix>, later: &[Option<RowPrefix>]) -> usize {
        let needed = |place: usize| later.iter().flatten().any(|later| later.place == place);
        if let Some(RowPrefix { place, tokens }) = prefix
            && (to..).contains(&place)
            && !needed(place)
            // Most of it goes on.
            && tokens * 2 >= self.places[place].ids.len()
        {
            return place;
        }
        // There are fewer later texts than places.
        let places = (to..self.places.len()).filter(|place| !needed(*place));
        places.min_by_key(|place| self.places[*place].used).unwrap_or(to)
    }
}

/// How many tokens two texts have in common at their beginning.
fn same(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

impl LanguageModel for PrefixRows<'_> {
    type Error = PipelineError;

    fn forward_rows(&mut self, rows: &[&[u32]]) -> Result<Vec<f32>, PipelineError> {
        self.passes += 1;
        let logits = self.pipeline.forward_rows(rows);
        match &logits {
            Ok(_) => {
                for (place, ids) in self.places.iter_mut().zip(rows) {
                    place.ids.extend(*ids);
                    place.used = self.passes;
                }
            }
            Err(_) => self.forget(),
        }
        logits
    }

    fn begin_rows(&mut self, held: usize, rows: &[&[u32]]) -> Result<Vec<f32>, PipelineError> {
        self.passes += 1;
        let logits = self.begin(held, rows);
        if logits.is_err() {
            self.forget();
        }
        logits
    }

    fn replaces_rows(&self) -> bool {
        self.pipeline.replaces_rows()
    }

    fn recomputed_beyond(&self) -> Option<usize> {
        self.pipeline.recomputed_beyond()
    }

    fn forget_rows(&mut self) {
        self.forget();
    }

    fn copy_rows(&mut self, copies: &[(usize, usize)], rows: usize) -> Result<(), PipelineError> {
        if !self.pipeline.replaces_rows() {
            return self.pipeline.copy_rows(copies, rows);
        }
        // The text whose place another one takes has ended.
        for &(from, to) in copies {
            self.pipeline.swap_rows(from, to)?;
            self.places.swap(from, to);
        }
        self.rest(rows);
        Ok(())
    }

    fn beginning<'a>(&'a self, prompt: &'a [u32]) -> &'a [u32] {
        self.pipeline.beginning(prompt)
    }

    fn context(&self) -> Option<usize> {
        self.pipeline.context()
    }

    fn position(&self) -> usize {
        self.pipeline.position()
    }

    fn advice(&self, needed: usize) -> String {
        self.pipeline.advice(needed)
    }

    fn is_stopped(error: &PipelineError) -> bool {
        Pipeline::is_stopped(error)
    }
}
