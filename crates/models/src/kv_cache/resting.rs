//! Texts that rest: nothing runs them, and others may go on from what the cache holds of them.

use std::ops::Range;

use burn::tensor::Tensor;

use super::KvCache;
use super::attention_layer::{AttentionLayer, assign_places, copy_row, row_places, write};
use super::layer::Layer;
use crate::{Batch, Error};

impl KvCache {
    /// Has the last texts rest, in a cache that [replaces](crate::WhenFull::Replace) texts: only
    /// the first `rows` are run from now on. One that rests is lost once another begins in its
    /// place.
    pub fn rest(&mut self, rows: usize) {
        self.resting.resize(self.options.sequences(), None);
        for place in rows..self.padding.len() {
            self.resting[place] = Some(self.padding[place]..self.position);
        }
        self.padding.truncate(rows);
    }

    /// Whether any text rests.
    pub fn rests(&self) -> bool {
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

    /// Whether a text can [begin](Self::begin_behind) with the first `tokens` tokens of the one at
    /// a place: not where a sliding window has moved on, nor where later tokens are part of a
    /// state.
    pub fn holds(&self, place: usize, tokens: usize) -> bool {
        let Some(Range { start, end }) = self.columns(place) else { return false };
        let position = start + tokens;
        let held = |layer: &Layer| {
            let sees = |layer: &AttentionLayer| {
                layer.oldest(end) <= layer.oldest_seen(position).max(start)
            };
            layer.windows().all(sees) && (layer.recurrent.is_none() || position == end)
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

    /// Begins texts behind those held, as [`begin_beside`](Self::begin_beside) does, each with its
    /// prefix, if it has one, as if that had been run: `batch` is what comes after. Where there is
    /// a prefix there is no padding.
    ///
    /// The texts take the places behind those held, one after the other. What rests in such a place
    /// is lost, and no prefix of a later text; its own it may be.
    ///
    /// # Errors
    /// As [`begin_beside`](Self::begin_beside), and [`Error::Row`] for a prefix that is not
    /// [held](Self::holds). Nothing has changed then.
    ///
    /// # Panics
    /// If there are not as many prefixes as texts.
    pub fn begin_behind(
        &mut self,
        prefixes: &[Option<RowPrefix>],
        batch: &Batch,
    ) -> Result<(), Error> {
        assert_eq!(prefixes.len(), batch.rows(), "each text may have a prefix");
        self.check_beside(batch.rows())?;
        let (held, tokens, capacity) = (self.held(), batch.tokens(), self.options.context);
        let mut moves = Vec::with_capacity(prefixes.len());
        for (row, prefix) in prefixes.iter().enumerate() {
            let Some(RowPrefix { place, tokens: kept }) = *prefix else { continue };
            let to = held + row;
            let is_there = self.holds(place, kept) && !(held..to).contains(&place);
            let Some(columns) = self.columns(place).filter(|_| is_there) else {
                return Err(Error::Row { row: place, rows: self.rows() });
            };
            if kept.saturating_add(tokens) > capacity {
                return Err(Error::ContextFull { position: kept, tokens, capacity });
            }
            moves.push(Move { from: place, to, columns, tokens: kept });
        }
        if held == 0 {
            // Nothing says where the texts end: where one has not to be moved, if any text can
            // still begin there, and not in the first column.
            let stays = moves.iter().find(|moved| moved.from == moved.to);
            let end = stays.map_or(0, |moved| moved.columns.start + moved.tokens + tokens);
            (self.position, self.padding) = (end.max(capacity + 1), Vec::new());
        }
        let position = self.position;
        if tokens > capacity || tokens >= position {
            let capacity = capacity.min(position);
            return Err(Error::ContextFull { position: 0, tokens, capacity });
        }
        let first = position - tokens;
        let mut padding = vec![first; batch.rows()];
        for moved in &moves {
            let start = first - moved.tokens;
            padding[moved.to - held] = start;
            for (index, layer) in self.layers.iter_mut().enumerate() {
                layer.keep(moved, start).ok_or(Error::CacheLost { layer: index })?;
            }
        }
        self.begin_rows(first, padding, position);
        Ok(())
    }
}

/// Tokens of the text at a place of a cache that another one begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPrefix {
    /// The place: one of those held, or behind them.
    pub place: usize,
    /// How many.
    pub tokens: usize,
}

/// The beginning of a text that becomes another one's.
#[derive(Debug)]
struct Move {
    from: usize,
    to: usize,
    /// Those of the text that it is of.
    columns: Range<usize>,
    tokens: usize,
}

impl Layer {
    /// Has a text begin at column `start` with what another one, or itself, begins with.
    fn keep(&mut self, moved: &Move, start: usize) -> Option<()> {
        let &Move { from, to, ref columns, tokens } = moved;
        for layer in self.windows_mut() {
            let end = columns.start + tokens;
            // What is looked at and still there.
            let oldest = layer.oldest(end).max(layer.oldest(columns.end));
            let first = oldest.clamp(columns.start, end);
            layer.move_columns([from, to], first..end, start + (first - columns.start))?;
        }
        if let Some(layer) = &mut self.entries {
            let [first, at] = [columns.start, start].map(|column| layer.first(column));
            let count = layer.count(tokens);
            layer.entries.move_columns([from, to], first..first + count, at)?;
        }
        match &mut self.recurrent {
            Some(layer) => layer.change_rows(|state, places| copy_row(state, from, to, places)),
            None => Some(()),
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
