//! How tasks are shared among threads.
//!
//! Each thread claims several tasks that are one behind the other, many at first and single ones at last, so that all end together and
//! each knows what to fetch next. Where there are few tasks, it is blocks of columns that are claimed, each with records of its own, and whoever
//! completes a task puts its blocks together.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Stored;
use super::job::{Job, Task};
use super::lanes::Lanes;
use super::record::{finish, fold};
use super::worker::Worker;
use crate::Isa;

/// Tasks, or blocks of them, of which threads claim some at a time.
#[derive(Debug)]
struct Claims {
    next: AtomicUsize,
    end: usize,
    threads: usize,
}

impl Claims {
    fn new(end: usize, threads: usize) -> Self {
        let next = AtomicUsize::new(0);
        Self { next, end, threads }
    }

    /// The next ones, for this thread alone.
    fn claim(&self) -> Option<Range<usize>> {
        let end = |start: usize| start + ((self.end - start) / (2 * self.threads)).max(1);
        let start = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |start| {
                (start < self.end).then(|| end(start))
            })
            .ok()?;
        Some(start..end(start))
    }
}

/// One call of attention for several threads.
#[derive(Debug)]
pub(super) struct Shared<'a, E> {
    job: &'a Job<'a, E>,
    tasks: &'a [Task],
    /// Rows of the largest task.
    rows: usize,
    claims: Claims,
    blocks: Option<Blocks>,
    y: Address,
}

/// Tasks in blocks.
#[derive(Debug)]
struct Blocks {
    /// Which task, which block.
    all: Vec<(usize, usize)>,
    /// Of each task: where its blocks begin, and how many of them are not done.
    tasks: Vec<(usize, AtomicUsize)>,
    /// Records of all blocks, `slot` elements each.
    records: Address,
    slot: usize,
}

/// Bytes of the lists of so many blocks of so many tasks.
pub(super) fn list_bytes(tasks: u64, blocks: u64) -> u64 {
    let of_tasks = tasks.saturating_mul(size_of::<(usize, AtomicUsize)>() as u64);
    of_tasks.saturating_add(blocks.saturating_mul(size_of::<(usize, usize)>() as u64))
}

/// Where several threads write, each its own.
#[derive(Clone, Copy, Debug)]
struct Address(*mut f32);

// SAFETY: an address; who may write there is the contract of `Shared::work`.
unsafe impl Sync for Address {}
// SAFETY: as above.
unsafe impl Send for Address {}

/// Attends for all tasks, on up to so many threads.
///
/// # Safety
///
/// The processor has `isa`. No two tasks have a text, head and token in common; `y` is `[batch, tokens, heads, width]`.
pub(super) unsafe fn attend<E: Stored>(
    isa: Isa,
    job: &Job<'_, E>,
    tasks: &[Task],
    threads: usize,
    y: &mut [f32],
) {
    let rows = tasks.iter().map(|task| job.rows(task)).max().unwrap_or(0);
    let mut shared = Shared {
        job,
        tasks,
        rows,
        claims: Claims::new(tasks.len(), threads),
        blocks: None,
        y: Address(y.as_mut_ptr()),
    };
    let mut records = vec![];
    if threads > 1 && tasks.len() < 2 * threads {
        let count = tasks.iter().map(|task| job.blocks(task).len()).sum();
        let mut all = Vec::with_capacity(count);
        let mut parts = Vec::with_capacity(tasks.len());
        for (index, task) in tasks.iter().enumerate() {
            let blocks = job.blocks(task);
            parts.push((all.len(), AtomicUsize::new(blocks.len())));
            all.extend(blocks.map(|block| (index, block)));
        }
        let slot = rows * job.record();
        records.resize(all.len() * slot, 0.0);
        shared.claims = Claims::new(all.len(), threads);
        shared.blocks = Some(Blocks {
            all,
            tasks: parts,
            records: Address(records.as_mut_ptr()),
            slot,
        });
    }
    // SAFETY: the caller's promise; `records` is borrowed until `share` returns.
    crate::team::share(threads, || unsafe { work(isa, &shared) });
}

impl<E: Stored> Shared<'_, E> {
    /// Claims and works until nothing is left.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`. `y` points to `[batch, tokens, heads, width]` elements and the records of blocks to a slot for
    /// each, which nobody but calls of this touches.
    #[inline(always)]
    unsafe fn work<V: Lanes>(&self) {
        let mut worker = Worker::new(self.job, self.rows);
        let Some(blocks) = &self.blocks else {
            let mut memory = vec![0.0; 2 * self.rows * self.job.record()];
            let (records, later) = memory.split_at_mut(self.rows * self.job.record());
            while let Some(claimed) = self.claims.claim() {
                let tasks = &self.tasks[claimed];
                for (index, task) in tasks.iter().enumerate() {
                    // SAFETY: the caller's promise; a task is claimed once.
                    unsafe {
                        worker.attend::<V>(task, tasks.get(index + 1), records, later);
                        self.finish(task, records);
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
                    let records = blocks.slots(task, block, self);
                    worker.block::<V>((&self.tasks[task], block), next, records);
                    self.done(blocks, task);
                }
            }
        }
    }

    /// One block of a task is done; after the last one, puts them together.
    ///
    /// # Safety
    ///
    /// As for [`work`](Self::work), and that the caller wrote the block's records.
    #[inline(always)]
    unsafe fn done(&self, blocks: &Blocks, index: usize) {
        let ((start, left), task) = (&blocks.tasks[index], &self.tasks[index]);
        // Whoever sees that nothing is left sees what all others wrote.
        if left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let (record, count) = (self.job.record(), self.job.blocks(task).len());
        // SAFETY: the caller's promise: there is a slot for each block, one behind the other, and nobody else is at those of this task any more.
        let records = unsafe {
            let first = blocks.records.0.add(start * blocks.slot);
            std::slice::from_raw_parts_mut(first, count * blocks.slot)
        };
        let (folded, later) = records.split_at_mut(blocks.slot);
        let rows = self.job.rows(task) * record;
        for later in later.chunks_exact(blocks.slot) {
            let earlier = folded[..rows].chunks_exact_mut(record);
            for (earlier, later) in earlier.zip(later.chunks_exact(record)) {
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
    unsafe fn finish(&self, task: &Task, records: &[f32]) {
        let (record, width) = (self.job.record(), self.job.heads.width);
        for (row, record) in (0..self.job.rows(task)).zip(records.chunks_exact(record)) {
            // SAFETY: the caller's promise; `place` is that of a row of `width` elements of the task's own.
            let y = unsafe {
                let row = self.y.0.add(self.job.place(task, row));
                std::slice::from_raw_parts_mut(row, width)
            };
            finish(record, y);
        }
    }
}

impl Blocks {
    /// The records of a block.
    ///
    /// # Safety
    ///
    /// Nobody else has them.
    #[allow(clippy::mut_from_ref, reason = "each block's are its claimant's alone")]
    unsafe fn slots<E: Stored>(
        &self,
        task: usize,
        block: usize,
        shared: &Shared<'_, E>,
    ) -> &mut [f32] {
        let first = shared.job.blocks(&shared.tasks[task]).start;
        let at = (self.tasks[task].0 + block - first) * self.slot;
        // SAFETY: there is a slot for each block; and the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.records.0.add(at), self.slot) }
    }
}

/// [`Shared::work`] with the instructions of `isa`; the loops are inlined.
///
/// # Safety
///
/// As there.
unsafe fn work<E: Stored>(isa: Isa, shared: &Shared<'_, E>) {
    // SAFETY: the caller's promise.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::AmxBf16 => x86::avx512(shared),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::avx2(shared),
            _ => shared.work::<crate::product::F32x4>(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Shared, Stored};
    use crate::product::{F32x8, F32x16};

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn avx512<E: Stored>(shared: &Shared<'_, E>) {
        // SAFETY: the promise of `work`, here and below.
        unsafe { shared.work::<F32x16>() }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2<E: Stored>(shared: &Shared<'_, E>) {
        // SAFETY: as above.
        unsafe { shared.work::<F32x8>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_claimed_once() {
        for threads in [1, 2, 3, 64] {
            for end in [0, 1, 2, 7, 32, 1000] {
                let claims = Claims::new(end, threads);
                let mut next = 0;
                while let Some(claimed) = claims.claim() {
                    assert_eq!(claimed.start, next);
                    assert!(!claimed.is_empty());
                    next = claimed.end;
                }
                assert_eq!(next, end);
            }
        }
    }
}
