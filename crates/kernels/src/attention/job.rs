//! What one call of attention is about, and the tasks that it is cut into.

use std::ops::Range;

use super::columns::{self, Part, Stretch};
use super::{AttentionMask, BLOCK, Heads, Stored};

/// One call of attention.
#[derive(Debug)]
pub(super) struct Job<'a, E> {
    /// `[batch, tokens, heads, width]`.
    pub queries: &'a [f32],
    pub heads: Heads,
    /// Keys and values, older columns first.
    pub parts: &'a [Part<'a, E>],
    pub sight: &'a AttentionMask,
}

/// Some tokens of a text, and the heads of queries that share a head of keys.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub text: usize,
    /// The head of keys.
    pub head: usize,
    pub tokens: Range<usize>,
}

impl<'a, E: Stored> Job<'a, E> {
    /// Heads of queries that share a head of keys.
    fn group(&self) -> usize {
        self.heads.heads / self.heads.key_heads
    }

    /// Rows of queries of a task: for each token those of each head.
    pub fn rows(&self, task: &Task) -> usize {
        task.tokens.len() * self.group()
    }

    /// Columns that a row of a task sees, counted from the text's first token.
    pub fn seen(&self, task: &Task, row: usize) -> Range<usize> {
        let Range { start, end } = self
            .sight
            .columns(task.text, task.tokens.start + row / self.group());
        // Padding sees nothing.
        let first = self.sight.padding[task.text];
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
    pub fn stretches(
        &self,
        task: &Task,
        block: usize,
        columns: Range<usize>,
    ) -> impl Iterator<Item = Stretch<'a, E>> {
        let first = self.sight.padding[task.text] + block * BLOCK;
        let columns = first + columns.start..first + columns.end;
        columns::stretches(self.parts, (task.text, task.head), columns).map(move |stretch| {
            Stretch {
                column: stretch.column - first,
                ..stretch
            }
        })
    }

    /// Multiply-adds of a task, about.
    pub fn products(&self, task: &Task) -> usize {
        let blocks = self.blocks(task);
        let seen = self.seen(task, self.rows(task) - 1).len();
        let columns = seen.min(blocks.len().saturating_mul(BLOCK));
        2 * self.rows(task) * columns * self.heads.width
    }

    /// The query of a row.
    pub fn query(&self, task: &Task, row: usize) -> &'a [f32] {
        let width = self.heads.width;
        &self.queries[self.place(task, row)..][..width]
    }

    /// Where in queries and results a row begins.
    pub fn place(&self, task: &Task, row: usize) -> usize {
        let (heads, group) = (&self.heads, self.group());
        let token = task.text * heads.tokens + task.tokens.start + row / group;
        (token * heads.heads + task.head * group + row % group) * heads.width
    }
}
