//! What one layer of attention keeps, and what can be seen of it.

use std::ops::Range;

use burn::tensor::{Device, Tensor};
use outsize_kernels::KvTensors;
use outsize_kernels::attention::RingLayout;

/// Keys of a layer, and its values where keys do not serve as these.
type KeysAndValues = (Tensor<4>, Option<Tensor<4>>);

/// One layer's keys and values, `[batch, key_value_heads, capacity, head_dim]` each, column `c` at
/// place `c % capacity`; `None` only while being written.
///
/// A tensor is written in place as long as it is owned here alone. So it is moved out, written and
/// moved back, and views of it must be dropped before the next write.
#[derive(Debug)]
pub(super) struct AttentionLayer {
    /// Columns that a token sees, its own included.
    pub window: usize,
    /// Columns of a chunk, if texts are cut into chunks: a token sees none before its own.
    pub chunk: Option<usize>,
    pub capacity: usize,
    pub keys: Option<Tensor<4>>,
    /// `None` also where keys serve as values.
    pub values: Option<Tensor<4>>,
    pub keys_are_values: bool,
    /// Whether a snapshot is of this layer too.
    pub forgets: bool,
    pub snapshot: Option<Box<KeysAndValues>>,
}

impl AttentionLayer {
    /// One whose keys serve as values, without storage.
    pub fn shared(window: usize, capacity: usize) -> Self {
        Self {
            window,
            chunk: None,
            capacity,
            keys: None,
            values: None,
            keys_are_values: true,
            forgets: false,
            snapshot: None,
        }
    }

    /// Takes columns from `position` on of the texts from `row` on, and gives all that their tokens
    /// may look at.
    pub fn see(
        &mut self,
        row: usize,
        position: usize,
        keys: Tensor<4>,
        values: Tensor<4>,
    ) -> Option<Seen> {
        let [rows, _, tokens, _] = keys.dims();
        let end = position + tokens;
        let (window, chunk) = (self.window, self.chunk);
        let seen = |parts| Seen { parts, window, chunk, all: false, held_back: None };
        if self.capacity == 0 {
            return Some(seen(vec![Part::of(keys, values)]));
        }
        if self.oldest(end) <= self.oldest_seen(position) {
            self.write(row, position, keys, values)?;
            return Some(seen(vec![self.part(end, row..row + rows)?]));
        }
        let mut parts = Vec::with_capacity(2);
        if position > 0 {
            parts.push(self.part(position, row..row + rows)?);
        }
        parts.push(Part {
            keys: keys.clone(),
            values: values.clone(),
            len: tokens,
            order: Order::From(position),
        });
        Some(Seen { held_back: Some((keys, values)), ..seen(parts) })
    }

    /// Where it is; nowhere if it keeps nothing.
    pub fn device(&self) -> Option<Device> {
        self.keys.as_ref().map(Tensor::device)
    }

    pub fn is_lost(&self) -> bool {
        self.keys.is_none() || (self.values.is_none() && !self.keys_are_values)
    }

    /// The oldest column held, if columns up to `written`, exclusive, have been written.
    pub fn oldest(&self, written: usize) -> usize {
        written.saturating_sub(self.capacity)
    }

    /// The oldest column in sight of a token at `position`.
    pub fn oldest_seen(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window)
    }

    /// All places of some texts, as they are when columns up to `end`, exclusive, have been
    /// written; `end` is above 0.
    pub fn part(&self, end: usize, rows: Range<usize>) -> Option<Part> {
        let keys = self.keys.clone()?.narrow(0, rows.start, rows.len());
        Some(Part {
            values: match self.keys_are_values {
                true => keys.clone(),
                false => self.values.clone()?.narrow(0, rows.start, rows.len()),
            },
            keys,
            len: end.min(self.capacity),
            order: if end <= self.capacity {
                Order::From(0)
            } else {
                Order::Around { end, capacity: self.capacity }
            },
        })
    }

    /// Writes columns from `position` on of the texts from `row` on; the last `capacity` of them
    /// stay.
    pub fn write(
        &mut self,
        row: usize,
        position: usize,
        keys: Tensor<4>,
        values: Tensor<4>,
    ) -> Option<()> {
        self.keys = Some(write(self.keys.take()?, row, position, keys));
        if !self.keys_are_values {
            self.values = Some(write(self.values.take()?, row, position, values));
        }
        Some(())
    }

    /// As [`Layer::change_rows`](super::layer::Layer::change_rows).
    pub fn change_rows(
        &mut self,
        written: usize,
        mut change: impl FnMut(Tensor<4>, usize) -> Tensor<4>,
    ) -> Option<()> {
        let places = written.min(self.capacity);
        self.keys = Some(change(self.keys.take()?, places));
        if !self.keys_are_values {
            self.values = Some(change(self.values.take()?, places));
        }
        Some(())
    }
}

/// Makes row `to` what row `from` is, in the first `places` of each head.
pub(super) fn copy_row(storage: Tensor<4>, from: usize, to: usize, places: usize) -> Tensor<4> {
    if places == 0 || from == to {
        return storage;
    }
    let copy = row_places(&storage, from, 0..places);
    assign_places(storage, to, 0..places, copy)
}

/// A copy of some places of a row, `[1, heads, places, width]`.
///
/// Not a view: the storage would then be shared, and a write would copy all of it.
pub(super) fn row_places(storage: &Tensor<4>, row: usize, places: Range<usize>) -> Tensor<4> {
    let [_, heads, _, width] = storage.dims();
    let copy = storage.clone().slice([row..row + 1, 0..heads, places, 0..width]).into_data();
    Tensor::from_data(copy, (&storage.device(), storage.dtype()))
}

/// Overwrites these places of a row.
pub(super) fn assign_places(
    storage: Tensor<4>,
    row: usize,
    places: Range<usize>,
    new: Tensor<4>,
) -> Tensor<4> {
    let [_, heads, _, width] = storage.dims();
    storage.slice_assign([row..row + 1, 0..heads, places, 0..width], new)
}

/// Writes columns from `position` on of the rows from `row` on; the last `capacity` of them stay.
pub(super) fn write(
    mut storage: Tensor<4>,
    row: usize,
    position: usize,
    new: Tensor<4>,
) -> Tensor<4> {
    let ([_, heads, capacity, width], [batch, _, tokens, _]) = (storage.dims(), new.dims());
    let mut done = tokens.saturating_sub(capacity);
    while done < tokens {
        let place = (position + done) % capacity;
        let count = (tokens - done).min(capacity - place);
        storage = storage.slice_assign(
            [row..row + batch, 0..heads, place..place + count, 0..width],
            new.clone().narrow(2, done, count),
        );
        done += count;
    }
    storage
}

/// Keys and values of some columns, `[batch, key_value_heads, capacity, head_dim]` each, as stored.
#[derive(Debug)]
pub(crate) struct Part {
    pub keys: Tensor<4>,
    pub values: Tensor<4>,
    /// Places that hold a column: the first ones.
    pub len: usize,
    pub(super) order: Order,
}

/// Which column is where.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    /// One after the other, from this one on.
    From(usize),
    /// The last `capacity` columns before `end`, column `c` at place `c % capacity`.
    Around { end: usize, capacity: usize },
}

impl Part {
    /// Keys and values `[batch, key_value_heads, columns, head_dim]` of the columns from the first
    /// one on.
    pub fn of(keys: Tensor<4>, values: Tensor<4>) -> Self {
        Self { len: keys.dims()[2], keys, values, order: Order::From(0) }
    }

    /// Where columns `oldest` to `newest`, inclusive, are; others may be among them.
    pub fn places(&self, oldest: usize, newest: usize) -> Range<usize> {
        let len = self.len;
        match self.order {
            Order::From(start) => {
                let end = len.min((newest + 1).saturating_sub(start));
                oldest.saturating_sub(start).min(end)..end
            }
            Order::Around { end, .. } if end <= oldest => 0..0,
            Order::Around { .. } => 0..len,
        }
    }

    /// The same as the kernels take it.
    pub fn cached(&self) -> KvTensors {
        let capacity = self.keys.dims()[2];
        let ring = match self.order {
            Order::From(start) => {
                RingLayout { first: start, end: start + self.len, capacity, origin: start }
            }
            Order::Around { end, .. } => {
                RingLayout { first: end - self.len, end, capacity, origin: 0 }
            }
        };
        KvTensors { keys: self.keys.clone(), values: self.values.clone(), ring }
    }

    /// The same columns of other keys and values.
    pub fn like(&self, keys: Tensor<4>, values: Tensor<4>) -> Self {
        Self { keys, values, ..*self }
    }

    /// The place of a column, if it is held.
    pub fn place(&self, column: usize) -> Option<usize> {
        let (oldest, place) = match self.order {
            Order::From(start) => (start, column.checked_sub(start)?),
            Order::Around { end, capacity } => (end - self.len, column % capacity),
        };
        (oldest..oldest + self.len).contains(&column).then_some(place)
    }

    /// The column at a place.
    pub fn column(&self, place: usize) -> usize {
        match self.order {
            Order::From(start) => start + place,
            Order::Around { end, capacity } => {
                let newest = end - 1;
                newest - (newest + capacity - place) % capacity
            }
        }
    }
}

/// What the tokens of a pass may look at in one layer.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Older columns first.
    pub parts: Vec<Part>,
    /// Columns that a token sees, its own included.
    pub window: usize,
    /// Columns of a chunk, if a token sees none before its own chunk.
    pub chunk: Option<usize>,
    /// Whether all tokens see all columns, later ones too.
    pub all: bool,
    /// The pass's keys and values, if writing them now would overwrite what its first tokens look
    /// at.
    pub held_back: Option<(Tensor<4>, Tensor<4>)>,
}

impl Seen {
    /// These columns alone, all of them by all tokens.
    pub fn whole(part: Part) -> Self {
        Self { parts: vec![part], window: usize::MAX, chunk: None, all: true, held_back: None }
    }

    /// What was held back. The rest is let go, so that this can be written in its place.
    pub fn into_held_back(self) -> Option<(Tensor<4>, Tensor<4>)> {
        self.held_back
    }
}
