//! Where the rows of keys and values of a column are.

use std::ops::Range;

use super::{Heads, Held, RingLayout, Rows, Stored};

/// Keys and values of consecutive columns, of a known type.
#[derive(Debug)]
pub(super) struct Part<'a, E> {
    keys: Matrix<'a, E>,
    values: Matrix<'a, E>,
    places: RingLayout,
}

/// As [`Rows`].
#[derive(Debug)]
struct Matrix<'a, E> {
    elements: &'a [E],
    text: usize,
    head: usize,
    place: usize,
    width: usize,
}

/// Columns that are one behind the other in a part, of one head.
#[derive(Debug)]
pub(super) struct Stretch<'a, E> {
    /// The first of them.
    pub column: usize,
    /// As many rows as there are columns.
    pub keys: Run<'a, E>,
    /// As many as keys.
    pub values: Run<'a, E>,
}

/// Rows that lie at equal distances: what a loop walks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a, E> {
    /// From the first element of the first row to the last of the last.
    pub elements: &'a [E],
    /// Elements from one row to the next.
    pub step: usize,
    /// How many rows; at least one.
    pub rows: usize,
}

impl<'a, E: Stored> Part<'a, E> {
    /// # Panics
    ///
    /// If keys or values are of another type, or do not have all rows that they claim.
    pub fn new(held: &Held<'a>, heads: &Heads) -> Self {
        let places = held.places;
        let count = places.end.saturating_sub(places.first);
        assert!(
            places.first >= places.origin && count <= places.capacity,
            "columns {}.. do not fit into the places {places:?}",
            places.first
        );
        let matrix = |rows: &Rows<'a>, name| {
            let Some(elements) = E::of(rows.elements) else {
                panic!("{name} must be of the type of the other keys and values")
            };
            let matrix = Matrix {
                elements,
                text: rows.text,
                head: rows.head,
                place: rows.place,
                width: heads.width,
            };
            let last = matrix.end(heads.batch - 1, heads.key_heads - 1, places.capacity);
            assert!(
                last.is_some_and(|end| end <= elements.len()),
                "{name} must hold {} places of each head of {heads:?}",
                places.capacity
            );
            matrix
        };
        Self {
            keys: matrix(&held.keys, "keys"),
            values: matrix(&held.values, "values"),
            places,
        }
    }

    /// The columns held.
    pub fn held(&self) -> Range<usize> {
        self.places.first..self.places.end
    }

    /// The columns among `columns` that are held, in order; of one head of one text.
    fn stretches(
        &self,
        (text, head): (usize, usize),
        columns: Range<usize>,
    ) -> impl Iterator<Item = Stretch<'a, E>> {
        let RingLayout {
            first,
            end,
            capacity,
            origin,
        } = self.places;
        let mut column = columns.start.max(first);
        let end = columns.end.min(end);
        std::iter::from_fn(move || {
            (column < end).then(|| {
                let (start, place) = (column, (column - origin) % capacity);
                column = end.min(start + (capacity - place));
                let run = |matrix: &Matrix<'a, E>| matrix.run(text, head, place, column - start);
                Stretch {
                    column: start,
                    keys: run(&self.keys),
                    values: run(&self.values),
                }
            })
        })
    }
}

impl<'a, E> Matrix<'a, E> {
    /// One past the last element of the first `places` places of a head.
    fn end(&self, text: usize, head: usize, places: usize) -> Option<usize> {
        if places == 0 {
            return Some(0);
        }
        let start = text
            .checked_mul(self.text)?
            .checked_add(head.checked_mul(self.head)?)?;
        start
            .checked_add((places - 1).checked_mul(self.place)?)?
            .checked_add(self.width)
    }

    /// `rows` rows from a place on; there are as many.
    fn run(&self, text: usize, head: usize, place: usize, rows: usize) -> Run<'a, E> {
        let start = text * self.text + head * self.head + place * self.place;
        let length = (rows - 1) * self.place + self.width;
        Run {
            elements: &self.elements[start..start + length],
            step: self.place,
            rows,
        }
    }
}

/// What is held of `columns`, in order; of one head of one text.
pub(super) fn stretches<'a, E: Stored>(
    parts: &[Part<'a, E>],
    head: (usize, usize),
    columns: Range<usize>,
) -> impl Iterator<Item = Stretch<'a, E>> {
    parts
        .iter()
        .flat_map(move |part| part.stretches(head, columns.clone()))
}

/// Whether the parts, one behind the other, hold all of `columns`.
pub(super) fn all_held<E: Stored>(parts: &[Part<'_, E>], columns: &Range<usize>) -> bool {
    let mut next = columns.start;
    for part in parts {
        let held = part.held();
        if held.start <= next {
            next = next.max(held.end);
        }
    }
    let apart = parts
        .windows(2)
        .all(|pair| pair[0].held().end <= pair[1].held().start);
    apart && (columns.is_empty() || next >= columns.end)
}
