//! Runs of blocks on GPUs: for each number of blocks the fastest way to cover them.

use super::crossings::{Crossing, Crossings, Side};
use crate::placement::{PlanContext, Streaming};
use crate::{Gpu, Tier};
use std::collections::VecDeque;
use std::ops::Range;

/// Blocks that share weights and are therefore placed together, at the first of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Item {
    pub(super) blocks: Vec<usize>,
    /// Bytes of its weights.
    pub(super) bytes: u64,
    /// Whether a pass reads single rows of it only.
    pub(super) only_rows: bool,
}

/// The items in the order of execution, and for each group its item.
pub(super) fn items(context: &PlanContext<'_>) -> (Vec<Item>, Vec<usize>) {
    let anchors = &context.groups.anchors;
    let mut items: Vec<Item> = Vec::new();
    let mut item_of_block = vec![0; anchors.len()];
    for (block, anchor) in anchors.iter().enumerate() {
        if *anchor == block {
            item_of_block[block] = items.len();
            items.push(Item { only_rows: true, ..Item::default() });
        } else {
            item_of_block[block] = item_of_block[*anchor];
        }
        let item = &mut items[item_of_block[block]];
        item.blocks.push(block);
        item.only_rows &= context.costs.weights(block, 1.0) == 0.0 && context.kv(block) == 0;
    }
    let item_of: Vec<usize> = context
        .groups
        .groups
        .iter()
        .map(|group| group.uses().next().map_or(0, |one| item_of_block[one.block()]))
        .collect();
    for (group, item) in context.groups.groups.iter().zip(&item_of) {
        items[*item].bytes += group.bytes;
    }
    (items, item_of)
}

/// Seconds for a token and for a prompt, and how many GPUs work on it; compared in this order.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cost {
    token: f64,
    prompt: f64,
    gpus: i64,
    /// Of the seconds for a token, those that it may not take: they do not count when compared.
    uncertain: f64,
}

impl Cost {
    fn plus(self, other: Self) -> Self {
        Self {
            token: self.token + other.token,
            prompt: self.prompt + other.prompt,
            gpus: self.gpus + other.gpus,
            uncertain: self.uncertain + other.uncertain,
        }
    }

    fn minus(self, other: Self) -> Self {
        self.plus(Self {
            token: -other.token,
            prompt: -other.prompt,
            gpus: -other.gpus,
            uncertain: -other.uncertain,
        })
    }

    fn is_more_than(&self, other: &Self) -> bool {
        let order = self.token.total_cmp(&other.token).then(self.prompt.total_cmp(&other.prompt));
        order.then(self.gpus.cmp(&other.gpus)).is_gt()
    }
}

impl From<Crossing> for Cost {
    fn from(Crossing { token, prompt, uncertain }: Crossing) -> Self {
        let uncertain = if uncertain { token } else { 0.0 };
        Self { token, prompt, uncertain, ..Self::default() }
    }
}

/// The cost of each block on each GPU, indexed as in
/// [`Capacities::gpus`](crate::placement::Capacities).
pub(super) struct Speeds(Vec<Vec<Cost>>);

impl Speeds {
    pub(super) fn new(context: &PlanContext<'_>) -> Self {
        let of = |gpu: &Gpu| {
            let on = &gpu.processor;
            let costs = &context.costs;
            let blocks = 0..context.tree.blocks.len();
            let cost = |block| {
                let [token, prompt] = costs.output(block, gpu.download());
                let (token, prompt) =
                    (token + costs.decode(block, on), prompt + costs.prefill(block, on));
                Cost { token, prompt, ..Cost::default() }
            };
            blocks.map(cost).collect()
        };
        let gpus = context.capacities.gpus.iter();
        Self(gpus.map(|gpu| of(&gpu.hardware)).collect())
    }
}

/// The fastest runs for each number of items, from the first of a sequence on.
pub(super) struct Runs {
    order: Vec<usize>,
    /// For each GPU in that order and each number of items: what the GPUs so far take, and where
    /// the run of this one begins.
    best: Vec<Vec<Option<(Cost, usize)>>>,
    /// For each number of items, what the others take to compute.
    rest: Vec<f64>,
}

impl Runs {
    /// The runs of GPUs in `order` (indices into
    /// [`Capacities::gpus`](crate::placement::Capacities)), of which the last also computes what is
    /// streamed to it; `executors` says where blocks compute that are on no GPU.
    pub(super) fn new(
        context: &PlanContext<'_>,
        speeds: &Speeds,
        items: &[Item],
        sequence: &[usize],
        order: &[usize],
        (streaming, executors): (Streaming, &[(Tier, Tier)]),
    ) -> Self {
        // The end of a run from which the sequence comes, and the other.
        let reversed = sequence.first() > sequence.last();
        let sides = match reversed {
            true => [Side::Last, Side::First],
            false => [Side::First, Side::Last],
        };
        let first = |at: usize| items[sequence[at]].blocks[0];
        let count = sequence.len();
        // Bytes that the items up to each one take on a GPU.
        let mut bytes = vec![0u64; count + 1];
        for (at, item) in sequence.iter().enumerate() {
            let item = &items[*item];
            let kv: u64 = item.blocks.iter().map(|block| context.kv(*block)).sum();
            bytes[at + 1] = bytes[at] + item.bytes + kv;
        }
        // Items from each one on that compute elsewhere: their time, and their KV cache on the GPU
        // that they are streamed to.
        let mut rest = vec![0.0; count + 1];
        let mut caches = vec![0u64; count + 1];
        let mut beside = vec![true; items.len()];
        for item in sequence {
            beside[*item] = false;
        }
        for (item, _) in items.iter().zip(beside).filter(|(_, beside)| *beside) {
            let (seconds, cache) = remaining(context, item, executors);
            rest[count] += seconds;
            caches[count] += cache;
        }
        for at in (0..count).rev() {
            let (seconds, cache) = remaining(context, &items[sequence[at]], executors);
            rest[at] = rest[at + 1] + seconds;
            caches[at] = caches[at + 1] + cache;
        }
        let mut before: Vec<Option<Cost>> = vec![None; count + 1];
        before[0] = Some(Cost::default());
        let mut best = Vec::with_capacity(order.len());
        for gpu in order {
            let capacity = &context.capacities.gpus[*gpu];
            let from_first = best.is_empty() && !reversed;
            let crossings = Crossings { context, gpu: capacity, executors, from_first };
            let crossing = |at: usize, side: Side, beyond_is_run: bool| {
                Cost::from(crossings.of(first(at), side, beyond_is_run))
            };
            let begin_at = |at: usize| crossing(at, sides[0], at > 0);
            let end_at = |at: usize| crossing(at, sides[1], false);
            let mut sums = vec![Cost::default(); count + 1];
            for (at, item) in sequence.iter().enumerate() {
                sums[at + 1] = sums[at];
                for block in &items[*item].blocks {
                    sums[at + 1] = sums[at + 1].plus(speeds.0[*gpu][*block]);
                }
            }
            let is_streamed_to = streaming.gpu() == Some(*gpu);
            let mut bytes_here = i128::from(capacity.bytes);
            if is_streamed_to {
                bytes_here -= i128::from(context.capacities.gpu_ring);
            }
            // The most bytes of a run that ends at `end`.
            let cache = |end: usize| if is_streamed_to { caches[end] } else { 0 };
            let most = |end: usize| bytes_here - i128::from(cache(end));
            let mut window: VecDeque<(Cost, usize)> = VecDeque::new();
            let row: Vec<Option<(Cost, usize)>> = (0..=count)
                .map(|end| {
                    let most = most(end);
                    let begins = (most >= 0).then_some(before[end]).flatten();
                    // Without a run, activations still come to what is streamed to it.
                    let streams = is_streamed_to
                        && end < count
                        && executors[first(end)].0 == Tier::Gpu(capacity.number);
                    let empty = begins.map(|cost| match streams {
                        true => (cost.plus(begin_at(end)), end),
                        false => (cost, end),
                    });
                    // The earliest start only moves forward: a run grows by more than the caches of
                    // the rest shrink.
                    while let Some((_, start)) = window.front()
                        && i128::from(bytes[end] - bytes[*start]) > most
                    {
                        window.pop_front();
                    }
                    let full = window
                        .front()
                        .map(|(cost, start)| (cost.plus(sums[end]).plus(end_at(end - 1)), *start));
                    if let Some(cost) = before[end].filter(|_| end < count) {
                        let one = Cost { gpus: 1, ..Cost::default() }.plus(begin_at(end));
                        let cost = cost.plus(one).minus(sums[end]);
                        while window.back().is_some_and(|(last, _)| last.is_more_than(&cost)) {
                            window.pop_back();
                        }
                        window.push_back((cost, end));
                    }
                    match (empty, full) {
                        (Some(empty), Some(full)) if empty.0.is_more_than(&full.0) => Some(full),
                        (Some(empty), _) => Some(empty),
                        (None, full) => full,
                    }
                })
                .collect();
            before = row.iter().map(|best| best.map(|(cost, _)| cost)).collect();
            best.push(row);
        }
        Self { order: order.to_vec(), best, rest }
    }

    /// The least seconds of the runs that cover so many items; none if these do not fit.
    pub(super) fn seconds(&self, covered: usize) -> Option<f64> {
        self.best.last()?[covered].map(|(cost, _)| cost.token - cost.uncertain)
    }

    /// Seconds to compute the other items.
    pub(super) fn rest_seconds(&self, covered: usize) -> f64 {
        self.rest[covered]
    }

    /// The runs that cover so many items: indices of GPUs with ranges of the sequence.
    pub(super) fn of(&self, covered: usize) -> Vec<(usize, Range<usize>)> {
        let mut runs = Vec::new();
        let mut end = covered;
        for (gpu, row) in self.order.iter().zip(&self.best).rev() {
            if let Some((_, start)) = row[end] {
                if start < end {
                    runs.push((*gpu, start..end));
                }
                end = start;
            }
        }
        runs
    }
}

/// Seconds to compute an item that is on no GPU, and the bytes of its KV cache on the GPU that it
/// is streamed to.
fn remaining(context: &PlanContext<'_>, item: &Item, executors: &[(Tier, Tier)]) -> (f64, u64) {
    let (mut seconds, mut cache) = (0.0, 0u64);
    for block in &item.blocks {
        match executors[*block].0 {
            Tier::Gpu(number) => {
                let gpu = context.hardware().gpu(number);
                let upload = context.costs.upload(context.costs.weights(*block, 1.0), &gpu);
                seconds += upload.max(context.costs.decode(*block, &gpu.processor));
                cache = cache.saturating_add(context.kv(*block));
            }
            Tier::Cpu | Tier::Disk => {
                seconds += context.costs.decode(*block, &context.hardware().cpu)
            }
        }
    }
    (seconds, cache)
}
