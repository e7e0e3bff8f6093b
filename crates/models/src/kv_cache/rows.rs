//! Texts that come, go and go on differently while others run beside them.

use super::KvCache;
use super::attention_layer::copy_row;
use super::prompt::Prompt;
use crate::{AttentionCache, Batch, CacheOptions, CacheSpec, Error};

/// Texts that wait while others begin behind them.
#[derive(Debug)]
pub(super) struct WaitingRows {
    /// Columns held.
    position: usize,
    /// Of each text, how many columns have no token.
    padding: Vec<usize>,
}

impl KvCache {
    /// Begins the texts of `batch` behind those held, in a cache that
    /// [replaces](crate::WhenFull::Replace) texts. Until [`join`](Self::join) all passes are of the
    /// new texts alone: they take the batch's columns, however cut into pieces, and end in the
    /// column where the others are.
    ///
    /// # Errors
    /// More texts than the cache was made for, or longer ones than its context.
    pub fn begin_beside(&mut self, batch: &Batch) -> Result<(), Error> {
        self.begin_behind(&vec![None; batch.rows()], batch)
    }

    /// Texts that are run.
    pub(super) fn held(&self) -> usize {
        if self.is_empty() { 0 } else { self.padding.len() }
    }

    /// Checks that so many texts can begin behind those held.
    pub(super) fn check_beside(&self, more: usize) -> Result<(), Error> {
        let (rows, most) = (self.held() + more, self.options.batch);
        if rows > most {
            return Err(Error::BatchRows { rows, batch: most });
        }
        Ok(())
    }

    /// Has the next passes be of texts that begin at a column behind those held, which go on at
    /// another one; with so much padding.
    pub(super) fn begin_rows(&mut self, first: usize, padding: Vec<usize>, position: usize) {
        self.drop_snapshot();
        let held = self.padding.len();
        for place in self.resting.iter_mut().skip(held).take(padding.len()) {
            *place = None;
        }
        self.continue_from(first);
        let padding = std::mem::replace(&mut self.padding, padding);
        self.waiting = Some(WaitingRows { position, padding });
    }

    /// Has the texts that [began beside](Self::begin_beside) others go on together with these.
    pub fn join(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            let new = std::mem::replace(&mut self.padding, waiting.padding);
            self.padding.extend(new);
            self.continue_from(waiting.position);
        }
    }

    /// Forgets the texts that [began beside](Self::begin_beside) others, which go on.
    pub fn forget_new(&mut self) {
        match self.waiting.take() {
            Some(waiting) if !waiting.padding.is_empty() || self.rests() => {
                self.padding = waiting.padding;
                self.continue_from(waiting.position);
            }
            Some(_) => self.clear(),
            None => {}
        }
    }

    /// Goes on from a column as if none after it had been written.
    pub(super) fn continue_from(&mut self, position: usize) {
        (self.position, self.written, self.expected) = (position, position, 0);
    }

    /// The first of the texts that passes are of.
    pub(super) fn first_row(&self) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.padding.len())
    }

    /// Bytes that [`copy_rows`](Self::copy_rows) takes for a while: the keys, the values or the
    /// state of one sequence in the largest layer.
    pub fn row_bytes(spec: &CacheSpec, options: &CacheOptions) -> u64 {
        let one = CacheOptions { batch: 1, beams: 1, snapshot: false, ..*options };
        let keys = |layer: &AttentionCache, bytes: u64| match layer.keys_are_values {
            true => bytes,
            false => bytes / 2,
        };
        let layers = spec.layers.iter().map(|layer| {
            let keys = layer.kept_attention().map_or(0, |layer| keys(layer, layer.bytes(&one)));
            let entries = layer.entries();
            let entries =
                entries.map_or(0, |layer| layer.entry_bytes(&one).max(layer.input_bytes(&one)));
            keys.max(entries).max(layer.recurrent().map_or(0, |layer| layer.bytes(&one)))
        });
        let cross = spec.cross.iter().map(|layer| keys(layer, Self::cross_bytes(layer, &one)));
        layers.chain(cross).max().unwrap_or(0)
    }

    /// Texts that it holds, all beams among them; if it holds nothing, those that could begin.
    pub fn rows(&self) -> usize {
        self.padding.len()
    }

    /// Copies texts, one after the other: of each pair the second becomes what the first is. The
    /// second may be one past those held, which then are one more. In the end the first `rows`
    /// stay. Nothing happens to a cache that holds nothing.
    ///
    /// # Errors
    /// [`Error::Row`] for a text that is not held, and [`Error::BatchRows`] for more than the cache
    /// was made for. Both are found before anything is copied.
    pub fn copy_rows(&mut self, copies: &[(usize, usize)], rows: usize) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        let mut held = self.rows();
        for &(from, to) in copies {
            if let Some(&row) = [from, to.saturating_sub(1)].iter().find(|row| **row >= held) {
                return Err(Error::Row { row, rows: held });
            }
            held = held.max(to + 1);
        }
        if rows == 0 || rows > held {
            return Err(Error::Row { row: rows, rows: held });
        }
        let batch = self.options.sequences();
        if held > batch {
            return Err(Error::BatchRows { rows: held, batch });
        }
        self.drop_snapshot();
        for &(from, to) in copies {
            for (index, layer) in self.layers.iter_mut().enumerate() {
                let copy = |storage, places| copy_row(storage, from, to, places);
                let lost = Error::CacheLost { layer: index };
                layer.change_rows(self.written, copy).ok_or(lost)?;
            }
            for padding in [Some(&mut self.padding), self.prompt.as_mut().map(Prompt::padding)] {
                let Some(padding) = padding else { continue };
                padding.resize(padding.len().max(to + 1), 0);
                padding[to] = padding[from];
            }
            let tokens = self.prompt.as_ref().map_or(0, Prompt::tokens);
            for (index, layer) in self.cross.iter_mut().enumerate() {
                let copy = |storage, places| copy_row(storage, from, to, places);
                let lost = Error::CacheLost { layer: index };
                layer.change_rows(tokens, copy).ok_or(lost)?;
            }
        }
        self.padding.truncate(rows);
        if let Some(prompt) = &mut self.prompt {
            prompt.padding().truncate(rows);
        }
        Ok(())
    }
}
