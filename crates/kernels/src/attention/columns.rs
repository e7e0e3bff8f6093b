//! Where the rows of keys and values of a column are.

use std::ops::Range;

use super::{AttentionShape, KvElement, KvSegment, RingLayout, StridedRows};

/// Keys and values of consecutive columns, of a known type.
#[derive(Debug)]
pub(super) struct TypedSegment<'a, E> {
    keys: TypedRows<'a, E>,
    values: TypedRows<'a, E>,
    ring: RingLayout,
}

/// Rows of keys or of values, of a known type.
#[derive(Debug)]
struct TypedRows<'a, E> {
    elements: &'a [E],
    rows: StridedRows<'a>,
    width: usize,
}

/// Columns that are one behind the other in a part, of one head.
#[derive(Debug)]
pub(super) struct KvRun<'a, E> {
    /// The first of them.
    pub column: usize,
    /// As many rows as there are columns.
    pub keys: RowRun<'a, E>,
    /// As many as keys.
    pub values: RowRun<'a, E>,
}

/// Rows that lie at equal distances: what a loop walks.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowRun<'a, E> {
    /// From the first element of the first row to the last of the last.
    pub elements: &'a [E],
    /// Elements from one row to the next.
    pub step: usize,
    /// How many rows; at least one.
    pub rows: usize,
}

impl<'a, E: KvElement> TypedSegment<'a, E> {
    /// # Panics
    ///
    /// If keys or values are of another type, or do not have all rows that they claim.
    pub fn new(segment: &KvSegment<'a>, shape: &AttentionShape) -> Self {
        let ring = segment.ring;
        let count = ring.end.saturating_sub(ring.first);
        assert!(
            ring.first >= ring.origin && count <= ring.capacity,
            "columns {}.. do not fit into the ring {ring:?}",
            ring.first
        );
        let typed = |rows: &StridedRows<'a>, name| {
            let Some(elements) = E::of(rows.elements) else {
                panic!("{name} must be of the type of the other keys and values")
            };
            let typed = TypedRows { elements, rows: *rows, width: shape.width };
            let last = typed.end(shape.batch - 1, shape.key_heads - 1, ring.capacity);
            assert!(
                last.is_some_and(|end| end <= elements.len()),
                "{name} must hold {} slots of each head of {shape:?}",
                ring.capacity
            );
            typed
        };
        Self { keys: typed(&segment.keys, "keys"), values: typed(&segment.values, "values"), ring }
    }

    /// The columns held.
    pub fn columns(&self) -> Range<usize> {
        self.ring.first..self.ring.end
    }

    /// The columns among `columns` that are held, in order; of one head of one sequence.
    fn runs(
        &self,
        (sequence, head): (usize, usize),
        columns: Range<usize>,
    ) -> impl Iterator<Item = KvRun<'a, E>> {
        let RingLayout { first, end, capacity, origin } = self.ring;
        let mut column = columns.start.max(first);
        let end = columns.end.min(end);
        std::iter::from_fn(move || {
            (column < end).then(|| {
                let (start, slot) = (column, (column - origin) % capacity);
                column = end.min(start + (capacity - slot));
                let run =
                    |typed: &TypedRows<'a, E>| typed.run(sequence, head, slot, column - start);
                KvRun { column: start, keys: run(&self.keys), values: run(&self.values) }
            })
        })
    }
}

impl<'a, E> TypedRows<'a, E> {
    /// One past the last element of the first `slots` slots of a head.
    fn end(&self, sequence: usize, head: usize, slots: usize) -> Option<usize> {
        if slots == 0 {
            return Some(0);
        }
        let StridedRows { sequence_stride, head_stride, slot_stride, .. } = self.rows;
        let sequence = sequence.checked_mul(sequence_stride)?;
        let start = sequence.checked_add(head.checked_mul(head_stride)?)?;
        start.checked_add((slots - 1).checked_mul(slot_stride)?)?.checked_add(self.width)
    }

    /// `rows` rows from a slot on; there are as many.
    fn run(&self, sequence: usize, head: usize, slot: usize, rows: usize) -> RowRun<'a, E> {
        let StridedRows { sequence_stride, head_stride, slot_stride: step, .. } = self.rows;
        let start = sequence * sequence_stride + head * head_stride + slot * step;
        let length = (rows - 1) * step + self.width;
        RowRun { elements: &self.elements[start..start + length], step, rows }
    }
}

/// What is held of `columns`, in order; of one head of one sequence.
pub(super) fn runs<'a, E: KvElement>(
    segments: &[TypedSegment<'a, E>],
    head: (usize, usize),
    columns: Range<usize>,
) -> impl Iterator<Item = KvRun<'a, E>> {
    segments.iter().flat_map(move |segment| segment.runs(head, columns.clone()))
}

/// Whether the parts, one behind the other, hold all of `columns`.
pub(super) fn cover<E: KvElement>(
    segments: &[TypedSegment<'_, E>],
    columns: &Range<usize>,
) -> bool {
    let mut next = columns.start;
    for segment in segments {
        let columns = segment.columns();
        if columns.start <= next {
            next = next.max(columns.end);
        }
    }
    let apart = segments.windows(2).all(|pair| pair[0].columns().end <= pair[1].columns().start);
    apart && (columns.is_empty() || next >= columns.end)
}
