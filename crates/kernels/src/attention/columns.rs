//! Where the rows of keys and values of a column are.

use std::ops::Range;

use super::{Heads, Held, Places, Rows, Stored};

/// Keys and values of consecutive columns, of a known type.
#[derive(Debug)]
pub(super) struct Part<'a, E> {
    keys: Matrix<'a, E>,
    values: Matrix<'a, E>,
    places: Places,
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

/// Rows that lie at equal distances: what a loop walks.
#[derive(Debug)]
pub(super) struct Run<'a, E> {
    /// From the first element of the first row to the last of the last.
    pub elements: &'a [E],
    /// Elements from one row to the next.
    pub step: usize,
    /// How many rows.
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
            let Some(elements) = E::elements(rows.elements) else {
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

    /// Runs of places of which the columns are among `columns`, in order: the first column, its place, how many.
    fn runs(
        &self,
        columns: Range<usize>,
    ) -> impl Iterator<Item = (usize, usize, usize)> + use<'a, E> {
        let Places {
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
                (start, place, column - start)
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
    #[inline(always)]
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

/// Keys of one head at `columns`, in order: with each run its first column.
#[inline(always)]
pub(super) fn keys<'a, E: Stored>(
    parts: &'a [Part<'a, E>],
    (text, head): (usize, usize),
    columns: Range<usize>,
) -> impl Iterator<Item = (usize, Run<'a, E>)> {
    parts.iter().flat_map(move |part| {
        part.runs(columns.clone())
            .map(move |(column, place, rows)| (column, part.keys.run(text, head, place, rows)))
    })
}

/// As [`keys`], of values.
#[inline(always)]
pub(super) fn values<'a, E: Stored>(
    parts: &'a [Part<'a, E>],
    (text, head): (usize, usize),
    columns: Range<usize>,
) -> impl Iterator<Item = (usize, Run<'a, E>)> {
    parts.iter().flat_map(move |part| {
        part.runs(columns.clone())
            .map(move |(column, place, rows)| (column, part.values.run(text, head, place, rows)))
    })
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
