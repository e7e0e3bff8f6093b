//! How tasks are shared among threads.
//!
//! Each thread claims several tasks that are one behind the other, many at first and single ones at
//! last, so that all end together and each knows what to fetch next. Where there are few tasks, it
//! is blocks of columns that are claimed, each with partials of its own, and whoever completes a
//! task puts its blocks together.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::KvElement;
use super::inputs::{AttentionInputs, Task};
use super::lanes::Lanes;
use super::partial::{finish, fold};
use super::worker::Worker;
use crate::Isa;
use crate::matmul::{Claims, OutputPtr};
use crate::simd::for_each_isa;

/// One call of attention for several threads.
pub(super) struct SharedCall<'a, E> {
    inputs: &'a AttentionInputs<'a, E>,
    tasks: &'a [Task],
    /// Rows of the largest task.
    rows: usize,
    claims: Claims,
    blocks: Option<BlockTasks>,
    y: OutputPtr,
}

/// Tasks in blocks.
struct BlockTasks {
    /// Which task, which block.
    all: Vec<(usize, usize)>,
    /// Of each task: where its blocks begin, and how many of them are not done.
    tasks: Vec<(usize, AtomicUsize)>,
    /// Records of all blocks, `slot` elements each.
    partials: OutputPtr,
    slot: usize,
}

/// Bytes of the lists of so many blocks of so many tasks.
pub(super) fn list_bytes(tasks: u64, blocks: u64) -> u64 {
    let of_tasks = tasks.saturating_mul(size_of::<(usize, AtomicUsize)>() as u64);
    of_tasks.saturating_add(blocks.saturating_mul(size_of::<(usize, usize)>() as u64))
}

/// Attends for all tasks, on up to so many threads.
///
/// # Safety
///
/// The processor has `isa`. No two tasks have a sequence, head and token in common; `y` is `[batch,
/// tokens, heads, width]`.
pub(super) unsafe fn attend<E: KvElement>(
    isa: Isa,
    inputs: &AttentionInputs<'_, E>,
    tasks: &[Task],
    threads: usize,
    y: &mut [f32],
) {
    let rows = tasks.iter().map(|task| inputs.rows(task)).max().unwrap_or(0);
    // Padding alone: there is no block after which such a task could be written.
    for task in tasks.iter().filter(|task| inputs.blocks(task).is_empty()) {
        for row in 0..inputs.rows(task) {
            y[inputs.offset(task, row)..][..inputs.shape.width].fill(0.0);
        }
    }
    let mut shared = SharedCall {
        inputs,
        tasks,
        rows,
        claims: Claims::of(tasks.len(), threads),
        blocks: None,
        y: OutputPtr(y.as_mut_ptr()),
    };
    let mut partials = vec![];
    if threads > 1 && tasks.len() < 2 * threads {
        let count = tasks.iter().map(|task| inputs.blocks(task).len()).sum();
        let mut all = Vec::with_capacity(count);
        let mut counts = Vec::with_capacity(tasks.len());
        for (index, task) in tasks.iter().enumerate() {
            let blocks = inputs.blocks(task);
            counts.push((all.len(), AtomicUsize::new(blocks.len())));
            all.extend(blocks.map(|block| (index, block)));
        }
        let slot = rows * inputs.partial_len();
        partials.resize(all.len() * slot, 0.0);
        shared.claims = Claims::of(all.len(), threads);
        shared.blocks = Some(BlockTasks {
            all,
            tasks: counts,
            partials: OutputPtr(partials.as_mut_ptr()),
            slot,
        });
    }
    // SAFETY: the caller's promise; `partials` is borrowed until `share` returns.
    crate::thread_pool::share(threads, || unsafe { work(isa, &shared) });
}

impl<E: KvElement> SharedCall<'_, E> {
    /// Claims and works until nothing is left.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`. `y` points to `[batch, tokens, heads, width]`
    /// elements and the partials of blocks to a slot for each, which nobody but calls of this
    /// touches.
    #[inline(always)]
    unsafe fn work<V: Lanes>(&self) {
        let mut worker = Worker::new(self.inputs, self.rows);
        let Some(blocks) = &self.blocks else {
            let mut memory = vec![0.0; 2 * self.rows * self.inputs.partial_len()];
            let (partials, later) = memory.split_at_mut(self.rows * self.inputs.partial_len());
            while let Some(claimed) = self.claims.claim() {
                let tasks = &self.tasks[claimed];
                for (index, task) in tasks.iter().enumerate() {
                    // SAFETY: the caller's promise; a task is claimed once.
                    unsafe {
                        worker.attend::<V>(task, tasks.get(index + 1), partials, later);
                        self.finish(task, partials);
                    }
                }
            }
            return;
        };
        while let Some(claimed) = self.claims.claim() {
            let claimed = &blocks.all[claimed];
            for (index, &(task, block)) in claimed.iter().enumerate() {
                let next = claimed.get(index + 1);
                let next = next.map(|&(task, block)| (&self.tasks[task], block));
                // SAFETY: the caller's promise; a block is claimed once.
                unsafe {
                    let partials = blocks.slots(task, block, self);
                    worker.block::<V>((&self.tasks[task], block), next, partials);
                    self.done(blocks, task);
                }
            }
        }
    }

    /// One block of a task is done; after the last one, puts them together.
    ///
    /// # Safety
    ///
    /// As for [`work`](Self::work), and that the caller wrote the block's partials.
    #[inline(always)]
    unsafe fn done(&self, blocks: &BlockTasks, index: usize) {
        let ((start, left), task) = (&blocks.tasks[index], &self.tasks[index]);
        // Whoever sees that nothing is left sees what all others wrote.
        if left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let (partial, count) = (self.inputs.partial_len(), self.inputs.blocks(task).len());
        // SAFETY: the caller's promise: there is a slot for each block, one behind the other, and
        // nobody else is at those of this task any more.
        let partials = unsafe {
            let first = blocks.partials.0.add(start * blocks.slot);
            std::slice::from_raw_parts_mut(first, count * blocks.slot)
        };
        let (folded, later) = partials.split_at_mut(blocks.slot);
        let rows = self.inputs.rows(task) * partial;
        for later in later.chunks_exact(blocks.slot) {
            let earlier = folded[..rows].chunks_exact_mut(partial);
            for (earlier, later) in earlier.zip(later.chunks_exact(partial)) {
                fold(earlier, later);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.finish(task, folded) };
    }

    /// Writes the results of a task.
    ///
    /// # Safety
    ///
    /// As for [`work`](Self::work), and that nobody else is at the task.
    #[inline(always)]
    unsafe fn finish(&self, task: &Task, partials: &[f32]) {
        let (partial, width) = (self.inputs.partial_len(), self.inputs.shape.width);
        for (row, partial) in (0..self.inputs.rows(task)).zip(partials.chunks_exact(partial)) {
            // SAFETY: the caller's promise; `slot` is that of a row of `width` elements of the
            // task's own.
            let y = unsafe {
                let row = self.y.0.add(self.inputs.offset(task, row));
                std::slice::from_raw_parts_mut(row, width)
            };
            finish(partial, self.inputs.sink(task, row), y);
        }
    }
}

impl BlockTasks {
    /// The partials of a block.
    ///
    /// # Safety
    ///
    /// Nobody else has them.
    #[allow(clippy::mut_from_ref, reason = "each block's are its claimant's alone")]
    unsafe fn slots<E: KvElement>(
        &self,
        task: usize,
        block: usize,
        shared: &SharedCall<'_, E>,
    ) -> &mut [f32] {
        let first = shared.inputs.blocks(&shared.tasks[task]).start;
        let at = (self.tasks[task].0 + block - first) * self.slot;
        // SAFETY: there is a slot for each block; and the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.partials.0.add(at), self.slot) }
    }
}

for_each_isa! {
    /// See [`SharedCall::work`].
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn work<V, E: KvElement>(shared: &SharedCall<'_, E>) {
        // SAFETY: the caller's promise.
        unsafe { shared.work::<V>() }
    }
}
