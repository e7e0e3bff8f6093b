//! Texts that rest: nothing runs them, and others may go on from what the cache holds of them.

use std::ops::Range;

use burn::tensor::Tensor;

use super::KvCache;
use super::layer::{AttentionLayer, Layer, assign_places, copy_row, row_places, write};
use crate::{Batch, Error};

impl KvCache {
    /// Has the last texts rest, in a cache that [replaces](crate::WhenFull::Replace) texts: only the first `rows` are run from
    /// now on. One that rests is lost once another begins in its place.
    pub fn rest(&mut self, rows: usize) {
        self.resting.resize(self.options.sequences(), None);
        for place in rows..self.padding.len() {
            self.resting[place] = Some(self.padding[place]..self.position);
        }
        self.padding.truncate(rows);
    }

    /// Whether any text rests.
    pub(super) fn rests(&self) -> bool {
        self.resting.iter().any(Option::is_some)
    }

    /// The columns of the text at a place, be it run or at rest.
    fn columns(&self, place: usize) -> Option<Range<usize>> {
        match self.padding.get(place) {
            Some(_) if self.is_empty() => None,
            Some(&first) => Some(first..self.position),
            None => self.resting.get(place)?.clone(),
        }
    }

    /// Whether a text can [begin](Self::begin_from) with the first `tokens` tokens of the one at a place: not where a sliding
    /// window has moved on, nor where later tokens are part of a state.
    pub fn holds(&self, place: usize, tokens: usize) -> bool {
        let Some(Range { start, end }) = self.columns(place) else { return false };
        let position = start + tokens;
        let held = |layer: &Layer| match layer {
            Layer::Attention(layer) => layer.oldest(end) <= layer.oldest_seen(position).max(start),
            Layer::Shared => true,
            Layer::Recurrent(_) => position == end,
        };
        position <= end && self.layers.iter().all(held)
    }

    /// Has two texts change places, both of them run or both at rest.
    ///
    /// # Errors
    /// [`Error::Row`] for a place that is none.
    pub fn swap_rows(&mut self, one: usize, other: usize) -> Result<(), Error> {
        let rows = self.options.sequences();
        if let Some(&row) = [one, other].iter().find(|row| **row >= rows) {
            return Err(Error::Row { row, rows });
        }
        self.resting.resize(rows, None);
        if one == other {
            return Ok(());
        }
        let written = self.written;
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let swap = |storage, places| swap_rows(storage, one, other, places);
            layer.change_rows(written, swap).ok_or(Error::CacheLost { layer: index })?;
        }
        match one.max(other) < self.padding.len() {
            true => self.padding.swap(one, other),
            false => self.resting.swap(one, other),
        }
        Ok(())
    }

    /// Begins one text behind those held, as [`begin_beside`](Self::begin_beside) does, with the first `tokens` tokens of the one
    /// at `place` as if they had been run: `batch` is what comes after. The one at `place` stays, unless it rests just behind
    /// those held.
    ///
    /// # Errors
    /// As [`begin_beside`](Self::begin_beside), and [`Error::Row`] for a place that does not [hold](Self::holds) them.
    ///
    /// # Panics
    /// If the batch is of several texts.
    pub fn begin_from(&mut self, place: usize, tokens: usize, batch: &Batch) -> Result<(), Error> {
        assert_eq!(batch.rows(), 1, "one text");
        let to = self.padding.len();
        let Some(columns) = self.columns(place).filter(|_| self.holds(place, tokens)) else {
            return Err(Error::Row { row: place, rows: self.resting.len() });
        };
        self.check_beside(1)?;
        let length = tokens.saturating_add(batch.tokens());
        if length > self.options.context {
            let capacity = self.options.context;
            return Err(Error::ContextFull { position: tokens, tokens: batch.tokens(), capacity });
        }
        if to == 0 {
            // Nothing says where the text ends: where nothing has to be moved, if others can still begin there.
            self.position = (columns.start + length).max(self.options.context + 1);
        }
        let (position, start) = (self.position, self.position - length);
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let copied = layer.go_on_from([place, to], columns.clone(), tokens, start);
            copied.ok_or(Error::CacheLost { layer: index })?;
        }
        self.begin_rows(start + tokens, vec![start], position);
        Ok(())
    }
}

impl Layer {
    /// Makes text `to` of the first `tokens` tokens of text `from`, whose columns are `columns`, so that it begins at column
    /// `start`.
    fn go_on_from(
        &mut self,
        [from, to]: [usize; 2],
        columns: Range<usize>,
        tokens: usize,
        start: usize,
    ) -> Option<()> {
        match self {
            Self::Attention(layer) => {
                let end = columns.start + tokens;
                // What is looked at and still there.
                let oldest = layer.oldest(end).max(layer.oldest(columns.end));
                let first = oldest.clamp(columns.start, end);
                layer.move_columns([from, to], first..end, start + (first - columns.start))
            }
            Self::Shared => Some(()),
            Self::Recurrent(layer) => {
                layer.change_rows(|state, places| copy_row(state, from, to, places))
            }
        }
    }
}

impl AttentionLayer {
    /// Writes columns of one text to another one, or the same, from column `at` on.
    fn move_columns(
        &mut self,
        [from, to]: [usize; 2],
        columns: Range<usize>,
        at: usize,
    ) -> Option<()> {
        let (capacity, first) = (self.capacity, columns.start % self.capacity);
        if columns.is_empty() || from == to && at % capacity == first {
            return Some(());
        }
        let before = columns.len().min(capacity - first);
        let places = [first..first + before, 0..columns.len() - before];
        self.change_rows(usize::MAX, |storage, _| {
            // All of it is read before any of it is overwritten.
            let parts = places.clone().map(|places| row_places(&storage, from, places));
            let [start, rest] = parts;
            let storage = write(storage, to, at, start);
            if rest.dims()[2] == 0 { storage } else { write(storage, to, at + before, rest) }
        })
    }
}

/// Exchanges two rows, in the first `places` of each head.
fn swap_rows(mut storage: Tensor<4>, one: usize, other: usize, places: usize) -> Tensor<4> {
    // One half after the other, so that no more than a row is held beside.
    for places in [0..places / 2, places / 2..places] {
        if !places.is_empty() {
            let [of_one, of_other] =
                [one, other].map(|row| row_places(&storage, row, places.clone()));
            storage = assign_places(storage, other, places.clone(), of_one);
            storage = assign_places(storage, one, places, of_other);
        }
    }
    storage
}
