//! What one call of attention is about, and the tasks that it is cut into.

use std::ops::Range;

use super::columns::{self, KvRun, TypedSegment};
use super::{AttentionMask, AttentionShape, BLOCK, KvElement};
use crate::ActivationDtype;
use crate::exp::tanh;

/// One call of attention.
#[derive(Debug)]
pub(super) struct AttentionInputs<'a, E> {
    /// `[batch, tokens, heads, width]`.
    pub queries: &'a [f32],
    pub shape: AttentionShape,
    /// Keys and values, older columns first.
    pub segments: &'a [TypedSegment<'a, E>],
    pub mask: &'a AttentionMask,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Whether products are of tiles of bf16, and then what of.
    pub in_tiles: bool,
    pub compute: ActivationDtype,
}

/// Some tokens of a sequence, and the heads of queries that share a head of keys.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub sequence: usize,
    /// The head of keys.
    pub head: usize,
    pub tokens: Range<usize>,
}

impl<'a, E: KvElement> AttentionInputs<'a, E> {
    /// Heads of queries that share a head of keys.
    fn group(&self) -> usize {
        self.shape.heads / self.shape.key_heads
    }

    /// Rows of queries of a task: for each token those of each head.
    pub fn rows(&self, task: &Task) -> usize {
        task.tokens.len() * self.group()
    }

    /// Columns that a row of a task sees, counted from the sequence's first token.
    pub fn seen(&self, task: &Task, row: usize) -> Range<usize> {
        let Range { start, end } =
            self.mask.columns(task.sequence, task.tokens.start + row / self.group());
        // Padding sees nothing.
        let first = self.mask.padding[task.sequence];
        start.saturating_sub(first)..end.saturating_sub(first)
    }

    /// Blocks of columns that any row of a task sees.
    pub fn blocks(&self, task: &Task) -> Range<usize> {
        let start = self.seen(task, 0).start;
        let end = self.seen(task, self.rows(task) - 1).end;
        start.min(end) / BLOCK..end.div_ceil(BLOCK)
    }

    /// Columns of a block that any of some rows of a task sees, counted from the block's first.
    pub fn seen_of_block(&self, task: &Task, rows: Range<usize>, block: usize) -> Range<usize> {
        let within = |at: usize| at.saturating_sub(block * BLOCK).min(BLOCK);
        // Of later tokens both begin and end later.
        let start = within(self.seen(task, rows.start).start);
        let end = within(self.seen(task, rows.end - 1).end);
        start.min(end)..end
    }

    /// Keys and values at some columns of a block, counted from its first.
    pub fn runs(
        &self,
        task: &Task,
        block: usize,
        columns: Range<usize>,
    ) -> impl Iterator<Item = KvRun<'a, E>> {
        let first = self.mask.padding[task.sequence] + block * BLOCK;
        let columns = first + columns.start..first + columns.end;
        columns::runs(self.segments, (task.sequence, task.head), columns)
            .map(move |run| KvRun { column: run.column - first, ..run })
    }

    /// Multiply-adds of a task, about.
    pub fn multiply_adds(&self, task: &Task) -> usize {
        let blocks = self.blocks(task);
        let seen = self.seen(task, self.rows(task) - 1).len();
        let columns = seen.min(blocks.len().saturating_mul(BLOCK));
        2 * self.rows(task) * columns * self.shape.width
    }

    /// The query of a row.
    pub fn query(&self, task: &Task, row: usize) -> &'a [f32] {
        let width = self.shape.width;
        &self.queries[self.offset(task, row)..][..width]
    }

    /// Caps the scores of some rows at some columns of a block, those of `lanes` rows for each
    /// column one behind the other, and adds the mask's biases to them.
    #[inline(always)]
    pub fn cap_and_add_biases(
        &self,
        (task, block): (&Task, usize),
        rows: Range<usize>,
        columns: Range<usize>,
        lanes: usize,
        scores: &mut [f32],
    ) {
        if let Some(cap) = self.mask.softcap {
            // Scores are not scaled yet, and will be.
            let (within, beyond) = (self.scale / cap, cap / self.scale);
            for score in &mut scores[columns.start * lanes..columns.end * lanes] {
                *score = beyond * tanh(*score * within);
            }
        }
        let padding = self.mask.padding[task.sequence];
        let (start, rows) = (block * BLOCK, rows.map(|row| self.head_and_column(task, row)));
        if let Some(alibi) = &self.mask.alibi {
            let rows = rows.clone().map(|(head, column)| (head, column.saturating_sub(padding)));
            alibi.add(scores, lanes, columns.clone(), start, rows, self.scale);
        }
        if let Some(bias) = &self.mask.relative_bias {
            bias.add(scores, lanes, columns, padding + start, rows, self.scale);
        }
    }

    /// The sink of a row's head of queries, if there are sinks.
    pub fn sink(&self, task: &Task, row: usize) -> Option<f32> {
        let sinks = self.mask.sinks.as_ref()?;
        sinks.get(self.head_and_column(task, row).0).copied()
    }

    /// Which head of queries a row is of, and the column of its token.
    fn head_and_column(&self, task: &Task, row: usize) -> (usize, usize) {
        let group = self.group();
        (task.head * group + row % group, self.mask.start + task.tokens.start + row / group)
    }

    /// Where in queries and results a row begins.
    pub fn offset(&self, task: &Task, row: usize) -> usize {
        let (shape, group) = (&self.shape, self.group());
        let token = task.sequence * shape.tokens + task.tokens.start + row / group;
        (token * shape.heads + task.head * group + row % group) * shape.width
    }
}
